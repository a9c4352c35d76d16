//! Planned moves: to the candidate that comes first for an address, once it has been there for long enough.
//!
//! The owner alone moves an address: it closes it, says so, and the preferred one bids, as for each address that is released. So two nodes
//! answer at no time, and if no bid comes, the owner takes it back. It releases one only while the segment is settled: it knows the
//! tables of all that live, and none has changed for [`QUIET`]. A move changes two tables, so the next one follows a second after it,
//! whichever node has it to do. Of several owners, the first by id among those that hold something for another node (which all see in
//! the tables) begins; each further one waits for [`STAGGER`] more, and sees the change that the one before made. Only owners that do not
//! receive each other move two at once.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::bidding::Cause;
use super::peers::Silence;
use super::{NodeId, Segment};
use crate::outputs::l2::why::Why;

/// Without a change for this long, the segment is settled.
const QUIET: Duration = Duration::from_secs(1);
/// Between the turns of two owners. Changes arrive within less.
const STAGGER: Duration = Duration::from_millis(50);
/// How often the delay doubles for a node that does not take what is released for it.
const DOUBLED: u32 = 10;

/// When this node moves something.
#[derive(Debug)]
pub(super) struct Moves {
    /// When something changed.
    changed: Instant,
    /// When to look for something to move; `None`: there is nothing until something changes.
    next: Option<Instant>,
    /// What was released for another node. If it has not taken it, the next try is later: it may have no room for it.
    offered: BTreeMap<IpAddr, Offer>,
}

/// A release for another node.
#[derive(Clone, Copy, Debug)]
struct Offer {
    to: NodeId,
    /// Since when that node had lived. If it was away since then, it is another one.
    steady: Instant,
    last: Instant,
    times: u32,
}

/// An address that another node than its owner comes first for.
struct Misplaced {
    address: IpAddr,
    owner: NodeId,
    preferred: NodeId,
    /// Since when that node has lived.
    steady: Instant,
    /// When it may move.
    from: Instant,
}

impl Offer {
    fn is_to(&self, node: NodeId, steady: Instant) -> bool {
        (self.to, self.steady) == (node, steady)
    }
}

impl Moves {
    pub(super) fn new(now: Instant) -> Self {
        Self { changed: now, next: Some(now + QUIET), offered: BTreeMap::new() }
    }

    /// Something has changed on the segment.
    pub(super) fn disturb(&mut self, now: Instant) {
        (self.changed, self.next) = (now, Some(now + QUIET));
    }

    /// The rules have changed.
    pub(super) fn reconsider(&mut self) {
        self.next = Some(self.changed + QUIET);
    }

    /// When to look next.
    pub(super) fn due(&self) -> Option<Instant> {
        self.next
    }
}

impl Segment {
    /// Releases an address for the one that it prefers, if it is time to.
    pub(super) fn rebalance(&mut self, now: Instant) {
        if self.peers.values_mut().fold(false, |is_any, peer| is_any | peer.takes_new()) {
            self.moves.disturb(now);
        }
        if self.moves.next.is_none_or(|next| now < next) {
            return;
        }
        let Some(after) = self.rules.rebalance.filter(|_| !self.is_released) else {
            self.moves.next = None;
            return;
        };
        if !self.is_settled(now) {
            self.moves.next = Some(now + QUIET);
            return;
        }
        let misplaced = self.misplaced(after, now);
        let its = |owner: NodeId| misplaced.iter().filter(move |one| one.owner == owner);
        let Some(first) = its(self.own).min_by_key(|one| one.from) else {
            self.moves.next = None;
            return;
        };
        // Others may have seen a little earlier or later that the preferred one lives.
        let soon = |one: &&Misplaced| one.from <= now + QUIET;
        let owners: BTreeSet<NodeId> = misplaced.iter().filter(soon).map(|one| one.owner).collect();
        let before = u32::try_from(owners.range(..self.own).count()).unwrap_or(u32::MAX);
        let turn = first.from.max(self.moves.changed + QUIET) + STAGGER * before;
        if now < turn {
            self.moves.next = Some(turn);
            return;
        }
        let Misplaced { address, preferred, steady, .. } = *first;
        let times = self.offered(&address, preferred, steady).map_or(0, |offer| offer.times) + 1;
        self.moves.offered.insert(address, Offer { to: preferred, steady, last: now, times });
        self.moves.disturb(now);
        self.let_go(address, Why::Rebalance, now);
        self.pursue(address, Cause::Released { by: self.own }, now);
    }

    /// Returns how the address was left to this node, which has lived since `steady`, not counting what was before it was preferred.
    fn offered(&self, address: &IpAddr, to: NodeId, steady: Instant) -> Option<&Offer> {
        let since = self.addresses.candidate_since(address, to)?;
        self.moves.offered.get(address).filter(|offer| offer.is_to(to, steady) && offer.last >= since)
    }

    /// Whether this node knows what all that live hold, and nothing is changing.
    fn is_settled(&self, now: Instant) -> bool {
        let is_known = |peer: &super::Peer| match peer.silence {
            Silence::Probed { .. } => false,
            Silence::Gone => true,
            Silence::Not => !peer.is_alive(now) || peer.confirmed().is_some(),
        };
        !self.is_isolated
            && now >= self.heartbeats.listens_until()
            && now >= self.moves.changed + QUIET
            && self.addresses.opens().is_none()
            && self.peers.values().all(is_known)
    }

    /// Returns what the first of the living candidates does not hold, but another living node does.
    fn misplaced(&mut self, after: Duration, now: Instant) -> Vec<Misplaced> {
        let addresses = &self.addresses;
        self.moves.offered.retain(|address, _| addresses.is_candidate(address));
        let own_since = self.heartbeats.start();
        let steady: BTreeMap<NodeId, Instant> =
            self.peers.iter().filter_map(|(node, peer)| Some((*node, peer.steady(now)?))).collect();
        let since =
            |node: &NodeId| if *node == self.own { Some(own_since) } else { steady.get(node).copied() };
        let one = |address: IpAddr| {
            let owner = match self.addresses.held_at(&address) {
                Some(_) => self.own,
                None => self.holder(&address)?.0,
            };
            let all = self.addresses.candidates(&address).iter();
            let living = all.filter(|candidate| since(&candidate.node).is_some());
            let preferred = living.max_by_key(|candidate| candidate.rank(&address))?.node;
            let steady = since(&preferred).filter(|_| preferred != owner && since(&owner).is_some())?;
            let since = self.addresses.candidate_since(&address, preferred)?;
            let from = steady.max(since) + after;
            let offer = self.offered(&address, preferred, steady);
            let from =
                offer.map_or(from, |offer| from.max(offer.last + after * (1 << offer.times.min(DOUBLED))));
            Some(Misplaced { address, owner, preferred, steady, from })
        };
        self.addresses.all().filter_map(one).collect()
    }
}
