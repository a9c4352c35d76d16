use std::net::IpAddr;
use std::time::Instant;

use super::bidding::Cause;
use super::peers::Silence;
use super::{AGAIN, BEAT, NodeId, PROBE, Segment};
use crate::outputs::l2::why::Why;

/// How many addresses of a silent node are probed.
const PROBED: usize = 8;
/// How often each.
const TIMES: u8 = 2;

impl Segment {
    /// A host answered a probe; `link`, its link address, is not the own one.
    pub(in crate::outputs::l2) fn claimed(&mut self, address: IpAddr, link: [u8; 6], now: Instant) {
        let answers = |peer: &super::Peer| match &peer.silence {
            Silence::Probed { addresses, .. } => {
                addresses.contains(&address) && peer.link.is_none_or(|known| known == link)
            }
            Silence::Gone => peer.link == Some(link),
            Silence::Not => false,
        };
        let living = self.peers.iter().find(|(_, peer)| answers(peer)).map(|(node, _)| *node);
        if let Some(node) = living {
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.veto();
            }
            self.revive(node, now);
            return;
        }
        let is_member =
            self.peers.values().any(|peer| peer.link == Some(link) || peer.table.link == Some(link));
        if self.addresses.held_at(&address).is_some_and(|held| held.is_open()) {
            let grace = self.rules.grace;
            let is_its = |peer: &super::Peer| peer.link == Some(link) && peer.is_unattended(grace, now);
            if !self.peers.values().any(is_its) {
                // It is answered for here all the same.
                if !is_member {
                    self.addresses.dispute(address, link, now);
                }
                return;
            }
        }
        if !is_member && self.holder(&address).is_none() {
            self.addresses.dispute(address, link, now);
        }
        // A member answers for it though its table does not say so: a newer one follows.
        let again = now + if is_member { super::REPEAT } else { AGAIN };
        if self.addresses.held_at(&address).is_some() {
            self.let_go(address, if is_member { Why::OwnerBack } else { Why::AddressConflict }, now);
            self.pursue(address, Cause::Free, now);
        }
        self.pursuits.postpone(&address, again);
    }

    /// Probes addresses of silent nodes, and judges.
    pub(super) fn suspect(&mut self, now: Instant, probes: &mut Vec<IpAddr>) {
        let mut void = Vec::new();
        let suspects: Vec<NodeId> =
            self.peers.iter().filter(|(_, peer)| peer.is_suspect(now)).map(|(node, _)| *node).collect();
        for node in suspects {
            let addresses = self.sample(node);
            if let Some(peer) = self.peers.get_mut(&node) {
                peer.silence = Silence::Probed { addresses, sent: 0, next: now };
            }
        }
        for (node, peer) in &mut self.peers {
            if peer.closes(now) {
                void.push((*node, now.checked_sub(BEAT * 2).unwrap_or(now), true));
            }
            match &mut peer.silence {
                Silence::Probed { addresses, sent, next } if *next <= now => {
                    if addresses.is_empty() || *sent == TIMES {
                        peer.is_gone();
                        void.push((*node, now.checked_sub(PROBE * TIMES.into()).unwrap_or(now), false));
                    } else {
                        probes.extend(addresses.iter());
                        (*sent, *next) = (*sent + 1, now + PROBE);
                    }
                }
                _ => {}
            }
        }
        for (node, seen, by_gate) in void {
            let claims = self.peers.get(&node).map(|peer| peer.table.claims.keys().copied().collect());
            let claims: Vec<IpAddr> = claims.unwrap_or_default();
            claims.into_iter().for_each(|address| self.pursue(address, Cause::Void { seen, by_gate }, now));
        }
    }

    /// Returns some of the addresses that only this node can answer for.
    fn sample(&self, node: NodeId) -> Vec<IpAddr> {
        let Some(peer) = self.peers.get(&node) else { return Vec::new() };
        let is_its = |address: &&IpAddr| {
            self.addresses.is_candidate(address)
                && self.addresses.held_at(address).is_none()
                && self.holder(address).is_some_and(|(holder, _)| holder == node)
        };
        peer.table.claims.keys().filter(is_its).take(PROBED).copied().collect()
    }

    /// A node lives after all: what it holds is not bid for.
    pub(super) fn revive(&mut self, node: NodeId, now: Instant) {
        let claims = self.peers.get(&node).map(|peer| peer.table.claims.keys().copied().collect());
        let claims: Vec<IpAddr> = claims.unwrap_or_default();
        for address in claims {
            self.pursuits.end(&address);
            if self.addresses.held_at(&address).is_some_and(|held| !held.is_open()) {
                self.let_go(address, Why::OwnerBack, now);
            }
        }
    }

    /// The agent of a node that is back is stopped or dead, so that it gives up nothing: what it answers for is given up here.
    pub(super) fn step_back(&mut self, node: NodeId, now: Instant) {
        let Some(peer) = self.peers.get_mut(&node) else { return };
        if !peer.is_unattended(self.rules.grace, now) {
            return;
        }
        if peer.confirmed().is_some() {
            let claims: Vec<IpAddr> = peer.table.claims.keys().copied().collect();
            claims.into_iter().for_each(|address| self.let_go(address, Why::OwnerBack, now));
        } else if peer.takes_unchecked() {
            self.pursuits.check(self.addresses.held().map(|(address, _)| address));
        }
    }

    /// A node is received: what it holds, and this node took while it was cut off, is its own.
    pub(super) fn yield_to(&mut self, node: NodeId, now: Instant) {
        if self.addresses.has_doubts() {
            let its: Vec<IpAddr> = self.addresses.doubted_of(node).collect();
            its.into_iter().for_each(|address| self.let_go(address, Why::Isolated, now));
        }
        // It was cut off, too. Both may have taken the same, which neither table says: the higher claim is to win.
        if self.peers.get(&node).is_some_and(super::Peer::has_doubts) && self.addresses.trust() {
            self.outgoing.is_changed = true;
        }
    }
}
