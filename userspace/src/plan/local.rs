//! Routes to backends on the node itself, which see their clients' own addresses.

use super::Planner;
use super::applied::Applied;
use super::next_hops::Hop;
use super::tally::is_out_of_reach;
use crate::model::{
    BackendSpec, Desired, DesiredListener, DesiredRoute, HealthCheck, ObjectName, Problem, Protocol,
    TrafficPolicy,
};
use common::maps::address::Address;
use common::maps::backend::{
    BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend, DELIVERY_DNAT, DELIVERY_NAT,
};
use common::maps::listener::ROLE_BACKEND;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::sync::Arc;

/// Returns how the backends of a route are reached.
pub(super) fn delivery(traffic: TrafficPolicy) -> u8 {
    match traffic {
        TrafficPolicy::Cluster => DELIVERY_NAT,
        TrafficPolicy::Local => DELIVERY_DNAT,
    }
}

/// Whether a backend behind this hop can be reached so. Replies to the node's own address come back by any device. Those to
/// clients must come by the one that leads to the backend, for that has the program.
pub(super) fn admits(delivery: u8, hop: &Hop) -> bool {
    delivery != DELIVERY_DNAT || hop.is_on_link
}

/// Returns what is wrong with a backend that [`admits`] refuses.
pub(super) fn behind_router(route: &str, spec: &BackendSpec) -> Problem {
    let backend = SocketAddr::new(spec.address, spec.port);
    let what = format!(
        "route {route}: backend {backend} is reached over a router, so its replies to clients may come by a device without our program"
    );
    let remedy = "write externalTrafficPolicy Cluster, or give the node a route to its pods without a router";
    Problem::warning("", what, remedy)
}

/// Which nodes lead the clients of an address to a backend.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Leading {
    /// This one.
    pub here: bool,
    /// The names of others.
    pub others: BTreeSet<Arc<str>>,
    /// There may be others.
    pub is_unknown: bool,
}

/// What this node leads clients of a Service to, of which it says so at a port of its own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Health {
    /// The Service.
    pub service: ObjectName,
    /// The maps hold a route to it.
    pub is_held: bool,
    /// The number of its ready endpoints on this node: those of the family of which there are more.
    pub endpoints: usize,
}

impl Planner<'_> {
    /// Returns the bits of the deliveries for which the programs look at senders, too.
    pub(super) fn deliveries(&self) -> u32 {
        let is_sender = |flags: &u32| flags & ROLE_BACKEND != 0;
        u32::from(self.after.addresses.values().any(is_sender)) << DELIVERY_DNAT
    }

    /// Returns the addresses of backends that see their clients' own addresses. The node's own are never led to.
    pub(super) fn seeing(&self) -> impl Iterator<Item = Address> + '_ {
        self.after.tally.seeing().filter(|backend| !self.own.contains(&IpAddr::from(*backend)))
    }
}

impl Applied {
    /// Returns which nodes lead clients of an address to a backend, of the addresses where each leads only to its own: all that listens
    /// there does.
    pub fn leading(&self, desired: &Desired) -> BTreeMap<IpAddr, Leading> {
        let local = |listener: &DesiredListener| {
            let route = listener.route.and_then(|place| desired.routes.get(place));
            route.filter(|route| listener.protocol == Protocol::Tcp && route.traffic == TrafficPolicy::Local)
        };
        let (mut leading, mut all) = (BTreeMap::<IpAddr, Leading>::new(), Vec::new());
        for listener in &desired.listeners {
            let route = local(listener);
            for address in &listener.addresses {
                let Some(route) = route else {
                    all.push(address);
                    continue;
                };
                let (is_v4, of_address) = (address.is_ipv4(), leading.entry(*address).or_default());
                of_address.here |= self.takes(route, is_v4);
                if let Some(elsewhere) = &route.elsewhere {
                    of_address.others.extend(elsewhere.nodes(is_v4).iter().cloned());
                    of_address.is_unknown |= elsewhere.is_unknown;
                }
            }
        }
        for address in all {
            leading.remove(address);
        }
        leading
    }

    /// Whether a route has a backend of a family that takes connections here.
    fn takes(&self, route: &DesiredRoute, is_v4: bool) -> bool {
        self.taking(&route.name).any(|address| address.is_v4() == is_v4)
    }

    /// Returns the addresses of the backends of a route that take connections here.
    fn taking(&self, route: &str) -> impl Iterator<Item = Address> {
        let refuses = BACKEND_RETIRED | BACKEND_UNREACHABLE | BACKEND_REFUSING;
        let backends = self.routes.find(route).into_iter().flat_map(|own| &own.backends);
        let taking = backends.filter(move |(_, own)| own.weight > 0 && own.flags & refuses == 0);
        taking.map(|(_, own)| own.address)
    }

    /// Returns by port what this node leads to, of what it is to say so of: ready endpoints of those by which [`Self::leading`] decides
    /// whether the node may have an address.
    pub fn health(&self, desired: &Desired) -> BTreeMap<NonZeroU16, Health> {
        let mut health = BTreeMap::new();
        // Sorted by port.
        for checks in desired.health_checks.chunk_by(|a, b| a.port == b.port) {
            let Some(HealthCheck { port, service, .. }) = checks.first() else { continue };
            // The port was another Service's until a moment ago.
            let own = || checks.iter().filter(|check| check.service == *service);
            let ready = own().filter(|check| !check.is_draining);
            let addresses: BTreeSet<Address> = ready.flat_map(|check| self.taking(&check.route)).collect();
            let v4 = addresses.iter().filter(|address| address.is_v4()).count();
            let leads = |route: &str| self.routes.find(route).is_some_and(|own| !own.attached.is_empty());
            let is_held = own().any(|check| leads(&check.route));
            let endpoints = if is_held { v4.max(addresses.len() - v4) } else { 0 };
            health.insert(*port, Health { service: service.clone(), is_held, endpoints });
        }
        health
    }

    /// Returns the backends on this node, by the name of their route, that would take connections if clients could be led to them.
    pub fn out_of_reach(&self) -> impl Iterator<Item = (&Arc<str>, Vec<SocketAddr>)> {
        let routes = (self.tally.out_of_reach > 0).then(|| self.routes.iter());
        routes.into_iter().flatten().filter_map(|route| {
            let unreached = route.backends.iter().filter(|(_, backend)| is_out_of_reach(backend));
            let at = |(_, own): &(u32, Backend)| SocketAddr::new(own.address.into(), own.port.number());
            let all: Vec<SocketAddr> = unreached.map(at).collect();
            (!all.is_empty()).then_some((&route.name, all))
        })
    }
}
