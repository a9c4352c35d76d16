use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::maps::segment::TAKEN_NS;

use super::addresses::{Held, HeldSince};
use super::{BEAT, FRESH, NodeId, PROBE, SETTLE, Segment, TURN};
use crate::outputs::l2::why::Why;

/// Probes before a bid for an address about which nothing is known.
const PROBES: u8 = 3;
/// Probes where a node without an agent lives whose table is not known. Its gate may just have closed on the address: they take longer
/// than [`TAKEN_NS`], so that it stays closed, whatever becomes of this node.
const PROBES_UNKNOWN: u8 = 10;
const _: () = assert!(PROBES_UNKNOWN as u128 * PROBE.as_nanos() > TAKEN_NS as u128);
/// At most this many probes are sent in the time between two for one address.
const PROBES_AT_ONCE: usize = 100;
/// The most probes in one turn that ask foreign hosts again: those for addresses that nobody announces any more are urgent.
const CHECKS_AT_ONCE: usize = PROBES_AT_ONCE / 4;
/// How long to wait for the table of an agent that lives.
const LIVING: Duration = Duration::from_secs(3);
/// Between two looks at what an address waits for.
const LOOK: Duration = Duration::from_millis(20);
/// The same for what was released, for which nobody answers.
const LOOK_SOON: Duration = Duration::from_millis(5);

/// Why an address may be bid for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Nobody is known to hold it.
    Free,
    /// This node released it, and so does not bid for it now.
    Released { by: NodeId },
    /// Its holder is gone, or its gate is closed. What others sent from this time on counts.
    Void { seen: Instant, by_gate: bool },
}

/// The addresses that nobody holds and for which this node is a candidate.
#[derive(Debug, Default)]
pub(super) struct Pursuits {
    all: BTreeMap<IpAddr, Pursuit>,
    queue: BTreeSet<(Instant, IpAddr)>,
    /// What this node holds, and others may answer for.
    checks: BTreeSet<IpAddr>,
    /// Since when probes have been counted, and how many.
    probes: Option<(Instant, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct Pursuit {
    cause: Cause,
    /// Since when it may be bid for.
    since: Instant,
    /// Since when it is this node's turn.
    own_turn: Option<Instant>,
    probes: u8,
    due: Instant,
}

/// What to do about an address.
enum Step {
    Drop,
    Wait(Duration),
    Probe,
    Bid,
    /// A probe and the bid together: it is opened only once the probe would have been answered.
    BidAndProbe,
}

/// A living node: when its table was last confirmed, and whether its agent lives.
struct Living {
    node: NodeId,
    confirmed: Option<Instant>,
    has_agent: bool,
}

impl Pursuits {
    fn start(&mut self, address: IpAddr, cause: Cause, now: Instant) {
        if self.all.contains_key(&address) {
            return;
        }
        self.all.insert(address, Pursuit { cause, since: now, own_turn: None, probes: 0, due: now });
        self.queue.insert((now, address));
    }

    pub(super) fn end(&mut self, address: &IpAddr) {
        if let Some(pursuit) = self.all.remove(address) {
            self.queue.remove(&(pursuit.due, *address));
        }
    }

    /// Probes it again from this time on.
    pub(super) fn postpone(&mut self, address: &IpAddr, due: Instant) {
        let Some(pursuit) = self.all.get_mut(address) else { return };
        self.queue.remove(&(pursuit.due, *address));
        let own_turn = pursuit.own_turn;
        *pursuit = Pursuit { cause: Cause::Free, since: pursuit.since, own_turn, probes: 0, due };
        self.queue.insert((due, *address));
    }

    /// What was seen before does not count.
    pub(super) fn restart(&mut self, now: Instant) {
        let restarted = |pursuit: Pursuit| {
            let cause = match pursuit.cause {
                Cause::Void { .. } => Cause::Free,
                cause => cause,
            };
            Pursuit { cause, since: now, own_turn: None, probes: 0, due: pursuit.due.max(now) }
        };
        self.all.values_mut().for_each(|pursuit| *pursuit = restarted(*pursuit));
        self.queue = self.all.iter().map(|(address, pursuit)| (pursuit.due, *address)).collect();
    }

    /// Whether it may be bid for because the gate of its holder closed.
    fn is_by_gate(&self, address: &IpAddr) -> bool {
        let pursuit = self.all.get(address);
        pursuit.is_some_and(|pursuit| matches!(pursuit.cause, Cause::Void { by_gate: true, .. }))
    }

    /// Returns since when an address may be bid for, and why; `None`: it may not.
    pub(super) fn of(&self, address: &IpAddr) -> Option<(Cause, Instant)> {
        self.all.get(address).map(|pursuit| (pursuit.cause, pursuit.since))
    }

    /// When to look at the next one.
    pub(super) fn due(&self) -> Option<Instant> {
        self.queue.first().map(|(due, _)| *due)
    }

    /// Probes what this node holds.
    pub(super) fn check(&mut self, addresses: impl Iterator<Item = IpAddr>) {
        self.checks.extend(addresses);
    }

    /// Returns what is to be checked now.
    fn take_check(&mut self, now: Instant) -> Option<IpAddr> {
        if self.checks.is_empty() || !self.may_probe(now) {
            return None;
        }
        self.checks.pop_first()
    }

    fn take(&mut self, now: Instant) -> Option<IpAddr> {
        let key @ (_, address) = *self.queue.first().filter(|(due, _)| *due <= now)?;
        self.queue.remove(&key);
        Some(address)
    }

    fn requeue(&mut self, address: IpAddr, due: Instant) {
        if let Some(pursuit) = self.all.get_mut(&address) {
            pursuit.due = due;
            self.queue.insert((due, address));
        }
    }

    /// Whether one more probe may be sent now.
    fn may_probe(&mut self, now: Instant) -> bool {
        let (start, count) = self.probes.filter(|(start, _)| now < *start + PROBE).unwrap_or((now, 0));
        self.probes = Some((start, count + 1));
        count < PROBES_AT_ONCE
    }
}

impl Segment {
    /// Considers a bid for an address, if nobody holds it.
    pub(super) fn pursue(&mut self, address: IpAddr, cause: Cause, now: Instant) {
        let is_open = self.addresses.is_candidate(&address) && self.addresses.held_at(&address).is_none();
        if is_open && !self.is_released && self.holder(&address).is_none() {
            self.pursuits.start(address, cause, now);
        }
    }

    /// Opens what has settled, and bids for what may be bid for.
    pub(super) fn bid(&mut self, now: Instant, probes: &mut Vec<IpAddr>) {
        while let Some(address) = self.addresses.open(now) {
            self.outgoing.opens.insert(address);
            self.moves.disturb(now);
        }
        let disputed = self.addresses.disputed(now);
        self.pursuits.check(disputed.into_iter());
        for _ in 0..CHECKS_AT_ONCE {
            probes.extend(self.pursuits.take_check(now));
        }
        if self.is_isolated || now < self.heartbeats.listens_until() {
            return;
        }
        if self.addresses.trust() {
            self.outgoing.is_changed = true;
        }
        let living: Vec<Living> = self.living(now).collect();
        while let Some(address) = self.pursuits.take(now) {
            match self.step(&address, &living, now) {
                Step::Drop => self.pursuits.end(&address),
                Step::Wait(time) => self.pursuits.requeue(address, now + time),
                Step::Probe if self.pursuits.may_probe(now) => {
                    if let Some(pursuit) = self.pursuits.all.get_mut(&address) {
                        pursuit.probes += 1;
                    }
                    probes.push(address);
                    self.pursuits.requeue(address, now + PROBE);
                }
                Step::BidAndProbe if self.pursuits.may_probe(now) => {
                    probes.push(address);
                    self.bid_for(address, PROBE, now);
                }
                Step::Probe | Step::BidAndProbe => self.pursuits.requeue(address, now + PROBE),
                Step::Bid => self.bid_for(address, SETTLE, now),
            }
        }
    }

    /// Bids for an address, to open it after this time.
    fn bid_for(&mut self, address: IpAddr, settles: Duration, now: Instant) {
        self.moves.disturb(now);
        let by_gate = self.pursuits.is_by_gate(&address);
        let why = self.why_free(&address).unwrap_or(Why::Free);
        self.pursuits.end(&address);
        let epoch = self.addresses.next_epoch(&address);
        let previous = self.addresses.last(&address);
        let since = HeldSince::Settles(now + settles);
        self.hold(address, Held { epoch, since, is_doubted: false, previous, by_gate, why });
    }

    fn living(&self, now: Instant) -> impl Iterator<Item = Living> {
        let alive = self.peers.iter().filter(move |(_, peer)| peer.is_alive(now));
        alive.map(move |(node, peer)| Living {
            node: *node,
            confirmed: peer.confirmed(),
            has_agent: peer.may_bid(now),
        })
    }

    fn step(&mut self, address: &IpAddr, living: &[Living], now: Instant) -> Step {
        if self.addresses.held_at(address).is_some()
            || !self.addresses.is_candidate(address)
            || self.holder(address).is_some()
        {
            return Step::Drop;
        }
        let Some(pursuit) = self.pursuits.all.get_mut(address) else { return Step::Drop };
        let by = if let Cause::Released { by } = pursuit.cause { Some(by) } else { None };
        let rank = |node| self.addresses.candidate(address, node).map(|candidate| candidate.rank(address));
        let own = rank(self.own);
        let is_first = |other: &&Living| other.has_agent && Some(other.node) != by && rank(other.node) > own;
        let before = u32::try_from(living.iter().filter(is_first).count()).unwrap_or(u32::MAX);
        // What this node left to one that does not take it, it takes back after the turn of that one.
        let before = if by == Some(self.own) { before.min(1) } else { before };
        let from = pursuit.since.max(self.heartbeats.listens_until()) + TURN * before;
        if now < from {
            return Step::Wait((from - now).min(BEAT));
        }
        let own_turn = *pursuit.own_turn.get_or_insert(now);
        let seen = if let Cause::Void { seen, .. } = pursuit.cause { seen } else { pursuit.since };
        let is_unknown = |other: &&Living| {
            Some(other.node) != by && other.confirmed.is_none_or(|confirmed| confirmed < seen)
        };
        let unknown = living.iter().filter(is_unknown);
        let waits = unknown.clone().map(|other| if other.has_agent { LIVING } else { FRESH }).max();
        let probes = match pursuit.cause {
            _ if unknown.clone().any(|other| !other.has_agent) => PROBES_UNKNOWN,
            Cause::Free => PROBES,
            _ if waits.is_some() => PROBES,
            // Who released it may not have closed it: that is probed beside the bid.
            Cause::Released { .. } => 0,
            // Its kernel may know another grace, or of no other candidate.
            Cause::Void { by_gate, .. } => by_gate.into(),
        };
        if waits.is_some_and(|wait| now < own_turn + wait) {
            self.heartbeats.hurry();
            return Step::Wait(if by.is_some() { LOOK_SOON } else { LOOK });
        }
        match pursuit.cause {
            _ if pursuit.probes < probes => Step::Probe,
            Cause::Released { .. } if pursuit.probes == 0 => Step::BidAndProbe,
            _ => Step::Bid,
        }
    }
}
