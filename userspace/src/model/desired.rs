//! The desired state of the data plane: facts without contradictions, in an order that does not depend on the source's.

use super::cluster::ProbeSpec;
use super::facts::{BackendSpec, Protocol, Settings};
use super::health_check::HealthCheck;
use super::name::{Pattern, ServerName};
use super::service::{Affinity, TrafficPolicy};
use super::shared_list::{Named, SharedList};
use super::source_ranges::SourceRanges;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// How a backend is probed, and the server name that a TLS hello asks for.
pub type Probe = (ProbeSpec, Option<ServerName>);

/// Backends to be probed.
pub type Probes = BTreeMap<SocketAddr, Probe>;

/// A backend that is to be probed so from now on, or not any more.
pub type ProbeChange = (SocketAddr, Option<Probe>);

/// The desired state of the data plane. Equal facts in any order give equal values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Desired {
    /// Limits and times.
    pub settings: Settings,
    /// By name.
    pub listeners: Vec<DesiredListener>,
    /// By name. Shared with what was desired before, where it did not change.
    pub routes: SharedList<Arc<DesiredRoute>>,
    /// Where the node says whether it leads to endpoints of a Service, by port and route. Not for the maps.
    pub health_checks: Arc<[HealthCheck]>,
}

/// Where clients dial. No (address, port) is in two listeners.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredListener {
    /// Unique among listeners.
    pub name: Arc<str>,
    /// Sorted. Empty when other listeners have them all: then nothing of it is served.
    pub addresses: Vec<IpAddr>,
    /// Not 0.
    pub port: u16,
    /// TLS or TCP.
    pub protocol: Protocol,
    /// Index into [`Desired::routes`]. TLS: the default route; TCP: the route.
    pub route: Option<usize>,
}

/// A tenant: which names lead to which backends. There may be a million of them: what never grows has no room to grow.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DesiredRoute {
    /// Unique among routes.
    pub name: Arc<str>,
    /// Index into [`Desired::listeners`] (a TLS listener) and what is matched there; sorted. No pair is in two routes.
    pub names: Box<[(usize, Pattern)]>,
    /// Sorted by address and port, each pair once.
    pub backends: Box<[BackendSpec]>,
    /// Whose it is: an identity that begins with its namespace, and that several claims may share. `None`: the static file's.
    pub tenant: Option<Arc<str>>,
    /// Whose connections it admits; `None`: anybody's.
    pub source_ranges: Option<SourceRanges>,
    /// Which connections reach the same backend.
    pub affinity: Affinity,
    /// Whether its backends are on this node, and see their clients' own addresses.
    pub traffic: TrafficPolicy,
    /// Which other nodes have backends of it, if this one leads only to its own; `None`: none.
    pub elsewhere: Option<Arc<Elsewhere>>,
}

/// The other nodes that have backends which take connections, as far as is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Elsewhere {
    /// Their names, by the family of the backends: IPv4, IPv6.
    nodes: [BTreeSet<Arc<str>>; 2],
    /// Nothing is known of them, and there may be some.
    pub is_unknown: bool,
}

impl Elsewhere {
    /// That of which nothing is known.
    pub fn unknown() -> Self {
        Self { is_unknown: true, ..Self::default() }
    }

    /// Notes a backend of a family on another node.
    pub fn add(&mut self, is_v4: bool, node: &Arc<str>) {
        self.nodes[usize::from(!is_v4)].insert(Arc::clone(node));
    }

    /// The nodes that have some of a family.
    pub fn nodes(&self, is_v4: bool) -> &BTreeSet<Arc<str>> {
        &self.nodes[usize::from(!is_v4)]
    }
}

impl Named for DesiredRoute {
    fn name(&self) -> &str {
        &self.name
    }
}

impl Desired {
    /// The address of every backend: the addresses whose egress [`crate::plan::Hops`] should have.
    pub fn backend_addresses(&self) -> BTreeSet<IpAddr> {
        let backends = self.routes.iter().flat_map(|route| &route.backends);
        backends.filter(|backend| !backend.is_refusing()).map(|backend| backend.address).collect()
    }
}
