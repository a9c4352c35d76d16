//! Between namespaces, possession comes before age: nobody loses what it has by what another namespace does.

use super::order::{NAMESPACES, Object, gateway, object, scene};
use super::*;
use crate::ipam;
use crate::model::claim::{ClaimBackends, Granted, possession};
use crate::sources::kubernetes::script::stored;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// The addresses that statuses of Gateways say.
type Said = BTreeMap<ObjectName, Vec<IpAddr>>;

/// Settles again, after what was granted before, where statuses say these addresses. Returns what they say then, as the controller writes it.
fn after(mut scene: Scene, before: &[Claim], said: &Said) -> (Vec<Claim>, Said) {
    let cluster = scene.cluster();
    cluster.possession = possession(before);
    for (name, gateway) in &mut cluster.gateways {
        Arc::make_mut(gateway).given = said.get(name).cloned().unwrap_or_default();
    }
    let given = ipam::assign(cluster).gateways;
    let said = given.into_iter().map(|(name, given)| (name, given.addresses)).collect();
    (scene.compiled().claims, said)
}

/// As many cases as `PROPTEST_CASES` says, or some hundreds.
fn cases() -> ProptestConfig {
    let config = ProptestConfig::default();
    let cases = match std::env::var_os("PROPTEST_CASES") {
        Some(_) => config.cases,
        None if cfg!(debug_assertions) => 200,
        None => 3000,
    };
    ProptestConfig { cases, ..config }
}

/// Returns the namespace that has each key, and through which Gateway.
fn holders(claims: &[Claim]) -> BTreeMap<String, BTreeSet<(String, String)>> {
    let mut holders: BTreeMap<String, BTreeSet<(String, String)>> = BTreeMap::new();
    for claim in claims {
        // The static file's listeners are nobody's.
        let Some(object) = claim.origin.object() else { continue };
        let namespace = object.name.namespace.to_string();
        for grant in &claim.grants {
            // Several may answer at an address and port where the protocol is TLS.
            let key = match &grant.what {
                Granted::Binding if grant.protocol == Protocol::Tls => continue,
                // What a listener keeps from others leads nowhere.
                Granted::Names(_) if claim.backends == ClaimBackends::None => continue,
                // A part of a wider pattern goes to a route that asks for just that part: the more specific one.
                Granted::Names(pattern) if !claim.asked.as_ref().unwrap().matches.contains(pattern) => {
                    continue;
                }
                what => format!("{} {what:?}", grant.at()),
            };
            holders.entry(key).or_default().insert((namespace.clone(), claim.part.to_string()));
        }
    }
    holders
}

fn claim<'a>(compiled: &'a Compiled, object: &str) -> &'a Claim {
    let is = |claim: &&Claim| claim.origin.object().is_some_and(|of| of.to_string() == object);
    compiled.claims.iter().find(is).unwrap()
}

#[test]
fn an_older_service_that_is_edited_to_name_a_live_address_gets_nothing_and_is_told_who_has_it() {
    let mut scene = Scene::new();
    let balancer = |addresses: &[&str]| {
        let addresses = addresses.iter().map(|text| ip(text)).collect();
        Some(Arc::new(LoadBalancerSpec { addresses, ..LoadBalancerSpec::default() }))
    };
    scene.service("a/young", &["10.0.0.1"]).load_balancer = balancer(&["192.0.2.7"]);
    Arc::make_mut(scene.cluster().services.get_mut(&name("a/young")).unwrap()).meta.created_secs = 9;
    scene.service("b/old", &["10.0.0.2"]).load_balancer = balancer(&["192.0.2.8"]);
    let before = scene.compiled().claims;
    scene.service("b/old", &["10.0.0.2"]).load_balancer = balancer(&["192.0.2.7", "192.0.2.8"]);
    scene.cluster().possession = possession(&before);
    let now = scene.compiled();
    assert_eq!(claim(&now, "Service a/young").grants, claim_of(&before, "a/young").grants);
    assert_eq!(claim(&now, "Service b/old").grants, claim_of(&before, "b/old").grants, "it keeps the other");
    let told = scene.problems();
    assert!(told.contains("192.0.2.7 belongs to Service a/young, which has it"), "{told}");
    // Without possession the older one has it.
    scene.cluster().possession = Possession::default();
    assert_ne!(scene.compiled().claims, now.claims);
    // Where the young one no longer wants it, the other gets it.
    scene.cluster().possession = possession(&now.claims);
    scene.cluster().services.remove(&name("a/young"));
    assert_eq!(claim(&scene.compiled(), "Service b/old").grants.len(), 4);
}

fn claim_of<'a>(claims: &'a [Claim], object: &str) -> &'a Claim {
    claims.iter().find(|claim| claim.origin.object().unwrap().name == name(object)).unwrap()
}

#[test]
fn a_name_is_kept_from_another_namespace_and_not_from_an_older_route_of_ones_own() {
    let mut scene = Scene::new();
    scene.gateway("c/g", 1, "192.0.2.1", &["tls TLS:443 from=All"]);
    scene.service("a/s", &["10.0.0.1"]);
    scene.tls("a/young", 9, &["c/g"], &["x.example.com"], &["s:443"]);
    let before = scene.compiled().claims;
    for (other, has_it) in [("b/old", "tlsroute/a/young"), ("a/old", "tlsroute/a/old")] {
        scene.tls(other, 2, &["c/g"], &["x.example.com"], &["a/s:443"]);
        scene.cluster().possession = possession(&before);
        assert_eq!(scene.bindings(), format!("192.0.2.1:443 Tls x.example.com -> {has_it}"));
    }
    let told = scene.problems();
    assert!(told.contains("a/old") || told.is_empty(), "{told}");
}

proptest! {
    #![proptest_config(cases())]

    /// Objects come and go, one at a time.
    #[test]
    fn nobody_loses_anything_to_another_namespace_but_by_its_own_change_or_its_gateways(
        objects in prop::collection::vec(object(), 1..14),
        edits in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
    ) {
        let mut there: BTreeSet<usize> = BTreeSet::new();
        let (mut before, mut said): (Vec<Claim>, Said) = Default::default();
        for edit in edits {
            let at = edit.index(objects.len());
            if !there.remove(&at) {
                there.insert(at);
            }
            let order: Vec<usize> = there.iter().copied().collect();
            let (mut now, mut says) = after(scene(&objects, &order), &before, &said);
            // What statuses say then is settled with, too, until nothing changes any more.
            for round in 0.. {
                let next = after(scene(&objects, &order), &now, &says);
                if next == (now.clone(), says.clone()) {
                    break;
                }
                prop_assert!(round < 3, "it does not settle");
                (now, says) = next;
            }
            let changed = NAMESPACES[objects[at].namespace()];
            let (old, new, nobody) = (holders(&before), holders(&now), BTreeSet::new());
            for (key, old) in &old {
                // Nor is anything taken that nobody has then.
                let new = new.get(key).unwrap_or(&nobody);
                for (namespace, part) in old {
                    let is_kept = new.iter().any(|(other, _)| other == namespace);
                    let is_own = changed == namespace;
                    // Listeners of a Gateway decide who may have what, and so do those of other Gateways of its namespace and its
                    // Services: within a namespace, the oldest has the port.
                    let is_of_gateway = match &objects[at] {
                        Object::Gateway { .. } | Object::Service { .. } => part.contains(&format!("/{changed}/")),
                        Object::Set { of, .. } => {
                            part.starts_with(&format!("0/Gateway/{}/", gateway(&objects, *of)))
                                || part.starts_with(&format!("0/ListenerSet/{changed}/o{at}/"))
                        }
                        _ => false,
                    };
                    prop_assert!(is_kept || is_own || is_of_gateway, "{key}: {old:?} -> {new:?} by {:?}", objects[at]);
                }
            }
            // The next leader reads the same from the objects, and so goes on as this one would.
            let read: Vec<Claim> = stored(&now, 1).into_values().map(|one| (*one.claim).clone()).collect();
            prop_assert_eq!(possession(&read), possession(&now));
            // So a restart at any time changes nothing, and to settle again does not either.
            prop_assert_eq!(&after(scene(&objects, &order), &read, &says), &(now.clone(), says.clone()));
            (before, said) = (now, says);
        }
    }
}
