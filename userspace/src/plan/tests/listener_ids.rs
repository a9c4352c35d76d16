//! Ids of listeners have 16 bits: they are given out again, but not before nothing has them.

use super::*;
use crate::model::{DesiredListener, ServerName};
use common::maps::route::{LABEL_LISTENER, LabelKey, NameRoute};
use std::collections::VecDeque;

/// Returns the same without routes.
fn unrouted(desired: &Desired) -> Desired {
    let listeners =
        desired.listeners.iter().map(|listener| DesiredListener { route: None, ..listener.clone() });
    Desired { listeners: listeners.collect(), routes: [].into_iter().collect(), ..desired.clone() }
}

#[test]
fn listener_ids_run_out_with_a_problem() {
    let desired = two_tenants();
    let applied = Applied { ids: Ids { listener: 65_535, ..Ids::zeroed() }, ..Applied::default() };
    let plan = plan(&applied, &desired, &ways(&desired));
    assert_eq!(plan.problems.iter().filter(|problem| problem.is_error()).count(), 1);
    assert!(plan.applied.lacks_listener_ids());
    // Nothing of what is desired changes, and yet it is planned.
    let mut applied = plan.applied.clone();
    applied.reuse_listeners([7]);
    let again = super::super::plan(&applied, &desired, &ways(&desired));
    assert!(again.problems.is_empty() && !again.applied.lacks_listener_ids());
    let world = carried_out(&carried_out(&MapsImage::default(), &plan), &again);
    assert_whole(&world);
    assert_eq!(canonical(&world), canonical(&fresh(&desired, &ways(&desired))));
    assert_whole(&carried_out(&MapsImage::default(), &plan));
}

/// A tenant's listener that comes and goes all year long.
#[test]
fn listener_ids_are_used_again_once_nothing_has_them() {
    let with = |generation: u32| {
        let name = format!("listener-{generation}");
        let listener = listener(&name, &["10.97.0.10"], 443, Protocol::Tcp, None);
        desired(vec![listener], vec![route("a", &[&name], &[], &[("10.1.0.1", 1)])])
    };
    // Most are used up already.
    let ids = Ids { listener: 64_000, ..Ids::zeroed() };
    let (mut applied, mut world) = (Applied { ids, ..Applied::default() }, MapsImage::default());
    let mut resting = VecDeque::new();
    for generation in 0..4000 {
        let desired = with(generation);
        let planned = plan(&applied, &desired, &ways(&desired));
        assert_eq!(planned.problems, []);
        world = carried_out(&world, &planned);
        let used: Vec<u32> = world.listeners.values().map(|listener| listener.id).collect();
        assert!(!resting.iter().flatten().any(|id| used.contains(id)), "{used:?} is given out too early");
        if let Some(Change::Reset(selector)) = planned.changes.last() {
            resting.push_back(selector.listeners.clone());
        }
        applied = planned.applied;
        // Removals take a while.
        if resting.len() > 5 {
            applied.reuse_listeners(resting.pop_front().unwrap());
        }
    }
    assert_whole(&world);
    assert_eq!(world.labels.len(), 2, "{:?}", world.labels);
}

/// A daemon does not know which connections an earlier one left. What is still in the maps is deleted first, or it would lead the
/// connections of the next listener astray.
#[test]
fn ids_that_earlier_daemons_used_up_are_found_but_for_those_that_anything_has() {
    let desired = two_tenants();
    let hops = ways(&desired);
    let first = plan(&Applied::default(), &desired, &hops);
    let mut world = carried_out(&MapsImage::default(), &first);
    let used: BTreeSet<u32> = world.listeners.values().map(|listener| listener.id).collect();
    world.ids.listener = 40_000;
    let label = LabelKey { kind: LABEL_LISTENER, id: 39_000 };
    world.apply(&Change::PutLabel(label, "half".into()));
    let route = *world.routes.keys().next().unwrap();
    let (names, name) = (NameRoute { route }, ServerName::new("half.example").unwrap());
    world.apply(&Change::PutName(39_001, name, names));
    let left: BTreeSet<u32> = used.iter().copied().chain([39_001]).collect();
    let applied = Applied::from_maps(content(&world));
    assert_eq!(applied.unused_listeners(), (1..40_000).filter(|id| !left.contains(id)).collect());
    assert_eq!(applied.left(), [Change::DeleteLabel(label)]);
    let adopted = plan(&applied, &desired, &hops);
    let Some(Change::Reset(selector)) = adopted.changes.last() else {
        panic!("{:?}", kinds(&adopted.changes))
    };
    assert_eq!(selector.listeners, [39_000, 39_001].into());
    // Those that are free already are no news.
    let mut free = adopted.applied;
    free.reuse_listeners([39_000]);
    assert!(!free.unused_listeners().contains(&39_000));
    // What is completed before the next plan is neither deleted nor looked for after it is given out again.
    let mut free = applied;
    free.ids.listener = 65_536;
    free.reuse_listeners([39_000, 39_001]);
    let mut more = desired.clone();
    let new = DesiredListener { name: "a-new".into(), port: 444, ..more.listeners[0].clone() };
    more.listeners.push(new);
    more.listeners.sort_by(|a, b| a.name.cmp(&b.name));
    let planned = plan(&free, &unrouted(&more), &hops);
    assert!(planned.changes.contains(&Change::PutLabel(label, "a-new".into())), "{:?}", planned.changes);
    assert!(!planned.later.contains(&Change::DeleteLabel(label)), "{:?}", planned.later);
    let Some(Change::Reset(selector)) = planned.changes.last() else {
        panic!("{:?}", kinds(&planned.changes))
    };
    assert!(selector.listeners.contains(&39_001) && !selector.listeners.contains(&39_000));
    // While most were never given out, no start looks at all connections for that.
    world.ids.listener = 30_000;
    world.labels.retain(|key, _| key.id < 30_000);
    world.names.retain(|(id, _), _| *id < 30_000);
    let applied = Applied::from_maps(content(&world));
    assert_eq!(applied.unused_listeners(), [].into());
    assert_eq!(plan(&applied, &desired, &hops).changes, []);
}
