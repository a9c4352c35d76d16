use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::node::Wanted;
use super::world::{Event, World};
use super::{Flaw, address, laws};
use crate::outputs::l2::ownership::NodeId;

/// How many histories are played, unless the environment says otherwise.
const HISTORIES: u64 = 100;
/// The time in which everything has to settle.
const QUIET: Duration = Duration::from_secs(5);

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Returns candidates for an address: all nodes in most cases.
fn some_candidates(world: &mut World) -> Arc<[NodeId]> {
    let is_all = world.dice.happens(600);
    let mut candidates = Vec::new();
    for number in 0..world.nodes.len() {
        if is_all || world.dice.happens(600) {
            candidates.push(world.nodes[number].id);
        }
    }
    candidates.into()
}

/// Changes what is served; each node learns it a little later.
fn change(world: &mut World, wanted: &mut Wanted) {
    let address = address(1 + world.dice.below(14));
    match world.dice.below(3) {
        0 => _ = wanted.remove(&address),
        _ => _ = wanted.insert(address, some_candidates(world)),
    }
    for node in 0..world.nodes.len() {
        let delay = world.dice.between(Duration::ZERO, milliseconds(600));
        world.at(world.now + delay, Event::Follows { node, wanted: wanted.clone() });
    }
    world.note(format!("{address} wanted: {:?}", wanted.get(&address)));
}

/// Something happens.
fn disturb(world: &mut World, wanted: &mut Wanted) {
    let count = world.nodes.len();
    let (node, other) = (world.dice.below(count), world.dice.below(count));
    match world.dice.below(13) {
        0 | 1 => {
            world.kill(node);
            if world.dice.happens(500) {
                let time = world.dice.between(milliseconds(10), milliseconds(1500));
                world.pass(time);
                world.start(node);
            }
        }
        2 => (0..count).for_each(|node| world.start(node)),
        3 | 4 => {
            world.pause(node);
            let time = world.dice.between(milliseconds(50), milliseconds(6000));
            world.pass(time);
            world.resume(node);
        }
        5 => world.pause(node),
        6 => world.turn_off(node),
        7 => {
            world.turn_on(node);
            world.start(node);
        }
        8 => {
            let groups: Vec<usize> = (0..count).map(|_| world.dice.below(2)).collect();
            world.network.divide(|node| groups[node]);
            world.note(format!("divided {groups:?}"));
        }
        9 if node != other => {
            world.network.cut[node][other] = true;
            world.note(format!("nothing passes from {node} to {other}"));
        }
        10 if node != other => {
            world.network.deaf[node][other] = true;
            world.network.deaf[other][node] = world.dice.happens(500);
            world.note(format!("heartbeats do not pass from {node} to {other}"));
        }
        11 => change(world, wanted),
        _ => {
            world.network.heal();
            world.note("healed".into());
        }
    }
}

/// Ends all disturbances.
fn calm(world: &mut World, wanted: &Wanted) {
    world.note("calm".into());
    world.network.heal();
    (world.network.loss, world.network.has_chatter) = (0, true);
    world.jitter = milliseconds(3);
    for node in 0..world.nodes.len() {
        world.turn_on(node);
        world.resume(node);
        world.start(node);
        world.follow(node, wanted.clone());
    }
}

/// What a history showed.
#[derive(Debug, Default)]
struct Shown {
    double: Duration,
    moves: usize,
}

fn play(world: &mut World) -> Result<Shown, String> {
    let mut wanted = BTreeMap::new();
    for number in 0..1 + world.dice.below(12) {
        let candidates = some_candidates(world);
        wanted.insert(address(number + 1), candidates);
    }
    let start_together = world.dice.happens(500);
    for node in 0..world.nodes.len() {
        world.follow(node, wanted.clone());
        world.start(node);
        if !start_together {
            let time = world.dice.between(Duration::ZERO, milliseconds(1500));
            world.pass(time);
        }
    }
    world.pass(milliseconds(2500));
    for _ in 0..3 + world.dice.below(10) {
        disturb(world, &mut wanted);
        let longest = if world.dice.happens(300) { 6000 } else { 1200 };
        let time = world.dice.between(milliseconds(5), milliseconds(longest));
        world.pass(time);
    }
    world.pass(milliseconds(700));
    calm(world, &wanted);
    world.pass(QUIET);
    breach(world)?;
    laws::settled(world)?;
    let moves = std::mem::take(&mut world.laws.moves);
    world.pass(QUIET);
    breach(world)?;
    laws::settled(world)?;
    if world.laws.moves > 0 {
        return Err("addresses move in the calm".into());
    }
    Ok(Shown { double: world.laws.double, moves })
}

fn breach(world: &World) -> Result<(), String> {
    world.laws.breach.clone().map_or(Ok(()), Err)
}

/// A history by chance.
fn history(seed: u64, flaw: Option<Flaw>) -> Result<Shown, String> {
    let nodes = 2 + (seed % 4) as usize;
    let grace = milliseconds(if seed.is_multiple_of(3) { 4000 } else { 2000 });
    let mut world = World::new(seed.wrapping_mul(0x1234_5677), nodes, grace);
    world.flaw = flaw;
    world.network.loss = [0, 0, 0, 20, 100][world.dice.below(5)];
    world.network.has_chatter = world.dice.happens(700);
    if world.dice.happens(300) {
        world.network.delay.1 = milliseconds(8);
    }
    if world.dice.happens(300) {
        world.jitter = milliseconds(120);
    }
    play(&mut world).map_err(|error| {
        let log = &world.log[world.log.len().saturating_sub(400)..];
        format!("seed {seed}, {nodes} nodes, {:?}: {error}\n{}", world.network, log.join("\n"))
    })
}

#[test]
fn histories_by_chance_keep_the_laws() {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse().ok());
    let histories = number("VESTIBULE_HISTORIES").unwrap_or(HISTORIES);
    let first: u64 = number("VESTIBULE_HISTORY").unwrap_or(0);
    let (mut all, mut failed, mut example) = (Shown::default(), Vec::new(), None);
    for seed in first..first + histories {
        match history(seed, None) {
            Ok(shown) => {
                all.moves += shown.moves;
                all.double = all.double.max(shown.double);
            }
            Err(error) => {
                failed.push(seed);
                example.get_or_insert(error);
            }
        }
    }
    assert!(
        failed.is_empty(),
        "{} of {histories} fail: {failed:?}\n{}",
        failed.len(),
        example.unwrap_or_default()
    );
    assert!(all.moves as u64 > histories, "addresses move: {all:?}");
}

/// Each of these errors breaks a law within a few histories.
#[test]
fn planted_errors_are_found() {
    let flaws = [
        Flaw::NoVeto,
        Flaw::StampsAtOnce,
        Flaw::NoGate,
        Flaw::GateOpensAgain,
        Flaw::NoResend,
        Flaw::OpensWithTheBid,
        Flaw::NeverCloses,
        Flaw::OldVersions,
    ];
    let missed =
        flaws.into_iter().filter(|flaw| (0..HISTORIES).all(|seed| history(seed, Some(*flaw)).is_ok()));
    let missed: Vec<Flaw> = missed.collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
