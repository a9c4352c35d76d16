//! The next hop to each backend, according to the kernel's routing table.

use foldhash::HashMap;
use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::Arc;

/// The next hop to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Hop {
    /// The node's own address towards it, of the backend's family.
    pub source: IpAddr,
    /// The device towards it; not 0.
    pub ifindex: u32,
    /// MTU of that device or route, bytes.
    pub mtu: u32,
    /// Whether the backend is a neighbour on that device: no router is in between, so its packets come back there.
    pub is_on_link: bool,
}

/// The next hops to backends, and our own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// A backend that is not in it has no next hop, or none over a device of ours. There are far fewer next hops than backends: they
    /// share them.
    pub towards: HashMap<IpAddr, Arc<Hop>>,
    /// Addresses on the node's devices.
    pub own: HashSet<IpAddr>,
    /// A number for the state of the node's network. If two values have the same number, they have the same
    /// own addresses, and the same next hop for every address that both were queried for. 0: not known, equal
    /// to no other state.
    pub edition: u64,
}
