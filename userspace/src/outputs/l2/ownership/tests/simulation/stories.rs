use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::node::Wanted;
use super::world::World;
use super::{Flaw, address, laws};
use crate::outputs::l2::ownership::NodeId;

const ADDRESSES: usize = 9;

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

fn all_wanted(world: &World) -> Wanted {
    let all: Arc<[NodeId]> = world.nodes.iter().map(|node| node.id).collect();
    (1..=ADDRESSES).map(|number| (address(number), Arc::clone(&all))).collect()
}

/// A segment on which each address is answered by one node.
fn settled(seed: u64, nodes: usize, grace: f64, flaw: Option<Flaw>) -> World {
    let mut world = World::new(seed, nodes, seconds(grace));
    world.flaw = flaw;
    let wanted = all_wanted(&world);
    for node in 0..nodes {
        world.follow(node, wanted.clone());
        world.start(node);
    }
    world.pass(seconds(2.5));
    laws::settled(&world).unwrap();
    world.laws.moves = 0;
    world
}

fn holders(world: &World) -> BTreeMap<usize, Vec<usize>> {
    (1..=ADDRESSES).map(|number| (number, world.answering(&address(number)))).collect()
}

/// Returns whether each address is answered all the time by one node, while time passes in small steps.
fn answers_throughout(world: &mut World, time: f64) -> bool {
    let end = world.now + seconds(time);
    let mut is_whole = true;
    while world.now < end {
        world.pass(seconds(0.005));
        is_whole &= holders(world).values().all(|nodes| nodes.len() == 1);
    }
    is_whole && world.laws.breach.is_none()
}

/// Whether a killed agent that returns within the grace moves nothing.
fn kill_moves_nothing(seed: u64, flaw: Option<Flaw>) -> bool {
    let mut world = settled(seed, 3, 2.0, flaw);
    let before = holders(&world);
    let mut is_whole = true;
    for node in 0..3 {
        world.kill(node);
        is_whole &= answers_throughout(&mut world, 1.8);
        world.start(node);
        is_whole &= answers_throughout(&mut world, 3.0);
    }
    is_whole && holders(&world) == before && world.laws.moves == 0
}

#[test]
fn a_killed_agent_that_returns_within_the_grace_moves_nothing() {
    for seed in 0..5 {
        assert!(kill_moves_nothing(seed, None), "seed {seed}");
    }
    assert!(!kill_moves_nothing(0, Some(Flaw::AdoptsNothing)));
}

fn all_agents_dead(seed: u64, flaw: Option<Flaw>) -> bool {
    let mut world = settled(seed, 3, 2.0, flaw);
    let before = holders(&world);
    (0..3).for_each(|node| world.kill(node));
    for _ in 0..60 {
        world.pass(seconds(60.0));
        if holders(&world) != before {
            return false;
        }
    }
    // Those who return together ask each other before they go on.
    (0..3).for_each(|node| world.start(node));
    world.pass(seconds(0.08));
    answers_throughout(&mut world, 5.0) && holders(&world) == before
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
        let mut world = settled(seed, nodes, 15.0, None);
        let time = world.dice.between(Duration::ZERO, seconds(0.2));
        world.pass(time);
        // Also where no other host sends anything.
        world.network.has_chatter = seed % 2 == 0;
        world.turn_off(nodes - 1);
        world.pass(seconds(0.8));
        assert!(holders(&world).values().all(|nodes| nodes.len() == 1), "seed {seed}: {:?}", holders(&world));
        world.pass(seconds(3.0));
        // Its addresses are spread, and nothing moves when it returns.
        let before = holders(&world);
        world.turn_on(nodes - 1);
        world.start(nodes - 1);
        world.pass(seconds(5.0));
        assert_eq!((holders(&world), &world.laws.breach), (before, &None), "seed {seed}");
    }
}

/// A stopped agent keeps its addresses within the grace, and loses them a second after it.
#[test]
fn a_stopped_agent_loses_its_addresses_only_after_the_grace() {
    for (time, keeps) in [(0.5, true), (1.5, true), (1.95, true), (3.4, false), (20.0, false)] {
        for seed in 0..5 {
            let mut world = settled(seed, 3, 2.0, None);
            let before = holders(&world);
            world.pause(1);
            world.pass(seconds(time));
            world.resume(1);
            world.pass(seconds(3.0));
            laws::settled(&world).unwrap();
            assert_eq!(holders(&world) == before, keeps, "{time} s, seed {seed}");
            assert_eq!(world.laws.breach, None);
            assert!(world.laws.double < seconds(0.13), "{:?}", world.laws.double);
        }
    }
}

/// Frames of this protocol alone are lost: the hosts still answer probes.
#[test]
fn blocked_heartbeats_move_nothing() {
    for both in [false, true] {
        for seed in 0..5 {
            let mut world = settled(seed, 2, 2.0, None);
            let before = holders(&world);
            (world.network.deaf[0][1], world.network.deaf[1][0]) = (true, both);
            assert!(answers_throughout(&mut world, 20.0), "seed {seed}");
            assert_eq!((holders(&world), world.laws.double), (before, Duration::ZERO));
        }
    }
    let mut world = settled(0, 2, 2.0, Some(Flaw::NoVeto));
    (world.network.deaf[0][1], world.network.deaf[1][0]) = (true, true);
    assert!(!answers_throughout(&mut world, 20.0));
}

/// A node that is cut off holds what it has, and gives it up within a heartbeat after it is back. What the others hold stays.
#[test]
fn a_node_that_was_cut_off_gives_up_what_others_took() {
    for seed in 0..10 {
        let mut world = settled(seed, 3, 2.0, None);
        let before = holders(&world);
        world.network.divide(|node| usize::from(node == 2));
        world.pass(seconds(4.0));
        world.network.heal();
        world.pass(seconds(0.13));
        laws::settled(&world).unwrap();
        let after = holders(&world);
        let stays = |number: &usize| before[number] == [2] || before[number] == after[number];
        assert!(before.keys().all(stays), "seed {seed}: {before:?} {after:?}\n{}", world.log.join("\n"));
        assert!(after.values().all(|nodes| *nodes != [2]), "seed {seed}");
        assert_eq!(world.laws.breach, None);
    }
}

/// Both halves have clients, and both go on.
#[test]
fn halves_of_a_segment_that_is_whole_again_agree_within_a_heartbeat() {
    for seed in 0..10 {
        let mut world = settled(seed, 4, 2.0, None);
        world.network.divide(|node| node / 2);
        world.pass(seconds(4.0));
        assert!(holders(&world).values().all(|nodes| nodes.len() == 2), "each half answers");
        world.network.heal();
        world.pass(seconds(0.13));
        laws::settled(&world).unwrap();
        assert_eq!(world.laws.breach, None);
    }
}

#[test]
fn nodes_that_start_together_or_one_after_the_other_answer_once() {
    for seed in 0..30 {
        let mut world = World::new(seed, 3, seconds(2.0));
        let wanted = all_wanted(&world);
        for node in 0..3 {
            world.follow(node, wanted.clone());
            world.start(node);
            let time = world.dice.between(Duration::ZERO, seconds(if seed % 2 == 0 { 0.01 } else { 1.3 }));
            world.pass(time);
        }
        world.pass(seconds(2.5));
        laws::settled(&world).unwrap();
        assert_eq!((world.laws.double, &world.laws.breach), (Duration::ZERO, &None), "seed {seed}");
    }
}

/// A lost table is requested by those who see another digest.
#[test]
fn a_table_that_was_lost_is_sent_again() {
    let lost = |flaw| {
        let mut world = settled(3, 2, 2.0, flaw);
        let taken = *holders(&world).iter().find(|(_, nodes)| **nodes == [0]).unwrap().0;
        let mut wanted = world.nodes[0].wanted.clone();
        wanted.insert(address(taken), Arc::new([world.nodes[1].id]));
        // The release is lost.
        world.network.cut[0][1] = true;
        world.follow(0, wanted.clone());
        world.follow(1, wanted);
        world.pass(seconds(0.01));
        world.network.heal();
        world.pass(seconds(0.8));
        laws::settled(&world)
    };
    assert_eq!(lost(None), Ok(()));
    assert!(lost(Some(Flaw::NoResend)).is_err());
}
