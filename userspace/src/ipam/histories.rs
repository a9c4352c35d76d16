//! Random histories: objects come, go and ask for other addresses, and ranges change.

use super::tests::{cluster, gateway, ip, name, object as object_ref, service};
use super::*;
use crate::model::Possession;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const NAMESPACES: [&str; 3] = ["a", "b", "c"];
const RANGES: [&[&str]; 3] = [
    &["192.0.2.1-192.0.2.4", "2001:db8::10-2001:db8::13"],
    &["192.0.2.3-192.0.2.6", "2001:db8::12-2001:db8::15"],
    &["192.0.2.5-192.0.2.5"],
];
/// Addresses that objects ask for by value; `-` is one without value, and the last may be shared.
const ASKED: [&str; 6] = ["192.0.2.1", "192.0.2.3", "192.0.2.5", "2001:db8::12", "-", "192.0.2.4"];

#[derive(Clone, Debug)]
enum Step {
    /// An object comes, or asks for other addresses. Its age stays.
    Put {
        object: usize,
        is_service: bool,
        asked: Vec<usize>,
    },
    Remove {
        object: usize,
    },
    Ranges(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let put = (0..6_usize, any::<bool>(), prop::collection::vec(0..ASKED.len(), 0..3))
        .prop_map(|(object, is_service, asked)| Step::Put { object, is_service, asked });
    let remove = (0..6_usize).prop_map(|object| Step::Remove { object });
    prop_oneof![6 => put, 2 => remove, 1 => (0..RANGES.len()).prop_map(Step::Ranges)]
}

/// What there is, and what each object has.
#[derive(Clone, Default)]
struct Scene {
    ranges: usize,
    objects: BTreeMap<usize, (bool, Vec<usize>)>,
    has: BTreeMap<usize, Vec<IpAddr>>,
}

fn own(object: usize) -> String {
    format!("{}/o{object}", NAMESPACES[object % NAMESPACES.len()])
}

impl Scene {
    /// As the API server has it: requests in specs, what was assigned in Claims, of Gateways also in status.
    fn assign(&self) -> BTreeMap<usize, Vec<IpAddr>> {
        let mut cluster = cluster(RANGES[self.ranges]);
        cluster.policy.shared = [ip(ASKED[5])].into();
        let mut possession = Possession::default();
        for (object, (is_service, asked)) in &self.objects {
            let asked: Vec<&str> = asked.iter().map(|one| ASKED[*one]).collect();
            let has = self.has.get(object).cloned().unwrap_or_default();
            // The later an object was made, the smaller its number here: age and possession contradict each other.
            let age = 100 - *object as i64;
            if *is_service {
                let values: Vec<&str> = asked.iter().copied().filter(|one| *one != "-").collect();
                service(&mut cluster, &own(*object), age, &values);
                if values.is_empty() {
                    // The second family is wanted if there is one to spare.
                    let wish = |place| FamilyWish { is_v4: place == 0, is_required: place == 0 };
                    let service = Arc::make_mut(cluster.services.get_mut(&name(&own(*object))).unwrap());
                    Arc::make_mut(service.load_balancer.as_mut().unwrap()).families =
                        (0..asked.len()).map(wish).collect();
                }
            } else {
                let given: Vec<String> = has.iter().map(ToString::to_string).collect();
                let given: Vec<&str> = given.iter().map(String::as_str).collect();
                gateway(&mut cluster, &own(*object), age, &asked, &given);
            }
            for address in has {
                let kind = if *is_service { Kind::Service } else { Kind::Gateway };
                possession.add_address(&object_ref(kind, &own(*object)), address);
            }
        }
        cluster.possession = possession;
        let assignment = assign(&cluster);
        let of = |object: &usize| {
            let name = name(&own(*object));
            let allocation = assignment.gateways.get(&name).or_else(|| assignment.services.get(&name));
            (*object, allocation.map(|allocation| allocation.addresses.clone()).unwrap_or_default())
        };
        self.objects.keys().map(of).collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(if cfg!(debug_assertions) { 300 } else { 5000 }))]

    #[test]
    fn no_address_is_of_two_namespaces_and_only_an_objects_own_change_takes_one_from_it(
        steps in prop::collection::vec(step(), 1..24),
    ) {
        let shared = ip(ASKED[5]);
        let mut scene = Scene::default();
        for step in steps {
            let before = scene.clone();
            let changed = match &step {
                Step::Put { object, is_service, asked } => {
                    // A Service that becomes a Gateway is another object.
                    if scene.objects.get(object).is_some_and(|(was_service, _)| was_service != is_service) {
                        scene.has.remove(object);
                    }
                    scene.objects.insert(*object, (*is_service, asked.clone()));
                    Some(*object)
                }
                Step::Remove { object } => {
                    scene.objects.remove(object);
                    scene.has.remove(object);
                    Some(*object)
                }
                Step::Ranges(ranges) => {
                    scene.ranges = *ranges;
                    None
                }
            };
            scene.has = scene.assign();
            let mut namespaces: BTreeMap<IpAddr, BTreeSet<&str>> = BTreeMap::new();
            for (object, addresses) in &scene.has {
                let mut once: Vec<IpAddr> = addresses.clone();
                once.sort();
                once.dedup();
                prop_assert_eq!(once.len(), addresses.len(), "{:?}", addresses);
                for address in addresses {
                    namespaces.entry(*address).or_default().insert(NAMESPACES[object % NAMESPACES.len()]);
                }
            }
            for (address, of) in namespaces {
                prop_assert!(of.len() == 1 || address == shared, "{address} is of {of:?} after {step:?}");
            }
            for (object, addresses) in &before.has {
                if changed == Some(*object) {
                    continue;
                }
                for address in addresses {
                    // Another object of its own namespace may have asked for it by value.
                    let of_namespace = |(other, has): (&usize, &Vec<IpAddr>)| {
                        other % NAMESPACES.len() == object % NAMESPACES.len() && has.contains(address)
                    };
                    prop_assert!(
                        scene.has.iter().any(of_namespace),
                        "{} has lost {address} by {step:?}: {:?}", own(*object), scene.has
                    );
                }
            }
            // A controller that starts now takes nothing from anybody: what was dropped just now is free by then, and after that
            // nothing changes any more.
            let restarted = Scene { has: scene.assign(), ..scene.clone() };
            for (object, addresses) in &scene.has {
                let is_kept = addresses.iter().all(|address| restarted.has[object].contains(address));
                prop_assert!(is_kept, "{}: {:?} -> {:?}", own(*object), addresses, restarted.has[object]);
            }
            prop_assert_eq!(restarted.assign(), restarted.has.clone(), "after {:?}", step);
        }
    }
}
