//! Connections: waiting hellos, half-open, established, closed.

use core::mem::offset_of;

use super::address::{Address, Port};
use super::word::{Acked, Agreed, Hops, Sent, SynSeen, Taken};
use crate::wire::client_hello::{Parser, STREAM_BYTES_MAX};

/// IP protocol number of TCP (RFC 9293), so far the only transport.
pub const TRANSPORT_TCP: u32 = 6;

map_struct! {
    /// A connection as the client sees it; key of `FLOWS`, `DNAT_FLOWS`, `PENDING`, `HALF_OPENS`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct ClientTuple = 40 {
        pub client: Address,
        pub vip: Address,
        pub client_port: Port,
        pub vip_port: Port,
        /// IP protocol number: [`TRANSPORT_TCP`]. Four bytes wide, because a byte followed by three zero
        /// bytes is written to the stack unaligned, which the verifier refuses.
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
        /// The client's address as the backend sees it: one of our addresses (`nat`), or the client's own
        /// (`dnat`).
        pub source: Address,
        pub backend_port: Port,
        pub source_port: Port,
        /// IP protocol number: [`TRANSPORT_TCP`]. Four bytes wide, because a byte followed by three zero
        /// bytes is written to the stack unaligned, which the verifier refuses.
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
    /// Value of `NATS`: the connection that a backend's packets belong to.
    pub struct Reply = 40 {
        pub client: Address,
        pub vip: Address,
        pub client_port: Port,
        pub vip_port: Port,
        /// [`Connection::generation`] of the connection that the entry was created for.
        pub generation: u32,
    }
}

impl Reply {
    /// Returns the entry for replies to this client.
    #[inline(always)]
    pub const fn to(client: &ClientTuple, generation: u32) -> Self {
        let ClientTuple { client, vip, client_port, vip_port, .. } = *client;
        Self { client, vip, client_port, vip_port, generation }
    }

    /// Returns the connection's key. The transport is part of the entry's own key, and so far it is always
    /// TCP.
    #[inline(always)]
    pub const fn tuple(&self) -> ClientTuple {
        ClientTuple::tcp(self.client, self.vip, self.client_port, self.vip_port)
    }
}

map_struct! {
    /// The first part of every record of a connection: waiting, half-open or established.
    ///
    /// The first eight bytes are one word, [`super::word::Head`], aligned to 8 in every map. It identifies the
    /// connection and contains its state, so both can change together.
    pub struct Connection = 20 {
        /// Distinguishes the connection from all others with the same addresses and ports. Counts the
        /// connections of the node from 1, and wraps.
        pub generation: u32,
        /// State of the record: one of the values for [`Flow`], [`Pending`] or [`HalfOpen`] below.
        pub state: u8,
        /// Of a flow: [`FLOW_UNDELIVERED`] and the flags after it. Of other records: [`RECORD_LOCKED`],
        /// [`RECORD_OVER`].
        pub flags: u8,
        /// Of a flow: a bit for each segment after a SYN that acknowledged neither this flow nor a cookie of ours.
        /// With all eight bits set, no cookie starts a new connection in place of the flow: a stranger is guessing.
        pub wrong_cookies: u8,
        /// How packets reach the backend, and the client: [`super::backend::DELIVERY_NAT`],
        /// [`super::backend::DELIVERY_DNAT`] or [`super::backend::DELIVERY_NODE`].
        pub delivery: u8,
        /// The listener's id.
        pub listener: u32,
        /// The route's id; 0 = not known yet.
        pub route: u32,
        /// The backend's id; 0 = not picked yet.
        pub backend: u32,
    }
}

/// The word of generation, state and flags must be exchanged in one piece, so it is aligned to 8: the kernel
/// aligns map values to 8.
const _: () = assert!(
    offset_of!(Flow, connection).is_multiple_of(8)
        && offset_of!(Pending, connection).is_multiple_of(8)
        && offset_of!(HalfOpen, connection).is_multiple_of(8)
);

/// [`Connection::state`] of a [`Flow`]: data passes. The states of a flow follow each other in this order, and each has
/// the bits of those before it: a flow takes a state by setting bits, and goes back only from [`FLOW_REMOVED`] to
/// [`FLOW_RESET`].
pub const FLOW_ESTABLISHED: u8 = 1;
/// [`Connection::state`] of a [`Flow`]: both ends sent FIN and acknowledged the other's; late packets still pass.
pub const FLOW_CLOSED: u8 = 3;
/// [`Connection::state`] of a [`Flow`]: reset; every packet is answered with RST.
pub const FLOW_RESET: u8 = 7;
/// [`Connection::state`] of a [`Flow`]: a CPU is removing the record; no other may change it. If the kernel does not remove
/// it, it is [`FLOW_RESET`] again.
pub const FLOW_REMOVED: u8 = 15;

/// [`Connection::flags`]: `PENDING` holds bytes of the hello that we acknowledged and the backend has not yet.
pub const FLOW_UNDELIVERED: u8 = 1;
/// [`Connection::flags`]: the client repeated a SYN on this flow; the next packet with a valid cookie starts a
/// new connection.
pub const FLOW_SYN_SEEN: u8 = 2;
/// [`Connection::flags`]: the client sent a RST that its backend may not have accepted; the daemon asks the
/// backend.
pub const FLOW_CLIENT_ON_TRIAL: u8 = 4;
/// [`Connection::flags`]: the same for a RST of the backend; the daemon asks the client. Also set for [`Pending::challenged`].
pub const FLOW_BACKEND_ON_TRIAL: u8 = 8;
/// [`Connection::flags`]: the daemon asked; a segment of the end that was asked clears this flag and the one of the trial.
pub const FLOW_PROBED: u8 = 16;
/// [`Connection::flags`]: the path to the client is narrower than its backend's segments. Routers may fragment them, so
/// they lose DF (IPv4), or the backend was notified (IPv6).
pub const FLOW_FRAGMENTED: u8 = 32;
/// [`Connection::flags`]: an order of the daemon ends the flow, unless a segment that is believed clears this flag.
pub const FLOW_ENDING: u8 = 64;

/// [`Connection::state`] of a [`Pending`] or [`HalfOpen`]: what belonged to it was given back, but the kernel did not remove
/// the record. The next CPU that locks it removes it.
pub const RECORD_EMPTY: u8 = 7;
/// [`Connection::flags`] of a [`Pending`] or [`HalfOpen`]: a CPU holds the record. It alone writes and removes it.
pub const RECORD_LOCKED: u8 = 64;
/// [`Connection::flags`] of a [`Pending`] or [`HalfOpen`]: the connection is over. The CPU that holds the record removes
/// it when it is done.
pub const RECORD_OVER: u8 = 128;

/// [`Agreed::declined`]: the client was granted timestamps, but the backend does not use them. They are removed
/// from what the client sends.
pub const DECLINED_TIMESTAMPS: u8 = 1;
/// [`Agreed::declined`]: the same for SACK.
pub const DECLINED_SACK: u8 = 2;

map_struct! {
    /// One end of a flow.
    pub struct End = 16 {
        /// What it sent, in its own sequence numbers.
        pub sent: Sent,
        /// What it acknowledged, in the other end's own sequence numbers.
        pub acked: Acked,
    }
}

map_struct! {
    /// Value of `FLOWS`. The client's sequence numbers reach the backend unchanged. The backend's sequence
    /// numbers are shifted by `seq_delta`: the backend's own number = the number the client sees + delta.
    pub struct Flow = 128 {
        pub connection: Connection,
        /// Monotonic clock of the last packet that was believed, seconds. A late write into a record that
        /// already belongs to another connection does no harm: it is the current time, and that connection
        /// is not older.
        pub seen_secs: u32,
        /// The connection as its backend sees it.
        pub nat: BackendTuple,
        /// What the client sent and acknowledged.
        pub client: End,
        /// What the backend sent and acknowledged.
        pub backend: End,
        /// The last SYN on this flow.
        pub syn: SynSeen,
        /// Added to the client's acknowledgement numbers; subtracted from the backend's sequence numbers. 0
        /// if the backend's own numbers reach the client.
        pub seq_delta: u32,
        /// Added to the timestamps the client echoes; subtracted from the backend's own.
        pub ts_delta: u32,
        /// The client's initial sequence number: distinguishes a repetition of its SYN from the SYN of a new
        /// connection.
        pub client_isn: u32,
        /// The initial sequence number that the client got from the VIP: distinguishes its late segments from
        /// those of a new connection.
        pub vip_isn: u32,
        /// The next hops of its packets.
        pub hops: Hops,
    }
}

impl Flow {
    /// Makes all of its words those of the connection with this generation.
    #[inline(always)]
    pub const fn set_generation(&mut self, generation: u32) {
        let half = generation as u16;
        self.connection.generation = generation;
        self.client.sent.generation = half;
        self.client.acked.generation = half;
        self.backend.sent.generation = half;
        self.backend.acked.generation = half;
        self.syn.generation = half;
        self.hops.generation = half;
    }

    /// Sets what the handshakes agreed on.
    #[inline(always)]
    pub const fn agree(&mut self, client: Agreed, backend: Agreed) {
        self.client.sent.agreed = client.bits();
        self.backend.sent.agreed = backend.bits();
    }
}

/// The words of a flow that are exchanged in one piece.
const _: () = assert!(
    offset_of!(Flow, client).is_multiple_of(8)
        && offset_of!(Flow, backend).is_multiple_of(8)
        && offset_of!(Flow, syn).is_multiple_of(8)
        && offset_of!(Flow, hops).is_multiple_of(8)
);

/// [`Connection::state`] of a [`Pending`]: the hello is not complete.
pub const PENDING_COLLECTING: u8 = 1;
/// [`Connection::state`] of a [`Pending`]: the hello is complete, and a SYN was sent to a backend.
pub const PENDING_CONNECTING: u8 = 2;
/// [`Connection::state`] of a [`Pending`]: the flow is open, but we acknowledged bytes that the backend has
/// not acknowledged yet.
pub const PENDING_UNDELIVERED: u8 = 3;

/// [`Pending::options`]: SACK was agreed with the client.
pub const OPTION_SACK: u8 = 1;
/// [`Pending::options`]: timestamps were agreed with the client.
pub const OPTION_TIMESTAMPS: u8 = 2;

/// [`Pending::window_scale`]: the client did not offer window scaling.
pub const WINDOW_SCALE_NONE: u8 = 15;

/// The window scale that our SYN-ACK announces. The backend's scale is not known at that time, and no later
/// segment can change the announced one, so windows are converted between the two (RFC 7323 section 2.2).
pub const WINDOW_SCALE_ANNOUNCED: u8 = 7;

/// Stream bytes in one [`Buffer`].
pub const BUFFER_BYTES: usize = 2048;
/// [`Buffer::index`]: the buffer belongs to no hello.
pub const BUFFER_FREE: u32 = u32::MAX;
/// The most buffers of one hello. The largest message, of 2^14 bytes, fits in records of 41 bytes and more.
pub const PENDING_BUFFERS: usize = 9;
/// The most bytes of a hello, including its record headers.
pub const HELLO_BYTES_MAX: usize = BUFFER_BYTES * PENDING_BUFFERS;
/// Mask of an offset in a hello's stream: the lowest bits, up to those of [`HELLO_BYTES_MAX`].
pub const HELLO_OFFSET_MASK: u32 = HELLO_BYTES_MAX.next_power_of_two() as u32 - 1;

const _: () =
    assert!(HELLO_BYTES_MAX == STREAM_BYTES_MAX as usize, "the parser accepts what the buffers can take");

map_struct! {
    /// Value of `PENDING`: a connection from its first data until its backend has the hello.
    pub struct Pending = 448 {
        pub connection: Connection,
        /// The client's initial sequence number.
        pub isn: u32,
        /// Monotonic clock when the first byte arrived.
        pub started_ns: u64,
        /// The connection as its backend sees it; valid from [`PENDING_CONNECTING`] on.
        pub nat: BackendTuple,
        /// Our initial sequence number towards the client.
        pub vip_isn: u32,
        /// Bytes of the stream received so far, without a gap.
        pub have: u32,
        /// Bytes that we acknowledged and must therefore deliver.
        pub acked: u32,
        /// The client's last timestamp.
        pub client_tsval: u32,
        /// Indices of slots in `BUFFERS`; `have` determines how many are used.
        pub buffers: [u32; PENDING_BUFFERS],
        /// [`super::word::Waiting::epoch`] of the source's count at creation.
        pub source_epoch: u32,
        /// The last timestamp that we sent to the client. The backend's timestamps are translated to continue
        /// from it.
        pub our_tsval: u32,
        /// Segments accepted since our last acknowledgement.
        pub segments_unacked: u32,
        /// The client's MSS, host byte order.
        pub mss: u16,
        /// The client's last window as sent, not scaled, host byte order.
        pub window: u16,
        /// MTU of the device towards the backend, host byte order.
        pub mtu: u16,
        /// The most payload bytes of a segment to the backend; valid after the backend has answered.
        pub backend_mss: u16,
        /// The client's window scale or [`WINDOW_SCALE_NONE`].
        pub window_scale: u8,
        /// [`OPTION_SACK`], [`OPTION_TIMESTAMPS`].
        pub options: u8,
        /// [`crate::decide::pick::Choice::offset`].
        pub offset: u16,
        /// [`crate::decide::pick::Choice::silent`].
        pub silent: u8,
        /// Retransmissions by the client since the first SYN to the current backend.
        pub retransmits: u8,
        /// Source ports given up since the client's last segment: the backend has an old connection on each.
        pub moves: u8,
        /// Slots of `BUFFERS` for which its source is counted while it waits for its backend. 0: there was no room to count.
        pub slots: u8,
        /// 1: a RST of the client was challenged. The flow is on trial from the moment it opens.
        pub challenged: u8,
        /// Zero.
        pub reserved: [u8; 7],
        /// The state of the parser.
        pub parser: Parser,
    }
}

map_struct! {
    /// Element of `BUFFERS`.
    pub struct Buffer = 2096 {
        /// The connection that the bytes belong to. The slot is free unless `buffers[index]` of that hello is
        /// this slot.
        pub owner: ClientTuple,
        /// 1: a CPU takes the slot; no other may, until it has stored the hello whose record names the slot. 0: free
        /// to be taken.
        pub locked: u32,
        /// Which part of the hello this is; [`BUFFER_FREE`] = the hello was delivered, and the slot is free.
        pub index: u32,
        pub bytes: [u8; BUFFER_BYTES],
    }
}

/// [`Connection::state`] of a [`HalfOpen`]: the SYN was passed on.
pub const HALF_OPEN_DIALLED: u8 = 1;
/// [`Connection::state`] of a [`HalfOpen`]: the backend answered with SYN-ACK.
pub const HALF_OPEN_ANSWERED: u8 = 2;

map_struct! {
    /// Value of `HALF_OPENS`: a SYN passed to a backend of a TCP listener.
    pub struct HalfOpen = 104 {
        pub connection: Connection,
        /// The client's initial sequence number.
        pub isn: u32,
        /// Monotonic clock at the first SYN.
        pub started_ns: u64,
        /// The connection as its backend sees it.
        pub nat: BackendTuple,
        /// The backend's initial sequence number; valid from [`HALF_OPEN_ANSWERED`] on.
        pub backend_isn: u32,
        /// Payload bytes in the SYN.
        pub syn_bytes: u32,
        /// Index of its slot in `HALF_OPEN_RING`.
        pub slot: u32,
        /// The client's window scale or [`WINDOW_SCALE_NONE`].
        pub client_scale: u8,
        /// The backend's window scale or [`WINDOW_SCALE_NONE`]; valid from [`HALF_OPEN_ANSWERED`] on.
        pub backend_scale: u8,
        /// Window of the backend's SYN-ACK, host byte order; valid from [`HALF_OPEN_ANSWERED`] on.
        pub backend_window: u16,
        /// [`OPTION_SACK`] and [`OPTION_TIMESTAMPS`], as in the client's SYN.
        pub options: u8,
        /// How often the SYN went again from another port.
        pub moves: u8,
        /// The MSS in the client's SYN, host byte order; 0 = none.
        pub mss: u16,
        /// The timestamp in the client's SYN.
        pub client_tsval: u32,
        /// The window of the client's SYN, host byte order.
        pub client_window: u16,
        /// Zero.
        pub reserved: [u8; 6],
    }
}

map_struct! {
    /// Element of `HALF_OPEN_RING` and `CLOSED_RING`.
    pub struct Slot = 48 {
        /// May be read while it is written: only a record that has the generation of `taken` is the owner's.
        pub owner: ClientTuple,
        pub taken: Taken,
    }
}
