use std::net::IpAddr;
use std::time::Duration;

use super::lab::{GRACE, Lab, OTHER, OWN, addresses, bids, link, milliseconds};
use crate::outputs::l2::ownership::precedence::digest;
use crate::outputs::l2::ownership::{Action, Answer, STOPPED, Standing};

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
    assert_eq!(times, [1180, 1180]);
}

/// It knows of no other candidate, or another grace than this node: two would answer.
#[test]
fn what_a_node_without_agent_answers_for_though_its_gate_is_closed_is_not_taken() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(1).collect();
    let mut lab = Lab::held_by_other(&held);
    lab.other(OTHER).stamp_age = GRACE + milliseconds(1);
    lab.other(OTHER).is_ungated = true;
    lab.pass(10_000);
    assert!(lab.opened().is_empty());
    lab.other(OTHER).is_ungated = false;
    lab.pass(2_000);
    assert_eq!(lab.opened().len(), 1);
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
        let tables = [0, held.iter().fold(0, |sum, address| digest(address, 5).wrapping_add(sum))];
        assert!(
            !tables.contains(&lab.segment.digest()),
            "it is not in the table, and others do not rely on that"
        );
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
    let table = held.iter().fold(0, |sum, address| digest(address, 5).wrapping_add(sum));
    assert_eq!(lab.segment.digest(), table);
}

/// As one that doubts what it answers for, or whose last table was lost.
#[test]
fn where_an_agent_stopped_whose_table_is_not_known_its_node_is_probed_for_what_is_held_here() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(1500);
    assert_eq!(lab.opened().len(), 1);
    (lab.other(OTHER).bids, lab.other(OTHER).stamp_age) = (vec![(address, 2)], STOPPED);
    lab.pass(200);
    assert!(!matches!(lab.segment.standing(&address), Standing::Here { .. }), "its kernel answers for it");
    // Once each time that it stops.
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(1500);
    lab.other(OTHER).version = 0;
    for stops in 1..4 {
        lab.done();
        lab.other(OTHER).bids = vec![(addresses(OTHER, OWN).next().unwrap(), stops)];
        lab.other(OTHER).stamp_age = STOPPED;
        lab.pass(1000);
        lab.other(OTHER).stamp_age = milliseconds(0);
        lab.pass(1000);
        let probes = lab.done().into_iter().filter(|(_, action)| *action == Action::Probe(address));
        assert_eq!(probes.count(), 1, "{stops}");
    }
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
fn a_node_that_is_back_without_its_agent_keeps_what_it_answers_for() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let taken = || {
        let mut lab = Lab::held_by_other(&held);
        (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
        lab.pass(2000);
        assert_eq!(lab.opened().len(), 2);
        (lab.other(OTHER).answers, lab.other(OTHER).replies) = (true, true);
        lab
    };
    // Its agent lives, and gives them up.
    let mut lab = taken();
    lab.pass(100);
    assert!(matches!(lab.segment.standing(&held[0]), Standing::Here { .. }));
    // Its agent is dead.
    let mut lab = taken();
    lab.other(OTHER).stamp_age = milliseconds(1500);
    lab.pass(200);
    assert_eq!(lab.segment.standing(&held[0]), Standing::Elsewhere { node: OTHER, epoch: 4 });
    lab.other(OTHER).stamp_age = GRACE + milliseconds(1);
    lab.pass(1500);
    assert!(matches!(lab.segment.standing(&held[0]), Standing::Here { .. }), "its gate is closed");
    // And nobody knows what it answers for: probes show it.
    let mut lab = taken();
    lab.other(OTHER).stamp_age = milliseconds(1500);
    (lab.other(OTHER).bids, lab.other(OTHER).version) = (vec![(held[0], 9)], 0);
    lab.pass(200);
    assert!(!matches!(lab.segment.standing(&held[0]), Standing::Here { .. }));
    assert!(matches!(lab.segment.standing(&held[1]), Standing::Here { .. }));
}

#[test]
fn a_bid_is_withdrawn_where_the_holder_lives_after_all() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::held_by_other(&held);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(660);
    assert_ne!(lab.segment.digest(), 0, "it has bid");
    lab.segment.claimed(held[0], link(OTHER), lab.now);
    lab.other(OTHER).answers = true;
    lab.pass(2000);
    assert!(lab.opened().is_empty());
    assert_eq!(lab.segment.digest(), 0);
}

/// It would know by its own next heartbeat, which may be late.
#[test]
fn a_node_that_is_back_is_sent_at_once_what_was_taken_from_it() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::held_by_other(&held);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 2);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (true, true);
    lab.pass(100);
    let done: Vec<Action> = lab.done().into_iter().map(|(_, action)| action).collect();
    let open = |address| Action::Open { address, epoch: 5 };
    assert_eq!(done, [open(held[0]), open(held[1]), bids(102, &[(held[0], 5), (held[1], 5)])]);
    lab.pass(1000);
    assert_eq!(lab.done(), [], "once");
}

#[test]
fn what_is_held_is_probed_where_a_node_without_an_agent_is_met_for_the_first_time() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[(address, 2)]);
    lab.other(OTHER).stamp_age = milliseconds(1000);
    lab.segment.adopt(address, 1, lab.now);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(100);
    assert!(matches!(lab.segment.standing(&address), Standing::Nobody { .. }));
    lab.pass(3000);
    assert!(lab.opened().is_empty(), "it goes on answering");
    // Its gate closes.
    (lab.other(OTHER).stamp_age, lab.other(OTHER).replies) = (GRACE + milliseconds(1), false);
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 1);
}
