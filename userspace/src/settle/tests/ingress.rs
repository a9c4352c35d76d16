//! Ingresses on listeners of the chart.

use super::*;
use expect_test::expect;

/// A scene with listeners `https` (both families) and `api` of the chart, on which Ingresses are served, and an IngressClass of ours.
fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.file_listener("https", Protocol::Tls, &["192.0.2.200", "2001:db8::200"], 443, None);
    scene.file_listener("api", Protocol::Tls, &["192.0.2.200"], 6443, None);
    let cluster = scene.cluster();
    cluster.policy.ingress.listeners = vec!["https".into(), "api".into()];
    cluster.ingress.classes.insert("ours".into());
    scene.service("a/web", &["10.0.0.1"]);
    scene.service("b/web", &["10.0.0.2"]);
    scene
}

/// Adds an Ingress of a class with these `host service[:port]`.
fn ingress<'s>(
    scene: &'s mut Scene,
    object: &str,
    age: i64,
    class: &str,
    rules: &[&str],
) -> &'s mut IngressSpec {
    let rule = |(at, text): (usize, &&str)| {
        let (host, backend) = text.split_once(' ').unwrap();
        let (service, port) = backend.split_once(':').unwrap_or((backend, "443"));
        let number = port.parse().map(IngressPort::Number);
        let port = number.unwrap_or_else(|_| IngressPort::Name(port.into()));
        IngressRule { at, host: pattern(host), service: service.into(), port }
    };
    let spec = IngressSpec {
        meta: meta(object, age),
        class: Some(class.into()),
        is_passthrough: false,
        rules: rules.iter().enumerate().map(rule).collect(),
    };
    Arc::make_mut(scene.cluster().ingress.all.entry(name(object)).or_insert(Arc::new(spec)))
}

/// `addresses ports programmable [status]`.
fn verdict(scene: &Scene, object: &str) -> String {
    let verdicts = scene.compiled().verdicts.ingresses;
    let Some(verdict) = verdicts.get(&name(object)) else { return "not served".to_owned() };
    let addresses: Vec<_> = verdict.addresses.iter().map(ToString::to_string).collect();
    let status = if verdict.writes_status { " status" } else { "" };
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
    scene.cluster().policy.ingress.adopt = vec![adopt("nginx", true, false), adopt("haproxy", false, true)];
    ingress(&mut scene, "a/other", 1, "traefik", &["1.example web"]);
    ingress(&mut scene, "a/plain", 1, "nginx", &["2.example web"]);
    ingress(&mut scene, "a/annotated", 1, "nginx", &["3.example web"]).is_passthrough = true;
    ingress(&mut scene, "a/all", 1, "haproxy", &["4.example web"]);
    ingress(&mut scene, "a/without", 1, "", &["5.example web"]).class = None;
    assert_eq!(verdict(&scene, "a/other"), "not served");
    assert_eq!(verdict(&scene, "a/plain"), "not served");
    assert_eq!(verdict(&scene, "a/without"), "not served");
    assert_eq!(verdict(&scene, "a/annotated"), "[192.0.2.200 2001:db8::200] [443, 6443] programmable");
    assert_eq!(verdict(&scene, "a/all"), "[192.0.2.200 2001:db8::200] [443, 6443] programmable status");
    scene.cluster().policy.ingress.listeners.clear();
    assert_eq!(verdict(&scene, "a/all"), "not served");
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
    scene.cluster().policy.ingress.listeners = vec!["https".into()];
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
    ingress(&mut scene, "b/new", 2, "ours", &[]).meta.created_secs = 0;
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
