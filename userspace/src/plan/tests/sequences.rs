//! Any sequence of configurations, with daemons that die between any two writes.

use super::check::*;
use super::{Applied, Change, Desired, Hop, Hops, MapsImage, Plan, ip, plan};
use crate::compile::compile;
use crate::model::{
    Affinity, BackendSpec, Facts, ListenerSpec, Pattern, Protocol, RouteSpec, ServerName, SourceRanges,
    TrafficPolicy,
};
use common::maps::listener::ROLE_BACKEND;
use common::maps::route::LABEL_LISTENER;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

const LISTENERS: [&str; 3] = ["one", "two", "three"];
const ROUTES: [&str; 4] = ["a", "b", "c", "d"];
const VIPS: [&str; 3] = ["10.97.0.10", "10.97.0.11", "fd97::10"];
const PORTS: [u16; 2] = [443, 444];
/// `+.y.z` is one label before the suffix.
const PATTERNS: [&str; 8] = ["x.y.z", "*.y.z", "+.y.z", "*.z", "+.z", "y.z", "w.z", "*.x.y.z"];
const NAMES: [&str; 6] = ["x.y.z", "w.y.z", "w.z", "y.z", "a.x.y.z", "unknown"];
const RANGES: [&str; 3] = ["10.0.0.0/8", "10.0.0.0/9", "2001:db8::/32"];
const BACKENDS: [&str; 6] = ["10.1.0.1", "10.1.0.2", "10.1.0.3", "fd01::1", "fd01::2", "fd01::3"];

fn listeners() -> impl Strategy<Value = Vec<ListenerSpec>> {
    let one = (
        prop::sample::subsequence(VIPS.to_vec(), 1..=2),
        prop::sample::select(PORTS.to_vec()),
        prop::bool::weighted(0.8),
        prop::option::of(prop::sample::select(ROUTES.to_vec())),
    );
    let named = prop::sample::subsequence(LISTENERS.to_vec(), 0..=3);
    (named, prop::collection::vec(one, 3)).prop_map(|(names, settings)| {
        let each = names.into_iter().zip(settings).enumerate();
        each.map(|(place, (name, (addresses, port, tls, default)))| ListenerSpec {
            place,
            name: name.into(),
            addresses: addresses.into_iter().map(ip).collect(),
            port,
            protocol: if tls { Protocol::Tls } else { Protocol::Tcp },
            default_route: default.filter(|_| tls).map(Into::into),
        })
        .collect()
    })
}

fn routes() -> impl Strategy<Value = Vec<RouteSpec>> {
    let weight = prop::sample::select(vec![0, 1, 1, 3]);
    let one = (
        prop::sample::subsequence(LISTENERS.to_vec(), 0..=3),
        prop::sample::subsequence(PATTERNS.to_vec(), 0..=5),
        prop::sample::subsequence(BACKENDS.to_vec(), 0..=5),
        prop::collection::vec(weight, 5),
        prop::option::weighted(0.5, prop::sample::subsequence(RANGES.to_vec(), 0..=2)),
        prop::sample::select(vec![Affinity::None, Affinity::ClientIp]),
        prop::sample::select(vec![TrafficPolicy::Cluster, TrafficPolicy::Local]),
    );
    let named = prop::sample::subsequence(ROUTES.to_vec(), 0..=4).prop_shuffle();
    (named, prop::collection::vec(one, 4)).prop_map(|(names, settings)| {
        let each = names.into_iter().zip(settings).enumerate();
        each.map(|(place, (name, (listeners, patterns, backends, weights, ranges, affinity, traffic)))| {
            RouteSpec {
                place,
                name: name.into(),
                listeners: listeners.into_iter().map(Into::into).collect(),
                patterns: patterns.into_iter().map(pattern).collect(),
                backends: backends
                    .into_iter()
                    .zip(weights)
                    .map(|(address, weight)| BackendSpec {
                        address: ip(address),
                        port: 6443,
                        weight,
                        failing: false,
                    })
                    .collect(),
                affinity,
                traffic,
                source_ranges: ranges.map(|ranges| {
                    SourceRanges::new(
                        &ranges.into_iter().map(|range| range.parse().unwrap()).collect::<Vec<_>>(),
                    )
                }),
            }
        })
        .collect()
    })
}

fn pattern(text: &str) -> Pattern {
    match text.strip_prefix("+.") {
        Some(suffix) => Pattern::OneLabel(ServerName::new(suffix).unwrap()),
        None => crate::config::pattern(text).unwrap(),
    }
}

/// Next hops to some of the backends.
fn hops() -> impl Strategy<Value = Hops> {
    let reachable = prop::sample::subsequence(BACKENDS.to_vec(), 4..=6);
    let is_on_link = prop::bool::weighted(0.8);
    (reachable, 1..3u32, prop::sample::select(vec![1400, 1500]), is_on_link).prop_map(
        |(addresses, ifindex, mtu, is_on_link)| {
            let hop = |address: IpAddr| {
                let source = ip(if address.is_ipv4() { "10.1.0.254" } else { "fd01::fe" });
                (address, Hop { source, ifindex, mtu, is_on_link })
            };
            let towards = addresses.into_iter().map(|text| hop(ip(text))).collect();
            Hops { towards, own: [ip(VIPS[1])].into(), ..Hops::default() }
        },
    )
}

/// What changes from one configuration to the next.
#[derive(Clone, Debug)]
struct Step {
    listeners: Option<Vec<ListenerSpec>>,
    routes: Vec<RouteSpec>,
    /// Routes that stay unchanged if they exist.
    stay: Vec<&'static str>,
    hops: Option<Hops>,
    /// The number of writes after which the daemon dies, if it does.
    dies: Option<prop::sample::Index>,
    /// Word comes only now that the connections of backends that were gone once are ended.
    forgets: bool,
}

fn step() -> impl Strategy<Value = Step> {
    let dies = prop::option::weighted(0.3, any::<prop::sample::Index>());
    let stay = prop::sample::subsequence(ROUTES.to_vec(), 0..=4);
    let listeners = prop::option::weighted(0.5, listeners());
    (listeners, routes(), stay, prop::option::weighted(0.5, hops()), dies, any::<bool>()).prop_map(
        |(listeners, routes, stay, hops, dies, forgets)| Step {
            listeners,
            routes,
            stay,
            hops,
            dies,
            forgets,
        },
    )
}

/// Applies a step to `facts` and `hops`. Contradictions are resolved by leaving things out; the result is as
/// good a configuration as any.
fn take(step: Step, facts: &mut Facts, hops: &mut Hops) -> Desired {
    if let Some(listeners) = step.listeners {
        facts.listeners = listeners;
    }
    let stays = |route: &RouteSpec| step.stay.contains(&&*route.name);
    facts.routes.retain(stays);
    facts.routes.extend(step.routes.into_iter().filter(|route| !stays(route)));
    if let Some(new) = step.hops {
        *hops = Hops { edition: hops.edition + 1, ..new };
    }
    compile(facts).desired
}

/// Returns where every possible connection leads.
fn everywhere(world: &MapsImage) -> Vec<Reached> {
    let mut answers = Vec::new();
    for vip in VIPS {
        for port in PORTS {
            for name in NAMES {
                answers.push(reached(world, vip, port, name));
            }
        }
    }
    answers
}

/// Carries out writes one by one. After each write the world is complete, and every client that is served
/// before and after the plan is served.
fn carry_out(
    world: &mut MapsImage,
    changes: &[Change],
    after: &MapsImage,
    ever: &mut HashSet<(&'static str, u32)>,
) {
    let (old, new) = (everywhere(world), everywhere(after));
    let listeners = |all: &[Reached]| all.iter().map(|at| at.listener.clone()).collect::<HashSet<String>>();
    let (before, then) = (listeners(&old), listeners(&new));
    for change in changes {
        if let Some(id) = new_ids(world, change) {
            assert!(ever.insert(id), "{id:?} is given out twice");
        }
        world.apply(change);
        assert_whole(world);
        for ((old, new), now) in old.iter().zip(&new).zip(everywhere(world)) {
            let stays = old.listener == new.listener;
            if !stays && (before.contains(&new.listener) || then.contains(&old.listener)) {
                // The one exception: the address and port moved between listeners that both stay.
                continue;
            }
            let gap = !old.members.is_empty() && !new.members.is_empty() && now.members.is_empty();
            assert!(!gap, "no service between {old:?} and {new:?} at {change:?}");
            // From one set of source ranges to the next, without anything between them.
            if old.route == new.route && now.route == new.route && old.listener == new.listener {
                let kept =
                    |place: usize| [&old.ranges[place], &new.ranges[place]].contains(&&now.ranges[place]);
                assert!(kept(0) && kept(1), "{now:?} is neither {old:?} nor {new:?} at {change:?}");
            }
            let astray = now.route != old.route && now.route != new.route;
            assert!(
                !(stays && !old.listener.is_empty() && astray),
                "{now:?} is neither {old:?} nor {new:?} at {change:?}"
            );
        }
    }
}

/// Returns the world that all parts together make.
fn of_parts(applied: &Applied) -> MapsImage {
    let mut world = MapsImage::default();
    let mut part = None;
    while let Some(next) = applied.next_part(part.as_ref()) {
        assert!(applied.has(&next));
        applied.writes(&next).iter().for_each(|change| world.apply(change));
        part = Some(next);
    }
    world
}

/// Lower ids of listeners are not looked at.
const LATE: u32 = 65_500;

fn has_listener(world: &MapsImage, id: u32) -> bool {
    world.label(LABEL_LISTENER, id).is_some()
}

/// All that removals called for is done: listener ids that are not in the maps may be given out once more.
fn free_unused(world: &MapsImage, applied: &mut Applied, ever: &mut HashSet<(&'static str, u32)>) {
    applied.free_listeners = Arc::new((LATE..65_536).filter(|id| !has_listener(world, *id)).collect());
    ever.retain(|(kind, id)| *kind != "listener" || has_listener(world, *id));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_sequence_ends_where_a_fresh_plan_does(
        steps in prop::collection::vec(step(), 1..6),
        is_late in any::<bool>(),
    ) {
        let mut world = MapsImage::default();
        // Nearly all ids of listeners were given out by earlier daemons.
        world.ids.listener = if is_late { 65_534 } else { 0 };
        let mut applied = Applied::from_maps(content(&world));
        let (mut ever, mut ever_gone) = (HashSet::new(), BTreeSet::new());
        if is_late {
            free_unused(&world, &mut applied, &mut ever);
        }
        let mut later: Vec<Change> = Vec::new();
        let (mut facts, mut hops) = (Facts::default(), Hops { edition: 1, ..Hops::default() });
        for step in steps {
            let (dies, forgets) = (step.dies, step.forgets);
            if forgets {
                applied.forget_senders(&ever_gone - &applied.gone_senders());
            }
            let desired = take(step, &mut facts, &mut hops);
            let planned = plan(&applied, &desired, &hops);
            let whole = plan(&Applied { basis: None, ..applied.clone() }, &desired, &hops);
            prop_assert_eq!(&planned, &whole, "what did not change is not looked at");
            prop_assert!(!planned.applied.lacks_listener_ids());
            let is_backend = |address| planned.applied.addresses.get(address).is_some_and(|role| role & ROLE_BACKEND != 0);
            let known = applied.addresses.iter().filter(|(_, role)| *role & ROLE_BACKEND != 0);
            prop_assert!(known.into_iter().all(|(address, _)| is_backend(address)), "it has connections");
            let Plan { changes, later: more, applied: next, .. } = planned;
            let mut after = world.clone();
            changes.iter().for_each(|change| after.apply(change));
            if let Some(at) = dies.filter(|_| !changes.is_empty()) {
                // The daemon dies: the deletions planned for later are forgotten, and found again.
                let cut = at.index(changes.len());
                carry_out(&mut world, &changes[..cut], &after, &mut ever);
                later.clear();
                applied = Applied::from_maps(content(&world));
                if is_late {
                    free_unused(&world, &mut applied, &mut ever);
                }
                let again = plan(&applied, &desired, &hops);
                let mut after = world.clone();
                again.changes.iter().for_each(|change| after.apply(change));
                carry_out(&mut world, &again.changes, &after, &mut ever);
                later.extend(again.later);
                applied = again.applied;
            } else {
                carry_out(&mut world, &changes, &after, &mut ever);
                later.extend(more);
                applied = next;
            }
            if is_late {
                later.drain(..).for_each(|change| world.apply(&change));
                free_unused(&world, &mut applied, &mut ever);
            }
            ever_gone.extend(applied.gone_senders());
            let unchanged = plan(&applied, &desired, &hops);
            prop_assert_eq!((unchanged.changes, unchanged.later), (vec![], vec![]));
            // The later deletions may follow any other plan.
            let mut settled = world.clone();
            later.iter().for_each(|change| settled.apply(change));
            assert_whole(&settled);
            // Then connections to the backends that are gone are ended, and their addresses forgotten.
            let mut silent = applied.clone();
            silent.forget_senders(silent.gone_senders());
            let planned = plan(&silent, &desired, &hops);
            prop_assert_eq!(&planned.later, &[]);
            planned.changes.iter().for_each(|change| settled.apply(change));
            prop_assert_eq!(canonical(&settled), canonical(&fresh(&desired, &hops)));
            let parts = MapsImage { ids: settled.ids, ..of_parts(&planned.applied) };
            prop_assert_eq!(&parts, &settled, "the parts together are all there is");
            let adopted = plan(&Applied::from_maps(content(&settled)), &desired, &hops);
            prop_assert_eq!((adopted.changes, adopted.later), (vec![], vec![]));
        }
    }
}
