//! What the maps have no room for.

use super::super::compile_at_most;
use super::*;
use crate::compile::part::FilePart;
use crate::model::claim::Why;
use crate::settle::Most;
use crate::settle::tests::conditions::programmable;

fn programmed(compiled: &Compiled, gateway: &str) -> Option<Condition> {
    match &compiled.verdicts.gateways[&name(gateway)].programmable {
        Programmable::Yes => None,
        Programmable::No(condition) => Some(condition.clone()),
    }
}

fn told<'a>(compiled: &'a Compiled, object: &str) -> Vec<&'a str> {
    let of = |problem: &&Problem| problem.object.as_ref().is_some_and(|own| own.to_string() == object);
    compiled.problems.iter().filter(of).map(|problem| &*problem.what).collect()
}

#[test]
fn a_gateway_whose_route_is_left_out_is_not_programmed_and_others_are() {
    let mut scene = Scene::new();
    for (own, age) in [("a", 1), ("b", 2), ("c", 3)] {
        scene.gateway(&format!("{own}/gw"), 1, &format!("192.0.2.{age}"), &["tls TLS:443"]);
        scene.service(&format!("{own}/s"), &["10.0.0.1"]);
        scene.tls(&format!("{own}/r"), age, &["gw"], &[&format!("{own}.example.com")], &["s:443"]);
    }
    let balancer = LoadBalancerSpec { addresses: vec![ip("192.0.2.9")], ..LoadBalancerSpec::default() };
    scene.service("c/lb", &["10.0.0.2"]).load_balancer = Some(Arc::new(balancer));
    Arc::make_mut(scene.cluster().services.get_mut(&name("c/lb")).unwrap()).meta.created_secs = 9;
    let all = ["Gateway a/gw", "Gateway b/gw", "Gateway c/gw", "Service c/lb"];
    let before = scene.compiled();
    assert_eq!(programmable(&before), all);

    scene.facts.settings.max_names = 2;
    let compiled = scene.compiled();
    let names: Vec<&str> = compiled.desired.routes.iter().map(|route| &*route.name).collect();
    assert!(names.contains(&"tlsroute/b/r") && !names.contains(&"tlsroute/c/r"), "{names:?}");
    let condition = programmed(&compiled, "c/gw").unwrap();
    assert_eq!((condition.reason, condition.status), ("NoResources", Status::False));
    assert!(condition.message.contains("tlsroute/c/r"), "{condition:?}");
    assert_eq!(programmed(&compiled, "b/gw"), None);
    assert_eq!(programmable(&compiled), all[..2], "no node says that it holds what is left out");
    assert_eq!(told(&compiled, "TLSRoute c/r").len(), 1);
    let service = &compiled.verdicts.services[&name("c/lb")].programmable;
    assert!(matches!(service, Programmable::No(no) if no.reason == "NoResources"), "{service:?}");
    // Their Claims say so, too, and keep what they were granted: nobody else gets it.
    let without_room = |claim: &Claim| claim.refusals().iter().filter(|own| own.why == Why::NoRoom).count();
    for (old, new) in before.claims.iter().zip(&compiled.claims) {
        let origin = new.origin.object().unwrap().to_string();
        let refused = if ["TLSRoute c/r", "Service c/lb"].contains(&&*origin) { 1 } else { 0 };
        assert_eq!(
            (&new.grants, without_room(new), without_room(old)),
            (&old.grants, refused, 0),
            "{origin}"
        );
    }
    let names: Vec<_> =
        compiled.claims.iter().flat_map(|claim| claim.refusals()).map(|own| &own.names).collect();
    assert_eq!(names, [&Some(pattern("c.example.com")), &None]);
}

#[test]
fn doors_beyond_the_maps_are_refused_to_the_newest_and_told_on_the_object() {
    let mut scene = Scene::new();
    scene.gateway("a/old", 1, "192.0.2.1", &["tls TLS:443", "tcp TCP:9000"]);
    scene.gateway("b/new", 2, "192.0.2.2", &["tls TLS:443", "tcp TCP:9000"]);
    let balancer = LoadBalancerSpec { addresses: vec![ip("192.0.2.9")], ..LoadBalancerSpec::default() };
    let service = scene.service("c/lb", &["10.0.0.2"]);
    service.load_balancer = Some(Arc::new(balancer));
    service.meta.created_secs = 9;
    let at_most = |bindings, addresses| {
        let cluster = scene.facts.cluster.as_ref().unwrap();
        compile_at_most(
            &FilePart::new(&scene.facts),
            cluster,
            &scene.facts.node,
            Most { bindings, addresses },
        )
    };
    for (bindings, addresses, open) in [(9, 9, 5), (3, 9, 3), (9, 1, 2), (0, 0, 0)] {
        let compiled = at_most(bindings, addresses);
        assert_eq!(compiled.desired.listeners.len(), open);
        let refused = |kind: &str| if open == 5 { 0 } else { told(&compiled, kind).len() };
        assert_eq!(programmed(&compiled, "b/new").is_some(), open < 4);
        assert_eq!(programmed(&compiled, "a/old").is_some(), open == 0);
        assert_eq!(refused("Service c/lb"), usize::from(open < 5));
        assert_eq!(refused("Gateway b/new"), 4_usize.saturating_sub(open).min(2));
    }
    let compiled = at_most(3, 9);
    let condition = programmed(&compiled, "b/new").unwrap();
    assert_eq!(condition.reason, "NoResources");
    assert!(condition.message.contains("192.0.2.2:9000"), "{condition:?}");
    let listeners = &compiled.verdicts.gateways[&name("b/new")].listeners;
    assert_eq!(listeners[0].unprogrammable, None);
    assert_eq!(listeners[1].unprogrammable.as_ref().unwrap().reason, "NoResources");
    assert!(
        matches!(&compiled.verdicts.services[&name("c/lb")].programmable, Programmable::No(no) if no.reason == "NoResources")
    );
}
