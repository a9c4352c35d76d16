use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outputs::l2::ownership::precedence::{digest, weight};
use crate::outputs::l2::ownership::{Action, Answer, Frame, NodeId, Rules, Segment, Standing};

const OWN: NodeId = 1;
const OTHER: NodeId = 2;
const THIRD: NodeId = 3;
const GRACE: Duration = Duration::from_secs(2);

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

fn link(node: NodeId) -> [u8; 6] {
    [2, 0, 0, 0, 0, node as u8]
}

/// Returns addresses for which one node comes before another.
fn addresses(first: NodeId, second: NodeId) -> impl Iterator<Item = IpAddr> {
    let all = (1..=255).map(|number| IpAddr::from([192, 0, 2, number]));
    all.filter(move |address| weight(address, first) > weight(address, second))
}

/// Another node, of which only what it sends matters.
#[derive(Clone, Debug)]
struct Other {
    boot: u64,
    version: u64,
    bids: Vec<(IpAddr, u64)>,
    stamp_age: Duration,
    /// Its kernel answers heartbeats, and for its addresses.
    answers: bool,
    replies: bool,
}

impl Other {
    fn digest(&self) -> u64 {
        self.bids.iter().fold(0, |sum, (address, epoch)| digest(address, *epoch).wrapping_add(sum))
    }
}

/// One segment, and what it is made to see.
#[derive(Debug)]
struct Lab {
    segment: Segment,
    start: Instant,
    now: Instant,
    others: BTreeMap<NodeId, Other>,
    /// What was done, and when.
    done: Vec<(Duration, Action)>,
}

impl Lab {
    fn new() -> Self {
        let start = Instant::now();
        let segment = Segment::new(OWN, Rules { grace: GRACE }, 7, 100, start);
        Self { segment, start, now: start, others: BTreeMap::new(), done: Vec::new() }
    }

    fn with(mut self, node: NodeId, bids: &[(IpAddr, u64)]) -> Self {
        let (boot, version, bids) = (10 * node, 1, bids.to_vec());
        self.others.insert(
            node,
            Other { boot, version, bids, stamp_age: Duration::ZERO, answers: true, replies: true },
        );
        self
    }

    fn want(&mut self, addresses: &[IpAddr], nodes: &[NodeId]) {
        let nodes: Arc<[NodeId]> = nodes.into();
        let wanted = addresses.iter().map(|address| (*address, Arc::clone(&nodes))).collect();
        self.segment.candidates(wanted, self.now);
    }

    fn other(&mut self, node: NodeId) -> &mut Other {
        self.others.get_mut(&node).unwrap()
    }

    /// Another node sends a new table.
    fn send(&mut self, node: NodeId, bids: &[(IpAddr, u64)]) {
        let other = self.others.get_mut(&node).unwrap();
        (other.version, other.bids) = (other.version + 1, bids.to_vec());
        self.segment.table(node, other.boot, other.version, bids.to_vec(), self.now);
    }

    fn turn(&mut self) -> Vec<Action> {
        let actions = self.segment.turn(self.now);
        self.done.extend(actions.iter().map(|action| (self.now - self.start, action.clone())));
        actions
    }

    /// Lets time pass; others answer at once.
    fn pass(&mut self, time: u64) {
        let end = self.now + milliseconds(time);
        let mut turns = 0;
        loop {
            let due = self.segment.due().max(self.now);
            if due > end {
                break;
            }
            self.now = due;
            let actions = self.turn();
            self.answer(actions);
            turns += 1;
            assert!(turns < 100 + time, "something is due all the time");
        }
        self.now = end;
    }

    fn answer(&mut self, actions: Vec<Action>) {
        let (segment, now) = (&mut self.segment, self.now);
        for action in actions {
            for (node, other) in &self.others {
                match &action {
                    Action::Send(Frame::Ask { nonce }) if other.answers => {
                        let (from, link, nonce, boot) = (*node, link(*node), *nonce, other.boot);
                        let (stamp_age, digest) = (other.stamp_age, other.digest());
                        segment.answered(&Answer { from, link, nonce, boot, stamp_age, digest }, now);
                    }
                    Action::Send(Frame::Resend { to }) if to == node && other.answers => {
                        segment.table(*node, other.boot, other.version, other.bids.clone(), now);
                    }
                    Action::Probe(address) if other.replies => {
                        if other.bids.iter().any(|(its, _)| its == address) {
                            segment.claimed(*address, link(*node), now);
                        }
                    }
                    _ => {}
                }
            }
        }
    }

    /// What was done since the last call, but for heartbeats, with milliseconds since the start.
    fn done(&mut self) -> Vec<(u64, Action)> {
        let done = std::mem::take(&mut self.done).into_iter();
        let done = done.filter(|(_, action)| !matches!(action, Action::Send(Frame::Ask { .. })));
        done.map(|(time, action)| (time.as_millis() as u64, action)).collect()
    }

    fn opened(&mut self) -> Vec<(u64, IpAddr, u64)> {
        let opened = self.done().into_iter().filter_map(|(time, action)| match action {
            Action::Open { address, epoch } => Some((time, address, epoch)),
            _ => None,
        });
        opened.collect()
    }

    /// A segment on which another node has held these addresses for a while.
    fn held_by_other(held: &[IpAddr]) -> Self {
        let bids: Vec<(IpAddr, u64)> = held.iter().map(|address| (*address, 4)).collect();
        let mut lab = Self::new().with(OTHER, &bids);
        lab.want(held, &[OWN, OTHER]);
        lab.pass(3000);
        assert!(lab.opened().is_empty(), "it is held");
        assert_eq!(lab.segment.standing(&held[0]), Standing::Elsewhere { node: OTHER, epoch: 4 });
        lab
    }
}

fn bids(version: u64, bids: &[(IpAddr, u64)]) -> Action {
    Action::Send(Frame::Bids { version, bids: bids.to_vec() })
}

#[test]
fn a_free_address_is_bid_for_after_a_second_and_three_probes_and_opened_a_moment_later() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(2000);
    let open = Action::Open { address, epoch: 1 };
    let probe = |time| (time, Action::Probe(address));
    let expected = [
        (0, bids(101, &[])),
        probe(1000),
        probe(1050),
        probe(1100),
        (1150, bids(102, &[(address, 1)])),
        (1180, open),
    ];
    assert_eq!(lab.done(), expected);
    assert_eq!(lab.segment.digest(), digest(&address, 1));
    let since = lab.start + milliseconds(1180);
    assert_eq!(lab.segment.standing(&address), Standing::Here { epoch: 1, since });
}

#[test]
fn an_address_that_a_foreign_host_answers_for_is_named_and_probed_again() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new();
    lab.want(&[address], &[OWN]);
    lab.pass(1060);
    lab.segment.claimed(address, [9; 6], lab.now);
    lab.pass(3000);
    assert_eq!(lab.segment.standing(&address), Standing::Conflict { link: [9; 6] });
    lab.pass(3000);
    assert_eq!(lab.opened(), [(6240, address, 1)]);
    // Also between the bid and its opening.
    let mut lab = Lab::new();
    lab.want(&[address], &[OWN]);
    lab.pass(1160);
    lab.segment.claimed(address, [9; 6], lab.now);
    lab.pass(3000);
    assert!(lab.opened().is_empty());
    assert_eq!(lab.segment.digest(), 0);
}

#[test]
fn a_node_is_silent_after_five_heartbeats_and_two_probes_for_eight_addresses() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(20).collect();
    let mut lab = Lab::held_by_other(&held);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(1000);
    let done = lab.done();
    let probes: Vec<u64> =
        done.iter().filter(|(_, action)| matches!(action, Action::Probe(_))).map(|(time, _)| *time).collect();
    // The last answer was that to the heartbeat at 3,000 ms.
    assert_eq!(probes, [[3550; 8], [3600; 8]].concat());
    let opened =
        done.iter().filter(|(time, action)| *time == 3680 && matches!(action, Action::Open { epoch: 5, .. }));
    assert_eq!(opened.count(), 20);
}

#[test]
fn an_answered_probe_of_a_silent_node_is_a_veto() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::held_by_other(&held);
    lab.other(OTHER).answers = false;
    lab.pass(10_000);
    assert!(lab.opened().is_empty());
    // A foreign host is none: it takes its address, and no other.
    lab.other(OTHER).replies = false;
    for _ in 0..70 {
        lab.pass(10);
        lab.segment.claimed(held[0], [9; 6], lab.now);
    }
    lab.pass(1000);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(lab.segment.standing(&held[0]), Standing::Conflict { link: [9; 6] });
}

#[test]
fn a_late_heartbeat_says_nothing_about_the_others() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::held_by_other(&held);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    for _ in 0..10 {
        lab.pass(480);
        // The agent is stopped for a moment.
        lab.now += milliseconds(160);
    }
    assert!(lab.opened().is_empty());
    lab.pass(1000);
    assert_eq!(lab.opened().len(), 2);
}

#[test]
fn an_agent_whose_stamp_is_old_loses_its_addresses_a_second_after_its_gate_closed() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::held_by_other(&held);
    lab.other(OTHER).stamp_age = GRACE;
    lab.pass(3000);
    // It stamps now and then.
    for _ in 0..5 {
        lab.other(OTHER).stamp_age = GRACE + milliseconds(1);
        lab.pass(900);
        lab.other(OTHER).stamp_age = Duration::ZERO;
        lab.pass(100);
    }
    assert!(lab.opened().is_empty());
    lab.other(OTHER).stamp_age = GRACE + milliseconds(1);
    let start = (lab.now - lab.start).as_millis() as u64;
    lab.pass(2000);
    let times: Vec<u64> = lab.opened().iter().map(|(time, _, _)| time - start).collect();
    assert_eq!(times, [1130, 1130]);
}

#[test]
fn the_second_candidate_waits_for_the_first_only_while_its_agent_lives() {
    let address = addresses(OTHER, OWN).next().unwrap();
    let with_stamp = |stamp_age| {
        let mut lab = Lab::new().with(OTHER, &[]);
        lab.other(OTHER).stamp_age = stamp_age;
        lab.want(&[address], &[OWN, OTHER]);
        lab.pass(4000);
        lab.opened()
    };
    assert_eq!(with_stamp(Duration::ZERO), [(2180, address, 1)]);
    assert_eq!(with_stamp(milliseconds(1000)), [(1180, address, 1)]);
    // Who is no candidate does not come first.
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, THIRD]);
    lab.pass(4000);
    assert_eq!(lab.opened(), [(1180, address, 1)]);
}

#[test]
fn the_higher_claim_wins_and_the_winner_announces_again() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let open = || {
        let mut lab = Lab::new().with(OTHER, &[]);
        lab.want(&[address], &[OWN, OTHER]);
        lab.pass(1500);
        assert_eq!(lab.opened().len(), 1);
        lab
    };
    let mut lab = open();
    lab.send(OTHER, &[(address, 2)]);
    assert_eq!(lab.turn(), [Action::Close(address), bids(103, &[])]);
    assert_eq!(lab.segment.standing(&address), Standing::Elsewhere { node: OTHER, epoch: 2 });
    // The same epoch: the own node comes first.
    let mut lab = open();
    lab.send(OTHER, &[(address, 1)]);
    assert_eq!(lab.turn(), [Action::Open { address, epoch: 1 }, bids(102, &[(address, 1)])]);
    // The other one closes, and announced it until then.
    lab.pass(300);
    lab.done();
    lab.send(OTHER, &[]);
    assert_eq!(lab.turn(), [Action::Open { address, epoch: 1 }]);
    // The same epoch, and the other one comes first.
    let address = addresses(OTHER, OWN).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.other(OTHER).stamp_age = milliseconds(1000);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(1500);
    assert_eq!(lab.opened().len(), 1);
    lab.send(OTHER, &[(address, 1)]);
    assert_eq!(lab.turn()[0], Action::Close(address));
}

#[test]
fn a_bid_is_withdrawn_where_a_higher_one_comes_before_it_is_opened() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(1160);
    assert_eq!(lab.segment.digest(), digest(&address, 1));
    lab.send(OTHER, &[(address, 2)]);
    lab.pass(1000);
    let expected = |(_, action): &(u64, Action)| matches!(action, Action::Open { .. } | Action::Close(_));
    assert!(!lab.done().iter().any(expected));
    assert_eq!(lab.segment.digest(), 0);
}

#[test]
fn tables_of_an_older_version_or_boot_are_ignored() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    let holder = |lab: &Lab| lab.segment.standing(&address);
    let now = lab.now;
    lab.segment.table(OTHER, 20, 0, vec![(address, 9)], now);
    assert_eq!(holder(&lab), Standing::Elsewhere { node: OTHER, epoch: 4 });
    // It has booted: it holds nothing, whatever it held before.
    (lab.other(OTHER).boot, lab.other(OTHER).version) = (21, 1);
    lab.other(OTHER).bids.clear();
    lab.pass(100);
    assert!(matches!(holder(&lab), Standing::Nobody { .. }));
    let now = lab.now;
    lab.segment.table(OTHER, 20, 99, vec![(address, 9)], now);
    assert!(matches!(holder(&lab), Standing::Nobody { .. }));
    lab.pass(1000);
    assert!(matches!(holder(&lab), Standing::Here { epoch: 5, .. }));
}

#[test]
fn a_table_that_is_not_known_is_requested_twice_a_second_and_the_own_one_sent_as_often() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    // A digest that no table explains.
    lab.other(OTHER).bids[0].1 = 6;
    lab.other(OTHER).version = 0;
    lab.pass(1950);
    let resend = |(_, action): &(u64, Action)| *action == Action::Send(Frame::Resend { to: OTHER });
    assert_eq!(lab.done().iter().filter(|done| resend(done)).count(), 4);
    for _ in 0..100 {
        let now = lab.now;
        lab.segment.resend(OTHER, now);
        lab.pass(20);
    }
    let table = |(_, action): &(u64, Action)| *action == bids(101, &[]);
    assert_eq!(lab.done().iter().filter(|done| table(done)).count(), 5);
}

#[test]
fn answers_that_were_not_asked_for_do_not_count() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    for _ in 0..100 {
        let (now, digest) = (lab.now, lab.others[&OTHER].digest());
        let answer =
            Answer { from: OTHER, link: link(OTHER), nonce: 5, boot: 20, stamp_age: Duration::ZERO, digest };
        lab.segment.answered(&answer, now);
        // Nor does a table that is known, and was not requested.
        lab.segment.table(OTHER, 20, 1, vec![(address, 4)], now);
        lab.pass(10);
    }
    assert_eq!(lab.opened().len(), 1);
}

#[test]
fn what_is_released_goes_to_the_first_of_the_others_once_all_tables_are_known() {
    let address =
        addresses(OTHER, OWN).find(|address| weight(address, OWN) > weight(address, THIRD)).unwrap();
    let mut lab = Lab::held_by_other(&[address]).with(THIRD, &[]);
    lab.want(&[address], &[OWN, OTHER, THIRD]);
    lab.pass(500);
    let start = (lab.now - lab.start).as_millis() as u64;
    lab.send(OTHER, &[]);
    lab.pass(1000);
    // The releasing node comes first in the order, and is not waited for.
    assert!(matches!(lab.opened()[..], [(time, _, 5)] if time - start < 200));
    // A third node took it: its table is missing yet.
    let mut lab = Lab::held_by_other(&[address]).with(THIRD, &[]);
    lab.want(&[address], &[OWN, OTHER, THIRD]);
    lab.pass(500);
    lab.other(THIRD).bids = vec![(address, 5)];
    lab.other(THIRD).version = 0;
    lab.send(OTHER, &[]);
    lab.pass(1000);
    assert!(lab.opened().is_empty());
}

#[test]
fn a_node_that_leaves_closes_everything_and_says_so() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::new();
    lab.want(&held, &[OWN]);
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 2);
    lab.segment.release();
    assert_eq!(lab.turn(), [Action::Close(held[0]), Action::Close(held[1]), bids(103, &[])]);
    lab.done.clear();
    lab.pass(3000);
    assert_eq!(lab.done, []);
    assert!(matches!(lab.segment.standing(&held[0]), Standing::Nobody { .. }));
}

#[test]
fn what_a_node_is_no_candidate_for_is_closed() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::new();
    lab.segment.follow(Rules { grace: GRACE });
    lab.segment.adopt(held[0], 7, lab.now);
    lab.segment.adopt(held[1], 8, lab.now);
    lab.want(&held, &[OWN, OTHER]);
    // What was adopted stays, and is in the table at once.
    lab.pass(3000);
    assert_eq!(lab.done(), [(0, bids(101, &[(held[0], 7), (held[1], 8)]))]);
    lab.want(&held[1..], &[OWN, OTHER]);
    assert_eq!(lab.turn(), [Action::Close(held[0]), bids(102, &[(held[1], 8)])]);
    lab.want(&held[1..], &[OTHER]);
    assert_eq!(lab.turn(), [Action::Close(held[1]), bids(103, &[])]);
    lab.done.clear();
    lab.pass(3000);
    assert_eq!(lab.done, [], "who is no candidate asks nobody");
}

#[test]
fn a_node_that_is_cut_off_does_not_bid() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::held_by_other(&held);
    lab.segment.isolated(true, lab.now);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(5000);
    assert!(lab.opened().is_empty());
    // Then it listens for a second.
    let start = (lab.now - lab.start).as_millis() as u64;
    lab.segment.isolated(false, lab.now);
    lab.pass(2000);
    let opened = lab.opened();
    assert_eq!(opened.len(), 2);
    assert!(opened.iter().all(|(time, _, _)| time - start >= 1000), "{opened:?}");
}

#[test]
fn what_a_node_took_while_it_was_cut_off_is_given_back() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let cut_off = || {
        let mut lab = Lab::held_by_other(&held);
        (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
        lab.pass(1000);
        lab.segment.isolated(true, lab.now);
        assert_eq!(lab.opened().len(), 2);
        lab.pass(3000);
        assert_eq!(lab.segment.digest(), 0, "it is not in the table");
        assert!(matches!(lab.segment.standing(&held[0]), Standing::Here { .. }), "and answered for");
        lab.segment.isolated(false, lab.now);
        lab.done();
        lab
    };
    let mut lab = cut_off();
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (true, true);
    lab.pass(100);
    assert_eq!(lab.segment.standing(&held[0]), Standing::Elsewhere { node: OTHER, epoch: 4 });
    let closes = lab.done().into_iter().filter(|(_, action)| matches!(action, Action::Close(_)));
    assert_eq!(closes.count(), 2);
    // The other node is gone: they stay here.
    let mut lab = cut_off();
    lab.pass(2000);
    assert!(matches!(lab.segment.standing(&held[0]), Standing::Here { epoch: 5, .. }));
    assert_ne!(lab.segment.digest(), 0);
}

#[test]
fn an_agent_that_was_away_stamps_only_when_it_knows_what_others_took() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.segment.adopt(address, 1, lab.now);
    lab.want(&[address], &[OWN, OTHER]);
    lab.turn();
    assert!(!lab.segment.may_stamp(), "it has just started");
    lab.pass(200);
    assert!(lab.segment.may_stamp());
    // Within the grace nobody takes anything.
    lab.now += GRACE - milliseconds(200);
    lab.turn();
    assert!(lab.segment.may_stamp());
    lab.now += GRACE;
    let actions = lab.turn();
    assert!(!lab.segment.may_stamp());
    lab.other(OTHER).bids = vec![(address, 2)];
    lab.answer(actions);
    let actions = lab.turn();
    assert!(!lab.segment.may_stamp(), "the table of the other one is missing");
    lab.answer(actions);
    assert!(lab.turn().contains(&Action::Close(address)));
    // Nobody answers: it goes on.
    let mut lab = Lab::new();
    lab.segment.adopt(address, 1, lab.now);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(400);
    assert!(!lab.segment.may_stamp());
    lab.pass(200);
    assert!(lab.segment.may_stamp());
}

#[test]
fn probes_of_many_addresses_are_spread() {
    let many: Vec<IpAddr> =
        (0..1000u16).map(|number| IpAddr::from([10, 0, (number >> 8) as u8, number as u8])).collect();
    let mut lab = Lab::new();
    lab.want(&many, &[OWN]);
    lab.pass(3000);
    let done = lab.done();
    let probes = done.iter().filter(|(_, action)| matches!(action, Action::Probe(_)));
    let mut slots = BTreeMap::<u64, usize>::new();
    probes.for_each(|(time, _)| *slots.entry(time / 50).or_default() += 1);
    assert_eq!(slots.values().sum::<usize>(), 3000);
    assert!(slots.values().all(|count| *count <= 100), "{slots:?}");
    assert_eq!(done.iter().filter(|(_, action)| matches!(action, Action::Open { .. })).count(), 1000);
}

/// Time is measured generously: a cost by the square of the number would be far beyond it.
#[test]
fn ten_thousand_addresses_of_32_nodes_cost_little() {
    let nodes: Vec<NodeId> = (1..=32).collect();
    let all: Vec<IpAddr> =
        (0..10_000u32).map(|number| IpAddr::from((0x0a00_0000 + number).to_be_bytes())).collect();
    let mut lab = Lab::new();
    for node in 2..=32 {
        let its: Vec<(IpAddr, u64)> =
            all.iter().skip(node as usize - 2).step_by(31).map(|address| (*address, 1)).collect();
        lab = lab.with(node, &its);
    }
    lab.want(&all, &nodes);
    lab.pass(3000);
    assert_eq!(lab.done().iter().filter(|(_, action)| matches!(action, Action::Open { .. })).count(), 0);
    let begin = Instant::now();
    lab.pass(10_000);
    let at_rest = begin.elapsed();
    // All others go at once.
    lab.others.values_mut().for_each(|other| (other.answers, other.replies) = (false, false));
    let begin = Instant::now();
    lab.pass(1000);
    let take_over = begin.elapsed();
    assert_eq!(lab.opened().len(), 10_000);
    assert!(
        at_rest < Duration::from_secs(2) && take_over < Duration::from_secs(10),
        "{at_rest:?} {take_over:?}"
    );
}
