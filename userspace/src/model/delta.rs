//! What changed at a source, entry by entry: the unit of the seam between sources and `compile`.

use super::announcement::Announcement;
use super::facts::RouteSpec;
use super::node::Node;
use super::object::ObjectName;
use std::collections::{BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// What is different from what a source said before.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Delta {
    /// In any order, but for a route that replaces another of its name: that one goes first.
    pub changes: Vec<Change>,
    /// The positions of the routes in the file now, unchanged ones included.
    pub places: Places,
}

/// One entry that is another now. Its key is the variant and, where there are several of a kind, the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// A route of the file, by its name; `None`: it is gone. A route that comes while another of its name is there is a
    /// contradiction, which only the whole file can show.
    Route(Arc<str>, Option<RouteSpec>),
    /// The endpoints of a Service. Their content is in the cluster, which is lent to the compiler.
    Endpoints(ObjectName),
    /// The versions of Claims that say the same as before; likewise.
    Versions,
    /// Any other object of the cluster; likewise.
    Objects,
    /// First and last port that the node's kernel hands out; `None`: not known.
    LocalPorts(Option<(u16, u16)>),
    /// The node's zone; `None`: not known.
    Zone(Option<Arc<str>>),
    /// All backends that the node's own probes find down.
    Failing(BTreeSet<SocketAddr>),
    /// The devices that the node's operator names; none: those of the routes.
    Devices(Vec<Arc<str>>),
    /// The node's devices, addresses and routes, or one of these that is not there.
    Network(Arc<Node>),
    /// Whether the node takes no new connections.
    Draining(bool),
    /// Addresses of API servers.
    ApiServers(Arc<BTreeSet<IpAddr>>),
    /// What the cluster announces, and who; `None`: nothing.
    Announcement(Option<Arc<Announcement>>),
}

/// Positions of routes in the file, before and now. Equal ends are described by their length alone.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Places {
    /// Number of routes before.
    pub before: usize,
    /// Number of routes now.
    pub now: usize,
    /// Number of equal routes at the start.
    pub first: usize,
    /// Number of equal routes at the end.
    pub last: usize,
    /// Equal routes between the ends: position before, position now.
    pub same: HashMap<usize, usize>,
}

impl Places {
    /// The position now of the route that was at `old`; `None`: it is gone.
    pub fn to(&self, old: usize) -> Option<usize> {
        match old {
            old if old < self.first => Some(old),
            old if old >= self.before - self.last => Some(old + self.now - self.before),
            old => self.same.get(&old).copied(),
        }
    }
}

impl Delta {
    /// Of one entry that is no route of the file.
    pub fn of(change: Change) -> Self {
        Self { changes: vec![change], places: Places::default() }
    }
}
