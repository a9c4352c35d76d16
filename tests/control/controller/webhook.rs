use std::collections::BTreeMap;
use std::net::TcpListener;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tests::cluster::{Verdict, Webhook};

use super::scene::{Agent, OBJECTS, SOON, Scene, balancer, balancer_of, condition};

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
    let held =
        (0..HELD).map(|number| balancer_of("held", &format!("lb{number}"), Some("vestibule.dev/lb"), 443));
    let mut items =
        vec![json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "held"}}), webhook];
    items.extend(held);
    scene.kubectl().apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    // A webhook is in force a moment after it was written.
    std::thread::sleep(Duration::from_secs(2));
    let controller = scene.controller("a");
    scene.kubectl().apply(OBJECTS).unwrap();
    scene.kubectl().apply(&balancer("lb", None, 443).to_string()).unwrap();
    scene.wait("the Gateway's status", ["gateway", "gw"], |gateway| {
        !condition(&gateway["status"]["conditions"], "Programmed").is_null()
    });
    scene.wait("the other Service's status", ["service", "lb"], |service| {
        !condition(&service["status"]["conditions"], "vestibule.dev/Programmed").is_null()
    });
    // It asks for no address, as those of the other namespace do.
    let events = ["-n", "tenant", "events.events.k8s.io"];
    let is_told = |events: &Value| {
        events["items"].as_array().unwrap().iter().any(|event| event["regarding"]["name"] == "lb")
    };
    scene.kubectl().wait_for("the other Service's Event", &events, SOON, is_told).unwrap();
    let services = scene.kubectl().get(&["-n", "held", "services"]).unwrap();
    let conditions =
        services["items"].as_array().unwrap().iter().map(|service| &service["status"]["conditions"]);
    assert_eq!(conditions.filter(|conditions| !conditions.is_null()).count(), 0, "the webhook holds them");
    controller.end();
}

/// Routes whose Claims the webhook holds, refuses, and admits: more of the first two than there are lanes.
const OF_EACH: usize = 40;

/// Returns a route of the tenant that asks for a name of its own.
fn route(name: &str) -> Value {
    json!({
        "apiVersion": "gateway.networking.k8s.io/v1", "kind": "TLSRoute",
        "metadata": {"name": name, "namespace": "tenant"},
        "spec": {"parentRefs": [{"name": "gw"}], "hostnames": [format!("{name}.example")],
                 "rules": [{"backendRefs": [{"name": "api", "port": 443}]}]},
    })
}

/// Returns what its entry says of being programmed.
fn programmed(route: &Value) -> (&str, &str) {
    let found = condition(&route["status"]["parents"][0]["conditions"], "vestibule.dev/Programmed");
    let text = |field: &str| found[field].as_str().unwrap_or_default();
    (text("status"), text("message"))
}

/// Whether its entry names its Claim, and says why the webhook refuses it.
fn says_why(route: &Value) -> bool {
    let name = route["metadata"]["name"].as_str().unwrap();
    let (status, message) = programmed(route);
    let parts = [
        format!("its Claim tlsroute-tenant-{name}-"),
        r#": 403: admission webhook "claims.example.com" denied the request: "#.to_owned(),
        format!("{name}-"),
        " is not paid for; see which webhook".to_owned(),
    ];
    status == "False" && parts.iter().all(|part| message.contains(part))
}

/// Returns whether there is a Claim of an object whose name begins so.
fn has(scene: &Scene, prefix: &str) -> bool {
    let claims = scene.kubectl().get(&["claims"]).unwrap();
    let origins = claims["items"].as_array().unwrap().iter().map(|claim| &claim["spec"]["origin"]["name"]);
    origins.into_iter().any(|name| name.as_str().unwrap().starts_with(prefix))
}

/// Waits until the Claim of what is gone is, while all the time another grant hangs for the first time.
fn goes_while_others_hang(scene: &Scene) {
    let begun = Instant::now();
    for number in OF_EACH.. {
        if !has(scene, "gone") {
            return;
        }
        assert!(begun.elapsed() < SOON, "the Claim of what is gone waits for grants that hang");
        scene.kubectl().apply(&route(&format!("a{number}")).to_string()).unwrap();
    }
}

/// It holds the Claims of some tenants and refuses those of others: who comes later is served, who goes is gone, and those whose Claims
/// are refused read why.
#[test]
fn a_webhook_that_holds_some_claims_and_refuses_others_delays_no_other_claim() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    let tries: Arc<Mutex<BTreeMap<String, usize>>> = Arc::default();
    let asked = Arc::clone(&tries);
    let webhook = Webhook::start(move |review| {
        *asked.lock().unwrap().entry(review.name.clone()).or_default() += 1;
        let route = review.name.strip_prefix("tlsroute-tenant-").unwrap_or_default();
        match route.as_bytes().first() {
            Some(b'a') => Verdict::Hang,
            Some(b'b') => Verdict::Refuse(format!("{route} is not paid for")),
            _ => Verdict::Admit,
        }
    })
    .unwrap();
    kubectl.apply(OBJECTS).unwrap();
    let api = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "tenant"},
                     "spec": {"ports": [{"port": 443}]}});
    kubectl.apply(&api.to_string()).unwrap();
    kubectl.apply(&route("gone").to_string()).unwrap();
    let controller = scene.controller("a");
    let _agent = Agent::start(&scene, "n1");
    scene.report("n1", u64::MAX);
    let is_programmed = |route: &Value| programmed(route).0 == "True";
    scene.wait("what was there before", ["tlsroute", "gone"], is_programmed);
    let rules = json!([{"apiGroups": ["vestibule.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["claims"]}]);
    kubectl.apply(&webhook.configuration("claims", &rules).to_string()).unwrap();
    // A webhook is in force a moment after it was written.
    std::thread::sleep(Duration::from_secs(2));

    // Those that hang come first, in the order of names too.
    let of = |first: &str| (0..OF_EACH).map(|number| route(&format!("{first}{number}"))).collect::<Vec<_>>();
    let items = [of("a"), of("b"), of("c")].concat();
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    let routes = ["-n", "tenant", "tlsroutes"];
    let are = |routes: &Value, first: &str, wanted: &dyn Fn(&Value) -> bool| {
        let routes = routes["items"].as_array().unwrap().iter();
        let mut of_it = routes.filter(|route| route["metadata"]["name"].as_str().unwrap().starts_with(first));
        of_it.clone().count() >= OF_EACH && of_it.all(wanted)
    };
    kubectl.wait_for("the others", &routes, SOON, |routes| are(routes, "c", &is_programmed)).unwrap();

    // Who goes loses what nobody else asks for.
    kubectl.run(&["-n", "tenant", "delete", "tlsroute", "gone"]).unwrap();
    goes_while_others_hang(&scene);

    kubectl.wait_for("why some are refused", &routes, SOON, |routes| are(routes, "b", &says_why)).unwrap();
    let is_late = |route: &Value| programmed(route).1.contains("has not answered for");
    kubectl.wait_for("which ones hang", &routes, SOON, |routes| are(routes, "a", &is_late)).unwrap();
    assert!(!has(&scene, "a0") && !has(&scene, "b0") && has(&scene, "c0"));
    let least = |first: &str| {
        let tries = tries.lock().unwrap();
        let of_it = tries.iter().filter(|(name, _)| name.starts_with(&format!("tlsroute-tenant-{first}")));
        of_it.map(|(_, count)| *count).min()
    };
    assert!(least("b") >= Some(3), "each is tried again, by turns: {tries:?}");

    // It goes.
    kubectl.run(&["delete", "validatingwebhookconfiguration", "claims"]).unwrap();
    let are_all = |routes: &Value| ["a", "b", "c"].iter().all(|first| are(routes, first, &is_programmed));
    kubectl.wait_for("all", &routes, 2 * SOON, are_all).unwrap();
    controller.end();
}

/// It refuses a tenant's Claim from the first one on: no agent served any of the others, for the mark never came.
#[test]
fn a_claim_that_is_refused_from_the_first_one_on_keeps_no_other_from_being_served() {
    let scene = Scene::new();
    let kubectl = scene.kubectl();
    let webhook = Webhook::start(|review| match review.name.strip_prefix("tlsroute-tenant-b") {
        Some(route) => Verdict::Refuse(format!("b{route} is not paid for")),
        None => Verdict::Admit,
    })
    .unwrap();
    let rules = json!([{"apiGroups": ["vestibule.dev"], "apiVersions": ["*"], "operations": ["*"], "resources": ["claims"]}]);
    kubectl.apply(&webhook.configuration("claims", &rules).to_string()).unwrap();
    kubectl.apply(OBJECTS).unwrap();
    let api = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "api", "namespace": "tenant"},
                     "spec": {"ports": [{"port": 443}]}});
    let items = [api, route("b0"), route("c0")];
    kubectl.apply(&json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string()).unwrap();
    // A webhook is in force a moment after it was written.
    std::thread::sleep(Duration::from_secs(2));
    let _agent = Agent::start(&scene, "n1");
    // As an agent does that has never seen the mark.
    scene.report_exactly("n1", 0);
    let controller = scene.controller("a");
    let is_marked = |claims: &Value| {
        claims["items"].as_array().unwrap().iter().any(|claim| claim["metadata"]["name"] == "0-settled")
    };
    kubectl.wait_for("the mark", &["claims"], SOON, is_marked).unwrap();
    scene.report("n1", u64::MAX);
    scene.wait("the other route", ["tlsroute", "c0"], |route| programmed(route).0 == "True");
    scene.wait("why it is refused", ["tlsroute", "b0"], says_why);
    assert!(!has(&scene, "b0"));
    kubectl.run(&["delete", "validatingwebhookconfiguration", "claims"]).unwrap();
    scene.wait("the refused one", ["tlsroute", "b0"], |route| programmed(route).0 == "True");
    controller.end();
}
