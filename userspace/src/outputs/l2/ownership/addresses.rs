use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::precedence::{Candidate, DOUBTS, claim_order, digest};
use super::{AGAIN, NodeId};
use crate::outputs::l2::why::Why;

/// What was opened within this time before the device was found to be cut off is doubted.
const DOUBTED: Duration = Duration::from_secs(1);

/// What this node holds, and what it knows of others' claims. Sums and indices keep a turn cheap, however many addresses there are.
#[derive(Debug, Default)]
pub(super) struct Addresses {
    entries: BTreeMap<IpAddr, Entry>,
    held: BTreeMap<IpAddr, Held>,
    /// Bids that are not opened yet, by the time at which they are.
    opens: BTreeSet<(Instant, IpAddr)>,
    digest: u64,
    /// The number of bids that are doubted.
    doubted: usize,
    /// The number of addresses for which this node is a candidate.
    concerned: usize,
    /// Foreign hosts that answer for addresses.
    conflicts: BTreeMap<IpAddr, Conflict>,
}

/// A foreign host that answers for an address.
#[derive(Clone, Copy, Debug)]
struct Conflict {
    link: [u8; 6],
    /// When it answered last.
    last: Instant,
    /// When it was asked last.
    asked: Instant,
    /// It answered when it was asked, and not only once, as one does whose claim this node takes over.
    is_sure: bool,
}

/// Answers to one question come within this time.
const SAME_ROUND: Duration = Duration::from_secs(1);
/// A host that was silent for this long has the address no more: three rounds of probes.
const FORGOTTEN: Duration = Duration::from_secs(16);

/// The last change of who announces an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Turnover {
    pub(super) at: Instant,
    pub(super) why: Why,
}

/// What is known of an address.
#[derive(Debug, Default)]
struct Entry {
    /// Empty: not served here.
    candidates: Arc<[Candidate]>,
    /// Since when there have been candidates, and those that came later.
    since: Option<Instant>,
    later: Vec<(NodeId, Instant)>,
    /// Since when they have been preferred as they are; `None`: since they are candidates.
    ranked: Option<Instant>,
    is_candidate: bool,
    /// The tables of others contain it with these epochs.
    claims: Vec<(NodeId, u64)>,
    highest: u64,
    /// Who had the highest of them; `None`: this node, or nobody.
    last: Option<NodeId>,
    /// `None`: it has had no owner since it is known.
    turnover: Option<Turnover>,
}

/// A bid of this node.
#[derive(Clone, Copy, Debug)]
pub(super) struct Held {
    pub(super) epoch: u64,
    pub(super) since: HeldSince,
    /// It was bid for while this node was cut off: it is answered for, but not in the table.
    pub(super) is_doubted: bool,
    /// Who held it by the epoch before.
    pub(super) previous: Option<NodeId>,
    /// That one's gate had closed: its agent was dead.
    pub(super) by_gate: bool,
    /// Why this node bid for it.
    pub(super) why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HeldSince {
    /// It is opened at this time, unless a higher claim comes.
    Settles(Instant),
    Open(Instant),
}

impl Held {
    pub(super) fn is_open(&self) -> bool {
        matches!(self.since, HeldSince::Open(_))
    }
}

fn find(candidates: &[Candidate], node: NodeId) -> Option<&Candidate> {
    candidates.iter().find(|candidate| candidate.node == node)
}

impl Entry {
    /// Follows who the candidates are. Returns whether they are others.
    fn follow(&mut self, candidates: Arc<[Candidate]>, now: Instant) -> bool {
        if self.candidates == candidates {
            return false;
        }
        if self.candidates.is_empty() {
            (self.since, self.later, self.ranked) = (Some(now), Vec::new(), None);
        } else {
            self.later.retain(|(node, _)| find(&candidates, *node).is_some());
            let before = &self.candidates;
            let new = candidates.iter().filter(|new| find(before, new.node).is_none());
            self.later.extend(new.map(|new| (new.node, now)));
            let is_other = |is: &Candidate| find(before, is.node).is_some_and(|was| was != is);
            if candidates.iter().any(is_other) {
                self.ranked = Some(now);
            }
        }
        self.candidates = candidates;
        true
    }
}

impl Addresses {
    /// Follows what is served here. Returns addresses for which this node is no candidate any more, and whether any has other
    /// candidates.
    pub(super) fn want(
        &mut self,
        wanted: BTreeMap<IpAddr, Arc<[Candidate]>>,
        own: NodeId,
        now: Instant,
    ) -> (Vec<IpAddr>, bool) {
        let is_lost = |address: &IpAddr| wanted.get(address).is_none_or(|nodes| find(nodes, own).is_none());
        let before = self.entries.iter().filter(|(_, entry)| entry.is_candidate).map(|(address, _)| *address);
        let lost: BTreeSet<IpAddr> = before.chain(self.held.keys().copied()).filter(is_lost).collect();
        let unwanted: Vec<IpAddr> =
            self.entries.keys().filter(|address| !wanted.contains_key(address)).copied().collect();
        let mut is_changed = false;
        for address in unwanted {
            let Some(entry) = self.entries.get_mut(&address) else { continue };
            is_changed |= entry.follow(Arc::default(), now);
            entry.is_candidate = false;
            self.conflicts.remove(&address);
            self.tidy(&address);
        }
        self.concerned = 0;
        for (address, candidates) in wanted {
            let entry = self.entries.entry(address).or_default();
            entry.is_candidate = find(&candidates, own).is_some();
            is_changed |= entry.follow(candidates, now);
            self.concerned += usize::from(entry.is_candidate);
        }
        (lost.into_iter().collect(), is_changed)
    }

    /// Forgets an address about which nothing is left to know.
    pub(super) fn tidy(&mut self, address: &IpAddr) {
        let is_idle = |entry: &Entry| entry.candidates.is_empty() && entry.claims.is_empty();
        if self.entries.get(address).is_some_and(is_idle) && !self.held.contains_key(address) {
            self.entries.remove(address);
        }
    }

    /// Whether this node may announce anything.
    pub(super) fn is_concerned(&self) -> bool {
        self.concerned > 0 || !self.held.is_empty()
    }

    /// Returns the addresses for which this node is a candidate and that it does not hold.
    pub(super) fn candidacies(&self) -> impl Iterator<Item = IpAddr> {
        let entries = self.entries.iter().filter(|(_, entry)| entry.is_candidate);
        entries.map(|(address, _)| *address).filter(|address| !self.held.contains_key(address))
    }

    pub(super) fn is_candidate(&self, address: &IpAddr) -> bool {
        self.entries.get(address).is_some_and(|entry| entry.is_candidate)
    }

    pub(super) fn candidates(&self, address: &IpAddr) -> &[Candidate] {
        self.entries.get(address).map_or(&[], |entry| &entry.candidates)
    }

    /// Returns a node as a candidate; `None`: it is none.
    pub(super) fn candidate(&self, address: &IpAddr, node: NodeId) -> Option<&Candidate> {
        find(self.candidates(address), node)
    }

    /// Returns since when a node has been a candidate and the preference of none has changed; `None`: it is no candidate.
    pub(super) fn candidate_since(&self, address: &IpAddr, node: NodeId) -> Option<Instant> {
        let entry = self.entries.get(address).filter(|entry| find(&entry.candidates, node).is_some())?;
        let later = entry.later.iter().find(|(candidate, _)| *candidate == node).map(|(_, since)| *since);
        later.or(entry.since).max(entry.ranked)
    }

    /// Returns all addresses of which something is known.
    pub(super) fn all(&self) -> impl Iterator<Item = IpAddr> {
        self.entries.keys().copied()
    }

    /// Returns which other nodes have it in their tables, with which epochs.
    pub(super) fn claims(&self, address: &IpAddr) -> &[(NodeId, u64)] {
        self.entries.get(address).map_or(&[], |entry| &entry.claims)
    }

    pub(super) fn claim(&mut self, address: IpAddr, from: NodeId, epoch: u64) {
        let entry = self.entries.entry(address).or_default();
        entry.claims.retain(|(node, _)| *node != from);
        entry.claims.push((from, epoch));
        let order = |node: NodeId| claim_order(&address, node, epoch);
        let is_last = |last: NodeId| epoch == entry.highest && order(last) >= order(from);
        if epoch >= entry.highest && !entry.last.is_some_and(is_last) {
            (entry.highest, entry.last) = (epoch, Some(from));
        }
        self.conflicts.remove(&address);
    }

    pub(super) fn unclaim(&mut self, address: IpAddr, from: NodeId) {
        if let Some(entry) = self.entries.get_mut(&address) {
            entry.claims.retain(|(node, _)| *node != from);
        }
    }

    /// The epoch of the next bid.
    pub(super) fn next_epoch(&self, address: &IpAddr) -> u64 {
        self.entries.get(address).map_or(0, |entry| entry.highest).saturating_add(1)
    }

    /// Returns who holds it, or held it last, by the highest epoch that is known; `None`: this node, or nobody.
    pub(super) fn last(&self, address: &IpAddr) -> Option<NodeId> {
        self.entries.get(address)?.last
    }

    /// Returns the link address of a foreign host that answers for an address; `None`: none does, as far as is known.
    pub(super) fn conflict(&self, address: &IpAddr) -> Option<[u8; 6]> {
        self.conflicts.get(address).filter(|conflict| conflict.is_sure).map(|conflict| conflict.link)
    }

    /// A foreign host says that it has an address. What this node answers for itself it must say once more, when it is asked.
    pub(super) fn dispute(&mut self, address: IpAddr, link: [u8; 6], now: Instant) {
        if !self.entries.contains_key(&address) {
            return;
        }
        let is_open = self.held_at(&address).is_some_and(Held::is_open);
        let before = self.conflicts.get(&address).copied();
        let is_answer = before.is_some_and(|before| before.is_sure || before.asked > before.last);
        let asked = before.map_or(now, |before| before.asked);
        // Of two that answer the same question one is named, always the same: a pair of routers, or one host with two devices there.
        let other = before.filter(|before| now < before.last + SAME_ROUND).map(|before| before.link);
        let link = other.map_or(link, |other| other.min(link));
        self.conflicts.insert(address, Conflict { link, last: now, asked, is_sure: !is_open || is_answer });
    }

    /// Forgets hosts that are silent. Returns of the others what this node answers for and is to probe now.
    pub(super) fn disputed(&mut self, now: Instant) -> Vec<IpAddr> {
        self.conflicts.retain(|_, conflict| now < conflict.last + FORGOTTEN);
        let held = &self.held;
        let is_due = |(address, conflict): &(&IpAddr, &mut Conflict)| {
            let is_first = !conflict.is_sure && conflict.asked <= conflict.last;
            held.contains_key(*address) && (is_first || now >= conflict.asked + AGAIN)
        };
        let due = self.conflicts.iter_mut().filter(is_due).map(|(address, conflict)| {
            // Later than what it said before.
            conflict.asked = now.max(conflict.last + Duration::from_nanos(1));
            *address
        });
        due.collect()
    }

    /// Notes that who announces an address has changed.
    pub(super) fn note(&mut self, address: &IpAddr, why: Why, at: Instant) {
        if let Some(entry) = self.entries.get_mut(address) {
            entry.turnover = Some(Turnover { at, why });
        }
    }

    /// Returns when who announces an address changed last, and why.
    pub(super) fn turnover(&self, address: &IpAddr) -> Option<Turnover> {
        self.entries.get(address)?.turnover
    }

    /// Returns the own table.
    pub(super) fn table(&self) -> impl Iterator<Item = (IpAddr, u64)> {
        let held = self.held.iter().filter(|(_, held)| !held.is_doubted);
        held.map(|(address, held)| (*address, held.epoch))
    }

    /// Doubts what was opened within the last second: nothing has been received since then. Returns whether there is any.
    pub(super) fn doubt(&mut self, now: Instant) -> bool {
        let mut is_any = false;
        for (address, held) in &mut self.held {
            let is_new = matches!(held.since, HeldSince::Open(since) if now < since + DOUBTED);
            if is_new
                && !held.is_doubted
                && self.entries.get(address).is_some_and(|entry| !entry.claims.is_empty())
            {
                (held.is_doubted, is_any) = (true, true);
                self.digest = self.digest.wrapping_sub(digest(address, held.epoch));
            }
        }
        self.doubted = self.held.values().filter(|held| held.is_doubted).count();
        is_any
    }

    pub(super) fn has_doubts(&self) -> bool {
        self.doubted > 0
    }

    /// Returns what is doubted and in the table of this node.
    pub(super) fn doubted_of(&self, node: NodeId) -> impl Iterator<Item = IpAddr> {
        let doubted = self.held.iter().filter(|(_, held)| held.is_doubted).map(|(address, _)| *address);
        doubted.filter(move |address| self.claims(address).iter().any(|(other, _)| *other == node))
    }

    /// Takes what is doubted into the table after all. Returns whether there is any.
    pub(super) fn trust(&mut self) -> bool {
        if self.doubted == 0 {
            return false;
        }
        for (address, held) in self.held.iter_mut().filter(|(_, held)| held.is_doubted) {
            held.is_doubted = false;
            self.digest = self.digest.wrapping_add(digest(address, held.epoch));
        }
        self.doubted = 0;
        true
    }

    /// Returns all that this node holds.
    pub(super) fn held(&self) -> impl Iterator<Item = (IpAddr, &Held)> {
        self.held.iter().map(|(address, held)| (*address, held))
    }

    pub(super) fn held_at(&self, address: &IpAddr) -> Option<&Held> {
        self.held.get(address)
    }

    /// Returns what others compare with the table that they know. While something is doubted, it fits none: this node answers for more
    /// than its table says.
    pub(super) fn digest(&self) -> u64 {
        self.digest.wrapping_add(if self.has_doubts() { DOUBTS } else { 0 })
    }

    pub(super) fn hold(&mut self, address: IpAddr, held: Held) {
        self.let_go(&address);
        let entry = self.entries.entry(address).or_default();
        entry.highest = entry.highest.max(held.epoch);
        entry.last = None;
        self.conflicts.remove(&address);
        self.digest = self.digest.wrapping_add(digest(&address, held.epoch));
        if let HeldSince::Settles(time) = held.since {
            self.opens.insert((time, address));
        }
        self.held.insert(address, held);
    }

    pub(super) fn let_go(&mut self, address: &IpAddr) -> Option<Held> {
        let held = self.held.remove(address)?;
        if held.is_doubted {
            self.doubted -= 1;
        } else {
            self.digest = self.digest.wrapping_sub(digest(address, held.epoch));
        }
        if let HeldSince::Settles(time) = held.since {
            self.opens.remove(&(time, *address));
            // Nobody has announced it since then.
            if let Some(entry) = self.entries.get_mut(address) {
                entry.last = entry.last.or(held.previous);
            }
        }
        Some(held)
    }

    /// When the next bid is opened.
    pub(super) fn opens(&self) -> Option<Instant> {
        self.opens.first().map(|(time, _)| *time)
    }

    /// Opens the next bid whose time has come.
    pub(super) fn open(&mut self, now: Instant) -> Option<IpAddr> {
        let key @ (_, address) = *self.opens.first().filter(|(time, _)| *time <= now)?;
        self.opens.remove(&key);
        if let Some(held) = self.held.get_mut(&address) {
            held.since = HeldSince::Open(now);
            let why = held.why;
            self.note(&address, why, now);
        }
        Some(address)
    }

    /// Returns the bids that are not opened yet.
    pub(super) fn unsettled(&self) -> impl Iterator<Item = IpAddr> {
        self.opens.iter().map(|(_, address)| *address)
    }
}
