//! Checks the definitions that all other tests here rely on.

use serde_json::json;
use tests::cluster::{ApiServer, Options};

/// An object as a tenant writes it.
const ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: tenant-a, namespace: default}
spec:
  parentRefs: [{name: front}]
  hostnames: [tenant-a.example]
  rules: [{backendRefs: [{name: api, port: 6443}]}]
";

#[test]
fn definitions_are_those_of_the_conformance_suite_and_a_route_is_stored() {
    let server = ApiServer::start().unwrap();
    let kubectl = server.kubectl();
    let routes = kubectl.get(&["crd", "tlsroutes.gateway.networking.k8s.io"]).unwrap();
    let annotations = &routes["metadata"]["annotations"];
    assert_eq!(annotations["gateway.networking.k8s.io/bundle-version"], "v1.6.3");
    assert_eq!(annotations["gateway.networking.k8s.io/channel"], "standard");
    kubectl.apply(ROUTE).unwrap();
    let route = kubectl.get(&["tlsroute", "tenant-a"]).unwrap();
    assert_eq!(route["spec"]["hostnames"], json!(["tenant-a.example"]));
    assert_eq!(route["metadata"]["generation"], 1);
    // The schema is applied: an invalid name is refused.
    let refused = kubectl.apply(&ROUTE.replace("[tenant-a.example]", "[\"-\"]")).unwrap_err();
    assert!(refused.to_string().contains("spec.hostnames"), "{refused}");
}

#[test]
fn without_definitions_there_are_no_routes_until_they_are_installed() {
    let server = ApiServer::with(&Options { bare: true, ..Options::default() }).unwrap();
    let missing = server.kubectl().get(&["tlsroutes"]).unwrap_err();
    assert!(missing.to_string().contains("doesn't have a resource type"), "{missing}");
    server.define().unwrap();
    assert_eq!(server.kubectl().get(&["tlsroutes"]).unwrap()["items"], json!([]));
}

/// What one node says can fill neither the API server nor the controllers.
#[test]
fn a_node_state_that_is_too_large_is_refused_with_the_field() {
    let server = ApiServer::start().unwrap();
    let state = |field: &str, value: serde_json::Value| {
        let mut spec = json!({"node": "n", "pod": "p", "version": "1"});
        spec[field] = value;
        let state = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "NodeState", "metadata": {"name": "n"}, "spec": spec});
        server.kubectl().apply(&state.to_string()).map_err(|error| error.to_string())
    };
    let problem = |message: String| json!({"field": "", "message": message, "remedy": ""});
    assert_eq!(state("failing", json!(vec!["192.0.2.1:6443"; 1_000])), Ok(()));
    assert_eq!(state("problems", json!(vec![problem("x".repeat(2_048)); 102])), Ok(()));
    for (field, value) in [
        ("failing", json!(vec!["192.0.2.1:6443"; 1_001])),
        ("failing", json!(["x".repeat(65)])),
        ("stale", json!(vec!["x"; 17])),
        ("problems", json!(vec![problem(String::new()); 103])),
        ("problems", json!([problem("x".repeat(2_049))])),
    ] {
        let refused = state(field, value).unwrap_err();
        assert!(refused.contains(&format!("spec.{field}")), "{refused}");
    }
}
