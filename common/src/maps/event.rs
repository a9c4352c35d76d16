//! Counters of routes, and what the kernel reports to the daemon.

use super::flow::ClientTuple;

map_struct! {
    /// Value of `ROUTE_COUNTERS`. The daemon creates the entry, and the programs change its counters.
    pub struct RouteCounters = 32 {
        /// Connections that reached a backend.
        pub connected: u64,
        /// Connections refused although their route was found.
        pub refused: u64,
        /// Times another backend was tried.
        pub retried: u64,
        /// Flows that the route has now, those that are over and linger included. Read it with
        /// [`crate::decide::admit::count`].
        pub flows: u32,
        /// Zero.
        pub reserved: u32,
    }
}

/// Result of the program `expire`: done.
pub const EXPIRE_DONE: u32 = 0;
/// The same: there was nothing to do, or the connection is not what the daemon saw any more.
pub const EXPIRE_NOTHING: u32 = 1;
/// The same: a packet was being handled on this CPU (PREEMPT_RT); the daemon repeats the request.
pub const EXPIRE_BUSY: u32 = 2;
/// The same: done, but a link address is not known, so a SYN or a probe was not sent. The daemon has the kernel ask for it,
/// and repeats the request.
pub const EXPIRE_UNRESOLVED: u32 = 3;

/// Orders in one run of the program `expire`, if there are several: packets of the CPU wait meanwhile.
pub const ORDERS_MAX: usize = 32;
/// Result of a run with several orders: this, and the number of those that were done.
pub const EXPIRE_SEVERAL: u32 = 16;

/// [`Expiry::seq`] with `Reason::ExpireProbe`: both ends are asked, not only the one that may have accepted a RST, if there was no
/// packet since the daemon looked.
pub const PROBE_BOTH: u32 = 1;
/// The same: the probe is far behind what its receiver acknowledged.
pub const PROBE_FAR: u32 = 2;
/// The same as [`PROBE_BOTH`], whatever packets there were.
pub const PROBE_HELD: u32 = 3;

/// [`Expiry::seq`] with `Reason::ExpireClosed`: no one flow is meant, but those of the ring of closed flows that have been
/// over for long enough. [`EXPIRE_DONE`]: there may be more of them than one run frees.
pub const CLOSED_RING_DUE: u32 = 1;

map_struct! {
    /// Record of the ring buffer `EVICTIONS` (an evicted hello, whose client the daemon resets). The ring has records of another kind, too,
    /// which are 40 bytes: the [`ClientTuple`] of a flow that a RST put on trial. Also what
    /// the daemon passes to the program `expire`, after 14 bytes of Ethernet header. A packet with room for [`ORDERS_MAX`] of
    /// them has several, zeros after the last one: flows of one address family that are to be ended.
    pub struct Expiry = 56 {
        pub client: ClientTuple,
        /// Sequence number that the client expects next; used if no map entry has it. With `Reason::ExpireHeld` and
        /// `ExpireCrowded`: what may not have changed since the daemon looked, the sum of what both ends acknowledged or, if
        /// the client never acknowledged anything, its own number. With `ExpireProbe`:
        /// [`PROBE_BOTH`], [`PROBE_FAR`], [`PROBE_HELD`] or 0. With `ExpireClosed`: [`CLOSED_RING_DUE`] or 0. With `ExpireShare`: the route id.
        pub seq: u32,
        /// Reason number.
        pub reason: u32,
        /// [`super::flow::Connection::generation`] of the connection that the daemon saw. 0: whichever waits or is
        /// half-open; no flow is meant then.
        pub generation: u32,
        /// [`super::flow::Flow::seen_secs`] that the daemon saw: a flow with a later packet is not idle. Of an evicted hello,
        /// whose record is gone: its [`super::flow::Connection::delivery`].
        pub seen_secs: u32,
    }
}
