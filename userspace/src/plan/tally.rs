//! What all routes together require of listeners and addresses.

use super::applied_route::AppliedRoute;
use super::policies::Policies;
use common::maps::address::Address;
use common::maps::backend::{BACKEND_REFUSING, BACKEND_UNREACHABLE, Backend, DELIVERY_DNAT};
use foldhash::HashMap;
use std::collections::BTreeSet;
use std::collections::hash_map::Entry;

/// What all routes together require of listeners and addresses, counted so that one route can be subtracted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Tally {
    /// The number of backends by listener that leads to them, whether they are IPv6, and MTU of the next hop
    /// (not 0).
    mtus: HashMap<(u32, bool, u16), usize>,
    /// The number of backends by our address towards them.
    sources: HashMap<Address, usize>,
    /// The number of backends that see their clients' addresses, by their own.
    seeing: HashMap<Address, usize>,
    /// The number of those that would take connections and cannot be led to.
    pub(super) out_of_reach: usize,
    pub(super) policies: Policies,
}

impl Tally {
    pub(super) fn add(&mut self, route: &AppliedRoute) {
        self.policies.add(route.value.policy, route.source_ranges.as_ref());
        for_each(route, |mtu| *self.mtus.entry(mtu).or_default() += 1);
        for source in sources(route) {
            *self.sources.entry(source).or_default() += 1;
        }
        for backend in seeing(route) {
            *self.seeing.entry(backend).or_default() += 1;
        }
        self.out_of_reach += out_of_reach(route);
    }

    pub(super) fn remove(&mut self, route: &AppliedRoute) {
        self.policies.remove(route.value.policy, route.source_ranges.as_ref());
        for_each(route, |mtu| take_one(&mut self.mtus, mtu));
        for source in sources(route) {
            take_one(&mut self.sources, source);
        }
        for backend in seeing(route) {
            take_one(&mut self.seeing, backend);
        }
        self.out_of_reach -= out_of_reach(route);
    }

    /// Returns the smallest MTU towards IPv4 and IPv6 backends by listener id; 0 = not known.
    pub(super) fn mtus(&self) -> HashMap<u32, [u16; 2]> {
        let mut least: HashMap<u32, [u16; 2]> = HashMap::default();
        for (listener, is_v6, mtu) in self.mtus.keys() {
            let least = &mut least.entry(*listener).or_default()[usize::from(*is_v6)];
            *least = if *least == 0 { *mtu } else { (*least).min(*mtu) };
        }
        least
    }

    /// Whether both require the same listeners and addresses.
    pub(super) fn asks_like(&self, other: &Self) -> bool {
        self.mtus() == other.mtus()
            && self.sources.len() == other.sources.len()
            && self.sources.keys().all(|source| other.sources.contains_key(source))
            && self.seeing.len() == other.seeing.len()
            && self.seeing.keys().all(|backend| other.seeing.contains_key(backend))
    }

    /// Returns the addresses of backends that see their clients' own addresses.
    pub(super) fn seeing(&self) -> impl Iterator<Item = Address> + '_ {
        self.seeing.keys().copied()
    }

    /// Whether some backend with this address sees its clients' own.
    pub(super) fn is_seeing(&self, address: &Address) -> bool {
        self.seeing.contains_key(address)
    }

    /// Returns our addresses towards backends.
    pub(super) fn sources(&self) -> BTreeSet<Address> {
        self.sources.keys().copied().collect()
    }
}

fn for_each(route: &AppliedRoute, mut each: impl FnMut((u32, bool, u16))) {
    for (_, backend) in route.backends.iter().filter(|(_, backend)| backend.mtu != 0) {
        for listener in &*route.attached {
            each((*listener, !backend.address.is_v4(), backend.mtu));
        }
    }
}

fn sources(route: &AppliedRoute) -> impl Iterator<Item = Address> {
    route.backends.iter().filter(|(_, backend)| backend.ifindex != 0).map(|(_, backend)| backend.source)
}

fn seeing(route: &AppliedRoute) -> impl Iterator<Item = Address> {
    // Also those that have no next hop any more: their open connections go on when it is back, and until then no reply may pass us.
    let sees = |backend: &Backend| backend.delivery == DELIVERY_DNAT && backend.flags & BACKEND_REFUSING == 0;
    route.backends.iter().filter(move |(_, backend)| sees(backend)).map(|(_, backend)| backend.address)
}

/// Whether a backend on this node would take connections, if clients could be led to it.
pub(super) fn is_out_of_reach(backend: &Backend) -> bool {
    backend.delivery == DELIVERY_DNAT && backend.weight > 0 && backend.flags & BACKEND_UNREACHABLE != 0
}

fn out_of_reach(route: &AppliedRoute) -> usize {
    route.backends.iter().filter(|(_, backend)| is_out_of_reach(backend)).count()
}

fn take_one<K: std::hash::Hash + Eq>(counts: &mut HashMap<K, usize>, key: K) {
    if let Entry::Occupied(mut count) = counts.entry(key) {
        *count.get_mut() -= 1;
        if *count.get() == 0 {
            count.remove();
        }
    }
}
