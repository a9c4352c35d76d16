//! Connections: waiting hellos, half-open, established, closed.

use super::address::{Address, Port};
use crate::wire::client_hello::Parser;

map_struct! {
    /// A connection as the client sees it; key of `FLOWS`, `HELLOS`, `HALF_OPENS`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct ClientTuple = 36 {
        pub client: Address,
        pub vip: Address,
        pub client_port: Port,
        pub vip_port: Port,
    }
}

map_struct! {
    /// A connection as the backend sees it; key of `NATS`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct BackendTuple = 36 {
        pub backend: Address,
        pub source: Address,
        pub backend_port: Port,
        pub source_port: Port,
    }
}

/// [`Flow::state`]: data passes.
pub const FLOW_ESTABLISHED: u8 = 1;
/// [`Flow::state`]: both ends sent FIN and acknowledged the other's; stragglers still pass.
pub const FLOW_CLOSED: u8 = 2;
/// [`Flow::state`]: reset; every packet is answered with RST.
pub const FLOW_RESET: u8 = 3;

/// [`Flow::flags`]: the client sent FIN ([`Flow::client_fin`]).
pub const FLOW_CLIENT_FIN: u8 = 1;
/// [`Flow::backend_flags`]: the backend sent FIN ([`Flow::backend_fin`]).
pub const FLOW_BACKEND_FIN: u8 = 2;
/// [`Flow::backend_flags`]: the backend acknowledged the client's FIN.
pub const FLOW_CLIENT_FIN_ACKED: u8 = 4;
/// [`Flow::flags`]: the client acknowledged the backend's FIN.
pub const FLOW_BACKEND_FIN_ACKED: u8 = 8;
/// [`Flow::backend_flags`]: bytes of the hello that we acknowledged are not yet acknowledged by the backend; `HELLOS` holds them.
pub const FLOW_OWED: u8 = 16;
/// [`Flow::flags`]: a SYN came for this flow; the next packet with a valid cookie begins a new connection.
pub const FLOW_SYN_SEEN: u8 = 32;

/// [`Flow::declined`]: the client was granted timestamps, and the backend has none: they are taken out of what the client
/// sends.
pub const DECLINED_TIMESTAMPS: u8 = 1;
/// [`Flow::declined`]: the same with SACK.
pub const DECLINED_SACK: u8 = 2;

map_struct! {
    /// Value of `FLOWS`. Client sequence numbers reach the backend unchanged; backend sequence numbers are moved by
    /// `seq_delta` (backend = client + delta).
    pub struct Flow = 96 {
        pub nat: BackendTuple,
        pub route: u32,
        pub backend: u32,
        /// Added to what the client acknowledges; subtracted from what the backend sends.
        pub seq_delta: u32,
        /// Added to the timestamps the client echoes; subtracted from the backend's own.
        pub ts_delta: u32,
        /// Last acknowledgement by the client, as the client sent it.
        pub client_acked: u32,
        /// Last acknowledgement by the backend.
        pub backend_acked: u32,
        /// End of the highest segment from the client.
        pub client_next: u32,
        /// End of the highest segment from the backend, as the backend sent it.
        pub backend_next: u32,
        /// Sequence number behind the client's FIN.
        pub client_fin: u32,
        /// Sequence number behind the backend's FIN, as the backend sent it.
        pub backend_fin: u32,
        /// Monotonic clock of the last packet, seconds.
        pub seen_secs: u32,
        /// `FLOW_ESTABLISHED`, `FLOW_CLOSED` or `FLOW_RESET`.
        pub state: u8,
        /// [`FLOW_CLIENT_FIN`], [`FLOW_BACKEND_FIN_ACKED`], [`FLOW_SYN_SEEN`]: written by the client's direction alone,
        /// so that both directions may run on two CPUs at once.
        pub flags: u8,
        /// The listener's id.
        pub listener: u16,
        /// The client's window scale, or `WINDOW_SCALE_NONE`.
        pub client_scale: u8,
        /// The backend's window scale, or `WINDOW_SCALE_NONE`. Both `NONE`: windows pass unchanged.
        pub backend_scale: u8,
        /// [`FLOW_BACKEND_FIN`], [`FLOW_CLIENT_FIN_ACKED`], [`FLOW_OWED`]: written by the backend's direction alone.
        pub backend_flags: u8,
        /// [`DECLINED_TIMESTAMPS`], [`DECLINED_SACK`].
        pub declined: u8,
        /// The client's initial sequence number: tells its own repeated SYN from a new connection's.
        pub client_isn: u32,
        /// Our initial sequence number towards the client: tells its late segments from a new connection's.
        pub cookie: u32,
    }
}

/// [`Hello::state`]: more bytes of the hello are awaited.
pub const HELLO_COLLECTING: u8 = 1;
/// [`Hello::state`]: the hello is complete, our SYN is on its way to a backend.
pub const HELLO_CONNECTING: u8 = 2;
/// [`Hello::state`]: the flow is open, but bytes that we acknowledged are not yet acknowledged by the backend.
pub const HELLO_OWED: u8 = 3;

/// [`Hello::flags`]: client and we agreed on SACK.
pub const HELLO_SACK: u8 = 1;
/// [`Hello::flags`]: client and we agreed on timestamps.
pub const HELLO_TIMESTAMPS: u8 = 2;

/// [`Hello::window_scale`]: the client did not offer window scaling.
pub const WINDOW_SCALE_NONE: u8 = 15;

/// The window scale we announce: the backend's is not known yet (splice.md 3.d).
pub const WINDOW_SCALE_ANNOUNCED: u8 = 7;

/// Bytes of one [`Chunk`].
pub const CHUNK_BYTES: usize = 2048;
/// [`Chunk::index`]: of no hello.
pub const CHUNK_FREE: u32 = u32::MAX;
/// Most chunks of one hello.
pub const HELLO_CHUNKS: usize = 8;
/// Most bytes of a hello with its record headers.
pub const HELLO_BYTES_MAX: usize = CHUNK_BYTES * HELLO_CHUNKS;

map_struct! {
    /// Value of `HELLOS`: a connection between its first data and its backend.
    pub struct Hello = 424 {
        /// Monotonic clock at the first byte.
        pub started_ns: u64,
        /// Backend side; valid from [`HELLO_CONNECTING`] on.
        pub nat: BackendTuple,
        pub route: u32,
        pub backend: u32,
        pub listener: u32,
        /// The client's initial sequence number.
        pub isn: u32,
        /// Our initial sequence number towards the client.
        pub cookie: u32,
        /// Bytes stashed, without a gap.
        pub have: u32,
        /// Bytes we acknowledged: ours to deliver.
        pub acked: u32,
        /// The client's last timestamp.
        pub client_tsval: u32,
        /// Places in `CHUNKS`, as many as `have` needs.
        pub chunks: [u32; HELLO_CHUNKS],
        /// [`Source::epoch`] at creation.
        pub source_epoch: u32,
        /// The last timestamp we sent to the client: the backend's clock is tied to it.
        pub our_tsval: u32,
        /// Segments taken since our last acknowledgement.
        pub segments_unacked: u32,
        /// The client's MSS, host byte order.
        pub mss: u16,
        /// The client's last window as sent, host byte order.
        pub window: u16,
        /// Payload bytes a segment towards the backend may hold.
        pub backend_mss: u16,
        /// The client's window scale or [`WINDOW_SCALE_NONE`].
        pub window_scale: u8,
        /// `HELLO_SACK`, `HELLO_TIMESTAMPS`.
        pub flags: u8,
        /// `HELLO_COLLECTING`, `HELLO_CONNECTING`, `HELLO_OWED`.
        pub state: u8,
        /// Backends tried so far.
        pub tries: u8,
        /// Retransmissions by the client since the SYN to the first backend.
        pub retransmits: u8,
        /// Members of the table looked at so far, those passed over among them.
        pub offset: u8,
        /// Zero.
        pub reserved: [u8; 4],
        /// Where the parser stands.
        pub parser: Parser,
    }
}

map_struct! {
    /// Element of `CHUNKS`.
    pub struct Chunk = 2092 {
        /// Whose bytes; the place is free unless that hello's `chunks[index]` is this place.
        pub owner: ClientTuple,
        /// 0, or since when a CPU takes the place or writes to it (monotonic clock, units of 2^20 ns, odd): until it has
        /// stored the hello, nobody else may.
        pub locked: u32,
        /// Which part of the hello; [`CHUNK_FREE`] = the hello was delivered, the place is anybody's.
        pub index: u32,
        pub bytes: [u8; CHUNK_BYTES],
    }
}

map_struct! {
    /// Value of `SOURCES`: waiting hellos of one source.
    pub struct Source = 16 {
        /// Monotonic clock when the newest of them began.
        pub newest_ns: u64,
        /// Hellos in [`HELLO_COLLECTING`] and [`HELLO_CONNECTING`].
        pub waiting: u32,
        /// Raised when the count is begun anew, so that hellos of an older count do not lower it.
        pub epoch: u32,
    }
}

map_struct! {
    /// Value of `HALF_OPENS`: a SYN passed to a backend of a TCP listener.
    pub struct HalfOpen = 72 {
        pub nat: BackendTuple,
        pub route: u32,
        pub backend: u32,
        pub listener: u32,
        /// Place in `HALF_OPEN_RING`.
        pub slot: u32,
        /// The client's initial sequence number.
        pub isn: u32,
        /// Monotonic clock at the first SYN.
        pub started_ns: u64,
        /// The backend's initial sequence number, once it answered; before, the bytes that came with the SYN.
        pub backend_isn: u32,
        /// 1 = the backend answered with SYN-ACK.
        pub answered: u32,
    }
}

map_struct! {
    /// Element of `HALF_OPEN_RING` and `CLOSED_RING`.
    pub struct Slot = 40 {
        pub owner: ClientTuple,
        /// Monotonic clock when it was filled; 0 = free.
        pub since_secs: u32,
    }
}
