//! Endpoints, weights, grants, health.

use super::*;
use crate::model::Elsewhere;
use expect_test::expect;

/// Returns a Gateway, and route `a/r` with these references.
fn scene(refs: &[&str]) -> Scene {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443"]);
    scene.tls("a/r", 2, &["g"], &["x.example.com"], refs);
    scene
}

fn backends(refs: &[&str], services: &[(&str, &[&str])]) -> String {
    let mut scene = scene(refs);
    for (service, endpoints) in services {
        scene.service(service, endpoints);
    }
    scene.backends("tlsroute/a/r")
}

#[test]
fn every_reference_gets_its_share_however_many_endpoints_it_has() {
    let two: &[&str] = &["10.0.0.1", "10.0.0.2"];
    let three: &[&str] = &["10.0.1.1", "10.0.1.2", "10.0.1.3"];
    let table: &[(&[&str], &str)] = &[
        (&["s:443"], "10.0.0.1:6443 1, 10.0.0.2:6443 1"),
        (&["s:443*5"], "10.0.0.1:6443 1, 10.0.0.2:6443 1"),
        (&["s:443*0"], "10.0.0.1:6443 0, 10.0.0.2:6443 0"),
        (
            &["s:443*70", "t:443*30"],
            "10.0.0.1:6443 7, 10.0.0.2:6443 7, 10.0.1.1:6443 2, 10.0.1.2:6443 2, 10.0.1.3:6443 2",
        ),
        (
            &["s:443*0", "t:443*3"],
            "10.0.0.1:6443 0, 10.0.0.2:6443 0, 10.0.1.1:6443 1, 10.0.1.2:6443 1, 10.0.1.3:6443 1",
        ),
        // The same endpoint twice: its shares add up.
        (&["s:443", "u:443"], "10.0.0.1:6443 3, 10.0.0.2:6443 1"),
    ];
    for (refs, expected) in table {
        let found = backends(refs, &[("a/s", two), ("a/t", three), ("a/u", &["10.0.0.1"])]);
        assert_eq!(found, *expected, "{refs:?}");
    }
}

#[test]
fn the_share_of_what_leads_nowhere_is_refused() {
    let table: &[(&[&str], &str, &str)] = &[
        (&["s:443*80", "none:443*20"], "refused/4 1, 10.0.0.1:6443 4", "BackendNotFound"),
        (&["s:443", "s:444"], "refused/4 1, 10.0.0.1:6443 1", "BackendNotFound"),
        (&["s:443", "s"], "refused/4 1, 10.0.0.1:6443 1", "UnsupportedValue"),
        (&["s:443", "udp:53"], "refused/4 1, 10.0.0.1:6443 1", "UnsupportedProtocol"),
        (&["s:443", "external:443"], "refused/4 1, 10.0.0.1:6443 1", "UnsupportedValue"),
        (&["s:443", "Pod=s:443", "none:443*2"], "refused/4 3, 10.0.0.1:6443 1", "InvalidKind"),
        (&["s:443", "b/s:443"], "refused/4 1, 10.0.0.1:6443 1", "RefNotPermitted"),
        // A Service without endpoints leads nowhere too, but all references are resolved.
        (&["s:443", "empty:443*3"], "refused/4 3, 10.0.0.1:6443 1", "ResolvedRefs"),
        (&["s:443", "none:443*0"], "10.0.0.1:6443 1", "BackendNotFound"),
        // Nothing else is left: the name stays claimed, and its clients are refused.
        (&["none:443"], "", "BackendNotFound"),
        (&["empty:443"], "", "ResolvedRefs"),
        (&[], "", "ResolvedRefs"),
    ];
    for (refs, expected, reason) in table {
        let mut scene = scene(refs);
        scene.service("a/s", &["10.0.0.1"]);
        scene.service("b/s", &["10.0.9.9"]);
        scene.service("a/empty", &[]);
        scene.service("a/external", &["10.0.9.9"]).is_external_name = true;
        let udp = ServicePort { name: "dns".into(), port: 53, is_tcp: false, protocol: "UDP".into() };
        scene.service("a/udp", &["10.0.9.9"]).ports.push(udp);
        assert_eq!(scene.backends("tlsroute/a/r"), *expected, "{refs:?}");
        assert_eq!(scene.bindings(), "192.0.2.1:443 Tls x.example.com -> tlsroute/a/r", "{refs:?}");
        let conditions = scene.tls_conditions("a/r");
        let expected = match *reason {
            "ResolvedRefs" => "Accepted ResolvedRefs".to_owned(),
            reason => format!("Accepted ResolvedRefs=False/{reason}"),
        };
        assert_eq!(conditions, expected, "{refs:?}");
    }
}

#[test]
fn families_have_shares_of_their_own() {
    let services: &[(&str, &[&str])] = &[
        ("a/dual", &["10.0.0.1", "fd00::1"]),
        ("a/four", &["10.0.1.1", "10.0.1.2"]),
        ("a/gone", &[]),
        ("a/six", &["fd00:1::1"]),
    ];
    // A Service with endpoints of the other family only has no share in this one, so no client is refused for
    // it.
    assert_eq!(
        backends(&["dual:443", "four:443"], services),
        "10.0.0.1:6443 2, 10.0.1.1:6443 1, 10.0.1.2:6443 1, [fd00::1]:6443 1"
    );
    assert_eq!(
        backends(&["dual:443", "gone:443"], services),
        "refused/6 1, refused/4 1, 10.0.0.1:6443 1, [fd00::1]:6443 1"
    );
    assert_eq!(
        backends(&["four:443*0", "six:443"], services),
        "10.0.1.1:6443 0, 10.0.1.2:6443 0, [fd00:1::1]:6443 1"
    );
}

#[test]
fn only_ready_endpoints_take_connections_and_draining_ones_where_no_other_does() {
    let table: &[(&[&str], &str)] = &[
        (
            &["10.0.0.1", "10.0.0.2 draining", "10.0.0.3 notready", "10.0.0.4 departed"],
            "10.0.0.1:6443 1, 10.0.0.2:6443 0, 10.0.0.3:6443 0, 10.0.0.4:6443 0",
        ),
        (&["10.0.0.2 draining", "10.0.0.3 notready"], "10.0.0.2:6443 1, 10.0.0.3:6443 0"),
        (&["10.0.0.3 notready", "10.0.0.4 departed"], "10.0.0.3:6443 0, 10.0.0.4:6443 0"),
        // Each family separately.
        (&["10.0.0.1", "fd00::1 draining"], "10.0.0.1:6443 1, [fd00::1]:6443 1"),
    ];
    for (endpoints, expected) in table {
        assert_eq!(backends(&["s:443"], &[("a/s", endpoints)]), *expected, "{endpoints:?}");
    }
    // If no endpoint of a reference takes new connections, its share is refused. Existing flows stay.
    assert_eq!(
        backends(&["s:443", "t:443"], &[("a/s", &["10.0.0.1"]), ("a/t", &["10.0.0.2 notready"])]),
        "refused/4 1, 10.0.0.1:6443 1, 10.0.0.2:6443 0"
    );
}

#[test]
fn failing_endpoints_are_left_out_until_too_many_fail() {
    let four: &[&str] = &["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4 draining"];
    let table: &[(&[&str], u8, &str)] = &[
        (&["10.0.0.1"], 50, "10.0.0.1:6443 0 failing, 10.0.0.2:6443 1, 10.0.0.3:6443 1, 10.0.0.4:6443 0"),
        (&["10.0.0.1"], 33, "10.0.0.1:6443 1 failing, 10.0.0.2:6443 1, 10.0.0.3:6443 1, 10.0.0.4:6443 0"),
        (&["10.0.0.1"], 34, "10.0.0.1:6443 0 failing, 10.0.0.2:6443 1, 10.0.0.3:6443 1, 10.0.0.4:6443 0"),
        (
            &["10.0.0.1", "10.0.0.2"],
            50,
            "10.0.0.1:6443 1 failing, 10.0.0.2:6443 1 failing, 10.0.0.3:6443 1, 10.0.0.4:6443 0",
        ),
        (&["10.0.0.4"], 50, "10.0.0.1:6443 1, 10.0.0.2:6443 1, 10.0.0.3:6443 1, 10.0.0.4:6443 0 failing"),
    ];
    for (failing, percent, expected) in table {
        let mut scene = scene(&["s:443"]);
        scene.service("a/s", four);
        scene.cluster().policy.panic_percent = *percent;
        scene.facts.node.failing = failing.iter().map(|text| (ip(text), 6443).into()).collect();
        assert_eq!(scene.backends("tlsroute/a/r"), *expected, "{failing:?} {percent}");
    }
}

#[test]
fn zone_hints_count_where_all_endpoints_have_them_and_one_is_for_this_zone() {
    let table: &[(&[&str], &str)] = &[
        (&["10.0.0.1 @x", "10.0.0.2 @y", "10.0.0.3 @y @x"], "1 0 1"),
        (&["10.0.0.1 @x", "10.0.0.2 @y", "10.0.0.3"], "1 1 1"),
        (&["10.0.0.1 @z", "10.0.0.2 @y", "10.0.0.3 @y"], "1 1 1"),
        // An endpoint of another zone, or one without new connections, does not count.
        (&["10.0.0.1 @x notready", "10.0.0.2 @y", "10.0.0.3 @y"], "0 1 1"),
        (&["10.0.0.1 @x", "10.0.0.2 @y", "10.0.0.3 notready"], "1 0 0"),
    ];
    for (endpoints, expected) in table {
        let mut scene = scene(&["s:443"]);
        scene.service("a/s", endpoints);
        let weights = |scene: &Scene| {
            let desired = scene.compiled().desired;
            let weights = desired.routes[0].backends.iter().map(|backend| backend.weight.to_string());
            weights.collect::<Vec<_>>().join(" ")
        };
        let without_zone = if endpoints[0].ends_with("notready") { "0 1 1" } else { "1 1" };
        assert!(weights(&scene).starts_with(without_zone), "{endpoints:?}");
        scene.facts.node.zone = Some("x".into());
        assert_eq!(weights(&scene), *expected, "{endpoints:?}");
    }
    // The zone's only endpoint fails: the others take over.
    let mut scene = scene(&["s:443"]);
    scene.service("a/s", &["10.0.0.1 @x", "10.0.0.2 @y"]);
    scene.facts.node.zone = Some("x".into());
    scene.facts.node.failing = [(ip("10.0.0.1"), 6443).into()].into();
    assert_eq!(scene.backends("tlsroute/a/r"), "10.0.0.1:6443 0 failing, 10.0.0.2:6443 1");
}

#[test]
fn a_service_with_policy_local_leads_to_the_pods_of_this_node_alone_and_only_these_are_probed() {
    let table: &[(&[&str], &str)] = &[
        (&["10.0.0.1 on-n1", "10.0.0.2 on-n2", "10.0.0.3"], "10.0.0.1:6443 1"),
        (&["10.0.0.1 on-n1 notready", "10.0.0.2 on-n2"], "10.0.0.1:6443 0"),
        (&["10.0.0.1 on-n1 draining", "10.0.0.2 on-n2"], "10.0.0.1:6443 1"),
        (&["10.0.0.1 on-n1 draining", "10.0.0.2 on-n1"], "10.0.0.1:6443 0, 10.0.0.2:6443 1"),
        (&["10.0.0.2 on-n2", "10.0.0.3"], ""),
        // A hint for another zone does not lead to another node.
        (
            &["10.0.0.1 @y on-n1", "10.0.0.2 @x on-n1", "10.0.0.3 @x on-n2"],
            "10.0.0.1:6443 1, 10.0.0.2:6443 1",
        ),
    ];
    for (endpoints, expected) in table {
        let mut scene = Scene::new();
        let balancer = LoadBalancerSpec {
            addresses: vec![ip("192.0.2.9")],
            traffic: TrafficPolicy::Local,
            ..LoadBalancerSpec::default()
        };
        let service = scene.service("a/lb", endpoints);
        service.load_balancer = Some(Arc::new(balancer));
        service.probe = Some(Some(ProbeSpec::default()));
        scene.facts.node.zone = Some("x".into());
        assert_eq!(scene.backends("service/a/lb:443"), "", "a node without a name has no pods");
        scene.facts.node.name = Some("n1".into());
        assert_eq!(scene.backends("service/a/lb:443"), *expected, "{endpoints:?}");
        let Compiled { desired, probes, .. } = scene.compiled();
        let own = desired.routes.find("service/a/lb:443").unwrap();
        assert_eq!(own.traffic, TrafficPolicy::Local);
        let others = endpoints.iter().filter(|text| text.contains("on-n2") && !text.contains("notready"));
        let (mut elsewhere, n2) = (Elsewhere::default(), Arc::from("n2"));
        elsewhere.add(true, &n2);
        let expected = (others.count() > 0).then(|| Arc::new(elsewhere));
        assert_eq!(own.elsewhere, expected, "{endpoints:?}");
        let probed: Vec<_> = probes.keys().map(|at| at.ip()).collect();
        let is_probed = |spec: &&BackendSpec| probed.contains(&spec.address);
        let lives = endpoints.iter().filter(|text| text.contains("on-n1") && !text.contains("notready"));
        assert_eq!(
            (probed.len(), own.backends.iter().filter(is_probed).count()),
            (lives.clone().count(), lives.count())
        );
    }
}

#[test]
fn references_to_other_namespaces_need_a_grant_of_theirs() {
    let from = |kind: &str, namespace: &str| (group_kind(kind), Arc::from(namespace));
    let to = |kind: &str, name: Option<&str>| {
        (GroupKind { group: "".into(), kind: kind.into() }, name.map(Arc::from))
    };
    let table = [
        ("b", from("TLSRoute", "a"), to("Service", None), true),
        ("b", from("TLSRoute", "a"), to("Service", Some("s")), true),
        ("b", from("TLSRoute", "a"), to("Service", Some("t")), false),
        ("b", from("TLSRoute", "a"), to("Secret", None), false),
        ("b", from("TCPRoute", "a"), to("Service", None), false),
        ("b", from("TLSRoute", "c"), to("Service", None), false),
        ("c", from("TLSRoute", "a"), to("Service", None), false),
        ("a", from("TLSRoute", "b"), to("Service", None), false),
        (
            "b",
            (GroupKind { group: "".into(), kind: "TLSRoute".into() }, "a".into()),
            to("Service", None),
            false,
        ),
    ];
    for (namespace, from, to, is_allowed) in table {
        let mut scene = scene(&["b/s:443"]);
        scene.service("b/s", &["10.0.0.1"]);
        let told = format!("{namespace}: {from:?} {to:?}");
        let grant = GrantSpec { from: vec![from], to: vec![to] };
        scene.cluster().namespaces.grants.insert(ObjectName::new(namespace, "grant"), Arc::new(grant));
        assert_eq!(scene.backends("tlsroute/a/r"), if is_allowed { "10.0.0.1:6443 1" } else { "" }, "{told}");
        let condition = if is_allowed { "ResolvedRefs" } else { "ResolvedRefs=False/RefNotPermitted" };
        assert_eq!(scene.tls_conditions("a/r"), format!("Accepted {condition}"), "{told}");
    }
}

#[test]
fn endpoints_that_are_our_own_doors_are_left_out() {
    let mut scene = scene(&["s:443"]);
    scene.gateway("b/g", 1, "192.0.2.2", &["l TCP:9000"]);
    scene.service("a/s", &["10.0.0.1", "192.0.2.1:443", "192.0.2.1:444", "192.0.2.2:9000"]);
    scene.file_listener("file", Protocol::Tls, &["192.0.2.60"], 443, None);
    scene.file_route("tenant", "file", &["x.example.com"], "10.1.0.1");
    scene.facts.routes[0].backends.push(BackendSpec {
        address: ip("192.0.2.2"),
        port: 9000,
        weight: 1,
        failing: false,
    });
    assert_eq!(scene.backends("tlsroute/a/r"), "10.0.0.1:6443 1, 192.0.2.1:444 1");
    assert_eq!(scene.backends("tenant"), "10.1.0.1:6443 1");
    expect![[r#"
        warning: routes: route tenant: backend 192.0.2.2:9000 is a binding of Gateway b/g: connections would go round (value "192.0.2.2:9000"); write the tenant's own address and port
        warning: TLSRoute a/r: spec.rules: 192.0.2.1:443 and 1 more endpoints are addresses and ports we answer on: connections would go round (value "192.0.2.1:443"); let the Service lead to the tenant's own pods"#]]
    .assert_eq(&scene.problems());
}

#[test]
fn more_endpoints_than_a_table_has_room_for_get_no_connection() {
    let many: Vec<String> = (0..300).map(|n| format!("10.0.{}.{}", n / 256, n % 256)).collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    for (refs, taking, refusing) in [(&["s:443"][..], 255, 0), (&["s:443", "none:443"], 254, 1)] {
        let mut scene = scene(refs);
        scene.service("a/s", &many);
        let desired = scene.compiled().desired;
        let backends = &desired.routes[0].backends;
        assert_eq!(backends.iter().filter(|b| b.weight > 0 && !b.is_refusing()).count(), taking);
        assert_eq!(backends.iter().filter(|b| b.is_refusing()).count(), refusing);
        assert_eq!(backends.len(), 300 + refusing);
        assert!(scene.problems().contains(&format!("{} ready endpoints are more", 300 - taking)));
    }
}

#[test]
fn what_is_probed_and_how() {
    let mut scene = scene(&["s:443", "t:443", "off:443"]);
    scene.tls("a/other", 2, &["g"], &["b.example.com", "a.example.com", "*.c.example.com"], &["s:443"]);
    scene.tls("a/refused", 2, &["g#none"], &["y.example.com"], &["unused:443"]);
    let chart = ProbeSpec::default();
    let own = ProbeSpec { kind: ProbeKind::Tls, interval_ms: 1000, ..chart };
    scene.cluster().policy.probe = Some(chart);
    scene.service("a/s", &["10.0.0.1", "10.0.0.2 notready", "10.0.0.3 draining"]).probe = Some(Some(own));
    scene.service("a/t", &["10.0.1.1"]);
    scene.service("a/off", &["10.0.2.1"]).probe = Some(None);
    scene.service("a/unused", &["10.0.3.1"]);
    let told = scene.compiled().probes.into_iter().map(|(at, (probe, name))| {
        format!(
            "{at} {:?} {}ms {}",
            probe.kind,
            probe.interval_ms,
            name.map_or("-".to_owned(), |name| name.to_string())
        )
    });
    expect![[r#"
        10.0.0.1:6443 Tls 1000ms a.example.com
        10.0.0.3:6443 Tls 1000ms a.example.com
        10.0.1.1:6443 Tcp 5000ms -"#]]
    .assert_eq(&told.collect::<Vec<_>>().join("\n"));
    // Nothing is probed unless the policy or a Service requests it.
    scene.cluster().policy.probe = None;
    assert_eq!(scene.compiled().probes.len(), 2);
}
