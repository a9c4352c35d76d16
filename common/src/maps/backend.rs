//! Backends.

use super::address::{Address, Port};

/// [`Backend::flags`]: removed; takes no new flow, and its flows are being reset.
pub const BACKEND_RETIRED: u8 = 1;
/// [`Backend::flags`]: reachable through no device, or only through one without our program; takes no new
/// flow.
pub const BACKEND_UNREACHABLE: u8 = 2;
/// [`Backend::flags`]: not a real backend: its share of new connections is refused (Gateway API: the share of
/// an invalid backendRef). Address and port are zero.
pub const BACKEND_REFUSING: u8 = 4;
/// [`Backend::flags`]: the node's probes fail; its weight is 0. Only for display: the programs do not read
/// this flag.
pub const BACKEND_FAILING: u8 = 8;

/// [`Backend::delivery`]: source and destination are rewritten; the backend sees one of our addresses.
pub const DELIVERY_NAT: u8 = 0;
/// [`Backend::delivery`]: only the destination is rewritten. The backend sees the client's address, and its
/// replies arrive on a device that our program is attached to.
pub const DELIVERY_DNAT: u8 = 1;
/// [`super::flow::Connection::delivery`], never [`Backend::delivery`]: as [`DELIVERY_NAT`], for a client on this node, who
/// is answered by the device in [`super::name::NODE_CLIENTS`].
pub const DELIVERY_NODE: u8 = 2;

map_struct! {
    /// Value of `BACKENDS`. An id always belongs to the same (route, address, port), so removing a backend
    /// from a route does not affect other routes' flows to the same address.
    pub struct Backend = 48 {
        /// The address it listens on.
        pub address: Address,
        /// Our source address towards it (source NAT).
        pub source: Address,
        /// The port it listens on.
        pub port: Port,
        /// Configured weight; 0 = takes no new flow. Host byte order.
        pub weight: u16,
        /// MTU of the device towards it, host byte order.
        pub mtu: u16,
        /// `BACKEND_*` bits.
        pub flags: u8,
        /// How packets reach it: [`DELIVERY_NAT`] or [`DELIVERY_DNAT`].
        pub delivery: u8,
        /// The route it belongs to.
        pub route: u32,
        /// The device towards it; 0 = none.
        pub ifindex: u32,
    }
}
