use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tests::clients::ask;
use tests::server::{Server, Speech};
use tests::skip_without_root;
use tests::tls::{self, Authority};

use crate::agent::scene::{Agent, CONFIG, NODE, RELEASE, SOON, Scene, slice, until};
use crate::held::Held;

/// The definition of Claims, as the API server has it.
const DEFINITION: &str = "claims.vestibule.dev";

/// Returns what an agent's `/readyz` objects to.
fn lack(agent: &Agent) -> String {
    agent.probe("--readyz").1
}

/// Whether the API server has every Claim that is settled.
fn is_settled(scene: &Scene) -> bool {
    scene.kubectl().get(&["claim", "0-settled"]).is_ok()
}

#[test]
fn an_agent_before_its_controller_waits_and_one_without_it_goes_on() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    let agent = scene.agent("first");
    until("it says what it waits for", &[&agent], || lack(&agent).contains("there is no Claim 0-settled"));
    assert_eq!(scene.backends(), [""; 0]);
    let controller = scene.controller("leader", &[]);
    until("the route is in the maps", &[&agent], || scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]);
    until("it is ready", &[&agent], || agent.is_ready());

    // Endpoints are followed without a controller. New routes wait for it, and changed ones.
    controller.end();
    scene.tenant("b", "10.99.1.2");
    scene.kubectl().apply(&slice("a", "10.99.1.3").to_string()).unwrap();
    until("the other endpoint", &[&agent], || scene.backends() == ["tlsroute/tenant/a 10.99.1.3:6443"]);
    let _next = scene.controller("next", &[]);
    until("the new route", &[&agent], || scene.backends().len() == 2);
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}

/// As a controller of a later release may write it. The version that the node reports passes the Claim's nevertheless.
#[test]
fn a_node_does_not_hold_a_claim_with_a_policy_that_it_does_not_know() {
    is_not_held(&json!({"policy": {"limits": {"flows": 7}}}), "spec.policy.limits");
}

/// A Claim of route `b` to three addresses, of which two are probed.
fn to_addresses() -> Value {
    let probe = json!({"kind": "TLS", "intervalMs": 200, "timeoutMs": 200, "failures": 2, "successes": 2});
    let backend = |address: &str, weight: u32, probe: Option<&Value>| {
        let address = json!({"address": address, "port": 7443, "probe": probe});
        json!({"weight": weight, "address": address})
    };
    let backends = [
        backend("10.99.1.4", 3, Some(&probe)),
        backend("10.99.1.5", 1, Some(&probe)),
        backend("2001:db8::4", 1, None),
    ];
    let grant = |names: Option<&str>| json!({"address": "192.0.2.5", "port": 443, "names": names, "since": "2026-11-29T00:00:00Z"});
    let origin = json!({"kind": "TLSRoute", "namespace": "tenant", "name": "b", "uid": "u", "part": "0"});
    let spec = json!({"origin": origin, "tenant": "tenant", "protocol": "TLS", "port": 443, "route": "tlsroute/tenant/b",
        "probeServerName": "b.example.com", "backends": backends, "granted": 2, "refused": 0,
        "grants": [grant(None), grant(Some("b.example.com"))]});
    json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "Claim", "metadata": {"name": "b"}, "spec": spec})
}

/// As the controller's account may write it, though nothing that it settles leads to addresses yet.
#[test]
fn a_claim_to_addresses_is_served_by_weight_and_family_and_its_backends_are_probed() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    scene
        .namespace
        .ip("addr add fd98::1/64 dev uplink nodad\nroute add 2001:db8::/64 via fd98::2 dev uplink\n")
        .unwrap();
    let controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    until("the route is in the maps", &[&agent], || scene.backends().len() == 1);
    // It would delete what nobody asks for.
    controller.end();
    let authority = Authority::new("b").unwrap();
    let config = authority.server_config(&authority.server(&["b.example.com"]).unwrap()).unwrap();
    let serve = |at: &str| {
        let speech = Speech::Tls(Arc::clone(&config));
        Server::start(&scene.outside, at.parse().unwrap(), at, speech).unwrap()
    };
    let (_first, second) = (serve("10.99.1.4:7443"), serve("10.99.1.5:7443"));
    let account = format!("--as=system:serviceaccount:{RELEASE}:vestibule-controller");
    scene.kubectl().feed(&["create", &account, "-f", "-"], &to_addresses().to_string()).unwrap();

    // Each with its weight and flags.
    let shown = || -> Vec<String> {
        let backends = scene.read("backends").unwrap_or_default();
        let of_it = backends.iter().filter(|backend| backend["route"] == "tlsroute/tenant/b");
        let mut all: Vec<String> = of_it
            .map(|one| format!("{} {} {}", one["address"].as_str().unwrap(), one["weight"], one["flags"]))
            .collect();
        all.sort();
        all
    };
    let expect = |what: &str, first: &str, second: &str| {
        let expected = [first, second, "[2001:db8::4]:7443 1 []"].map(str::to_owned);
        until(what, &[&agent], || shown() == expected);
    };
    expect("all are in the maps", "10.99.1.4:7443 3 []", "10.99.1.5:7443 1 []");
    let client = authority.client_config(None).unwrap();
    let answer = || {
        let connect = || tls::connect("192.0.2.5:443".parse().unwrap(), Arc::clone(&client), "b.example.com");
        scene.outside.run(connect).and_then(ask).unwrap()
    };
    let answers: Vec<String> = (0..40).map(|_| answer()).collect();
    let of = |at: &str| answers.iter().filter(|said| said.starts_with(at)).count();
    let (most, least) = (of("10.99.1.4:7443"), of("10.99.1.5:7443"));
    assert!(most + least == 40 && most > least && least > 0, "three of four, and one: {most}, {least}");
    drop(second);
    // Of one alone, the share is 1.
    expect("one fails its probe", "10.99.1.4:7443 1 []", r#"10.99.1.5:7443 0 ["failing"]"#);
    assert!(answer().starts_with("10.99.1.4:7443"));
    let _second = serve("10.99.1.5:7443");
    expect("it is back", "10.99.1.4:7443 3 []", "10.99.1.5:7443 1 []");
    // The node holds it as it was written.
    let state = scene.kubectl().get(&["nodestate", NODE]).unwrap();
    assert!(state["spec"].get("problems").is_none(), "{state:#}");

    // The controller deletes what nobody asks for.
    let _next = scene.controller("next", &[]);
    until("it is not served any more", &[&agent], || {
        scene.backends() == ["tlsroute/tenant/a 10.99.1.1:6443"]
    });
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}

/// Puts this into the spec of a Claim that is served: it is no longer, the node names this field, and the controller puts it back.
fn is_not_held(other: &Value, field: &str) {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    scene.tenant("a", "10.99.1.1");
    scene.tenant("b", "10.99.1.2");
    let controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    until("the routes are in the maps", &[&agent], || scene.backends().len() == 2);
    until("it is ready", &[&agent], || agent.is_ready());
    controller.end();
    let claims = scene.kubectl().get(&["claims"]).unwrap();
    let is_of_a = |claim: &&Value| {
        let origin = &claim["spec"]["origin"];
        (&origin["kind"], &origin["name"]) == (&json!("TLSRoute"), &json!("a"))
    };
    let name = claims["items"].as_array().unwrap().iter().find(is_of_a).unwrap()["metadata"]["name"].clone();
    let patch = json!({"spec": other}).to_string();
    scene.kubectl().run(&["patch", "claim", name.as_str().unwrap(), "--type=merge", "-p", &patch]).unwrap();
    let unheld = |state: &Value| {
        let problems = state["spec"]["problems"].as_array();
        let problem = problems.filter(|problems| problems.len() == 1).map(|problems| &problems[0]);
        problem.is_some_and(|problem| {
            (&problem["object"], &problem["missing"]) == (&json!("TLSRoute/tenant/a"), &json!(true))
                && problem["field"].as_str().unwrap().ends_with(field)
        })
    };
    scene.kubectl().wait_for("the exception", &["nodestate", NODE], SOON, unheld).unwrap();
    assert_eq!(scene.backends(), ["tlsroute/tenant/b 10.99.1.2:6443"], "no connection is admitted to it");

    // The controller of this release puts it back.
    let _next = scene.controller("next", &[]);
    let is_well = |state: &Value| state["spec"].get("problems").is_none();
    scene.kubectl().wait_for("the end of it", &["nodestate", NODE], SOON, is_well).unwrap();
    until("it is served again", &[&agent], || scene.backends().len() == 2);
}

/// Who deletes all Claims, or their definition, takes no tenant out of service: what was known is served until the controller
/// has written all of them again.
#[test]
fn claims_and_their_definition_are_deleted_while_tenants_are_served() {
    skip_without_root!();
    let scene = Scene::bare(CONFIG, &[]);
    for (name, backend) in [("a", "10.99.1.1"), ("b", "10.99.1.2"), ("c", "10.99.1.3")] {
        scene.tenant(name, backend);
    }
    let _controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    until("the routes are in the maps", &[&agent], || scene.backends().len() == 3);
    until("it is ready", &[&agent], || agent.is_ready());
    let authority = Authority::new("a").unwrap();
    let config = authority.server_config(&authority.server(&["a.example.com"]).unwrap()).unwrap();
    let backend: SocketAddr = "10.99.1.1:6443".parse().unwrap();
    let _server = Server::start(&scene.outside, backend, "one", Speech::Tls(config)).unwrap();
    let (client, vip) = (authority.client_config(None).unwrap(), "192.0.2.5:443".parse().unwrap());
    let connect = || scene.outside.run(|| tls::connect(vip, Arc::clone(&client), "a.example.com"));
    until("the tenant is served", &[&agent], || connect().is_ok());
    let mut held = Held::new(connect().unwrap());
    let served = AtomicU32::new(0);
    let definition: Value = scene.kubectl().get(&["crd", DEFINITION]).unwrap();
    let (ends, least) = (AtomicBool::new(false), std::sync::Mutex::new(3));
    std::thread::scope(|threads| {
        // Watches the maps all the time.
        threads.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let now = scene.backends().iter().filter(|one| !one.contains("/d ")).count();
                let mut least = least.lock().unwrap();
                *least = now.min(*least);
                drop(least);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        // Clients come all the time.
        let clients = threads.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                let said = connect().and_then(ask);
                assert!(said.as_ref().is_ok_and(|said| said == "one -"), "a client was not served: {said:?}");
                served.fetch_add(1, Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            scene.kubectl().run(&["delete", "claims", "--all"]).unwrap();
            until("they are written again", &[&agent], || is_settled(&scene));
            until("it is ready again", &[&agent], || agent.is_ready());
            held.holds();

            scene.kubectl().run(&["delete", "crd", DEFINITION]).unwrap();
            until("the agent says so", &[&agent], || lack(&agent).contains("stale: claims"));
            // Nothing is served that nobody settled.
            scene.tenant("d", "10.99.1.4");
            std::thread::sleep(Duration::from_secs(2));
            assert_eq!(scene.backends().len(), 3);
            held.holds();
            let before = served.load(Ordering::Relaxed);
            until("clients go on to come", &[&agent], || served.load(Ordering::Relaxed) > before + 10);
            let spec = json!({"apiVersion": definition["apiVersion"], "kind": definition["kind"],
                "metadata": {"name": DEFINITION}, "spec": definition["spec"]});
            scene.kubectl().apply(&spec.to_string()).unwrap();
            until("what is new is served too", &[&agent], || scene.backends().len() == 4);
            until("it is ready at last", &[&agent], || agent.is_ready());
        }));
        ends.store(true, Ordering::Relaxed);
        clients.join().unwrap();
        done.unwrap();
    });
    held.holds();
    assert_eq!(*least.lock().unwrap(), 3, "a tenant was out of service for a moment");
}
