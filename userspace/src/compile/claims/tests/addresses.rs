//! Claims whose backends are addresses: nothing that is settled asks for them yet, so they are read from objects.

use super::*;
use crate::compile::{Compiler, Step};
use crate::model::claim::{AddressRef, ClaimBackend, ClaimBackends, ClaimTarget, ServicePortRef};
use crate::model::{Change, Delta, Probe, ServerName};
use crate::sources::kubernetes::script::stored;
use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// An address with its share, probed every second.
fn probed(text: &str, weight: u32) -> ClaimBackend {
    let probe = Some(ProbeSpec { kind: ProbeKind::Tls, interval_ms: 1000, ..ProbeSpec::default() });
    ClaimBackend { weight, to: Some(ClaimTarget::Address(Box::new(AddressRef::new(at(text), probe)))) }
}

/// Service `a/s`, which is not probed, with a share.
fn service(weight: u32) -> ClaimBackend {
    let service = ServicePortRef { name: name("a/s"), port: "p443".into(), probe: None };
    ClaimBackend::of_service(weight, Some(service))
}

/// What a node makes of a Gateway whose only route leads to these, as it reads it from the object.
struct Node {
    scene: Scene,
    compiler: Compiler,
    claims: BTreeMap<Arc<str>, StoredClaim>,
}

impl Node {
    fn new(backends: ClaimBackends) -> Self {
        let mut scene = Scene::new();
        scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443"]);
        scene.service("a/s", &["10.0.0.1", "10.0.0.2"]);
        scene.tls("a/r", 2, &["g"], &["x.example.com"], &["s:443"]);
        let mut claims = scene.compiled().claims;
        let of_route =
            claims.iter_mut().find(|claim| matches!(claim.backends, ClaimBackends::Services { .. }));
        of_route.unwrap().backends = backends;
        let mut compiler = Compiler::beside_cluster();
        compiler.whole(&scene.facts).unwrap();
        let claims = stored(&claims, 1);
        let mut this = Self { scene, compiler, claims };
        assert_eq!(this.compile(), Step::Whole);
        this
    }

    fn of(references: &[ClaimBackend]) -> Self {
        let server_name = Some(ServerName::new("x.example.com").unwrap());
        Self::new(ClaimBackends::Services { references: references.into(), server_name })
    }

    fn set(&self) -> ClaimSet<'_> {
        let Cluster { endpoints, policy, .. } = self.scene.facts.cluster.as_ref().unwrap();
        ClaimSet { claims: &self.claims, endpoints, panic_percent: policy.panic_percent, problems: &[] }
    }

    fn compile(&mut self) -> Step {
        let set = self.set();
        let (claims, endpoints, panic_percent) =
            (set.claims.clone(), set.endpoints.clone(), set.panic_percent);
        let set = ClaimSet { claims: &claims, endpoints: &endpoints, panic_percent, problems: &[] };
        self.compiler.compile(Some(set))
    }

    /// These began to fail, and no others do. Only the route is resolved again, with the same result as all.
    fn fail(&mut self, failing: &[&str]) {
        let failing: BTreeSet<SocketAddr> = failing.iter().map(|text| at(text)).collect();
        assert!(self.compiler.take(Delta::of(Change::Failing(failing.clone()))));
        assert!(matches!(self.compile(), Step::Some(_)));
        let mut all = Compiler::beside_cluster();
        all.whole(&self.scene.facts).unwrap();
        assert!(all.take(Delta::of(Change::Failing(failing))));
        all.compile(Some(self.set()));
        assert_eq!((self.compiler.desired(), self.compiler.probes()), (all.desired(), all.probes()));
    }

    fn backends(&self) -> String {
        let desired = self.compiler.desired();
        let route = desired.routes.iter().find(|route| route.name.starts_with("tlsroute/")).unwrap();
        let text = |backend: &BackendSpec| {
            let at = SocketAddr::new(backend.address, backend.port);
            let failing = if backend.failing { " failing" } else { "" };
            format!("{at} {}{failing}", backend.weight)
        };
        route.backends.iter().map(text).collect::<Vec<_>>().join(", ")
    }
}

#[test]
fn each_address_gets_its_share_of_its_family() {
    let node =
        Node::of(&[probed("10.1.0.1:7443", 3), probed("[fd00::1]:7443", 5), probed("10.1.0.2:7443", 1)]);
    assert_eq!(node.backends(), "10.1.0.1:7443 3, 10.1.0.2:7443 1, [fd00::1]:7443 1");
    // Beside a Service, whose endpoints share what it gets; and beside what leads nowhere.
    let node = Node::of(&[probed("10.1.0.1:7443", 2), service(4), ClaimBackend { weight: 1, to: None }]);
    assert_eq!(node.backends(), "0.0.0.0:0 1, 10.0.0.1:6443 2, 10.0.0.2:6443 2, 10.1.0.1:7443 2");
    // None is left, but names stay.
    let node = Node::of(&[probed("10.1.0.1:7443", 0)]);
    assert_eq!(node.backends(), "10.1.0.1:7443 0");
}

#[test]
fn addresses_are_probed_and_one_that_fails_gives_its_share_to_the_others() {
    let mut node = Node::of(&[
        probed("10.1.0.1:7443", 3),
        probed("10.1.0.2:7443", 1),
        probed("[fd00::1]:7443", 1),
        service(4),
    ]);
    let told = |node: &Node| {
        let one = |(at, (probe, name)): (&SocketAddr, &Probe)| {
            format!("{at} {:?} {}ms {}", probe.kind, probe.interval_ms, name.as_ref().unwrap())
        };
        node.compiler.probes().iter().map(one).collect::<Vec<_>>()
    };
    let expected = ["10.1.0.1:7443", "10.1.0.2:7443", "[fd00::1]:7443"];
    assert_eq!(told(&node), expected.map(|at| format!("{at} Tls 1000ms x.example.com")));
    let well = "10.0.0.1:6443 2, 10.0.0.2:6443 2, 10.1.0.1:7443 3, 10.1.0.2:7443 1, [fd00::1]:7443 1";
    assert_eq!(node.backends(), well);
    node.fail(&["10.1.0.1:7443"]);
    let less = "10.0.0.1:6443 2, 10.0.0.2:6443 2, 10.1.0.1:7443 0 failing, 10.1.0.2:7443 1, [fd00::1]:7443 1";
    assert_eq!(node.backends(), less);
    // The probes of all fail: they are wrong rather than the backends are down. The other family has none that may be left out.
    node.fail(&["10.1.0.1:7443", "10.1.0.2:7443", "[fd00::1]:7443"]);
    let all = "10.0.0.1:6443 2, 10.0.0.2:6443 2, 10.1.0.1:7443 3 failing, 10.1.0.2:7443 1 failing, [fd00::1]:7443 1 failing";
    assert_eq!(node.backends(), all);
    node.fail(&[]);
    assert_eq!(node.backends(), well);
}

/// Connections would go round.
#[test]
fn the_share_of_an_address_that_we_answer_on_is_refused_and_that_is_named() {
    let node = Node::of(&[probed("192.0.2.1:443", 1), probed("192.0.2.1:444", 3)]);
    assert_eq!(node.backends(), "0.0.0.0:0 1, 192.0.2.1:444 3");
    let problems: Vec<String> = node.compiler.problems().iter().map(ToString::to_string).collect();
    assert!(problems.iter().any(|problem| problem.contains("192.0.2.1:443 and 0 more")), "{problems:?}");
    assert!(!node.compiler.probes().contains_key(&at("192.0.2.1:443")));
}

/// As the controller writes what leads to addresses of the static file.
#[test]
fn addresses_of_the_file_come_back_with_the_same_shares() {
    let spec = |text: &str, weight| {
        let at = at(text);
        BackendSpec { address: at.ip(), port: at.port(), weight, failing: false }
    };
    let backends = [spec("10.1.0.1:7443", 6), spec("10.1.0.2:7443", 2), spec("[fd00::1]:7443", 7)];
    let node = Node::new(ClaimBackends::Addresses(backends.as_slice().into()));
    assert_eq!(node.backends(), "10.1.0.1:7443 3, 10.1.0.2:7443 1, [fd00::1]:7443 1");
    assert!(node.compiler.probes().is_empty());
}
