//! Where connections go.

use super::address::{Address, Port};

/// [`Backend::flags`]: removed; takes no flow, and flows that name it are being reset.
pub const BACKEND_RETIRED: u8 = 1;
/// [`Backend::flags`]: no device, or a device without our program, leads there; takes no new flow.
pub const BACKEND_UNREACHABLE: u8 = 2;
/// [`Backend::flags`]: nothing is dialled; its share of new connections is refused (Gateway API: the share of a
/// backendRef that leads nowhere). Address and port are zero.
pub const BACKEND_REFUSING: u8 = 4;
/// [`Backend::flags`]: the node's probes find it down; its weight is 0. For people: the programs do not read it.
pub const BACKEND_FAILING: u8 = 8;

/// [`Backend::delivery`]: source and destination are rewritten; the backend sees an address of ours.
pub const DELIVERY_NAT: u8 = 0;
/// [`Backend::delivery`]: the destination alone is rewritten; the backend sees the client's address, and its replies come
/// back by a device that we are attached to.
pub const DELIVERY_DNAT: u8 = 1;

map_struct! {
    /// Value of `BACKENDS`. An id belongs to one (route, address, port) for ever, so removing a backend from a route
    /// touches no other route's flows to the same address.
    pub struct Backend = 48 {
        /// Where it listens.
        pub address: Address,
        /// Our address towards it (source NAT).
        pub source: Address,
        /// Where it listens.
        pub port: Port,
        /// Weight as configured; 0 takes no new flow. Host byte order.
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
