//! Whether what a node reports is of the API server's present history. Where a backup was restored, versions go back, and a report from
//! before may name a version that something else has by now. Pure.

use super::claim_store::ClaimNews;
use crate::status::Nodes;
use std::collections::{BTreeMap, BTreeSet};

/// Why such a node is unknown.
const OTHER: &str = "its agent reports a version that the API server does not have: a backup was restored; it reports again soon";

/// The most versions that are remembered. All nodes have reported since those before.
const SEEN_MAX: usize = 1 << 16;

/// The versions of the API server that were seen.
#[derive(Debug, Default)]
pub(super) struct History {
    /// The newest one.
    reached: u64,
    /// All up to this one are of this history, for all that is known.
    base: u64,
    /// Those of Claims that were written since. A node reports the version of a Claim, so that another one is of another history: a
    /// controller that began to look after a backup was restored sees nothing go back, and only others pass it.
    seen: BTreeSet<u64>,
    /// The one that a backup was restored to, since nodes were looked at.
    restored: Option<u64>,
    /// What nodes reported when it was restored.
    before: BTreeMap<String, u64>,
}

impl History {
    /// Takes what the watch of Claims reports.
    pub(super) fn note(&mut self, news: &ClaimNews) {
        match news {
            ClaimNews::Listed(_, version) => {
                if *version < self.reached {
                    self.restored = Some(*version);
                }
                (self.reached, self.base) = (*version, *version);
                self.seen.clear();
            }
            ClaimNews::Put(_, stored) => {
                let version = stored.version.parse().unwrap_or_default();
                self.reached = self.reached.max(version);
                self.seen.insert(version);
                if self.seen.len() > SEEN_MAX {
                    self.base = self.seen.pop_first().unwrap_or_default().max(self.base);
                }
            }
            ClaimNews::Gone(_) => {}
        }
    }

    /// Whether a backup was restored since nodes were looked at.
    pub(super) fn is_restored(&self) -> bool {
        self.restored.is_some()
    }

    /// Of nodes whose report is of another history, it is not known what they hold.
    pub(super) fn judge(&mut self, nodes: &mut Nodes) {
        let reports = || nodes.live.iter().map(|(node, held)| (node.clone(), held.claims_version));
        if let Some(floor) = self.restored.take() {
            self.before = reports().filter(|(_, version)| *version > floor).collect();
        }
        let is_other = |node: &str, version: u64| {
            version > self.base && !self.seen.contains(&version) || self.before.get(node) == Some(&version)
        };
        let other: Vec<String> =
            reports().filter(|(node, version)| is_other(node, *version)).map(|(node, _)| node).collect();
        self.before.retain(|node, _| other.contains(node));
        for node in other {
            nodes.live.remove(&node);
            nodes.unknown.insert(node, OTHER.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::claim_store::Stored;
    use crate::status::Held;

    /// Which of nodes n0, n1 ... that report these versions are unknown.
    fn unknown(history: &mut History, versions: &[u64]) -> Vec<String> {
        let held = |version: &u64| Held { claims_version: *version, ..Held::default() };
        let live = (0..).zip(versions).map(|(node, version): (u32, _)| (format!("n{node}"), held(version)));
        let mut nodes = Nodes { live: live.collect(), ..Nodes::default() };
        history.judge(&mut nodes);
        nodes.unknown.into_keys().collect()
    }

    fn listed(version: u64) -> ClaimNews {
        ClaimNews::Listed(BTreeMap::new(), version)
    }

    fn put(version: u64) -> ClaimNews {
        let stored = Stored { spec: Default::default(), version: version.to_string(), ..Stored::default() };
        ClaimNews::Put("a".to_owned(), Box::new(stored))
    }

    #[test]
    fn a_version_that_was_not_reached_is_of_another_history() {
        let mut history = History::default();
        history.note(&listed(100));
        assert_eq!(unknown(&mut history, &[100, 90, 101]), ["n2"]);
        history.note(&put(101));
        history.note(&put(120));
        history.note(&put(110));
        assert_eq!(unknown(&mut history, &[120, 90, 101]), [""; 0]);
        // A list that is asked for again is no restored backup.
        history.note(&listed(130));
        assert_eq!(unknown(&mut history, &[120, 130, 101]), [""; 0]);
    }

    /// It begins to look when the backup was restored already.
    #[test]
    fn a_version_that_a_new_leader_sees_passed_and_not_reached_is_of_another_history() {
        let mut history = History::default();
        history.note(&listed(80));
        assert_eq!(unknown(&mut history, &[100, 101, 70]), ["n0", "n1"]);
        history.note(&put(101));
        assert_eq!(unknown(&mut history, &[100, 101, 70]), ["n0"], "the other one was only quicker");
        history.note(&put(150));
        assert_eq!(unknown(&mut history, &[100, 101, 70]), ["n0"]);
        assert_eq!(unknown(&mut history, &[150, 101, 80]), [""; 0]);
        // Of what came between two lists nothing is known.
        assert_eq!(unknown(&mut history, &[160, 170, 70]), ["n0", "n1"]);
        history.note(&listed(165));
        assert_eq!(unknown(&mut history, &[160, 170, 100]), ["n1"]);
        // What is remembered is bounded.
        let many = u64::try_from(SEEN_MAX).unwrap();
        (200..=200 + many).for_each(|version| history.note(&put(version)));
        assert_eq!(history.seen.len(), SEEN_MAX);
        assert_eq!(unknown(&mut history, &[170, 200, 200 + many]), [""; 0]);
    }

    #[test]
    fn what_was_reported_before_a_backup_was_restored_counts_when_it_is_reported_again() {
        let mut history = History::default();
        history.note(&listed(100));
        assert_eq!(unknown(&mut history, &[100, 100, 70]), [""; 0]);
        history.note(&listed(80));
        assert_eq!(unknown(&mut history, &[100, 100, 70]), ["n0", "n1"], "70 is in both histories");
        // Others write, so that versions get beyond what was reported before.
        history.note(&put(150));
        assert_eq!(unknown(&mut history, &[100, 100, 70]), ["n0", "n1"]);
        // One has listed Claims again, and another one what was written since.
        assert_eq!(unknown(&mut history, &[75, 150, 70]), [""; 0]);
        // By chance, a Claim has the very version that a node reported before.
        history.note(&listed(60));
        assert_eq!(unknown(&mut history, &[75, 150, 70]), ["n0", "n1", "n2"]);
        history.note(&put(75));
        assert_eq!(unknown(&mut history, &[75, 150, 70]), ["n0", "n1", "n2"]);
        assert_eq!(unknown(&mut history, &[60, 75, 60]), [""; 0]);
        assert_eq!(unknown(&mut history, &[75, 75, 75]), [""; 0], "it is a version like any other now");
    }
}
