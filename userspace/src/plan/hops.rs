//! The next hop to each backend, according to the kernel's routing table.

use super::next_hops::NextHops;
use std::collections::HashSet;
use std::net::IpAddr;

/// The next hops to backends, and our own addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hops {
    /// A backend that it has no next hop to has none, or none over a device of ours.
    pub towards: NextHops,
    /// Addresses on the node's devices.
    pub own: HashSet<IpAddr>,
    /// A number for the state of the node's network. If two values have the same number, they have the same
    /// own addresses, and the same next hop for every address that both were queried for. 0: not known, equal
    /// to no other state.
    pub edition: u64,
}
