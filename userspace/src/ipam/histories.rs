//! Random histories: objects come, go and ask for other addresses and pools, and ranges and pools change.

use super::pool_tests::{ask, pool};
use super::service_tests::share;
use super::tests::{cluster, families, gateway, ip, name, object as object_ref, range, service};
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
/// A pool: its name, addresses, the namespaces that it admits, and whether these may share an address.
type PoolSample = (&'static str, &'static str, &'static [&'static str], bool);
const POOLS: [&[PoolSample]; 5] = [
    &[],
    &[("p", "198.51.100.1-198.51.100.3", &["a"], false), ("q", "192.0.2.4-192.0.2.8", &[], false)],
    &[("p", "198.51.100.2-198.51.100.4", &["b", "c"], true)],
    &[("q", "2001:db8::13-2001:db8::18", &["b"], false), ("p", "192.0.2.5-192.0.2.6", &["a"], true)],
    &[("q", "192.0.2.5-192.0.2.5", &[], true), ("p", "198.51.100.1-198.51.100.3", &[], true)],
];
/// Addresses that objects ask for by value; `-` is one without value, and the last may be shared.
const ASKED: [&str; 6] = ["192.0.2.1", "192.0.2.3", "192.0.2.5", "2001:db8::12", "-", "192.0.2.4"];

/// What an object wants.
#[derive(Clone, Debug, PartialEq)]
struct Wanted {
    is_service: bool,
    /// Indices into [`ASKED`].
    asked: Vec<usize>,
    /// Index into the names `p` and `q`.
    pool: Option<usize>,
    /// Whether it says the key that others of its namespace say.
    shares: bool,
}

#[derive(Clone, Debug)]
enum Step {
    /// An object comes, or asks for other addresses. Its age stays.
    Put {
        object: usize,
        wanted: Wanted,
    },
    Remove {
        object: usize,
    },
    /// Its status says that it has an address.
    Edit {
        object: usize,
        asked: usize,
    },
    Ranges(usize),
    Pools(usize),
}

fn step() -> impl Strategy<Value = Step> {
    let pool = prop::option::weighted(0.3, 0..2_usize);
    let asked = prop::collection::vec(0..ASKED.len(), 0..3);
    let wanted = (any::<bool>(), asked, pool, any::<bool>())
        .prop_map(|(is_service, asked, pool, shares)| Wanted { is_service, asked, pool, shares });
    let put = (0..6_usize, wanted).prop_map(|(object, wanted)| Step::Put { object, wanted });
    let remove = (0..6_usize).prop_map(|object| Step::Remove { object });
    let edit = (0..6_usize, 0..4_usize).prop_map(|(object, asked)| Step::Edit { object, asked });
    prop_oneof![6 => put, 2 => remove, 2 => edit, 1 => (0..RANGES.len()).prop_map(Step::Ranges), 1 => (0..POOLS.len()).prop_map(Step::Pools)]
}

/// What there is, and what each object has.
#[derive(Clone, Default)]
struct Scene {
    ranges: usize,
    pools: usize,
    objects: BTreeMap<usize, Wanted>,
    has: BTreeMap<usize, Vec<IpAddr>>,
    /// The pool that each asked for when it was granted that.
    asked: BTreeMap<usize, Option<usize>>,
    /// The object whose status was edited, and the address that it says.
    edited: Option<(usize, IpAddr)>,
}

fn own(object: usize) -> String {
    format!("{}/o{object}", NAMESPACES[object % NAMESPACES.len()])
}

/// The port of an object that shares: the last object has one that others have, too.
fn port(object: usize) -> u16 {
    [1, 2, 3, 4, 1, 2][object]
}

impl Scene {
    /// Whether an object that shares an address of others, of other namespaces too, may: its pool says so, all of them say the key, and
    /// nobody else had its port there.
    fn may_cross(&self, before: &Self, object: usize, address: IpAddr) -> bool {
        let of_pool = |(_, ends, _, crosses): &PoolSample| range(ends).holds(address).then_some(*crosses);
        let mut pools = POOLS[self.pools].iter().filter_map(of_pool).peekable();
        let says_so = pools.peek().is_some() && pools.all(|crosses| crosses);
        let in_ranges = RANGES[self.ranges].iter().any(|ends| range(ends).holds(address));
        let wanted = &self.objects[&object];
        let others = before.has.iter().filter(|(other, has)| {
            **other != object
                && has.contains(&address)
                && self.has.get(other).is_some_and(|has| has.contains(&address))
        });
        let fits = |other: &usize| self.objects[other].shares && port(*other) != port(object);
        says_so
            && !in_ranges
            && wanted.is_service
            && wanted.shares
            && others.into_iter().all(|(other, _)| fits(other))
    }

    /// As the API server has it: requests in specs, what was assigned in Claims, of Gateways also in status.
    fn assign(&self) -> BTreeMap<usize, Vec<IpAddr>> {
        let mut cluster = cluster(RANGES[self.ranges]);
        cluster.policy.shared = [ip(ASKED[5])].into();
        for (named, range, namespaces, crosses) in POOLS[self.pools] {
            pool(&mut cluster, named, &[range], |pool| {
                pool.shares_across_namespaces = *crosses;
                pool.scope.namespaces = namespaces.iter().map(|name| Arc::from(*name)).collect();
            });
        }
        let mut possession = Possession::default();
        for (object, wanted) in &self.objects {
            let Wanted { is_service, asked, pool, shares } = wanted;
            let asked: Vec<&str> = asked.iter().map(|one| ASKED[*one]).collect();
            let has = self.has.get(object).cloned().unwrap_or_default();
            let edited = self.edited.filter(|(of, _)| of == object).map(|(_, address)| address);
            // The later an object was made, the smaller its number here: age and possession contradict each other.
            let age = 100 - *object as i64;
            if *is_service {
                let values: Vec<&str> = asked.iter().copied().filter(|one| *one != "-").collect();
                service(&mut cluster, &own(*object), age, &values);
                if values.is_empty() {
                    // The second family is wanted if there is one to spare.
                    families(&mut cluster, &own(*object), &[(true, true), (false, false)][..asked.len()]);
                }
                if *shares {
                    // Some have a port that others have, too.
                    share(&mut cluster, &own(*object), "k", &[port(*object)]);
                }
                ask(&mut cluster, &own(*object), pool.map(|pool| ["p", "q"][pool]));
                let service = Arc::make_mut(cluster.services.get_mut(&name(&own(*object))).unwrap());
                Arc::make_mut(service.load_balancer.as_mut().unwrap()).given.extend(edited);
            } else {
                let given: Vec<String> = has.iter().chain(&edited).map(ToString::to_string).collect();
                let given: Vec<&str> = given.iter().map(String::as_str).collect();
                gateway(&mut cluster, &own(*object), age, &asked, &given);
            }
            let kind = if *is_service { Kind::Service } else { Kind::Gateway };
            for address in has {
                possession.add_address(&object_ref(kind, &own(*object)), address);
            }
            if let Some(Some(pool)) = self.asked.get(object) {
                possession.note_pool(object_ref(kind, &own(*object)), ["p", "q"][*pool]);
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
                Step::Put { object, wanted } => {
                    // A Service that becomes a Gateway is another object.
                    if scene.objects.get(object).is_some_and(|was| was.is_service != wanted.is_service) {
                        scene.has.remove(object);
                    }
                    scene.objects.insert(*object, wanted.clone());
                    Some(*object)
                }
                Step::Remove { object } => {
                    scene.objects.remove(object);
                    scene.has.remove(object);
                    Some(*object)
                }
                Step::Edit { object, asked } => {
                    scene.edited = Some((*object, ip(ASKED[*asked])));
                    Some(*object)
                }
                Step::Ranges(ranges) => {
                    scene.ranges = *ranges;
                    None
                }
                Step::Pools(pools) => {
                    scene.pools = *pools;
                    None
                }
            };
            scene.has = scene.assign();
            scene.asked = scene.objects.iter().map(|(object, wanted)| (*object, wanted.pool)).collect();
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
            for (address, of) in namespaces.into_iter().filter(|(address, of)| of.len() > 1 && *address != shared) {
                let had = |object: &usize| before.has.get(object).is_some_and(|has| has.contains(&address));
                for object in scene.has.iter().filter(|(_, has)| has.contains(&address)).map(|(object, _)| object) {
                    prop_assert!(
                        had(object) || scene.may_cross(&before, *object, address),
                        "{address} is of {of:?} after {step:?}: {} has it, too", own(*object)
                    );
                }
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
            scene.edited = None;
            let restarted = Scene { has: scene.assign(), ..scene.clone() };
            for (object, addresses) in &scene.has {
                let is_kept = addresses.iter().all(|address| restarted.has[object].contains(address));
                prop_assert!(is_kept, "{}: {:?} -> {:?}", own(*object), addresses, restarted.has[object]);
            }
            prop_assert_eq!(restarted.assign(), restarted.has.clone(), "after {:?}", step);
        }
    }
}
