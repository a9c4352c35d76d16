//! The way to each backend, as the kernel's routing table tells it.

use foldhash::HashMap;
use std::collections::HashSet;
use std::net::IpAddr;

/// The way to one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hop {
    /// The node's own address towards it, of the backend's family.
    pub source: IpAddr,
    /// The device towards it; not 0.
    pub ifindex: u32,
    /// MTU of that device or route, bytes.
    pub mtu: u32,
}

/// The ways to backends, and who we are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// A backend that is not in it has no way, or none over a device of ours.
    pub towards: HashMap<IpAddr, Hop>,
    /// Addresses on the node's devices.
    pub own: HashSet<IpAddr>,
    /// A number for the state of the node's network: two that have the same one know the same way to every address that
    /// both were asked for, and the same own addresses. 0: not known, compare with nothing.
    pub edition: u64,
}
