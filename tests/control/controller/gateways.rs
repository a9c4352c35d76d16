use std::time::Duration;

use serde_json::{Value, json};

use super::scene::{Agent, OBJECTS, SOON, Scene, condition, is};

const GATEWAY: [&str; 2] = ["gateway", "gw"];

fn message(gateway: &Value) -> &str {
    condition(&gateway["status"]["conditions"], "Programmed")["message"].as_str().unwrap()
}

#[test]
fn a_gateway_is_programmed_once_nodes_hold_it_and_stays_so_while_few_are_behind() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    let before = kubectl.get(&["-n", "tenant", "gateway", "gw"]).unwrap();
    let controller = scene.controller("a");

    let class = kubectl
        .wait_for("the class", &["gatewayclass", "vestibule"], SOON, |class| {
            is(class, "Accepted", "True", "Accepted")
        })
        .unwrap();
    assert!(is(&class, "SupportedVersion", "True", "SupportedVersion"), "{class:#}");
    assert!(class["status"]["supportedFeatures"].as_array().unwrap().contains(&json!({"name": "TLSRoute"})));

    let gateway =
        scene.wait("no agent", GATEWAY, |gateway| is(gateway, "Programmed", "False", "NoResources"));
    assert_eq!(gateway["status"]["addresses"], json!([{"type": "IPAddress", "value": "192.0.2.1"}]));
    assert!(is(&gateway, "Accepted", "True", "Accepted"), "{gateway:#}");
    let listener = &gateway["status"]["listeners"][0];
    assert_eq!((&listener["name"], &listener["attachedRoutes"]), (&json!("tls"), &json!(0)));

    let _first = Agent::start(&scene, "n1");
    let second = Agent::start(&scene, "n2");
    let third = Agent::start(&scene, "n3");
    for (n1, waits) in [(None, "waits for nodes n1, n2, n3;"), (Some(u64::MAX), "waits for nodes n2, n3;")] {
        n1.into_iter().for_each(|version| scene.report("n1", version));
        scene.wait("what the others report is not known", GATEWAY, |gateway| {
            is(gateway, "Programmed", "False", "Pending") && message(gateway).starts_with(waits)
        });
    }
    scene.report("n2", 1);
    scene.report("n3", 1);
    scene.wait("two hold an older state", GATEWAY, |gateway| message(gateway) == "waits for nodes n2, n3");
    scene.report("n3", u64::MAX);
    let enough = |gateway: &Value| is(gateway, "Programmed", "True", "Programmed");
    let programmed = scene.wait("one of three may be behind", GATEWAY, enough);
    scene.report("n2", u64::MAX);
    let conditions = programmed["status"]["conditions"].as_array().unwrap();
    assert!(conditions.iter().all(|condition| condition["observedGeneration"] == 1), "{conditions:#?}");
    let listener = &programmed["status"]["listeners"][0]["conditions"];
    assert_eq!(condition(listener, "Programmed")["status"], "True");

    // Nothing is written while nothing changes, nor for a node more or less. The spec is never written.
    std::thread::sleep(Duration::from_secs(6));
    let after = kubectl.get(&["-n", "tenant", "gateway", "gw"]).unwrap();
    assert_eq!(after["metadata"]["resourceVersion"], programmed["metadata"]["resourceVersion"]);
    assert_eq!((&after["spec"], &after["metadata"]["generation"]), (&before["spec"], &json!(1)));

    // A node without a running agent is not waited for, regardless of its last report.
    scene.report("n2", 1);
    scene.report("n3", 1);
    let lost = |gateway: &Value| {
        is(gateway, "Programmed", "False", "Pending") && message(gateway) == "waits for nodes n2, n3"
    };
    scene.wait("most have lost it for ten seconds", GATEWAY, lost);
    drop((second, third));
    scene.wait("both are gone", GATEWAY, enough);
    assert!(controller.ask("/readyz").unwrap().starts_with("HTTP/1.0 200"));
    assert_eq!(scene.refusals(), [""; 0]);
}

#[test]
fn an_api_server_that_is_away_and_comes_back_changes_no_condition() {
    let mut scene = Scene::new();
    scene.kubectl().apply(OBJECTS).unwrap();
    let _controller = scene.controller("a");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    let before = scene.wait("all agree", GATEWAY, |gateway| is(gateway, "Programmed", "True", "Programmed"));
    scene.server.stop().unwrap();
    std::thread::sleep(Duration::from_secs(25));
    scene.server.launch().unwrap();
    // Only what changes after this is written.
    let patch = json!({"spec": {"listeners": [{"name": "tls", "port": 443, "protocol": "TLS",
        "tls": {"mode": "Passthrough"}, "allowedRoutes": {"namespaces": {"from": "All"}}}]}});
    let patch = patch.to_string();
    scene.kubectl().run(&["-n", "tenant", "patch", "gateway", "gw", "--type=merge", "-p", &patch]).unwrap();
    let after = scene.wait("the new generation", GATEWAY, |gateway| {
        condition(&gateway["status"]["conditions"], "Programmed")["observedGeneration"] == 2
    });
    let since = |gateway: &Value| {
        condition(&gateway["status"]["conditions"], "Programmed")["lastTransitionTime"].clone()
    };
    assert!(is(&after, "Programmed", "True", "Programmed"), "{after:#}");
    assert_eq!(since(&after), since(&before), "it flapped");
    assert_eq!(after["status"]["addresses"], before["status"]["addresses"]);
}
