use super::super::{class, gateway, grant, listener_set, namespace, route};
use super::{interner, lines, raw};
use crate::model::Kind;
use crate::model::cluster::{NamespaceScope, Operator};

#[test]
fn a_gateway_is_read_with_its_defaults() {
    let text = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: g, namespace: ns, uid: u-1, generation: 7, creationTimestamp: "2026-11-21T20:00:00Z"}
spec:
  gatewayClassName: vestibule
  addresses: [{value: 192.0.2.1}, {type: Hostname, value: a.example}, {type: IPAddress, value: ""}]
  infrastructure: {parametersRef: {group: "", kind: ConfigMap, name: x}}
  listeners:
  - {name: tls, protocol: TLS, port: 443, hostname: "*.Example.com", tls: {mode: Passthrough}}
  - {name: terminate, protocol: TLS, port: 444, hostname: "", tls: {certificateRefs: []}}
  - {name: http, protocol: HTTP, port: 80, allowedRoutes: {namespaces: {from: All}, kinds: [{kind: TLSRoute}, {group: "", kind: Other}]}}
status:
  addresses: [{type: IPAddress, value: 192.0.2.1}, {value: "2001:db8::1"}, {type: Hostname, value: 192.0.2.3}, {value: x}]
"#;
    let (gateway, problems) = gateway(raw(text), &interner());
    assert_eq!(lines(&problems), Vec::<String>::new());
    assert_eq!(
        (gateway.meta.generation, gateway.meta.created_secs, &*gateway.meta.uid),
        (7, 1_795_291_200, "u-1")
    );
    assert_eq!(&*gateway.class, "vestibule");
    assert!(gateway.has_parameters);
    assert_eq!(gateway.allowed_listeners, NamespaceScope::None);
    let asked: Vec<_> = gateway.addresses.iter().map(|a| (&*a.kind, a.value.as_deref())).collect();
    assert_eq!(
        asked,
        [("IPAddress", Some("192.0.2.1")), ("Hostname", Some("a.example")), ("IPAddress", None)]
    );
    assert_eq!(
        gateway.given.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["192.0.2.1", "2001:db8::1"]
    );
    let [tls, terminate, http] = &gateway.listeners[..] else { panic!("{:?}", gateway.listeners) };
    assert_eq!(tls.hostname.as_ref().unwrap().to_string(), "*.example.com");
    assert_eq!((tls.tls_mode.as_deref(), &tls.namespaces), (Some("Passthrough"), &NamespaceScope::Same));
    assert_eq!((terminate.tls_mode.as_deref(), &terminate.hostname), (Some("Terminate"), &None));
    assert_eq!((http.tls_mode.as_deref(), &http.namespaces), (None, &NamespaceScope::All));
    let kinds: Vec<_> = http.kinds.iter().map(|k| (&*k.group, &*k.kind)).collect();
    assert_eq!(kinds, [("gateway.networking.k8s.io", "TLSRoute"), ("", "Other")]);
}

#[test]
fn a_bad_listener_leaves_the_others() {
    let text = r#"
metadata: {name: g, namespace: ns}
spec:
  listeners:
  - {name: a, protocol: TLS, port: 443, hostname: "a b"}
  - {name: b, protocol: TLS, port: 70000}
  - {name: c, protocol: TLS, port: 443, allowedRoutes: {namespaces: {from: Everyone}}}
  - {name: d, protocol: TLS, port: 443, allowedRoutes: {namespaces: {from: Selector}}}
  - {name: e, protocol: TLS, port: 443, allowedRoutes: {namespaces: {from: Selector, selector: {matchExpressions: [{key: x, operator: Near}]}}}}
  - {name: f, protocol: TLS, port: 443, hostname: 10.0.0.1}
  - {name: g, protocol: TCP, port: 9000}
"#;
    let (gateway, problems) = gateway(raw(text), &interner());
    let left: Vec<_> = gateway.listeners.iter().map(|l| (&*l.name, &l.namespaces)).collect();
    let (none, same) = (&NamespaceScope::None, &NamespaceScope::Same);
    assert_eq!(left, [("c", none), ("d", none), ("e", none), ("g", same)]);
    let told = lines(&problems).join("\n");
    for part in [
        "Gateway ns/g: spec.listeners[0].hostname: ",
        "spec.listeners[1].port: is not a TCP port (value \"70000\")",
        "spec.listeners[2].allowedRoutes.namespaces.from: is not known (value \"Everyone\")",
        "spec.listeners[3].allowedRoutes.namespaces.selector: is missing",
        "spec.listeners[4].allowedRoutes.namespaces.selector.matchExpressions[0].operator: is not known",
        "spec.listeners[5].hostname: ",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
}

#[test]
fn selectors_hold_labels_and_expressions() {
    let text = r#"
metadata: {name: g, namespace: ns}
spec:
  allowedListeners:
    namespaces:
      from: Selector
      selector:
        matchLabels: {a: b}
        matchExpressions: [{key: c, operator: In, values: [d, e]}, {key: f, operator: NotIn, values: [g]}, {key: h, operator: Exists}, {key: i, operator: DoesNotExist}]
"#;
    let (gateway, _) = gateway(raw(text), &interner());
    let NamespaceScope::Selector(selector) = gateway.allowed_listeners else { panic!() };
    let w = |text: &str| text.into();
    let operators: Vec<_> =
        selector.requirements.into_iter().map(|r| (r.key.to_string(), r.operator)).collect();
    assert_eq!(
        operators,
        [
            ("a".to_owned(), Operator::In(vec![w("b")])),
            ("c".to_owned(), Operator::In(vec![w("d"), w("e")])),
            ("f".to_owned(), Operator::NotIn(vec![w("g")])),
            ("h".to_owned(), Operator::Exists),
            ("i".to_owned(), Operator::DoesNotExist),
        ]
    );
}

#[test]
fn a_route_is_read_as_written() {
    let text = r#"
metadata: {name: r, namespace: ns, generation: 2}
spec:
  parentRefs: [{name: g}, {name: s, kind: ListenerSet, namespace: m, sectionName: tls, port: 443}, {name: bad, port: 0}]
  hostnames: [A.example.com, "*.b.example.com", "a..b", a.example.com, kubernetes]
  rules:
  - backendRefs: [{name: api, port: 6443}, {name: old, port: 6443, weight: 0, namespace: other}]
  - backendRefs: [{name: x, kind: Other, group: g, port: 99999, weight: -1}]
"#;
    for kind in [Kind::TlsRoute, Kind::TcpRoute] {
        let (route, problems) = route(kind, raw(text), &interner());
        assert_eq!(route.parents.len(), 2);
        assert_eq!((route.parents[0].kind.as_deref(), route.parents[0].port), (None, None));
        assert_eq!((route.parents[1].section.as_deref(), route.parents[1].port), (Some("tls"), Some(443)));
        let names: Vec<_> = route.hostnames.iter().map(ToString::to_string).collect();
        assert_eq!(names, ["a.example.com", "*.b.example.com", "kubernetes"]);
        assert!(route.has_hostnames);
        let backends: Vec<_> =
            route.rules.iter().flatten().map(|b| (&*b.name, &*b.kind, b.port, b.weight)).collect();
        assert_eq!(
            backends,
            [("api", "Service", Some(6443), 1), ("old", "Service", Some(6443), 0), ("x", "Other", None, 1)]
        );
        let told = lines(&problems);
        assert!(
            told[0].contains(&format!("{kind} ns/r: spec.parentRefs[2].port: is not a TCP port")),
            "{told:?}"
        );
        assert!(told[1].contains("spec.hostnames[2]: "), "{told:?}");
        assert!(told[2].contains("spec.rules[1].backendRefs[0].port: "), "{told:?}");
        assert!(told[3].contains("spec.rules[1].backendRefs[0].weight: is out of range"), "{told:?}");
        assert_eq!(told.len(), 4);
    }
}

#[test]
fn a_route_of_unreadable_names_does_not_match_every_name() {
    let (route, _) = route(
        Kind::TlsRoute,
        raw("metadata: {name: r, namespace: ns}\nspec: {hostnames: ['a b']}\n"),
        &interner(),
    );
    assert!(route.hostnames.is_empty() && route.has_hostnames);
}

#[test]
fn an_object_of_another_shape_is_taken_as_empty_and_told() {
    let (gateway, problems) =
        gateway(raw("metadata: {name: g, namespace: ns}\nspec: {listeners: 7}\n"), &interner());
    assert!(gateway.listeners.is_empty());
    assert!(
        lines(&problems)[0].contains("Gateway ns/g: spec: does not have the shape of its kind"),
        "{problems:?}"
    );
}

#[test]
fn classes_of_other_controllers_are_nothing_to_us() {
    let text = |controller: &str| {
        format!("metadata: {{name: c}}\nspec: {{controllerName: {controller}, parametersRef: {{kind: X}}}}\n")
    };
    let ours = class(raw(&text("vestibule.dev/gateway-controller")), &interner()).0.unwrap();
    assert_eq!((ours.meta.name.to_string(), ours.has_parameters), ("c".to_owned(), true));
    assert_eq!(class(raw(&text("example.com/other")), &interner()).0, None);
    assert_eq!(class(raw("metadata: {name: c}\n"), &interner()).0, None);
}

#[test]
fn sets_grants_and_namespaces_are_read() {
    let text = "metadata: {name: s, namespace: ns}\nspec: {parentRef: {name: g, namespace: m}, listeners: [{name: a, port: 1, protocol: TCP}]}\n";
    let (set, _) = listener_set(raw(text), &interner());
    assert_eq!(
        (&*set.parent.name, set.parent.namespace.as_deref(), set.listeners.len()),
        ("g", Some("m"), 1)
    );
    let text = "metadata: {name: s, namespace: ns}\nspec: {from: [{group: g, kind: TLSRoute, namespace: m}], to: [{group: '', kind: Service, name: x}, {kind: Service, name: ''}]}\n";
    let (grant, _) = grant(raw(text), &interner());
    assert_eq!((&*grant.from[0].0.kind, &*grant.from[0].1), ("TLSRoute", "m"));
    assert_eq!((grant.to[0].1.as_deref(), grant.to[1].1.as_deref()), (Some("x"), None));
    let (labels, _) = namespace(raw("metadata: {name: ns, labels: {a: b}}\n"), &interner());
    assert_eq!(labels.get("a").map(|value| &**value), Some("b"));
}
