//! Carries out plans on maps in memory: nothing is missing, nothing is left over, and no write leaves a gap.

/// Compares maps in memory, looks up connections in them, and reads them back.
mod check;
mod local;
/// Any sequence of configurations.
mod sequences;
/// Connections that are opened on another node.
mod opening;
/// Ids of listeners, which run out.
mod listener_ids;
/// Source ranges of routes.
mod policies;

use super::applied::AppliedRoute;
use super::*;
use crate::compile::{Compiled, compile};
use crate::model::{BackendSpec, DesiredRoute, Facts, ListenerSpec, Protocol, RouteSpec};
use check::*;
use common::maps::address::{Address, Port};
use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::ClientTuple;
use common::maps::listener::{ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use std::collections::BTreeSet;
use std::iter;
use std::net::IpAddr;
use std::sync::Arc;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn listener(
    name: &str,
    addresses: &[&str],
    port: u16,
    protocol: Protocol,
    default: Option<&str>,
) -> ListenerSpec {
    ListenerSpec {
        place: 0,
        name: name.into(),
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        port,
        protocol,
        default_route: default.map(Into::into),
    }
}

fn route(name: &str, listeners: &[&str], patterns: &[&str], backends: &[(&str, u16)]) -> RouteSpec {
    RouteSpec {
        place: 0,
        name: name.into(),
        listeners: listeners.iter().map(|name| (*name).into()).collect(),
        patterns: patterns.iter().map(|text| crate::config::pattern(text).unwrap()).collect(),
        backends: backends
            .iter()
            .map(|(address, weight)| BackendSpec {
                address: ip(address),
                port: 6443,
                weight: *weight,
                failing: false,
            })
            .collect(),
        source_ranges: None,
        affinity: crate::model::Affinity::None,
        traffic: crate::model::TrafficPolicy::Cluster,
    }
}

fn desired(listeners: Vec<ListenerSpec>, routes: Vec<RouteSpec>) -> Desired {
    let facts = Facts { listeners, routes, ..Facts::default() };
    let Compiled { desired, problems, .. } = compile(&facts);
    assert!(!problems.iter().any(Problem::is_error), "{problems:?}");
    desired
}

/// Returns a next hop over device 3 for every backend.
fn ways(desired: &Desired) -> Hops {
    let towards = desired.backend_addresses().into_iter().map(|address| {
        let source = if address.is_ipv4() { ip("10.0.0.254") } else { ip("fd00::fe") };
        (address, Hop { source, ifindex: 3, mtu: 1500, is_on_link: true })
    });
    Hops { towards: towards.collect(), own: [ip("10.0.0.254")].into(), ..Hops::default() }
}

/// Changes routes.
fn edit(desired: &mut Desired, change: impl FnOnce(&mut Vec<Arc<DesiredRoute>>)) {
    let mut routes: Vec<_> = desired.routes.iter().cloned().collect();
    change(&mut routes);
    desired.routes = routes.into_iter().collect();
}

fn two_tenants() -> Desired {
    desired(
        vec![
            listener("shared", &["10.97.0.10", "fd97::10"], 443, Protocol::Tls, Some("a")),
            listener("direct", &["10.97.0.10"], 20_001, Protocol::Tcp, None),
        ],
        vec![
            route(
                "a",
                &["shared", "direct"],
                &["a.example.com", "*.a.example.com"],
                &[("10.1.0.1", 1), ("fd01::1", 1)],
            ),
            route("b", &["shared"], &["b.example.com"], &[("10.2.0.1", 1), ("10.2.0.2", 1), ("10.2.0.3", 0)]),
        ],
    )
}

/// Returns the names of changes, without their keys.
fn kinds(changes: &[Change]) -> Vec<String> {
    let text = |change: &Change| format!("{change:?}");
    changes.iter().map(|c| text(c).split(['(', ' ']).next().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_first_plan_fills_everything_and_a_second_changes_nothing() {
    let desired = two_tenants();
    let hops = ways(&desired);
    let first = plan(&Applied::default(), &desired, &hops);
    assert!(first.later.is_empty() && first.problems.is_empty(), "{:?}", first.problems);
    let world = carried_out(&MapsImage::default(), &first);
    assert_whole(&world);
    let route = |vip, port, name| {
        let to = reached(&world, vip, port, name);
        format!("{} {} {}", to.listener, to.route, to.members.len())
    };
    assert_eq!(route("10.97.0.10", 443, "a.example.com"), "shared a 1");
    assert_eq!(route("fd97::10", 443, "x.a.example.com"), "shared a 1");
    assert_eq!(route("10.97.0.10", 443, "unknown.org"), "shared a 1");
    assert_eq!(route("10.97.0.10", 443, "b.example.com"), "shared b 2");
    assert_eq!(route("fd97::10", 443, "b.example.com"), "shared b 0");
    assert_eq!(route("10.97.0.10", 20_001, ""), "direct a 1");
    assert_eq!(route("10.97.0.10", 444, "a.example.com"), "  0");
    assert_eq!(world.addresses[&Address::from(ip("10.97.0.10"))], ROLE_VIP);
    assert_eq!(world.addresses[&Address::from(ip("10.0.0.254"))], ROLE_SOURCE | ROLE_OWN);
    assert_eq!(world.addresses[&Address::from(ip("fd00::fe"))], ROLE_SOURCE);
    let second = plan(&first.applied, &desired, &hops);
    assert_eq!((second.changes, second.later), (vec![], vec![]));
    let adopted = plan(&Applied::from_maps(content(&world)), &desired, &hops);
    assert_eq!((adopted.changes, adopted.later), (vec![], vec![]));
}

#[test]
fn a_changed_backend_is_one_switch() {
    let before = two_tenants();
    let mut after = before.clone();
    edit(&mut after, |routes| Arc::make_mut(&mut routes[0]).backends[0].address = ip("10.1.0.9"));
    let first = plan(&Applied::default(), &before, &ways(&before));
    let second = plan(&first.applied, &after, &ways(&after));
    assert_eq!(kinds(&second.changes), ["PutIds", "PutBackend", "PutRoute", "Settle", "PutBackend", "Reset"]);
    assert_eq!(kinds(&second.later), ["DeleteBackend"]);
    let Some(Change::Reset(selector)) = second.changes.last() else { panic!() };
    assert_eq!((selector.backends.len(), selector.listeners.len(), selector.detached.len()), (1, 0, 0));
}

#[test]
fn a_weight_changes_the_table_and_ends_no_flow() {
    let before = two_tenants();
    let mut after = before.clone();
    edit(&mut after, |routes| Arc::make_mut(&mut routes[1]).backends[2].weight = 2);
    let first = plan(&Applied::default(), &before, &ways(&before));
    let second = plan(&first.applied, &after, &ways(&after));
    let kinds = kinds(&second.changes);
    assert!(!kinds.contains(&"Reset".to_owned()) && !kinds.contains(&"Settle".to_owned()), "{kinds:?}");
    assert_eq!(kinds.iter().filter(|kind| *kind == "PutRoute").count(), 1);
    assert_eq!(kinds.iter().filter(|kind| *kind == "PutBackend").count(), 1);
}

/// A node may have a million routes, most at the same listeners.
#[test]
fn routes_at_the_same_listeners_share_their_ids_and_none_has_room_to_grow() {
    let listeners = vec![listener("shared", &["10.97.0.10"], 443, Protocol::Tls, None)];
    let names = ["a", "b", "c"];
    let routes = names.map(|name| route(name, &["shared"], &[name], &[("10.1.0.1", 1)])).to_vec();
    let desired = desired(listeners, routes);
    let planned = plan(&Applied::default(), &desired, &ways(&desired));
    let found = Applied::from_maps(content(&carried_out(&MapsImage::default(), &planned)));
    for applied in [planned.applied, found] {
        let first = &applied.routes[0].attached;
        assert!(applied.routes.iter().all(|route| Arc::ptr_eq(&route.attached, first)), "{applied:?}");
        let has_room = |route: &AppliedRoute| {
            route.names.capacity() > route.names.len() || route.backends.capacity() > route.backends.len()
        };
        assert!(!applied.routes.iter().any(|route| has_room(route)), "{applied:?}");
        assert_eq!(first.len(), 1);
    }
}

#[test]
fn routes_that_come_one_by_one_share_the_ids_of_their_neighbours() {
    let listeners = || {
        let port = |name, port| listener(name, &["10.97.0.10"], port, Protocol::Tls, None);
        vec![port("one", 443), port("two", 444)]
    };
    let all = ["a1", "a2", "b1", "b2"];
    let mut applied = Applied::default();
    for count in 1..=all.len() {
        let own = |name: &&str| {
            let at = if name.starts_with('a') { "one" } else { "two" };
            route(name, &[at], &[name], &[("10.1.0.1", 1)])
        };
        let desired = desired(listeners(), all[..count].iter().map(own).collect());
        applied = plan(&applied, &desired, &Hops { edition: 1, ..ways(&desired) }).applied;
    }
    let [a1, a2, b1, b2] = [0, 1, 2, 3].map(|place: usize| &applied.routes[place].attached);
    assert!(Arc::ptr_eq(a1, a2) && Arc::ptr_eq(b1, b2) && a1 != b1, "{a1:?} {a2:?} {b1:?} {b2:?}");
}

#[test]
fn what_is_equal_replaces_what_was_planned_for() {
    let before = two_tenants();
    let hops = Hops { edition: 1, ..ways(&before) };
    let mut applied = plan(&Applied::default(), &before, &hops).applied;
    let now = two_tenants();
    applied.take_equal(&now);
    let kept = Arc::downgrade(&before.routes[0]);
    drop(before);
    assert!(kept.upgrade().is_none());
    assert!(plan(&applied, &now, &hops).changes.is_empty());
}

#[test]
fn a_changed_way_is_one_write_a_backend() {
    let desired = two_tenants();
    let hops = ways(&desired);
    let first = plan(&Applied::default(), &desired, &hops);
    let mut moved = hops.clone();
    moved.towards.remove(&ip("10.2.0.1"));
    moved.own.insert(ip("10.2.0.2"));
    let second = plan(&first.applied, &desired, &moved);
    let errors: Vec<Problem> = second.problems.iter().filter(|problem| problem.is_error()).cloned().collect();
    assert_eq!(impossible(&desired, &moved), errors);
    // The route's table stays, for none of its members can be reached.
    assert_eq!(kinds(&second.changes), ["PutBackend", "PutBackend"]);
    assert_eq!(second.problems.len(), 2);
    assert_eq!(second.problems.iter().filter(|problem| problem.is_error()).count(), 1);
    assert!(plan(&second.applied, &desired, &moved).problems.is_empty());
}

/// A connection passes over members without a route one by one.
#[test]
fn tables_hold_only_members_that_the_node_reaches_while_there_is_one() {
    let addresses: Vec<String> = (1..=40).map(|last| format!("10.1.0.{last}")).collect();
    let backends: Vec<(&str, u16)> = addresses.iter().map(|address| (address.as_str(), 1)).collect();
    let desired = desired(
        vec![listener("shared", &["10.97.0.10"], 443, Protocol::Tls, None)],
        vec![route("a", &["shared"], &["a.example.com"], &backends)],
    );
    let all = ways(&desired);
    let mut few = all.clone();
    for address in desired.backend_addresses() {
        if ![ip("10.1.0.7"), ip("10.1.0.40")].contains(&address) {
            few.towards.remove(&address);
        }
    }
    let none = Hops { towards: Default::default(), ..all.clone() };
    let members = |world: &MapsImage| reached(world, "10.97.0.10", 443, "a.example.com").members;
    let (mut world, mut applied) = (MapsImage::default(), Applied::default());
    for (hops, expected) in [(&all, 40), (&few, 2), (&none, 40), (&few, 2), (&all, 40)] {
        let planned = plan(&applied, &desired, hops);
        world = carried_out(&world, &planned);
        assert_whole(&world);
        assert_eq!(members(&world).len(), expected);
        assert_eq!(canonical(&world), canonical(&fresh(&desired, hops)));
        assert!(plan(&Applied::from_maps(content(&world)), &desired, hops).changes.is_empty());
        applied = planned.applied;
    }
}

#[test]
fn listeners_announce_what_fits_their_narrowest_device() {
    let desired = two_tenants();
    let mut hops = ways(&desired);
    for (address, mtu) in [("10.2.0.2", 1400), ("fd01::1", 9000)] {
        let hop = *hops.towards.get(&ip(address)).unwrap();
        hops.towards.put(ip(address), 1, Some(Hop { mtu, ..hop }));
    }
    let world = carried_out(&MapsImage::default(), &plan(&Applied::default(), &desired, &hops));
    let mss: Vec<_> =
        world.listeners.iter().map(|(key, l)| (key.address.is_v4(), key.port.number(), l.mss)).collect();
    assert_eq!(mss, [(true, 443, 1360), (true, 20_001, 1460), (false, 443, 8900)]);
}

#[test]
fn configured_sources_come_before_the_devices_own() {
    let mut desired = two_tenants();
    desired.settings.source_addresses = vec![ip("10.0.0.77")];
    let world = carried_out(&MapsImage::default(), &plan(&Applied::default(), &desired, &ways(&desired)));
    let sources: BTreeSet<_> = world.backends.values().map(|b| IpAddr::from(b.source)).collect();
    assert_eq!(sources, [ip("10.0.0.77"), ip("fd00::fe")].into());
    assert_eq!(world.addresses[&Address::from(ip("10.0.0.77"))], ROLE_SOURCE);
}

#[test]
fn a_name_that_moves_is_overwritten() {
    let before = two_tenants();
    let mut after = before.clone();
    edit(&mut after, |routes| {
        let [from, to] = [0, 1].map(|route: usize| routes[route].names.to_vec());
        let (moved, rest) = from.split_first().unwrap();
        Arc::make_mut(&mut routes[0]).names = rest.into();
        Arc::make_mut(&mut routes[1]).names = iter::once(moved).chain(&to).cloned().collect();
    });
    let first = plan(&Applied::default(), &before, &ways(&before));
    let second = plan(&first.applied, &after, &ways(&after));
    assert_eq!(kinds(&second.changes), ["PutName"]);
}

#[test]
fn what_is_withdrawn_ends() {
    let before = two_tenants();
    let first = plan(&Applied::default(), &before, &ways(&before));
    let mut after = before.clone();
    after.listeners[1].addresses.retain(IpAddr::is_ipv4);
    after.listeners.remove(0);
    edit(&mut after, |routes| {
        for route in routes.iter_mut() {
            Arc::make_mut(route).names.iter_mut().for_each(|(listener, _)| *listener = 0);
        }
        routes.remove(1);
    });
    let second = plan(&first.applied, &after, &ways(&after));
    let Some(Change::Reset(selector)) = second.changes.last() else { panic!() };
    assert_eq!(selector.listeners.len(), 1);
    assert_eq!(selector.withdrawn.len(), 1);
    assert_eq!(selector.backends.len(), 3);
    let world = carried_out(&carried_out(&MapsImage::default(), &first), &second);
    assert_whole(&world);
    assert_eq!(canonical(&world), canonical(&fresh(&after, &ways(&after))));
    let census = second.applied.census();
    let tuple = |vip: &str, port| {
        let (client, vip) = (Address::default(), Address::from(ip(vip)));
        ClientTuple::tcp(client, vip, Port::new(0), Port::new(port))
    };
    let kept = world.listeners.values().next().unwrap();
    let (backend, value) = world.backends.iter().next().unwrap();
    assert!(census.knows(&tuple("10.97.0.10", 443), kept.id, value.route, *backend));
    assert!(!census.knows(&tuple("fd97::10", 443), kept.id, value.route, *backend));
    let gone = first.applied.ids.backend - 1;
    assert!(!world.backends.contains_key(&gone), "{gone}");
    assert!(!census.knows(&tuple("10.97.0.10", 443), kept.id, value.route, gone));
    // The next change may come before all connections were looked at: its backends are not in the census.
    assert!(census.knows(&tuple("10.97.0.10", 443), kept.id, value.route, second.applied.ids.backend));
    assert!(!census.knows(&tuple("10.97.0.10", 20_001), kept.id, value.route, *backend));
}

#[test]
fn a_retired_backend_found_in_the_maps_is_ended_and_deleted() {
    let desired = two_tenants();
    let hops = ways(&desired);
    let mut world = carried_out(&MapsImage::default(), &plan(&Applied::default(), &desired, &hops));
    let template = *world.backends.values().next().unwrap();
    world.backends.insert(77, common::maps::backend::Backend { flags: BACKEND_RETIRED, ..template });
    let adopted = plan(&Applied::from_maps(content(&world)), &desired, &hops);
    assert_eq!(kinds(&adopted.changes), ["Reset"]);
    assert_eq!(kinds(&adopted.later), ["DeleteBackend"]);
    assert!(adopted.applied.ids.backend > 77);
}
