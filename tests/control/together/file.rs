use std::fs;

use serde_json::{Value, json};
use tests::skip_without_root;

use crate::agent::scene::{CONFIG, Scene, until};
use crate::process::RELEASE;

/// Returns a file with a listener at the Gateway's own address and port.
fn file(routes: &str) -> String {
    format!(
        r#"{{"apiVersion": "vestibule.dev/v1alpha1", "kind": "StaticConfig",
            "listeners": [{{"name": "static", "addresses": ["192.0.2.5"], "port": 443, "protocol": "TLS"}}],
            "routes": [{routes}]}}"#
    )
}

const ROUTE: &str = r#"{"name": "of-the-file", "listeners": ["static"], "hostnames": ["a.example.com"],
    "backends": [{"address": "10.99.9.9", "port": 6443}]}"#;
/// Another route, so that the file is never empty.
const OTHER: &str = r#"{"name": "other", "listeners": ["static"], "hostnames": ["other.example.com"],
    "backends": [{"address": "10.99.9.8", "port": 6443}]}"#;

/// Returns the condition in which the cluster's route reports what it owns.
fn owned(scene: &Scene) -> Option<(String, String)> {
    let route = scene.kubectl().get(&["-n", "tenant", "tlsroute", "a"]).ok()?;
    let conditions = route["status"]["parents"][0]["conditions"].as_array()?;
    let owned = conditions.iter().find(|one| one["type"] == "vestibule.dev/Owned");
    // It asks for one name.
    let accepted = conditions.iter().find(|one| one["type"] == "Accepted")?;
    let has_all = owned.is_none_or(|owned| owned["status"] == "True");
    assert_eq!(accepted["status"] == "True", has_all, "{route:#}");
    let owned = owned?;
    Some((owned["status"].as_str()?.to_owned(), owned["message"].as_str()?.to_owned()))
}

fn backends(scene: &Scene) -> Vec<String> {
    let mut backends = scene.backends();
    backends.sort();
    backends
}

#[test]
fn a_static_file_beside_the_cluster_wins_and_gives_back() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    let path = scene.folder.path().join("static.json");
    fs::write(&path, file(&format!("{ROUTE}, {OTHER}"))).unwrap();
    let flag = format!("--file={}", path.display());
    let controller = scene.controller("leader", &[&flag]);
    let account = scene.kubectl().of_service_account(RELEASE, "vestibule-agent").unwrap();
    let agent = scene.agent_with("first", account.kubeconfig(), &[&flag]);
    let of_file = ["of-the-file 10.99.9.9:6443", "other 10.99.9.8:6443"];
    until("the file's routes are in the maps, and the loser's is not", &[&agent], || {
        backends(&scene) == of_file
    });
    until("the loser is reported", &[&agent], || {
        owned(&scene).is_some_and(|(status, text)| status == "False" && text.contains("of-the-file"))
    });

    // A refused file changes nothing.
    fs::write(&path, file(&ROUTE.replace("a.example.com", "a..example.com"))).unwrap();
    until("the refusal is reported", &[&agent], || agent.log().contains("is refused"));
    assert_eq!(backends(&scene), of_file);

    // The file no longer has the name, so the route gets it back.
    fs::write(&path, file(OTHER)).unwrap();
    until("the cluster's route serves", &[&agent], || {
        backends(&scene) == ["other 10.99.9.8:6443", "tlsroute/tenant/a 10.99.1.1:6443"]
    });
    until("its condition says so", &[&agent], || owned(&scene).is_none_or(|(status, _)| status == "True"));
    let won = |event: &Value| {
        event["regarding"]["name"] == "a"
            && (&event["type"], &event["reason"]) == (&json!("Normal"), &json!("Owned"))
            && event["note"].as_str().unwrap().contains("of-the-file")
    };
    until("an Event says so", &[&agent], || {
        let events = scene.kubectl().get(&["-n", "tenant", "events.events.k8s.io"]).unwrap();
        events["items"].as_array().unwrap().iter().any(won)
    });
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
    controller.end();
}
