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
        let node = self.addresses.held_at(address)?.previous?;
        let peer = self.peers.get(&node)?;
        Some(Previous { node, link: peer.link?, is_alive: peer.is_alive(now) })
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
