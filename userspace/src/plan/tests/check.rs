//! Compares maps in memory ("worlds"), looks up connections in them, and reads them back.

use crate::model::{Desired, SourceRanges};
use crate::plan::tables::page_count;
use crate::plan::{Applied, Change, Hops, MapsContent, MapsImage, Plan, plan};
use common::decide::route_key;
use common::maps::address::{Address, Port};
use common::maps::backend::{BACKEND_RETIRED, BACKEND_UNREACHABLE, DELIVERY_DNAT};
use common::maps::listener::{AddressRole, ListenerKey, PROTOCOL_TLS, ROLE_BACKEND, ROLE_SOURCE, ROLE_VIP};
use common::maps::route::{
    LABEL_LISTENER, LABEL_ROUTE, NameKey, NameRoute, PageKey, Route, SuffixKey, Table,
};
use std::collections::BTreeSet;
use std::net::IpAddr;

/// Returns the world after all writes of a plan.
pub(super) fn carried_out(world: &MapsImage, plan: &Plan) -> MapsImage {
    let mut world = world.clone();
    plan.changes.iter().chain(&plan.later).for_each(|change| world.apply(change));
    world
}

/// Returns the world after a first plan.
pub(super) fn fresh(desired: &Desired, hops: &Hops) -> MapsImage {
    carried_out(&MapsImage::default(), &plan(&Applied::default(), desired, hops))
}

/// Returns the content that a daemon would read from pinned maps.
pub(super) fn content(world: &MapsImage) -> MapsContent {
    let name = |((listener, name), route): (&(u32, Box<[u8]>), &u32)| {
        let one_label =
            route_key::suffix_of(name).map(|suffix| route_key::one_label(*listener, suffix).unwrap());
        let key = one_label.unwrap_or_else(|| {
            let (bytes, length) = route_key::buffer(name).unwrap();
            let mut key = NameKey::zeroed();
            route_key::exact(&mut key, *listener, &bytes, length);
            key
        });
        (key, NameRoute { route: *route })
    };
    let wildcard = |((listener, suffix), route): (&(u32, Box<[u8]>), &u32)| {
        let key: SuffixKey = route_key::wildcard(*listener, suffix).unwrap();
        (key, NameRoute { route: *route })
    };
    MapsContent {
        settings: world.settings,
        ids: world.ids,
        addresses: world.addresses.iter().map(|(a, flags)| (*a, AddressRole { flags: *flags })).collect(),
        listeners: world.listeners.iter().map(|(k, v)| (*k, *v)).collect(),
        names: world.names.iter().map(name).collect(),
        wildcards: world.wildcards.iter().map(wildcard).collect(),
        policies: world.policies.iter().copied().collect(),
        routes: world.routes.iter().map(|(k, v)| (*k, *v)).collect(),
        pages: world.pages.iter().map(|(k, v)| (*k, *v)).collect(),
        members: world.members.iter().map(|(k, v)| (*k, *v)).collect(),
        backends: world.backends.iter().map(|(k, v)| (*k, *v)).collect(),
        labels: world.labels.iter().map(|(k, v)| (*k, *v)).collect(),
        counters: world.counters.iter().copied().collect(),
    }
}

/// The result of looking up a new connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Reached {
    /// Empty: nothing answers.
    pub(super) listener: String,
    /// Empty: no route takes it.
    pub(super) route: String,
    /// Empty: no backend of the family.
    pub(super) members: Vec<(IpAddr, u16)>,
    /// Whose connections the route, and a TCP listener, admit; `None`: anybody's.
    pub(super) ranges: [Option<SourceRanges>; 2],
}

/// Looks up a new connection.
pub(super) fn reached(world: &MapsImage, vip: &str, port: u16, name: &str) -> Reached {
    let address = Address::from(vip.parse::<IpAddr>().unwrap());
    let is_vip = world.addresses.get(&address).copied().unwrap_or_default() & ROLE_VIP != 0;
    let key = ListenerKey { address, port: Port::new(port), reserved: [0; 2] };
    let Some(listener) = world.listeners.get(&key).filter(|_| is_vip) else { return Reached::default() };
    let named = (listener.protocol == PROTOCOL_TLS).then(|| {
        let exact = world.exact(listener.id, name);
        let exact = exact.or_else(|| world.one_label(listener.id, name));
        exact.or_else(|| world.wildcard(listener.id, name).map(|(_, route)| route))
    });
    let id = named.flatten().unwrap_or(listener.route);
    let route = world.routes.get(&id).copied().unwrap_or_default();
    Reached {
        listener: world.label(LABEL_LISTENER, listener.id).unwrap().to_owned(),
        route: world.label(LABEL_ROUTE, id).unwrap_or_default().to_owned(),
        members: members(world, if address.is_v4() { &route.v4 } else { &route.v6 }),
        ranges: [route.policy, listener.policy].map(|policy| world.ranges(policy)),
    }
}

/// Returns the members of a table. All of them must exist.
fn members(world: &MapsImage, table: &Table) -> Vec<(IpAddr, u16)> {
    for page in 0..page_count(table.slots) {
        assert!(world.pages.contains_key(&PageKey { table: table.id, page }), "page {page} of {table:?}");
    }
    let member = |member| {
        let id = world.member(table, member).expect("all members are there");
        let backend = &world.backends[&id];
        (backend, (IpAddr::from(backend.address), backend.port.number()))
    };
    (0..table.members)
        .map(member)
        .map(|(backend, place)| {
            assert_eq!(backend.flags & BACKEND_RETIRED, 0, "{place:?} takes no flows");
            if backend.delivery == DELIVERY_DNAT && backend.flags & BACKEND_UNREACHABLE == 0 {
                let role = world.addresses.get(&backend.address).copied().unwrap_or_default();
                let deliveries = world.settings.deliveries;
                let are_known = role & ROLE_BACKEND != 0 && deliveries & 1 << DELIVERY_DNAT != 0;
                assert!(are_known, "replies of {place:?} are not known: {role} {deliveries}");
            }
            place
        })
        .collect()
}

/// Asserts that all entries lead only to complete entries.
pub(super) fn assert_whole(world: &MapsImage) {
    let by_name = world.names.values().chain(world.wildcards.values()).copied();
    let by_default = world.listeners.values().map(|listener| listener.route).filter(|route| *route != 0);
    for route in by_name.chain(by_default) {
        let Route { v4, v6, .. } = world.routes[&route];
        assert!(world.counters.contains(&route) && world.label(LABEL_ROUTE, route).is_some());
        members(world, &v4);
        members(world, &v6);
    }
    for listener in world.listeners.values() {
        assert!(world.label(LABEL_LISTENER, listener.id).is_some());
    }
}

/// Describes a world with names instead of ids. Source addresses are left out: they stay after their use.
pub(super) fn canonical(world: &MapsImage) -> BTreeSet<String> {
    let route = |id: u32| if id == 0 { "none" } else { world.label(LABEL_ROUTE, id).unwrap_or("?") };
    let listener = |id: u32| world.label(LABEL_LISTENER, id).unwrap_or("?");
    let mut lines = BTreeSet::new();
    for (key, value) in &world.listeners {
        let admitted = world.ranges(value.policy);
        let shown = (listener(value.id), route(value.route), value.mss, value.protocol, admitted);
        lines.insert(format!("{:?} {} {shown:?}", IpAddr::from(key.address), key.port.number()));
    }
    for ((id, name), to) in &world.names {
        lines.insert(format!("{} {} {}", listener(*id), name.escape_ascii(), route(*to)));
    }
    for ((id, name), to) in &world.wildcards {
        lines.insert(format!("{} *.{} {}", listener(*id), name.escape_ascii(), route(*to)));
    }
    for (id, value) in &world.routes {
        for (family, table) in [(4, value.v4), (6, value.v6)] {
            let pages: Vec<_> = (0..page_count(table.slots))
                .map(|page| world.pages[&PageKey { table: table.id, page }].slots)
                .collect();
            let slots = (table.slots, members(world, &table), pages);
            lines.insert(format!("{} v{family} of {}: {slots:?}", route(*id), value.backends));
        }
        lines.insert(format!("{} admits {:?}", route(*id), world.ranges(value.policy)));
        lines.insert(format!("{} picks by {}", route(*id), value.pick));
    }
    for value in world.backends.values() {
        let mut shown = *value;
        shown.route = 0;
        lines.insert(format!("{} {shown:?}", route(value.route)));
    }
    for (address, flags) in
        world.addresses.iter().filter(|(_, flags)| **flags & (ROLE_VIP | ROLE_BACKEND) != 0)
    {
        lines.insert(format!("{:?} {}", IpAddr::from(*address), flags & !ROLE_SOURCE));
    }
    let left = [
        world.pages.len(),
        world.members.len(),
        world.labels.len(),
        world.counters.len(),
        world.backends.len(),
        world.policies.len(),
    ];
    lines.insert(format!("{left:?} {:?}", world.settings));
    lines
}

/// Returns the id that a change adds to the maps: (kind, id).
pub(super) fn new_ids(world: &MapsImage, change: &Change) -> Option<(&'static str, u32)> {
    match change {
        Change::PutRoute(id, _) if !world.routes.contains_key(id) => Some(("route", *id)),
        Change::PutBackend(id, _) if !world.backends.contains_key(id) => Some(("backend", *id)),
        Change::PutMember(key, _) if key.member == 0 => Some(("table", key.table)),
        Change::PutLabel(key, _) if key.kind == LABEL_LISTENER => Some(("listener", key.id)),
        _ => None,
    }
}
