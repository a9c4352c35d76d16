use serde_json::{Value, json};

use super::scene::{OBJECTS, SOON, Scene};

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: api, namespace: tenant}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: ports, namespace: tenant}
spec:
  gatewayClassName: vestibule
  listeners: [{name: tcp, port: 9000, protocol: TCP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: port, namespace: tenant}
spec:
  parentRefs: [{name: ports}]
  rules: [{backendRefs: [{name: api, port: 443}]}]
";

const LATE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: late, namespace: tenant}
spec:
  parentRefs: [{name: gw}]
  hostnames: [late.example]
  rules: [{backendRefs: [{name: api, port: 443}]}]
";

/// Versions of the Claims of an origin that have what they ask for.
fn versions(claims: &Value, origin: &str) -> Vec<String> {
    let items = claims["items"].as_array().map_or(&[][..], Vec::as_slice);
    let of_origin = |claim: &&Value| {
        claim["spec"]["origin"]["name"] == origin && claim["spec"]["granted"].as_i64() > Some(0)
    };
    let version = |claim: &Value| claim["metadata"]["resourceVersion"].as_str().unwrap().to_owned();
    items.iter().filter(of_origin).map(version).collect()
}

#[test]
fn a_kind_that_may_not_be_listed_holds_back_only_what_needs_it() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SERVICE).unwrap();
    let readable = |resources: &[&str]| {
        let role = kubectl.get(&["clusterrole", "vestibule-controller"]).unwrap();
        let reads = |rule: &Value| {
            rule["verbs"] == json!(["list", "watch"])
                && rule["apiGroups"] == json!(["gateway.networking.k8s.io"])
        };
        let place = role["rules"].as_array().unwrap().iter().position(reads).unwrap();
        let path = format!("/rules/{place}/resources");
        let patch = json!([{"op": "replace", "path": path, "value": resources}]).to_string();
        kubectl.run(&["patch", "clusterrole", "vestibule-controller", "--type=json", "-p", &patch]).unwrap();
    };
    let wait = |what: &str, wanted: &dyn Fn(&Value) -> bool| {
        kubectl.wait_for(what, &["claims"], SOON, wanted).unwrap()
    };
    let counted = |gateway: &Value| gateway["status"]["listeners"][0]["attachedRoutes"] == 1;
    let first = scene.controller("a");
    let claims = wait("the route's Claim", &|claims| versions(claims, "port").len() == 1);
    let before = versions(&claims, "port");
    scene.wait("counted", ["gateway", "ports"], counted);
    first.end();

    let mut kinds = vec!["gatewayclasses", "gateways", "listenersets", "tlsroutes", "referencegrants"];
    readable(&kinds);
    let controller = scene.controller("b");
    kubectl.apply(LATE).unwrap();
    // It is gone, but nobody may know.
    kubectl.run(&["-n", "tenant", "delete", "tcproute", "port"]).unwrap();
    let claims = wait("the Claim of another kind", &|claims| versions(claims, "late").len() == 1);
    assert_eq!(versions(&claims, "port"), before);
    assert!(counted(&kubectl.get(&["-n", "tenant", "gateway", "ports"]).unwrap()));
    let ready = controller.ask("/readyz").unwrap();
    assert!(ready.starts_with("HTTP/1.0 200") && ready.contains("stale: tcproutes: 403"), "{ready}");

    kinds.push("tcproutes");
    readable(&kinds);
    wait("the Claim to go", &|claims| versions(claims, "port").is_empty());
    scene.wait("counted again", ["gateway", "ports"], |gateway| !counted(gateway));
}
