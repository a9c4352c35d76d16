use std::path::Path;

use serde_json::Value;
use tests::skip_without_root;

use super::scene::{NODE, RELEASE, Scene, slice, until};

#[test]
fn what_objects_say_reaches_the_maps_and_what_the_maps_hold_is_told() {
    skip_without_root!();
    let scene = Scene::new();
    scene.tenant("a", "10.99.1.1");
    let agent = scene.agent("first");
    until("the route is in the maps", &[&agent], || scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]);
    until("the agent is ready", &[&agent], || agent.is_ready());
    assert!(agent.probe("--livez").0);
    let explain = |socket: &Path| -> Value {
        let mut explain = scene.vestibule();
        explain.args(["explain", "--name", "a.example.com", "-o", "json", "--socket"]).arg(socket);
        serde_json::from_slice(&explain.output().unwrap().stdout).unwrap()
    };
    let answer = explain(agent.socket());
    assert_eq!((&answer["route"], &answer["tenant"]), (&"tlsroute/tenant/a".into(), &"tenant".into()));
    let answer = explain(Path::new("/nothing"));
    assert_eq!((&answer["route"], &answer["tenant"]), (&"tlsroute/tenant/a".into(), &Value::Null));

    let state = ["nodestate", NODE];
    let state = scene.kubectl().wait_for("its NodeState", &state, super::scene::SOON, |_| true).unwrap();
    assert_eq!(state["spec"]["pod"], "first");
    let lease = format!("vestibule-agent-{NODE}");
    let lease = ["-n", RELEASE, "lease", &*lease];
    let holds = |lease: &Value| {
        let annotation = &lease["metadata"]["annotations"]["vestibule.dev/claims-version"];
        annotation.as_str().is_some_and(|version| version != "0")
    };
    let lease = scene.kubectl().wait_for("its report", &lease, super::scene::SOON, holds).unwrap();
    assert_eq!(lease["metadata"]["annotations"]["vestibule.dev/report-version"], "2");
    assert_eq!(lease["spec"]["holderIdentity"], "first");
    assert_eq!(lease["spec"]["leaseDurationSeconds"], 40);
    assert_eq!(lease["metadata"]["labels"]["app.kubernetes.io/component"], "agent");

    // One endpoint changes: only its backend changes in the maps, and the NodeState stays the same.
    scene.tenant("b", "10.99.1.2");
    until("both routes are in the maps", &[&agent], || scene.backends().len() == 2);
    // The node's state is published at most once a second.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let writes =
        |map: &str| agent.metric(&format!("vestibule_map_writes_total{{map=\"{map}\"}}")).unwrap_or(0.0);
    let before = (writes("ROUTES_EXACT"), writes("LISTENERS"), writes("ADDRESSES"), writes("LABELS"));
    let version = |object: &Value| object["metadata"]["resourceVersion"].clone();
    let told = version(&scene.kubectl().get(&["nodestate", NODE]).unwrap());
    scene.kubectl().apply(&slice("b", "10.99.1.3").to_string()).unwrap();
    until("the backend is another", &[&agent], || {
        scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443", "tlsroute/tenant/b 10.99.1.3:6443"]
    });
    let after = (writes("ROUTES_EXACT"), writes("LISTENERS"), writes("ADDRESSES"), writes("LABELS"));
    assert_eq!(before, after, "an endpoint touches no name, listener, address or label");
    std::thread::sleep(std::time::Duration::from_secs(2));
    assert_eq!(version(&scene.kubectl().get(&["nodestate", NODE]).unwrap()), told);

    scene.kubectl().run(&["-n", "tenant", "delete", "tlsroute", "b"]).unwrap();
    until("the route is gone", &[&agent], || scene.backends().len() == 1);
    assert_eq!(agent.metric("vestibule_writer"), Some(1.0));
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
    agent.end();
    assert_eq!(scene.backends().len(), 1, "what is in the kernel stays");
}
