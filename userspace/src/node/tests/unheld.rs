use std::time::{Duration, Instant};

use serde_json::{Value, json};
use tokio::time::timeout;

use super::scene::{Folder, routes};
use crate::config::ChartFile;
use crate::controller::keys::KEYS;
use crate::model::{Facts, Settings};
use crate::node::Identity;
use crate::node::facts::{ProbeNews, Sources};
use crate::node::orders::{Cause, Orders, Wanted};
use crate::node::state::State;
use crate::node::telemetry::{Known, counts, report};
use crate::outputs::memory::Memory;
use crate::outputs::{Pins, Writer};
use crate::sources::kubernetes::Stale;
use crate::sources::kubernetes::api::lease_report::LeaseReport;
use crate::sources::kubernetes::api::node_state::{NodeProblem, NodeStateSpec};
use crate::sources::kubernetes::script::Script;

const A: (&str, [u8; 4]) = ("a", [192, 0, 2, 1]);
const B: (&str, [u8; 4]) = ("b", [192, 0, 2, 2]);

/// An agent without its loop: each step is taken by the test.
struct Agent {
    sources: Sources,
    state: Option<State>,
    orders: Orders,
    output: Memory,
    right: Writer,
    folder: Folder,
}

impl Agent {
    /// With a cluster of these Services, the static file in the folder, and room for this many names.
    fn new(services: &[(&str, [u8; 4])], folder: Folder, max_names: u32) -> (Self, Script) {
        let (script, store) = Script::begin();
        let settings = Settings { max_names, ..Settings::default() };
        let chart = ChartFile { facts: Facts { settings, ..Facts::default() }, ..ChartFile::default() };
        let mut sources = Sources::of_cluster(store, chart, Some(folder.file()), "node");
        sources.read_file().unwrap();
        let right = Pins::new(&folder.0).lock().unwrap();
        let output = Memory::default();
        let orders = Orders::new(vec![Box::new(output.clone())]);
        script.list_slices();
        script.list_services(services);
        (Self { sources, state: None, orders, output, right, folder }, script)
    }

    /// Takes what was written.
    async fn take(&mut self) {
        let changed = timeout(Duration::from_secs(20), self.sources.changed()).await;
        assert!(changed.is_ok(), "nothing changed");
        self.sources.compile(&mut self.state);
    }

    /// Takes what was written, and has the output hold it.
    async fn turn(&mut self) {
        self.take().await;
        self.order();
        self.answer().await;
    }

    fn order(&mut self) {
        let State { desired, claims_version, left_out, .. } = self.state.clone().unwrap();
        let node = self.sources.node().clone();
        let wanted = Wanted { desired, claims_version, left_out, node, keys: None, is_withdrawn: false };
        self.orders.apply(&self.right, wanted, Cause::default(), Instant::now());
    }

    async fn answer(&mut self) {
        let (at, word) = self.orders.word().await;
        self.orders.hear(at, word).unwrap();
    }

    /// What it reports: the version in its Lease, and the problems in its NodeState.
    fn said(&self) -> (u64, Vec<NodeProblem>) {
        let (report, said) = self.report();
        (report.claims_version, said.problems)
    }

    fn report(&self) -> (LeaseReport, NodeStateSpec) {
        let identity = Identity { node: "n".into(), pod: "p".into(), namespace: "s".into() };
        let known =
            Known { sources: &self.sources, state: self.state.as_ref(), orders: &self.orders, kept: None };
        report(known, &identity).unwrap()
    }

    /// What it reports: the version in its Lease, and the objects that it does not hold.
    fn unheld(&self) -> (u64, Vec<String>) {
        let (version, problems) = self.said();
        let object = |problem: NodeProblem| problem.object.unwrap_or_else(|| "the node".to_owned());
        (version, problems.into_iter().filter(|problem| problem.missing).map(object).collect())
    }
}

fn a_policy(object: &mut Value) {
    object["spec"]["policy"] = json!({"limits": {"flows": 7}});
}

fn same(_: &mut Value) {}

/// The controller writes an Event of what a NodeState says is stale. What is compiled does not depend on the keys.
#[tokio::test]
async fn keys_that_cannot_be_followed_are_published_and_age_no_saved_state() {
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A], folder, 1_000);
    agent.turn().await;
    agent.sources.note_keys(Some(Stale {
        source: KEYS,
        since: Instant::now(),
        why: "403 Forbidden".to_owned(),
    }));
    assert_eq!(agent.report().1.stale, ["keys: 403 Forbidden"]);
    assert!(agent.sources.is_confirmed());
    // Nor what is announced, whose definition may be missing.
    cluster.refuse_announcement();
    agent.sources.changed().await;
    assert_eq!(agent.sources.stale().len(), 2);
    assert!(agent.sources.is_confirmed());
    cluster.cut_off("connection refused");
    let changed = timeout(Duration::from_secs(20), agent.sources.changed()).await;
    assert!(changed.is_ok() && !agent.sources.is_confirmed());
}

/// As when the controller writes what only people read: all Claims were compiled for it.
#[tokio::test]
async fn a_claim_that_says_the_same_in_another_version_is_held_and_compiles_nothing() {
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A, B], folder, 1_000);
    agent.turn().await;
    cluster.put_service(B, 8, same);
    let changed = timeout(Duration::from_secs(20), agent.sources.changed()).await;
    assert!(changed.is_ok(), "it is not reported");
    let probes = agent.sources.compile(&mut agent.state);
    assert!(matches!(probes, ProbeNews::Some(changes) if changes.is_empty()));
    agent.order();
    agent.answer().await;
    assert_eq!(agent.said(), (8, vec![]));
    cluster.mark(9, false);
    agent.turn().await;
    assert_eq!(agent.said(), (9, vec![]));
}

/// The next Claim's version would say that the node holds it.
#[tokio::test]
async fn what_cannot_be_read_of_a_claim_is_not_held_until_it_can() {
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A, B], folder, 1_000);
    agent.turn().await;
    assert_eq!(agent.unheld(), (1, vec![]));
    cluster.put_service(A, 7, a_policy);
    cluster.put_service(B, 8, same);
    agent.turn().await;
    assert_eq!(agent.unheld(), (8, vec!["Service/ns/a".to_owned()]));
    let (_, problems) = agent.said();
    assert_eq!(problems.len(), 1, "it is said once: {problems:?}");
    assert!(problems[0].message.contains("is not enforced by this release"), "{problems:?}");
    assert!(problems[0].field.ends_with("spec.policy.limits"), "{problems:?}");
    cluster.put_service(A, 9, same);
    agent.turn().await;
    assert_eq!(agent.said(), (9, vec![]));
    // A later release brings the kind and the protocol, and nothing of it is served.
    let later = |object: &mut Value| {
        object["spec"]["origin"]["kind"] = json!("Later");
        object["spec"]["protocol"] = json!("QUIC");
    };
    cluster.put_service(B, 11, later);
    cluster.put_service(A, 12, same);
    agent.turn().await;
    assert_eq!(agent.unheld(), (12, vec!["Later/ns/b".to_owned()]));
    // What does not even have a shape is that of which the Claim was before.
    cluster.put_service(A, 13, |object| object["spec"] = json!("x"));
    agent.turn().await;
    assert_eq!(agent.unheld().1, ["Later/ns/b", "Service/ns/a"]);
    for (name, _) in [A, B] {
        cluster.drop_service(name);
    }
    agent.turn().await;
    assert_eq!(agent.said().1, []);
}

/// An agent may be of an older release than the controller. It dropped such a Claim, and with it the connections of a known route whose origin
/// was of another kind from then on.
#[tokio::test]
async fn a_claim_of_a_kind_that_only_a_later_release_knows_is_served() {
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A], folder, 1_000);
    cluster.put_endpoints("b", &[1]);
    cluster.put_service(B, 7, |object| object["spec"]["origin"]["kind"] = json!("Tomorrow"));
    agent.turn().await;
    assert_eq!(agent.said(), (7, vec![]));
    assert_eq!(routes(&agent.output), ["service/ns/a:443: ", "service/ns/b:443: 10.0.0.1"]);
    // What it does not hold of it bears the name that was written.
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A], folder, 1);
    cluster.put_service(B, 7, |object| object["spec"]["origin"]["kind"] = json!("Tomorrow"));
    agent.turn().await;
    assert_eq!(agent.unheld(), (7, vec!["Tomorrow/ns/b".to_owned()]));
}

/// It counted as held by a node that had never read it. Of an origin that is not known the Claim is named itself, not that the node holds nothing.
#[tokio::test]
async fn a_claim_that_was_never_read_is_an_exception_whose_ever_it_is() {
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A], folder, 1_000);
    cluster.put_service(B, 7, |object| object["spec"]["port"] = json!("x"));
    agent.turn().await;
    assert_eq!(agent.unheld(), (7, vec!["Service/ns/b".to_owned()]));
    cluster.drop_service(B.0);
    cluster.put_service(B, 8, |object| object["spec"] = json!("x"));
    agent.turn().await;
    let (version, unheld) = agent.unheld();
    assert!(version == 8 && unheld.len() == 1 && unheld[0].starts_with("Claim/service-ns-b"), "{unheld:?}");
    let (_, problems) = agent.said();
    assert_eq!(problems.len(), 1, "it is said once: {problems:?}");
    assert!(problems[0].message.contains("does not have the shape of its kind"), "{problems:?}");
}

/// An agent keeps the sizes of its maps; the controller knows only those of the chart.
#[tokio::test]
async fn a_route_that_the_maps_have_no_room_for_is_not_held_until_they_have() {
    let folder = Folder::new();
    folder.write(&[]);
    let (mut agent, cluster) = Agent::new(&[A, B], folder, 1);
    agent.turn().await;
    assert_eq!(agent.unheld(), (1, vec!["Service/ns/b".to_owned()]));
    let (_, problems) = agent.said();
    assert!(problems[0].message.contains("the maps are full"), "{problems:?}");
    let known =
        Known { sources: &agent.sources, state: agent.state.as_ref(), orders: &agent.orders, kept: None };
    assert_eq!(counts(known), [("Service".to_owned(), 1)].into(), "it is one problem");
    // Endpoints alone change nothing of it.
    cluster.put_endpoints("a", &[1]);
    agent.turn().await;
    assert_eq!(agent.unheld(), (1, vec!["Service/ns/b".to_owned()]));
    // It is not held before the outputs say so.
    cluster.drop_service("a");
    agent.take().await;
    agent.output.image().is_slow = true;
    agent.order();
    assert_eq!(agent.unheld().1, ["Service/ns/b"]);
    agent.output.hurry();
    agent.answer().await;
    assert_eq!(agent.unheld(), (1, vec![]));
}

/// The controller does not know the static files of nodes.
#[tokio::test]
async fn a_claim_that_the_static_file_takes_from_is_not_held_until_the_file_gives_it_back() {
    let tls = |route: &str, address: &str| {
        json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "StaticConfig",
               "listeners": [{"name": "l", "addresses": [address], "port": 443, "protocol": "TLS"}],
               "routes": [{"name": route, "listeners": ["l"], "hostnames": ["x.example"],
                           "backends": [{"address": "10.1.0.1", "port": 6443}]}]})
    };
    let tcp = |address: &str| {
        json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "StaticConfig",
               "listeners": [{"name": "l", "addresses": [address], "port": 443, "protocol": "TCP", "defaultRoute": "r"}],
               "routes": [{"name": "r", "listeners": ["l"], "backends": [{"address": "10.1.0.1", "port": 6443}]}]})
    };
    for (file, said) in [
        (tls("r", "192.0.2.1"), "listener l of the static file has 192.0.2.1:443"),
        (tcp("192.0.2.1"), "route r of the static file has 192.0.2.1:443"),
        (tls("own", "192.0.2.200"), "route own of the static file has the route name own"),
    ] {
        let folder = Folder::new();
        folder.write_text(&file.to_string());
        let (mut agent, cluster) = Agent::new(&[A, B], folder, 1_000);
        if said.contains("own") {
            cluster.put_service(A, 1, |object| object["spec"]["route"] = json!("own"));
        }
        agent.turn().await;
        assert_eq!(agent.unheld(), (1, vec!["Service/ns/a".to_owned()]), "{said}");
        let (_, problems) = agent.said();
        assert!(problems[0].message.contains(said), "{said}: {problems:?}");
        let known =
            Known { sources: &agent.sources, state: agent.state.as_ref(), orders: &agent.orders, kept: None };
        assert_eq!(counts(known).get("Service"), Some(&1), "{said}");
        agent.folder.write(&[]);
        agent.sources.read_file().unwrap();
        agent.sources.compile(&mut agent.state);
        agent.order();
        agent.answer().await;
        assert_eq!(agent.unheld(), (1, vec![]), "{said}");
    }
}
