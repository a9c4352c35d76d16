//! The effect of changed endpoints is found without compiling everything, and the result is the same.

use super::super::{Before, Changed, Ground, Refreshed, refresh};
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU16;

const SERVICES: [&str; 4] = ["a/s", "a/t", "b/s", "a/lb"];

/// A scene with routes of both kinds, weights, references into another namespace, a reference that leads
/// nowhere, a Service of our class, and a route of the file.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.gateway("a/gw", 1, "192.0.2.1 2001:db8::1", &["tls TLS:443", "tcp TCP:9000"]);
    for service in SERVICES {
        scene.service(service, &["10.0.0.1"]);
    }
    let balancer = LoadBalancerSpec {
        addresses: vec![ip("192.0.2.9")],
        traffic: TrafficPolicy::Local,
        health_port: NonZeroU16::new(30_001),
        ..LoadBalancerSpec::default()
    };
    scene.facts.settings.serves_health_checks = true;
    scene.facts.node.name = Some("n1".into());
    scene.service("a/lb", &[]).load_balancer = Some(Arc::new(balancer));
    scene.tls("a/one", 1, &["gw#tls"], &["one.example.com"], &["s:443"]);
    scene.tls("a/two", 1, &["gw#tls"], &["two.example.com"], &["s:443*3", "t:443", "gone:443"]);
    scene.tls("a/other", 1, &["gw#tls"], &["other.example.com"], &["b/s:443"]);
    scene.tls("a/unused", 1, &["none"], &["unused.example.com"], &["s:443"]);
    scene.tcp("a/tcp", 1, &["gw#tcp"], &["t:443"]);
    scene.file_listener("static", Protocol::Tls, &["192.0.2.50"], 443, None);
    scene.file_route("of-the-file", "static", &["file.example.com"], "10.9.9.9");
    scene
}

fn change(scene: &mut Scene, service: &str, endpoints: &[String]) {
    let endpoints: Vec<Endpoint> = endpoints.iter().map(|text| endpoint(text)).collect();
    if endpoints.is_empty() {
        scene.cluster().endpoints.remove(&name(service));
    } else {
        scene.cluster().endpoints.insert(name(service), endpoints.into());
    }
}

fn endpoints() -> impl Strategy<Value = Vec<String>> {
    let state = prop::sample::select(&["", "", " draining", " notready", " departed"][..]);
    let zone = prop::sample::select(&["", " @here", " @there"][..]);
    let address = prop_oneof![
        (1..5_u8).prop_map(|host| format!("10.0.0.{host}")),
        (1..4_u8).prop_map(|host| format!("fd00::{host}")),
    ];
    let node = prop::sample::select(&["", " on-n1", " on-n1", " on-n2"][..]);
    let one = (address, state, zone, node)
        .prop_map(|(address, state, zone, node)| format!("{address}{state}{zone}{node}"));
    prop::collection::btree_set(one, 0..5).prop_map(|all| all.into_iter().collect())
}

fn again(before: &Compiled, scene: &Scene, changed: &BTreeSet<ObjectName>) -> Option<Refreshed> {
    let Compiled { desired, probes, problems, claims, .. } = before;
    let before = Before { desired, probes, problems };
    let ground = Ground::of(scene.facts.cluster.as_ref()?, &scene.facts.node);
    // No claim of a cluster leads to addresses.
    refresh(before, claims, ground, Changed { services: changed, failing: &BTreeSet::new() })
}

proptest! {
    #[test]
    fn it_comes_to_the_same(
        changes in prop::collection::vec((0..SERVICES.len(), endpoints()), 1..6),
        zone in prop::option::of(Just(Arc::<str>::from("here"))),
        probed in prop::sample::subsequence(SERVICES.to_vec(), 0..=SERVICES.len()),
        failing in prop::collection::vec(prop::sample::subsequence(vec![1_u8, 2, 3], 0..=3), 6),
    ) {
        let mut scene = scene();
        scene.facts.node.zone = zone;
        for service in probed {
            // Different probes, one of them with a server name.
            let kind = if service == "a/s" { ProbeKind::Tcp } else { ProbeKind::Tls };
            let interval_ms = 1000 + service.len() as u32;
            let spec = ProbeSpec { kind, interval_ms, ..ProbeSpec::default() };
            let service = scene.cluster().services.get_mut(&name(service)).unwrap();
            Arc::make_mut(service).probe = Some(Some(spec));
        }
        let mut before = compile(&scene.facts);
        for ((at, endpoints), failing) in changes.into_iter().zip(failing) {
            change(&mut scene, SERVICES[at], &endpoints);
            // As in the store: a Service has changed if a backend of it started or stopped failing.
            let failing = failing.iter().map(|host| SocketAddr::new([10, 0, 0, *host].into(), 6443)).collect();
            let old = std::mem::replace(&mut scene.facts.node.failing, failing);
            let other: BTreeSet<_> = old.symmetric_difference(&scene.facts.node.failing).copied().collect();
            let is_other = |one: &Endpoint| other.contains(&SocketAddr::new(one.address, one.port));
            let of_others = scene.cluster().endpoints.iter().filter(|(_, all)| all.iter().any(is_other));
            let mut changed: BTreeSet<_> = of_others.map(|(name, _)| name.clone()).collect();
            changed.insert(name(SERVICES[at]));
            let all = compile(&scene.facts);
            let some = again(&before, &scene, &changed);
            if let Some(refreshed) = some {
                prop_assert_eq!(&refreshed.desired, &all.desired);
                let mut probes = before.probes.clone();
                for (address, probe) in refreshed.probes {
                    prop_assert_ne!(before.probes.get(&address), probe.as_ref(), "reported without a change");
                    probes.remove(&address);
                    probes.extend(probe.map(|probe| (address, probe)));
                }
                prop_assert_eq!(&probes, &all.probes);
                prop_assert_eq!(&before.problems, &all.problems);
                prop_assert_eq!(&before.claims, &all.claims);
            } else {
                let is_shared = !all.probes.is_empty() || !before.probes.is_empty();
                prop_assert!(
                    is_shared || !before.problems.is_empty() || !all.problems.is_empty(),
                    "left to compile for no reason"
                );
            }
            before = all;
        }
    }
}

#[test]
fn a_service_has_a_health_check_if_nodes_answer_any_and_it_drains_with_its_pods_on_the_node() {
    let checks = |scene: &Scene| -> Vec<String> {
        let desired = compile(&scene.facts).desired;
        let text = |check: &HealthCheck| {
            let HealthCheck { port, service, route, is_draining } = check;
            format!("{port} {service} {route} {is_draining}")
        };
        desired.health_checks.iter().map(text).collect()
    };
    let mut scene = scene();
    for (endpoints, is_draining) in [
        (&["10.0.0.6 on-n1"][..], false),
        (&["10.0.0.6 draining on-n1", "10.0.0.7 on-n2"], true),
        (&["10.0.0.6 draining on-n1", "10.0.0.7 on-n1"], false),
        (&["10.0.0.6 draining on-n1", "fd00::6 on-n1"], false),
        (&["10.0.0.7 on-n2"], false),
    ] {
        change(&mut scene, "a/lb", &endpoints.iter().map(|text| text.to_string()).collect::<Vec<_>>());
        assert_eq!(checks(&scene), [format!("30001 a/lb service/a/lb:443 {is_draining}")], "{endpoints:?}");
    }
    scene.facts.settings.serves_health_checks = false;
    assert_eq!(checks(&scene), [""; 0]);
}

#[test]
fn probes_follow_endpoints_and_what_fails() {
    let mut scene = scene();
    scene.cluster().policy.probe = Some(ProbeSpec::default());
    change(&mut scene, "a/lb", &["10.0.0.6 on-n1".to_owned(), "10.0.0.8 on-n1".to_owned()]);
    let before = compile(&scene.facts);
    change(&mut scene, "a/lb", &["10.0.0.7 on-n1".to_owned(), "10.0.0.8 on-n1".to_owned()]);
    scene.facts.node.failing.insert("10.0.0.8:6443".parse().unwrap());
    let refreshed = again(&before, &scene, &BTreeSet::from([name("a/lb")])).unwrap();
    assert_eq!(refreshed.desired, compile(&scene.facts).desired);
    let mut told =
        refreshed.probes.iter().map(|(at, probe)| (at.to_string(), probe.is_some())).collect::<Vec<_>>();
    told.sort();
    assert_eq!(told, [("10.0.0.6:6443".to_owned(), false), ("10.0.0.7:6443".to_owned(), true)]);
}

#[test]
fn what_more_than_endpoints_depends_on_is_left_to_compile() {
    let refreshed = |scene: &mut Scene, endpoints: &[&str]| {
        let before = compile(&scene.facts);
        let endpoints: Vec<String> = endpoints.iter().map(|text| text.to_string()).collect();
        change(scene, "a/t", &endpoints);
        let changed = BTreeSet::from([name("a/t")]);
        again(&before, scene, &changed)
    };
    assert!(refreshed(&mut scene(), &["10.0.0.7"]).is_some());
    // An address and port that we answer on.
    assert!(refreshed(&mut scene(), &["192.0.2.1:443"]).is_none());
    // A probe of a backend that another route shares.
    let mut probed = scene();
    probed.cluster().policy.probe = Some(ProbeSpec::default());
    assert!(refreshed(&mut probed, &["10.0.0.1"]).is_none());
    // What does not fit may fit once another route has fewer backends.
    let mut full = scene();
    full.facts.settings.max_names = 4;
    assert!(refreshed(&mut full, &["10.0.0.7"]).is_none());
}
