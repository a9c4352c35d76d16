use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tests::clients::ask;
use tests::server::{Server, Speech};
use tests::skip_without_root;
use tests::tls::{self, Authority};

use crate::agent::scene::{Agent, NODE, Scene, slice, until};

const NAME: &str = "a.example.com";

/// Every backend is probed often. If more than half of them fail, the results are ignored.
pub(super) const CONFIG: &str = r#"{"addresses": {"ranges": ["192.0.2.0/28"]},
    "settings": {"maxFlows": 10000, "maxNames": 1000, "maxHellos": 1024},
    "probe": {"enabled": true, "type": "tls", "interval": "200ms", "timeout": "200ms",
              "failureThreshold": 2, "successThreshold": 2, "panicShare": 50}}"#;

const BACKENDS: [&str; 3] = ["10.99.1.1", "10.99.1.2", "10.99.1.3"];

/// Returns the route's backends that receive new connections, and those that fail their probe, as read from
/// the maps.
fn picked(scene: &Scene) -> [Vec<String>; 2] {
    let backends = scene.read("backends").unwrap_or_default();
    let address = |backend: &Value| backend["address"].as_str().unwrap().trim_end_matches(":6443").to_owned();
    let of = |wanted: &dyn Fn(&Value) -> bool| {
        let mut those: Vec<String> = backends.iter().filter(|one| wanted(one)).map(address).collect();
        those.sort();
        those
    };
    [of(&|one| one["weight"] != 0), of(&|one| one["flags"] == json!(["failing"]))]
}

struct Story {
    scene: Scene,
    authority: Authority,
}

impl Story {
    fn serve(&self, address: &str) -> Server {
        let config = self.authority.server_config(&self.authority.server(&[NAME]).unwrap()).unwrap();
        let at: SocketAddr = format!("{address}:6443").parse().unwrap();
        Server::start(&self.scene.outside, at, address, Speech::Tls(config)).unwrap()
    }

    /// Makes this many connections and returns the servers that answered.
    fn answers(&self, count: usize) -> Vec<String> {
        let config = self.authority.client_config(None).unwrap();
        let one = || ask(tls::connect("192.0.2.5:443".parse().unwrap(), Arc::clone(&config), NAME)?);
        let name = |answer: String| answer.split(' ').next().unwrap().to_owned();
        self.scene.outside.run(|| (0..count).map(|_| name(one().unwrap())).collect())
    }

    /// Returns the controller's Events about failing backends: their notes, and how often each was written.
    fn told(&self) -> Vec<(String, u64)> {
        let events = self.scene.kubectl().get(&["-n", "tenant", "events.events.k8s.io"]).unwrap();
        let events = events["items"].as_array().unwrap().iter();
        let of = events.filter(|event| event["reason"] == "BackendFailing");
        of.map(|event| {
            assert_eq!(
                (&event["regarding"]["kind"], &event["regarding"]["name"]),
                (&json!("Service"), &json!("a"))
            );
            (event["note"].as_str().unwrap().to_owned(), event["series"]["count"].as_u64().unwrap_or(1))
        })
        .collect()
    }

    /// Returns the condition on the route's entry.
    fn condition(&self) -> Option<(String, String)> {
        let route = self.scene.kubectl().get(&["-n", "tenant", "tlsroute", "a"]).ok()?;
        let conditions = route["status"]["parents"][0]["conditions"].as_array()?;
        let resolved = |one: &Value| one["type"] != "ResolvedRefs" || one["status"] == "True";
        assert!(conditions.iter().all(resolved), "{route:#}");
        let ours = conditions.iter().find(|one| one["type"] == "vestibule.dev/BackendsHealthy")?;
        Some((ours["status"].as_str()?.to_owned(), ours["message"].as_str()?.to_owned()))
    }
}

#[test]
fn a_backend_that_fails_its_probe_leaves_and_comes_back() {
    skip_without_root!();
    let story = Story { scene: Scene::bare(CONFIG, &[]), authority: Authority::new("a").unwrap() };
    let scene = &story.scene;
    scene.tenant("a", BACKENDS[0]);
    let mut object = slice("a", BACKENDS[0]);
    let each = BACKENDS.map(|address| json!({"addresses": [address], "conditions": {"ready": true}}));
    object["endpoints"] = json!(each);
    scene.kubectl().apply(&object.to_string()).unwrap();
    let mut servers: Vec<Option<Server>> =
        BACKENDS.iter().map(|address| Some(story.serve(address))).collect();
    let _controller = scene.controller("leader", &[]);
    let agent = scene.agent("first");
    let until = |what: &str, wanted: &dyn Fn() -> bool| until(what, &[&agent], wanted);
    until("all are picked", &|| picked(scene) == [BACKENDS.map(str::to_owned).to_vec(), vec![]]);
    let all = story.answers(40);
    assert!(BACKENDS.iter().all(|backend| all.iter().any(|who| who == backend)), "{all:?}");

    // One backend stops: no connection is sent to it, and the controller names it and the node that sees it down.
    servers[2] = None;
    let down = || {
        picked(scene)
            == [BACKENDS[..2].iter().map(|a| (*a).to_owned()).collect(), vec![BACKENDS[2].to_owned()]]
    };
    until("the one is not picked", &down);
    assert!(story.answers(40).iter().all(|who| who != BACKENDS[2]));
    let metric = || agent.metric("vestibule_backend_failing{route=\"tlsroute/tenant/a\"}");
    until("it is counted", &|| metric() == Some(1.0));
    let named = |text: &str| text.contains("10.99.1.3:6443") && text.contains(NODE);
    until("it is reported", &|| story.told().iter().any(|(note, count)| named(note) && *count == 1));
    until("its route says so", &|| {
        story.condition().is_some_and(|(status, text)| status == "False" && named(&text))
    });

    // The backend returns.
    servers[2] = Some(story.serve(BACKENDS[2]));
    until("all are picked again", &|| picked(scene) == [BACKENDS.map(str::to_owned).to_vec(), vec![]]);
    until("it is not counted any more", &|| metric().unwrap_or(0.0) == 0.0);
    until("its route says so", &|| story.condition().is_none_or(|(status, _)| status == "True"));

    // The same again: the same Event is counted a second time.
    servers[2] = None;
    until("the one is not picked again", &down);
    until("it is reported again", &|| story.told().iter().any(|(note, count)| named(note) && *count == 2));

    // Two of three fail: the results of the probe are ignored.
    servers[1] = None;
    panic_share(&story, &agent);
    assert!(scene.refusals().is_empty(), "{:?}", scene.refusals());
}

/// Two of three are down: all are picked, and connections that reach a dead one go to another.
fn panic_share(story: &Story, agent: &Agent) {
    until("all are picked although two fail", &[agent], || {
        let [picked, failing] = picked(&story.scene);
        picked.len() == 3 && failing.len() == 2
    });
    assert!(story.answers(10).iter().all(|who| who == BACKENDS[0]));
}
