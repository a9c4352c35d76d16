//! Connections: waiting hellos, half-open, established, closed.

use core::mem::offset_of;

use super::address::{Address, Port};
use crate::wire::client_hello::Parser;

/// IP protocol number of TCP (RFC 9293), the transport of every connection so far.
pub const TRANSPORT_TCP: u32 = 6;

map_struct! {
    /// A connection as the client sees it; key of `FLOWS`, `PENDING`, `HALF_OPENS`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct ClientTuple = 40 {
        pub client: Address,
        pub vip: Address,
        pub client_port: Port,
        pub vip_port: Port,
        /// IP protocol number: [`TRANSPORT_TCP`]. Four bytes wide: a byte with three of zeros behind it is written to the
        /// stack out of alignment, which the verifier refuses.
        pub transport: u32,
    }
}

impl ClientTuple {
    /// A TCP connection from `client` to `vip`.
    #[inline(always)]
    pub const fn tcp(client: Address, vip: Address, client_port: Port, vip_port: Port) -> Self {
        Self { client, vip, client_port, vip_port, transport: TRANSPORT_TCP }
    }
}

map_struct! {
    /// A connection as the backend sees it; key of `NATS`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct BackendTuple = 40 {
        pub backend: Address,
        /// Whom the backend believes to be its client: one of our addresses (`nat`), or the client's own (`dnat`).
        pub source: Address,
        pub backend_port: Port,
        pub source_port: Port,
        /// IP protocol number: [`TRANSPORT_TCP`]. Four bytes wide: a byte with three of zeros behind it is written to the
        /// stack out of alignment, which the verifier refuses.
        pub transport: u32,
    }
}

impl BackendTuple {
    /// A TCP connection from `source` to `backend`.
    #[inline(always)]
    pub const fn tcp(backend: Address, source: Address, backend_port: Port, source_port: Port) -> Self {
        Self { backend, source, backend_port, source_port, transport: TRANSPORT_TCP }
    }
}

map_struct! {
    /// Value of `NATS`: whose connection a backend's packets belong to.
    pub struct Reply = 40 {
        pub client: Address,
        pub vip: Address,
        pub client_port: Port,
        pub vip_port: Port,
        /// [`Connection::generation`] of the connection that the entry was made for.
        pub generation: u32,
    }
}

impl Reply {
    /// Replies to this client.
    #[inline(always)]
    pub const fn to(client: &ClientTuple, generation: u32) -> Self {
        let ClientTuple { client, vip, client_port, vip_port, .. } = *client;
        Self { client, vip, client_port, vip_port, generation }
    }

    /// The connection's key; the transport is that of the entry's own key, and so far always the same.
    #[inline(always)]
    pub const fn tuple(&self) -> ClientTuple {
        ClientTuple::tcp(self.client, self.vip, self.client_port, self.vip_port)
    }
}

map_struct! {
    /// The first part of every record of a connection: waiting, half-open or established. Filled by one function
    /// (`connection::open` of the programs).
    ///
    /// The first eight bytes are one word, aligned to 8 in every map: what distinguishes connections and their
    /// state changes together.
    pub struct Connection = 24 {
        /// Distinguishes the connection from all others with the same addresses and ports. Counts up from 1 over
        /// all connections of the node, and wraps.
        pub generation: u32,
        /// Of the record: `FLOW_*`, `HELLO_*` or `HALF_OPEN_*`.
        pub state: u8,
        /// Of a flow: [`FLOW_CLIENT_FIN`], [`FLOW_BACKEND_FIN_ACKED`], [`FLOW_SYN_SEEN`]; written by the client's direction
        /// alone, so that both directions may run on two CPUs at once.
        pub flags: u8,
        /// Of a flow: [`FLOW_BACKEND_FIN`], [`FLOW_CLIENT_FIN_ACKED`], [`FLOW_UNDELIVERED`]; written by the backend's direction alone.
        pub backend_flags: u8,
        /// How packets reach the backend: [`super::backend::DELIVERY_NAT`] or
        /// [`super::backend::DELIVERY_DNAT`].
        pub delivery: u8,
        /// The listener's id.
        pub listener: u32,
        /// The route's id; 0 = not known yet.
        pub route: u32,
        /// The backend's id; 0 = none picked yet.
        pub backend: u32,
        /// Zero.
        pub reserved: [u8; 4],
    }
}

/// The word of generation, state and flags has to be exchanged in one piece: the kernel aligns values to 8.
const _: () = assert!(
    offset_of!(Flow, connection).is_multiple_of(8)
        && offset_of!(Pending, connection).is_multiple_of(8)
        && offset_of!(HalfOpen, connection).is_multiple_of(8)
);

/// [`Connection::state`] of a [`Flow`]: data passes.
pub const FLOW_ESTABLISHED: u8 = 1;
/// [`Connection::state`] of a [`Flow`]: both ends sent FIN and acknowledged the other's; stragglers still pass.
pub const FLOW_CLOSED: u8 = 2;
/// [`Connection::state`] of a [`Flow`]: reset; every packet is answered with RST.
pub const FLOW_RESET: u8 = 3;

/// [`Connection::flags`]: the client sent FIN ([`Flow::client_fin`]).
pub const FLOW_CLIENT_FIN: u8 = 1;
/// [`Connection::backend_flags`]: the backend sent FIN ([`Flow::backend_fin`]).
pub const FLOW_BACKEND_FIN: u8 = 2;
/// [`Connection::backend_flags`]: the backend acknowledged the client's FIN.
pub const FLOW_CLIENT_FIN_ACKED: u8 = 4;
/// [`Connection::flags`]: the client acknowledged the backend's FIN.
pub const FLOW_BACKEND_FIN_ACKED: u8 = 8;
/// [`Connection::backend_flags`]: bytes of the hello that we acknowledged are not yet acknowledged by the backend; `PENDING` holds them.
pub const FLOW_UNDELIVERED: u8 = 16;
/// [`Connection::flags`]: a SYN came for this flow; the next packet with a valid cookie begins a new connection.
pub const FLOW_SYN_SEEN: u8 = 32;

/// [`Flow::declined`]: the client was granted timestamps, and the backend has none: they are taken out of what the client
/// sends.
pub const DECLINED_TIMESTAMPS: u8 = 1;
/// [`Flow::declined`]: the same with SACK.
pub const DECLINED_SACK: u8 = 2;

map_struct! {
    /// Value of `FLOWS`. Client sequence numbers reach the backend unchanged; backend sequence numbers are moved by
    /// `seq_delta` (backend = client + delta).
    pub struct Flow = 112 {
        pub connection: Connection,
        /// The connection as its backend sees it.
        pub nat: BackendTuple,
        /// Added to what the client acknowledges; subtracted from what the backend sends. 0 where the backend's own numbers
        /// reach the client.
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
        /// The client's initial sequence number: distinguishes its repeated SYN from a new connection's.
        pub client_isn: u32,
        /// The initial sequence number that the client got from the VIP: distinguishes its late segments from a new
        /// connection's.
        pub vip_isn: u32,
        /// The client's window scale, or `WINDOW_SCALE_NONE`.
        pub client_scale: u8,
        /// The backend's window scale, or `WINDOW_SCALE_NONE`. Both `NONE`: windows pass unchanged.
        pub backend_scale: u8,
        /// [`DECLINED_TIMESTAMPS`], [`DECLINED_SACK`].
        pub declined: u8,
        /// Zero.
        pub reserved: u8,
    }
}

/// [`Connection::state`] of a [`Pending`]: more bytes of the hello are awaited.
pub const PENDING_COLLECTING: u8 = 1;
/// [`Connection::state`] of a [`Pending`]: the hello is complete, our SYN was sent to a backend.
pub const PENDING_CONNECTING: u8 = 2;
/// [`Connection::state`] of a [`Pending`]: the flow is open, but bytes that we acknowledged are not yet acknowledged by the backend.
pub const PENDING_UNDELIVERED: u8 = 3;

/// [`Pending::options`]: client and we agreed on SACK.
pub const OPTION_SACK: u8 = 1;
/// [`Pending::options`]: client and we agreed on timestamps.
pub const OPTION_TIMESTAMPS: u8 = 2;

/// [`Pending::window_scale`]: the client did not offer window scaling.
pub const WINDOW_SCALE_NONE: u8 = 15;

/// The window scale that the SYN-ACK announces. The backend's is not known yet, and no segment can change
/// the announced one later, so windows are converted between the two (RFC 7323, section 2.2).
pub const WINDOW_SCALE_ANNOUNCED: u8 = 7;

/// Bytes of one [`Buffer`].
pub const BUFFER_BYTES: usize = 2048;
/// [`Buffer::index`]: of no hello.
pub const BUFFER_FREE: u32 = u32::MAX;
/// Most buffers of one hello.
pub const PENDING_BUFFERS: usize = 8;
/// Most bytes of a hello with its record headers.
pub const HELLO_BYTES_MAX: usize = BUFFER_BYTES * PENDING_BUFFERS;

map_struct! {
    /// Value of `PENDING`: a connection between its first data and its backend.
    pub struct Pending = 440 {
        pub connection: Connection,
        /// Monotonic clock at the first byte.
        pub started_ns: u64,
        /// The connection as its backend sees it; valid from [`PENDING_CONNECTING`] on.
        pub nat: BackendTuple,
        /// The client's initial sequence number.
        pub isn: u32,
        /// Our initial sequence number towards the client.
        pub vip_isn: u32,
        /// Bytes kept, without a gap; 0 where none have to be.
        pub have: u32,
        /// Bytes we acknowledged: ours to deliver.
        pub acked: u32,
        /// The client's last timestamp.
        pub client_tsval: u32,
        /// Slots in `BUFFERS`, as many as `have` needs.
        pub buffers: [u32; PENDING_BUFFERS],
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
        /// MTU of the device towards the backend, host byte order.
        pub mtu: u16,
        /// Payload bytes a segment towards the backend may hold; valid once it answered.
        pub backend_mss: u16,
        /// The client's window scale or [`WINDOW_SCALE_NONE`].
        pub window_scale: u8,
        /// `OPTION_SACK`, `OPTION_TIMESTAMPS`.
        pub options: u8,
        /// Backends tried so far.
        pub tries: u8,
        /// Retransmissions by the client since the SYN to the first backend.
        pub retransmits: u8,
        /// Members of the table looked at so far, those passed over among them.
        pub offset: u8,
        /// Zero.
        pub reserved: [u8; 3],
        /// The state of the parser.
        pub parser: Parser,
    }
}

map_struct! {
    /// Element of `BUFFERS`.
    pub struct Buffer = 2096 {
        /// The client whose bytes these are; the slot is free unless that hello's `buffers[index]` is this slot.
        pub owner: ClientTuple,
        /// 0, or since when a CPU takes the slot or writes to it (monotonic clock, units of 2^20 ns, odd): until it has
        /// stored the hello, nobody else may.
        pub locked: u32,
        /// Which part of the hello; [`BUFFER_FREE`] = the hello was delivered, the slot is free.
        pub index: u32,
        pub bytes: [u8; BUFFER_BYTES],
    }
}

map_struct! {
    /// Value of `SOURCES`: waiting hellos of one source.
    pub struct Source = 16 {
        /// Monotonic clock when the newest of them began.
        pub newest_ns: u64,
        /// Hellos in [`PENDING_COLLECTING`] and [`PENDING_CONNECTING`].
        pub waiting: u32,
        /// Raised when the count restarts, so that hellos of an older count do not lower it.
        pub epoch: u32,
    }
}

/// [`Connection::state`] of a [`HalfOpen`]: the SYN was passed on.
pub const HALF_OPEN_DIALLED: u8 = 1;
/// [`Connection::state`] of a [`HalfOpen`]: the backend answered with SYN-ACK.
pub const HALF_OPEN_ANSWERED: u8 = 2;

map_struct! {
    /// Value of `HALF_OPENS`: a SYN passed to a backend of a TCP listener.
    pub struct HalfOpen = 88 {
        pub connection: Connection,
        /// Monotonic clock at the first SYN.
        pub started_ns: u64,
        /// The connection as its backend sees it.
        pub nat: BackendTuple,
        /// The client's initial sequence number.
        pub isn: u32,
        /// The backend's initial sequence number; valid from [`HALF_OPEN_ANSWERED`] on.
        pub backend_isn: u32,
        /// Bytes that came with the SYN.
        pub syn_bytes: u32,
        /// Slot in `HALF_OPEN_RING`.
        pub slot: u32,
    }
}

map_struct! {
    /// Element of `HALF_OPEN_RING` and `CLOSED_RING`.
    pub struct Slot = 48 {
        pub owner: ClientTuple,
        /// [`Connection::generation`] of the owner.
        pub generation: u32,
        /// Monotonic clock when it was filled; 0 = free.
        pub since_secs: u32,
    }
}
