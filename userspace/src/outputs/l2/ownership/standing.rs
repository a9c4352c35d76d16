use std::net::IpAddr;
use std::time::Instant;

use super::addresses::{Held, HeldSince};
use super::{Previous, Segment, Standing};

impl Segment {
    /// Who announces an address.
    pub(in crate::outputs::l2) fn standing(&self, address: &IpAddr) -> Standing {
        if let Some(Held { epoch, since: HeldSince::Open(since), .. }) = self.addresses.held_at(address) {
            return Standing::Here { epoch: *epoch, since: *since };
        }
        if let Some((node, epoch)) = self.holder(address) {
            return Standing::Elsewhere { node, epoch };
        }
        match self.addresses.conflict(address) {
            Some(link) => Standing::Conflict { link },
            None => Standing::Nobody { why: self.why_not(address) },
        }
    }

    /// Who announced an address, which this node holds, by the epoch before; `None`: this node itself, nobody, or one whose link address is
    /// not known.
    pub(in crate::outputs::l2) fn previous(&self, address: &IpAddr, now: Instant) -> Option<Previous> {
        let held = self.addresses.held_at(address)?;
        let (node, by_gate) = (held.previous?, held.by_gate);
        let peer = self.peers.get(&node)?;
        // A table is signed, the header of a frame is not.
        let link = peer.table.link.or(peer.link)?;
        let is_attended = peer.may_bid(now) && !by_gate;
        Some(Previous { node, link, is_alive: peer.is_alive(now), is_attended })
    }

    fn why_not(&self, address: &IpAddr) -> &'static str {
        if self.is_released {
            "this node leaves"
        } else if !self.addresses.is_candidate(address) {
            "this node is no candidate"
        } else if self.is_isolated {
            "nothing is received on the device"
        } else {
            "the others are asked, and candidates that come first may bid before"
        }
    }
}
