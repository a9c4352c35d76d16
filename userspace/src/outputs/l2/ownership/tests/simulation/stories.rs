use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::lan::Lan;
use super::node::Wanted;
use super::{Flaw, address, laws};
use crate::outputs::l2::ownership::Candidate;

const ADDRESSES: usize = 9;

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

fn all_wanted(lan: &Lan) -> Wanted {
    let all: Arc<[Candidate]> = lan.nodes.iter().map(|node| node.id.into()).collect();
    (1..=ADDRESSES).map(|number| (address(number), Arc::clone(&all))).collect()
}

/// A segment on which each address is answered by one node.
fn settled(seed: u64, nodes: usize, grace: f64, flaw: Option<Flaw>) -> Lan {
    let mut lan = Lan::new(seed, nodes, seconds(grace));
    lan.flaw = flaw;
    let wanted = all_wanted(&lan);
    for node in 0..nodes {
        lan.follow(node, wanted.clone());
        lan.start(node);
    }
    lan.pass(seconds(2.5));
    laws::settled(&lan).unwrap();
    lan.laws.moves = 0;
    lan
}

fn holders(lan: &Lan) -> BTreeMap<usize, Vec<usize>> {
    (1..=ADDRESSES).map(|number| (number, lan.answering(&address(number)))).collect()
}

/// Returns whether each address is answered all the time by one node, while time passes in small steps.
fn answers_throughout(lan: &mut Lan, time: f64) -> bool {
    let end = lan.now + seconds(time);
    let mut is_whole = true;
    while lan.now < end {
        lan.pass(seconds(0.005));
        is_whole &= holders(lan).values().all(|nodes| nodes.len() == 1);
    }
    is_whole && lan.laws.breach.is_none()
}

/// Whether a killed agent that returns within the grace moves nothing.
fn kill_moves_nothing(seed: u64, flaw: Option<Flaw>) -> bool {
    let mut lan = settled(seed, 3, 2.0, flaw);
    let before = holders(&lan);
    let mut is_whole = true;
    for node in 0..3 {
        lan.kill(node);
        is_whole &= answers_throughout(&mut lan, 1.8);
        lan.start(node);
        is_whole &= answers_throughout(&mut lan, 3.0);
    }
    is_whole && holders(&lan) == before && lan.laws.moves == 0
}

#[test]
fn a_killed_agent_that_returns_within_the_grace_moves_nothing() {
    for seed in 0..5 {
        assert!(kill_moves_nothing(seed, None), "seed {seed}");
    }
    assert!(!kill_moves_nothing(0, Some(Flaw::AdoptsNothing)));
}

fn all_agents_dead(seed: u64, flaw: Option<Flaw>) -> bool {
    let mut lan = settled(seed, 3, 2.0, flaw);
    let before = holders(&lan);
    (0..3).for_each(|node| lan.kill(node));
    for _ in 0..60 {
        lan.pass(seconds(60.0));
        if holders(&lan) != before {
            return false;
        }
    }
    // Those who return together ask each other before they go on.
    (0..3).for_each(|node| lan.start(node));
    lan.pass(seconds(0.08));
    answers_throughout(&mut lan, 5.0) && holders(&lan) == before
}

#[test]
fn all_agents_dead_for_an_hour_stop_nothing() {
    assert!(all_agents_dead(1, None));
    assert!(!all_agents_dead(1, Some(Flaw::GateClosesAlone)));
}

#[test]
fn what_a_node_held_that_is_off_is_answered_within_a_second() {
    for seed in 0..40 {
        let nodes = 2 + (seed % 3) as usize;
        let mut lan = settled(seed, nodes, 15.0, None);
        let time = lan.dice.between(Duration::ZERO, seconds(0.2));
        lan.pass(time);
        // Also where no other host sends anything.
        lan.network.has_chatter = seed % 2 == 0;
        lan.turn_off(nodes - 1);
        lan.pass(seconds(0.8));
        assert!(holders(&lan).values().all(|nodes| nodes.len() == 1), "seed {seed}: {:?}", holders(&lan));
        lan.pass(seconds(3.0));
        // Its addresses are spread, and nothing moves when it returns.
        let before = holders(&lan);
        lan.turn_on(nodes - 1);
        lan.start(nodes - 1);
        lan.pass(seconds(5.0));
        assert_eq!((holders(&lan), &lan.laws.breach), (before, &None), "seed {seed}");
    }
}

/// A stopped agent keeps its addresses within the grace, and loses them a second after it.
#[test]
fn a_stopped_agent_loses_its_addresses_only_after_the_grace() {
    for (time, keeps) in [(0.5, true), (1.5, true), (1.95, true), (3.4, false), (20.0, false)] {
        for seed in 0..5 {
            let mut lan = settled(seed, 3, 2.0, None);
            let before = holders(&lan);
            lan.pause(1);
            lan.pass(seconds(time));
            lan.resume(1);
            lan.pass(seconds(3.0));
            laws::settled(&lan).unwrap();
            assert_eq!(holders(&lan) == before, keeps, "{time} s, seed {seed}");
            assert_eq!(lan.laws.breach, None);
            assert!(lan.laws.double < seconds(0.13), "{:?}", lan.laws.double);
        }
    }
}

/// Frames of this protocol alone are lost: the hosts still answer probes.
#[test]
fn blocked_heartbeats_move_nothing() {
    for both in [false, true] {
        for seed in 0..5 {
            let mut lan = settled(seed, 2, 2.0, None);
            let before = holders(&lan);
            (lan.network.deaf[0][1], lan.network.deaf[1][0]) = (true, both);
            assert!(answers_throughout(&mut lan, 20.0), "seed {seed}");
            assert_eq!((holders(&lan), lan.laws.double), (before, Duration::ZERO));
        }
    }
    let mut lan = settled(0, 2, 2.0, Some(Flaw::NoVeto));
    (lan.network.deaf[0][1], lan.network.deaf[1][0]) = (true, true);
    assert!(!answers_throughout(&mut lan, 20.0));
}

/// A node that is cut off holds what it has, and gives it up within a heartbeat after it is back. What the others hold stays.
#[test]
fn a_node_that_was_cut_off_gives_up_what_others_took() {
    for seed in 0..10 {
        let mut lan = settled(seed, 3, 2.0, None);
        let before = holders(&lan);
        lan.network.divide(|node| usize::from(node == 2));
        lan.pass(seconds(4.0));
        lan.network.heal();
        lan.pass(seconds(0.13));
        laws::settled(&lan).unwrap();
        let after = holders(&lan);
        let stays = |number: &usize| before[number] == [2] || before[number] == after[number];
        assert!(before.keys().all(stays), "seed {seed}: {before:?} {after:?}\n{}", lan.log.join("\n"));
        assert!(after.values().all(|nodes| *nodes != [2]), "seed {seed}");
        assert_eq!(lan.laws.breach, None);
    }
}

/// Where the rules have it so, it gives them up while it is cut off: nobody answers beside those who took them when it is back.
#[test]
fn a_node_that_was_cut_off_and_withdrew_never_answers_beside_another() {
    for seed in 0..10 {
        let mut lan = settled(seed, 3, 2.0, None);
        lan.rules.withdraws = true;
        let own = address(ADDRESSES + 1);
        let mut wanted = lan.nodes[2].wanted.clone();
        wanted.insert(own, Arc::new([lan.nodes[2].id.into()]));
        for node in 0..3 {
            lan.kill(node);
            lan.start(node);
            lan.follow(node, wanted.clone());
        }
        lan.pass(seconds(2.5));
        let before = holders(&lan);
        lan.network.divide(|node| usize::from(node == 2));
        lan.pass(seconds(1.2));
        assert!(
            lan.nodes[2].kernel.announced.keys().eq([&own]),
            "what only it may announce stays: seed {seed}"
        );
        lan.pass(seconds(3.0));
        let after = holders(&lan);
        lan.laws.double = Duration::ZERO;
        lan.network.heal();
        assert!(answers_throughout(&mut lan, 5.0), "seed {seed}");
        assert_eq!((holders(&lan), lan.laws.double), (after.clone(), Duration::ZERO), "seed {seed}");
        assert!(before.iter().all(|(number, nodes)| *nodes == [2] || after[number] == *nodes), "seed {seed}");
        // With nobody there who took them, it takes them again.
        lan.turn_off(0);
        lan.turn_off(1);
        lan.pass(seconds(3.0));
        assert!(holders(&lan).values().all(|nodes| *nodes == [2]), "seed {seed}: {:?}", holders(&lan));
    }
}

/// Both halves have clients, and both go on.
#[test]
fn halves_of_a_segment_that_is_whole_again_agree_within_a_heartbeat() {
    for seed in 0..10 {
        let mut lan = settled(seed, 4, 2.0, None);
        lan.network.divide(|node| node / 2);
        lan.pass(seconds(4.0));
        assert!(holders(&lan).values().all(|nodes| nodes.len() == 2), "each half answers");
        lan.network.heal();
        lan.pass(seconds(0.13));
        laws::settled(&lan).unwrap();
        assert_eq!(lan.laws.breach, None);
    }
}

#[test]
fn nodes_that_start_together_or_one_after_the_other_answer_once() {
    for seed in 0..30 {
        let mut lan = Lan::new(seed, 3, seconds(2.0));
        let wanted = all_wanted(&lan);
        for node in 0..3 {
            lan.follow(node, wanted.clone());
            lan.start(node);
            let time = lan.dice.between(Duration::ZERO, seconds(if seed % 2 == 0 { 0.01 } else { 1.3 }));
            lan.pass(time);
        }
        lan.pass(seconds(2.5));
        laws::settled(&lan).unwrap();
        assert_eq!((lan.laws.double, &lan.laws.breach), (Duration::ZERO, &None), "seed {seed}");
    }
}

/// A lost table is requested by those who see another digest.
#[test]
fn a_table_that_was_lost_is_sent_again() {
    let lost = |flaw| {
        let mut lan = settled(3, 2, 2.0, flaw);
        let taken = *holders(&lan).iter().find(|(_, nodes)| **nodes == [0]).unwrap().0;
        let mut wanted = lan.nodes[0].wanted.clone();
        wanted.insert(address(taken), Arc::new([lan.nodes[1].id.into()]));
        // The release is lost.
        lan.network.cut[0][1] = true;
        lan.follow(0, wanted.clone());
        lan.follow(1, wanted);
        lan.pass(seconds(0.01));
        lan.network.heal();
        lan.pass(seconds(0.8));
        laws::settled(&lan)
    };
    assert_eq!(lost(None), Ok(()));
    assert!(lost(Some(Flaw::NoResend)).is_err());
}

/// What an agent says counts, though one before it has said something else.
#[test]
fn tables_of_the_next_agent_are_believed() {
    let next = |flaw| {
        let mut lan = settled(4, 2, 2.0, flaw);
        let held = holders(&lan).into_iter().filter(|(_, nodes)| *nodes == [0]);
        let held: Vec<usize> = held.map(|(number, _)| number).collect();
        let (last, others) = held.split_last().unwrap();
        assert!(others.len() > 1, "the table changes a few times");
        let mut wanted = lan.nodes[0].wanted.clone();
        for number in others {
            wanted.remove(&address(*number));
            (0..2).for_each(|node| lan.follow(node, wanted.clone()));
            lan.pass(seconds(0.5));
        }
        lan.kill(0);
        lan.pass(seconds(0.5));
        lan.start(0);
        lan.pass(seconds(1.5));
        wanted.insert(address(*last), Arc::new([lan.nodes[1].id.into()]));
        (0..2).for_each(|node| lan.follow(node, wanted.clone()));
        lan.pass(seconds(0.5));
        laws::settled(&lan)
    };
    assert_eq!(next(None), Ok(()));
    assert!(next(Some(Flaw::OldVersions)).is_err());
}
