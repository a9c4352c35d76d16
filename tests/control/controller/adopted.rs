use std::time::Duration;

use serde_json::{Value, json};

use super::scene::{Agent, OBJECTS, SOON, Scene, balancer_of};
use crate::chart::rendered::template;

/// A Pod of MetalLB, in a namespace that the chart does not name.
const SPEAKER: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: kmetal-metallb}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: default, namespace: kmetal-metallb}
---
apiVersion: v1
kind: Pod
metadata: {name: speaker, namespace: kmetal-metallb, labels: {app: metallb, component: speaker}}
spec: {nodeName: n1, containers: [{name: speaker, image: none}]}
";
const READS: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]}, "loadBalancerClasses": ["example.com/metallb"],
                        "defaultLoadBalancerClass": true}"#;

/// Applies a Service with this class, and with what MetalLB has written to its status.
fn service(scene: &Scene, name: &str, class: Option<&str>, given: Option<&str>) {
    scene.kubectl().apply(&balancer_of("tenant", name, class, 443).to_string()).unwrap();
    if let Some(given) = given {
        let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": given, "ipMode": "VIP"}]}}});
        let patch = status.to_string();
        let patch =
            ["-n", "tenant", "patch", "service", name, "--subresource=status", "--type=merge", "-p", &patch];
        scene.kubectl().run(&patch).unwrap();
    }
}

fn entry(service: &Value) -> &Value {
    &service["status"]["loadBalancer"]["ingress"][0]
}

/// Notes of our Events on a Service.
fn notes<'a>(events: &'a Value, service: &str) -> Vec<&'a str> {
    let items = events["items"].as_array().map_or(&[][..], Vec::as_slice);
    let is_of = |event: &&Value| {
        event["regarding"]["name"] == service && event["reportingController"] == "vestibule.dev/controller"
    };
    items.iter().filter(is_of).filter_map(|event| event["note"].as_str()).collect()
}

#[test]
fn services_of_metallb_are_adopted_once_it_is_gone() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SPEAKER).unwrap();
    let rights = ["--set=defaultLoadBalancerClass=true", "--show-only=templates/rbac.yaml"];
    kubectl.apply(&template(&rights).unwrap()).unwrap();
    scene.configure(READS);
    service(&scene, "has", None, Some("192.0.2.9"));
    service(&scene, "listed", Some("example.com/metallb"), Some("192.0.2.1"));
    service(&scene, "new", None, None);
    service(&scene, "elsewhere", None, Some("203.0.113.1"));
    service(&scene, "foreign", Some("example.com/other"), Some("192.0.2.12"));
    service(&scene, "own", Some("vestibule.dev/lb"), None);
    let untouched: Vec<Value> = ["has", "listed", "new", "elsewhere", "foreign"]
        .map(|name| kubectl.get(&["-n", "tenant", "service", name]).unwrap())
        .into();
    let _controller = scene.controller("a");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);

    let own = scene.wait("an address", ["service", "own"], |service| entry(service)["ip"].is_string());
    // The Gateway has .2.
    assert_eq!(entry(&own)["ip"], "192.0.2.3", "what MetalLB gave is not free");
    let events = ["-n", "tenant", "events.events.k8s.io"];
    for name in ["has", "listed", "new", "elsewhere"] {
        let waits = |events: &Value| {
            let why = "MetalLB runs in namespace kmetal-metallb, or did so less than a minute ago: the Service is left as it is";
            notes(events, name).iter().any(|note| note.contains(why))
        };
        kubectl.wait_for("the Event", &events, SOON, waits).unwrap();
    }
    for before in &untouched {
        let now = kubectl.get(&["-n", "tenant", "service", before["metadata"]["name"].as_str().unwrap()]);
        assert_eq!(
            now.unwrap()["metadata"]["resourceVersion"],
            before["metadata"]["resourceVersion"],
            "{before}"
        );
    }

    kubectl
        .run(&["-n", "kmetal-metallb", "delete", "pod", "speaker", "--grace-period=0", "--force"])
        .unwrap();
    for (name, address) in [("has", "192.0.2.9"), ("listed", "192.0.2.1"), ("new", "192.0.2.4")] {
        let service = ["-n", "tenant", "service", name];
        let served = |service: &Value| {
            assert!(entry(service)["ip"].is_null() || entry(service)["ip"] == address, "{service:#}");
            entry(service)["ipMode"] == "Proxy" && entry(service)["ip"] == address
        };
        kubectl.wait_for("it is served", &service, 3 * SOON, served).unwrap();
    }
    // Nobody here may have its address.
    let refused = |events: &Value| {
        notes(events, "elsewhere").iter().any(|note| note.contains("is in none of the address ranges"))
    };
    kubectl.wait_for("the Event", &events, SOON, refused).unwrap();
    for before in &untouched[3..] {
        let now = kubectl.get(&["-n", "tenant", "service", before["metadata"]["name"].as_str().unwrap()]);
        assert_eq!(
            now.unwrap()["metadata"]["resourceVersion"],
            before["metadata"]["resourceVersion"],
            "{before}"
        );
    }

    // MetalLB is back: what was granted stays, and is not touched.
    kubectl.apply(SPEAKER).unwrap();
    // It is looked for every ten seconds.
    std::thread::sleep(Duration::from_secs(15));
    service(&scene, "late", None, None);
    let waits = |events: &Value| notes(events, "late").iter().any(|note| note.contains("MetalLB runs"));
    kubectl.wait_for("the Event", &events, SOON, waits).unwrap();
    let has = kubectl.get(&["-n", "tenant", "service", "has"]).unwrap();
    assert_eq!((&entry(&has)["ip"], &entry(&has)["ipMode"]), (&json!("192.0.2.9"), &json!("Proxy")));
    assert_eq!(scene.refusals(), [""; 0]);
}
