//! Conditions of classes, Gateways and ListenerSets, as upstream's conformance suite requires them.

use super::*;
use expect_test::expect;

fn gateway(listeners: &[&str]) -> String {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", listeners);
    scene.gateway_conditions("a/g")
}

#[test]
fn classes_with_parameters_are_refused_and_so_are_their_gateways() {
    let mut scene = Scene::new();
    let class = ClassSpec {
        meta: Meta { generation: 3, ..Meta::default() },
        has_parameters: true,
        ..ClassSpec::default()
    };
    scene.cluster().classes.insert("bad".into(), Arc::new(class));
    scene.gateway("a/g", 1, "192.0.2.1", &["l TLS:443"]).class = "bad".into();
    scene.gateway("a/foreign", 1, "192.0.2.2", &["l TLS:443"]).class = "foreign".into();
    scene.tls("a/r", 1, &["g", "foreign"], &["x.example.com"], &[]);
    let verdicts = scene.compiled().verdicts;
    assert_eq!(conditions(&verdicts.classes["ours"].conditions), "Accepted");
    assert_eq!(conditions(&verdicts.classes["bad"].conditions), "Accepted=False/InvalidParameters");
    assert_eq!(verdicts.classes["bad"].generation, 3);
    expect![[r#"
        Accepted=False/InvalidParameters ResolvedRefs Programmed=False/Invalid sets=0 []
          l: Accepted ResolvedRefs routes=1 kinds=TLSRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/g"));
    assert_eq!(scene.gateway_conditions("a/foreign"), "none");
    // One entry: the other parent is judged by another controller.
    assert_eq!(scene.tls_conditions("a/r"), "Accepted=False/NoMatchingParent ResolvedRefs");
    assert_eq!(scene.bindings(), "");
}

#[test]
fn listeners_of_other_protocols_get_their_refusal() {
    expect![[r#"
        Accepted=False/ListenersNotValid ResolvedRefs Programmed=False/Invalid sets=0 [192.0.2.1]
          a: Accepted=False/UnsupportedProtocol ResolvedRefs routes=0 kinds= Programmed=False/Invalid
          b: Accepted=False/UnsupportedProtocol ResolvedRefs routes=0 kinds= Programmed=False/Invalid
          c: Accepted=False/UnsupportedProtocol ResolvedRefs routes=0 kinds= Programmed=False/Invalid
          d: Accepted=False/UnsupportedValue ResolvedRefs routes=0 kinds= Programmed=False/Invalid"#]]
    .assert_eq(&gateway(&["a HTTP:80", "b HTTPS:443", "c UDP:53", "d TLS:443 Terminate"]));
    // One valid listener is enough.
    expect![[r#"
        Accepted=True/ListenersNotValid ResolvedRefs programmable sets=0 [192.0.2.1]
          good: Accepted ResolvedRefs routes=0 kinds=TLSRoute
          bad: Accepted=False/UnsupportedProtocol ResolvedRefs routes=0 kinds= Programmed=False/Invalid"#]]
    .assert_eq(&gateway(&["good TLS:443", "bad INVALID:1111"]));
}

#[test]
fn kinds_that_a_listener_cannot_have_are_told() {
    expect![[r#"
        Accepted ResolvedRefs=False/ListenersNotResolved programmable sets=0 [192.0.2.1]
          some: Accepted ResolvedRefs=False/InvalidRouteKinds routes=0 kinds=TLSRoute
          none: Accepted ResolvedRefs=False/InvalidRouteKinds routes=0 kinds= Programmed=False/Invalid
          tcp: Accepted ResolvedRefs routes=0 kinds=TCPRoute"#]]
    .assert_eq(&gateway(&[
        "some TLS:443 kinds=TCPRoute,TLSRoute",
        "none TLS:444 kinds=HTTPRoute",
        "tcp TCP:1",
    ]));
    expect![[r#"
        Accepted ResolvedRefs=False/ListenersNotResolved Programmed=False/Invalid sets=0 [192.0.2.1]
          none: Accepted ResolvedRefs=False/InvalidRouteKinds routes=0 kinds= Programmed=False/Invalid"#]]
    .assert_eq(&gateway(&["none TLS:444 kinds=HTTPRoute"]));
}

#[test]
fn of_listeners_of_one_gateway_that_conflict_none_is_preferred() {
    expect![[r#"
        Accepted=True/ListenersNotValid ResolvedRefs programmable sets=0 [192.0.2.1]
          a: Accepted=False/HostnameConflict Conflicted=True/HostnameConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/HostnameConflict
          b: Accepted=False/HostnameConflict Conflicted=True/HostnameConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/HostnameConflict
          c: Accepted ResolvedRefs routes=0 kinds=TLSRoute
          d: Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/ProtocolConflict
          e: Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict ResolvedRefs routes=0 kinds=TCPRoute Programmed=False/ProtocolConflict
          f: Accepted=False/ListenerConflict Conflicted=True/ListenerConflict ResolvedRefs routes=0 kinds=TCPRoute Programmed=False/ListenerConflict
          g: Accepted=False/ListenerConflict Conflicted=True/ListenerConflict ResolvedRefs routes=0 kinds=TCPRoute Programmed=False/ListenerConflict"#]]
    .assert_eq(&gateway(&[
        "a TLS:443:x.example.com",
        "b TLS:443:x.example.com",
        "c TLS:443:*.example.com",
        "d TLS:444",
        "e TCP:444",
        "f TCP:1",
        "g TCP:1",
    ]));
    // A listener that is not served anyway conflicts with no other.
    expect![[r#"
        Accepted=True/ListenersNotValid ResolvedRefs programmable sets=0 [192.0.2.1]
          a: Accepted ResolvedRefs routes=0 kinds=TLSRoute
          b: Accepted=False/UnsupportedValue ResolvedRefs routes=0 kinds= Programmed=False/Invalid"#]]
    .assert_eq(&gateway(&["a TLS:443", "b TLS:443 Terminate"]));
}

#[test]
fn a_route_on_a_conflicted_listener_counts_but_is_not_accepted() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["a TLS:443", "b TLS:443", "c TLS:444"]);
    scene.tls("a/r", 1, &["g#a"], &["x.example.com"], &[]);
    assert_eq!(scene.tls_conditions("a/r"), "Accepted=False/NotAllowedByListeners ResolvedRefs");
    assert_eq!(scene.compiled().verdicts.gateways[&name("a/g")].listeners[0].attached_routes, 1);
}

#[test]
fn addresses_that_are_not_to_be_had() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "198.51.100.1 192.0.2.1", &["l TLS:443"]);
    scene.tls("a/r", 1, &["g"], &["x.example.com"], &[]);
    // The usable address is served.
    expect!["192.0.2.1:443 Tls x.example.com -> tlsroute/a/r"].assert_eq(&scene.bindings());
    expect![[r#"
        Accepted ResolvedRefs Programmed=False/AddressNotUsable sets=0 [192.0.2.1]
          l: Accepted ResolvedRefs routes=1 kinds=TLSRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/g"));
    let custom = AddressRequest { kind: "example.com/custom".into(), value: Some("x".into()) };
    scene.gateway("a/g", 1, "", &[]).addresses.insert(0, custom);
    expect![[r#"
        Accepted=False/UnsupportedAddress ResolvedRefs Programmed=False/Invalid sets=0 []
          l: Accepted ResolvedRefs routes=1 kinds=TLSRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/g"));
    assert_eq!(scene.bindings(), "");
}

#[test]
fn an_address_is_in_status_before_it_is_served() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "", &["l TLS:443"]);
    expect![[r#"
        Accepted ResolvedRefs Programmed=False/AddressNotAssigned sets=0 [192.0.2.1 2001:db8::1]
          l: Accepted ResolvedRefs routes=0 kinds=TLSRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/g"));
    assert_eq!(scene.bindings(), "");
    scene.gateway("a/g", 1, "", &[]).given = vec![ip("192.0.2.1"), ip("2001:db8::1")];
    assert!(scene.gateway_conditions("a/g").starts_with("Accepted ResolvedRefs programmable"));
    expect![[r#"
        192.0.2.1:443 Tls
        [2001:db8::1]:443 Tls"#]]
    .assert_eq(&scene.bindings());
    // In the status of two objects: the older one has it.
    scene.gateway("a/older", 0, "", &["l TLS:443"]).given = vec![ip("192.0.2.1")];
    assert!(scene.gateway_conditions("a/g").contains("[192.0.2.2 2001:db8::1]"));
    scene.cluster().policy.ranges.clear();
    expect![[r#"
        Accepted ResolvedRefs Programmed=False/AddressNotAssigned sets=0 []
          l: Accepted ResolvedRefs routes=0 kinds=TLSRoute"#]]
    .assert_eq(&scene.gateway_conditions("a/g"));
}

/// Upstream's ListenerSet tests, with TLS and TCP listeners.
#[test]
fn listener_sets_come_after_their_gateway_the_oldest_first() {
    let mut scene = Scene::new();
    scene
        .gateway("a/g", 1, "192.0.2.1", &["own TLS:443:own.com", "shared TLS:443:shared.com", "tcp TCP:1"])
        .allowed_listeners = NamespaceScope::All;
    scene.listener_set(
        "b/second",
        2,
        "a/g",
        &["own TLS:443:b.com", "x TLS:443:shared.com", "y TLS:443:set.com"],
    );
    scene.listener_set("a/third", 3, "g", &["own TLS:443:third.com", "y TLS:443:set.com", "z TLS:1"]);
    scene.listener_set("a/fourth", 4, "g", &["y TLS:443:set.com"]);
    expect![[r#"
        Accepted=True/ListenersNotValid programmable
          own: Accepted ResolvedRefs routes=0 kinds=TLSRoute
          x: Accepted=False/HostnameConflict Conflicted=True/HostnameConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/HostnameConflict
          y: Accepted ResolvedRefs routes=0 kinds=TLSRoute"#]]
    .assert_eq(&scene.set_conditions("b/second"));
    expect![[r#"
        Accepted=True/ListenersNotValid programmable
          own: Accepted ResolvedRefs routes=0 kinds=TLSRoute
          y: Accepted=False/HostnameConflict Conflicted=True/HostnameConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/HostnameConflict
          z: Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/ProtocolConflict"#]]
    .assert_eq(&scene.set_conditions("a/third"));
    expect![[r#"
        Accepted=False/ListenersNotValid Programmed=False/ListenersNotValid
          y: Accepted=False/HostnameConflict Conflicted=True/HostnameConflict ResolvedRefs routes=0 kinds=TLSRoute Programmed=False/HostnameConflict"#]]
    .assert_eq(&scene.set_conditions("a/fourth"));
    let first = scene.gateway_conditions("a/g");
    assert!(first.starts_with("Accepted ResolvedRefs programmable sets=2 "), "{first}");
}

/// Upstream's ListenerSetProtocolConflict: a listener that lost to another object does not affect the others
/// of its own object.
#[test]
fn a_listener_that_lost_to_another_object_is_in_nobodys_way() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["own TLS:443:own.com"]).allowed_listeners = NamespaceScope::All;
    scene.listener_set("a/set", 2, "g", &["tls TLS:443:set.com", "tcp TCP:443"]);
    expect![[r#"
        Accepted=True/ListenersNotValid programmable
          tls: Accepted ResolvedRefs routes=0 kinds=TLSRoute
          tcp: Accepted=False/ProtocolConflict Conflicted=True/ProtocolConflict ResolvedRefs routes=0 kinds=TCPRoute Programmed=False/ProtocolConflict"#]]
    .assert_eq(&scene.set_conditions("a/set"));
}

#[test]
fn listener_sets_need_leave_and_an_accepted_gateway() {
    let mut scene = Scene::new();
    scene.gateway("a/closed", 1, "192.0.2.1", &["own TLS:443"]).allowed_listeners = NamespaceScope::None;
    scene.gateway("a/some", 1, "192.0.2.2", &["own TLS:443"]).allowed_listeners = scope("team");
    scene.gateway("a/bad", 1, "192.0.2.3", &["own HTTP:80"]).allowed_listeners = NamespaceScope::All;
    scene.gateway("a/poor", 1, "198.51.100.1", &["own TLS:443"]).allowed_listeners = NamespaceScope::All;
    let listeners = ["l TLS:8443 from=All"];
    scene.listener_set("a/closed", 1, "closed", &listeners);
    scene.listener_set("b/some", 1, "a/some", &listeners);
    scene.listener_set("c/some", 1, "a/some", &listeners);
    scene.listener_set("b/bad", 1, "a/bad", &listeners);
    scene.listener_set("b/poor", 1, "a/poor", &listeners);
    scene.listener_set("b/nobody", 1, "a/nobody", &listeners);
    let one = |object| scene.set_conditions(object).lines().next().unwrap().to_owned();
    assert_eq!(one("a/closed"), "Accepted=False/NotAllowed Programmed=False/NotAllowed");
    assert_eq!(one("b/some"), "Accepted=False/NotAllowed Programmed=False/NotAllowed");
    assert_eq!(one("c/some"), "Accepted programmable");
    assert_eq!(one("b/bad"), "Accepted=False/ParentNotAccepted Programmed=False/ParentNotProgrammed");
    assert_eq!(one("b/poor"), "Accepted Programmed=False/ParentNotProgrammed");
    assert_eq!(one("b/nobody"), "none");
    // Its listeners are not listeners of the Gateway.
    assert_eq!(scene.set_conditions("a/closed").lines().count(), 1);
    for (object, expected) in
        [("a/closed", "NoMatchingParent"), ("c/some", ""), ("b/bad", "NoMatchingParent")]
    {
        let mut scene = Scene { facts: scene.facts.clone() };
        scene.tls("a/r", 1, &[&format!("ListenerSet {object}")], &["x.example.com"], &[]);
        let accepted =
            if expected.is_empty() { "Accepted".to_owned() } else { format!("Accepted=False/{expected}") };
        assert_eq!(scene.tls_conditions("a/r"), format!("{accepted} ResolvedRefs"), "{object}");
    }
}

#[test]
fn routes_attach_to_a_gateway_or_to_its_set_and_not_to_both_by_accident() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 1, "192.0.2.1", &["own TLS:443:own.example.com"]).allowed_listeners =
        NamespaceScope::Same;
    scene.listener_set("a/set", 1, "g", &["of-set TLS:443:*.set.example.com", "more TLS:8443"]);
    scene.tls("a/both", 1, &["g", "ListenerSet set"], &["*.example.com"], &[]);
    scene.tls("a/wrong", 1, &["g#of-set", "ListenerSet set#of-set"], &["x.set.example.com"], &[]);
    expect![[r#"
        192.0.2.1:443 Tls *.set.example.com -> tlsroute/a/both, own.example.com -> tlsroute/a/both, x.set.example.com -> tlsroute/a/wrong
        192.0.2.1:8443 Tls *.example.com -> tlsroute/a/both"#]]
    .assert_eq(&scene.bindings());
    expect![[r#"
        Accepted=False/NoMatchingParent ResolvedRefs
        Accepted ResolvedRefs"#]]
    .assert_eq(&scene.tls_conditions("a/wrong"));
    let keys: Vec<_> = programmable(&scene.compiled());
    assert_eq!(keys, ["Gateway a/g", "ListenerSet a/set"]);
    // A route is no part of what its parents claim themselves.
    let own = |scene: &Scene| {
        let claims = scene.compiled().claims;
        claims.into_iter().filter(|claim| claim.backends == claim::ClaimBackends::None).collect::<Vec<_>>()
    };
    let before = own(&scene);
    scene.tls("a/wrong", 1, &["ListenerSet set#of-set"], &["y.set.example.com"], &[]);
    assert_eq!(own(&scene), before);
}

/// Objects that nodes are to hold.
pub(crate) fn programmable(compiled: &Compiled) -> Vec<String> {
    let Verdicts { gateways, listener_sets, services, .. } = &compiled.verdicts;
    let gateways = gateways.iter().map(|(name, verdict)| (Kind::Gateway, name, &verdict.programmable));
    let sets = listener_sets.iter().map(|(name, verdict)| (Kind::ListenerSet, name, &verdict.programmable));
    let services = services.iter().map(|(name, verdict)| (Kind::Service, name, &verdict.programmable));
    let all = gateways.chain(sets).chain(services).filter(|(.., own)| **own == Programmable::Yes);
    all.map(|(kind, name, _)| format!("{kind} {name}")).collect()
}
