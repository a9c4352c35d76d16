//! What a node serves though no Claims are known to it is reported: otherwise it would look like one that serves nothing.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::http::{Method, StatusCode, Uri};
use kube::Client;
use serde_json::{Value, json};

use super::scene::{Folder, Scene, never, ready, serve_one, until};
use crate::node::identity::Identity;
use crate::outputs::Pins;
use crate::outputs::memory::Memory;
use crate::sources::kubernetes::api::lease_report::LeaseReport;

/// The last object of each kind that an API server was sent.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<BTreeMap<&'static str, Value>>>);

impl Sent {
    /// An API server that has no object, and takes each.
    fn client(&self) -> Client {
        let sent = Arc::clone(&self.0);
        let answer = move |method: Method, uri: Uri, body: axum::body::Bytes| async move {
            if method == Method::GET {
                let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 404,
                    "message": "", "reason": "NotFound"});
                return (StatusCode::NOT_FOUND, status.to_string());
            }
            let mut object: Value = serde_json::from_slice(&body).unwrap();
            object["metadata"]["resourceVersion"] = "1".into();
            let kind = if uri.path().contains("/leases") { "Lease" } else { "NodeState" };
            sent.lock().unwrap().insert(kind, object.clone());
            (StatusCode::OK, object.to_string())
        };
        Client::new(axum::Router::new().fallback(answer), "default")
    }

    /// What the Lease reports.
    fn report(&self) -> Option<LeaseReport> {
        let sent = self.0.lock().unwrap();
        let annotations = sent.get("Lease")?["metadata"]["annotations"].clone();
        LeaseReport::read(&serde_json::from_value(annotations).unwrap())
    }

    fn problems(&self) -> String {
        self.0
            .lock()
            .unwrap()
            .get("NodeState")
            .map(|state| state["spec"]["problems"].to_string())
            .unwrap_or_default()
    }
}

fn identity() -> Identity {
    Identity { node: "n".into(), pod: "p".into(), namespace: "ns".into() }
}

async fn serve_and_end(folder: &Folder) {
    let output = Memory::default();
    let (scene, cluster) = Scene::of_cluster(folder, &output);
    // Its loop confirms it four times a second.
    scene
        .play(async {
            tokio::join!(serve_one(&cluster, &output), tokio::time::sleep(Duration::from_secs(1)));
        })
        .await;
}

/// A node that had booted while the mark was missing was not renewed, so that conditions said that nobody serves.
#[tokio::test]
async fn a_node_that_serves_a_saved_state_says_so_until_it_has_read_all_claims() {
    let (folder, output, sent) = (Folder::new(), Memory::default(), Sent::default());
    folder.write(&[]);
    serve_and_end(&folder).await;
    let (mut scene, cluster) = Scene::of_cluster(&folder, &output);
    scene.node.pace.hopeless = Some(tokio::time::Instant::now());
    scene.node.telemetry.tell_api(&sent.client(), &identity());
    let told = Arc::clone(&scene.told);
    scene
        .play(async {
            until("it is reported", || sent.report().is_some()).await;
            let report = sent.report().unwrap();
            assert!(
                report.claims_version == 0 && report.saved.starts_with("a saved state of 20"),
                "{report:?}"
            );
            // A former controller reads it there.
            until("the NodeState", || sent.problems().contains("it serves a saved state of 20")).await;
            assert!(ready(&told).contains(&format!("serves: {}", report.saved)), "{}", ready(&told));
            serve_one(&cluster, &output).await;
            until("it holds Claims", || sent.report().is_some_and(|report| report.claims_version > 0)).await;
            assert_eq!(sent.report().unwrap().saved, "");
            assert!(!ready(&told).contains("serves:"), "{}", ready(&told));
        })
        .await;
}

/// The same where only the agent was started again: the maps are there.
#[tokio::test]
async fn a_node_whose_maps_serve_on_says_so_while_nobody_writes_them() {
    let (folder, output, sent) = (Folder::new(), Memory::default(), Sent::default());
    folder.write(&[]);
    let pins = Pins::new(&folder.0);
    let start = || {
        let (mut scene, cluster) = Scene::of_cluster(&folder, &output);
        scene.node.pace.begun -= Duration::from_secs(60);
        scene.node.telemetry.tell_api(&sent.client(), &identity());
        (scene, cluster)
    };
    let (scene, _cluster) = start();
    scene.play(never("no maps are pinned", || sent.report().is_some())).await;
    fs::write(pins.map(common::maps::name::ROUTES), "").unwrap();
    let (scene, _cluster) = start();
    let writer = pins.lock().unwrap();
    scene.play(never("another process writes them", || sent.report().is_some())).await;
    drop(writer);
    let (scene, cluster) = start();
    let told = Arc::clone(&scene.told);
    scene
        .play(async {
            until("it is reported", || sent.report().is_some()).await;
            let (report, what) = (sent.report().unwrap(), "what its maps held when its agent began");
            assert_eq!((report.claims_version, report.saved.as_str()), (0, what));
            assert!(ready(&told).contains(&format!("serves: {what}")), "{}", ready(&told));
            serve_one(&cluster, &output).await;
            until("it holds Claims", || sent.report().is_some_and(|report| report.claims_version > 0)).await;
            assert_eq!(sent.report().unwrap().saved, "");
        })
        .await;
}
