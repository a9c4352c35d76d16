//! Addresses that are announced to the hosts of a segment by ARP and neighbour discovery.

use super::address::Address;

map_struct! {
    /// Key of `ANNOUNCED`.
    #[derive(Hash, PartialOrd, Ord)]
    pub struct AnnouncedKey = 20 {
        /// The address.
        pub address: Address,
        /// Index of the device on the segment.
        pub device: u32,
    }
}

/// [`Announced::owner`]: another node, or nobody. Questions for the address are dropped, so that nothing on this node answers
/// them: it may be on `lo` or `kube-ipvs0`.
pub const OWNER_ELSEWHERE: u16 = 0;
/// [`Announced::owner`]: this node. Questions for the address are answered with its device's link address.
pub const OWNER_HERE: u16 = 1;
/// [`Announced::owner`]: this node, and no other one may: also while the node leaves its other addresses there to others
/// ([`super::segment::Gate`]).
pub const OWNER_ONLY: u16 = 2;

map_struct! {
    /// Value of `ANNOUNCED`. Without an entry, questions for the address are the kernel's to answer.
    #[derive(PartialOrd, Ord)]
    pub struct Announced = 8 {
        /// Link address of the device.
        pub link: [u8; 6],
        /// `OWNER_*`.
        pub owner: u16,
    }
}

impl Announced {
    /// Whether this node answers for the address, as long as its gate is open.
    #[inline(always)]
    pub const fn is_here(&self) -> bool {
        self.owner == OWNER_HERE || self.owner == OWNER_ONLY
    }
}
