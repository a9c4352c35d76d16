//! Who announced an address before this node did, and whether that node answers.

use super::next_hop::link;
use super::segment::{HeardNs, PRESENT_NS};

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
        /// When it was last there, without [`ATTENDED`], which is the lowest bit of it; 0: it was not.
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

/// Bit of [`Peer::heard_ns`]: whenever the node was there since the entry was made, its agent was alive. One that was not may have missed
/// which backends are whose, so the bit does not come back.
pub const ATTENDED: u64 = 1;

/// The oldest stamp of an agent that counts as alive: as old as it may be for other nodes to leave it an address.
pub const STAMP_MS: u32 = 1_000;

/// An agent whose stamp is older than this is known to be dead wherever its node is watched: by then, an answer that showed a stamp of
/// [`STAMP_MS`] counts no more.
pub const UNATTENDED_NS: u64 = STAMP_MS as u64 * 1_000_000 + PRESENT_NS;

impl Peer {
    /// A node with this link address, which was there at this time, with its agent or not.
    #[inline(always)]
    pub const fn new(heard_ns: HeardNs, is_attended: bool, [a, b, c, d, e, f]: [u8; 6]) -> Self {
        let link = link(u32::from_ne_bytes([a, b, c, d]), u16::from_ne_bytes([e, f]));
        Self { heard_ns: heard_ns & !ATTENDED | is_attended as u64, link }
    }

    /// When it was last there, to 2 ns; 0: it was not.
    #[inline(always)]
    pub const fn last_ns(&self) -> HeardNs {
        self.heard_ns & !ATTENDED
    }

    /// Whether its agent was alive whenever it was there.
    #[inline(always)]
    pub const fn is_attended(&self) -> bool {
        self.heard_ns & ATTENDED != 0
    }

    /// [`Self::heard_ns`] of a node that `was` there before, and is now: its agent stamped this many milliseconds ago.
    #[inline(always)]
    pub const fn heard(was: u64, stamp_age_ms: u32, now_ns: HeardNs) -> u64 {
        now_ns & !ATTENDED | (was & ATTENDED & (stamp_age_ms <= STAMP_MS) as u64)
    }

    /// Whether a frame can be sent to it: its link address is one, and of one host.
    #[inline(always)]
    pub const fn is_host(&self) -> bool {
        (self.link != 0) & (self.link.to_le() & 1 == 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 9];

    #[test]
    fn an_agent_that_was_dead_once_may_have_missed_something() {
        let mut heard = Peer::new(7, true, LINK).heard_ns;
        for (age_ms, is_attended) in
            [(0, true), (STAMP_MS, true), (STAMP_MS + 1, false), (0, false), (u32::MAX, false)]
        {
            for now_ns in [1_000, 1_001] {
                heard = Peer::heard(heard, age_ms, now_ns);
                let peer = Peer { heard_ns: heard, ..Peer::new(0, true, LINK) };
                assert_eq!((peer.last_ns(), peer.is_attended()), (1_000, is_attended), "{age_ms}");
            }
        }
        for is_attended in [false, true] {
            let peer = Peer::new(0, is_attended, LINK);
            assert_eq!((peer.last_ns(), peer.is_attended()), (0, is_attended), "it was never there");
        }
    }
}
