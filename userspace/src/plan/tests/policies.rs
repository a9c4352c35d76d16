//! Source ranges of routes.

use super::*;
use crate::model::SourceRanges;
use common::maps::listener::PROTOCOL_TCP;
use common::maps::policy::{POLICY_NOBODY, RANGES_MAX};
use common::maps::route::LABEL_ROUTE;
use common::reason::Reason;

fn ranges(texts: &[&str]) -> SourceRanges {
    SourceRanges::new(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
}

/// Gives the routes of [`two_tenants`] these source ranges.
fn limited(a: Option<SourceRanges>, b: Option<SourceRanges>) -> Desired {
    let mut desired = two_tenants();
    edit(&mut desired, |routes| {
        for (route, ranges) in routes.iter_mut().zip([a, b]) {
            Arc::make_mut(route).source_ranges = ranges;
        }
    });
    desired
}

/// Returns the policy of a route, and that of the TCP listener, which is route a's.
fn policy(world: &MapsImage, name: &str) -> (u16, u16) {
    let id = world.routes.keys().find(|id| world.label(LABEL_ROUTE, **id) == Some(name)).unwrap();
    let tcp = world.listeners.values().find(|listener| listener.protocol == PROTOCOL_TCP).unwrap();
    (world.routes[id].policy, tcp.policy)
}

/// Carries out a plan. What it deferred is done, but not confirmed.
fn carry(world: &mut MapsImage, applied: &mut Applied, desired: &Desired) -> Plan {
    let planned = plan(applied, desired, &ways(desired));
    *world = carried_out(world, &planned);
    *applied = planned.applied.clone();
    planned
}

#[test]
fn equal_ranges_are_one_policy_and_other_ranges_are_another() {
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    let one = || Some(ranges(&["10.0.0.0/8", "2001:db8::/32"]));
    carry(&mut world, &mut applied, &limited(one(), one()));
    assert_eq!((policy(&world, "a"), policy(&world, "b"), world.policies.len()), ((1, 1), (1, 1), 2));
    // Only one of them changes. The ranges of the other stay.
    let planned = carry(&mut world, &mut applied, &limited(Some(ranges(&["10.0.0.0/9"])), one()));
    assert!(planned.later.is_empty(), "{:?}", planned.later);
    assert_eq!((policy(&world, "a"), policy(&world, "b").0, world.policies.len()), ((2, 2), 1, 3));
    // A set that is gone and returns does not meet the deletion of what it had before.
    let planned = carry(&mut world, &mut applied, &limited(Some(ranges(&["10.0.0.0/9"])), None));
    assert_eq!(kinds(&planned.later), ["DeletePolicy", "DeletePolicy"]);
    carry(&mut world, &mut applied, &limited(Some(ranges(&["10.0.0.0/9"])), one()));
    assert_eq!((policy(&world, "b").0, world.policies.len()), (3, 3));
    carry(&mut world, &mut applied, &limited(None, None));
    assert_eq!((policy(&world, "a"), policy(&world, "b").0, world.policies.len()), ((0, 0), 0, 0));
}

#[test]
fn ranges_are_there_before_a_route_or_listener_names_them_and_go_after_the_resets() {
    let desired = limited(Some(ranges(&["10.0.0.0/8"])), None);
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    carry(&mut world, &mut applied, &two_tenants());
    let planned = carry(&mut world, &mut applied, &desired);
    assert_eq!(kinds(&planned.changes), ["PutPolicy", "PutRoute", "PutListener", "Reset"]);
    let planned = carry(&mut world, &mut applied, &two_tenants());
    assert_eq!(kinds(&planned.changes), ["PutRoute", "PutListener", "Reset"]);
    assert_eq!(kinds(&planned.later), ["DeletePolicy"]);
}

#[test]
fn clients_that_are_no_longer_admitted_are_reset_and_others_are_not() {
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    carry(&mut world, &mut applied, &two_tenants());
    let reset = |planned: &Plan| match planned.changes.last() {
        Some(Change::Reset(selector)) => selector.clone(),
        other => panic!("{other:?}"),
    };
    let first = reset(&carry(&mut world, &mut applied, &limited(Some(ranges(&["10.0.0.0/8"])), None)));
    let route = *first.ranges.keys().next().unwrap();
    let takes = |selector: &Selector, client: &str, route: u32| {
        let client = ClientTuple { client: Address::from(ip(client)), ..ClientTuple::zeroed() };
        selector.takes(&client, 1, route, 1)
    };
    assert_eq!(takes(&first, "192.0.2.1", route), Some(Reason::ExpireRefused));
    assert_eq!(takes(&first, "2001:db8::1", route), Some(Reason::ExpireRefused));
    assert_eq!([takes(&first, "10.1.1.1", route), takes(&first, "192.0.2.1", route + 1)], [None, None]);
    assert!(!applied.census().admits(&ClientTuple::zeroed(), route));
    assert!(applied.census().admits(&ClientTuple::zeroed(), route + 1));
    // The repetition of the first reset must not end connections that the second change admits.
    let second = reset(&carry(&mut world, &mut applied, &two_tenants()));
    assert_eq!(takes(&second, "192.0.2.1", route), None);
    let mut repeated = first.clone();
    repeated.yield_to(&second);
    assert_eq!((takes(&repeated, "192.0.2.1", route), repeated.is_empty()), (None, true));
    let mut joined = Selector::default();
    joined.join(*first);
    joined.join(*second);
    assert_eq!(takes(&joined, "192.0.2.1", route), None);
}

#[test]
fn ids_go_round_and_those_in_use_or_about_to_be_deleted_are_passed_over() {
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    carry(&mut world, &mut applied, &limited(Some(ranges(&["10.0.0.0/8"])), None));
    applied.next_policy = POLICY_NOBODY - 2;
    for (text, id) in
        [("10.1.0.0/16", POLICY_NOBODY - 2), ("10.2.0.0/16", POLICY_NOBODY - 1), ("10.3.0.0/16", 2)]
    {
        carry(&mut world, &mut applied, &limited(Some(ranges(&["10.0.0.0/8"])), Some(ranges(&[text]))));
        assert_eq!((policy(&world, "a"), policy(&world, "b").0), ((1, 1), id), "{text}");
    }
    let other = |applied: &mut Applied, text: &str| {
        applied.next_policy = POLICY_NOBODY - 2;
        let desired = limited(Some(ranges(&["10.0.0.0/8"])), Some(ranges(&[text])));
        let planned = plan(applied, &desired, &ways(&desired));
        policy(&carried_out(&world, &planned), "b").0
    };
    assert_eq!(other(&mut applied, "10.4.0.0/16"), 3, "both are still being deleted");
    applied.forget_policies([u32::from(POLICY_NOBODY - 1)]);
    assert_eq!(other(&mut applied, "10.4.0.0/16"), POLICY_NOBODY - 1);
}

#[test]
fn without_room_for_its_ranges_a_route_admits_nobody_until_there_is_some() {
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    let limits = || Some(ranges(&["10.0.0.0/8", "192.0.2.0/24"]));
    carry(&mut world, &mut applied, &limited(limits(), None));
    // Of a policy that is about to be deleted.
    applied.leaving_policies = Arc::new([(9, RANGES_MAX - 3)].into());
    let desired = limited(limits(), Some(ranges(&["10.1.0.0/16", "10.3.0.0/16"])));
    let planned = carry(&mut world, &mut applied, &desired);
    let [problem] = &planned.problems[..] else { panic!("{:?}", planned.problems) };
    assert!(problem.is_error() && problem.what.contains("route b admits nobody"), "{problem:?}");
    assert_eq!((policy(&world, "a"), policy(&world, "b").0), ((1, 1), POLICY_NOBODY));
    let lacks =
        |applied: &Applied| desired.routes.iter().filter(|route| applied.lacks_room_for(route)).count();
    assert_eq!((lacks(&applied), applied.lacks_policies()), (1, true));
    applied.forget_policies([9]);
    carry(&mut world, &mut applied, &desired);
    assert_eq!((policy(&world, "b").0, lacks(&applied), world.policies.len()), (2, 0, 4));
}

/// A daemon died, or a write failed, between the route and its listener: the listener's policy is in use.
#[test]
fn the_policy_of_a_listener_is_deleted_only_after_the_listener_is_written() {
    let (before, after) =
        (limited(Some(ranges(&["10.0.0.0/8"])), None), limited(Some(ranges(&["10.0.0.0/9"])), None));
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    carry(&mut world, &mut applied, &before);
    let planned = plan(&applied, &after, &ways(&after));
    assert_eq!(kinds(&planned.changes), ["PutPolicy", "PutRoute", "PutListener", "Reset"]);
    planned.changes[..2].iter().for_each(|change| world.apply(change));
    let mut adopted = Applied::from_maps(content(&world));
    assert_eq!(kinds(adopted.left()), [""; 0], "what is left is deleted without a plan");
    let planned = carry(&mut world, &mut adopted, &after);
    assert_eq!(
        (kinds(&planned.changes), kinds(&planned.later)),
        (vec!["PutListener".into()], vec!["DeletePolicy".into()])
    );
    assert_eq!(canonical(&world), canonical(&fresh(&after, &ways(&after))));
}

/// Of two policies with the same ranges, one is still to be deleted.
#[test]
fn of_two_equal_policies_the_one_that_a_route_has_is_kept() {
    let desired = |text: &str| limited(Some(ranges(&[text])), None);
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    for text in ["10.0.0.0/8", "10.0.0.0/9", "10.0.0.0/8"] {
        let planned = plan(&applied, &desired(text), &ways(&desired(text)));
        planned.changes.iter().for_each(|change| world.apply(change));
        applied = planned.applied;
    }
    assert_eq!((policy(&world, "a"), world.policies.len()), ((3, 3), 3));
    let mut adopted = Applied::from_maps(content(&world));
    let planned = carry(&mut world, &mut adopted, &desired("10.0.0.0/8"));
    assert_eq!((kinds(&planned.changes), planned.later.len()), (vec![], 2));
    assert_eq!((policy(&world, "a"), world.policies.len()), ((3, 3), 1));
}

/// Another program deleted all ranges of the newest policy.
#[test]
fn the_id_of_a_policy_without_ranges_is_not_given_out() {
    let desired = limited(Some(ranges(&["10.0.0.0/8"])), None);
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    carry(&mut world, &mut applied, &desired);
    world.policies.clear();
    let mut adopted = Applied::from_maps(content(&world));
    carry(&mut world, &mut adopted, &desired);
    assert_eq!((policy(&world, "a"), world.policies.len()), ((2, 2), 1));
}

#[test]
fn what_another_program_did_to_ranges_is_not_taken_for_ours() {
    let desired = limited(Some(ranges(&["10.0.0.0/8", "192.0.2.0/24"])), Some(ranges(&["10.0.0.0/9"])));
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    carry(&mut world, &mut applied, &desired);
    // A range less, and one that no policy of ours would have.
    let first = *world.policies.iter().next().unwrap();
    world.policies.remove(&first);
    world.policies.insert(common::maps::policy::PolicyKey { family: 5, ..first });
    let mut adopted = Applied::from_maps(content(&world));
    let planned = carry(&mut world, &mut adopted, &desired);
    assert!(!planned.changes.is_empty());
    assert_eq!(canonical(&world), canonical(&fresh(&desired, &ways(&desired))));
}
