use serde_json::{Value, json};

use super::scene::{OBJECTS, Scene, condition};

const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: r, namespace: tenant}
spec:
  parentRefs: [{name: gw}, {name: other}]
  hostnames: [a.example]
  rules: [{backendRefs: [{name: nothing, port: 443}]}]
";

const OURS: &str = "vestibule.dev/gateway-controller";
const TLS_ROUTE: [&str; 2] = ["tlsroute", "r"];

fn entries<'a>(route: &'a Value, controller: &str) -> Vec<&'a Value> {
    let parents = route["status"]["parents"].as_array().map_or(&[][..], Vec::as_slice);
    parents.iter().filter(|parent| parent["controllerName"] == controller).collect()
}

#[test]
fn a_route_has_one_entry_of_ours_and_those_of_others_stay() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(ROUTE).unwrap();
    // Another controller wrote first, and another client wrote a condition into the entry that will be ours.
    let foreign = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "",
                         "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let audited = json!({"type": "example.com/Audited", "status": "True", "reason": "Yes", "message": "",
                         "lastTransitionTime": "2026-01-01T00:00:00Z"});
    let status = json!({"status": {"parents": [
        {"parentRef": {"name": "other"}, "controllerName": "example.com/c", "conditions": [foreign]},
        {"parentRef": {"name": "gw"}, "controllerName": OURS, "conditions": [audited]}]}});
    let status = status.to_string();
    let patch = ["-n", "tenant", "patch", "tlsroute", "r", "--subresource=status", "--type=merge", "-p"];
    kubectl.run(&[&patch[..], &[&status]].concat()).unwrap();
    let before = kubectl.get(&["-n", "tenant", "tlsroute", "r"]).unwrap();

    let _controller = scene.controller("a");
    let route = scene.wait("judged", TLS_ROUTE, |route| {
        entries(route, OURS)
            .first()
            .is_some_and(|entry| !condition(&entry["conditions"], "Accepted").is_null())
    });
    let ours = entries(&route, OURS);
    assert_eq!(ours.len(), 1, "{route:#}");
    assert_eq!(ours[0]["parentRef"]["name"], "gw");
    assert_eq!(condition(&ours[0]["conditions"], "ResolvedRefs")["reason"], "BackendNotFound");
    assert_eq!(condition(&ours[0]["conditions"], "example.com/Audited")["status"], "True");
    assert_eq!(entries(&route, "example.com/c"), entries(&before, "example.com/c"));
    scene.wait("counted", ["gateway", "gw"], |gateway| {
        gateway["status"]["listeners"][0]["attachedRoutes"] == 1
    });

    // The route no longer refers to our Gateway, so our entry is removed.
    let left = json!({"spec": {"parentRefs": [{"name": "other"}]}}).to_string();
    kubectl.run(&["-n", "tenant", "patch", "tlsroute", "r", "--type=merge", "-p", &left]).unwrap();
    let route = scene.wait("left", TLS_ROUTE, |route| entries(route, OURS).is_empty());
    assert_eq!(entries(&route, "example.com/c"), entries(&before, "example.com/c"));
    assert_eq!(scene.refusals(), [""; 0]);
}
