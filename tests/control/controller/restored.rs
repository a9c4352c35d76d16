use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scene::{Agent, OBJECTS, Scene, condition, is};

const NODES: [&str; 3] = ["n1", "n2", "n3"];

/// A Gateway that is created when the backup was restored.
const LATER: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: later, namespace: tenant}
spec:
  gatewayClassName: vestibule
  listeners: [{name: tls, port: 443, protocol: TLS, tls: {mode: Passthrough}}]
";

fn gateway(scene: &Scene, name: &str) -> Value {
    scene.kubectl().get(&["-n", "tenant", "gateway", name]).unwrap()
}

fn is_programmed(gateway: &Value) -> bool {
    is(gateway, "Programmed", "True", "Programmed")
}

/// Raises the API server's version beyond this one, as others do all the time.
fn pass(scene: &Scene, version: u64) {
    let mut api = scene.server.rest().connect().unwrap();
    let map = |round: u64| json!({"metadata": {"name": "busy"}, "data": {"round": round.to_string()}});
    let maps = "/api/v1/namespaces/default/configmaps";
    let mut reached = 0;
    for round in 0.. {
        let written = match round {
            0 => {
                api.create(maps, &map(round)).or_else(|_| api.merge(&format!("{maps}/busy"), &map(u64::MAX)))
            }
            _ => api.merge(&format!("{maps}/busy"), &map(round)),
        };
        let written = written.unwrap()["metadata"]["resourceVersion"].as_str().unwrap().parse().unwrap();
        assert!(written > reached);
        reached = written;
        if reached > version {
            return;
        }
    }
}

/// Watches for so long that nothing is said of the Gateways that does not follow from what the API server has.
fn assert_nothing_new(scene: &Scene, seconds: u64, what: &str) {
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(seconds) {
        let (first, later) = (gateway(scene, "gw"), gateway(scene, "later"));
        assert!(is_programmed(&first), "{what}: {first:#}");
        assert!(!is_programmed(&later), "{what}: {later:#}");
        std::thread::sleep(Duration::from_millis(300));
    }
}

/// Leases name versions of a time that the API server has not seen. Its own versions pass them while the nodes have not
/// read what it has now.
#[test]
fn what_nodes_reported_before_a_backup_was_restored_programs_nothing() {
    let mut scene = Scene::new();
    scene.kubectl().apply(OBJECTS).unwrap();
    let leader = scene.controller("a");
    let _agents = NODES.map(|node| Agent::start(&scene, node));
    NODES.into_iter().for_each(|node| scene.report(node, u64::MAX));
    scene.wait("programmed", ["gateway", "gw"], is_programmed);
    scene.server.back_up().unwrap();

    pass(&scene, scene.newest_claim() + 400);
    scene.kubectl().apply(&LATER.replace("later", "lost")).unwrap();
    scene.wait("what will be lost", ["gateway", "lost"], is_programmed);
    let future = scene.newest_claim();
    NODES.into_iter().for_each(|node| scene.report_exactly(node, future));
    scene.server.restore().unwrap();
    assert!(scene.kubectl().get(&["-n", "tenant", "gateway", "lost"]).is_err(), "it was not in the backup");
    scene.kubectl().apply(LATER).unwrap();
    let is_judged = |gateway: &Value| !condition(&gateway["status"]["conditions"], "Programmed").is_null();
    scene.wait("judged", ["gateway", "later"], is_judged);
    assert!(scene.newest_claim() < future, "otherwise the test shows nothing");
    assert_nothing_new(&scene, 12, "the leader that saw it");

    // Another one did not see versions go back.
    leader.end();
    let _next = scene.controller("b");
    assert_nothing_new(&scene, 15, "the next leader");
    pass(&scene, future);
    // A Claim with a version beyond theirs, while that of the later Gateway is below.
    scene.kubectl().apply(&LATER.replace("later", "other")).unwrap();
    scene.wait("judged, too", ["gateway", "other"], is_judged);
    assert_nothing_new(&scene, 15, "once versions have passed what the nodes report");
    assert!(scene.newest_claim() > future, "otherwise the test shows nothing");

    NODES.into_iter().for_each(|node| scene.report(node, u64::MAX));
    scene.wait("programmed at last", ["gateway", "later"], is_programmed);
    assert!(is_programmed(&gateway(&scene, "gw")));
}
