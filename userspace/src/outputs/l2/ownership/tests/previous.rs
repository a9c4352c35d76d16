use std::net::IpAddr;

use super::lab::{Lab, OTHER, OWN, THIRD, addresses, link, milliseconds};
use crate::outputs::l2::ownership::{NodeId, Previous};

fn address() -> IpAddr {
    addresses(OWN, OTHER).next().unwrap()
}

fn previous(lab: &Lab) -> Option<Previous> {
    lab.segment.previous(&address(), lab.now)
}

fn of(node: NodeId, is_alive: bool) -> Option<Previous> {
    Some(Previous { node, link: link(node), is_alive })
}

#[test]
fn who_released_an_address_had_it_before() {
    let mut lab = Lab::held_by_other(&[address()]);
    assert_eq!(previous(&lab), None, "it is another's");
    lab.send(OTHER, &[]);
    lab.pass(200);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(previous(&lab), of(OTHER, true));
    // It leaves the segment.
    lab.other(OTHER).answers = false;
    lab.pass(2000);
    assert_eq!(previous(&lab), of(OTHER, false));
}

#[test]
fn who_is_gone_had_it_before_and_may_return() {
    let mut lab = Lab::held_by_other(&[address()]);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(previous(&lab), of(OTHER, false));
    // With what it held, by the epoch before: this node has the higher one.
    lab.other(OTHER).answers = true;
    lab.pass(500);
    assert_eq!(previous(&lab), of(OTHER, true));
}

#[test]
fn nobody_had_a_free_address_before_nor_one_that_this_node_takes_back() {
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address()], &[OWN, OTHER]);
    lab.pass(2000);
    assert_eq!((lab.opened().len(), previous(&lab)), (1, None));
    let mut lab = Lab::held_by_other(&[address()]);
    lab.send(OTHER, &[]);
    lab.pass(200);
    assert_eq!((lab.opened().len(), previous(&lab)), (1, of(OTHER, true)));
    lab.want(&[address()], &[OTHER]);
    lab.pass(200);
    lab.want(&[address()], &[OWN, OTHER]);
    lab.pass(2000);
    assert_eq!((lab.opened().len(), previous(&lab)), (1, None));
}

/// Of several, the one by the epoch before: connections that were open at one before that are lost.
#[test]
fn the_last_owner_had_it_before_whatever_older_tables_say() {
    let mut lab = Lab::held_by_other(&[address()]).with(THIRD, &[]);
    lab.want(&[address()], &[OWN, OTHER, THIRD]);
    lab.pass(500);
    lab.send(THIRD, &[(address(), 5)]);
    lab.pass(500);
    // The first one says again what it held.
    for bids in [&[][..], &[(address(), 4)], &[]] {
        lab.send(OTHER, bids);
        lab.pass(500);
    }
    lab.send(THIRD, &[]);
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(previous(&lab), of(THIRD, true));
}

/// A bid that is withdrawn before it is opened is nobody's turn.
#[test]
fn who_bids_again_knows_the_owner_before_its_first_bid() {
    let mut lab = Lab::held_by_other(&[address()]);
    lab.send(OTHER, &[]);
    lab.pass(20);
    assert_ne!(lab.segment.digest(), 0, "it has bid");
    lab.now += milliseconds(500);
    lab.turn();
    assert_eq!((lab.segment.digest(), lab.opened().len()), (0, 0));
    lab.pass(2000);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(previous(&lab), of(OTHER, true));
}

/// What an earlier agent took over is in the map of the programs.
#[test]
fn nothing_is_known_of_who_had_what_is_adopted() {
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address()], &[OWN, OTHER]);
    lab.segment.adopt(address(), 9, lab.now);
    lab.pass(2000);
    assert_eq!(previous(&lab), None);
}
