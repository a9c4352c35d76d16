//! Which agents are alive: those whose Lease is renewed. Pure. Only time covered by reports of the API server counts, so neither clock
//! skew nor an unreachable API server makes an agent look dead. A Lease that was never seen to be renewed shows nothing: its agent may
//! have died while no controller looked.

use crate::sources::kubernetes::api::lease_report::LeaseReport;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Validity of a Lease that does not state any.
const DURATION: Duration = Duration::from_secs(10);
/// Upper bound of the validity.
const DURATION_MAX: Duration = Duration::from_secs(60);
/// Without a report for this long, Leases are listed.
pub(super) const SILENCE: Duration = Duration::from_secs(12);
/// Upper bound of the time between two reports that counts.
const GAP_MAX: Duration = Duration::from_secs(15);
/// Expired Leases are looked for this often.
const SWEEP: Duration = Duration::from_secs(1);
/// How long a deleted Lease is remembered.
const GONE_MAX: Duration = Duration::from_secs(3600);

/// An agent's Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AgentLease {
    /// The node that it says it is of; `None`: its name has all of it.
    pub(super) node: Option<String>,
    /// `holderIdentity`; empty: the agent released it.
    pub(super) holder: String,
    /// `renewTime` as written.
    pub(super) renewed: String,
    /// `leaseDurationSeconds`.
    pub(super) duration: Duration,
    /// What it reports; `None`: nothing, or in a version that is not known.
    pub(super) report: Option<LeaseReport>,
    /// In which version it reports where that is not read.
    pub(super) unread: Option<Arc<str>>,
    /// It was the last of its node, and nobody waits for the node.
    pub(super) has_left: bool,
}

/// A node whose agent has been silent for this long, since we look, is not waited for with what is refused. But where most agents are
/// silent, something ails them all, and they come back.
pub(super) const SILENT_MAX: Duration = Duration::from_secs(600);

/// What is known of an agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Life {
    /// Its Lease is renewed.
    Alive,
    /// Its Lease was not seen to be renewed yet, and may still be.
    Unconfirmed,
    /// Its Lease has ended, or there is none.
    Dead,
}

/// What was seen of all agents' Leases.
#[derive(Debug, Default)]
pub(super) struct Liveness {
    /// By node.
    seen: BTreeMap<String, Seen>,
    /// When the last report came.
    reported: Option<Instant>,
    is_listed: bool,
    /// Total time covered by reports.
    watched: Duration,
    swept: Duration,
}

#[derive(Debug)]
struct Seen {
    lease: AgentLease,
    /// Its last change, in time covered by reports.
    changed: Duration,
    is_renewed: bool,
    life: Life,
}

impl Seen {
    fn life(&self, watched: Duration) -> Life {
        let lasts = match self.lease.duration {
            Duration::ZERO => DURATION,
            duration => duration.min(DURATION_MAX),
        };
        match self.is_renewed {
            _ if self.lease.has_left => Life::Dead,
            _ if self.lease.holder.is_empty() || watched - self.changed >= lasts => Life::Dead,
            true => Life::Alive,
            false => Life::Unconfirmed,
        }
    }
}

impl Liveness {
    /// Takes the list of all agents' Leases, by node. Returns whether anything changed that a judgement depends on; always true the first
    /// time.
    pub(super) fn listed(&mut self, leases: BTreeMap<String, AgentLease>, now: Instant) -> bool {
        self.pass(now);
        let mut is_touched = !std::mem::replace(&mut self.is_listed, true);
        let gone: Vec<String> =
            self.seen.keys().filter(|node| !leases.contains_key(*node)).cloned().collect();
        for node in gone {
            is_touched |= self.remove(&node);
        }
        for (node, lease) in leases {
            let is_known = self.seen.contains_key(&node);
            is_touched |= self.take(node, lease, is_known);
        }
        self.sweep() | is_touched
    }

    /// Takes a Lease that was written. Returns whether anything changed that a judgement depends on.
    pub(super) fn put(&mut self, node: String, lease: AgentLease, now: Instant) -> bool {
        self.pass(now);
        let is_touched = self.take(node, lease, true);
        self.sweep() | is_touched
    }

    /// Takes that a Lease is gone. Returns whether anything changed that a judgement depends on.
    pub(super) fn gone(&mut self, node: &str, now: Instant) -> bool {
        self.pass(now);
        let is_touched = self.remove(node);
        self.sweep() | is_touched
    }

    /// Whether Leases have been listed at all.
    pub(super) fn is_known(&self) -> bool {
        self.is_listed
    }

    /// Returns the node of which this is true, if its Lease is known.
    pub(super) fn node(&self, is: impl Fn(&str) -> bool) -> Option<String> {
        self.seen.keys().find(|node| is(node)).cloned()
    }

    /// Nodes whose agents are alive or may be, with their Leases.
    pub(super) fn agents(&self) -> impl Iterator<Item = (&str, Life, &AgentLease)> {
        let agents = self.seen.iter().map(|(node, seen)| (node.as_str(), seen.life, &seen.lease));
        agents.filter(|(_, life, _)| *life != Life::Dead)
    }

    /// Nodes whose Lease has ended or was given back, with it, but for those where that was so long ago that they may never come back. Of so
    /// many members there are.
    pub(super) fn awaited(&self, members: usize) -> impl Iterator<Item = (&str, &AgentLease)> {
        let alive = self.seen.values().filter(|seen| seen.life == Life::Alive).count();
        let most = if 2 * alive < members { Duration::MAX } else { SILENT_MAX };
        let ended = self.seen.iter().filter(|(_, seen)| seen.life == Life::Dead);
        let ended = ended.filter(move |(_, seen)| self.watched - seen.changed < most);
        ended.map(|(node, seen)| (node.as_str(), &seen.lease))
    }

    /// Whether the node's agent has been silent, or without a Lease, for at least this long.
    pub(super) fn is_silent_for(&self, node: &str, least: Duration) -> bool {
        self.seen.get(node).map_or(self.watched, |seen| self.watched - seen.changed) >= least
    }

    fn pass(&mut self, now: Instant) {
        let passed = self.reported.map_or(Duration::ZERO, |before| now.saturating_duration_since(before));
        self.watched += passed.min(GAP_MAX);
        self.reported = Some(now);
    }

    /// `is_renewed`: it is known to have been written while we looked, if it is another than before.
    fn take(&mut self, node: String, lease: AgentLease, is_renewed: bool) -> bool {
        let watched = self.watched;
        let Some(seen) = self.seen.get_mut(&node) else {
            let mut seen = Seen { lease, changed: watched, is_renewed, life: Life::Dead };
            seen.life = seen.life(watched);
            self.seen.insert(node, seen);
            return true;
        };
        if seen.lease == lease {
            return false;
        }
        let before = (seen.life, seen.lease.report.take(), seen.lease.unread.take());
        (seen.lease, seen.changed) = (lease, watched);
        seen.is_renewed |= is_renewed;
        seen.life = seen.life(watched);
        before != (seen.life, seen.lease.report.clone(), seen.lease.unread.clone())
    }

    fn remove(&mut self, node: &str) -> bool {
        let Some(seen) = self.seen.get_mut(node).filter(|seen| !seen.lease.holder.is_empty()) else {
            return false;
        };
        seen.lease.holder.clear();
        (seen.changed, seen.life) = (self.watched, Life::Dead);
        true
    }

    /// Looks for Leases that have ended. Returns whether there are any that had not before.
    fn sweep(&mut self) -> bool {
        if self.watched - self.swept < SWEEP {
            return false;
        }
        let watched = self.watched;
        self.swept = watched;
        self.seen.retain(|_, seen| !seen.lease.holder.is_empty() || watched - seen.changed < GONE_MAX);
        let mut is_touched = false;
        for seen in self.seen.values_mut() {
            let life = seen.life(watched);
            is_touched |= std::mem::replace(&mut seen.life, life) != life;
        }
        is_touched
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(node: &str, renewed: u32) -> (String, AgentLease) {
        let lease = AgentLease {
            holder: format!("agent-of-{node}"),
            renewed: renewed.to_string(),
            duration: Duration::from_secs(40),
            report: Some(LeaseReport { claims_version: 7, ..LeaseReport::default() }),
            ..AgentLease::default()
        };
        (node.to_owned(), lease)
    }

    fn of(liveness: &Liveness, wanted: Life) -> Vec<&str> {
        liveness.agents().filter(|(_, life, _)| *life == wanted).map(|(node, ..)| node).collect()
    }

    fn after(begun: Instant, seconds: u32) -> Instant {
        begun + Duration::from_secs(seconds.into())
    }

    /// Otherwise `Programmed` waited for nodes that no DaemonSet selects any more, until their Leases end.
    #[test]
    fn one_whose_node_has_left_is_dead_at_once() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        liveness.listed([lease("a", 0), lease("b", 0)].into(), start);
        let (node, renewed) = lease("b", 1);
        liveness.put(node, AgentLease { has_left: true, ..renewed }, after(start, 1));
        assert_eq!((of(&liveness, Life::Unconfirmed), of(&liveness, Life::Alive)), (vec!["a"], vec![]));
    }

    #[test]
    fn one_that_stops_is_dead_after_its_lease_ended() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        assert!(!liveness.is_known());
        assert!(liveness.listed([lease("a", 0), lease("b", 0)].into(), start));
        assert_eq!(of(&liveness, Life::Unconfirmed), ["a", "b"]);
        for second in (10..100).step_by(10) {
            // The nodes' clocks are years off; all that matters is that they advance.
            let (node, renewed) = lease("a", second);
            let mut is_touched = liveness.put(node, renewed, after(start, second));
            if second <= 20 {
                let (node, renewed) = lease("b", second);
                is_touched |= liveness.put(node, renewed, after(start, second));
            }
            let expected: &[&str] = if second < 60 { &["a", "b"] } else { &["a"] };
            assert_eq!(of(&liveness, Life::Alive), expected, "at {second}");
            assert_eq!(is_touched, second == 10 || second == 60, "at {second}");
        }
        assert!(liveness.is_silent_for("b", Duration::from_secs(70)));
        assert!(!liveness.is_silent_for("a", Duration::from_secs(1)));
        assert!(!liveness.is_silent_for("c", Duration::from_secs(91)), "nobody looked for so long");
        assert!(liveness.is_silent_for("c", Duration::from_secs(90)), "no Lease at all");
    }

    /// Of a controller that begins to lead: it does not know how old a Lease is.
    #[test]
    fn a_lease_that_was_not_seen_to_be_renewed_shows_nothing_until_it_ends() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        let all = || BTreeMap::from([lease("a", 1), lease("b", 1)]);
        liveness.listed(all(), start);
        for look in 1..=3 {
            assert!(!liveness.listed(all(), after(start, 12 * look)));
            assert_eq!(of(&liveness, Life::Unconfirmed), ["a", "b"]);
        }
        assert!(liveness.listed(BTreeMap::from([lease("a", 2), lease("b", 1)]), after(start, 39)));
        assert_eq!((of(&liveness, Life::Alive), of(&liveness, Life::Unconfirmed)), (vec!["a"], vec!["b"]));
        let (node, renewed) = lease("a", 3);
        assert!(liveness.put(node, renewed, after(start, 40)), "the other one has ended");
        assert_eq!((of(&liveness, Life::Alive), of(&liveness, Life::Unconfirmed)), (vec!["a"], vec![]));
        // One that joins is written while we look.
        let (node, renewed) = lease("c", 1);
        assert!(liveness.put(node, renewed, after(start, 41)));
        assert_eq!(of(&liveness, Life::Alive), ["a", "c"]);
    }

    #[test]
    fn an_api_server_that_was_away_kills_nobody() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        liveness.listed([lease("a", 1)].into(), start);
        liveness.listed([lease("a", 2)].into(), after(start, 2));
        // Ten minutes later, after an outage of the API server: the agent could not renew its Lease either.
        assert!(!liveness.listed([lease("a", 2)].into(), after(start, 602)));
        assert_eq!(of(&liveness, Life::Alive), ["a"]);
        assert!(!liveness.listed([lease("a", 3)].into(), after(start, 612)));
    }

    #[test]
    fn what_is_reported_is_news_and_a_renewal_alone_is_none() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        liveness.listed([lease("a", 1)].into(), start);
        let (node, renewed) = lease("a", 2);
        assert!(liveness.put(node, renewed, after(start, 1)), "it is alive");
        let (node, renewed) = lease("a", 3);
        assert!(!liveness.put(node, renewed, after(start, 2)));
        let (node, mut renewed) = lease("a", 4);
        renewed.report = Some(LeaseReport { claims_version: 8, ..LeaseReport::default() });
        assert!(liveness.put(node, renewed, after(start, 3)));
        let (node, mut renewed) = lease("a", 5);
        renewed.report = None;
        assert!(liveness.put(node, renewed, after(start, 4)));
    }

    #[test]
    fn a_lease_given_back_or_gone_is_no_agent() {
        let (mut liveness, start) = (Liveness::default(), Instant::now());
        liveness.listed([lease("a", 1), lease("b", 1)].into(), start);
        let (node, given_back) = lease("a", 2);
        assert!(liveness.put(node, AgentLease { holder: String::new(), ..given_back }, after(start, 2)));
        assert!(liveness.gone("b", after(start, 2)) && !liveness.gone("b", after(start, 3)));
        assert_eq!(liveness.agents().count(), 0);
        assert!(liveness.is_silent_for("a", Duration::from_secs(1)));
        assert!(!liveness.is_silent_for("b", Duration::from_secs(2)));
        let (node, renewed) = lease("b", 9);
        assert!(liveness.put(node, renewed, after(start, 8)));
        assert_eq!(of(&liveness, Life::Alive), ["b"]);
    }
}
