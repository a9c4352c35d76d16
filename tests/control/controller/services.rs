use std::time::Duration;

use serde_json::{Value, json};

use crate::process::OUTSIDE;

use super::scene::{Agent, OBJECTS, RELEASE, SOON, Scene, balancer, condition};

/// Whether it is an Event of ours about this object. The API server has its own, such as one of a Service's
/// address that it repairs.
fn is_told(event: &Value, about: &str) -> bool {
    event["regarding"]["name"] == about && event["reportingController"] == "vestibule.dev/controller"
}

/// Waits for the address of the Service that requests none.
fn any(scene: &Scene) -> String {
    let address =
        |service: &Value| service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str().map(str::to_owned);
    let service = scene.wait("any address", ["service", "any"], |service| address(service).is_some());
    address(&service).unwrap()
}

fn events(scene: &Scene, about: &str) -> Vec<Value> {
    let events = scene.kubectl().get(&["-n", "tenant", "events.events.k8s.io"]).unwrap();
    let items = events["items"].as_array().unwrap().iter();
    items.filter(|event| is_told(event, about)).cloned().collect()
}

#[test]
fn ingress_comes_with_agreement_and_each_problem_is_told_once() {
    let scene = Scene::new();
    let mut foreign = balancer("foreign", Some("192.0.2.8"), 443);
    foreign["spec"]["loadBalancerClass"] = "example.com/lb".into();
    let services = [balancer("lb", Some("192.0.2.9"), 443), balancer("any", None, 443), foreign];
    let services = services.map(|service| service.to_string());
    for objects in [OBJECTS, OUTSIDE].into_iter().chain(services.iter().map(String::as_str)) {
        scene.kubectl().apply(objects).unwrap();
    }
    let controller = scene.controller("a");
    let service = scene.wait("no agent", ["service", "lb"], |service| {
        condition(&service["status"]["conditions"], "vestibule.dev/Programmed")["reason"] == "NoResources"
    });
    assert_eq!(service["status"]["loadBalancer"], json!({}));
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    let service = scene.wait("ingress", ["service", "lb"], |service| {
        !service["status"]["loadBalancer"]["ingress"].is_null()
    });
    let ports = json!([{"port": 443, "protocol": "TCP"}]);
    assert_eq!(
        service["status"]["loadBalancer"]["ingress"],
        json!([{"ip": "192.0.2.9", "ipMode": "Proxy", "ports": ports}])
    );

    let given = any(&scene);
    assert!(given.starts_with("192.0.2.") && given != "192.0.2.9" && given != "192.0.2.0", "{given}");
    let arguments = ["-n", "tenant", "events.events.k8s.io"];
    let told =
        |events: &Value| events["items"].as_array().unwrap().iter().any(|event| is_told(event, "outside"));
    scene.kubectl().wait_for("the Event", &arguments, SOON, told).unwrap();
    controller.end();
    let _next = scene.controller("b");
    let leads =
        |lease: &Value| lease["spec"]["holderIdentity"].as_str().is_some_and(|who| who.starts_with("b_"));
    let lease = ["-n", RELEASE, "lease", "vestibule-controller"];
    scene.kubectl().wait_for("the next leader", &lease, SOON, leads).unwrap();
    // The next leader reaches the same result, and does not report it again.
    std::thread::sleep(Duration::from_secs(5));
    let told = events(&scene, "outside");
    assert_eq!(told.len(), 1, "{told:#?}");
    let event = &told[0];
    assert_eq!((&event["type"], &event["regarding"]["kind"]), (&json!("Warning"), &json!("Service")));
    assert!(event["note"].as_str().unwrap().contains("in the ranges"), "no remedy: {event:#}");
    let failed =
        "Failed to allocate IP for \"tenant/outside\": metadata.annotations[vestibule.dev/addresses]: ";
    assert_eq!(event["reason"], "AllocationFailed");
    assert!(event["note"].as_str().unwrap().starts_with(failed), "{event:#}");
    // What got its addresses from the former leader is not said again.
    for (name, address) in [("lb", "192.0.2.9"), ("any", &given)] {
        let told = events(&scene, name);
        assert_eq!(told.len(), 1, "{told:#?}");
        let said = (&told[0]["type"], &told[0]["reason"], &told[0]["note"]);
        let note = json!(format!("Assigned IP [\"{address}\"]"));
        assert_eq!(said, (&json!("Normal"), &json!("IPAllocated"), &note));
        assert_eq!(told[0]["series"], Value::Null, "{told:#?}");
    }
    assert_eq!(events(&scene, "foreign"), [] as [Value; 0]);

    // One that requests none has one of the ranges, and keeps it when another controller leads.
    assert_eq!(given, any(&scene));
    // It stops being ours.
    let patch = r#"{"spec": {"type": "ClusterIP", "loadBalancerClass": null, "allocateLoadBalancerNodePorts": null}}"#;
    scene.kubectl().run(&["-n", "tenant", "patch", "service", "lb", "--type=merge", "-p", patch]).unwrap();
    let is_empty = |service: &Value| service["status"] == json!({"loadBalancer": {}});
    scene.wait("our condition to go", ["service", "lb"], is_empty);
    let cleared = |events: &Value| {
        let is_of = |event: &&Value| is_told(event, "lb") && event["reason"] == "ClearAssignment";
        events["items"].as_array().unwrap().iter().any(|event| is_of(&event))
    };
    scene.kubectl().wait_for("the Event", &arguments, SOON, cleared).unwrap();
    let foreign = scene.kubectl().get(&["-n", "tenant", "service", "foreign"]).unwrap();
    assert_eq!(foreign["status"], json!({"loadBalancer": {}}));
    assert_eq!(scene.refusals(), [""; 0]);
}

#[test]
fn the_controller_makes_the_keys_and_keeps_them() {
    let scene = Scene::new();
    let first = scene.controller("a");
    let arguments = ["-n", RELEASE, "secret", "vestibule-keys"];
    let secret = scene.kubectl().wait_for("keys", &arguments, SOON, |_| true).unwrap();
    assert_eq!(secret["type"], "Opaque");
    // 16 bytes, encoded in base64.
    for name in ["cookie-0", "cookie-1"] {
        let key = secret["data"][name].as_str().unwrap();
        assert!(key.len() == 24 && key.ends_with("=="), "{name}: {key}");
    }
    assert_ne!(secret["data"]["cookie-0"], secret["data"]["cookie-1"]);
    assert_eq!(secret["data"]["current"], "MA==");
    first.end();
    let second = scene.controller("b");
    let begun = std::time::Instant::now();
    while !second.leads() {
        assert!(begun.elapsed() < SOON, "nobody leads");
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_secs(3));
    let after = scene.kubectl().get(&arguments).unwrap();
    assert_eq!(after["metadata"]["resourceVersion"], secret["metadata"]["resourceVersion"]);
    assert_eq!(scene.refusals(), [""; 0]);
}
