//! Working memory of one run, one a CPU: parts, of which each function takes those that it works on.

use aya_ebpf::bindings::{bpf_fib_lookup, bpf_redir_neigh};
use common::decide::pick::Choice;
use common::decide::route::Keys;
use common::maps::address::Address;
use common::maps::event::Expiry;
use common::maps::flow::{BackendTuple, ClientTuple, Connection, Flow, HalfOpen, Pending};
use common::maps::listener::Listener;
use common::wire::client_hello::Window;

use crate::packet::{Headers, Segment};

/// All of it. Only `main`, `maps` and `path` name the whole. The kernel allows at most 32 KiB.
#[repr(C)]
pub(crate) struct Scratch {
    pub(crate) received: Received,
    pub(crate) draft: Draft,
    pub(crate) dial: Dial,
    pub(crate) waiting: Waiting,
    pub(crate) flow: Flow,
    pub(crate) half_open: HalfOpen,
    pub(crate) quote: Quote,
    pub(crate) cursors: Cursors,
}

const _: () = assert!(size_of::<Scratch>() <= 32_768, "a per-CPU value is at most 32 KiB");

/// The packet in hand, and whose it is.
#[repr(C)]
pub(crate) struct Received {
    pub(crate) now_ns: u64,
    pub(crate) segment: Segment,
    pub(crate) headers: Headers,
    /// TCP header as received, for checksum differences.
    pub(crate) kept: Headers,
    /// Key of the connection's records, whichever side the packet came from.
    pub(crate) client: ClientTuple,
    /// `Connection::generation` of the record that the packet was found to belong to.
    pub(crate) generation: u32,
    /// Whether the packet's checksum is still to be completed (CHECKSUM_PARTIAL).
    pub(crate) partial: bool,
    /// Whether `partial` is known of this packet, and its checksum is to be trusted.
    pub(crate) partial_known: bool,
}

/// A segment of ours to be made, or where the packet in hand goes. Numbers in host byte order.
#[repr(C)]
pub(crate) struct Draft {
    /// Sender as `client`, receiver as `vip`.
    pub(crate) tuple: ClientTuple,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// First byte of the payload in [`Cursors::window`].
    pub(crate) payload_from: u32,
    pub(crate) payload_bytes: u32,
    /// TSval and TSecr, when `timestamps`.
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
    /// Number of the reason that is counted once it is sent.
    pub(crate) reason: u32,
    pub(crate) route: bpf_fib_lookup,
    pub(crate) unresolved: bpf_redir_neigh,
}

/// A connection to be opened: what the decision reads and gives, and the backend's side of it.
#[repr(C)]
pub(crate) struct Dial {
    pub(crate) connection: Connection,
    /// The connection as its backend sees it; `delivery` fills it.
    pub(crate) nat: BackendTuple,
    pub(crate) listener: Listener,
    pub(crate) choice: Choice,
    pub(crate) keys: Keys,
    /// What the client proved: `cookie::PROOF_*`.
    pub(crate) proof: u32,
    /// Who held the replies that are claimed.
    pub(crate) victim: ClientTuple,
    /// A four-tuple as `bpf_sock_tuple`.
    pub(crate) socket: [u8; 36],
    /// Whether a source port was claimed.
    pub(crate) claimed: u32,
}

/// A connection that waits for bytes of its hello, or for its backend.
#[repr(C)]
pub(crate) struct Waiting {
    /// A copy of its record, or the record to be stored.
    pub(crate) pending: Pending,
    /// Whether the record was there before this packet.
    pub(crate) found: bool,
    /// Outlives the packet: 1 + the place that this CPU freed last, still in its cache; 0 = none.
    pub(crate) freed: u32,
    /// Whose place is looked at.
    pub(crate) victim: ClientTuple,
    /// What the daemon is told of a victim.
    pub(crate) eviction: Expiry,
}

/// The segment that an ICMP error quotes.
#[repr(C)]
pub(crate) struct Quote {
    /// Its source as `client`, its destination as `vip`.
    pub(crate) tuple: ClientTuple,
    pub(crate) seq: u32,
    /// Added to its sequence and acknowledgement number.
    pub(crate) seq_shift: u32,
    pub(crate) ack_shift: u32,
}

/// Where loops stand, and the bytes that they run over.
#[repr(C)]
pub(crate) struct Cursors {
    /// First stream byte to work on.
    pub(crate) from: u32,
    pub(crate) at: u32,
    pub(crate) left: u32,
    pub(crate) sum: u32,
    /// First stream byte of the segment to be delivered next.
    pub(crate) deliver_at: u32,
    /// Bytes of the extension header read last, and what follows it.
    pub(crate) options_bytes: u32,
    pub(crate) options_next: u32,
    /// A search for a place: the one found, and the oldest met.
    pub(crate) found: u32,
    pub(crate) oldest: u32,
    pub(crate) oldest_ns: u64,
    pub(crate) window: Window,
}

/// A next hop that was found a moment ago: element of `NEXT_HOPS`, one CPU's own.
#[repr(C)]
pub(crate) struct NextHop {
    pub(crate) from: Address,
    pub(crate) to: Address,
    /// The device that the packet came in by, and the one it leaves by.
    pub(crate) ingress: u32,
    pub(crate) egress: u32,
    /// Most bytes of an IP packet.
    pub(crate) mtu: u32,
    /// When it was found, in `next_hop`'s units of time; zero in an element never written, which fits no packet.
    pub(crate) age: u32,
    pub(crate) links: Links,
}

/// Link addresses of a next hop.
#[repr(C)]
pub(crate) struct Links {
    pub(crate) to: [u8; 6],
    pub(crate) from: [u8; 6],
}
