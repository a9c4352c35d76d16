use std::time::{Duration, Instant};

use super::lab::{GRACE, Lab, OTHER, OWN, THIRD, addresses, link, milliseconds};
use crate::outputs::l2::ownership::{Action, Member, Rules, Standing};
use crate::outputs::l2::why::Why;

/// Since when, in milliseconds after the start, and why.
fn since(lab: &Lab, address: &std::net::IpAddr) -> Option<(u64, Why)> {
    let at = |at: Instant| at.duration_since(lab.start).as_millis() as u64;
    lab.segment.known(address).since.map(|(time, why)| (at(time), why))
}

#[test]
fn why_a_node_took_an_address_is_known() {
    let free = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[free], &[OWN, OTHER]);
    assert_eq!(since(&lab, &free), Some((0, Why::Free)), "it waits since then");
    lab.pass(2000);
    assert_eq!(since(&lab, &free), Some((1180, Why::Free)));
    let known = lab.segment.known(&free);
    assert_eq!((known.claims.as_slice(), known.candidates), ([(OWN, 1)].as_slice(), 2));

    // Its owner is off.
    let held: Vec<_> = addresses(OWN, OTHER).take(1).collect();
    let mut lab = Lab::held_by_other(&held);
    assert_eq!(since(&lab, &held[0]).unwrap().1, Why::Found);
    assert_eq!(lab.segment.known(&held[0]).claims, [(OTHER, 4)]);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(2000);
    assert_eq!(since(&lab, &held[0]).unwrap().1, Why::OwnerSilent);
    // It is back, and the higher epoch is this node's.
    assert_eq!(lab.segment.known(&held[0]).claims, [(OWN, 5), (OTHER, 4)]);

    // Its agent is dead for longer than its grace.
    let mut lab = Lab::held_by_other(&held);
    lab.other(OTHER).stamp_age = GRACE + milliseconds(1);
    lab.pass(3000);
    assert_eq!(since(&lab, &held[0]).unwrap().1, Why::AgentDead);

    // It leaves it: to this node, or because it may announce it no more.
    for (nodes, why) in [(&[OWN, OTHER][..], Why::HandedOver), (&[OWN], Why::Released)] {
        let mut lab = Lab::held_by_other(&held);
        lab.want(&held, nodes);
        lab.send(OTHER, &[]);
        lab.pass(1000);
        assert_eq!(since(&lab, &held[0]).unwrap().1, why);
    }
}

#[test]
fn why_a_node_lost_an_address_and_who_took_another_is_known() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]).with(THIRD, &[]);
    lab.want(&[address], &[OWN, OTHER, THIRD]);
    lab.pass(2500);
    lab.send(OTHER, &[(address, 9)]);
    assert_eq!(since(&lab, &address), Some((2500, Why::HigherEpoch)));
    lab.pass(1000);
    // A third one has a higher claim.
    lab.send(THIRD, &[(address, 10)]);
    assert_eq!(since(&lab, &address), Some((3500, Why::HigherEpoch)));
    assert_eq!(lab.segment.standing(&address), Standing::Elsewhere { node: THIRD, epoch: 10 });

    // It may not announce it any more.
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(2500);
    lab.want(&[address], &[OTHER]);
    assert_eq!(since(&lab, &address), Some((2500, Why::NoCandidate)));

    // Another one takes what was left to it.
    let first = addresses(OTHER, OWN).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[first], &[OWN]);
    lab.segment.follow(Rules { grace: GRACE, rebalance: Some(Duration::from_secs(5)), withdraws: false });
    lab.pass(3000);
    lab.want(&[first], &[OWN, OTHER]);
    let is_close = |(_, action): &(Duration, Action)| *action == Action::Close(first);
    while !lab.done.iter().any(is_close) {
        lab.pass(10);
        assert!(lab.now < lab.start + Duration::from_secs(60), "it is never moved");
    }
    assert_eq!(since(&lab, &first).unwrap().1, Why::Rebalance);
    lab.send(OTHER, &[(first, 2)]);
    assert_eq!(since(&lab, &first).unwrap().1, Why::HandedOver);

    // It is cut off.
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.segment.follow(Rules { grace: GRACE, rebalance: None, withdraws: true });
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(2500);
    lab.segment.isolated(true, lab.now);
    lab.segment.withdraw(lab.now);
    assert_eq!(since(&lab, &address), Some((2500, Why::Isolated)));
}

#[test]
fn silent_candidates_are_named() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER, THIRD]);
    lab.pass(3000);
    let others = |lab: &Lab| lab.segment.others(lab.now).collect::<Vec<_>>();
    let seconds = Duration::from_secs;
    let known = |silent, is_closed| Member { node: OTHER, link: Some(link(OTHER)), silent, is_closed };
    let never = |silent| Member { node: THIRD, link: None, silent, is_closed: false };
    assert_eq!(others(&lab), [known(Duration::ZERO, false), never(seconds(3))]);
    lab.other(OTHER).stamp_age = GRACE + milliseconds(1);
    lab.pass(1000);
    assert_eq!(others(&lab), [known(Duration::ZERO, true), never(seconds(4))]);
    (lab.other(OTHER).answers, lab.other(OTHER).replies) = (false, false);
    lab.pass(20_000);
    assert!(others(&lab)[0].silent >= seconds(19), "{:?}", others(&lab));
}

#[test]
fn a_foreign_host_that_answers_for_what_this_node_announces_is_named_until_it_is_silent() {
    const FOREIGN: [u8; 6] = [9; 6];
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(2000);
    let foreign = |lab: &Lab| lab.segment.known(&address).foreign;
    let probes = |lab: &mut Lab| {
        lab.done().into_iter().filter(|(_, action)| *action == Action::Probe(address)).count()
    };
    probes(&mut lab);
    // Once, as one does whose address this node has taken: it is asked.
    lab.segment.claimed(address, FOREIGN, lab.now);
    lab.pass(200);
    assert_eq!((foreign(&lab), probes(&mut lab)), (None, 1));
    // It answers, and is asked on.
    for _ in 0..5 {
        lab.segment.claimed(address, FOREIGN, lab.now);
        assert_eq!(foreign(&lab), Some(FOREIGN));
        lab.pass(5000);
        assert_eq!(probes(&mut lab), 1);
    }
    assert!(
        matches!(lab.segment.standing(&address), Standing::Here { .. }),
        "it is answered for all the same"
    );
    // It answers no more.
    lab.pass(12_000);
    assert_eq!(foreign(&lab), None);
    probes(&mut lab);
    lab.pass(20_000);
    assert_eq!(probes(&mut lab), 0);
    // A node of the cluster, by the link address of its heartbeats, is none.
    for _ in 0..3 {
        lab.segment.claimed(address, link(OTHER), lab.now);
        lab.pass(1000);
    }
    assert_eq!((foreign(&lab), probes(&mut lab)), (None, 0));
}

/// A pair of routers that both answer for everything: each answer replaced the other's, was none to a question, and was asked about at
/// once, for ever.
#[test]
fn two_foreign_hosts_are_one_conflict_and_asked_about_no_more_often() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(2000);
    lab.done();
    let mut probes = 0;
    for _ in 0..10 {
        for link in [[9; 6], [8; 6]] {
            lab.segment.claimed(address, link, lab.now);
        }
        lab.pass(1000);
        probes += lab.done().into_iter().filter(|(_, action)| *action == Action::Probe(address)).count();
    }
    assert_eq!(lab.segment.known(&address).foreign, Some([8; 6]), "always the same");
    assert!((2..=3).contains(&probes), "{probes} within ten seconds");
}

/// It was named in its first second, as silent since this node began to listen.
#[test]
fn a_node_that_joins_is_silent_since_then() {
    let address = addresses(OWN, OTHER).next().unwrap();
    let mut lab = Lab::new().with(OTHER, &[]);
    lab.want(&[address], &[OWN, OTHER]);
    lab.pass(90_000);
    lab.want(&[address], &[OWN, OTHER, THIRD]);
    lab.pass(1000);
    let silent = |lab: &Lab| lab.segment.others(lab.now).find(|member| member.node == THIRD).unwrap().silent;
    assert_eq!(silent(&lab), Duration::from_secs(1));
    lab.want(&[address], &[OWN, THIRD]);
    lab.pass(1000);
    assert_eq!(silent(&lab), Duration::from_secs(2), "as long as it is a candidate");
}
