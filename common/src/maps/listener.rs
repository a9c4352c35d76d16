//! Listeners, and the roles of addresses.

use super::address::{Address, Port};

map_struct! {
    /// Key of `LISTENERS`: the address and port that clients dial.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct ListenerKey = 20 {
        pub address: Address,
        pub port: Port,
        /// Zero.
        pub reserved: [u8; 2],
    }
}

/// [`Listener::protocol`]: route by TLS server name; TLS is passed through.
pub const PROTOCOL_TLS: u8 = 1;
/// [`Listener::protocol`]: route by address and port alone.
pub const PROTOCOL_TCP: u8 = 2;

/// Number of listener ids, 0 included.
pub const IDS: usize = 65_536;

map_struct! {
    /// Value of `LISTENERS`. A configured listener with several addresses has one entry per address, all with
    /// the same `id`.
    pub struct Listener = 16 {
        /// Identifies the listener in name keys and flows; 1 to 65,535.
        pub id: u32,
        /// TLS: the default route's id. TCP: the route's id. 0 = none.
        pub route: u32,
        /// MSS announced in our SYN-ACK: the smallest device MTU towards the listener's backends, minus the
        /// headers of this address's family. Host byte order.
        pub mss: u16,
        /// Id of the policy that says whose SYNs are answered: see [`super::policy::PolicyKey`]; 0 = anybody's.
        pub policy: u16,
        /// [`PROTOCOL_TLS`] or [`PROTOCOL_TCP`].
        pub protocol: u8,
        /// Zero.
        pub reserved: [u8; 3],
    }
}

/// [`AddressRole::flags`]: at least one listener has this address.
pub const ROLE_VIP: u32 = 1;
/// [`AddressRole::flags`]: we dial backends from this address.
pub const ROLE_SOURCE: u32 = 2;
/// [`AddressRole::flags`]: the address is on a device of this node, so ports without a listener belong to the
/// node.
pub const ROLE_OWN: u32 = 4;

/// [`AddressRole::flags`]: packets from this address may be replies of a backend that sees its clients' own
/// addresses.
pub const ROLE_BACKEND: u32 = 8;

map_struct! {
    /// Value of `ADDRESSES`: one lookup shows whether we handle a packet at all.
    pub struct AddressRole = 4 {
        /// `ROLE_*` bits.
        pub flags: u32,
    }
}
