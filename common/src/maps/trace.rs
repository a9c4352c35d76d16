//! The filter of `vestibule trace`, and what the programs log about each packet.

use super::address::{Address, Port};
use super::flow::ClientTuple;

/// [`TraceFilter::reason`]: packets of every reason.
pub const REASON_ANY: u32 = u32::MAX;

/// The most packets logged per second; the others are only counted.
pub const LINES_PER_SECOND: u64 = 10_000;

/// [`TraceRecord::known`]: nothing; the packet is not IP.
pub const KNOWN_NOTHING: u8 = 0;
/// [`TraceRecord::known`]: `from` and `to`.
pub const KNOWN_ADDRESSES: u8 = 1;
/// [`TraceRecord::known`]: also ports and TCP fields.
pub const KNOWN_SEGMENT: u8 = 2;
/// [`TraceRecord::known`]: also that the segment is from a client.
pub const KNOWN_CLIENT: u8 = 3;
/// [`TraceRecord::known`]: also that the segment is from a backend.
pub const KNOWN_BACKEND: u8 = 4;

/// [`TraceRecord::class`]: no connection was looked up.
pub const CLASS_NONE: u8 = 0;
/// [`TraceRecord::class`]: an established connection, or an ended one that is still stored.
pub const CLASS_FLOW: u8 = 1;
/// [`TraceRecord::class`]: a TLS connection that waits for bytes of its hello or for its backend.
pub const CLASS_PENDING: u8 = 2;
/// [`TraceRecord::class`]: a TCP listener's connection before the client's ACK.
pub const CLASS_HALF_OPEN: u8 = 3;
/// [`TraceRecord::class`]: a connection that starts with this packet.
pub const CLASS_NEW: u8 = 4;
/// [`TraceRecord::class`]: mid-stream, with neither entry nor cookie.
pub const CLASS_STRAY: u8 = 5;
/// [`TraceRecord::class`]: an ICMP error about a connection.
pub const CLASS_ICMP: u8 = 6;

/// [`TraceRecord::hook`]: TCX ingress.
pub const HOOK_TCX: u8 = 0;

/// [`TraceRecord::exit`]: handed to the next program, then to the node's own stack.
pub const EXIT_NEXT: u8 = 0;
/// [`TraceRecord::exit`]: dropped, or answered with a separate packet.
pub const EXIT_DROP: u8 = 1;
/// [`TraceRecord::exit`]: sent, possibly rewritten.
pub const EXIT_SENT: u8 = 2;

map_struct! {
    /// Value of `TRACE`, one element: which packets are logged. Written by `vestibule trace`. The programs
    /// write only `until_ns`: they set it to 0 one second after that time has passed.
    pub struct TraceFilter = 80 {
        /// Packets are logged until this time (monotonic clock); 0 = no packet is logged.
        pub until_ns: u64,
        /// The network of the clients; IPv4 in mapped form.
        pub clients: Address,
        /// A 1 for each bit in which a client must equal `clients`.
        pub clients_mask: Address,
        /// The VIP.
        pub vip: Address,
        /// A 1 for each bit in which a VIP must equal `vip`; all zero = every VIP.
        pub vip_mask: Address,
        /// The VIP's port; 0 = every port.
        pub vip_port: Port,
        /// Zero.
        pub reserved: [u8; 2],
        /// Number of the reason, or [`REASON_ANY`].
        pub reason: u32,
    }
}

map_struct! {
    /// Value of `TRACE_COUNT`, one element. Written only by the programs.
    pub struct TraceCount = 24 {
        /// Packets that the filter chose, logged or not. Never reset.
        pub chosen: u64,
        /// Start of the current second, monotonic clock, nanoseconds.
        pub second_ns: u64,
        /// `chosen` at the start of that second.
        pub second_first: u64,
    }
}

map_struct! {
    /// What is logged about a packet as it leaves. Numbers are in host byte order.
    pub struct TraceRecord = 120 {
        /// Monotonic clock.
        pub time_ns: u64,
        /// [`TraceCount::chosen`] before this packet. A gap between two records shows how many packets were
        /// not logged.
        pub number: u64,
        /// The connection as the client sees it. If no connection was looked up: the packet's own addresses
        /// and ports.
        pub client: ClientTuple,
        /// The sender, as received.
        pub from: Address,
        /// The receiver, as received.
        pub to: Address,
        pub from_port: Port,
        pub to_port: Port,
        pub seq: u32,
        pub ack: u32,
        /// Bytes of TCP payload; if the packet is not TCP, bytes of the frame.
        pub bytes: u32,
        /// Index of the device that received the packet.
        pub device: u32,
        /// `Connection::generation` of the connection; 0 = unknown.
        pub generation: u32,
        /// Not scaled.
        pub window: u16,
        /// TCP flags.
        pub flags: u8,
        /// `HOOK_*`.
        pub hook: u8,
        /// `KNOWN_*`: which of the fields above are valid for this packet.
        pub known: u8,
        /// `CLASS_*`.
        pub class: u8,
        /// `EXIT_*`.
        pub exit: u8,
        /// Number of the reason.
        pub reason: u8,
    }
}
