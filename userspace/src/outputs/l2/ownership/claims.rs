use std::net::IpAddr;
use std::time::Instant;

use super::addresses::Held;
use super::bidding::Cause;
use super::precedence::claim_order;
use super::{CONTEST, NodeId, Segment};
use crate::outputs::l2::why::Why;

impl Segment {
    /// Returns who holds an address: the highest claim of those that count.
    pub(super) fn holder(&self, address: &IpAddr) -> Option<(NodeId, u64)> {
        let counts = |node: &NodeId| self.peers.get(node).is_some_and(|peer| !peer.is_void());
        let claims = self.addresses.claims(address).iter().filter(|(node, _)| counts(node));
        claims.copied().max_by_key(|(node, epoch)| claim_order(address, *node, *epoch))
    }

    /// Another node holds an address.
    pub(super) fn claim(&mut self, address: IpAddr, from: NodeId, epoch: u64, now: Instant) {
        let own = self.own;
        self.moves.disturb(now);
        let before = self.holder(&address);
        self.addresses.claim(address, from, epoch);
        if self.addresses.held_at(&address).is_none() && before.map(|(node, _)| node) != Some(from) {
            let why = self.why_taken(&address, before.is_some(), now);
            self.addresses.note(&address, why, now);
        }
        self.pursuits.end(&address);
        let Some(held) = self.addresses.held_at(&address) else { return };
        if held.is_doubted || claim_order(&address, from, epoch) > claim_order(&address, own, held.epoch) {
            self.let_go(address, Why::HigherEpoch, now);
        } else {
            self.assert_hold(address, now);
        }
    }

    /// A node is back that held what this node took meanwhile: the one that lost learns it at once, not by its next heartbeat.
    pub(super) fn contest(&mut self, from: NodeId, now: Instant) {
        let claims = self.peers.get(&from).map(|peer| peer.table.claims.keys().copied().collect());
        let claims: Vec<IpAddr> = claims.unwrap_or_default();
        let held = claims.into_iter().filter(|address| self.addresses.held_at(address).is_some());
        let held: Vec<IpAddr> = held.collect();
        held.into_iter().for_each(|address| self.assert_hold(address, now));
    }

    /// Sends the own table again, and announces what is open, to those who hold less of it.
    fn assert_hold(&mut self, address: IpAddr, now: Instant) {
        if self.addresses.held_at(&address).is_some_and(Held::is_open) {
            self.outgoing.opens.insert(address);
        }
        self.outgoing.repeat(CONTEST, now);
    }

    /// Another node does not hold an address any more: `is_said` by a table of its own, or it lost its memory.
    pub(super) fn unclaim(&mut self, address: IpAddr, from: NodeId, is_said: bool, now: Instant) {
        self.moves.disturb(now);
        self.addresses.unclaim(address, from);
        match self.addresses.held_at(&address) {
            // It answered for it until now, or did so until it was cut off.
            Some(held) if is_said && held.is_open() => _ = self.outgoing.opens.insert(address),
            Some(_) => {}
            None if is_said => self.pursue(address, Cause::Released { by: from }, now),
            None => self.pursue(address, Cause::Free, now),
        }
        self.addresses.tidy(&address);
    }

    /// Adds to the own table.
    pub(super) fn hold(&mut self, address: IpAddr, held: Held) {
        self.addresses.hold(address, held);
        self.outgoing.is_changed = true;
    }

    /// Removes from the own table.
    pub(super) fn let_go(&mut self, address: IpAddr, why: Why, now: Instant) {
        let Some(held) = self.addresses.let_go(&address) else { return };
        self.outgoing.is_changed = true;
        if held.is_open() {
            self.outgoing.closes.insert(address);
            self.addresses.note(&address, why, now);
        }
    }

    /// It is certain that the device is cut off: it has no carrier, or a router does not answer that is there. What others may announce is
    /// given up, if the rules say so, and bid for once something is received again.
    pub(in crate::outputs::l2) fn withdraw(&mut self, now: Instant) {
        if !self.rules.withdraws || !self.is_isolated {
            return;
        }
        let own = self.own;
        let is_others =
            |address: &IpAddr| self.addresses.candidates(address).iter().any(|other| other.node != own);
        let held = self.addresses.held().map(|(address, _)| address);
        let shared: Vec<IpAddr> = held.filter(is_others).collect();
        for address in shared {
            self.let_go(address, Why::Isolated, now);
            self.pursue(address, Cause::Free, now);
        }
    }

    /// What was seen before says nothing about those who are silent now: everything is observed again from here on.
    pub(super) fn restart(&mut self, now: Instant) {
        self.moves.disturb(now);
        let last_turn = self.heartbeats.last_turn();
        let mut revived = Vec::new();
        for (node, peer) in &mut self.peers {
            if peer.restart(last_turn, now) {
                revived.push(*node);
            }
        }
        revived.into_iter().for_each(|node| self.revive(node, now));
        self.pursuits.restart(now);
        let unsettled: Vec<IpAddr> = self.addresses.unsettled().collect();
        for address in unsettled {
            self.let_go(address, Why::Isolated, now);
            self.pursue(address, Cause::Free, now);
        }
    }
}
