use std::net::IpAddr;

use super::lab::{GRACE, Lab, OTHER, OWN, THIRD, addresses, link, milliseconds};
use crate::outputs::l2::ownership::{Action, Frame, NodeId, Previous};

fn address() -> IpAddr {
    addresses(OWN, OTHER).next().unwrap()
}

fn previous(lab: &Lab) -> Option<Previous> {
    lab.segment.previous(&address(), lab.now)
}

/// It lives with its agent, or not.
fn of(node: NodeId, is_alive: bool) -> Option<Previous> {
    Some(Previous { node, link: link(node), is_alive, is_attended: is_alive })
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

/// It may have missed which backend is whose.
#[test]
fn who_lost_an_address_by_its_gate_is_not_attended_also_once_its_agent_is_back() {
    let mut lab = Lab::held_by_other(&[address()]);
    lab.other(OTHER).stamp_age = GRACE + milliseconds(500);
    lab.pass(1900);
    lab.other(OTHER).stamp_age = milliseconds(0);
    let unattended = Some(Previous { is_attended: false, ..of(OTHER, true).unwrap() });
    if previous(&lab).is_none() {
        panic!("it has not bid: {:?}", lab.done());
    }
    lab.pass(500);
    assert_eq!(previous(&lab), unattended);
}

#[test]
fn who_released_an_address_is_attended_while_its_agent_lives() {
    let mut lab = Lab::held_by_other(&[address()]);
    lab.send(OTHER, &[]);
    lab.other(OTHER).stamp_age = milliseconds(1500);
    lab.pass(500);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(previous(&lab), Some(Previous { is_attended: false, ..of(OTHER, true).unwrap() }));
    lab.other(OTHER).stamp_age = milliseconds(100);
    lab.pass(500);
    assert_eq!(previous(&lab), of(OTHER, true));
}

/// The header of a frame is not signed.
#[test]
fn the_link_address_is_what_the_nodes_table_says() {
    let mut lab = Lab::held_by_other(&[address()]);
    lab.segment.says_link(OTHER, link(THIRD));
    lab.send(OTHER, &[]);
    lab.pass(500);
    assert_eq!(lab.opened().len(), 1);
    assert_eq!(previous(&lab), Some(Previous { link: link(THIRD), ..of(OTHER, true).unwrap() }));
}

/// Connections are open there, or at an owner before.
#[test]
fn who_may_announce_nothing_any_more_goes_on_asking_unless_another_device_does() {
    let asks = |lab: &mut Lab| {
        lab.pass(300);
        lab.done.clear();
        lab.pass(1_000);
        let all = std::mem::take(&mut lab.done).into_iter();
        all.filter(|(_, action)| matches!(action, Action::Send(Frame::Ask { .. }))).count()
    };
    let mut lab = Lab::held_by_other(&[address()]);
    assert!(lab.segment.is_candidate());
    lab.want(&[address()], &[OTHER]);
    assert!(!lab.segment.is_candidate() && asks(&mut lab) >= 9);
    lab.segment.mute(true);
    assert_eq!(asks(&mut lab), 0);
    lab.want(&[address()], &[OWN, OTHER]);
    lab.turn();
    assert!(lab.segment.is_candidate() && asks(&mut lab) >= 9);
    lab.segment.release(lab.now);
    assert_eq!(asks(&mut lab), 0);
}
