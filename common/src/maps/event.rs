//! Counters of routes, and what the kernel reports to the daemon.

use super::flow::ClientTuple;

map_struct! {
    /// Value of `ROUTE_COUNTERS`. The daemon creates the entry, and the programs increment its counters.
    pub struct RouteCounters = 24 {
        /// Connections that reached a backend.
        pub connected: u64,
        /// Connections refused although their route was found.
        pub refused: u64,
        /// Times another backend was tried.
        pub retried: u64,
    }
}

map_struct! {
    /// Record of the ring buffer `EVICTIONS` (an evicted hello, whose client the daemon resets). Also what
    /// the daemon passes to the program `expire`, after 14 bytes of Ethernet header.
    pub struct Expiry = 48 {
        pub client: ClientTuple,
        /// Sequence number that the client expects next; used if no map entry has it.
        pub seq: u32,
        /// Reason number.
        pub reason: u32,
    }
}
