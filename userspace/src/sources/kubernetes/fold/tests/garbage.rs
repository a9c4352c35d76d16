//! Whatever an object contains, folding it does not panic, what comes out keeps what the model promises, and the
//! number of problems is bounded.

use super::super::super::api::object::Object;
use super::super::{class, endpoint_slice, gateway, grant, listener_set, namespace, route, service};
use super::{defaults, fold_origin, interner};
use crate::model::{Kind, Problem};
use crate::origins;
use proptest::prelude::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

/// Any text, and texts that are nearly something.
fn text() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<String>().prop_map(Value::from),
        "\\PC{0,300}".prop_map(Value::from),
        "(\\*\\.)?[a-zA-Z0-9.:*_-]{0,80}".prop_map(Value::from),
        "[0-9]{1,3}(\\.[0-9]{1,3}){3}(, ?[0-9a-f:]{1,20})*".prop_map(Value::from),
        "(off|tcp|tls)(,(interval|timeout|failures|successes)=[0-9]{0,20}(ms|s|m|h)?)*".prop_map(Value::from),
        Just(json!("vestibule.dev/gateway-controller")),
        Just(json!("LoadBalancer")),
        Just(json!("vestibule.dev/lb")),
        Just(json!("IPv4")),
        Just(json!("IPv6")),
        Just(json!("Selector")),
        Just(Value::Null),
    ]
}

fn number() -> impl Strategy<Value = Value> {
    prop_oneof![any::<i64>().prop_map(Value::from), (0_u32..70_000).prop_map(Value::from), Just(Value::Null)]
}

fn list(of: impl Strategy<Value = Value>) -> impl Strategy<Value = Value> {
    prop_oneof![
        9 => prop::collection::vec(of, 0..4).prop_map(Value::from),
        1 => Just(Value::Null),
    ]
}

fn listener() -> impl Strategy<Value = Value> {
    (text(), text(), number(), text(), text(), (text(), text(), text(), text())).prop_map(
        |(name, hostname, port, protocol, mode, (from, key, operator, kind))| {
            json!({"name": name, "hostname": hostname, "port": port, "protocol": protocol, "tls": {"mode": mode},
                "allowedRoutes": {"namespaces": {"from": from, "selector": {"matchExpressions": [{"key": key, "operator": operator}]}},
                "kinds": [{"group": kind, "kind": kind}]}})
        },
    )
}

fn reference() -> impl Strategy<Value = Value> {
    (text(), text(), text(), text(), number(), number()).prop_map(
        |(group, kind, namespace, name, port, weight)| {
            json!({"group": group, "kind": kind, "namespace": namespace, "name": name, "port": port,
            "weight": weight, "sectionName": kind})
        },
    )
}

/// One spec with the fields of all kinds.
fn spec() -> impl Strategy<Value = Value> {
    let gateways = (text(), text(), list(listener()), list(reference()), list(text()));
    let services = (text(), list(reference()), text(), text(), list(text()));
    (gateways, services).prop_map(|((controller, class, listeners, refs, hostnames), (kind, ports, lb, ip, ranges))| {
        json!({"controllerName": controller, "gatewayClassName": class, "listeners": listeners, "addresses": refs,
            "parentRefs": refs, "parentRef": refs.get(0), "hostnames": hostnames, "rules": [{"backendRefs": refs, "host": hostnames.get(0), "http": {"paths": [{"path": class, "backend": {"service": refs.get(0)}}]}}],
            "ingressClassName": class,
            "from": refs, "to": refs, "allowedListeners": {"namespaces": {"from": class}}, "type": kind, "ports": ports,
            "loadBalancerClass": lb, "loadBalancerIP": ip, "loadBalancerSourceRanges": ranges})
    })
}

pub(crate) fn object() -> impl Strategy<Value = Value> {
    let meta = (text(), text(), text(), text(), number(), text());
    let slice = (text(), list(text()), number());
    (meta, slice, spec()).prop_map(|((name, namespace, created, probe, generation, label), (family, addresses, port), spec)| {
        let texts = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        json!({"metadata": {"name": name, "namespace": namespace, "creationTimestamp": created, "generation": generation,
                "annotations": {"vestibule.dev/probe": texts(&probe), "vestibule.dev/addresses": texts(&label), "other": "x"},
                "labels": {"kubernetes.io/service-name": texts(&label)}},
            "addressType": family, "endpoints": [{"addresses": addresses, "hints": {"forZones": [{"name": label}]}}],
            "ports": [{"name": name, "port": port}], "spec": spec, "status": {"addresses": [{"value": probe}]}})
    })
}

/// A value somewhere in the object is replaced by one of another type.
pub(crate) fn broken() -> impl Strategy<Value = Value> {
    let other =
        prop_oneof![Just(json!(7)), Just(json!("x")), Just(json!([])), Just(json!({})), Just(json!(true))];
    const FIELDS: [&str; 6] = ["spec", "status", "endpoints", "ports", "addressType", "strange"];
    (object(), prop::sample::select(&FIELDS[..]), other).prop_map(|(mut object, field, other)| {
        object[field] = other;
        object
    })
}

fn read<B: DeserializeOwned>(object: &Value) -> super::super::super::api::object::Raw<B> {
    // Through text, as it comes from the API server.
    serde_json::from_str::<Object<B, true>>(&object.to_string()).unwrap().0
}

fn fold_as_everything(object: &Value) {
    let interner = interner();
    let mut problems: Vec<Vec<Problem>> = vec![
        class(read(object), &interner).1,
        grant(read(object), &interner).1,
        namespace(read(object), &interner).1,
        route(Kind::TcpRoute, read(object), &interner).1,
    ];
    let (gateway, told) = gateway(read(object), &interner);
    problems.push(told);
    let (set, told) = listener_set(read(object), &interner);
    problems.push(told);
    assert!(gateway.listeners.iter().chain(&set.listeners).all(|listener| listener.port != 0));
    let (route, told) = route(Kind::TlsRoute, read(object), &interner);
    problems.push(told);
    assert!(route.has_hostnames || route.hostnames.is_empty());
    assert!(
        route.rules.iter().flatten().all(|backend| backend.port != Some(0) && backend.weight <= 1_000_000)
    );
    let (service, told) = service(read(object), &defaults(), &interner);
    problems.push(told);
    assert!(service.ports.iter().all(|port| port.port != 0));
    let of_origins = origins::all().flat_map(|origin| origin.watched());
    problems.extend(of_origins.map(|row| fold_origin(row, object).1));
    let (slice, told) = endpoint_slice(read(object), &interner);
    problems.push(told);
    for endpoint in slice.endpoints.iter() {
        assert!(endpoint.port != 0 && !endpoint.address.is_loopback() && !endpoint.address.is_multicast());
    }
    for problem in problems.iter().flatten() {
        assert!(
            !problem.what.is_empty() && !problem.remedy.is_empty() && problem.value.chars().count() <= 253
        );
    }
    assert!(problems.iter().all(|problems| problems.len() <= 16));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn garbage_in_every_string_does_not_panic(object in object()) {
        fold_as_everything(&object);
    }

    #[test]
    fn another_shape_does_not_panic(object in broken()) {
        fold_as_everything(&object);
    }
}
