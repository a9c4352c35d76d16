//! Ingresses on listeners of the chart.

use super::super::spec::{AdoptedClass, IngressPolicy, IngressSpec, Passthrough};
use super::super::{INGRESSES, Ingress, KIND, status};
use super::{serve, spec};
use crate::model::service::ServicePort;
use crate::model::{ObjectRef, Opaque, OriginObject, Protocol, claim};
use crate::origins::Origin;
use crate::settle::tests::{Scene, meta, name, programmed};
use crate::sources::kubernetes::value::PROBLEMS_MAX;
use expect_test::expect;
use serde_json::{Value, json};
use std::sync::Arc;

/// A scene with listeners `https` (both families) and `api` of the chart, on which Ingresses are served, and an IngressClass of ours.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.file_listener("https", Protocol::Tls, &["192.0.2.200", "2001:db8::200"], 443, None);
    scene.file_listener("api", Protocol::Tls, &["192.0.2.200"], 6443, None);
    serve(scene.cluster(), &["https", "api"]);
    scene.service("a/web", &["10.0.0.1"]);
    scene.service("b/web", &["10.0.0.2"]);
    scene
}

/// Puts in an Ingress of a class with these `host service[:port]`.
fn ingress(scene: &mut Scene, object: &str, age: i64, class: &str, rules: &[&str]) {
    ingress_with(scene, object, age, spec(class, rules));
}

fn ingress_with(scene: &mut Scene, object: &str, age: i64, spec: IngressSpec) {
    let object = OriginObject { meta: meta(object, age), says: Opaque::new(spec) };
    scene.cluster().origins.put(INGRESSES, object);
}

/// `addresses ports programmable [status]`.
fn verdict(scene: &Scene, object: &str) -> String {
    let verdicts = scene.compiled().verdicts.origins;
    let Some(verdict) = verdicts.get(&ObjectRef { kind: KIND, name: name(object) }) else {
        return "not served".to_owned();
    };
    let addresses: Vec<_> = verdict.addresses.iter().map(ToString::to_string).collect();
    let status = if verdict.says.get::<status::Manner>().unwrap().is_written { " status" } else { "" };
    let programmed = programmed(&verdict.programmable);
    format!("[{}] {:?} {programmed}{status}", addresses.join(" "), verdict.ports)
}

#[test]
fn hosts_are_served_on_all_listeners_of_the_chart() {
    let mut scene = scene();
    ingress(&mut scene, "a/i", 1, "ours", &["a.example web", "+.a.example web:p443"]);
    expect![[r#"
        192.0.2.200:443 Tls *.a.example (one label) -> ingress/a/i:*.a.example, a.example -> ingress/a/i:a.example
        192.0.2.200:6443 Tls *.a.example (one label) -> ingress/a/i:*.a.example, a.example -> ingress/a/i:a.example
        [2001:db8::200]:443 Tls *.a.example (one label) -> ingress/a/i:*.a.example, a.example -> ingress/a/i:a.example"#]]
    .assert_eq(&scene.bindings());
    assert_eq!(scene.backends("ingress/a/i:a.example"), "10.0.0.1:6443 1");
    assert_eq!(scene.backends("ingress/a/i:*.a.example"), "10.0.0.1:6443 1");
    assert_eq!(verdict(&scene, "a/i"), "[192.0.2.200 2001:db8::200] [443, 6443] programmable status");
    assert_eq!(scene.problems(), "");
    let claims = scene.compiled().claims;
    let parts: Vec<&str> =
        claims.iter().filter(|claim| claim.origin.object().is_some()).map(|claim| &*claim.part).collect();
    assert_eq!(
        parts,
        ["a.example/https", "a.example/api", "*.a.example (one label)/https", "*.a.example (one label)/api"]
    );
}

#[test]
fn only_ingresses_of_our_class_and_of_adopted_ones_are_served() {
    let mut scene = scene();
    let adopt = |class: &str, is_annotated_only, writes_status| AdoptedClass {
        class: class.into(),
        is_annotated_only,
        writes_status,
    };
    let policy = IngressPolicy {
        listeners: vec!["https".into(), "api".into()],
        adopt: vec![adopt("nginx", true, false), adopt("haproxy", false, true)],
    };
    scene.cluster().policy.origins.set(policy);
    ingress(&mut scene, "a/other", 1, "traefik", &["1.example web"]);
    ingress(&mut scene, "a/plain", 1, "nginx", &["2.example web"]);
    let annotated = IngressSpec { passthrough: Passthrough::Yes, ..spec("nginx", &["3.example web"]) };
    ingress_with(&mut scene, "a/annotated", 1, annotated);
    let unclear = IngressSpec { passthrough: Passthrough::Unclear, ..spec("nginx", &["6.example web"]) };
    ingress_with(&mut scene, "a/unclear", 1, unclear);
    ingress(&mut scene, "a/all", 1, "haproxy", &["4.example web"]);
    let without = IngressSpec { class: None, ..spec("", &["5.example web"]) };
    ingress_with(&mut scene, "a/without", 1, without);
    assert_eq!(verdict(&scene, "a/other"), "not served");
    assert_eq!(verdict(&scene, "a/plain"), "not served");
    assert_eq!(verdict(&scene, "a/without"), "not served");
    assert_eq!(verdict(&scene, "a/annotated"), "[192.0.2.200 2001:db8::200] [443, 6443] programmable");
    assert_eq!(verdict(&scene, "a/all"), "[192.0.2.200 2001:db8::200] [443, 6443] programmable status");
    // One with a verdict has Events; its status is left to whom it belongs.
    assert_eq!(verdict(&scene, "a/unclear"), "[] [] Programmed=False/Invalid");
    assert!(!scene.bindings().contains("6.example"), "{}", scene.bindings());
    scene.cluster().policy.origins.set(IngressPolicy::default());
    assert_eq!(verdict(&scene, "a/all"), "not served");
    assert!(Ingress.is_on(&scene.cluster().policy), "read, so that what we wrote into a status is taken out");
}

#[test]
fn a_host_has_one_owner_and_the_other_is_told_who() {
    let mut scene = scene();
    scene.file_route("static", "https", &["taken.example"], "10.9.9.9");
    ingress(&mut scene, "a/old", 1, "ours", &["x.example web"]);
    ingress(
        &mut scene,
        "b/new",
        2,
        "ours",
        &["x.example web", "taken.example web", "kubernetes.default web"],
    );
    serve(scene.cluster(), &["https"]);
    expect![[r#"
        192.0.2.200:443 Tls taken.example -> static, x.example -> ingress/a/old:x.example
        192.0.2.200:6443 Tls
        [2001:db8::200]:443 Tls taken.example -> static, x.example -> ingress/a/old:x.example"#]]
    .assert_eq(&scene.bindings());
    assert!(
        verdict(&scene, "b/new").starts_with("[] [] Programmed=False/Invalid"),
        "{}",
        verdict(&scene, "b/new")
    );
    expect![[r#"
        warning: Ingress b/new: spec.rules[0].host: x.example on 192.0.2.200:443 belongs to Ingress a/old (value "x.example"); choose another name, or remove it where it is
        warning: Ingress b/new: spec.rules[1].host: taken.example on 192.0.2.200:443 belongs to route static of the static file (value "taken.example"); choose another name, or remove it where it is
        warning: Ingress b/new: spec.rules[2].host: kubernetes.default is a name of the cluster's own API server, which no tenant may have (value "kubernetes.default"); choose another name, or remove it where it is"#]]
    .assert_eq(scene.problems().split("\nwarning: routes[0]").next().unwrap());
    // The namespace that has a name keeps it, even if the other's object is older.
    let claims = scene.compiled().claims;
    let had: Vec<_> = claims.iter().filter(|claim| claim.origin.object().is_some()).cloned().collect();
    let rules = ["x.example web", "taken.example web", "kubernetes.default web"];
    ingress(&mut scene, "b/new", 0, "ours", &rules);
    assert!(scene.bindings().contains("x.example -> ingress/b/new:x.example"), "{}", scene.bindings());
    scene.cluster().possession = claim::possession(&had);
    assert!(scene.bindings().contains("x.example -> ingress/a/old:x.example"), "{}", scene.bindings());
}

#[test]
fn a_backend_that_is_not_there_refuses_what_its_host_gets() {
    let mut scene = scene();
    let rules = ["1.example gone", "2.example web:80", "3.example web:https", "4.example web"];
    ingress(&mut scene, "a/i", 1, "ours", &rules);
    assert_eq!(scene.backends("ingress/a/i:1.example"), "", "it has its name, and no backend");
    assert_eq!(scene.backends("ingress/a/i:4.example"), "10.0.0.1:6443 1");
    expect![[r#"
        warning: Ingress a/i: spec.rules[0].http: Service a/gone does not exist; connections to 1.example are refused; write a Service and port that exist
        warning: Ingress a/i: spec.rules[1].http: Service a/web has no port 80; connections to 2.example are refused; write a Service and port that exist
        warning: Ingress a/i: spec.rules[2].http: Service a/web has no port https; connections to 3.example are refused; write a Service and port that exist"#]]
    .assert_eq(&scene.problems());
    assert_eq!(verdict(&scene, "a/i"), "[192.0.2.200 2001:db8::200] [443, 6443] programmable status");
}

#[test]
fn what_the_maps_have_no_room_for_is_not_programmed() {
    let mut scene = scene();
    scene.facts.settings.max_names = 3;
    ingress(&mut scene, "a/old", 1, "ours", &["1.example web"]);
    ingress(&mut scene, "a/new", 2, "ours", &["2.example web"]);
    assert!(verdict(&scene, "a/old").contains(" programmable"), "{}", verdict(&scene, "a/old"));
    assert!(
        verdict(&scene, "a/new").contains("Programmed=False/NoResources"),
        "{}",
        verdict(&scene, "a/new")
    );
}

#[test]
fn only_what_we_have_written_is_cleared_when_vestibule_is_withdrawn() {
    let mut scene = scene();
    let ours = ["192.0.2.200:443".parse().unwrap()].into();
    let ports = json!([{"port": 443, "protocol": "TCP"}]);
    let written = json!({"ip": "192.0.2.200", "ports": ports});
    // Of a controller behind our listener.
    let published = json!({"ip": "192.0.2.200"});
    // One that is not served any more may have been until now.
    for class in ["ours", "theirs"] {
        let object = OriginObject { meta: meta("a/i", 1), says: Opaque::new(spec(class, &[])) };
        let withdrawn = |entry: &Value| {
            let current = json!({"loadBalancer": {"ingress": [entry]}});
            Ingress.withdrawn(&scene.facts.cluster.clone().unwrap(), &object, &current, &ours, "now")
        };
        assert_eq!(withdrawn(&written), Some(json!({"loadBalancer": {"ingress": null}})), "{class}");
        assert_eq!(withdrawn(&published), None, "{class}");
    }
    assert!(scene.cluster().origins.of(INGRESSES).next().is_none());
}

/// Five Events a second are written for the whole cluster: one object with thousands of hosts would hold up all others'.
#[test]
fn an_ingress_has_no_more_problems_than_any_object() {
    let mut scene = scene();
    let rules: Vec<String> = (0..40).map(|rule| format!("h{rule}.example gone")).collect();
    ingress(&mut scene, "a/i", 1, "ours", &rules.iter().map(String::as_str).collect::<Vec<_>>());
    assert_eq!(scene.problems().lines().count(), PROBLEMS_MAX, "{}", scene.problems());
}

#[test]
fn a_port_by_name_is_tcp() {
    let mut scene = scene();
    let port = |name: &str, is_tcp| {
        let protocol = if is_tcp { "TCP" } else { "UDP" };
        ServicePort { name: name.into(), port: 53, is_tcp, protocol: protocol.into() }
    };
    let service = scene.cluster().services.get_mut(&name("a/web")).unwrap();
    Arc::make_mut(service).ports = vec![port("udp", false), port("tcp", true)];
    ingress(&mut scene, "a/i", 1, "ours", &["1.example web:udp", "2.example web:tcp"]);
    assert_eq!(scene.backends("ingress/a/i:1.example"), "");
    assert!(scene.problems().contains("Service a/web: port udp is not TCP"), "{}", scene.problems());
    assert_eq!(scene.problems().lines().count(), 1, "{}", scene.problems());
}

#[test]
fn what_is_wrong_with_a_service_is_told_where_an_ingress_that_is_served_leads_to_it() {
    use crate::model::{Kind, Problem};
    let mut scene = scene();
    ingress(&mut scene, "a/ours", 1, "ours", &["1.example web"]);
    ingress(&mut scene, "b/theirs", 1, "theirs", &["2.example web"]);
    for object in ["a/web", "b/web"] {
        let service = ObjectRef { kind: Kind::Service, name: name(object) };
        scene
            .cluster()
            .problems
            .push(Problem::warning("spec.ports[0]", "is wrong", "correct it").object(service));
    }
    assert_eq!(scene.problems(), "warning: Service a/web: spec.ports[0]: is wrong; correct it");
}
