//! Counts of a source (IPv4 /32, IPv6 /64): what one of them has of the node and of a route.

use super::address::Address;
use super::flow::ClientTuple;
use super::word::Waiting;

map_struct! {
    /// Value of `SOURCES`: the number of incomplete hellos of one source, counted while their record has state
    /// [`super::flow::PENDING_COLLECTING`].
    pub struct Source = 16 {
        /// Monotonic clock when the newest of them was counted. A late write into the element of another source does
        /// no harm: it is the current time.
        pub newest_ns: u64,
        pub count: Waiting,
    }
}

map_struct! {
    /// Key of `SHARES`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct ShareKey = 20 {
        /// [`Address::source_prefix`] of the client.
        pub source: Address,
        /// Route id.
        pub route: u32,
    }
}

impl ShareKey {
    /// The share that a client's connections to a route are counted in.
    #[inline(always)]
    pub const fn of(client: &ClientTuple, route: u32) -> Self {
        Self { source: client.client.source_prefix(), route }
    }
}

map_struct! {
    /// Value of `SHARES`: what one source has of one route.
    pub struct Share = 8 {
        /// Flows, those that are over and linger included. Read it with [`crate::decide::admit::count`].
        pub flows: u32,
        /// Slots of complete hellos that wait for their backend or its acknowledgement, counted while their record has state
        /// [`super::flow::PENDING_CONNECTING`] or [`super::flow::PENDING_UNDELIVERED`]. Read it in the same manner.
        pub connecting: u32,
    }
}
