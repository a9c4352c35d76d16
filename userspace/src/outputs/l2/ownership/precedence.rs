use std::net::IpAddr;

use common::decide::maglev::mix;

use super::NodeId;

/// Is added to the digest of a table while its node answers for more, which it doubts.
pub(super) const DOUBTS: u64 = 0x6a09_e667_f3bc_c909;

/// Returns the bits of an address.
fn bits(address: &IpAddr) -> u64 {
    let whole = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => address.to_bits(),
    };
    mix((whole >> 64) as u64 ^ mix(whole as u64))
}

/// Returns the weight of a node for an address (rendezvous hashing): of candidates that are preferred alike, the one with the highest comes
/// first. It is the same whichever other candidates there are.
pub(super) fn weight(address: &IpAddr, node: NodeId) -> (u64, NodeId) {
    (mix(bits(address) ^ mix(node)), node)
}

/// A node that may announce an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(in crate::outputs::l2) struct Candidate {
    pub(in crate::outputs::l2) node: NodeId,
    /// One with a higher one comes before it, and so bids before it, and is left the address. Between two that have bid,
    /// [`claim_order`] decides: they may not know the same of preferences.
    pub(in crate::outputs::l2) preference: u32,
}

impl From<NodeId> for Candidate {
    /// One that is preferred to none.
    fn from(node: NodeId) -> Self {
        Self { node, preference: 0 }
    }
}

impl Candidate {
    /// Returns by what the first candidate for an address is found: the highest comes first.
    pub(super) fn rank(&self, address: &IpAddr) -> (u32, (u64, NodeId)) {
        (self.preference, weight(address, self.node))
    }
}

/// Returns by what the highest claim is found. It follows from the claims alone: two nodes that know other candidates, or of other releases,
/// find the same.
pub(super) fn claim_order(address: &IpAddr, node: NodeId, epoch: u64) -> (u64, (u64, NodeId)) {
    (epoch, weight(address, node))
}

/// Returns the part of a bid in the digest of a table, which is the sum of all.
pub(super) fn digest(address: &IpAddr, epoch: u64) -> u64 {
    mix(bits(address).wrapping_add(mix(epoch ^ 0x5653_4231)))
}
