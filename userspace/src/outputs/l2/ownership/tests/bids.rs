use std::net::IpAddr;
use std::time::Duration;

use common::maps::segment::TAKEN_NS;

use super::lab::{GRACE, Lab, OTHER, OWN, THIRD, addresses, bids, milliseconds};
use crate::outputs::l2::ownership::precedence::{digest, weight};
use crate::outputs::l2::ownership::{Action, NodeId, Standing};

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

/// Preference goes before the order of the address, and says nothing of who is no candidate or has bid.
#[test]
fn the_preferred_candidate_bids_first_and_a_higher_claim_wins_all_the_same() {
    let first = |other: &[(NodeId, u32)], address: IpAddr| {
        let mut lab = Lab::new().with(OTHER, &[]);
        lab.prefer(&[address], other);
        lab.pass(4000);
        lab.opened()
    };
    let (ours, theirs) = (addresses(OWN, OTHER).next().unwrap(), addresses(OTHER, OWN).next().unwrap());
    assert_eq!(first(&[(OWN, 0), (OTHER, 1)], ours), [(2180, ours, 1)], "the other one bids first");
    assert_eq!(first(&[(OWN, 1), (OTHER, 0)], theirs), [(1180, theirs, 1)], "this one does");
    assert_eq!(first(&[(OWN, 7), (OTHER, 7)], theirs), [(2180, theirs, 1)], "equals");
    assert_eq!(first(&[(OWN, 0), (THIRD, 9)], theirs), [(1180, theirs, 1)], "that one is not there");
    // Both have bid by one epoch.
    for (address, is_kept) in [(ours, true), (theirs, false)] {
        for preference in [0, 9] {
            let mut lab = Lab::new().with(OTHER, &[]);
            lab.prefer(&[address], &[(OWN, 5), (OTHER, preference)]);
            lab.pass(3000);
            lab.send(OTHER, &[(address, 1)]);
            lab.pass(500);
            let is_here = matches!(lab.segment.standing(&address), Standing::Here { .. });
            assert_eq!(is_here, is_kept, "{address}, {preference}");
        }
    }
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
    lab.pass(510);
    lab.other(THIRD).bids = vec![(address, 5)];
    (lab.other(THIRD).version, lab.other(THIRD).replies) = (0, false);
    lab.send(OTHER, &[]);
    lab.pass(1000);
    assert!(lab.opened().is_empty());
}

#[test]
fn a_bid_before_a_late_turn_is_withdrawn_for_others_may_have_bid_meanwhile() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(1160);
    assert_ne!(lab.segment.digest(), 0, "it has bid");
    lab.now += milliseconds(500);
    lab.turn();
    assert_eq!((lab.segment.digest(), lab.opened().len()), (0, 0));
    lab.pass(1000);
    assert_eq!(lab.opened().len(), 1);
}

/// A gate that has just closed opens again if this node is not there for long enough.
#[test]
fn what_a_node_without_an_agent_may_hold_is_probed_until_its_gate_stays_closed() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[(address, 4)]);
    (lab.other(OTHER).stamp_age, lab.other(OTHER).replies) = (GRACE + milliseconds(1), false);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(4000);
    let done = lab.done();
    let probes = done.iter().filter(|(_, action)| matches!(action, Action::Probe(_)));
    let opens = done.iter().filter(|(_, action)| matches!(action, Action::Open { .. }));
    let times: Vec<u64> = probes.chain(opens).map(|(time, _)| *time).collect();
    let time = Duration::from_millis(times[times.len() - 1] - times[0]);
    assert!(times.len() == 11 && time > Duration::from_nanos(TAKEN_NS), "{times:?}");
}
