//! Routes to backends on the node itself, which see their clients' own addresses.

use super::Planner;
use super::applied::Applied;
use super::hops::Hop;
use super::tally::is_out_of_reach;
use crate::model::{BackendSpec, Desired, DesiredListener, DesiredRoute, Problem, Protocol, TrafficPolicy};
use common::maps::address::Address;
use common::maps::backend::{
    BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend, DELIVERY_DNAT, DELIVERY_NAT,
};
use common::maps::listener::ROLE_BACKEND;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
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
        let refuses = BACKEND_RETIRED | BACKEND_UNREACHABLE | BACKEND_REFUSING;
        let takes =
            |own: &Backend| own.address.is_v4() == is_v4 && own.weight > 0 && own.flags & refuses == 0;
        let own = self.routes.find(&route.name);
        own.is_some_and(|own| own.backends.iter().any(|(_, backend)| takes(backend)))
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
