use std::collections::BTreeSet;
use std::fs;

use serde_json::Value;
use tests::cluster::streamed;
use tests::skip_without_root;

use crate::agent::scene::{CONFIG, Scene, until};
use crate::process::RELEASE;

#[test]
fn an_api_server_that_streams_no_lists_is_asked_for_them() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &["--feature-gates=WatchList=false"]);
    scene.tenant("a", "10.99.1.1");
    let _controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    until("the route is in the maps", &[&agent], || scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]);
    until("the agent is ready", &[&agent], || agent.is_ready());
    for account in ["agent", "controller"] {
        let lists = lists(&scene, account);
        for what in streamed(account) {
            assert!(lists.contains(*what), "{account} does not list {what}: {lists:?}");
        }
    }
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}

/// Returns the resources that an account listed successfully.
fn lists(scene: &Scene, account: &str) -> BTreeSet<String> {
    let user = format!("system:serviceaccount:{RELEASE}:vestibule-{account}");
    let log = fs::read_to_string(scene.server.audit_log()).unwrap();
    // The last line may be incomplete.
    let events = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    let listed = events.filter(|event| {
        event["user"]["username"] == user.as_str()
            && event["verb"] == "list"
            && event["responseStatus"]["code"] == 200
    });
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    listed
        .map(|event| {
            let object = &event["objectRef"];
            format!("{}/{}", text(&object["apiGroup"]), text(&object["resource"]))
        })
        .collect()
}
