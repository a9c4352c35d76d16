//! Counters, and what the kernel reports to the daemon.

use super::flow::ClientTuple;

map_struct! {
    /// Value of `ROUTE_COUNTERS`; the daemon makes the entry, the programs add to it.
    pub struct RouteCounters = 24 {
        /// Connections that reached a backend.
        pub connected: u64,
        /// Connections refused after the route was known.
        pub refused: u64,
        /// Times another backend was tried.
        pub retried: u64,
    }
}

map_struct! {
    /// Record of ring buffer `EVICTIONS` (an evicted hello; the daemon resets its client), and what the
    /// daemon hands to the program `expire`, behind 14 bytes of Ethernet header.
    pub struct Expiry = 48 {
        pub client: ClientTuple,
        /// Sequence number the client expects next; used where no map entry has it.
        pub seq: u32,
        /// Reason number.
        pub reason: u32,
    }
}
