//! Claims that contradict each other, as while not all Claims of a change are written, or as a route of the file contradicts them: any
//! sequence of changes results in the same as compiling everything.

use super::*;
use crate::compile::{Compiler, Step};
use crate::model::claim::ClaimBackends;
use crate::sources::kubernetes::script::stored;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

const SERVICES: [&str; 3] = ["a/s", "a/t", "a/lb"];
/// The last is a route of the file.
const ROUTES: [&str; 3] = ["first", "second", "of-the-file"];
/// Names of Claims.
const NAMES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
enum Edit {
    /// A Claim is written: it has what one was granted, leads to where another leads, and to this route.
    Put {
        name: &'static str,
        grants: usize,
        backends: usize,
        route: &'static str,
        version: u64,
    },
    /// It is written again.
    Version(&'static str, u64),
    Remove(&'static str),
    Endpoints(&'static str, Vec<u8>),
    Failing(BTreeSet<u8>),
}

fn edit() -> impl Strategy<Value = Edit> {
    let name = || prop::sample::select(NAMES.to_vec());
    let route = prop::sample::select(ROUTES.to_vec());
    let hosts = || prop::collection::btree_set(1..5u8, 0..4);
    prop_oneof![
        5 => (name(), 0..4usize, 0..4usize, route, 1..9u64).prop_map(|(name, grants, backends, route, version)| {
            Edit::Put { name, grants, backends, route, version }
        }),
        2 => (name(), 1..9u64).prop_map(|(name, version)| Edit::Version(name, version)),
        1 => name().prop_map(Edit::Remove),
        6 => (prop::sample::select(SERVICES.to_vec()), hosts())
            .prop_map(|(service, hosts)| Edit::Endpoints(service, hosts.into_iter().collect())),
        2 => hosts().prop_map(Edit::Failing),
    ]
}

fn scene(is_probed: bool) -> Scene {
    let mut scene = Scene::new();
    scene.cluster().policy.probe = is_probed.then(ProbeSpec::default);
    scene.gateway("a/gw", 1, "192.0.2.1", &["tls TLS:443", "tcp TCP:9000"]);
    for service in SERVICES {
        scene.service(service, &["10.0.0.1"]);
    }
    let balancer = LoadBalancerSpec { addresses: vec![ip("192.0.2.9")], ..LoadBalancerSpec::default() };
    scene.service("a/lb", &["10.0.0.3"]).load_balancer = Some(Arc::new(balancer));
    scene.tls("a/one", 1, &["gw#tls"], &["one.example.com"], &["s:443*3", "t:443"]);
    scene.tls("a/two", 1, &["gw#tls"], &["two.example.com"], &["t:443"]);
    scene.tcp("a/tcp", 1, &["gw#tcp"], &["t:443"]);
    scene.file_listener("own", Protocol::Tls, &["192.0.2.50"], 443, None);
    scene.file_route("of-the-file", "own", &["file.example.com"], "10.9.9.9");
    scene
}

/// Problems of claims are in the order of these, which says nothing.
fn texts(problems: &[Problem]) -> Vec<String> {
    let mut texts: Vec<String> = problems.iter().map(|problem| format!("{problem:?}")).collect();
    texts.sort();
    texts
}

/// A node's compiler, and the Claims and endpoints that it has read.
struct Followed {
    scene: Scene,
    /// What the controller settles when nothing contradicts anything.
    settled: Vec<Claim>,
    compiler: Compiler,
    claims: BTreeMap<Arc<str>, StoredClaim>,
}

impl Followed {
    fn new(is_probed: bool) -> Self {
        let scene = scene(is_probed);
        // Listeners lead nowhere.
        let leads = |claim: &Claim| matches!(claim.backends, ClaimBackends::Services { .. });
        let all = stored(&scene.compiled().claims, 1);
        let settled: Vec<Claim> = all.values().map(|stored| (*stored.claim).clone()).filter(leads).collect();
        assert_eq!(settled.len(), 4, "{settled:#?}");
        let mut compiler = Compiler::beside_cluster();
        compiler.whole(&scene.facts).unwrap();
        Self { scene, settled, compiler, claims: BTreeMap::new() }
    }

    fn one(&mut self, change: Change) {
        assert!(self.compiler.take(Delta::of(change)), "only routes are ever not taken");
    }

    fn edit(&mut self, edit: Edit) {
        match edit {
            Edit::Put { name, grants, backends, route, version } => {
                let backends = self.settled[backends].backends.clone();
                let claim = Claim { backends, route: Some(route.into()), ..self.settled[grants].clone() };
                self.claims.insert(name.into(), StoredClaim { version, claim: Arc::new(claim) });
                self.one(Change::Objects);
            }
            Edit::Version(name, version) => {
                if let Some(stored) = self.claims.get_mut(name) {
                    stored.version = version;
                    self.one(Change::Versions);
                }
            }
            Edit::Remove(name) => {
                self.claims.remove(name);
                self.one(Change::Objects);
            }
            Edit::Endpoints(service, hosts) => {
                let all: Vec<Endpoint> =
                    hosts.iter().map(|host| endpoint(&format!("10.0.0.{host}"))).collect();
                self.scene.cluster().endpoints.insert(name(service), all.into());
                self.one(Change::Endpoints(name(service)));
            }
            Edit::Failing(hosts) => {
                let at = |host: &u8| SocketAddr::new([10, 0, 0, *host].into(), 6443);
                self.one(Change::Failing(hosts.iter().map(at).collect()));
            }
        }
    }

    fn compile(&mut self) -> Step {
        let Cluster { endpoints, policy, .. } = self.scene.facts.cluster.as_ref().unwrap();
        let set =
            ClaimSet { claims: &self.claims, endpoints, panic_percent: policy.panic_percent, problems: &[] };
        let step = self.compiler.compile(Some(set));
        let mut all = Compiler::beside_cluster();
        all.whole(&self.scene.facts).unwrap();
        assert!(all.take(Delta::of(Change::Failing(self.compiler.node().failing.clone()))));
        assert_eq!(all.compile(Some(set)), Step::Whole);
        assert_eq!(self.compiler.desired(), all.desired());
        assert_eq!(self.compiler.probes(), all.probes());
        assert_eq!(texts(self.compiler.problems()), texts(all.problems()));
        assert_eq!(texts(self.compiler.left_out()), texts(all.left_out()));
        step
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_of_claims_that_contradict_each_other_come_to_what_everything_comes_to(
        is_probed in any::<bool>(),
        steps in prop::collection::vec(prop::collection::vec(edit(), 1..3), 1..12),
    ) {
        let mut followed = Followed::new(is_probed);
        for edits in steps {
            edits.into_iter().for_each(|edit| followed.edit(edit));
            followed.compile();
        }
    }
}

/// The first by name had it, where the newest does when everything is compiled.
#[test]
fn of_two_claims_of_one_route_the_newest_has_it_also_when_endpoints_change() {
    let mut followed = Followed::new(false);
    let put = |name, backends, version| Edit::Put { name, grants: 0, backends, route: "first", version };
    let leads_to = |followed: &Followed, service: &str| {
        let is_of = |claim: &Claim| match &claim.backends {
            ClaimBackends::Services { references, .. } => {
                references.len() == 1
                    && references[0].service().is_some_and(|port| port.name == name(service))
            }
            _ => false,
        };
        followed.settled.iter().position(is_of).unwrap()
    };
    let (lb, t) = (leads_to(&followed, "a/lb"), leads_to(&followed, "a/t"));
    followed.edit(put("a", t, 7));
    followed.edit(put("b", lb, 8));
    assert_eq!(followed.compile(), Step::Whole);
    followed.edit(Edit::Endpoints("a/t", vec![7]));
    followed.edit(Edit::Endpoints("a/lb", vec![6]));
    followed.compile();
    let route = Arc::clone(followed.compiler.desired().routes.find("first").unwrap());
    let hosts: Vec<String> = route.backends.iter().map(|backend| backend.address.to_string()).collect();
    assert_eq!(hosts, ["10.0.0.6"]);
    // Without the contradiction, endpoints alone compile nothing.
    followed.edit(Edit::Remove("a"));
    followed.compile();
    followed.edit(Edit::Endpoints("a/lb", vec![5]));
    assert!(matches!(followed.compile(), Step::Some(_)));
}
