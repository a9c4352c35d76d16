//! Nodes that stay behind: what they do not hold after a minute is not waited for. In the first minute of a node, or of an agent that
//! serves what it saved, nothing is taken back that was said: its node joins, or its agent was restarted. Pure: time is an argument.

use crate::status::Nodes;
use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

/// A node that does not hold what was asked this long ago is excluded.
const BEHIND: Duration = Duration::from_secs(60);
/// From one first minute of a node to the next, at least: an agent that crashes again and again is counted.
const RESTS: Duration = Duration::from_secs(600);
/// At most one node in this many is excluded. Where more are behind, it is no fault of theirs.
const SHARE: usize = 3;

/// What was asked of nodes, and since when they are known.
#[derive(Debug, Default)]
pub(super) struct Lag {
    /// Newest versions of all Claims, each with the time when it was first seen; the first one is the last that is old enough.
    asked: VecDeque<(Instant, u64)>,
    since: BTreeMap<String, Instant>,
    /// Which of them joined, or began to serve what they saved, and when.
    joined: BTreeMap<String, Joined>,
    has_looked: bool,
}

#[derive(Debug)]
struct Joined {
    /// When its last first minute began; `None`: it was there when we began to look, and had none since.
    at: Option<Instant>,
    serves_saved: bool,
    is_absent: bool,
}

impl Lag {
    /// Notes which nodes are in their first minute, in `nodes`. Returns when that changes by time alone.
    fn note_joining(&mut self, nodes: &mut Nodes, now: Instant) -> Option<Instant> {
        let is_there = |node: &String| nodes.live.contains_key(node) || nodes.unknown.contains_key(node);
        self.joined.retain(|node, joined| {
            joined.is_absent |= !is_there(node);
            is_there(node) || nodes.members.contains(node)
        });
        let was_there = !std::mem::replace(&mut self.has_looked, true);
        for (node, held) in &nodes.live {
            let serves_saved = held.saved.is_some();
            let new = Joined { at: None, serves_saved: false, is_absent: !was_there };
            let joined = self.joined.entry(node.clone()).or_insert(new);
            let begins = joined.is_absent || (serves_saved && !joined.serves_saved);
            if begins && joined.at.is_none_or(|at| at + RESTS <= now) {
                joined.at = Some(now);
            }
            (joined.serves_saved, joined.is_absent) = (serves_saved, false);
        }
        // Of an agent that has to be seen to be alive first it is not known when it started.
        for node in nodes.unknown.keys() {
            let joined = self.joined.get_mut(node);
            match joined {
                Some(joined) => joined.is_absent = false,
                None => {
                    let new = Joined { at: None, serves_saved: false, is_absent: false };
                    self.joined.insert(node.clone(), new);
                }
            }
        }
        let until = |node: &String| Some(self.joined.get(node)?.at? + BEHIND).filter(|until| *until > now);
        nodes.joining = nodes.live.keys().filter(|node| until(node).is_some()).cloned().collect();
        nodes.joining.iter().filter_map(until).min()
    }

    /// Takes the newest version of all Claims, and excludes nodes that have been behind for too long. Returns them, and when to look
    /// again even if nothing changes.
    pub(super) fn exclude(
        &mut self,
        newest: u64,
        nodes: &mut Nodes,
        now: Instant,
    ) -> (Vec<String>, Option<Instant>) {
        let joined_until = self.note_joining(nodes, now);
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
        let is_behind = |node: &String, claims_version: u64| {
            claims_version < due && is_old(&self.since[node]) && !nodes.joining.contains(node)
        };
        let behind = nodes.live.iter().filter(|(node, held)| is_behind(node, held.claims_version));
        let mut behind: Vec<String> = behind.map(|(node, _)| node.clone()).collect();
        if behind.len() * SHARE > nodes.live.len() + nodes.unknown.len() {
            behind.clear();
        }
        let lags = nodes.live.iter().filter(|(_, held)| held.claims_version < newest);
        let known = lags.map(|(node, _)| self.since[node]);
        let times = self.asked.iter().map(|(at, _)| *at).chain(known).map(|at| at + BEHIND);
        let again = times.filter(|at| *at > now).chain(joined_until).min();
        let lags = nodes.live.values().any(|held| held.claims_version < newest);
        nodes.live.retain(|node, _| !behind.contains(node));
        nodes.joining.retain(|node| nodes.live.contains_key(node));
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

    /// Their Leases go on meanwhile.
    #[test]
    fn agents_that_were_restarted_have_their_minute_and_so_have_joining_nodes() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        let mut at = |second, versions: &[u64], saved: &[usize]| {
            let mut nodes = nodes(versions);
            for node in saved {
                nodes.live.get_mut(&format!("n{node}")).unwrap().saved = Some("a saved state".to_owned());
            }
            let (excluded, again) = lag.exclude(5, &mut nodes, begun + Duration::from_secs(second));
            let until = again.map(|again| again.saturating_duration_since(begun).as_secs());
            (excluded, nodes.joining.into_iter().collect::<Vec<_>>(), until)
        };
        let none = Vec::<String>::new;
        assert_eq!(at(0, &[5, 5, 5, 5], &[]), (none(), none(), None), "they were there before");
        let n3 = || vec!["n3".to_owned()];
        assert_eq!(at(100, &[5, 5, 5, 0], &[3]), (none(), n3(), Some(160)));
        assert_eq!(at(159, &[5, 5, 5, 0], &[3]), (none(), n3(), Some(160)));
        assert_eq!(at(160, &[5, 5, 5, 0], &[3]), (n3(), none(), None));
        assert_eq!(at(161, &[5, 5, 5, 5], &[]), (none(), none(), None));
        // Once more, and one that joins.
        let both = vec!["n3".to_owned(), "n4".to_owned()];
        assert_eq!(at(800, &[5, 5, 5, 0, 0], &[3]), (none(), both, Some(860)));
        // What restarts again without having read them has no other minute.
        assert_eq!(at(830, &[5, 5, 5, 0, 5], &[3]).2, Some(860));
    }

    /// By the memory that it takes to list all Claims, for example: its Lease ends meanwhile, or it does not.
    #[test]
    fn an_agent_that_crashes_again_and_again_has_one_minute() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        let mut joins = |second, is_there: bool, is_saved: bool| {
            let mut nodes = nodes(if is_there { &[5, 0] } else { &[5] });
            nodes.members = ["n0", "n1"].map(str::to_owned).into();
            if let Some(held) = nodes.live.get_mut("n1").filter(|_| is_saved) {
                held.saved = Some("a saved state".to_owned());
            }
            lag.exclude(5, &mut nodes, begun + Duration::from_secs(second));
            nodes.joining.contains("n1")
        };
        assert!(!joins(0, true, false));
        assert!(!joins(10, false, false) && joins(100, true, false), "it comes back");
        assert!(!joins(150, false, false) && !joins(210, true, false), "once more");
        assert!(!joins(240, true, true) && !joins(270, true, false) && !joins(300, true, true));
        assert!(!joins(699, true, false) && joins(700, true, true), "after ten minutes");
        assert!(joins(759, true, true) && !joins(760, true, true));
    }

    #[test]
    fn a_node_that_has_to_be_seen_to_be_alive_first_does_not_join() {
        let (mut lag, begun) = (Lag::default(), Instant::now());
        let mut unknown = nodes(&[]);
        let why = crate::status::Unknown { why: "its Lease was not renewed yet".into(), lasts: false };
        unknown.unknown.insert("n0".to_owned(), why);
        lag.exclude(5, &mut unknown, begun);
        let mut nodes = nodes(&[0]);
        lag.exclude(5, &mut nodes, begun + Duration::from_secs(1));
        assert!(nodes.joining.is_empty());
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
