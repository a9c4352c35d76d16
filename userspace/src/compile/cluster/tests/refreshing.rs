//! What endpoints alone change is found without compiling everything, and comes to the same.

use super::super::refresh;
use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

const SERVICES: [&str; 4] = ["a/s", "a/t", "b/s", "a/lb"];

/// Routes of both kinds, weights, references into another namespace, one that leads nowhere, a Service of our class, and
/// a route of the file.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.gateway("a/gw", 1, "192.0.2.1 2001:db8::1", &["tls TLS:443", "tcp TCP:9000"]);
    for service in SERVICES {
        scene.service(service, &["10.0.0.1"]);
    }
    let balancer = LoadBalancerSpec { addresses: vec![ip("192.0.2.9")], ..LoadBalancerSpec::default() };
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
    let one = (address, state, zone).prop_map(|(address, state, zone)| format!("{address}{state}{zone}"));
    prop::collection::btree_set(one, 0..5).prop_map(|all| all.into_iter().collect())
}

proptest! {
    #[test]
    fn it_comes_to_the_same(
        changes in prop::collection::vec((0..SERVICES.len(), endpoints()), 1..6),
        zone in prop::option::of(Just(Arc::<str>::from("here"))),
    ) {
        let mut scene = scene();
        scene.around.zone = zone;
        let mut before = compile(&scene.facts, &scene.around);
        for (at, endpoints) in changes {
            change(&mut scene, SERVICES[at], &endpoints);
            let changed = BTreeSet::from([name(SERVICES[at])]);
            let all = compile(&scene.facts, &scene.around);
            let some = refresh(&before.desired, &before.problems, &scene.facts, &scene.around, &changed);
            if let Some(desired) = some {
                prop_assert_eq!(&desired, &all.desired);
                prop_assert_eq!(&before.problems, &all.problems);
                prop_assert_eq!(before.verdicts.digests(), all.verdicts.digests());
                prop_assert_eq!(&before.probes, &all.probes);
            } else {
                prop_assert!(!before.problems.is_empty() || !all.problems.is_empty(), "left to compile for no reason");
            }
            before = all;
        }
    }
}

#[test]
fn what_more_than_endpoints_depends_on_is_left_to_compile() {
    let refreshed = |scene: &mut Scene, endpoints: &[&str]| {
        let before = compile(&scene.facts, &scene.around);
        let endpoints: Vec<String> = endpoints.iter().map(|text| text.to_string()).collect();
        change(scene, "a/t", &endpoints);
        let changed = BTreeSet::from([name("a/t")]);
        refresh(&before.desired, &before.problems, &scene.facts, &scene.around, &changed)
    };
    assert!(refreshed(&mut scene(), &["10.0.0.7"]).is_some());
    // An address and port of ours.
    assert!(refreshed(&mut scene(), &["192.0.2.1:443"]).is_none());
    // Probes are told apart from the maps.
    let mut probed = scene();
    probed.cluster().policy.probe = Some(ProbeSpec::default());
    assert!(refreshed(&mut probed, &["10.0.0.7"]).is_none());
    // What does not fit may, once another has fewer backends.
    let mut full = scene();
    full.facts.settings.max_names = 4;
    assert!(refreshed(&mut full, &["10.0.0.7"]).is_none());
}
