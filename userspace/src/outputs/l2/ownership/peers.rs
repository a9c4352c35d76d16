use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::precedence::{DOUBTS, digest};
use super::{ALIVE, Answer, CLOSED, PROBE, REPEAT, STOPPED, TURN, UNANSWERED};

/// Another node of the segment.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) table: Table,
    pub(super) link: Option<[u8; 6]>,
    pub(super) silence: Silence,
    gate: Gate,
    /// The last answer: when it was asked for, and the digest in it.
    answered: Option<(Instant, u64)>,
    life: Life,
    /// Heartbeats since then.
    unanswered: u8,
    /// When the last one of them was sent.
    asked: Instant,
    /// When its table was requested.
    requested: Option<Instant>,
    /// When a table came.
    received: Option<Instant>,
    /// A table of a boot that no answer has shown yet.
    early: Option<Early>,
    /// Since it is known, was gone or its agent lived, it has not been probed what it holds.
    is_unchecked: bool,
}

/// What another node holds.
#[derive(Debug, Default)]
pub(super) struct Table {
    /// Follows answers alone, which show that they are fresh.
    boot: Option<u64>,
    version: Option<u64>,
    pub(super) claims: BTreeMap<IpAddr, u64>,
    digest: u64,
    /// The link address that it says the node has.
    pub(super) link: Option<[u8; 6]>,
}

/// A table that counts only if an answer shows its boot and its digest.
#[derive(Debug)]
struct Early {
    boot: u64,
    version: u64,
    bids: Vec<(IpAddr, u64)>,
}

/// Whether a node is judged to be gone.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Silence {
    Not,
    /// Some of its addresses are probed.
    Probed {
        addresses: Vec<IpAddr>,
        sent: u8,
        next: Instant,
    },
    Gone,
}

/// What shows that another node lives.
#[derive(Debug)]
struct Life {
    /// When something fresh came from it.
    last: Instant,
    /// Since when it has lived, and its agent.
    steady: Instant,
    /// That is news.
    is_new: bool,
}

impl Life {
    fn begin(&mut self, now: Instant) {
        (self.steady, self.is_new) = (now, true);
    }
}

/// The kernel gate of another node.
#[derive(Debug, Default)]
struct Gate {
    /// The age of its agent's stamp.
    age: Duration,
    closed: Option<Instant>,
    /// It has been closed for long enough.
    is_void: bool,
}

/// Returns the digest of a table.
fn digest_of(bids: impl Iterator<Item = (IpAddr, u64)>) -> u64 {
    bids.fold(0, |sum, (address, epoch)| digest(&address, epoch).wrapping_add(sum))
}

impl Table {
    /// Follows the boot of the node. Returns what it held before.
    pub(super) fn boot(&mut self, boot: u64) -> Vec<IpAddr> {
        if self.boot == Some(boot) {
            return Vec::new();
        }
        let claims = std::mem::replace(self, Self { boot: Some(boot), ..Self::default() }).claims;
        claims.into_keys().collect()
    }

    /// Returns what is different in the new table: the epochs, `None` for what is not in it.
    pub(super) fn replace(&mut self, version: u64, bids: Vec<(IpAddr, u64)>) -> Vec<(IpAddr, Option<u64>)> {
        let new: BTreeMap<IpAddr, u64> = bids.into_iter().collect();
        let old = std::mem::take(&mut self.claims);
        let gone = old.keys().filter(|address| !new.contains_key(address)).map(|address| (*address, None));
        let changed = new.iter().filter(|(address, epoch)| old.get(address) != Some(epoch));
        let changes = gone.chain(changed.map(|(address, epoch)| (*address, Some(*epoch)))).collect();
        self.digest = digest_of(new.iter().map(|(address, epoch)| (*address, *epoch)));
        (self.version, self.claims) = (Some(version), new);
        changes
    }
}

impl Peer {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            table: Table::default(),
            link: None,
            silence: Silence::Not,
            gate: Gate::default(),
            answered: None,
            life: Life { last: now, steady: now, is_new: true },
            unanswered: 0,
            asked: now,
            requested: None,
            received: None,
            early: None,
            is_unchecked: true,
        }
    }

    /// Whether something came from it lately.
    pub(super) fn is_alive(&self, now: Instant) -> bool {
        self.silence != Silence::Gone && now.saturating_duration_since(self.life.last) < ALIVE
    }

    /// For how long nothing has been received of it; zero: it lives.
    pub(super) fn silent(&self, now: Instant) -> Duration {
        if self.is_alive(now) { Duration::ZERO } else { now.saturating_duration_since(self.life.last) }
    }

    /// Whether its gate is closed, as its last answer showed.
    pub(super) fn is_closed(&self) -> bool {
        self.gate.closed.is_some()
    }

    /// Whether its agent would bid.
    pub(super) fn may_bid(&self, now: Instant) -> bool {
        self.is_alive(now) && self.gate.age < TURN
    }

    /// Since when it and its agent have lived without interruption; `None`: they do not.
    pub(super) fn steady(&self, now: Instant) -> Option<Instant> {
        self.may_bid(now).then_some(self.life.steady)
    }

    /// Whether it has come, or come back, since the last call.
    pub(super) fn takes_new(&mut self) -> bool {
        std::mem::take(&mut self.life.is_new)
    }

    /// Whether its kernel answers for what it held, and its agent is stopped or dead.
    pub(super) fn is_unattended(&self, grace: Duration, now: Instant) -> bool {
        let is_open = grace.is_zero() || self.gate.age <= grace;
        self.is_alive(now) && self.gate.age >= STOPPED && is_open
    }

    /// Whether what it holds is neither known nor was probed. The next call returns false, until its agent lives or it is gone.
    pub(super) fn takes_unchecked(&mut self) -> bool {
        self.confirmed().is_none() && std::mem::take(&mut self.is_unchecked)
    }

    /// Whether what it holds may be bid for.
    pub(super) fn is_void(&self) -> bool {
        self.silence == Silence::Gone || self.gate.is_void
    }

    /// When the heartbeat was sent whose answer shows that its table is the one that is known here.
    pub(super) fn confirmed(&self) -> Option<Instant> {
        self.answered.filter(|(_, digest)| *digest == self.table.digest).map(|(asked, _)| asked)
    }

    /// Whether it doubts something that it answers for, and the rest is known.
    pub(super) fn has_doubts(&self) -> bool {
        self.answered.is_some_and(|(_, digest)| digest == self.table.digest.wrapping_add(DOUBTS))
    }

    /// Whether an answer counts: one of another boot must be to a later heartbeat than the last. So two devices of one node on one
    /// segment, both of which answer, do not change the boot with each frame.
    pub(super) fn follows(&self, boot: u64, asked: Instant) -> bool {
        self.table.boot == Some(boot) || self.answered.is_none_or(|(last, _)| last < asked)
    }

    /// Returns a table if it is taken now: it is not older than what is known. One of a boot that no answer has shown is put aside: it
    /// may have overtaken the answer, and is not sent again at once.
    pub(super) fn takes(
        &mut self,
        boot: u64,
        version: u64,
        bids: Vec<(IpAddr, u64)>,
    ) -> Option<Vec<(IpAddr, u64)>> {
        if self.table.boot != Some(boot) {
            self.early = Some(Early { boot, version, bids });
            return None;
        }
        self.early = None;
        self.table.version.is_none_or(|known| known <= version).then_some(bids)
    }

    /// Returns the table that was put aside, and its version, if the answer shows that it is the present one.
    pub(super) fn takes_early(&mut self, answer: &Answer) -> Option<(u64, Vec<(IpAddr, u64)>)> {
        let is_present = |early: &mut Early| {
            let digest = digest_of(early.bids.iter().copied());
            early.boot == answer.boot && [digest, digest.wrapping_add(DOUBTS)].contains(&answer.digest)
        };
        self.early.take_if(is_present).map(|early| (early.version, early.bids))
    }

    /// A heartbeat is sent.
    pub(super) fn asked(&mut self, now: Instant) {
        if self.silence == Silence::Not {
            self.unanswered = self.unanswered.saturating_add(1);
            self.asked = now;
        }
    }

    pub(super) fn answered(&mut self, answer: &Answer, asked: Instant, grace: Duration, now: Instant) {
        self.link = Some(answer.link);
        if self.answered.is_none_or(|(last, _)| last <= asked) {
            self.answered = Some((asked, answer.digest));
            if self.gate.age >= TURN && answer.stamp_age < TURN {
                self.life.begin(now);
            }
            self.gate.age = answer.stamp_age;
            self.is_unchecked |= answer.stamp_age < STOPPED;
            if grace.is_zero() || answer.stamp_age <= grace {
                (self.gate.closed, self.gate.is_void) = (None, false);
            } else {
                self.gate.closed.get_or_insert(now);
            }
        }
        self.lives(now);
    }

    /// A table came. Only one that is new, or was requested, shows that the node lives.
    pub(super) fn sent_table(&mut self, version: u64, now: Instant) {
        self.received = Some(now);
        let is_requested = self.requested.is_some_and(|time| now < time + REPEAT);
        if is_requested || self.table.version.is_none_or(|known| known < version) {
            self.lives(now);
            // Its agent lives too.
            if self.gate.age >= TURN {
                self.life.begin(now);
            }
            self.gate = Gate::default();
        }
    }

    fn lives(&mut self, now: Instant) {
        if !self.is_alive(now) {
            self.life.begin(now);
        }
        (self.life.last, self.unanswered, self.silence) = (now, 0, Silence::Not);
    }

    /// An address of it is answered for, though it does not answer heartbeats.
    pub(super) fn veto(&mut self) {
        (self.unanswered, self.silence) = (0, Silence::Not);
    }

    /// Observes it from now on. Returns whether it was void.
    pub(super) fn restart(&mut self, last_turn: Option<Instant>, now: Instant) -> bool {
        let was_void = self.is_void();
        if last_turn.is_some_and(|last| self.is_alive(last)) {
            self.life.last = now;
        }
        self.veto();
        (self.gate.closed, self.gate.is_void) = (None, false);
        was_void
    }

    /// Whether it is to be probed now.
    pub(super) fn is_suspect(&self, now: Instant) -> bool {
        self.silence == Silence::Not && self.unanswered >= UNANSWERED && now >= self.asked + PROBE
    }

    /// It is gone, and nobody answers for its addresses.
    pub(super) fn is_gone(&mut self) {
        (self.silence, self.gate, self.is_unchecked) = (Silence::Gone, Gate::default(), true);
    }

    /// Whether its gate has been closed for long enough since the last call.
    pub(super) fn closes(&mut self, now: Instant) -> bool {
        let is_closed = self.gate.closed.is_some_and(|since| now >= since + CLOSED);
        let closes = is_closed && !self.gate.is_void && self.is_alive(now);
        self.gate.is_void |= closes;
        closes
    }

    /// Whether its table is requested now.
    pub(super) fn requests(&mut self, now: Instant) -> bool {
        // An answer from before the table came says nothing about it.
        let is_later = |(asked, _): &(Instant, u64)| self.received.is_none_or(|received| *asked > received);
        let is_unknown =
            self.answered.is_some_and(|answered| is_later(&answered) && self.confirmed().is_none());
        let is_unknown = is_unknown && self.is_alive(now);
        let requests = is_unknown && self.requested.is_none_or(|last| now >= last + REPEAT);
        if requests {
            self.requested = Some(now);
        }
        requests
    }

    /// When something about it is due, besides heartbeats.
    pub(super) fn due(&self) -> Option<Instant> {
        match &self.silence {
            Silence::Probed { next, .. } => Some(*next),
            Silence::Not if self.unanswered >= UNANSWERED => Some(self.asked + PROBE),
            _ => None,
        }
    }
}
