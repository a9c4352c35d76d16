//! Whether objects are programmed: rules of time and number, between what nodes report and the condition. Pure: time is an argument.
//!
//! An object is programmed when every node holds it, or some seconds after its Claims were written when all but a few do: one node
//! that hangs is no reason to say that no tenant is served. It stays so, for one generation, until too many nodes
//! do not hold it for some seconds.

use crate::model::ObjectRef;
use crate::status::{Counted, Missing, Progress};
use foldhash::{HashMap, HashMapExt};
use std::time::{Duration, Instant};

/// How long nodes may take before those that are behind are counted; and how long too many may be behind.
const GRACE: Duration = Duration::from_secs(10);
/// How long what was said before may stay where less is known: then it is said why.
pub(super) const STAYS: Duration = GRACE.saturating_mul(2);
/// Of this many nodes one may be behind; of fewer, one too.
const NODES_PER_STRAGGLER: usize = 20;

/// What every object was found to be.
#[derive(Debug)]
pub(super) struct Standings {
    all: HashMap<ObjectRef, Standing>,
    /// What less is known of, and since when.
    less: HashMap<ObjectRef, (Progress, Instant)>,
    /// When time alone changes something.
    again: Option<Instant>,
}

#[derive(Debug)]
struct Standing {
    /// The version up to which nodes must hold all Claims.
    version: u64,
    /// When nodes began to have time for it: at the first of the versions that followed each other within [`GRACE`].
    since: Instant,
    /// Since when too many nodes do not hold it.
    lost: Option<Instant>,
    /// The nodes that its status names, and since when.
    named: Option<(Instant, Missing)>,
    last: Progress,
}

impl Standings {
    pub(super) fn new() -> Self {
        Self { all: HashMap::new(), less: HashMap::new(), again: None }
    }

    /// Begins a round.
    pub(super) fn begin(&mut self) {
        self.again = None;
    }

    /// Ends a round: forgets objects that are gone. Returns when to judge again even if nothing changes.
    pub(super) fn end(&mut self, is_there: impl Fn(&ObjectRef) -> bool) -> Option<Instant> {
        self.all.retain(|object, _| is_there(object));
        self.less.retain(|object, _| is_there(object));
        self.again
    }

    /// Forgets everything: another controller may have led meanwhile.
    pub(super) fn clear(&mut self) {
        self.all.clear();
        self.less.clear();
    }

    /// Returns what is to be said of an object that was found to be this: of what cannot be known, for some seconds, its status says what
    /// was known before. `unwritten`: what it is where its Claims cannot be written.
    pub(super) fn bounded(
        &mut self,
        object: &ObjectRef,
        progress: Progress,
        unwritten: Option<Progress>,
        now: Instant,
    ) -> Progress {
        let later = match (&progress, unwritten) {
            (Progress::Pending, Some(unwritten)) => unwritten,
            (Progress::Unknown, _) => Progress::Unlisted,
            _ => {
                self.less.remove(object);
                return progress;
            }
        };
        let (what, since) = self.less.entry(object.clone()).or_insert_with(|| (progress.clone(), now));
        if *what != progress {
            (*what, *since) = (progress.clone(), now);
        }
        let until = *since + STAYS;
        if until <= now {
            return later;
        }
        self.again = self.again.into_iter().chain([until]).min();
        progress
    }

    /// Returns what an object is, whose Claims are those up to `version` (`None`: not written yet). `was`: its status says that this
    /// generation is programmed.
    pub(super) fn progress(
        &mut self,
        object: &ObjectRef,
        version: Option<u64>,
        was: bool,
        nodes: &Counted<'_>,
        now: Instant,
    ) -> Progress {
        let Some(version) = version else {
            let last = self.all.get(object).map(|standing| standing.last.clone());
            return match (was, last) {
                (true, Some(last)) => last,
                (true, None) => Progress::Enough,
                (false, _) => Progress::Pending,
            };
        };
        let new = Standing { version, since: now, lost: None, named: None, last: Progress::Pending };
        let standing = self.all.entry(object.clone()).or_insert(new);
        if standing.version != version {
            // Otherwise it would take longer the more often others drop names that it asks for, too.
            if standing.since + GRACE <= now {
                standing.since = now;
            }
            standing.version = version;
        }
        let found = nodes.progress(object, version);
        let all = nodes.count();
        // Nothing is taken back because nodes join, or agents are restarted: they are not counted.
        let joining = if was { nodes.joining(version) } else { 0 };
        let is_enough = match &found {
            Progress::Missing(missing) => {
                let (lacking, all) = (missing.count.saturating_sub(joining), all.saturating_sub(joining));
                let is_held = lacking < all || (all == 0 && joining > 0);
                !missing.is_whole && is_held && lacking <= (all / NODES_PER_STRAGGLER).max(1)
            }
            found => *found == Progress::Everywhere,
        };
        // Of what is not known nothing follows.
        let is_enough = is_enough || (was && nodes.knows_less());
        // Until when what was said holds, although this is less.
        let until = match (was, is_enough) {
            (true, true) => {
                standing.lost = None;
                None
            }
            (true, false) => Some(*standing.lost.get_or_insert(now) + GRACE),
            (false, _) => {
                standing.lost = None;
                Some(standing.since + GRACE)
            }
        };
        let is_over = until.is_none_or(|until| until <= now);
        let progress = match found {
            Progress::Everywhere => Progress::Everywhere,
            found if was => {
                if is_enough || !is_over {
                    Progress::Enough
                } else {
                    found
                }
            }
            found => {
                if is_enough && is_over {
                    Progress::Enough
                } else {
                    found
                }
            }
        };
        let (progress, named_until) = match progress {
            Progress::Missing(missing) => standing.name(missing, is_over, now),
            other => {
                standing.named = None;
                (other, None)
            }
        };
        let until = until.filter(|_| progress != Progress::Everywhere);
        let again = until.into_iter().chain(named_until).filter(|until| *until > now);
        self.again = self.again.into_iter().chain(again).min();
        standing.last = progress.clone();
        progress
    }
}

impl Standing {
    /// Names nodes that do not hold the object: not those that may be about to, and no others before some seconds have passed, for each
    /// report of a node would be another write for each of thousands of objects. Returns when other nodes may be named.
    fn name(&mut self, missing: Missing, is_over: bool, now: Instant) -> (Progress, Option<Instant>) {
        if self.named.is_none() && !is_over {
            return (Progress::Pending, None);
        }
        let (at, named) = self.named.get_or_insert_with(|| (now, missing.clone()));
        if *at + GRACE <= now {
            (*at, *named) = (now, missing.clone());
        }
        let until = (*named != missing).then(|| *at + GRACE);
        (Progress::Missing(named.clone()), until)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{Kind, ObjectName};
    use crate::status::{Complaint, Held, Nodes, key};
    use std::sync::Arc;

    fn gateway() -> ObjectRef {
        ObjectRef { kind: Kind::Gateway, name: ObjectName::new("a", "g") }
    }

    /// Nodes, some of which are behind.
    fn nodes(all: usize, behind: usize) -> Nodes {
        let held = |node| Held { claims_version: if node < behind { 1 } else { 9 }, ..Held::default() };
        Nodes { live: (0..all).map(|node| (format!("n{node}"), held(node))).collect(), ..Nodes::default() }
    }

    /// Of a controller that begins to lead, or of agents of another version.
    #[test]
    fn while_a_node_is_unknown_what_was_said_stays() {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let mut nodes = nodes(3, 3);
        nodes.unknown.insert("n7".to_owned(), "it is silent".into());
        let later = begun + 6 * GRACE;
        for now in [begun, later] {
            assert_eq!(
                standings.progress(&gateway(), Some(9), true, &nodes.counted(), now),
                Progress::Enough
            );
            match standings.progress(&gateway(), Some(9), false, &nodes.counted(), now) {
                Progress::Missing(missing) if now == later => {
                    assert_eq!(
                        missing.named.last().unwrap(),
                        &("n7".to_owned(), Some("it is silent".to_owned()))
                    );
                }
                Progress::Pending if now == begun => {}
                progress => panic!("{progress:?}"),
            }
        }
        nodes.unknown.clear();
        assert!(is_true(&standings.progress(&gateway(), Some(9), true, &nodes.counted(), later)));
        assert!(!is_true(&standings.progress(&gateway(), Some(9), true, &nodes.counted(), later + GRACE)));
    }

    /// Or one agent of another version would keep all new objects waiting.
    #[test]
    fn a_new_object_is_judged_though_a_node_is_unknown() {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let mut nodes = nodes(3, 0);
        nodes.unknown.insert("n7".to_owned(), "its report is of version 3".into());
        let mut new =
            |nodes: &Nodes, now| standings.progress(&gateway(), Some(9), false, &nodes.counted(), now);
        assert_eq!(new(&nodes, begun), Progress::Pending);
        assert_eq!(new(&nodes, begun + GRACE), Progress::Enough);
        nodes.unknown.insert("n8".to_owned(), "its report is of version 3".into());
        match new(&nodes, begun + 3 * GRACE) {
            Progress::Missing(missing) => {
                let named: Vec<&str> = missing.named.iter().map(|(node, _)| &**node).collect();
                assert_eq!(named, ["n7", "n8"]);
                assert_eq!(missing.named[0].1.as_deref(), Some("its report is of version 3"));
            }
            progress => panic!("{progress:?}"),
        }
    }

    /// As where the right to list Leases is missing.
    #[test]
    fn while_leases_cannot_be_listed_what_was_said_stays() {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let nodes = Nodes { are_unlisted: true, ..Nodes::default() };
        standings.begin();
        for (was, said) in [(true, Progress::Enough), (false, Progress::Unknown)] {
            for now in [begun, begun + 6 * GRACE] {
                assert_eq!(standings.progress(&gateway(), Some(9), was, &nodes.counted(), now), said);
            }
        }
    }

    fn is_true(progress: &Progress) -> bool {
        matches!(progress, Progress::Everywhere | Progress::Enough)
    }

    /// Plays nodes over time, in seconds; returns what was said.
    fn said(mut was: bool, story: &[(u64, usize, usize)]) -> Vec<bool> {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let story = story.iter().map(|(at, all, behind)| {
            let now = begun + Duration::from_secs(*at);
            let nodes = nodes(*all, *behind);
            standings.begin();
            was = is_true(&standings.progress(&gateway(), Some(9), was, &nodes.counted(), now));
            was
        });
        story.collect()
    }

    #[test]
    fn all_nodes_make_it_programmed_at_once_and_all_but_a_few_after_ten_seconds() {
        assert_eq!(said(false, &[(0, 3, 0)]), [true]);
        assert_eq!(said(false, &[(0, 3, 1), (9, 3, 1), (10, 3, 1)]), [false, false, true]);
        assert_eq!(said(false, &[(0, 3, 2), (60, 3, 2)]), [false, false], "one of three may be behind");
        assert_eq!(said(false, &[(0, 1, 1), (60, 1, 1)]), [false, false], "at least one must hold it");
        assert_eq!(said(false, &[(0, 0, 0), (60, 0, 0)]), [false, false]);
        assert_eq!(said(false, &[(0, 100, 6), (60, 100, 6), (61, 100, 5)]), [false, false, true]);
    }

    #[test]
    fn it_stays_so_until_too_many_are_behind_for_ten_seconds() {
        // A node joins, or is upgraded.
        assert_eq!(said(true, &[(0, 4, 1), (60, 4, 1)]), [true, true]);
        // All are behind for a moment.
        assert_eq!(said(true, &[(0, 4, 4), (9, 4, 4), (9, 4, 1), (15, 4, 4), (24, 4, 4)]), [true; 5]);
        assert_eq!(said(true, &[(0, 4, 4), (9, 4, 3), (10, 4, 3), (11, 4, 0)]), [true, true, false, true]);
        // No agent is alive any more.
        assert_eq!(said(true, &[(0, 0, 0), (10, 0, 0)]), [true, false]);
    }

    #[test]
    fn nodes_in_their_first_minute_take_nothing_back_and_others_do() {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let mut said = |second, was, joining: &[&str]| {
            let mut nodes = nodes(4, 3);
            nodes.joining = joining.iter().map(|name| (*name).to_owned()).collect();
            let names: Vec<_> = nodes.live.keys().cloned().collect();
            assert!(nodes.joining.iter().all(|name| names.contains(name)), "{names:?}");
            let now = begun + Duration::from_secs(second);
            is_true(&standings.progress(&gateway(), Some(9), was, &nodes.counted(), now))
        };
        let all = ["n0", "n1", "n2", "n3"];
        assert!(said(0, true, &all[..2]) && said(60, true, &all[..2]), "one of four is behind");
        assert!(!said(60, false, &all), "what is new waits for them");
        assert!(said(61, true, &all[..1]), "too many are, for a moment");
        assert!(!said(71, true, &all[..1]));
    }

    #[test]
    fn where_none_of_the_others_holds_it_nodes_in_their_first_minute_keep_nothing() {
        let said = |behind, joining: &[&str]| {
            let mut nodes = nodes(4, behind);
            nodes.joining = joining.iter().map(|name| (*name).to_owned()).collect();
            let (mut standings, begun) = (Standings::new(), Instant::now());
            let mut at = |second| {
                let now = begun + Duration::from_secs(second);
                is_true(&standings.progress(&gateway(), Some(9), true, &nodes.counted(), now))
            };
            (at(0), at(10))
        };
        assert_eq!(said(4, &["n0", "n1", "n2"]), (true, false), "n3 lacks it, too");
        assert_eq!(said(3, &["n0", "n1", "n2"]), (true, true));
        assert_eq!(said(4, &["n0", "n1", "n2", "n3"]), (true, true), "all agents were restarted");
    }

    #[test]
    fn claims_that_are_being_written_change_nothing_that_was_said() {
        let (mut standings, now) = (Standings::new(), Instant::now());
        let progress = |standings: &mut Standings, version, was| {
            standings.progress(&gateway(), version, was, &nodes(3, 0).counted(), now)
        };
        assert_eq!(progress(&mut standings, None, false), Progress::Pending);
        assert_eq!(progress(&mut standings, None, true), Progress::Enough, "another controller said so");
        assert_eq!(progress(&mut standings, Some(9), true), Progress::Everywhere);
        assert_eq!(progress(&mut standings, None, true), Progress::Everywhere);
        assert_eq!(progress(&mut standings, None, false), Progress::Pending, "another generation");
    }

    /// A status that named all nodes that are not there yet was written again for each report of each node.
    #[test]
    fn nodes_are_named_after_ten_seconds_and_others_not_before_ten_more() {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let mut named = |second, behind| {
            let nodes = nodes(9, behind);
            standings.begin();
            let now = begun + Duration::from_secs(second);
            let said = match standings.progress(&gateway(), Some(9), false, &nodes.counted(), now) {
                Progress::Missing(missing) => Some(missing.count),
                Progress::Pending => None,
                progress => panic!("{progress:?}"),
            };
            let again = standings.end(|_| true).map(|again| (again - begun).as_secs());
            (said, again)
        };
        assert_eq!(named(0, 9), (None, Some(10)));
        assert_eq!(named(3, 8), (None, Some(10)));
        assert_eq!(named(10, 8), (Some(8), None));
        assert_eq!(named(12, 7), (Some(8), Some(20)), "others are named later");
        assert_eq!(named(20, 7), (Some(7), None));
    }

    /// Names that others drop are granted to it meanwhile.
    #[test]
    fn more_that_is_granted_puts_off_nothing() {
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let mut is_programmed = |second, version| {
            let mut nodes = nodes(3, 1);
            nodes.live.values_mut().skip(1).for_each(|held| held.claims_version = version);
            let now = begun + Duration::from_secs(second);
            is_true(&standings.progress(&gateway(), Some(version), false, &nodes.counted(), now))
        };
        assert!(!is_programmed(0, 9) && !is_programmed(8, 12));
        assert!(is_programmed(10, 12));
        assert!(!is_programmed(30, 15), "what comes later is waited for again");
        assert!(is_programmed(40, 15));
    }

    #[test]
    fn time_alone_is_waited_for() {
        let (mut standings, now) = (Standings::new(), Instant::now());
        let mut again = |behind| {
            let nodes = nodes(3, behind);
            standings.begin();
            standings.progress(&gateway(), Some(9), false, &nodes.counted(), now);
            standings.end(|_| true)
        };
        assert_eq!(again(1), Some(now + GRACE));
        assert_eq!(again(0), None);
    }

    /// Nodes that hold the Claims, the first of which report that they do not hold an object all the same; `None`: anything.
    fn complaining(all: usize, first: usize, object: Option<&ObjectRef>) -> Nodes {
        let mut nodes = nodes(all, 0);
        for held in nodes.live.values_mut().take(first) {
            let text = "its entry cannot be written".to_owned();
            held.complaints.push(Complaint {
                object: object.map(key),
                missing: true,
                text,
                ..Complaint::default()
            });
        }
        nodes
    }

    /// What is said of the Gateway, programmed until then, at these seconds.
    fn said_of(nodes: &Nodes, seconds: &[u64]) -> Vec<Progress> {
        let (mut standings, begun, mut was) = (Standings::new(), Instant::now(), true);
        let said = seconds.iter().map(|second| {
            standings.begin();
            let now = begun + Duration::from_secs(*second);
            let progress = standings.progress(&gateway(), Some(9), was, &nodes.counted(), now);
            was = is_true(&progress);
            progress
        });
        said.collect()
    }

    #[test]
    fn what_a_node_reports_missing_takes_nothing_back_within_the_allowance() {
        for object in [Some(&gateway()), None] {
            let nodes = complaining(3, 1, object);
            assert_eq!(said_of(&nodes, &[0, 10, 60]), [Progress::Enough, Progress::Enough, Progress::Enough]);
            // New objects wait for it, and not for ever.
            let (mut standings, begun) = (Standings::new(), Instant::now());
            let mut at = |second| {
                let now = begun + Duration::from_secs(second);
                standings.progress(&gateway(), Some(9), false, &nodes.counted(), now)
            };
            assert!(!is_true(&at(0)) && !is_true(&at(9)));
            assert_eq!(at(10), Progress::Enough);
        }
        let nodes = complaining(100, 5, Some(&gateway()));
        assert_eq!(said_of(&nodes, &[0, 60]), [Progress::Enough, Progress::Enough], "one of twenty");
    }

    #[test]
    fn what_more_nodes_report_missing_is_not_programmed_after_ten_seconds_and_they_are_named() {
        for (all, first) in [(3, 2), (1, 1), (100, 6)] {
            for object in [Some(&gateway()), None] {
                let said = said_of(&complaining(all, first, object), &[0, 9, 10]);
                assert_eq!(said[..2], [Progress::Enough, Progress::Enough], "{first} of {all}");
                let Progress::Missing(missing) = &said[2] else { panic!("{first} of {all}: {:?}", said[2]) };
                assert_eq!(missing.count, first);
                let why = Some("its entry cannot be written".to_owned());
                assert_eq!(missing.named[0], ("n0".to_owned(), why));
            }
        }
    }

    /// The two others of three hold it, and have no pod to lead to.
    #[test]
    fn what_the_only_nodes_with_a_pod_cannot_reach_is_not_programmed_after_ten_seconds() {
        let nodes = complaining(3, 1, Some(&gateway()));
        let (mut standings, begun) = (Standings::new(), Instant::now());
        let mut at = |second, pods: &[&str], was| {
            let pods = pods.iter().map(|node| Arc::from(*node)).collect();
            let counted = nodes.counted().led_by(HashMap::from_iter([(gateway(), pods)]));
            standings.begin();
            standings.progress(&gateway(), Some(9), was, &counted, begun + Duration::from_secs(second))
        };
        assert_eq!(at(0, &["n0", "n1"], true), Progress::Enough);
        assert_eq!(at(60, &["n0", "n1"], true), Progress::Enough);
        assert_eq!(at(70, &["n0"], true), Progress::Enough);
        assert_eq!(at(79, &["n0"], true), Progress::Enough);
        let Progress::Missing(missing) = at(80, &["n0"], true) else { panic!("it is programmed") };
        assert_eq!(missing.named, [("n0".to_owned(), Some("its entry cannot be written".to_owned()))]);
        assert!(!is_true(&at(81, &["n0"], false)) && is_true(&at(82, &["n1"], false)));
    }

    #[test]
    fn what_nodes_report_missing_of_another_object_counts_for_that_one_only() {
        let other = ObjectRef { kind: Kind::Gateway, name: ObjectName::new("a", "other") };
        assert_eq!(
            said_of(&complaining(3, 3, Some(&other)), &[0, 60]),
            [Progress::Everywhere, Progress::Everywhere]
        );
    }
}
