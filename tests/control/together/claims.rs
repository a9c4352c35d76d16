use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use tests::clients::ask;
use tests::server::{Server, Speech};
use tests::skip_without_root;
use tests::tls::{self, Authority};

use crate::agent::scene::{Agent, CONFIG, NODE, SOON, Scene, slice, until};
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

/// The definition of Claims has the field, or the API server would drop it, and agents would never see it.
#[test]
fn a_node_does_not_hold_a_claim_to_addresses() {
    let backend = json!({"weight": 1, "address": {"address": "10.99.1.1", "port": 6443}});
    is_not_held(&json!({"backends": [backend]}), "spec.backends.address");
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
