use std::fs;

use serde_json::{Value, json};
use tests::cluster::Kubectl;
use tests::corpus;

use super::pools::{READS, define_pools};
use super::scene::{Agent, OBJECTS, RELEASE, SOON, Scene, balancer, is};

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

/// Creates Services with addresses of the chart's: one that asks for any, and one by value.
fn apply_balanced(kubectl: &Kubectl) {
    for service in [balancer("any", None, 8443), balancer("by-value", Some("192.0.2.9"), 8443)] {
        kubectl.apply(&service.to_string()).unwrap();
    }
}

/// Replaces what the controller may list of the Gateway API.
fn readable(kubectl: &Kubectl, resources: &[&str]) {
    let role = kubectl.get(&["clusterrole", "vestibule-controller"]).unwrap();
    let reads = |rule: &Value| {
        rule["verbs"] == json!(["list", "watch"]) && rule["apiGroups"] == json!(["gateway.networking.k8s.io"])
    };
    let place = role["rules"].as_array().unwrap().iter().position(reads).unwrap();
    let path = format!("/rules/{place}/resources");
    let patch = json!([{"op": "replace", "path": path, "value": resources}]).to_string();
    kubectl.run(&["patch", "clusterrole", "vestibule-controller", "--type=json", "-p", &patch]).unwrap();
}

/// Waits until an origin has what it asks for.
fn wait_for_claim(kubectl: &Kubectl, origin: &str) -> Value {
    kubectl.wait_for(origin, &["claims"], SOON, |claims| versions(claims, origin).len() == 1).unwrap()
}

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
    readable(kubectl, &kinds);
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
    readable(kubectl, &kinds);
    wait("the Claim to go", &|claims| versions(claims, "port").is_empty());
    scene.wait("counted again", ["gateway", "ports"], |gateway| !counted(gateway));
}

/// Only `Programmed` needs the agents' Leases.
#[test]
fn leases_that_may_not_be_listed_hold_back_no_claim_and_leave_conditions_alone() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SERVICE).unwrap();
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    let programmed = |gateway: &Value| is(gateway, "Programmed", "True", "Programmed");
    let first = scene.controller("a");
    scene.wait("programmed", ["gateway", "gw"], programmed);
    first.end();

    let role = kubectl.get(&["-n", RELEASE, "role", "vestibule-controller"]).unwrap();
    let lists = |rule: &Value| rule["resources"] == json!(["leases"]) && rule["verbs"][1] == "list";
    let at = role["rules"].as_array().unwrap().iter().position(lists).unwrap();
    let path = format!("/rules/{at}/verbs");
    let patch = json!([{"op": "replace", "path": path, "value": ["create"]}]).to_string();
    kubectl
        .run(&["-n", RELEASE, "patch", "role", "vestibule-controller", "--type=json", "-p", &patch])
        .unwrap();
    let controller = scene.controller("b");
    kubectl.apply(LATE).unwrap();
    apply_balanced(kubectl);
    for origin in ["late", "any"] {
        wait_for_claim(kubectl, origin);
    }
    let gateway = kubectl.get(&["-n", "tenant", "gateway", "gw"]).unwrap();
    assert!(programmed(&gateway), "{gateway:#}");
    let ready = controller.ask("/readyz").unwrap();
    assert!(ready.starts_with("HTTP/1.0 200") && ready.contains("stale: leases: 403"), "{ready}");
}

/// Without it, each node makes cookies that no other accepts, and the Gateways look well.
#[test]
fn a_secret_of_keys_that_may_not_be_written_is_stale_and_holds_back_nothing() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SERVICE).unwrap();
    let grants = |verbs: Value| {
        let role = kubectl.get(&["-n", RELEASE, "role", "vestibule-controller"]).unwrap();
        let named = |rule: &Value| rule["resourceNames"] == json!(["vestibule-keys"]);
        let at = role["rules"].as_array().unwrap().iter().position(named).unwrap();
        let patch =
            json!([{"op": "replace", "path": format!("/rules/{at}/verbs"), "value": verbs}]).to_string();
        kubectl
            .run(&["-n", RELEASE, "patch", "role", "vestibule-controller", "--type=json", "-p", &patch])
            .unwrap();
    };
    grants(json!(["update"]));
    let controller = scene.controller("a");
    wait_for_claim(kubectl, "port");
    let is_stale = |ready: &str| ready.contains("stale: keys: ") && ready.contains("403");
    let ready = controller.wait_for_answer("/readyz", is_stale);
    assert!(ready.starts_with("HTTP/1.0 200"), "{ready}");
    let metrics = controller.ask("/metrics").unwrap();
    assert!(metrics.contains("vestibule_config_stale{source=\"keys\"} 1"), "{metrics}");
    grants(json!(["get", "update"]));
    controller.wait_for_answer("/readyz", |ready| !ready.contains("stale: keys"));
    kubectl.get(&["-n", RELEASE, "secret", "vestibule-keys"]).unwrap();
}

/// Its own kind is optional, and most tenants need no pool of it.
#[test]
fn pools_that_may_not_be_listed_hold_back_only_addresses_that_may_be_of_them() {
    let Some(folder) = corpus::folder() else {
        return eprintln!(
            "SKIPPED: no definitions of MetalLB; set VESTIBULE_FIXTURES to the folder that holds crds/"
        );
    };
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SERVICE).unwrap();
    let controller = scene.controller("a");
    let has_address = |gateway: &Value| gateway["status"]["addresses"][0]["value"].is_string();
    let gateway = scene.wait("an address", ["gateway", "gw"], has_address);
    let before = gateway["status"]["addresses"].clone();
    let definition = folder.join("crds/metallb/metallb.io_ipaddresspools.yaml");
    define_pools(kubectl, &fs::read_to_string(definition).unwrap());
    // The chart would grant the right to list them.
    scene.configure(READS);
    controller.wait_for_answer("/readyz", |ready| ready.contains("stale: ipaddresspools: 403"));
    kubectl.apply(LATE).unwrap();
    apply_balanced(kubectl);
    for origin in ["late", "by-value"] {
        wait_for_claim(kubectl, origin);
    }
    let claims = kubectl.get(&["claims"]).unwrap();
    assert_eq!(versions(&claims, "any"), [""; 0], "it may be one of a pool");
    let gateway = kubectl.get(&["-n", "tenant", "gateway", "gw"]).unwrap();
    assert_eq!(gateway["status"]["addresses"], before);
}

#[test]
fn gateways_that_may_not_be_listed_stop_no_service_and_lose_nothing() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(SERVICE).unwrap();
    kubectl.apply(LATE).unwrap();
    apply_balanced(kubectl);
    let finalizers = |class: &Value| class["metadata"]["finalizers"].as_array().map_or(0, Vec::len);
    let first = scene.controller("a");
    for origin in ["gw", "late", "any", "by-value"] {
        wait_for_claim(kubectl, origin);
    }
    kubectl
        .wait_for("the finalizer", &["gatewayclass", "vestibule"], SOON, |class| finalizers(class) == 1)
        .unwrap();
    let claims = kubectl.get(&["claims"]).unwrap();
    let before = ["gw", "late", "any"].map(|origin| versions(&claims, origin));
    first.end();

    readable(kubectl, &["gatewayclasses", "listenersets", "tlsroutes", "tcproutes", "referencegrants"]);
    let _controller = scene.controller("b");
    // What a Service gives up, it has no more.
    kubectl.run(&["-n", "tenant", "delete", "service", "by-value"]).unwrap();
    let gone = |claims: &Value| versions(claims, "by-value").is_empty();
    let claims = kubectl.wait_for("the Claim to go", &["claims"], SOON, gone).unwrap();
    assert_eq!(["gw", "late", "any"].map(|origin| versions(&claims, origin)), before);
    let class = kubectl.get(&["gatewayclass", "vestibule"]).unwrap();
    assert_eq!(finalizers(&class), 1, "Gateways use it, as far as anybody knows");
}

/// The chart's file says that Ingresses are served, and a release before it gave no right to read them.
#[test]
fn ingresses_that_may_not_be_listed_hold_back_no_route() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    let listener = json!({"name": "https", "addresses": ["192.0.2.9"], "port": 443, "protocol": "TLS"});
    let config = json!({"addresses": {"ranges": ["192.0.2.0/28"]}, "listeners": [listener],
        "ingress": {"listeners": ["https"]}});
    scene.configure(&config.to_string());
    for object in [OBJECTS, SERVICE, LATE] {
        kubectl.apply(object).unwrap();
    }
    let controller = scene.controller("a");
    let granted = |claims: &Value| ["port", "late"].iter().all(|origin| versions(claims, origin).len() == 1);
    kubectl.wait_for("the routes' Claims", &["claims"], SOON, granted).unwrap();
    // Written last: all Claims are there, and agents take them.
    kubectl.wait_for("the mark", &["claim", "0-settled"], SOON, |_| true).unwrap();
    let accepted = |gateway: &Value| is(gateway, "Accepted", "True", "Accepted");
    scene.wait("accepted", ["gateway", "gw"], accepted);
    let ready = controller.ask("/readyz").unwrap();
    assert!(ready.starts_with("HTTP/1.0 200") && ready.contains("stale: ingresses: 403"), "{ready}");
}
