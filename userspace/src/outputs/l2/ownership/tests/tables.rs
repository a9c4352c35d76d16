use std::net::IpAddr;

use super::lab::{GRACE, Lab, OTHER, OWN, THIRD, addresses, bids, milliseconds};
use crate::outputs::l2::ownership::{Action, Answer, Frame, Rules, Standing};

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
fn a_node_that_leaves_closes_everything_and_says_so() {
    let held: Vec<IpAddr> = addresses(OWN, OTHER).take(2).collect();
    let mut lab = Lab::new();
    lab.want(&held, &[OWN]);
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 2);
    lab.segment.release(lab.now);
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
    lab.segment.follow(Rules { grace: GRACE, rebalance: None, withdraws: false });
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
    assert_eq!(lab.done(), [], "who is no candidate asks, and bids for nothing");
}

#[test]
fn a_request_that_crossed_the_table_is_not_answered() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new();
    lab.want(&[address], &[OWN]);
    lab.pass(1155);
    assert_ne!(lab.segment.digest(), 0, "the table was sent 5 ms ago");
    lab.done();
    lab.segment.resend(OTHER, lab.now);
    lab.pass(10);
    assert_eq!(lab.done(), []);
    lab.segment.resend(OTHER, lab.now);
    lab.pass(10);
    assert_eq!(lab.done(), [(1165, bids(102, &[(address, 1)]))]);
}

/// Tables are authentic, but whether they are fresh is not known.
#[test]
fn a_replayed_table_of_another_boot_changes_nothing() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    let standing = |lab: &Lab| lab.segment.standing(&address);
    for bids in [vec![], vec![(address, 99)]] {
        lab.segment.table(OTHER, 21, 1_000_000, bids, lab.now);
        assert_eq!(standing(&lab), Standing::Elsewhere { node: OTHER, epoch: 4 });
    }
    // Nor does it make the node deaf to later ones.
    lab.send(OTHER, &[(address, 6)]);
    assert_eq!(standing(&lab), Standing::Elsewhere { node: OTHER, epoch: 6 });
    lab.pass(2000);
    assert_eq!(standing(&lab), Standing::Elsewhere { node: OTHER, epoch: 6 });
    assert!(lab.opened().is_empty());
}

#[test]
fn a_table_counts_only_after_an_answer_has_shown_its_boot_and_digest() {
    let address = addresses(OWN, OTHER).next().unwrap();
    // It overtook the answer, or it is not the present one, or of another boot: that is requested.
    for (boot, epoch, requests) in [(20, 4, 0), (20, 9, 1), (21, 4, 1)] {
        let mut lab = Lab::new().with(OTHER, &[(address, 4)]);
        lab.want(&[address], &[OWN, OTHER]);
        lab.segment.table(OTHER, boot, 1, vec![(address, epoch)], lab.now);
        assert!(matches!(lab.segment.standing(&address), Standing::Nobody { .. }));
        lab.pass(100);
        assert_eq!(lab.segment.standing(&address), Standing::Elsewhere { node: OTHER, epoch: 4 });
        let requested = |(_, action): &(u64, Action)| *action == Action::Send(Frame::Resend { to: OTHER });
        assert_eq!(lab.done().iter().filter(|done| requested(done)).count(), requests);
    }
}

#[test]
fn an_answer_with_the_boot_before_changes_it_back() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    let before = lab.others[&OTHER].clone();
    (lab.other(OTHER).boot, lab.other(OTHER).bids) = (21, Vec::new());
    lab.pass(100);
    assert!(matches!(lab.segment.standing(&address), Standing::Nobody { .. }));
    *lab.other(OTHER) = before;
    lab.pass(700);
    assert_eq!(lab.segment.standing(&address), Standing::Elsewhere { node: OTHER, epoch: 4 });
    assert!(lab.opened().is_empty());
}

/// Two devices of a node are on the segment, and both answer.
#[test]
fn of_two_boots_that_answer_one_heartbeat_the_first_counts() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    for _ in 0..30 {
        lab.now = lab.segment.due();
        let actions = lab.turn();
        lab.answer(actions.clone());
        for action in actions {
            let Action::Send(Frame::Ask { nonce }) = action else { continue };
            let (stamp_age, link) = (milliseconds(0), [2, 0, 0, 0, 1, 2]);
            let second = Answer { from: OTHER, link, nonce, boot: 21, stamp_age, digest: 77 };
            lab.segment.answered(&second, lab.now);
        }
        assert_eq!(lab.segment.standing(&address), Standing::Elsewhere { node: OTHER, epoch: 4 });
    }
    lab.send(OTHER, &[(address, 6)]);
    assert_eq!(lab.segment.standing(&address), Standing::Elsewhere { node: OTHER, epoch: 6 });
    assert!(lab.opened().is_empty());
}

#[test]
fn a_request_is_answered_at_once_though_the_table_was_just_sent_to_another_node() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::held_by_other(&[address]);
    lab.done();
    let start = lab.now;
    for (node, wait) in [(OTHER, 20), (THIRD, 20), (THIRD, 600)] {
        lab.segment.resend(node, lab.now);
        lab.pass(wait);
    }
    let start = (start - lab.start).as_millis() as u64;
    let sent = |(time, action): (u64, Action)| (action == bids(101, &[])).then_some(time - start);
    let times: Vec<u64> = lab.done().into_iter().filter_map(sent).collect();
    assert_eq!(times, [0, 20, 520]);
}
