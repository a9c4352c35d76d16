use std::fs;

use serde_json::{Value, json};
use tests::skip_without_root;

use crate::agent::scene::{CONFIG, Scene, until};
use crate::process::SOON;

/// A Gateway that asks for no address in particular.
const LATE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: late, namespace: tenant}
spec:
  gatewayClassName: vestibule
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
";

/// The controller's word for a file that it refuses.
const STALE: &str = "vestibule_config_stale{source=\"config\"} 1";

fn addresses(gateway: &Value) -> Vec<&str> {
    let addresses = gateway["status"]["addresses"].as_array().map_or(&[][..], Vec::as_slice);
    addresses.iter().filter_map(|one| one["value"].as_str()).collect()
}

/// An operator takes the range away from which tenants have their addresses, and then breaks the file.
#[test]
fn the_charts_file_is_followed_and_a_range_that_is_taken_away_drains() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    let controller = scene.controller("leader", &[]);
    let first = scene.agent("first");
    until("the route is served", &[&first], || scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]);

    let path = scene.folder.path().join("vestibule.json");
    fs::write(&path, CONFIG.replace("192.0.2.0/28", "198.51.100.0/28")).unwrap();
    let told = |events: &Value| {
        events["items"].as_array().unwrap().iter().any(|event| {
            event["regarding"]["name"] == "gw"
                && event["type"] == "Warning"
                && event["note"].as_str().unwrap().contains("the range of 192.0.2.5 was taken out")
        })
    };
    let events = ["-n", "tenant", "events.events.k8s.io"];
    scene.kubectl().wait_for("the Event", &events, SOON, told).unwrap();
    let gateway = |name| ["-n", "tenant", "gateway", name];
    let has = |address: &'static str| move |gateway: &Value| addresses(gateway) == [address];
    scene.kubectl().apply(LATE).unwrap();
    scene.kubectl().wait_for("the new range", &gateway("late"), SOON, has("198.51.100.1")).unwrap();
    let old = scene.kubectl().get(&gateway("gw")).unwrap();
    assert_eq!(addresses(&old), ["192.0.2.5"], "{old:#}");
    let programmed = |gateway: &Value| {
        let conditions = gateway["status"]["conditions"].as_array().map_or(&[][..], Vec::as_slice);
        conditions.iter().any(|one| (&one["type"], &one["status"]) == (&json!("Programmed"), &json!("True")))
    };
    scene.kubectl().wait_for("it serves on", &gateway("gw"), SOON, programmed).unwrap();
    until("the agent reads it again", &[&first], || first.log().contains("the chart's file was read again"));

    // What the file said before stays in effect.
    fs::write(&path, "{\"addresses\": {\"ranges\": [\"198.51.100.0/2x\"]}, \"devices\": [\"a/b\"]}").unwrap();
    until("the agent refuses it", &[&first], || first.log().contains("the chart's file is refused"));
    let metrics = || scene.namespace.run(|| controller.ask("/metrics")).unwrap_or_default();
    until("the controller says so", &[&first], || metrics().contains(STALE));
    drop(first);
    let second = scene.agent("second");
    scene.tenant("b", "10.99.1.2");
    let wanted = ["tlsroute/tenant/a 10.99.1.1:6443", "tlsroute/tenant/b 10.99.1.2:6443"];
    until("an agent that starts now uses the last good one", &[&second], || {
        let mut backends = scene.backends();
        backends.sort();
        backends == wanted
    });
    let reported = |state: &Value| {
        let problems = state["spec"]["problems"].as_array().map_or(&[][..], Vec::as_slice);
        problems.iter().any(|problem| problem["field"] == "devices[0]")
    };
    scene.kubectl().wait_for("the node's report", &["nodestate", "node1"], SOON, reported).unwrap();

    // The range is back: who has an address of it is not warned any more, and everything is well.
    fs::write(&path, CONFIG).unwrap();
    let well = |state: &Value| state["spec"]["problems"].as_array().is_none_or(Vec::is_empty);
    scene.kubectl().wait_for("a good file", &["nodestate", "node1"], SOON, well).unwrap();
    until("the controller is well", &[&second], || {
        let text = metrics();
        text.contains("vestibule_leader 1") && !text.contains(STALE)
    });
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
    controller.end();
}
