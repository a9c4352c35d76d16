//! Who announced an address before this node did, and whether that node answers.

use super::next_hop::link;
use super::segment::HeardNs;

map_struct! {
    /// Value of `PREVIOUS`: who announced an address that this node announces, or did until a moment ago, by the epoch before. Connections
    /// may be open there.
    pub struct Previous = 32 {
        /// The epoch by which this node announces the address.
        pub epoch: u64,
        /// Since when, by the clock of [`super::segment::Segment`].
        pub since_ns: u64,
        /// Id of the node that did before.
        pub node: u64,
        /// When this node left the address to another one; 0: it did not.
        pub closed_ns: u64,
    }
}

map_struct! {
    /// Key of `PEERS`.
    #[derive(PartialOrd, Ord)]
    pub struct PeerKey = 16 {
        /// Id of the node.
        pub node: u64,
        /// Index of the device on the segment.
        pub device: u32,
        /// Zero.
        pub reserved: u32,
    }
}

map_struct! {
    /// Value of `PEERS`: a node that announced something before this one did.
    pub struct Peer = 16 {
        /// When it was last there; 0: it was not.
        pub heard_ns: HeardNs,
        /// Its link address, packed by [`super::next_hop::link`].
        pub link: u64,
    }
}

impl PeerKey {
    /// The key of a node on a device.
    #[inline(always)]
    pub const fn new(node: u64, device: u32) -> Self {
        Self { node, device, reserved: 0 }
    }
}

impl Peer {
    /// A node with this link address, which was there at this time.
    #[inline(always)]
    pub const fn new(heard_ns: HeardNs, [a, b, c, d, e, f]: [u8; 6]) -> Self {
        Self { heard_ns, link: link(u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f])) }
    }

    /// Whether a frame can be sent to it: its link address is one, and of one host.
    #[inline(always)]
    pub const fn is_host(&self) -> bool {
        (self.link != 0) & (self.link.to_le() & 1 == 0)
    }
}
