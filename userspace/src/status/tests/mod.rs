mod routes;

use super::*;
use crate::model::cluster::{GroupKind, ParentRef};
use crate::model::verdict::{
    ClassVerdict, Condition, GatewayVerdict, ListenerSetVerdict, ListenerVerdict, ParentVerdict,
    Programmable, RouteVerdict, ServiceVerdict, Status,
};
use crate::model::{Kind, ObjectName, ObjectRef};
use crate::settle::OWNED;
use serde_json::json;
use std::net::IpAddr;

const BEFORE: &str = "2026-11-20T10:00:00Z";
const NOW: &str = "2026-11-21T10:00:00Z";

fn condition(kind: &'static str, status: Status, reason: &'static str) -> Condition {
    Condition { kind, status, reason, message: format!("{kind} is {reason}") }
}

fn accepted() -> Condition {
    condition("Accepted", Status::True, "Accepted")
}

/// Returns what the API server stores after applying the patch to `current`.
fn stored(current: &Value, patch: &Value) -> Value {
    let (Value::Object(_), Value::Object(patch)) = (current, patch) else { return patch.clone() };
    let mut next = current.clone();
    for (name, value) in patch {
        let fields = next.as_object_mut().unwrap();
        if value.is_null() {
            fields.remove(name);
            continue;
        }
        let old = fields.get(name).cloned().unwrap_or(json!({}));
        fields.insert(name.clone(), stored(&old, value));
    }
    next
}

/// Returns the status after the desired patch is written. Asserts that nothing is written a second time.
fn settled(current: &Value, desired: impl Fn(&Value, &str) -> Option<Value>) -> Value {
    let Some(patch) = desired(current, NOW) else { return current.clone() };
    let next = stored(current, &patch);
    assert_ne!(&next, current, "a write that changes nothing");
    assert_eq!(desired(&next, "2026-11-22T10:00:00Z"), None, "a second write");
    next
}

fn find<'a>(list: &'a Value, field: &str, value: &str) -> &'a Value {
    elements(Some(list)).iter().find(|one| text(one, field) == value).unwrap_or(&Value::Null)
}

fn gateway() -> GatewayVerdict {
    GatewayVerdict {
        generation: 7,
        addresses: vec![],
        conditions: vec![accepted(), condition("ResolvedRefs", Status::True, "ResolvedRefs")],
        programmable: Programmable::Yes,
        listeners: vec![
            listener("tls", None),
            listener("http", Some(condition("Programmed", Status::False, "Invalid"))),
        ],
        attached_listener_sets: 0,
    }
}

fn listener(name: &str, unprogrammable: Option<Condition>) -> ListenerVerdict {
    ListenerVerdict {
        name: name.into(),
        supported_kinds: vec![GroupKind {
            group: "gateway.networking.k8s.io".into(),
            kind: "TLSRoute".into(),
        }],
        attached_routes: 3,
        conditions: vec![accepted()],
        unprogrammable,
    }
}

fn addresses(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

/// A status with the defaults of the CRD.
fn fresh() -> Value {
    let waiting = |kind: &str| {
        json!({"type": kind, "status": "Unknown", "reason": "Pending", "message": "Waiting for controller",
               "lastTransitionTime": "1970-01-01T00:00:00Z"})
    };
    json!({"conditions": [waiting("Accepted"), waiting("Programmed")]})
}

#[test]
fn a_gateway_gets_everything_and_then_nothing_more() {
    let given = addresses(&["192.0.2.1", "2001:db8::1"]);
    let status = settled(&fresh(), |current, now| {
        gateway::desired_status(current, &gateway(), &given, &Progress::Everywhere, now)
    });
    assert_eq!(
        status["addresses"],
        json!([{"type": "IPAddress", "value": "192.0.2.1"}, {"type": "IPAddress", "value": "2001:db8::1"}])
    );
    for kind in ["Accepted", "Programmed", "ResolvedRefs"] {
        let one = find(&status["conditions"], "type", kind);
        assert_eq!((&one["status"], &one["observedGeneration"]), (&json!("True"), &json!(7)), "{kind}");
        assert_eq!(one["lastTransitionTime"], NOW);
    }
    let tls = find(&status["listeners"], "name", "tls");
    assert_eq!(find(&tls["conditions"], "type", "Programmed")["status"], "True");
    assert_eq!(tls["attachedRoutes"], 3);
    assert_eq!(tls["supportedKinds"], json!([{"group": "gateway.networking.k8s.io", "kind": "TLSRoute"}]));
    let http = find(&status["listeners"], "name", "http");
    assert_eq!(find(&http["conditions"], "type", "Programmed")["reason"], "Invalid");
    assert!(status.get("attachedListenerSets").is_none(), "older CRDs do not know it");
}

#[test]
fn a_transition_moves_only_the_condition_that_changed() {
    let desired = |progress: &Progress, current: &Value, now: &str| {
        gateway::desired_status(current, &gateway(), &[], progress, now)
    };
    let pending = Progress::Missing(vec![("node-b".to_owned(), None)].into());
    let first = stored(&fresh(), &desired(&pending, &fresh(), BEFORE).unwrap());
    let one = find(&first["conditions"], "type", "Programmed");
    assert_eq!((&one["status"], &one["reason"]), (&json!("False"), &json!("Pending")));
    assert!(text(one, "message").contains("node-b"), "{one}");
    let second = settled(&first, |current, now| desired(&Progress::Everywhere, current, now));
    let time = |status: &Value, kind| find(&status["conditions"], "type", kind)["lastTransitionTime"].clone();
    assert_eq!((time(&second, "Accepted"), time(&second, "Programmed")), (json!(BEFORE), json!(NOW)));
    let lost = settled(&second, |current, now| desired(&Progress::NoAgents, current, now));
    assert_eq!(find(&lost["conditions"], "type", "Programmed")["reason"], "NoResources");
    let tls = find(&lost["listeners"], "name", "tls");
    assert_eq!(find(&tls["conditions"], "type", "Programmed")["reason"], "Pending");
    // A different message or generation alone is no transition.
    let newer = GatewayVerdict { generation: 8, ..gateway() };
    let third = settled(&second, |current, now| {
        gateway::desired_status(current, &newer, &[], &Progress::Everywhere, now)
    });
    assert_eq!(time(&third, "Programmed"), json!(NOW));
    assert_eq!(find(&third["conditions"], "type", "Accepted")["observedGeneration"], 8);
}

#[test]
fn conditions_of_others_stay_and_ours_that_are_not_judged_go() {
    let foreign = json!({"type": "example.com/Audited", "status": "False", "reason": "No", "message": "x",
                         "lastTransitionTime": BEFORE, "observedGeneration": 1});
    let stale = json!({"type": "vestibule.dev/Owned", "status": "False", "reason": "NotOwned", "message": "x",
                       "lastTransitionTime": BEFORE, "observedGeneration": 1});
    let current = json!({"conditions": [foreign, stale],
                         "listeners": [{"name": "tls", "conditions": [foreign], "attachedRoutes": 0},
                                       {"name": "gone", "conditions": [foreign], "attachedRoutes": 0}]});
    let status = settled(&current, |current, now| {
        gateway::desired_status(current, &gateway(), &[], &Progress::Everywhere, now)
    });
    assert_eq!(find(&status["conditions"], "type", "example.com/Audited"), &foreign);
    assert_eq!(find(&status["conditions"], "type", OWNED), &Value::Null);
    let tls = find(&status["listeners"], "name", "tls");
    assert_eq!(find(&tls["conditions"], "type", "example.com/Audited"), &foreign);
    assert_eq!(find(&status["listeners"], "name", "gone"), &Value::Null);
}

#[test]
fn a_condition_that_stands_there_twice_stands_there_once_after() {
    let old = json!({"type": "Accepted", "status": "True", "reason": "Accepted", "message": "x",
                     "lastTransitionTime": BEFORE});
    let status = settled(&json!({"conditions": [old, old]}), |current, now| {
        class::desired_status(
            current,
            &ClassVerdict { generation: 1, conditions: vec![accepted()] },
            None,
            now,
        )
    });
    let conditions = elements(status.get("conditions"));
    assert_eq!(conditions.len(), 1);
    assert_eq!(conditions[0]["lastTransitionTime"], BEFORE);
}

#[test]
fn addresses_go_when_nothing_is_given_any_more() {
    let current = json!({"addresses": [{"type": "IPAddress", "value": "192.0.2.1"}]});
    let status = settled(&current, |current, now| {
        gateway::desired_status(current, &gateway(), &[], &Progress::NoAgents, now)
    });
    assert_eq!(status["addresses"], json!([]));
}

#[test]
fn what_cannot_be_programmed_says_why_whatever_nodes_hold() {
    let refusal = condition("Programmed", Status::False, "AddressNotUsable");
    let verdict = GatewayVerdict { programmable: Programmable::No(refusal), ..gateway() };
    let status = settled(&fresh(), |current, now| {
        gateway::desired_status(current, &verdict, &[], &Progress::Everywhere, now)
    });
    assert_eq!(find(&status["conditions"], "type", "Programmed")["reason"], "AddressNotUsable");
    let tls = find(&status["listeners"], "name", "tls");
    assert_eq!(find(&tls["conditions"], "type", "Programmed")["status"], "False");
}

#[test]
fn a_listener_set_is_told_like_a_gateway() {
    let verdict = ListenerSetVerdict {
        generation: 2,
        conditions: vec![accepted()],
        programmable: Programmable::Yes,
        listeners: vec![listener("a", None)],
    };
    let status = settled(&fresh(), |current, now| {
        listener_set::desired_status(current, &verdict, &Progress::Everywhere, now)
    });
    assert_eq!(find(&status["conditions"], "type", "Programmed")["status"], "True");
    assert_eq!(status["listeners"][0]["name"], "a");
}

#[test]
fn a_class_lists_its_features_sorted() {
    let verdict = ClassVerdict { generation: 1, conditions: vec![accepted()] };
    let with = |bundle: Option<&str>| {
        settled(&fresh(), |current, now| class::desired_status(current, &verdict, bundle, now))
    };
    let version = |bundle| find(&with(bundle)["conditions"], "type", "SupportedVersion")["status"].clone();
    assert_eq!(version(None), Value::Null);
    assert_eq!((version(Some("v1.6.3")), version(Some("v1.0.0-rc1"))), (json!("True"), json!("True")));
    for unknown in ["v1.7.0", "v2.0.0", "v0.8.1", "1.6", ""] {
        assert_eq!(version(Some(unknown)), "False", "{unknown}");
    }
    let status = with(None);
    let names: Vec<&str> =
        elements(status.get("supportedFeatures")).iter().map(|one| text(one, "name")).collect();
    assert!(names.is_sorted() && names.contains(&"TLSRoute"), "{names:?}");
}

fn service(programmable: Programmable) -> ServiceVerdict {
    ServiceVerdict {
        addresses: addresses(&["192.0.2.9", "2001:db8::9"]),
        ports: vec![443, 6443],
        programmable,
    }
}

#[test]
fn a_service_gets_its_ingress_once_every_node_agrees() {
    let verdict = service(Programmable::Yes);
    let pending = Progress::Missing(vec![("n1".to_owned(), Some("bpf is refused".to_owned()))].into());
    let waiting = settled(&json!({"loadBalancer": {}}), |current, now| {
        service::desired_status(current, &verdict, &pending, now)
    });
    assert_eq!(waiting["loadBalancer"], json!({}));
    let why = find(&waiting["conditions"], "type", "vestibule.dev/Programmed");
    assert_eq!(why["reason"], "Pending");
    assert!(text(why, "message").contains("n1: bpf is refused"), "{why}");
    let served = settled(&waiting, |current, now| {
        service::desired_status(current, &verdict, &Progress::Everywhere, now)
    });
    let ports = json!([{"port": 443, "protocol": "TCP"}, {"port": 6443, "protocol": "TCP"}]);
    assert_eq!(
        served["loadBalancer"]["ingress"],
        json!([{"ip": "192.0.2.9", "ipMode": "Proxy", "ports": ports},
               {"ip": "2001:db8::9", "ipMode": "Proxy", "ports": ports}])
    );
    // A new node does not remove the address. An address that is no longer requested disappears at once.
    let again = settled(&served, |current, now| service::desired_status(current, &verdict, &pending, now));
    assert_eq!(again["loadBalancer"], served["loadBalancer"]);
    let moved = ServiceVerdict { addresses: addresses(&["192.0.2.9", "192.0.2.10"]), ..verdict.clone() };
    let moving = settled(&served, |current, now| service::desired_status(current, &moved, &pending, now));
    let ingress = elements(moving.pointer("/loadBalancer/ingress"));
    assert_eq!(ingress.iter().map(|one| text(one, "ip")).collect::<Vec<_>>(), ["192.0.2.9"]);
}

#[test]
fn a_service_that_is_refused_loses_its_ingress() {
    let refusal = condition("Programmed", Status::False, "Invalid");
    let verdict = service(Programmable::No(refusal));
    let current = json!({"loadBalancer": {"ingress": [{"ip": "192.0.2.9"}]}});
    let status = settled(&current, |current, now| {
        service::desired_status(current, &verdict, &Progress::Everywhere, now)
    });
    assert_eq!(status["loadBalancer"], json!({}));
    assert_eq!(status["conditions"][0]["reason"], "Invalid");
    let never = settled(&Value::Null, |current, now| {
        service::desired_status(current, &verdict, &Progress::Everywhere, now)
    });
    assert!(never.get("loadBalancer").is_none(), "{never}");
}

#[test]
fn progress_is_what_live_nodes_hold() {
    let object = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("ns", "gw") };
    let held = |claims_version| Held { claims_version, ..Held::default() };
    let version = 10;
    let mut nodes = Nodes::default();
    assert_eq!(nodes.counted().progress(&object, version), Progress::NoAgents);
    nodes.live.insert("a".to_owned(), held(10));
    assert_eq!(nodes.counted().progress(&object, version), Progress::Everywhere);
    nodes.live.insert("b".to_owned(), held(9));
    assert_eq!(
        nodes.counted().progress(&object, version),
        Progress::Missing(vec![("b".to_owned(), None)].into())
    );
    nodes.live.remove("b");
    nodes.unknown.insert("b".to_owned(), "it is silent".into());
    let why = Some("it is silent".to_owned());
    assert_eq!(
        nodes.counted().progress(&object, version),
        Progress::Missing(vec![("b".to_owned(), why)].into())
    );
    nodes.unknown.clear();
    let complaint = |object: Option<&str>| Complaint {
        object: object.map(str::to_owned),
        missing: false,
        text: format!("about {object:?}"),
        ..Complaint::default()
    };
    let complaints =
        vec![complaint(Some("Gateway/ns/other")), complaint(None), complaint(Some("Gateway/ns/gw"))];
    nodes.live.insert("b".to_owned(), Held { complaints, ..Held::default() });
    let Progress::Missing(missing) = nodes.counted().progress(&object, version) else {
        panic!("not missing")
    };
    assert_eq!(missing.named[0].1.as_deref(), Some("about Some(\"Gateway/ns/gw\")"));
}

/// What a node reports that it does not hold counts, whatever version of the Claims it has.
#[test]
fn a_node_lacks_what_it_makes_an_exception_of() {
    let object = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("ns", "gw") };
    let complaint = |object: Option<&str>, missing| Complaint {
        object: object.map(str::to_owned),
        missing,
        text: "its element is gone".to_owned(),
        ..Complaint::default()
    };
    let with = |complaints| {
        let held = Held { claims_version: 10, complaints, ..Held::default() };
        Nodes { live: [("a".to_owned(), held)].into(), ..Nodes::default() }
    };
    let lacks = Progress::Missing(vec![("a".to_owned(), Some("its element is gone".to_owned()))].into());
    for (complaints, progress) in [
        (vec![], Progress::Everywhere),
        (vec![complaint(Some("Gateway/ns/gw"), false), complaint(None, false)], Progress::Everywhere),
        (vec![complaint(Some("Gateway/ns/other"), true)], Progress::Everywhere),
        (vec![complaint(None, false), complaint(Some("Gateway/ns/gw"), true)], lacks.clone()),
        (vec![complaint(None, true)], lacks),
    ] {
        let nodes = with(complaints);
        assert_eq!(nodes.counted().progress(&object, 10), progress, "{nodes:?}");
    }
}

#[test]
fn a_message_names_at_most_eight_nodes() {
    let missing: Vec<(String, Option<String>)> =
        (10..30).map(|number| (format!("node{number}"), None)).collect();
    let status = settled(&fresh(), |current, now| {
        gateway::desired_status(current, &gateway(), &[], &Progress::Missing(missing.clone().into()), now)
    });
    let message = text(find(&status["conditions"], "type", "Programmed"), "message");
    assert!(message.contains("node17") && !message.contains("node18"), "{message}");
    assert!(message.ends_with("and 12 more"), "{message}");
    // Of ten thousand objects, each would keep the names of five hundred nodes.
    let live = missing.iter().map(|(node, _)| (node.clone(), Held::default())).collect();
    let nodes = Nodes { live, ..Nodes::default() };
    let object = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("ns", "gw") };
    let Progress::Missing(kept) = nodes.counted().progress(&object, 1) else { panic!("not missing") };
    assert_eq!((kept.count, kept.named.len()), (20, 8));
    assert_eq!(nodes.missing(key(&object), 1).count(), 20);
}
