//! What cannot be written or followed is said, and nothing else changes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::http::{Method, StatusCode, Uri};
use kube::Client;
use serde_json::{Value, json};

use super::scene::{Folder, Scene, ready, serve_one, until};
use crate::admin::Asked;
use crate::controller::keys::KEYS;
use crate::node::identity::Identity;
use crate::node::inputs::Input;
use crate::outputs::memory::Memory;
use crate::sources::kubernetes::Stale;

/// An API server that has no object, and takes each but a NodeState while it refuses those.
fn server(refuses: &Arc<AtomicBool>) -> Client {
    let refuses = Arc::clone(refuses);
    let answer = move |method: Method, uri: Uri, body: axum::body::Bytes| async move {
        let refusal = |code: StatusCode, reason: &str| {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "code": code.as_u16(), "message": "", "reason": reason});
            (code, status.to_string())
        };
        if method == Method::GET {
            return refusal(StatusCode::NOT_FOUND, "NotFound");
        }
        if uri.path().contains("/nodestates") && refuses.load(Ordering::Relaxed) {
            return refusal(StatusCode::FORBIDDEN, "Forbidden");
        }
        let mut object: Value = serde_json::from_slice(&body).unwrap();
        object["metadata"]["resourceVersion"] = "1".into();
        (StatusCode::OK, object.to_string())
    };
    Client::new(axum::Router::new().fallback(answer), "default")
}

/// What cannot be written is no event of the loop.
#[tokio::test]
async fn a_quiet_node_says_that_its_node_state_cannot_be_written_until_it_can() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (mut scene, cluster) = Scene::of_cluster(&folder, &output);
    let refuses = Arc::new(AtomicBool::new(true));
    let identity = Identity { node: "n".into(), pod: "p".into(), namespace: "ns".into() };
    scene.node.telemetry.tell_api(&server(&refuses), &identity);
    let told = Arc::clone(&scene.told);
    let says = |value| {
        let metric = format!("vestibule_config_stale{{source=\"nodestate\"}} {value}");
        told.metrics().lines().any(|line| line == metric)
    };
    scene
        .play(async {
            serve_one(&cluster, &output).await;
            tokio::time::pause();
            until("it is reported", || says(1)).await;
            assert!(ready(&told).contains("stale: nodestate: 403 Forbidden"), "{}", ready(&told));
            refuses.store(false, Ordering::Relaxed);
            until("it is taken back", || says(0)).await;
            assert!(!ready(&told).contains("nodestate"), "{}", ready(&told));
        })
        .await;
}

/// Without keys in common, a connection that a router moves as it begins is refused, while each node looks well.
#[tokio::test]
async fn keys_that_cannot_be_followed_are_stale_and_no_more() {
    let (folder, output) = (Folder::new(), Memory::default());
    folder.write(&[]);
    let (scene, cluster) = Scene::of_cluster(&folder, &output);
    let (told, inputs) = (Arc::clone(&scene.told), scene.inputs.clone());
    let stale = |why: &str| Stale { source: KEYS, since: Instant::now(), why: why.to_owned() };
    scene
        .play(async {
            inputs.send(Input::KeysStale(Some(stale("403 Forbidden")))).unwrap();
            serve_one(&cluster, &output).await;
            let line = "stale: keys: 403 Forbidden; the last state serves on";
            until("it is ready and says so", || ready(&told) == format!("ok\n{line}\n")).await;
            let metrics = || told.metrics();
            assert!(metrics().contains("vestibule_config_stale{source=\"keys\"} 1"), "{}", metrics());
            inputs.send(Input::KeysStale(None)).unwrap();
            until("it is followed again", || ready(&told) == "ok\n").await;
            assert!(metrics().contains("vestibule_config_stale{source=\"keys\"} 0"), "{}", metrics());
        })
        .await;
}
