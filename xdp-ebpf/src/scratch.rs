//! Working memory of one run, one per CPU. It consists of parts; each function takes the parts that it works on.

use aya_ebpf::bindings::{bpf_fib_lookup, bpf_redir_neigh};
use common::decide::pick::Choice;
use common::decide::route_key::Keys;
use common::maps::address::Address;
use common::maps::event::Expiry;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, Flow, HalfOpen, Pending};
use common::maps::listener::Listener;
use common::wire::client_hello::Window;

use crate::atomic;
use crate::packet::{Headers, Segment};
use crate::segment::hops::FlowHop;

/// All parts. Only `main`, `maps` and `path` name the whole. The kernel allows at most 32 KiB.
#[repr(C)]
pub(crate) struct Scratch {
    /// Not 0: a run uses the memory; see [`Scratch::enter`].
    busy: u32,
    pub(crate) received: Received,
    pub(crate) draft: Draft,
    pub(crate) dial: Dial,
    pub(crate) waiting: Waiting,
    pub(crate) flow: Flow,
    pub(crate) half_open: Held,
    pub(crate) quote: Quote,
    pub(crate) cursors: Cursors,
    /// The packet's exit, as [`crate::exit::Exit::number`]; in `expire`, how many orders of a run were done.
    pub(crate) exit: u32,
}

impl Scratch {
    /// Takes the working memory for a run; `false`: another run has it. Under PREEMPT_RT, from Linux 6.18 on, a packet
    /// may interrupt the handling of another one on the same CPU.
    #[inline(always)]
    pub(crate) fn enter(&mut self) -> bool {
        atomic::exchange(&mut self.busy, 1) == 0
    }

    /// Gives the working memory back.
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        atomic::write_last(&mut self.busy, 0);
    }
}

const _: () = assert!(size_of::<Scratch>() <= 32_768, "a per-CPU value is at most 32 KiB");
// A pinned map keeps the size of its values: programs that need another one do not load beside the pins of the release before. Those of
// both releases may run during an upgrade, and each sees by the same word that the other uses the memory.
const _: () = assert!(
    size_of::<Scratch>() == 29_896,
    "pinned working memory keeps its size: put what is new where a part has room"
);
const _: () = assert!(core::mem::offset_of!(Scratch, busy) == 0, "programs of the release before look here");

/// Working memory of one run of XDP. A frame that XDP has is not yet the packet that TCX has, so it is of its own.
#[repr(C)]
pub(crate) struct Front {
    /// As in [`Scratch`].
    busy: u32,
    pub(crate) received: Received,
    pub(crate) draft: Draft,
    pub(crate) listener: Listener,
}

impl Front {
    /// As [`Scratch::enter`].
    #[inline(always)]
    pub(crate) fn enter(&mut self) -> bool {
        0 == atomic::exchange(&mut self.busy, 1)
    }

    /// As [`Scratch::leave`].
    #[inline(always)]
    pub(crate) fn leave(&mut self) {
        atomic::write_last(&mut self.busy, 0);
    }
}

const _: () = assert!(size_of::<Front>() == 608, "pinned working memory keeps its size, as that of TCX");
const _: () = assert!(core::mem::offset_of!(Front, busy) == 0, "programs of the release before look here");

/// The packet in hand, and the connection it belongs to.
#[repr(C)]
pub(crate) struct Received {
    pub(crate) now_ns: u64,
    pub(crate) segment: Segment,
    pub(crate) headers: Headers,
    /// The TCP header as received, for checksum differences.
    pub(crate) kept: Headers,
    /// Key of the connection's records, the same for packets from either side.
    pub(crate) client: ClientTuple,
    /// `Connection::generation` of the record that the packet was found to belong to.
    pub(crate) generation: u32,
    /// What the packet's flow knows of its next hop.
    pub(crate) hop: FlowHop,
    /// Whether the packet's checksum is still to be completed (CHECKSUM_PARTIAL).
    pub(crate) partial: bool,
    /// Whether `partial` is valid for this packet and its checksum is trusted.
    pub(crate) partial_known: bool,
    /// How much of this part is of the packet in hand: `KNOWN_*` of `common::maps::trace`. For `trace` alone.
    pub(crate) known: u8,
    /// What the packet was found to belong to: `CLASS_*` of `common::maps::trace`. For `trace` alone.
    pub(crate) class: u8,
    /// Whether the connection's client is on this node, and is answered by the node's own pair.
    pub(crate) from_node: bool,
    /// Whether the packet came by that pair.
    pub(crate) by_pair: bool,
}

/// A segment that we make, or the receiver of the packet in hand. Numbers are in host byte order.
#[repr(C)]
pub(crate) struct Draft {
    /// The sender as `client`, the receiver as `vip`.
    pub(crate) tuple: ClientTuple,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// Index in [`Cursors::window`] of the payload's first byte.
    pub(crate) payload_from: u32,
    pub(crate) payload_bytes: u32,
    /// TSval and TSecr, valid when `timestamps` is set.
    pub(crate) tsval: u32,
    pub(crate) tsecr: u32,
    pub(crate) window: u16,
    /// SYN: MSS option.
    pub(crate) mss: u16,
    pub(crate) flags: u8,
    pub(crate) timestamps: bool,
    /// SYN: window scale option or `WINDOW_SCALE_NONE`.
    pub(crate) window_scale: u8,
    /// SYN: SACK permitted option.
    pub(crate) sack_permitted: bool,
    /// Number of the reason that is counted when it is sent.
    pub(crate) reason: u32,
    /// Whether `route` is the complete result of a look-up for this packet.
    pub(crate) looked_up: bool,
    pub(crate) route: bpf_fib_lookup,
    pub(crate) unresolved: bpf_redir_neigh,
}

/// A connection to be opened: the decision's inputs and results, and the backend's side of the connection.
#[repr(C)]
pub(crate) struct Dial {
    pub(crate) connection: Connection,
    /// The connection as its backend sees it; `delivery` fills it.
    pub(crate) nat: BackendTuple,
    pub(crate) listener: Listener,
    pub(crate) choice: Choice,
    pub(crate) keys: Keys,
    /// What the client has proved: `cookie::PROOF_*`.
    pub(crate) proof: u32,
    /// The client of the half-open slot being looked at.
    pub(crate) victim: ClientTuple,
    /// A four-tuple as `bpf_sock_tuple`.
    pub(crate) socket: [u8; 36],
    /// Whether a source port was claimed.
    pub(crate) claimed: u32,
}

/// A connection that waits for bytes of its hello or for its backend.
#[repr(C)]
pub(crate) struct Waiting {
    /// A copy of its record, or the record to be stored.
    pub(crate) pending: Pending,
    /// Whether this CPU holds the record of the client in `Received::client`.
    pub(crate) held: bool,
    /// Whether the connection began with the packet in hand. Here, not in a register: the verifier would follow all that
    /// happens to a hello once for each value.
    pub(crate) new: bool,
    /// The parts of the hello for which this CPU took a slot of `BUFFERS` and still holds its lock: bits.
    pub(crate) claimed: u32,
    /// Kept from packet to packet: 1 + the `BUFFERS` slot that this CPU freed last, still in its cache; 0 = none.
    pub(crate) freed: u32,
    /// Owner of the buffer that is being looked at.
    pub(crate) victim: ClientTuple,
    /// The report to the daemon about an evicted hello.
    pub(crate) eviction: Expiry,
}

/// A half-open connection.
#[repr(C)]
pub(crate) struct Held {
    /// A copy of its record, or the record to be stored.
    pub(crate) record: HalfOpen,
    /// Whether this CPU holds the record of the client in `Received::client`.
    pub(crate) held: bool,
}

/// The segment that an ICMP error quotes.
#[repr(C)]
pub(crate) struct Quote {
    /// The segment's source as `client`, its destination as `vip`.
    pub(crate) tuple: ClientTuple,
    pub(crate) seq: u32,
    /// Added to its sequence number and acknowledgement number.
    pub(crate) seq_shift: u32,
    pub(crate) ack_shift: u32,
    /// The smallest MTU that an IPv6 error may report; 0: any.
    pub(crate) mtu_least: u32,
}

/// Positions of loops, and the bytes that they process.
#[repr(C)]
pub(crate) struct Cursors {
    /// The first stream byte to process.
    pub(crate) from: u32,
    pub(crate) at: u32,
    pub(crate) left: u32,
    pub(crate) sum: u32,
    /// The first stream byte of the next segment to deliver.
    pub(crate) deliver_at: u32,
    /// Length of the extension header read last, and the type of the header after it.
    pub(crate) options_bytes: u32,
    pub(crate) options_next: u32,
    /// The search for a slot: the one found, and the oldest one seen.
    pub(crate) found: u32,
    pub(crate) oldest: u32,
    pub(crate) oldest_ns: u64,
    /// Whether the search met a slot, or a record, that another CPU holds.
    pub(crate) busy: bool,
    pub(crate) window: Window,
}

/// A next hop that was found a moment ago: an element of `NEXT_HOPS`, of one CPU alone.
#[repr(C)]
pub(crate) struct NextHop {
    pub(crate) from: Address,
    pub(crate) to: Address,
    /// The device that the packet came in on, and the one it leaves on.
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
    /// The largest IP packet that fits, in bytes.
    pub(crate) mtu: u32,
    /// When it was found, in `next_hop`'s units of time. Zero in an element never written, which matches no packet.
    pub(crate) age: u32,
    pub(crate) links: Links,
}

/// Link addresses of a next hop.
#[repr(C)]
pub(crate) struct Links {
    pub(crate) to: [u8; 6],
    pub(crate) from: [u8; 6],
}
