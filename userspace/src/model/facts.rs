//! What a source says: listeners, routes, backends, settings. Each value is checked by itself; whether they fit
//! together is for `compile` to say.

use super::cluster::Cluster;
use super::name::Pattern;
use super::node::NodeFacts;
use super::service::{Affinity, TrafficPolicy};
use super::source_ranges::SourceRanges;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

/// Everything a source says. Problems name objects by their position: `listeners[0]`, `routes[3]`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// Limits and times.
    pub settings: Settings,
    /// In the order of the source.
    pub listeners: Vec<ListenerSpec>,
    /// In the order of the source.
    pub routes: Vec<RouteSpec>,
    /// What Kubernetes says; `None`: it is not asked, and the file is all there is.
    pub cluster: Option<Cluster>,
    /// What the node says.
    pub node: NodeFacts,
}

/// What a listener does with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// Routes by TLS server name; TLS passes through.
    Tls,
    /// Routes by address and port alone.
    Tcp,
}

/// Where clients dial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSpec {
    /// Position in the source: `listeners[place]`.
    pub place: usize,
    /// Unique among listeners.
    pub name: Arc<str>,
    /// At least one, each once.
    pub addresses: Vec<IpAddr>,
    /// Not 0.
    pub port: u16,
    /// TLS or TCP.
    pub protocol: Protocol,
    /// Name of the route that takes unknown names and no name.
    pub default_route: Option<Arc<str>>,
}

impl ListenerSpec {
    /// Where it takes connections.
    pub fn bindings(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|address| SocketAddr::new(*address, self.port))
    }
}

/// A tenant: which names lead to which backends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteSpec {
    /// Position in the source: `routes[place]`.
    pub place: usize,
    /// Unique among routes.
    pub name: Arc<str>,
    /// Names of listeners.
    pub listeners: Vec<Arc<str>>,
    /// What it matches on TLS listeners, in the order of the source; each once.
    pub patterns: Vec<Pattern>,
    /// In the order of the source; each (address, port) once.
    pub backends: Vec<BackendSpec>,
    /// Whose connections it admits; `None`: anybody's.
    pub source_ranges: Option<SourceRanges>,
    /// Which connections reach the same backend.
    pub affinity: Affinity,
    /// Whether its backends are on this node, and see their clients' own addresses.
    pub traffic: TrafficPolicy,
}

/// Where connections go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BackendSpec {
    /// Unicast, not loopback, IPv4 never in its mapped IPv6 form. Unspecified: see [`BackendSpec::refusing`].
    pub address: IpAddr,
    /// Not 0, unless it refuses.
    pub port: u16,
    /// Share of new flows relative to the route's other backends of the family; 0 = none.
    pub weight: u16,
    /// The node's own probes find it down: this is reported, and its weight is 0.
    pub failing: bool,
}

impl BackendSpec {
    /// What refuses its share of new connections of a family: a reference that leads nowhere.
    pub fn refusing(family_of: IpAddr, weight: u16) -> Self {
        let address = match family_of {
            IpAddr::V4(_) => IpAddr::from([0; 4]),
            IpAddr::V6(_) => IpAddr::from([0; 16]),
        };
        Self { address, port: 0, weight, failing: false }
    }

    /// Whether it is what [`BackendSpec::refusing`] gives.
    pub fn is_refusing(&self) -> bool {
        self.address.is_unspecified()
    }
}

/// Limits and times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Our addresses towards backends, at most one a family; a family without one: the kernel's choice.
    pub source_addresses: Vec<IpAddr>,
    /// First and last port of source NAT, inclusive.
    pub source_ports: (u16, u16),
    /// A flow without packets for this long is reset; answers to probes are packets. Whole seconds.
    pub idle_timeout: Duration,
    /// A hello must be complete, and its backend connected, within this time.
    pub hello_timeout: Duration,
    /// Most flows.
    pub max_flows: u32,
    /// Most server names, and most routes.
    pub max_names: u32,
    /// Most waiting hellos.
    pub max_hellos: u32,
    /// Most flows of one route; `None`: see [`Settings::route_flows`].
    pub flows_per_route: Option<u32>,
    /// Most flows of one source (IPv4 /32, IPv6 /64) to one route.
    pub flows_per_source: u32,
    /// Most hellos of one source that wait for one route's backends; `None`: see [`Settings::source_connecting`].
    pub connecting_per_source: Option<u32>,
    /// Answers ARP and neighbour discovery for the addresses of listeners; `None`: not at all.
    pub l2: Option<L2>,
    /// Names of devices on which XDP answers and drops what it can, before TCX.
    pub xdp_devices: Vec<Arc<str>>,
    /// Clients on the node itself reach the addresses of listeners, by a pair of devices and routes into it.
    pub node_clients: bool,
    /// The node answers at the ports of [`super::Desired::health_checks`]; otherwise there are none.
    pub serves_health_checks: bool,
}

/// How addresses are announced by ARP and neighbour discovery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct L2 {
    /// Most frames a second and device.
    pub announce_rate: u32,
    /// Most frames a second and device that only refresh what is known. Part of [`L2::announce_rate`].
    pub refresh_rate: u32,
}

impl Default for L2 {
    fn default() -> Self {
        Self { announce_rate: 1_000, refresh_rate: 10 }
    }
}

/// A node with fewer routes lets one of them have all flows.
const ROUTES_THAT_SHARE: usize = 4;

impl Settings {
    /// Returns the most flows of one route on a node with this many routes. By default a quarter of all, so that one
    /// tenant cannot take the whole table.
    pub fn route_flows(&self, routes: usize) -> u32 {
        let all = if routes < ROUTES_THAT_SHARE { self.max_flows } else { self.max_flows.div_ceil(4) };
        self.flows_per_route.unwrap_or(all)
    }

    /// Returns the most hellos of one source that wait for one route's backends: by default an eighth of all.
    pub fn source_connecting(&self) -> u32 {
        self.connecting_per_source.unwrap_or(self.max_hellos.div_ceil(8))
    }
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            source_addresses: Vec::new(),
            source_ports: (1024, 29_999),
            idle_timeout: Duration::from_secs(25 * 3600),
            hello_timeout: Duration::from_secs(10),
            max_flows: 1_000_000,
            max_names: 1_000_000,
            max_hellos: 65_536,
            flows_per_route: None,
            flows_per_source: 65_536,
            connecting_per_source: None,
            l2: None,
            xdp_devices: Vec::new(),
            node_clients: false,
            serves_health_checks: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_of_four_routes_has_a_quarter_of_the_flows() {
        let settings = Settings { max_flows: 1_001, ..Settings::default() };
        assert_eq!(
            [0, 1, 3, 4, 5_000].map(|routes| settings.route_flows(routes)),
            [1_001, 1_001, 1_001, 251, 251]
        );
        let own = Settings { flows_per_route: Some(7), ..settings };
        assert_eq!([1, 4].map(|routes| own.route_flows(routes)), [7, 7]);
    }
}
