//! What is needed for a new origin is shown by one that is in unit tests alone: `sample.rs` and its line here.

/// An origin.
mod sample;

pub(crate) use super::ingress::tests::{put, serve};
pub(crate) use sample::{KIND, SamplePolicy, put_sample};

use super::Origin;
use crate::compile::{Compiled, compile};
use crate::model::cluster::Policy;
use crate::model::verdict::Programmable;
use crate::model::{Claim, Facts, ObjectRef, Protocol};
use crate::settle::tests::{Scene, name, programmed};
use crate::sources::kubernetes::script::Script;
use expect_test::expect;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// In unit tests, behind the others.
pub(super) static TABLE: &[&dyn Origin] = &[&sample::Sample];

/// An object as the API server has it.
fn object(of: &str, host: &Value, port: u16) -> Value {
    let of = name(of);
    json!({
        "metadata": {"namespace": *of.namespace, "name": *of.name, "uid": "u", "generation": 7,
            "creationTimestamp": format!("2026-11-21T10:00:0{}Z", u8::from(&*of.namespace != "a")),
            "annotations": {"sample.example/listener": "web", "other.example/x": "y"}},
        "spec": {"host": host, "service": "web", "port": port},
        "status": {"conditions": []},
    })
}

fn line(claim: &Claim) -> String {
    let grants: Vec<String> =
        claim.grants.iter().map(|grant| format!("{} {:?}", grant.at(), grant.what)).collect();
    let refusals: Vec<String> =
        claim.refusals().iter().map(|refusal| format!("{:?} {:?}", refusal.address, refusal.why)).collect();
    let (route, tenant) = (claim.route.as_deref(), claim.tenant.as_deref());
    let (route, tenant) = (route.unwrap_or_default(), tenant.unwrap_or_default());
    format!("{} {route} {tenant} {} | {}", claim.part, grants.join(", "), refusals.join(", "))
}

/// From objects as they come over the wire to claims, verdicts and problems, by nothing that knows their kind.
#[tokio::test]
async fn an_origin_is_its_module_and_its_line() {
    let [row] = sample::Sample.watched() else { panic!("one kind") };
    let mut policy = Policy::default();
    policy.origins.set(SamplePolicy);
    let (script, mut store) = Script::of_controller(policy);
    let all = [
        object("a/new", &json!("x.example"), 443),
        object("a/gone", &json!("y.example"), 80),
        object("b/late", &json!("x.example"), 443),
        object("a/bad", &json!(7), 443),
    ];
    script.list_origin(row, &all);
    store.changed().await;
    let of = |object: &str| ObjectRef { kind: KIND, name: name(object) };
    assert_eq!(store.status(&of("a/new")).map(|stored| &stored.status), Some(&all[0]["status"]));
    assert_eq!(store.version(KIND), Some("v1"));
    assert_eq!(store.cluster().metas(KIND).count(), 4);
    assert_eq!(store.cluster().meta(&of("a/new")).map(|meta| meta.generation), Some(7));

    let mut scene = Scene::new();
    scene.file_listener("web", Protocol::Tls, &["192.0.2.200"], 443, None);
    scene.service("a/web", &["10.0.0.1"]);
    let cluster = scene.cluster();
    cluster.policy.origins.set(SamplePolicy);
    cluster.origins = store.cluster().origins.clone();
    cluster.problems = store.cluster().problems.clone();
    let Compiled { claims, verdicts, problems, .. } = compile(&scene.facts);
    let claims: Vec<String> =
        claims.iter().filter(|claim| claim.origin.object().is_some()).map(line).collect();
    expect![[r#"
        y.example/web sample/a/gone:y.example a 192.0.2.200:443 Names(Exact(ServerName("y.example"))) | 
        x.example/web sample/a/new:x.example a 192.0.2.200:443 Names(Exact(ServerName("x.example"))) | 
        x.example/web sample/b/late:x.example b  | Some(192.0.2.200) Lost(Object { created_secs: 1795255200, kind: Origin(Sample), name: ObjectName { namespace: "a", name: "new" } })"#]].assert_eq(&claims.join("\n"));
    let verdicts: Vec<String> = verdicts
        .origins
        .iter()
        .map(|(object, verdict)| {
            let (at, ports) = (&verdict.addresses, &verdict.ports);
            format!("{object} {} {at:?} {ports:?} {}", verdict.generation, programmed(&verdict.programmable))
        })
        .collect();
    expect![[r#"
        Sample a/bad 7 [] [] Programmed=False/Invalid
        Sample a/gone 7 [192.0.2.200] [443] programmable
        Sample a/new 7 [192.0.2.200] [443] programmable
        Sample b/late 7 [] [] Programmed=False/Invalid"#]]
    .assert_eq(&verdicts.join("\n"));
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    expect![[r#"
        warning: Sample a/bad: spec: does not have the shape of its kind: invalid type: integer `7`, expected a string; write it as its CRD says; until then it is taken as empty
        warning: Sample a/gone: spec: Service a/web has no port 80; change it
        warning: Sample b/late: spec: x.example on 192.0.2.200:443 belongs to Sample a/new; change it
        warning: Sample b/late: spec: Service b/web does not exist; change it"#]].assert_eq(&problems.join("\n"));
    assert_eq!(scene.backends("sample/a/new:x.example"), "10.0.0.1:6443 1");

    // One goes, and one is what it was.
    script.list_origin(row, &all[..3]);
    store.changed().await;
    assert_eq!(store.cluster().metas(KIND).count(), 3);
    assert_eq!((store.status(&of("a/bad")), &*store.cluster().problems), (None, &[][..]));
}

/// Its objects are not even asked for then.
#[test]
fn one_that_the_chart_says_nothing_to_is_not_served() {
    let mut scene = Scene::new();
    scene.file_listener("web", Protocol::Tls, &["192.0.2.200"], 443, None);
    put_sample(scene.cluster(), name("a/one"), "x.example");
    assert!(scene.compiled().verdicts.origins.is_empty());
    scene.cluster().policy.origins.set(SamplePolicy);
    let verdicts = scene.compiled().verdicts.origins;
    let [verdict] = verdicts.values().collect::<Vec<_>>()[..] else { panic!("{verdicts:?}") };
    assert_eq!(verdict.programmable, Programmable::Yes);
    let facts = Facts { cluster: None, ..scene.facts };
    assert!(compile(&facts).verdicts.origins.is_empty());
}

/// Objects are kept by resource: what one origin reads, another cannot read with a fold of its own.
#[test]
fn no_two_origins_read_one_resource() {
    let mut seen = BTreeSet::new();
    for row in super::all().flat_map(Origin::watched) {
        assert!(seen.insert(row.resource), "{row:?} is read twice");
    }
}
