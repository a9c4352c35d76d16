use std::net::TcpListener;

use serde_json::json;

use super::scene::{OBJECTS, SOON, Scene, condition};

/// Services of our class whose statuses and Events a webhook holds: one after the other, they would take minutes.
const HELD: usize = 60;

/// A webhook of one tenant never answers. The API server waits for it longer than the controller does.
#[test]
fn a_webhook_that_hangs_delays_no_other_objects() {
    let scene = Scene::new();
    let silent = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let url = format!("https://{}/", silent.local_addr().unwrap());
    let webhook = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "silent"},
        "webhooks": [{
            "name": "silent.example.com", "clientConfig": {"url": url}, "timeoutSeconds": 30,
            "failurePolicy": "Fail", "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "held"}},
            "rules": [{"apiGroups": ["", "events.k8s.io"], "apiVersions": ["v1"],
                       "operations": ["CREATE", "UPDATE"], "resources": ["services/status", "events"]}],
        }],
    });
    let service = |namespace: &str, name: &str| {
        let spec = json!({"type": "LoadBalancer", "loadBalancerClass": "vestibule.dev/lb",
                          "allocateLoadBalancerNodePorts": false, "ports": [{"port": 443, "protocol": "TCP"}]});
        json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": namespace},
               "spec": spec})
    };
    let held = (0..HELD).map(|number| service("held", &format!("lb{number}")));
    let mut items =
        vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "held"}}), webhook];
    items.extend(held);
    scene.kubectl().apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    // A webhook is in force a moment after it was written.
    std::thread::sleep(std::time::Duration::from_secs(2));
    let controller = scene.controller("a");
    scene.kubectl().apply(OBJECTS).unwrap();
    scene.kubectl().apply(&service("tenant", "lb").to_string()).unwrap();
    scene.wait("the Gateway's status", ["gateway", "gw"], |gateway| {
        !condition(&gateway["status"]["conditions"], "Programmed").is_null()
    });
    scene.wait("the other Service's status", ["service", "lb"], |service| {
        !condition(&service["status"]["conditions"], "vestibule.dev/Programmed").is_null()
    });
    // It asks for no address, as those of the other namespace do.
    let events = ["-n", "tenant", "events.events.k8s.io"];
    let is_told = |events: &serde_json::Value| {
        events["items"].as_array().unwrap().iter().any(|event| event["regarding"]["name"] == "lb")
    };
    scene.kubectl().wait_for("the other Service's Event", &events, SOON, is_told).unwrap();
    let services = scene.kubectl().get(&["-n", "held", "services"]).unwrap();
    let conditions =
        services["items"].as_array().unwrap().iter().map(|service| &service["status"]["conditions"]);
    assert_eq!(conditions.filter(|conditions| !conditions.is_null()).count(), 0, "the webhook holds them");
    controller.end();
}
