//! Nodes that stay behind: what they do not hold after a minute is not waited for. Pure: time is an argument.

use crate::status::Nodes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// A node that does not hold what was asked this long ago is excluded.
const BEHIND: Duration = Duration::from_secs(60);
/// At most one node in this many is excluded. Where more are behind, it is no fault of theirs.
const SHARE: usize = 3;

/// What was asked of nodes, and since when they are known.
#[derive(Debug, Default)]
pub(super) struct Lag {
    /// Newest versions of all Claims, each with the time when it was first seen; the first one is the last that is old enough.
    asked: VecDeque<(Instant, u64)>,
    since: BTreeMap<String, Instant>,
}

impl Lag {
    /// Takes the newest version of all Claims, and excludes nodes that have been behind for too long. Returns them, and when to look
    /// again even if nothing changes.
    pub(super) fn exclude(
        &mut self,
        newest: u64,
        nodes: &mut Nodes,
        now: Instant,
    ) -> (Vec<String>, Option<Instant>) {
        self.since.retain(|node, _| nodes.live.contains_key(node));
        for node in
            nodes.live.keys().filter(|node| !self.since.contains_key(*node)).cloned().collect::<Vec<_>>()
        {
            self.since.insert(node, now);
        }
        match self.asked.back() {
            Some((_, last)) if *last == newest => {}
            // Versions go back where a backup was restored.
            Some((_, last)) if *last > newest => self.asked = [(now, newest)].into(),
            _ => self.asked.push_back((now, newest)),
        }
        while self.asked.get(1).is_some_and(|(at, _)| *at + BEHIND <= now) {
            self.asked.pop_front();
        }
        let is_old = |at: &Instant| *at + BEHIND <= now;
        let due = self.asked.front().filter(|(at, _)| is_old(at)).map_or(0, |(_, version)| *version);
        let is_behind =
            |node: &String, claims_version: u64| claims_version < due && is_old(&self.since[node]);
        let behind = nodes.live.iter().filter(|(node, held)| is_behind(node, held.claims_version));
        let mut behind: Vec<String> = behind.map(|(node, _)| node.clone()).collect();
        if behind.len() * SHARE > nodes.live.len() + nodes.unknown.len() {
            behind.clear();
        }
        let lags = nodes.live.iter().filter(|(_, held)| held.claims_version < newest);
        let known = lags.map(|(node, _)| self.since[node]);
        let times = self.asked.iter().map(|(at, _)| *at).chain(known).map(|at| at + BEHIND);
        let again = times.filter(|at| *at > now).min();
        let lags = nodes.live.values().any(|held| held.claims_version < newest);
        nodes.live.retain(|node, _| !behind.contains(node));
        (behind, again.filter(|_| lags))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Held;

    /// Nodes n0, n1 ... that hold these versions.
    fn nodes(versions: &[u64]) -> Nodes {
        let held = |version: &u64| Held { claims_version: *version, ..Held::default() };
        let live = (0..).zip(versions).map(|(node, version): (u32, _)| (format!("n{node}"), held(version)));
        Nodes { live: live.collect(), ..Nodes::default() }
    }

    /// Who is excluded at this second, of nodes that hold these versions.
    fn excluded(lag: &mut Lag, begun: Instant, second: u64, newest: u64, versions: &[u64]) -> Vec<String> {
        let mut nodes = nodes(versions);
        let (excluded, _) = lag.exclude(newest, &mut nodes, begun + Duration::from_secs(second));
        assert!(excluded.iter().all(|node| !nodes.live.contains_key(node)));
        assert_eq!(nodes.live.len() + excluded.len(), versions.len());
        excluded
    }

    #[test]
    fn who_does_not_hold_what_was_asked_a_minute_ago_is_excluded_until_it_does() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        let mut at = |second, newest, versions: &[u64]| excluded(&mut lag, begun, second, newest, versions);
        assert!(at(0, 5, &[5, 5, 5]).is_empty());
        assert!(at(10, 6, &[6, 6, 5]).is_empty());
        // More is asked all the time: who goes on, if late, is not behind.
        assert!(at(40, 7, &[7, 7, 5]).is_empty());
        assert!(at(69, 8, &[8, 8, 5]).is_empty());
        assert_eq!(at(70, 8, &[8, 8, 5]), ["n2"]);
        assert_eq!(at(71, 9, &[8, 7, 5]), ["n2"]);
        assert!(at(72, 9, &[9, 9, 6]).is_empty(), "it holds what was asked a minute ago");
        assert_eq!(at(100, 9, &[9, 9, 6]), ["n2"]);
    }

    #[test]
    fn never_more_than_a_third_is_excluded() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        for versions in [&[5, 5, 5, 0, 0, 0][..], &[0], &[5, 0]] {
            excluded(&mut lag, begun, 0, 5, versions);
            assert!(excluded(&mut lag, begun, 90, 5, versions).is_empty(), "{versions:?}");
        }
        let mut lag = Lag::default();
        excluded(&mut lag, begun, 0, 5, &[5, 5, 5, 5, 0, 0]);
        assert_eq!(excluded(&mut lag, begun, 90, 5, &[5, 5, 5, 5, 0, 0]), ["n4", "n5"]);
    }

    #[test]
    fn a_node_that_joins_and_a_restored_backup_have_their_minute() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        let mut at = |second, newest, versions: &[u64]| excluded(&mut lag, begun, second, newest, versions);
        assert!(at(0, 5, &[5, 5, 5]).is_empty());
        assert!(at(100, 5, &[5, 5, 5, 0]).is_empty());
        assert_eq!(at(160, 5, &[5, 5, 5, 0]), ["n3"]);
        // It restarts.
        assert!(at(161, 5, &[5, 5, 5]).is_empty());
        assert!(at(162, 5, &[5, 5, 5, 0]).is_empty());
        // Versions go back.
        assert!(at(300, 3, &[3, 3, 3, 2]).is_empty());
        assert_eq!(at(360, 3, &[3, 3, 3, 2]), ["n3"]);
    }

    #[test]
    fn time_alone_is_waited_for_while_a_node_is_behind() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        let mut again = |second, versions: &[u64]| {
            lag.exclude(5, &mut nodes(versions), begun + Duration::from_secs(second)).1
        };
        assert_eq!(again(0, &[5, 5, 5]), None);
        assert_eq!(again(10, &[5, 5, 0]), Some(begun + BEHIND));
        assert_eq!(again(60, &[5, 5, 0]), None, "it is excluded");
    }
}
