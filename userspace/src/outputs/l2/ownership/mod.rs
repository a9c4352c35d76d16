//! Which node of a segment announces an address: bids, epochs, and when an address may be bid for. Pure: time is an argument, and
//! what is to be done is returned. No API server is needed.
//!
//! Each node asks all others ten times a second. Their kernels answer, also while their agents are dead: a node is judged, not its
//! agent. What a node holds is its table of bids; of two bids for an address, the one with the higher epoch wins, then the one that
//! comes first in the order of the address. A bid is sent a moment before the address is opened, and only by a node that knows the
//! tables of all others, or whose probes for the address nobody answered.

/// The order of candidates for an address, and digests of tables.
mod precedence;
/// What is asked when.
mod heartbeats;
/// What is known of another node.
mod peers;
/// What is known of an address.
mod addresses;
/// What another node's table changes.
mod claims;
/// What the next turn carries out.
mod outgoing;
/// From a peer that fell silent to its addresses.
mod suspicion;
/// From an address that nobody holds to a bid.
mod bidding;
/// From an owner to the candidate that comes first.
mod moves;
/// What is known of an address, for people.
mod standing;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use addresses::{Addresses, Held, HeldSince};
use bidding::{Cause, Pursuits};
use heartbeats::Heartbeats;
use moves::Moves;
use outgoing::Outgoing;
use peers::Peer;

use super::why::Why;
pub(in crate::outputs::l2) use precedence::Candidate;

/// A member of the cluster, as frames name it.
pub(in crate::outputs::l2) type NodeId = u64;

/// Between two heartbeats.
const BEAT: Duration = Duration::from_millis(100);
/// A heartbeat that is later than this says nothing about those who did not answer the ones before.
const LATE: Duration = Duration::from_millis(50);
/// A node lives that sent something within this time.
const ALIVE: Duration = Duration::from_millis(500);
/// Heartbeats without an answer after which a node is suspected.
const UNANSWERED: u8 = 5;
/// Between two probes for an address, and how long the last answer may take.
const PROBE: Duration = Duration::from_millis(50);
/// How long a node listens before its first bid.
const LISTEN: Duration = Duration::from_secs(1);
/// How long a gate must have been closed before others bid for what it holds.
const CLOSED: Duration = Duration::from_secs(1);
/// How long a candidate has for its bid, before the next one bids.
const TURN: Duration = Duration::from_secs(1);
/// Between a bid and its opening: the time in which a bid of another node for the same address arrives.
const SETTLE: Duration = Duration::from_millis(30);
/// How long to wait for the tables of all others, before probes decide.
const FRESH: Duration = Duration::from_millis(300);
/// How long a node that was away asks the others before it lets its gate open.
const SURE: Duration = Duration::from_millis(500);
/// An agent whose stamp is this old is stopped or dead: it does not give up anything now.
const STOPPED: Duration = Duration::from_millis(300);
/// Between two requests for a table, and between two repetitions of the own one.
const REPEAT: Duration = Duration::from_millis(500);
/// Between two repetitions of the own table to those who hold what it holds.
const CONTEST: Duration = Duration::from_millis(100);
/// After this time an address that a foreign host answers for is probed again.
const AGAIN: Duration = Duration::from_secs(5);
/// Nothing is due.
const IDLE: Duration = Duration::from_secs(3600);

/// What the cluster agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) struct Rules {
    /// The age of an agent's stamp at which its kernel stops answering; 0: it never does.
    pub(in crate::outputs::l2) grace: Duration,
    /// How long the first candidate of an address has to live before its owner leaves it to that one; `None`: for ever.
    pub(in crate::outputs::l2) rebalance: Option<Duration>,
    /// Whether a node that is cut off stops answering for what others may announce.
    pub(in crate::outputs::l2) withdraws: bool,
}

/// A frame to all, or to one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) enum Frame {
    Ask {
        nonce: u64,
    },
    /// The whole table, which the caller cuts into frames.
    Bids {
        version: u64,
        bids: Vec<(IpAddr, u64)>,
    },
    Resend {
        to: NodeId,
    },
}

/// What is to be done, in this order. [`Segment::digest`] is stored before frames are sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) enum Action {
    Close(IpAddr),
    /// Answer for it and announce it, also if it is open already.
    Open {
        address: IpAddr,
        epoch: u64,
    },
    Probe(IpAddr),
    Send(Frame),
}

/// The answer of another node's kernel to a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) struct Answer {
    pub(in crate::outputs::l2) from: NodeId,
    /// The link address that sent the frame.
    pub(in crate::outputs::l2) link: [u8; 6],
    pub(in crate::outputs::l2) nonce: u64,
    pub(in crate::outputs::l2) boot: u64,
    pub(in crate::outputs::l2) stamp_age: Duration,
    pub(in crate::outputs::l2) digest: u64,
}

/// Who announces an address, as far as this node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) enum Standing {
    Here {
        epoch: u64,
        since: Instant,
    },
    Elsewhere {
        node: NodeId,
        epoch: u64,
    },
    /// Nobody, and why this node does not.
    Nobody {
        why: &'static str,
    },
    /// A foreign host with this link address answers for it.
    Conflict {
        link: [u8; 6],
    },
}

/// What is known of who announces an address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) struct Known {
    pub(in crate::outputs::l2) standing: Standing,
    /// Since when, and why; `None`: not known.
    pub(in crate::outputs::l2) since: Option<(Instant, Why)>,
    /// Nodes whose tables have it, each with its epoch; the own one included.
    pub(in crate::outputs::l2) claims: Vec<(NodeId, u64)>,
    /// How many nodes may announce it.
    pub(in crate::outputs::l2) candidates: usize,
    /// The link address of a foreign host that answers for it.
    pub(in crate::outputs::l2) foreign: Option<[u8; 6]>,
}

/// Another node that may announce something on the segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) struct Member {
    pub(in crate::outputs::l2) node: NodeId,
    /// Its link address; `None`: nothing was ever received of it.
    pub(in crate::outputs::l2) link: Option<[u8; 6]>,
    /// For how long nothing has been received of it; zero: it lives.
    pub(in crate::outputs::l2) silent: Duration,
    /// Its kernel is silent about its addresses, for its agent is dead.
    pub(in crate::outputs::l2) is_closed: bool,
}

/// The node that announced an address before this one: connections may be open there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::outputs::l2) struct Previous {
    pub(in crate::outputs::l2) node: NodeId,
    pub(in crate::outputs::l2) link: [u8; 6],
    pub(in crate::outputs::l2) is_alive: bool,
    /// Its agent is, and left the address itself, or was never away for long: its routes are of today.
    pub(in crate::outputs::l2) is_attended: bool,
}

/// The ownership of addresses on the segment of one device.
#[derive(Debug)]
pub(in crate::outputs::l2) struct Segment {
    own: NodeId,
    rules: Rules,
    heartbeats: Heartbeats,
    peers: BTreeMap<NodeId, Peer>,
    /// All nodes that are a candidate for something, and since when.
    members: BTreeMap<NodeId, Instant>,
    addresses: Addresses,
    pursuits: Pursuits,
    moves: Moves,
    outgoing: Outgoing,
    is_isolated: bool,
    is_released: bool,
    /// Another device of this node is on the segment, and asks.
    is_mute: bool,
}

impl Segment {
    /// A segment about which nothing is known. `seed` makes nonces that nobody guesses; `version` is higher than that of all tables
    /// that this node has sent since it booted (nanoseconds of the monotonic clock are).
    pub(in crate::outputs::l2) fn new(
        own: NodeId,
        rules: Rules,
        seed: u64,
        version: u64,
        now: Instant,
    ) -> Self {
        Self {
            own,
            rules,
            heartbeats: Heartbeats::new(seed, now),
            peers: BTreeMap::new(),
            members: BTreeMap::new(),
            addresses: Addresses::default(),
            pursuits: Pursuits::default(),
            moves: Moves::new(now),
            outgoing: Outgoing::new(version),
            is_isolated: false,
            is_released: false,
            is_mute: false,
        }
    }

    /// Follows a change of the rules.
    pub(in crate::outputs::l2) fn follow(&mut self, rules: Rules) {
        if self.rules != rules {
            self.rules = rules;
            self.moves.reconsider();
        }
    }

    /// What the maps held when the agent started: held on, until a higher claim is known.
    pub(in crate::outputs::l2) fn adopt(&mut self, address: IpAddr, epoch: u64, now: Instant) {
        let (since, why) = (HeldSince::Open(now), Why::Found);
        self.hold(address, Held { epoch, since, is_doubted: false, previous: None, by_gate: false, why });
    }

    /// For each address that is served here, which nodes may announce it on this segment (the own one included or not).
    pub(in crate::outputs::l2) fn candidates(
        &mut self,
        wanted: BTreeMap<IpAddr, Arc<[Candidate]>>,
        now: Instant,
    ) {
        if self.is_released {
            return;
        }
        let nodes: BTreeSet<NodeId> =
            wanted.values().flat_map(|nodes| nodes.iter().map(|candidate| candidate.node)).collect();
        let since = |node: &NodeId| self.members.get(node).copied().unwrap_or(now);
        self.members = nodes.into_iter().map(|node| (node, since(&node))).collect();
        let own = self.own;
        let (lost, is_changed) = self.addresses.want(wanted, own, now);
        if is_changed {
            self.moves.disturb(now);
        }
        for address in lost {
            self.pursuits.end(&address);
            self.let_go(address, Why::NoCandidate, now);
            self.addresses.tidy(&address);
        }
        let free: Vec<IpAddr> = self.addresses.candidacies().collect();
        free.into_iter().for_each(|address| self.pursue(address, Cause::Free, now));
        let is_member = |node: &NodeId| self.members.contains_key(node);
        self.peers
            .retain(|node, peer| is_member(node) || !peer.table.claims.is_empty() || peer.is_alive(now));
    }

    /// A kernel answered a heartbeat.
    pub(in crate::outputs::l2) fn answered(&mut self, answer: &Answer, now: Instant) {
        let Some(asked) = self.heartbeats.asked(answer.nonce, now) else { return };
        let is_known = self.peers.contains_key(&answer.from) || self.members.contains_key(&answer.from);
        if answer.from == self.own || (!is_known && answer.digest == 0) {
            return;
        }
        let peer = self.peers.entry(answer.from).or_insert_with(|| Peer::new(now));
        if !peer.follows(answer.boot, asked) {
            return;
        }
        let lost = peer.table.boot(answer.boot);
        let early = peer.takes_early(answer);
        lost.into_iter().for_each(|address| self.unclaim(address, answer.from, false, now));
        if let Some((version, bids)) = early {
            self.table(answer.from, answer.boot, version, bids, now);
        }
        let Some(peer) = self.peers.get_mut(&answer.from) else { return };
        let was_void = peer.is_void();
        peer.answered(answer, asked, self.rules.grace, now);
        let is_revived = was_void && !peer.is_void();
        if is_revived {
            self.revive(answer.from, now);
            self.contest(answer.from, now);
        }
        self.yield_to(answer.from, now);
        self.step_back(answer.from, now);
    }

    /// The whole table of another node. It is taken once an answer has shown the boot.
    pub(in crate::outputs::l2) fn table(
        &mut self,
        from: NodeId,
        boot: u64,
        version: u64,
        bids: Vec<(IpAddr, u64)>,
        now: Instant,
    ) {
        if from == self.own {
            return;
        }
        let peer = self.peers.entry(from).or_insert_with(|| Peer::new(now));
        let Some(bids) = peer.takes(boot, version, bids) else { return };
        let was_void = peer.is_void();
        peer.sent_table(version, now);
        let is_revived = was_void && !peer.is_void();
        let changes = peer.table.replace(version, bids);
        if is_revived {
            self.revive(from, now);
            self.contest(from, now);
        }
        for (address, epoch) in changes {
            match epoch {
                Some(epoch) => self.claim(address, from, epoch, now),
                None => self.unclaim(address, from, true, now),
            }
        }
        self.yield_to(from, now);
    }

    /// Another node asks for the own table.
    pub(in crate::outputs::l2) fn resend(&mut self, from: NodeId, now: Instant) {
        if from != self.own && !self.outgoing.has_crossed(now) {
            self.outgoing.requested(from, REPEAT, now);
        }
    }

    /// Whether the device is cut off: nothing was received for a second, and no router answers, or there is no carrier. Then no bids are made.
    pub(in crate::outputs::l2) fn isolated(&mut self, is_isolated: bool, now: Instant) {
        if is_isolated != self.is_isolated {
            self.is_isolated = is_isolated;
            self.heartbeats.listen(now);
            self.restart(now);
            if is_isolated && self.addresses.doubt(now) {
                self.outgoing.is_changed = true;
            }
        }
    }

    /// Whether this node may announce anything here.
    pub(in crate::outputs::l2) fn is_candidate(&self) -> bool {
        self.addresses.is_concerned()
    }

    /// Whether it asks nothing unless it may announce something.
    pub(in crate::outputs::l2) fn mute(&mut self, is_mute: bool) {
        self.is_mute = is_mute;
    }

    /// A table of another node says that this is its link address.
    pub(in crate::outputs::l2) fn says_link(&mut self, from: NodeId, link: [u8; 6]) {
        if let Some(peer) = self.peers.get_mut(&from) {
            peer.table.link = Some(link);
        }
    }

    /// Gives up everything, for good: the node leaves.
    pub(in crate::outputs::l2) fn release(&mut self, now: Instant) {
        self.is_released = true;
        self.pursuits = Pursuits::default();
        let all: Vec<IpAddr> = self.addresses.held().map(|(address, _)| address).collect();
        all.into_iter().for_each(|address| self.let_go(address, Why::Leaving, now));
    }

    /// Does what is due: to be called at [`Self::due`], and after each call of another function. All frames that have arrived are
    /// handed over before.
    pub(in crate::outputs::l2) fn turn(&mut self, now: Instant) -> Vec<Action> {
        let (mut probes, mut frames) = (Vec::new(), Vec::new());
        if self.heartbeats.is_late(now, self.rules.grace) {
            self.restart(now);
        }
        // One that may announce nothing any more goes on asking: connections are open here, or at an owner before.
        if !self.is_released && (self.is_candidate() || !self.is_mute) {
            let asks = self.heartbeats.asks(now, self.peers.values_mut());
            frames.extend(asks.map(|nonce| Frame::Ask { nonce }));
            self.suspect(now, &mut probes);
            self.bid(now, &mut probes);
            self.rebalance(now);
        } else {
            self.heartbeats.pause();
        }
        self.heartbeats.turned(now, &self.peers);
        let request =
            |(node, peer): (&NodeId, &mut Peer)| peer.requests(now).then_some(Frame::Resend { to: *node });
        frames.extend(self.peers.iter_mut().filter_map(request));
        if let Some(version) = self.outgoing.publishes(now) {
            frames.push(Frame::Bids { version, bids: self.addresses.table().collect() });
        }
        let closes = std::mem::take(&mut self.outgoing.closes).into_iter().map(Action::Close);
        let opens = std::mem::take(&mut self.outgoing.opens).into_iter();
        let opens = opens.filter_map(|address| {
            let epoch = self.addresses.held_at(&address).filter(|held| held.is_open())?.epoch;
            Some(Action::Open { address, epoch })
        });
        let probes = probes.into_iter().map(Action::Probe);
        closes.chain(opens).chain(probes).chain(frames.into_iter().map(Action::Send)).collect()
    }

    /// When to call [`Self::turn`] next, at the latest.
    pub(in crate::outputs::l2) fn due(&self) -> Instant {
        let Some(turned) = self.heartbeats.last_turn() else { return self.heartbeats.start() };
        if self.outgoing.is_due() {
            return turned;
        }
        let peers = self.peers.values().filter_map(Peer::due).filter(|_| self.heartbeats.next().is_some());
        let bids = self.pursuits.due().filter(|_| !self.is_isolated);
        let bids = bids.map(|due| due.max(self.heartbeats.listens_until()));
        let moves = self.rules.rebalance.and(self.moves.due()).filter(|_| self.heartbeats.next().is_some());
        let sure = self.heartbeats.sure(turned);
        let times = [self.heartbeats.next(), self.outgoing.next_repeat(), bids, moves, sure];
        let times = times.into_iter().flatten().chain(peers).chain(self.addresses.opens());
        times.min().unwrap_or(turned + IDLE)
    }

    /// The digest of the own table.
    pub(in crate::outputs::l2) fn digest(&self) -> u64 {
        self.addresses.digest()
    }

    /// Whether the agent may stamp. One that was away for long first learns what others took over meanwhile: its stamp opens the
    /// gate. Ask this after [`Self::turn`].
    pub(in crate::outputs::l2) fn may_stamp(&self) -> bool {
        self.heartbeats.is_sure() || self.addresses.held().next().is_none()
    }
}
