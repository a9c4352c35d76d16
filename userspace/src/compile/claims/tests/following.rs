//! Any sequence of changes, of file, cluster and node together, results in the same as compiling everything.

use super::*;
use crate::compile::{Compiler, Step};
use crate::sources::kubernetes::script::stored;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::SocketAddr;

const SERVICES: [&str; 3] = ["a/s", "a/t", "a/lb"];
const HOSTS: [&str; 5] =
    ["one.example.com", "file.example.com", "*.example.com", "late.example.com", "x.example.com"];
/// The third is also an endpoint of a Service; the fourth is a binding of the cluster, the fifth a binding of
/// the file.
const BACKENDS: [&str; 5] =
    ["10.9.9.1:6443", "10.9.9.2:6443", "10.0.0.1:6443", "192.0.2.9:443", "192.0.2.50:443"];

/// A route of the file: the index of its listener, its patterns, and its backends.
type Route = (usize, Vec<&'static str>, Vec<&'static str>);

#[derive(Clone, Debug)]
enum Edit {
    Put(u8, Route),
    Backends(prop::sample::Index, Vec<&'static str>),
    Remove(prop::sample::Index),
    /// Moves the first route to the end.
    Turn,
    Room(u32),
    Endpoints(usize, Vec<u8>),
    Failing(BTreeSet<u8>),
    Zone(bool),
    /// Whether a route's backends see their clients.
    Traffic(prop::sample::Index, TrafficPolicy),
    Ports(bool),
    /// Adds or removes a TLSRoute.
    Object(bool),
}

fn edit() -> impl Strategy<Value = Edit> {
    let backends = || prop::sample::subsequence(BACKENDS.to_vec(), 0..=2);
    let own = (0..2usize, prop::sample::subsequence(HOSTS.to_vec(), 0..=2), backends());
    let hosts = prop::collection::btree_set(1..5u8, 0..4);
    prop_oneof![
        4 => (0..4u8, own).prop_map(|(name, own)| Edit::Put(name, own)),
        4 => (any::<prop::sample::Index>(), backends()).prop_map(|(at, all)| Edit::Backends(at, all)),
        2 => any::<prop::sample::Index>().prop_map(Edit::Remove),
        1 => Just(Edit::Turn),
        1 => (3..9u32).prop_map(Edit::Room),
        4 => (0..SERVICES.len(), hosts.clone())
            .prop_map(|(at, hosts)| Edit::Endpoints(at, hosts.into_iter().collect())),
        2 => hosts.prop_map(Edit::Failing),
        1 => any::<bool>().prop_map(Edit::Zone),
        2 => (any::<prop::sample::Index>(), prop::sample::select(&[TrafficPolicy::Cluster, TrafficPolicy::Local][..]))
            .prop_map(|(at, traffic)| Edit::Traffic(at, traffic)),
        1 => any::<bool>().prop_map(Edit::Ports),
        2 => any::<bool>().prop_map(Edit::Object),
    ]
}

fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.facts.settings.max_names = 40;
    scene.cluster().policy.probe = Some(ProbeSpec::default());
    scene.gateway("a/gw", 1, "192.0.2.1", &["tls TLS:443", "tcp TCP:9000"]);
    for service in SERVICES {
        scene.service(service, &["10.0.0.1"]);
    }
    let balancer = LoadBalancerSpec {
        addresses: vec![ip("192.0.2.9")],
        traffic: TrafficPolicy::Local,
        ..LoadBalancerSpec::default()
    };
    scene.facts.node.name = Some("n1".into());
    scene.service("a/lb", &["10.0.0.3"]).load_balancer = Some(Arc::new(balancer));
    scene.tls("a/one", 1, &["gw#tls"], &["one.example.com"], &["s:443*3", "t:443"]);
    scene.tcp("a/tcp", 1, &["gw#tcp"], &["t:443"]);
    scene.file_listener("own", Protocol::Tls, &["192.0.2.50"], 443, None);
    scene.file_listener("shared", Protocol::Tls, &["192.0.2.1"], 443, None);
    scene.file_route("r0", "own", &["file.example.com"], "10.9.9.9");
    scene
}

fn backends(all: &[&str]) -> Vec<BackendSpec> {
    let one = |text: &&str| {
        let at: SocketAddr = text.parse().unwrap();
        BackendSpec { address: at.ip(), port: at.port(), weight: 1, failing: false }
    };
    all.iter().map(one).collect()
}

/// Returns what a source reports when routes change from `before` to `now`.
fn difference(before: &[RouteSpec], now: &[RouteSpec]) -> Delta {
    let at = |place: usize, route: &RouteSpec| RouteSpec { place, ..route.clone() };
    let mut same = HashMap::new();
    for (old, route) in before.iter().enumerate() {
        let place = now.iter().position(|other| at(0, other) == at(0, route));
        same.extend(place.map(|place| (old, place)));
    }
    let gone = before.iter().enumerate().filter(|(old, _)| !same.contains_key(old));
    let gone = gone.map(|(_, route)| Change::Route(Arc::clone(&route.name), None));
    let is_new = |place: &usize| !same.values().any(|other| other == place);
    let new = now.iter().filter(|route| is_new(&route.place));
    let new = new.map(|route| Change::Route(Arc::clone(&route.name), Some(route.clone())));
    let changes = gone.chain(new).collect();
    Delta { changes, places: Places { before: before.len(), now: now.len(), first: 0, last: 0, same } }
}

/// A scene and a compiler that get the same changes.
struct Followed {
    scene: Scene,
    compiler: Compiler,
    /// What the controller has written.
    claims: BTreeMap<Arc<str>, StoredClaim>,
}

impl Followed {
    fn new() -> Self {
        let (scene, mut compiler) = (scene(), Compiler::beside_cluster().on("n1".into()));
        compiler.whole(&scene.facts).unwrap();
        Self { scene, compiler, claims: BTreeMap::new() }
    }

    /// Compiles after the controller has written what it settles, and the node has read it.
    fn compile(&mut self) -> Step {
        let claims = stored(&self.scene.compiled().claims, 1);
        if self.claims != claims {
            self.claims = claims;
            self.one(Change::Objects);
        }
        self.compile_read()
    }

    /// Compiles what the node has read.
    fn compile_read(&mut self) -> Step {
        let Cluster { endpoints, policy, .. } = self.scene.facts.cluster.as_ref().unwrap();
        let (claims, panic_percent) = (&self.claims, policy.panic_percent);
        self.compiler.compile(Some(ClaimSet { claims, endpoints, panic_percent, problems: &[] }))
    }

    fn check(&self) {
        let all = self.scene.compiled();
        assert_eq!(**self.compiler.desired(), all.desired);
        assert_eq!(*self.compiler.probes(), all.probes);
        // What is wrong with objects is the controller's to report; the rest is the node's too.
        for problem in self.compiler.problems() {
            assert!(all.problems.contains(problem), "{problem}");
        }
        for problem in all.problems.iter().filter(|problem| problem.object.is_none()) {
            assert!(self.compiler.problems().contains(problem), "{problem}");
        }
    }

    fn one(&mut self, change: Change) {
        assert!(self.compiler.take(Delta::of(change)), "only routes are ever not taken");
    }

    /// Changes routes of the file. Returns whether the compiler took the change.
    fn routes(&mut self, edit: impl FnOnce(&mut Vec<RouteSpec>)) -> bool {
        let before = self.scene.facts.routes.clone();
        edit(&mut self.scene.facts.routes);
        for (place, route) in self.scene.facts.routes.iter_mut().enumerate() {
            route.place = place;
        }
        let is_taken = self.compiler.take(difference(&before, &self.scene.facts.routes));
        if !is_taken {
            self.compiler.whole(&self.scene.facts).unwrap();
        }
        is_taken
    }

    fn put(&mut self, name: u8, (listener, hosts, all): Route) -> bool {
        let name: Arc<str> = format!("r{name}").into();
        let spec = RouteSpec {
            place: 0,
            name: Arc::clone(&name),
            listeners: vec![["own", "shared"][listener].into()],
            patterns: hosts.into_iter().map(pattern).collect(),
            backends: backends(&all),
            source_ranges: None,
            affinity: Affinity::None,
            traffic: Default::default(),
        };
        self.routes(|routes| match routes.iter_mut().find(|route| route.name == name) {
            Some(route) => *route = spec,
            None => routes.push(spec),
        })
    }

    fn backends(&mut self, at: usize, all: &[&str]) -> bool {
        self.routes(|routes| routes[at].backends = backends(all))
    }

    fn endpoints(&mut self, service: &str, hosts: &[u8]) {
        let zone = |host: &u8| if host.is_multiple_of(2) { " @here on-n1" } else { " @there on-n2" };
        let texts = hosts.iter().map(|host| format!("10.0.0.{host}{}", zone(host)));
        let all: Vec<Endpoint> = texts.map(|text| endpoint(&text)).collect();
        self.scene.cluster().endpoints.insert(name(service), all.into());
        self.one(Change::Endpoints(name(service)));
    }

    fn edit(&mut self, edit: Edit) {
        let count = self.scene.facts.routes.len();
        match edit {
            Edit::Put(name, route) => drop(self.put(name, route)),
            Edit::Backends(..) | Edit::Remove(_) | Edit::Traffic(..) | Edit::Turn if count == 0 => {}
            Edit::Backends(at, all) => drop(self.backends(at.index(count), &all)),
            Edit::Remove(at) => drop(self.routes(|routes| drop(routes.remove(at.index(count))))),
            Edit::Turn => drop(self.routes(|routes| routes.rotate_left(1))),
            Edit::Room(room) => {
                self.scene.facts.settings.max_names = room;
                self.compiler.whole(&self.scene.facts).unwrap();
            }
            Edit::Endpoints(at, hosts) => self.endpoints(SERVICES[at], &hosts),
            Edit::Failing(hosts) => {
                let at = |host: &u8| SocketAddr::new([10, 0, 0, *host].into(), 6443);
                let failing: BTreeSet<SocketAddr> = hosts.iter().map(at).collect();
                self.scene.facts.node.failing.clone_from(&failing);
                self.one(Change::Failing(failing));
            }
            Edit::Traffic(at, traffic) => {
                self.routes(|routes| routes[at.index(count)].traffic = traffic);
            }
            Edit::Zone(is_here) => {
                let zone = is_here.then(|| Arc::from("here"));
                self.scene.facts.node.zone.clone_from(&zone);
                self.one(Change::Zone(zone));
            }
            Edit::Ports(are_known) => {
                let ports = are_known.then_some((1000, 60_999));
                self.scene.facts.node.local_ports = ports;
                self.one(Change::LocalPorts(ports));
            }
            Edit::Object(is_there) => {
                if is_there {
                    self.scene.tls("a/late", 9, &["gw#tls"], &["late.example.com"], &["t:443"]);
                } else {
                    self.scene.cluster().tls_routes.remove(&name("a/late"));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changes_come_to_what_everything_comes_to(
        steps in prop::collection::vec(prop::collection::vec(edit(), 1..4), 1..12),
    ) {
        let mut followed = Followed::new();
        for edits in steps {
            edits.into_iter().for_each(|edit| followed.edit(edit));
            followed.compile();
            followed.check();
        }
    }
}

#[test]
fn what_did_not_change_is_not_compiled_again() {
    let mut followed = Followed::new();
    assert_eq!(followed.compile(), Step::Whole);
    let is_some = |followed: &mut Followed| {
        let before = Arc::clone(followed.compiler.desired());
        let step = followed.compile();
        followed.check();
        let shared = before.routes.iter().filter(|old| {
            followed.compiler.desired().routes.find(&old.name).is_some_and(|new| Arc::ptr_eq(old, new))
        });
        (matches!(step, Step::Some(_)), before.routes.len() - shared.count())
    };
    assert!(followed.backends(0, &["10.9.9.1:6443"]));
    assert_eq!(is_some(&mut followed), (true, 1), "other backends of a route of the file");
    followed.endpoints("a/lb", &[4]);
    assert_eq!(is_some(&mut followed), (true, 1), "other endpoints");
    followed.edit(Edit::Failing([4].into()));
    assert_eq!(is_some(&mut followed), (true, 1), "a backend that fails");
    assert_eq!(is_some(&mut followed), (true, 0), "nothing");
    followed.one(Change::Devices(vec!["eth0".into()]));
    followed.one(Change::Zone(None));
    assert_eq!(is_some(&mut followed), (true, 0), "devices, and the zone there was");
    assert!(followed.put(0, (0, vec!["x.example.com"], vec!["10.9.9.1:6443"])));
    assert_eq!(is_some(&mut followed), (false, 1), "whose a name is, is for all objects to say");
    followed.one(Change::Objects);
    assert_eq!(is_some(&mut followed), (false, 0), "objects of which nothing is served");
    assert!(!followed.backends(0, &["192.0.2.50:443"]), "a contradiction concerns the whole file");
    assert!(!is_some(&mut followed).0);
}

#[test]
fn versions_alone_compile_nothing_unless_they_decide() {
    let mut followed = Followed::new();
    followed.compile();
    let leads = |claim: &Claim| claim.origin.object().is_some_and(|object| object.name == name("a/one"));
    let (one, read) = followed.claims.iter().find(|(_, stored)| leads(&stored.claim)).unwrap();
    let (one, read) = (Arc::clone(one), Arc::clone(&read.claim));
    let renumber = |followed: &mut Followed, version| {
        followed.claims.get_mut(&one).unwrap().version = version;
        followed.one(Change::Versions);
        followed.compile_read()
    };
    let before = Arc::clone(followed.compiler.desired());
    assert_eq!(renumber(&mut followed, 2), Step::Some(Vec::new()));
    assert_eq!(*followed.compiler.desired(), before);
    let route = read.route.clone().unwrap();
    let others = [
        // Of the same route, while of its Claims not all are written.
        Claim { affinity: Affinity::ClientIp, ..(*read).clone() },
        // Of another one, to which its names move.
        Claim { route: Some("other".into()), ..(*read).clone() },
    ];
    for (at, other) in others.into_iter().enumerate() {
        let version = 10 * (at as u64 + 1);
        followed.claims.insert("other".into(), StoredClaim { version, claim: Arc::new(other) });
        followed.one(Change::Objects);
        assert_eq!(followed.compile_read(), Step::Whole);
        let of_other = Arc::clone(followed.compiler.desired());
        assert_ne!(of_other.routes.find(&route), before.routes.find(&route));
        assert_eq!(renumber(&mut followed, version - 1), Step::Whole, "one that may decide");
        assert_eq!(*followed.compiler.desired(), of_other);
        assert_eq!(renumber(&mut followed, version + 1), Step::Whole);
        assert_eq!(*followed.compiler.desired(), before);
    }
}
