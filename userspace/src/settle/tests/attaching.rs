//! Which route attaches to which listener: the Gateway API's rules, one per line.

use super::*;
use expect_test::expect;

/// Compiles one Gateway with one listener, and one route. Returns the route's condition and the listener's
/// number of routes.
fn one(listener: &str, parent: &str, hostnames: &[&str]) -> String {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &[listener]);
    scene.service("a/s", &["10.0.0.1"]);
    scene.tls("a/r", 2, &[parent], hostnames, &["s:443"]);
    let conditions = scene.tls_conditions("a/r");
    let accepted = conditions.split(' ').next().unwrap().trim_start_matches("Accepted=False/").to_owned();
    let verdicts = scene.compiled().verdicts;
    format!("{accepted} {}", verdicts.gateways[&name("a/g")].listeners[0].attached_routes)
}

#[test]
fn every_way_to_miss_a_listener_has_its_reason() {
    let table = [
        ("l TLS:443", "g", "Accepted 1"),
        ("l TLS:443", "a/g", "Accepted 1"),
        ("l TLS:443", "g#l", "Accepted 1"),
        ("l TLS:443", "g#l:443", "Accepted 1"),
        ("l TLS:443", "g:443", "Accepted 1"),
        ("l TLS:443", "g#m", "NoMatchingParent 0"),
        ("l TLS:443", "g:444", "NoMatchingParent 0"),
        ("l TLS:443", "g#l:444", "NoMatchingParent 0"),
        ("l TLS:443", "b/g", "none 0"),
        ("l TLS:443", "h", "none 0"),
        ("l TLS:443", "ListenerSet g", "none 0"),
        ("l TLS:443", "Service g", "none 0"),
        ("l TLS:443 from=None", "g", "NotAllowedByListeners 0"),
        ("l TLS:443 from=team", "g", "NotAllowedByListeners 0"),
        ("l TLS:443 kinds=TCPRoute", "g", "NotAllowedByListeners 0"),
        ("l TLS:443 kinds=TCPRoute,TLSRoute", "g", "Accepted 1"),
        ("l TCP:443", "g", "NotAllowedByListeners 0"),
        ("l HTTP:80", "g", "NotAllowedByListeners 0"),
        ("l HTTPS:443", "g", "NotAllowedByListeners 0"),
        ("l TLS:443 Terminate", "g", "NotAllowedByListeners 0"),
        ("l TLS:443:a.example.com", "g", "Accepted 1"),
        ("l TLS:443:*.example.com", "g", "Accepted 1"),
        ("l TLS:443:*.com", "g", "Accepted 1"),
        ("l TLS:443:example.com", "g", "NoMatchingListenerHostname 0"),
        ("l TLS:443:*.a.example.com", "g", "NoMatchingListenerHostname 0"),
    ];
    for (listener, parent, expected) in table {
        assert_eq!(one(listener, parent, &["a.example.com"]), expected, "{listener}, {parent}");
    }
    assert_eq!(one("l TLS:443:*.example.com", "g", &["x.org", "*.com"]), "Accepted 1");
    // Hostnames that could not be read are not a wildcard.
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443"]);
    let mut route = (*Scene::route(&["g"], "a/r", 2, &[], &[])).clone();
    route.has_hostnames = true;
    scene.cluster().tls_routes.insert(name("a/r"), Arc::new(route));
    assert_eq!(scene.tls_conditions("a/r"), "Accepted=False/NoMatchingListenerHostname ResolvedRefs");
}

#[test]
fn namespaces_are_allowed_by_label() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["all TLS:1 from=All", "same TLS:2", "team TLS:3 from=team"]);
    for (at, namespace) in ["a", "b", "c"].into_iter().enumerate() {
        let host = format!("{namespace}.example.com");
        scene.tls(&format!("{namespace}/r"), at as i64, &["a/g"], &[&host], &[]);
    }
    expect![[r#"
        192.0.2.1:1 Tls a.example.com -> tlsroute/a/r, b.example.com -> tlsroute/b/r, c.example.com -> tlsroute/c/r
        192.0.2.1:2 Tls a.example.com -> tlsroute/a/r
        192.0.2.1:3 Tls c.example.com -> tlsroute/c/r"#]]
    .assert_eq(&scene.bindings());
}

#[test]
fn routes_take_all_listeners_or_the_named_ones() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["one TCP:1", "two TCP:2", "three TCP:3"]);
    scene.tcp("a/all", 5, &["g"], &[]);
    scene.tcp("a/port", 2, &["g:1"], &[]);
    scene.tcp("a/section", 2, &["g#two"], &[]);
    scene.tcp("a/both", 2, &["g#three:3", "g#three:2"], &[]);
    expect![[r#"
        192.0.2.1:1 Tcp -> tcproute/a/port
        192.0.2.1:2 Tcp -> tcproute/a/section
        192.0.2.1:3 Tcp -> tcproute/a/both"#]]
    .assert_eq(&scene.bindings());
    expect![[r#"
        Accepted ResolvedRefs
        Accepted=False/NoMatchingParent ResolvedRefs"#]]
    .assert_eq(&scene.tcp_conditions("a/both"));
    expect!["Accepted ResolvedRefs vestibule.dev/Owned=False/OwnedByOther"]
        .assert_eq(&scene.tcp_conditions("a/all"));
    expect![[r#"
        Accepted ResolvedRefs programmable sets=0 [192.0.2.1]
          one: Accepted ResolvedRefs routes=2 kinds=TCPRoute
          two: Accepted ResolvedRefs routes=2 kinds=TCPRoute
          three: Accepted ResolvedRefs routes=2 kinds=TCPRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/g"));
}

/// The four Gateways of upstream's TLSRouteHostnameIntersection.
#[test]
fn names_are_the_intersection_of_listener_and_route() {
    let mut scene = Scene::new();
    let hosts = ["abc.example.com", "*.example.com", "*.com", ""];
    for (at, host) in hosts.into_iter().enumerate() {
        let host = if host.is_empty() { String::new() } else { format!(":{host}") };
        scene.gateway(&format!("a/g{at}"), 1, &format!("192.0.2.{}", at + 1), &[&format!("l TLS:443{host}")]);
    }
    scene.tls("a/more-0", 1, &["g0"], &["*.example.com"], &[]);
    scene.tls("a/exact-1", 1, &["g1"], &["abc.example.com"], &[]);
    scene.tls("a/less-1", 1, &["g1"], &["*.com"], &[]);
    scene.tls("a/exact-2", 1, &["g2"], &["abc.example.com"], &[]);
    scene.tls("a/more-2", 1, &["g2"], &["*.example.com"], &[]);
    scene.tls("a/exact-3", 1, &["g3"], &["abc.example.com"], &[]);
    scene.tls("a/less-3", 1, &["g3"], &["*.com"], &[]);
    expect![[r#"
        192.0.2.1:443 Tls abc.example.com -> tlsroute/a/more-0
        192.0.2.2:443 Tls *.example.com -> tlsroute/a/less-1, abc.example.com -> tlsroute/a/exact-1
        192.0.2.3:443 Tls *.example.com -> tlsroute/a/more-2, abc.example.com -> tlsroute/a/exact-2
        192.0.2.4:443 Tls *.com -> tlsroute/a/less-3, abc.example.com -> tlsroute/a/exact-3"#]]
    .assert_eq(&scene.bindings());
}

#[test]
fn a_route_without_hostnames_takes_what_the_listener_has() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["all TLS:443", "some TLS:8443:*.example.com"]);
    scene.tls("a/old", 1, &["g"], &[], &[]);
    scene.tls("a/young", 2, &["g"], &["*.example.com", "x.org"], &[]);
    expect![[r#"
        192.0.2.1:443 Tls *.example.com -> tlsroute/a/young, x.org -> tlsroute/a/young, -> tlsroute/a/old
        192.0.2.1:8443 Tls *.example.com -> tlsroute/a/young"#]]
    .assert_eq(&scene.bindings());
}

#[test]
fn a_listener_without_route_is_open_and_refuses() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["tls TLS:443", "tcp TCP:9000"]);
    expect![[r#"
        192.0.2.1:443 Tls
        192.0.2.1:9000 Tcp -> gateway/a/g"#]]
    .assert_eq(&scene.bindings());
    assert_eq!(scene.backends("gateway/a/g"), "");
}

#[test]
fn only_the_first_rule_is_used_and_the_route_is_told() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443"]);
    scene.service("a/s", &["10.0.0.1"]);
    scene.service("a/t", &["10.0.0.2"]);
    let mut route = (*Scene::route(&["g"], "a/r", 2, &["x.org"], &["s:443"])).clone();
    route.rules.push(vec![backend_ref("t:443")]);
    scene.cluster().tls_routes.insert(name("a/r"), Arc::new(route));
    assert_eq!(scene.tls_conditions("a/r"), "Accepted ResolvedRefs PartiallyInvalid=True/UnsupportedValue");
    assert_eq!(scene.backends("tlsroute/a/r"), "10.0.0.1:6443 1");
    let verdict = &scene.compiled().verdicts.tls_routes[&name("a/r")];
    let dropped = verdict.parents[0].conditions.iter().find(|c| c.kind == "PartiallyInvalid").unwrap();
    assert!(dropped.message.starts_with("Dropped Rule"), "{}", dropped.message);
}
