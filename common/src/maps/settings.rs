//! Settings, the cookie keys, and the counters that assign slots and ids.

use super::told::{TOLD_WORDS, Told};

map_struct! {
    /// Value of `SETTINGS`.
    pub struct Settings = 64 {
        /// A hello must be complete, and its backend connected, within this time.
        pub hello_timeout_ns: u64,
        /// A flow without packets for this long is reset.
        pub idle_timeout_secs: u32,
        /// A closed flow is kept this long for late packets.
        pub closed_timeout_secs: u32,
        /// First port of the source NAT range, host byte order.
        pub source_port_first: u16,
        /// Last port of the source NAT range, inclusive, host byte order.
        pub source_port_last: u16,
        /// Entries of `BUFFERS`.
        pub buffers: u32,
        /// Entries of `HALF_OPEN_RING`.
        pub half_opens: u32,
        /// Entries of `CLOSED_RING`.
        pub closed: u32,
        /// The most incomplete hellos of one source while over half of the buffers are taken.
        pub source_hellos_max: u32,
        /// Index of the cookie key that signs; both keys verify.
        pub cookie_key: u32,
        /// One bit for each delivery that any backend uses: bit 0 for delivery 0, and so on. If the bit of
        /// [`super::backend::DELIVERY_DNAT`] is set, the programs also look up the source addresses of
        /// packets.
        pub deliveries: u32,
        /// Steps from a busy source port to the next one tried: [`crate::decide::source_port::strides`].
        pub source_port_strides: [u16; 2],
        /// The most flows of one route.
        pub route_flows_max: u32,
        /// The most flows of one source (IPv4 /32, IPv6 /64) to one route.
        pub share_flows_max: u32,
        /// The most complete hellos of one source to one route that wait for their backend.
        pub share_connecting_max: u32,
        /// Zero.
        pub reserved: u32,
    }
}

map_struct! {
    /// Value of `COOKIE_KEYS`.
    pub struct CookieKey = 16 {
        pub k0: u64,
        pub k1: u64,
    }
}

map_struct! {
    /// Value of `CURSORS`: the programs increment these and never decrement them, except for `buffered` and `half_opens`.
    pub struct Cursors = 312 {
        /// Next slot to try in `BUFFERS`.
        pub buffer: u64,
        /// Next slot to try in `HALF_OPEN_RING`.
        pub half_open: u64,
        /// Next slot to fill in `CLOSED_RING`.
        pub closed_head: u64,
        /// Oldest slot not yet freed in `CLOSED_RING`.
        pub closed_tail: u64,
        /// Next generation of a connection.
        pub generation: u64,
        /// Slots of `BUFFERS` that the records in `PENDING` name.
        pub buffered: u32,
        /// Records in `HALF_OPENS`. Read it with [`crate::decide::admit::count`].
        pub half_opens: u32,
        /// The errors "too big" passed to backends, by group of clients: see [`Told::word`].
        pub told: [Told; TOLD_WORDS],
        /// Identification of the next IPv4 packet that may be fragmented; wraps at 2^16.
        pub identification: u32,
        /// Zero.
        pub reserved: u32,
    }
}

map_struct! {
    /// Value of `IDS`: the next id of each kind. Only ids of listeners are used again. Written only by the daemon.
    pub struct Ids = 16 {
        pub route: u32,
        pub backend: u32,
        pub table: u32,
        pub listener: u32,
    }
}
