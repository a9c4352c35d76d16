use super::super::liveness::AgentLease;
use crate::dice::Dice;
use crate::node::Renewals;
use crate::sources::kubernetes::api::lease_report::LeaseReport;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// From a write until a node's maps hold it.
const HOLDS: (Duration, Duration) = (Duration::from_millis(30), Duration::from_millis(400));

/// From when a node joins until its maps hold everything.
const JOINS: (Duration, Duration) = (Duration::from_secs(2), Duration::from_secs(12));

/// The nodes.
pub(super) struct Nodes {
    all: Vec<Node>,
}

struct Node {
    renewals: Renewals,
    /// Versions of Claims, and when this node's maps will hold them.
    coming: VecDeque<(Instant, u64)>,
    holds: u64,
    renewed: u64,
    reported: u64,
    /// Its agent was restarted: without Claims, it serves what it saved.
    has_saved: bool,
    died: Option<Instant>,
}

impl Node {
    fn counts(&self, now: Instant) -> bool {
        self.died.is_none_or(|died| now < died + LIVES_ON)
    }
}

/// The least time that the Lease of a node lives on after its death.
const LIVES_ON: Duration = Duration::from_secs(29);

impl Nodes {
    pub(super) fn new(count: usize, now: Instant, _: &mut Dice) -> Self {
        let node = |_| Node {
            renewals: Renewals::new(now.into()),
            coming: VecDeque::new(),
            holds: 0,
            renewed: 0,
            reported: 0,
            has_saved: false,
            died: None,
        };
        Self { all: (0..count).map(node).collect() }
    }

    /// How many there are, dead ones too.
    pub(super) fn count(&self) -> usize {
        self.all.len()
    }

    /// A node joins. It renews its Lease at once, and will hold the Claims up to this version at the time that is returned.
    pub(super) fn join(&mut self, version: u64, now: Instant, dice: &mut Dice) -> Instant {
        let at = now + dice.between(JOINS.0, JOINS.1);
        self.all.push(Node {
            renewals: Renewals::new(now.into()),
            coming: [(at, version)].into(),
            holds: 0,
            renewed: 0,
            reported: 0,
            has_saved: false,
            died: None,
        });
        at
    }

    /// The agent of a node is restarted. It renews its Lease at once, and will hold the Claims up to this version at this time.
    pub(super) fn restart(&mut self, number: usize, version: u64, now: Instant, at: Instant) {
        let node = &mut self.all[number];
        (node.holds, node.coming, node.has_saved) = (0, [(at, version)].into(), true);
        node.renewals = Renewals::new(now.into());
    }

    /// The first renewal is due then.
    pub(super) fn renews_at(&mut self, node: usize, at: Instant) {
        self.all[node].renewals = Renewals::new(at.into());
    }

    /// A Claim was written in this version. Returns when which node renews earlier than it would have.
    pub(super) fn told(&mut self, version: u64, now: Instant, dice: &mut Dice) -> Vec<(usize, Instant)> {
        let mut earlier = Vec::new();
        for (number, node) in self.all.iter_mut().enumerate().filter(|(_, node)| node.died.is_none()) {
            let mut at = now + dice.between(HOLDS.0, HOLDS.1);
            // A watch reports in order.
            at = at.max(node.coming.back().map_or(at, |(last, _)| *last));
            node.coming.push_back((at, version));
            let before = node.renewals.next;
            node.renewals.changed(at.into(), dice.next());
            if node.renewals.next < before {
                earlier.push((number, node.renewals.next.into_std()));
            }
        }
        earlier
    }

    /// A node renews its Lease, if it is time. Returns when it does so next.
    pub(super) fn renew(&mut self, number: usize, now: Instant, dice: &mut Dice) -> Option<Instant> {
        let node = &mut self.all[number];
        if node.died.is_some() || now < node.renewals.next.into_std() {
            return None;
        }
        while let Some((_, version)) = node.coming.pop_front_if(|(at, _)| *at <= now) {
            node.holds = node.holds.max(version);
        }
        node.renewed += 1;
        node.reported = node.holds;
        node.renewals.written(now.into(), true);
        if let Some((at, _)) = node.coming.front() {
            node.renewals.changed((*at).into(), dice.next());
        }
        Some(node.renewals.next.into_std())
    }

    pub(super) fn lease(&self, number: usize) -> (String, AgentLease) {
        let node = &self.all[number];
        let saved = if node.has_saved && node.reported == 0 { "a saved state" } else { "" };
        let report =
            LeaseReport { claims_version: node.reported, saved: saved.to_owned(), ..LeaseReport::default() };
        let lease = AgentLease {
            holder: "agent".to_owned(),
            renewed: node.renewed.to_string(),
            duration: Duration::from_secs(40),
            report: Some(report),
            ..AgentLease::default()
        };
        (name(number), lease)
    }

    /// Returns how many nodes of those that are [`Self::counted`] hold all Claims up to this version.
    pub(super) fn holders(&self, version: u64, now: Instant) -> usize {
        self.all.iter().filter(|node| node.counts(now) && node.holds >= version).count()
    }

    pub(super) fn die(&mut self, number: usize, now: Instant) {
        self.all[number].died = Some(now);
    }

    /// Returns how many there are at least whose Lease lives: it does for 40 s after its last renewal, which may be 10 s before a death.
    pub(super) fn counted(&self, now: Instant) -> usize {
        self.all.iter().filter(|node| node.counts(now)).count()
    }
}

/// The name of a node.
pub(super) fn name(number: usize) -> String {
    format!("n{number:03}")
}
