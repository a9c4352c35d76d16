use std::net::IpAddr;
use std::time::Instant;

use std::time::Duration;

use super::addresses::{Held, HeldSince, Turnover};
use super::bidding::Cause;
use super::{Known, Member, Previous, Segment, Standing};
use crate::outputs::l2::why::Why;

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

    /// What is known of who announces an address.
    pub(in crate::outputs::l2) fn known(&self, address: &IpAddr) -> Known {
        let standing = self.standing(address);
        let changed = self.addresses.turnover(address).map(|Turnover { at, why }| (at, why));
        let free = || self.pursuits.of(address).map(|(_, since)| since).zip(self.why_free(address));
        let since = match standing {
            Standing::Here { .. } | Standing::Elsewhere { .. } => changed,
            // What it was lost by says more than what it waits for.
            Standing::Nobody { .. } | Standing::Conflict { .. } => changed.or_else(free),
        };
        let own = self.addresses.held_at(address).map(|held| (self.own, held.epoch));
        let claims = own.into_iter().chain(self.addresses.claims(address).iter().copied()).collect();
        let candidates = self.addresses.candidates(address).len();
        Known { standing, since, claims, candidates, foreign: self.foreign(address) }
    }

    /// Returns the link address of a foreign host that answers for an address.
    pub(in crate::outputs::l2) fn foreign(&self, address: &IpAddr) -> Option<[u8; 6]> {
        self.addresses.conflict(address)
    }

    /// Returns the other nodes that may announce something here, or do.
    pub(in crate::outputs::l2) fn others(&self, now: Instant) -> impl Iterator<Item = Member> {
        let nodes = self.members.iter().filter(|(node, _)| **node != self.own);
        let start = self.heartbeats.start();
        nodes.map(move |(node, since)| (*node, *since)).map(move |(node, since)| {
            match self.peers.get(&node) {
                Some(peer) => {
                    let (link, silent) = (peer.table.link.or(peer.link), peer.silent(now));
                    Member { node, link, silent, is_closed: silent == Duration::ZERO && peer.is_closed() }
                }
                None => {
                    let silent = now.saturating_duration_since(start.max(since));
                    Member { node, link: None, silent, is_closed: false }
                }
            }
        })
    }

    /// Returns why an address may be bid for; `None`: it may not.
    pub(super) fn why_free(&self, address: &IpAddr) -> Option<Why> {
        Some(match self.pursuits.of(address)?.0 {
            Cause::Free => Why::Free,
            Cause::Released { by } if by == self.own => Why::TakenBack,
            Cause::Released { by } if self.addresses.candidate(address, by).is_some() => Why::HandedOver,
            Cause::Released { .. } => Why::Released,
            Cause::Void { by_gate: true, .. } => Why::AgentDead,
            Cause::Void { by_gate: false, .. } => Why::OwnerSilent,
        })
    }

    /// Returns why another node has an address from now on that this one does not hold.
    pub(super) fn why_taken(&self, address: &IpAddr, was_held: bool, now: Instant) -> Why {
        match self.why_free(address) {
            _ if was_held => Why::HigherEpoch,
            // This node has just started to listen: others may have had it for long.
            _ if now < self.heartbeats.listens_until() => Why::Found,
            Some(Why::TakenBack) => Why::HandedOver,
            // Who may not bid for it does not know.
            why => why.unwrap_or(Why::Found),
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
