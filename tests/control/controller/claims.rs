use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::scene::{Agent, OBJECTS, RELEASE, SOON, Scene, is};
use crate::chart::rendered::template;

/// A route of the Gateway's namespace, and one of another namespace for the same name, which comes later.
const ROUTES: &str = "
apiVersion: v1
kind: Service
metadata: {name: api, namespace: tenant}
spec: {ports: [{name: https, port: 443}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: first, namespace: tenant}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example, '*.b.example']
  rules: [{backendRefs: [{name: api, port: 443}, {name: gone, port: 443, weight: 3}]}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: TLSRoute
metadata: {name: second, namespace: tenant}
spec:
  parentRefs: [{name: gw}]
  hostnames: [a.example]
  rules: [{backendRefs: [{name: api, port: 443}]}]
";

/// Returns the Claims, by the name of their origin.
fn of<'a>(claims: &'a Value, origin: &str) -> Vec<&'a Value> {
    let items = claims["items"].as_array().map_or(&[][..], Vec::as_slice);
    items.iter().filter(|claim| claim["spec"]["origin"]["name"] == origin).collect()
}

fn wait(scene: &Scene, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    scene.kubectl().wait_for(what, &["claims"], SOON, wanted).unwrap()
}

/// Returns what was granted: names on an address and port.
fn granted(claim: &Value) -> Vec<String> {
    let grants = claim["spec"]["grants"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |grant: &Value| {
        let (address, names) =
            (grant["address"].as_str().unwrap(), grant["names"].as_str().unwrap_or("binding"));
        assert!(grant["since"].as_str().is_some_and(|since| since.ends_with('Z')), "{grant}");
        format!("{names} {address}:{}", grant["port"])
    };
    grants.iter().map(text).collect()
}

fn versions(claims: &Value) -> Vec<(String, String)> {
    let items = claims["items"].as_array().map_or(&[][..], Vec::as_slice);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    items
        .iter()
        .map(|one| (text(&one["metadata"]["name"]), text(&one["metadata"]["resourceVersion"])))
        .collect()
}

#[test]
fn what_is_asked_and_granted_stands_in_claims_and_what_others_write_is_undone() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(ROUTES).unwrap();
    let controller = scene.controller("a");
    let claims = wait(&scene, "three claims with the address", |claims| {
        ["gw", "first", "second"].iter().all(|origin| of(claims, origin).len() == 1)
            && !granted(of(claims, "first")[0]).is_empty()
            // What is lost is written after what is granted.
            && !of(claims, "second")[0]["spec"]["refusals"].is_null()
    });
    let (gateway, first, second) = (of(&claims, "gw")[0], of(&claims, "first")[0], of(&claims, "second")[0]);
    assert_eq!(granted(gateway), ["binding 192.0.2.1:443"]);
    assert_eq!(granted(first), ["*.b.example 192.0.2.1:443", "a.example 192.0.2.1:443"]);
    assert_eq!(first["spec"]["origin"]["kind"], "TLSRoute");
    assert_eq!(first["spec"]["origin"]["part"], "0/Gateway/tenant/gw/tls");
    assert_eq!(first["spec"]["tenant"], "tenant");
    assert_eq!(
        (&first["spec"]["address"], &gateway["spec"]["address"]),
        (&json!({"gateway": "tenant/gw"}), &json!({}))
    );
    assert_eq!(first["spec"]["matches"], json!(["a.example", "*.b.example"]));
    let service = json!({"namespace": "tenant", "name": "api", "portName": "https"});
    assert_eq!(first["spec"]["backends"], json!([{"weight": 1, "service": service}, {"weight": 3}]));
    assert_eq!(granted(second), [""; 0]);
    let lost = json!({"address": "192.0.2.1", "port": 443, "names": "a.example", "reason": "Lost",
                      "owner": "TLSRoute tenant/first"});
    assert_eq!(second["spec"]["refusals"], json!([lost]));
    let shown = kubectl.run(&["get", "claims"]).unwrap();
    assert!(
        shown.lines().next().is_some_and(|line| line.contains("ORIGIN") && line.contains("GRANTED")),
        "{shown}"
    );
    let shown = kubectl.run(&["get", "claims", "-o", "wide"]).unwrap();
    let row = |origin: &str| shown.lines().find(|line| line.contains(origin)).unwrap();
    let headings = ["ADDRESS", "NAMES", "REASON"];
    assert!(headings.iter().all(|heading| row("ORIGIN").contains(heading)), "{shown}");
    assert!(row(" first ").contains(r#"192.0.2.1   ["a.example","*.b.example"]"#), "{shown}");
    assert!(row(" second ").contains(r#"["a.example"]"#) && row(" second ").contains("Lost"), "{shown}");

    // Nobody can be kept from it where the admission policy is absent.
    let name = first["metadata"]["name"].as_str().unwrap().to_owned();
    let stolen = json!({"spec": {"tenant": "thief", "grants": [], "granted": 0}}).to_string();
    kubectl.run(&["patch", "claim", &name, "--type=merge", "-p", &stolen]).unwrap();
    let other = second["metadata"]["name"].as_str().unwrap();
    kubectl.run(&["delete", "claim", other]).unwrap();
    let claims = wait(&scene, "both put back", |claims| {
        let (first, second) = (of(claims, "first"), of(claims, "second"));
        first.len() == 1
            && first[0]["spec"]["tenant"] == "tenant"
            && granted(first[0]).len() == 2
            && second.len() == 1
    });

    for (name, what) in [(&*name, "changed"), (other, "deleted")] {
        let selector = format!("--field-selector=involvedObject.name={name}");
        let says = |events: &Value| {
            let notes = events["items"].as_array().unwrap();
            notes.iter().any(|one| one["message"].to_string().contains(what) && one["reason"] == "PutBack")
        };
        kubectl.wait_for("the Event", &["events", "-n", "default", &selector], SOON, says).unwrap();
    }

    // Another controller finds nothing to write.
    controller.end();
    let before = versions(&claims);
    let _next = scene.controller("b");
    kubectl.run(&["-n", "tenant", "delete", "tlsroute", "first"]).unwrap();
    let claims = wait(&scene, "the name to pass on", |claims| {
        of(claims, "first").is_empty()
            && of(claims, "second").first().is_some_and(|one| granted(one).len() == 1)
    });
    let same = versions(&claims).iter().filter(|one| before.contains(one)).count();
    assert_eq!(same, 2, "the Gateway's, and the mark: {before:?} {claims:#}");
    assert_eq!(scene.refusals(), [""; 0]);
}

/// The administrator, who may do everything else, is refused, and nothing that the controller does is.
#[test]
fn nobody_but_the_controller_writes_claims_where_the_policy_is_there() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(ROUTES).unwrap();
    kubectl.apply(&template(&["--show-only=templates/claimwriter.yaml"]).unwrap()).unwrap();
    let origin = json!({"kind": "TLSRoute", "namespace": "tenant", "name": "x", "uid": "u", "part": "0"});
    let spec = json!({"origin": origin, "tenant": "thief", "protocol": "TLS", "port": 443, "granted": 0, "refused": 0});
    let own = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "Claim", "metadata": {"name": "own"}, "spec": spec});
    let create = || kubectl.feed(&["create", "--dry-run=server", "-f", "-"], &own.to_string());
    // A policy is in force a moment after it was created.
    let begun = Instant::now();
    while create().is_ok() {
        assert!(begun.elapsed() < SOON, "an administrator may create a Claim");
        std::thread::sleep(Duration::from_millis(100));
    }
    let is_refusal = |result: anyhow::Result<String>| {
        let refusal = result.unwrap_err().to_string();
        let parts = ["vestibule-claims-by-controller-only", "written by vestibule-controller alone"];
        assert!(parts.iter().all(|part| refusal.contains(part)), "{refusal}");
    };
    is_refusal(create());

    let _controller = scene.controller("a");
    let claims = wait(&scene, "the controller's claims", |claims| {
        ["gw", "first", "second"].iter().all(|origin| of(claims, origin).len() == 1)
            && !of(claims, "second")[0]["spec"]["refusals"].is_null()
    });
    let name = of(&claims, "first")[0]["metadata"]["name"].as_str().unwrap();
    let stolen = json!({"spec": {"tenant": "thief"}}).to_string();
    is_refusal(kubectl.run(&["patch", "claim", name, "--type=merge", "-p", &stolen]));
    is_refusal(kubectl.run(&["delete", "claim", name]));
    is_refusal(kubectl.run(&["delete", "claims", "--all"]));
    kubectl.wait_for("what is announced", &["announcement", "vestibule"], SOON, |_| true).unwrap();
    let stolen = json!({"spec": {"members": ["thief"]}}).to_string();
    is_refusal(kubectl.run(&["patch", "announcement", "vestibule", "--type=merge", "-p", &stolen]));
    is_refusal(kubectl.run(&["delete", "announcement", "vestibule"]));
    // The controller puts back what the policy lets pass.
    let mut object = kubectl.get(&["announcement", "vestibule"]).unwrap();
    object["spec"]["members"] = json!(["thief"]);
    let account = format!("--as=system:serviceaccount:{RELEASE}:vestibule-controller");
    kubectl.feed(&["replace", &account, "-f", "-"], &object.to_string()).unwrap();
    let is_back = |object: &Value| object["spec"]["members"] == json!([]);
    kubectl.wait_for("it is put back", &["announcement", "vestibule"], SOON, is_back).unwrap();
    // The controller deletes one, and changes one.
    kubectl.run(&["-n", "tenant", "delete", "tlsroute", "first"]).unwrap();
    wait(&scene, "the name to pass on", |claims| {
        of(claims, "first").is_empty()
            && of(claims, "second").first().is_some_and(|one| granted(one).len() == 1)
    });
    assert_eq!(scene.refusals(), [""; 0]);
}

#[test]
fn without_the_definition_of_claims_everything_else_is_done() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    kubectl.run(&["delete", "crd", "claims.vestibule.dev"]).unwrap();
    kubectl.apply(OBJECTS).unwrap();
    let _controller = scene.controller("a");
    scene.wait("its address", ["gateway", "gw"], |gateway| !gateway["status"]["addresses"].is_null());
}

/// Where the chart does not bring its definitions, they may be older than the controller.
#[test]
fn a_definition_of_another_release_is_reported_and_causes_no_stream_of_writes() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    let mut definition = kubectl.get(&["crd", "claims.vestibule.dev"]).unwrap();
    let schema = &mut definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
    let properties = schema["properties"]["spec"]["properties"].as_object_mut().unwrap();
    assert!(properties.remove("address").is_some());
    let metadata = &definition["metadata"];
    let metadata = json!({"name": metadata["name"], "resourceVersion": metadata["resourceVersion"]});
    definition["metadata"] = metadata;
    kubectl.feed(&["replace", "-f", "-"], &definition.to_string()).unwrap();
    kubectl.apply(OBJECTS).unwrap();
    kubectl.apply(ROUTES).unwrap();
    let controller = scene.controller("a");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    scene.wait("it is programmed", ["gateway", "gw"], |gateway| {
        is(gateway, "Programmed", "True", "Programmed")
    });
    let is_stale = || {
        let text = controller.ask("/metrics").unwrap();
        text.lines().any(|line| line == "vestibule_config_stale{source=\"claims\"} 1")
    };
    assert!(is_stale(), "{}", controller.log());
    let ready = controller.ask("/readyz").unwrap();
    assert!(ready.contains("`vestibule crds`"), "{ready}");
    let writes = || {
        let log = std::fs::read_to_string(scene.server.audit_log()).unwrap();
        let is_write =
            |line: &&str| line.contains("\"resource\":\"claims\"") && line.contains("\"verb\":\"update\"");
        log.lines().filter(is_write).count()
    };
    let before = writes();
    std::thread::sleep(Duration::from_secs(12));
    assert!(writes() <= before + 1, "{} writes of Claims in 12 s", writes() - before);

    scene.server.define().unwrap();
    let claims = wait(&scene, "claims that say what they ask for", |claims| {
        ["first", "second"]
            .iter()
            .all(|origin| of(claims, origin)[0]["spec"]["address"] == json!({"gateway": "tenant/gw"}))
    });
    assert_eq!(granted(of(&claims, "gw")[0]), ["binding 192.0.2.1:443"]);
    let begun = Instant::now();
    while is_stale() {
        assert!(begun.elapsed() < SOON, "{}", controller.log());
        std::thread::sleep(Duration::from_millis(200));
    }
}
