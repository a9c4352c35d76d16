//! The owner of each name, address and port.

use super::*;
use expect_test::expect;

const SHARED: &str = "192.0.2.50";

/// Two namespaces, each with a Gateway on one shared address and port.
fn shared() -> Scene {
    let mut scene = Scene::new();
    scene.cluster().policy.shared = [ip(SHARED)].into();
    scene.gateway("a/g", 1, SHARED, &["l TLS:443"]);
    scene.gateway("b/g", 2, SHARED, &["l TLS:443"]);
    scene
}

#[test]
fn the_oldest_route_has_a_name_and_the_other_keeps_the_rest() {
    let mut scene = shared();
    scene.tls("a/young", 9, &["g"], &["x.example.com", "y.example.com"], &[]);
    scene.tls("b/old", 8, &["g"], &["x.example.com"], &[]);
    expect!["192.0.2.50:443 Tls x.example.com -> tlsroute/b/old, y.example.com -> tlsroute/a/young"]
        .assert_eq(&scene.bindings());
    expect!["Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tls_conditions("a/young"));
    expect!["Accepted ResolvedRefs"].assert_eq(&scene.tls_conditions("b/old"));
    expect!["warning: TLSRoute a/young: spec.hostnames: x.example.com on 192.0.2.50:443 belongs to TLSRoute b/old (value \"x.example.com\"); choose another name or listener, or remove it where it is"]
        .assert_eq(&scene.problems());
    let verdicts = scene.compiled().verdicts;
    assert_eq!(verdicts.gateways[&name("a/g")].listeners[0].attached_routes, 1);
    // At the same age, namespace decides, then name.
    scene.tls("a/young", 8, &["g"], &["x.example.com"], &[]);
    expect!["192.0.2.50:443 Tls x.example.com -> tlsroute/a/young"].assert_eq(&scene.bindings());
}

#[test]
fn the_more_specific_pattern_as_written_has_a_name() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443:x.example.com"]);
    // All three are narrowed to x.example.com.
    scene.tls("a/least", 1, &["g"], &["*.com"], &[]);
    scene.tls("a/less", 2, &["g"], &["*.example.com"], &[]);
    expect!["192.0.2.1:443 Tls x.example.com -> tlsroute/a/less"].assert_eq(&scene.bindings());
    scene.tls("a/most", 3, &["g"], &["x.example.com"], &[]);
    expect!["192.0.2.1:443 Tls x.example.com -> tlsroute/a/most"].assert_eq(&scene.bindings());
    expect!["Accepted=False/OwnedByOther ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tls_conditions("a/less"));
}

#[test]
fn a_narrow_listener_wins_no_name_from_another_gateways_route() {
    let mut scene = shared();
    // In a lookup, x.a.example.com would be the longest; as written, *.a.example.com is more specific than
    // *.com.
    scene.gateway("c/g", 1, SHARED, &["l TLS:443:x.a.example.com"]);
    scene.tls("c/narrow", 1, &["g"], &["*.com"], &[]);
    scene.tls("a/wide", 9, &["g"], &["*.a.example.com"], &[]);
    expect!["192.0.2.50:443 Tls *.a.example.com -> tlsroute/a/wide, x.a.example.com -> tlsroute/a/wide"]
        .assert_eq(&scene.bindings());
    expect!["Accepted=False/OwnedByOther ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tls_conditions("c/narrow"));
    // Equal as written: the older route has all of it.
    scene.tls("a/wide", 9, &["g"], &["*.com"], &[]);
    expect!["192.0.2.50:443 Tls *.com -> tlsroute/a/wide, x.a.example.com -> tlsroute/c/narrow"]
        .assert_eq(&scene.bindings());
    scene.tls("a/wide", 0, &["g"], &["*.com"], &[]);
    expect!["192.0.2.50:443 Tls *.com -> tlsroute/a/wide, x.a.example.com -> tlsroute/a/wide"]
        .assert_eq(&scene.bindings());
}

#[test]
fn equal_patterns_that_listeners_keep_apart_do_not_meet() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["one TLS:443:*.one.example.com", "two TLS:443:*.two.example.com"]);
    scene.tls("a/first", 1, &["g#one"], &["*.example.com"], &[]);
    scene.tls("a/second", 2, &["g#two"], &["*.example.com"], &[]);
    expect![
        "192.0.2.1:443 Tls *.one.example.com -> tlsroute/a/first, *.two.example.com -> tlsroute/a/second"
    ]
    .assert_eq(&scene.bindings());
    expect!["Accepted ResolvedRefs"].assert_eq(&scene.tls_conditions("a/second"));
}

#[test]
fn a_name_belongs_to_its_most_specific_listener() {
    let mut scene = Scene::new();
    let listeners = [
        "any TLS:443",
        "com TLS:443:*.example.com",
        "sub TLS:443:*.sub.example.com",
        "one TLS:443:x.example.com",
    ];
    scene.gateway("a/g", 1, "192.0.2.1", &listeners);
    scene.tls("a/wide", 1, &["g#com"], &["*.example.com", "x.example.com", "y.sub.example.com"], &[]);
    scene.tls("a/any", 1, &["g#any"], &["*.org", "z.example.com"], &[]);
    scene.tls("a/sub", 2, &["g#sub"], &["deep.y.sub.example.com"], &[]);
    // Listener `one` has no route, so its name is refused. So are those of `sub` except one. `*.org` is not
    // affected.
    expect!["192.0.2.1:443 Tls *.example.com -> tlsroute/a/wide, *.org -> tlsroute/a/any, *.sub.example.com -> gateway/a/g, deep.y.sub.example.com -> tlsroute/a/sub, x.example.com -> gateway/a/g"]
        .assert_eq(&scene.bindings());
    expect!["Accepted ResolvedRefs"].assert_eq(&scene.tls_conditions("a/wide"));
    assert_eq!(scene.problems(), "");
    assert_eq!(scene.backends("gateway/a/g"), "");
}

#[test]
fn a_listeners_name_is_not_kept_from_another_gateways_route() {
    let mut scene = shared();
    scene.gateway("c/g", 3, SHARED, &["any TLS:443", "one TLS:443:x.example.com"]);
    scene.tls("c/any", 3, &["g#any"], &["*.example.com"], &[]);
    scene.tls("b/wide", 4, &["g"], &["*.com"], &[]);
    expect!["192.0.2.50:443 Tls *.com -> tlsroute/b/wide, *.example.com -> tlsroute/c/any, x.example.com -> tlsroute/b/wide"]
        .assert_eq(&scene.bindings());
}

#[test]
fn one_label_is_within_any_depth_and_a_name_within_one_label() {
    let mut scene = shared();
    scene.tls("a/deep", 1, &["g"], &["*.example.com"], &[]);
    scene.tls("b/one", 8, &["g"], &["+.example.com"], &[]);
    scene.tls("a/exact", 9, &["g"], &["x.example.com"], &[]);
    expect!["192.0.2.50:443 Tls *.example.com (one label) -> tlsroute/b/one, *.example.com -> tlsroute/a/deep, x.example.com -> tlsroute/a/exact"]
        .assert_eq(&scene.bindings());
    assert_eq!(scene.problems(), "");
    // Two want the same: the older has it, and neither loses the other kind.
    scene.tls("a/deep", 1, &["g"], &["*.example.com", "+.example.com"], &[]);
    expect!["192.0.2.50:443 Tls *.example.com (one label) -> tlsroute/a/deep, *.example.com -> tlsroute/a/deep, x.example.com -> tlsroute/a/exact"]
        .assert_eq(&scene.bindings());
    expect!["warning: TLSRoute b/one: spec.hostnames: *.example.com (one label) on 192.0.2.50:443 belongs to TLSRoute a/deep (value \"*.example.com (one label)\"); choose another name or listener, or remove it where it is"]
        .assert_eq(&scene.problems());
}

#[test]
fn a_narrow_listener_wins_no_name_from_a_pattern_of_one_label() {
    let mut scene = shared();
    scene.gateway("c/g", 1, SHARED, &["l TLS:443:x.example.com"]);
    // Narrowed to x.example.com, but as written less specific than one label.
    scene.tls("c/narrow", 1, &["g"], &["*.example.com"], &[]);
    scene.tls("a/one", 9, &["g"], &["+.example.com"], &[]);
    expect![
        "192.0.2.50:443 Tls *.example.com (one label) -> tlsroute/a/one, x.example.com -> tlsroute/a/one"
    ]
    .assert_eq(&scene.bindings());
    // Reversed, one label is the more specific of the two.
    scene.tls("c/narrow", 9, &["g"], &["+.example.com"], &[]);
    scene.tls("a/one", 1, &["g"], &["*.example.com"], &[]);
    expect!["192.0.2.50:443 Tls *.example.com -> tlsroute/a/one, x.example.com -> tlsroute/c/narrow"]
        .assert_eq(&scene.bindings());
}

#[test]
fn listeners_keep_their_names_from_patterns_of_one_label() {
    let mut scene = Scene::new();
    let listeners = ["any TLS:443", "one TLS:443:x.example.com", "sub TLS:443:*.sub.example.com"];
    scene.gateway("a/g", 1, "192.0.2.1", &listeners);
    scene.tls("a/one", 1, &["g#any"], &["+.example.com", "+.sub.example.com"], &[]);
    // `one` has no route, so its name is refused. Names of `sub` match nothing that they must be kept from.
    expect!["192.0.2.1:443 Tls *.example.com (one label) -> tlsroute/a/one, x.example.com -> gateway/a/g"]
        .assert_eq(&scene.bindings());
}

#[test]
fn the_static_file_comes_before_every_object() {
    let mut scene = shared();
    scene.file_listener("shared", Protocol::Tls, &[SHARED, "192.0.2.60"], 443, Some("default"));
    scene.file_route("tenant", "shared", &["x.example.com", "*.w.example.com"], "10.1.0.1");
    scene.file_route("default", "shared", &[], "10.1.0.2");
    scene.tls(
        "a/r",
        -5,
        &["g"],
        &["x.example.com", "y.example.com", "z.w.example.com", "*.w.example.com"],
        &[],
    );
    expect![[r#"
        192.0.2.50:443 Tls *.w.example.com -> tenant, x.example.com -> tenant, y.example.com -> tlsroute/a/r, z.w.example.com -> tlsroute/a/r, -> default
        192.0.2.60:443 Tls *.w.example.com -> tenant, x.example.com -> tenant, -> default"#]]
    .assert_eq(&scene.bindings());
    expect!["warning: TLSRoute a/r: spec.hostnames: x.example.com on 192.0.2.50:443 belongs to route tenant of the static file; *.w.example.com on 192.0.2.50:443 belongs to route tenant of the static file (value \"x.example.com\"); choose another name or listener, or remove it where it is"]
        .assert_eq(&scene.problems());
}

#[test]
fn names_of_the_clusters_own_api_server_are_nobodys() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443", "k TLS:444:kubernetes.default"]);
    let reserved = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
    ];
    scene.tls("a/all", 1, &["g#l"], &reserved, &[]);
    scene.tls("a/some", 1, &["g#l"], &["kubernetes.default", "kubernetes.example.com", "*.default"], &[]);
    scene.tls("a/left", 1, &["g#k"], &["*.default"], &[]);
    scene.tls("a/one", 1, &["g#k"], &["+.default"], &[]);
    expect![[r#"
        192.0.2.1:443 Tls *.default -> tlsroute/a/some, kubernetes.example.com -> tlsroute/a/some
        192.0.2.1:444 Tls"#]]
    .assert_eq(&scene.bindings());
    for object in ["a/all", "a/some", "a/left", "a/one"] {
        let accepted = if object == "a/some" { "Accepted" } else { "Accepted=False/Reserved" };
        let expected = format!("{accepted} ResolvedRefs vestibule.dev/Owned=False/Reserved");
        assert_eq!(scene.tls_conditions(object), expected, "{object}");
    }
    expect![[r#"
        warning: TLSRoute a/all: spec.hostnames: kubernetes is a name of the cluster's own API server, which no tenant may have; kubernetes.default is a name of the cluster's own API server, which no tenant may have; kubernetes.default.svc is a name of the cluster's own API server, which no tenant may have; kubernetes.default.svc.cluster.local is a name of the cluster's own API server, which no tenant may have (value "kubernetes"); choose another name or listener, or remove it where it is
        warning: TLSRoute a/left: spec.hostnames: *.default is a name of the cluster's own API server, which no tenant may have (value "*.default"); choose another name or listener, or remove it where it is
        warning: TLSRoute a/one: spec.hostnames: *.default (one label) is a name of the cluster's own API server, which no tenant may have (value "*.default (one label)"); choose another name or listener, or remove it where it is
        warning: TLSRoute a/some: spec.hostnames: kubernetes.default is a name of the cluster's own API server, which no tenant may have (value "kubernetes.default"); choose another name or listener, or remove it where it is"#]]
    .assert_eq(&scene.problems());
}

#[test]
fn one_protocol_has_an_address_and_port() {
    let mut scene = Scene::new();
    scene.gateway("a/young", 2, "192.0.2.1 192.0.2.2", &["tls TLS:443", "tcp TCP:9000"]);
    scene.gateway("a/old", 1, "192.0.2.1", &["tcp TCP:443"]);
    scene.tls("a/r", 1, &["young"], &["x.example.com"], &[]);
    scene.tcp("a/t", 5, &["old", "young"], &[]);
    expect![[r#"
        192.0.2.1:443 Tcp -> tcproute/a/t
        192.0.2.1:9000 Tcp -> tcproute/a/t
        192.0.2.2:443 Tls x.example.com -> tlsroute/a/r
        192.0.2.2:9000 Tcp -> tcproute/a/t"#]]
    .assert_eq(&scene.bindings());
    expect![[r#"
        Accepted ResolvedRefs programmable sets=0 [192.0.2.1 192.0.2.2]
          tls: Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther routes=1 kinds=TLSRoute
          tcp: Accepted ResolvedRefs routes=1 kinds=TCPRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/young"));
    expect!["Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tls_conditions("a/r"));
    expect!["warning: Gateway a/young: spec.listeners[0].port: 192.0.2.1:443 belongs to Gateway a/old (value \"443\"); choose another port or address"]
        .assert_eq(&scene.problems());
}

#[test]
fn a_listener_that_has_no_door_at_all_is_not_programmed() {
    let mut scene = Scene::new();
    scene.gateway("a/old", 1, "192.0.2.1", &["tcp TCP:443"]);
    scene.gateway("a/young", 2, "192.0.2.1", &["tcp TCP:443"]);
    scene.tcp("a/t", 1, &["young"], &[]);
    expect!["192.0.2.1:443 Tcp -> gateway/a/old"].assert_eq(&scene.bindings());
    expect![[r#"
        Accepted ResolvedRefs Programmed=False/Invalid sets=0 [192.0.2.1]
          tcp: Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther routes=1 kinds=TCPRoute Programmed=False/PortUnavailable"#]]
    .assert_eq(&scene.gateway_conditions("a/young"));
    expect!["Accepted=False/OwnedByOther ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tcp_conditions("a/t"));
}

#[test]
fn many_losses_are_counted_and_long_names_are_shortened() {
    let mut scene = shared();
    let long = format!("{}.{}", "n".repeat(120), "m".repeat(120));
    let hosts: Vec<String> = (0..9).map(|n| format!("h{n}.example.com")).collect();
    let hosts: Vec<&str> = hosts.iter().map(String::as_str).collect();
    scene.tls(&format!("a/{long}"), 1, &["g"], &hosts, &[]);
    scene.tls("b/young", 2, &["g"], &hosts, &[]);
    assert!(scene.problems().contains("; and 5 more (value"), "{}", scene.problems());
    let desired = scene.compiled().desired;
    assert_eq!(desired.routes.len(), 1);
    expect!["tlsroute/a/nnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnnn~"]
        .assert_eq(&desired.routes[0].name[..111]);
    assert_eq!(desired.routes[0].name.len(), 127);
    // A route of the file keeps its name when a route of the cluster has the same name.
    scene.file_listener("other", Protocol::Tls, &["192.0.2.60"], 443, None);
    scene.file_route("tlsroute/b/young", "other", &["x.example.com"], "10.1.0.1");
    scene.tls("b/young", 0, &["g"], &["x.example.com"], &[]);
    assert!(
        scene.bindings().contains("192.0.2.60:443 Tls x.example.com -> tlsroute/b/young"),
        "{}",
        scene.bindings()
    );
    assert!(scene.bindings().contains("x.example.com -> tlsroute/b/young~"), "{}", scene.bindings());
}

#[test]
fn where_the_maps_are_full_the_oldest_are_served() {
    let mut scene = shared();
    scene.facts.settings.max_names = 3;
    scene.tls("a/third", 3, &["g"], &["3.example.com"], &[]);
    scene.tls("b/second", 2, &["g"], &["2.example.com", "*.2.example.com", "2.example.org"], &[]);
    scene.tls("a/first", 1, &["g"], &["1.example.com"], &[]);
    scene.tls("b/fourth", 4, &["g"], &["4.example.com"], &[]);
    expect!["192.0.2.50:443 Tls 1.example.com -> tlsroute/a/first, 3.example.com -> tlsroute/a/third, 4.example.com -> tlsroute/b/fourth"]
        .assert_eq(&scene.bindings());
    expect![[r#"warning: TLSRoute b/second: settings.maxNames: tlsroute/b/second is not served: the maps are full, and older objects come first (value "3"); raise it"#]]
        .assert_eq(&scene.problems());
}

/// One tenant's TCP listener would close the port to all others.
#[test]
fn where_shared_addresses_take_tls_only_no_tcp_listener_gets_a_port() {
    let mut scene = Scene::new();
    scene.cluster().policy.shared = [ip(SHARED)].into();
    scene.cluster().policy.tls_ports = [443].into();
    scene.gateway("a/tcp", 1, &format!("{SHARED} 192.0.2.1"), &["l TCP:443", "other TCP:9000"]);
    scene.gateway("a/only", 1, SHARED, &["l TCP:443"]);
    scene.gateway("b/tls", 2, SHARED, &["l TLS:443"]);
    scene.tcp("a/t", 1, &["tcp#l"], &[]);
    scene.tcp("a/lost", 1, &["only"], &[]);
    scene.tls("b/r", 3, &["tls"], &["x.example.com"], &[]);
    expect![[r#"
        192.0.2.1:443 Tcp -> tcproute/a/t
        192.0.2.1:9000 Tcp -> gateway/a/tcp
        192.0.2.50:443 Tls x.example.com -> tlsroute/b/r
        192.0.2.50:9000 Tcp -> gateway/a/tcp"#]]
    .assert_eq(&scene.bindings());
    expect![[r#"
        Accepted ResolvedRefs programmable sets=0 [192.0.2.50 192.0.2.1]
          l: Accepted ResolvedRefs vestibule.dev/Owned=False/Reserved routes=1 kinds=TCPRoute
          other: Accepted ResolvedRefs routes=0 kinds=TCPRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/tcp"));
    expect![[r#"
        Accepted ResolvedRefs Programmed=False/Invalid sets=0 [192.0.2.50]
          l: Accepted ResolvedRefs vestibule.dev/Owned=False/Reserved routes=1 kinds=TCPRoute Programmed=False/PortUnavailable"#]]
    .assert_eq(&scene.gateway_conditions("a/only"));
    expect!["Accepted ResolvedRefs vestibule.dev/Owned=False/Reserved"]
        .assert_eq(&scene.tcp_conditions("a/t"));
    expect!["Accepted=False/Reserved ResolvedRefs vestibule.dev/Owned=False/Reserved"]
        .assert_eq(&scene.tcp_conditions("a/lost"));
    expect![[r#"
        warning: Gateway a/only: spec.listeners[0].port: 192.0.2.50:443 takes TLS only: the address is shared, and addresses.tlsPorts of the chart's values names the port; use TLS, another port, or an address of its own (value "443"); choose another port or address
        warning: Gateway a/tcp: spec.listeners[0].port: 192.0.2.50:443 takes TLS only: the address is shared, and addresses.tlsPorts of the chart's values names the port; use TLS, another port, or an address of its own (value "443"); choose another port or address"#]].assert_eq(&scene.problems());
    let claims = scene.compiled().claims;
    let refusals = |object: &str| -> Vec<_> {
        let is_of = |claim: &&Claim| claim.origin.object().is_some_and(|own| own.name == name(object));
        claims.iter().filter(is_of).flat_map(|claim| claim.refusals().to_vec()).collect()
    };
    let refused = claim::Refusal::whole("192.0.2.50:443".parse().unwrap(), claim::Why::Reserved);
    assert_eq!([refusals("a/lost"), refusals("a/only")].concat(), [refused.clone(), refused]);
    // It is the operator's, as the setting is.
    scene.file_listener("file", Protocol::Tcp, &[SHARED], 443, None);
    assert!(scene.bindings().contains("192.0.2.50:443 Tcp"), "{}", scene.bindings());
}

/// What was granted before the operator said so is not allowed any more.
#[test]
fn who_has_a_port_on_tcp_loses_it_where_it_takes_tls_only() {
    let mut scene = Scene::new();
    scene.cluster().policy.shared = [ip(SHARED)].into();
    scene.gateway("a/g", 1, SHARED, &["l TCP:443"]);
    scene.gateway("b/g", 2, SHARED, &["l TLS:443"]);
    scene.tcp("a/t", 1, &["g"], &[]);
    scene.tls("b/r", 3, &["g"], &["x.example.com"], &[]);
    let Compiled { claims, .. } = scene.compiled();
    scene.cluster().possession = claim::possession(&claims);
    assert_eq!(scene.bindings(), "192.0.2.50:443 Tcp -> tcproute/a/t");
    scene.cluster().policy.tls_ports = [443].into();
    assert_eq!(scene.bindings(), "192.0.2.50:443 Tls x.example.com -> tlsroute/b/r");
}

/// The Gateway API lets both be accepted, and says nothing of names that Gateways of two namespaces share. Of the TCPRoutes of one
/// listener it asks for that (upstream's test TCPRouteMultipleRoutesAttachment).
#[test]
fn a_route_with_nothing_left_is_not_accepted_there() {
    let mut scene = shared();
    scene.gateway("a/own", 1, "192.0.2.1", &["l TLS:443", "tcp TCP:9000"]);
    scene.tls("b/old", 1, &["g"], &["x.example.com"], &[]);
    scene.tls("a/all", 2, &["g", "own"], &["x.example.com"], &[]);
    expect![[r#"
        Accepted=False/OwnedByOther ResolvedRefs vestibule.dev/Owned=False/OwnedByOther
        Accepted ResolvedRefs"#]]
    .assert_eq(&scene.tls_conditions("a/all"));
    scene.tls("a/all", 2, &["g"], &["x.example.com", "y.example.com"], &[]);
    expect!["Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tls_conditions("a/all"));
    // One that names its parent twice has lost nothing.
    scene.tls("a/all", 2, &["own", "own#l"], &["y.example.com"], &[]);
    expect![[r#"
        Accepted ResolvedRefs
        Accepted ResolvedRefs"#]]
    .assert_eq(&scene.tls_conditions("a/all"));
    scene.tcp("a/first", 1, &["own"], &[]);
    scene.tcp("a/second", 2, &["own"], &[]);
    expect!["Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tcp_conditions("a/second"));
    let verdict = scene.compiled().verdicts;
    assert_eq!(verdict.gateways[&name("a/own")].listeners[1].attached_routes, 2);
}
