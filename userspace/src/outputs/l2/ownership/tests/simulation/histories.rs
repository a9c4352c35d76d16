use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::lan::{Event, Lan};
use super::node::Wanted;
use super::{Flaw, address, laws};
use crate::outputs::l2::ownership::Candidate;

/// How many histories are played, unless the environment says otherwise.
const HISTORIES: u64 = 80;
/// Within how many each planted error is found.
const PLANTED: u64 = 3 * HISTORIES;
/// The time in which everything has to settle.
const QUIET: Duration = Duration::from_secs(5);
/// The same for a planned move, besides the time after which it is due.
const MOVE: Duration = Duration::from_millis(1300);

fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

/// Returns candidates for an address: all nodes in most cases, and preferred alike.
fn some_candidates(lan: &mut Lan) -> Arc<[Candidate]> {
    let (is_all, has_preferred) = (lan.dice.happens(600), lan.dice.happens(300));
    let mut candidates = Vec::new();
    for number in 0..lan.nodes.len() {
        if is_all || lan.dice.happens(600) {
            let preference = if has_preferred { lan.dice.below(3) as u32 } else { 0 };
            candidates.push(Candidate { node: lan.nodes[number].id, preference });
        }
    }
    candidates.into()
}

/// Changes what is served; each node learns it a little later.
fn change(lan: &mut Lan, wanted: &mut Wanted) {
    let address = address(1 + lan.dice.below(14));
    match lan.dice.below(3) {
        0 => _ = wanted.remove(&address),
        _ => _ = wanted.insert(address, some_candidates(lan)),
    }
    for node in 0..lan.nodes.len() {
        let delay = lan.dice.between(Duration::ZERO, milliseconds(600));
        lan.at(lan.now + delay, Event::Follows { node, wanted: wanted.clone() });
    }
    lan.note(format!("{address} wanted: {:?}", wanted.get(&address)));
}

/// Something happens.
fn disturb(lan: &mut Lan, wanted: &mut Wanted) {
    let count = lan.nodes.len();
    let (node, other) = (lan.dice.below(count), lan.dice.below(count));
    match lan.dice.below(13) {
        0 | 1 => {
            lan.kill(node);
            if lan.dice.happens(500) {
                let time = lan.dice.between(milliseconds(10), milliseconds(1500));
                lan.pass(time);
                lan.start(node);
            }
        }
        2 => (0..count).for_each(|node| lan.start(node)),
        3 | 4 => {
            lan.pause(node);
            let time = lan.dice.between(milliseconds(50), milliseconds(6000));
            lan.pass(time);
            lan.resume(node);
        }
        5 => lan.pause(node),
        6 => lan.turn_off(node),
        7 => {
            lan.turn_on(node);
            lan.start(node);
        }
        8 => {
            let groups: Vec<usize> = (0..count).map(|_| lan.dice.below(2)).collect();
            lan.network.divide(|node| groups[node]);
            lan.note(format!("divided {groups:?}"));
        }
        9 if node != other => {
            lan.network.cut[node][other] = true;
            lan.note(format!("nothing passes from {node} to {other}"));
        }
        10 if node != other => {
            lan.network.deaf[node][other] = true;
            lan.network.deaf[other][node] = lan.dice.happens(500);
            lan.note(format!("heartbeats do not pass from {node} to {other}"));
        }
        11 => change(lan, wanted),
        _ => {
            lan.network.heal();
            lan.note("healed".into());
        }
    }
}

/// Ends all disturbances.
fn calm(lan: &mut Lan, wanted: &Wanted) {
    lan.note("calm".into());
    lan.network.heal();
    (lan.network.loss, lan.network.has_chatter) = (0, true);
    lan.jitter = milliseconds(3);
    for node in 0..lan.nodes.len() {
        lan.turn_on(node);
        lan.resume(node);
        lan.start(node);
        lan.follow(node, wanted.clone());
    }
}

/// What a history showed.
#[derive(Debug, Default)]
struct Shown {
    double: Duration,
    moves: usize,
}

fn play(lan: &mut Lan) -> Result<Shown, String> {
    let mut wanted = BTreeMap::new();
    for number in 0..1 + lan.dice.below(12) {
        let candidates = some_candidates(lan);
        wanted.insert(address(number + 1), candidates);
    }
    let start_together = lan.dice.happens(500);
    for node in 0..lan.nodes.len() {
        lan.follow(node, wanted.clone());
        lan.start(node);
        if !start_together {
            let time = lan.dice.between(Duration::ZERO, milliseconds(1500));
            lan.pass(time);
        }
    }
    lan.pass(milliseconds(2500));
    for _ in 0..3 + lan.dice.below(10) {
        disturb(lan, &mut wanted);
        let longest = if lan.dice.happens(300) { 6000 } else { 1200 };
        let time = lan.dice.between(milliseconds(5), milliseconds(longest));
        lan.pass(time);
    }
    lan.pass(milliseconds(700));
    calm(lan, &wanted);
    lan.pass(QUIET);
    breach(lan)?;
    if let Some(after) = lan.rules.rebalance {
        lan.pass(after * 3 + MOVE * u32::try_from(wanted.len()).unwrap_or(u32::MAX));
        breach(lan)?;
        laws::preferred(lan)?;
    }
    laws::settled(lan)?;
    let moves = std::mem::take(&mut lan.laws.moves);
    lan.pass(QUIET);
    breach(lan)?;
    laws::settled(lan)?;
    if lan.laws.moves > 0 {
        return Err("addresses move in the calm".into());
    }
    Ok(Shown { double: lan.laws.double, moves })
}

fn breach(lan: &Lan) -> Result<(), String> {
    lan.laws.breach.clone().map_or(Ok(()), Err)
}

/// A history by chance.
fn history(seed: u64, flaw: Option<Flaw>) -> Result<Shown, String> {
    let nodes = 2 + (seed % 4) as usize;
    let grace = milliseconds(if seed.is_multiple_of(3) { 4000 } else { 2000 });
    let mut lan = Lan::new(seed.wrapping_mul(0x1234_5677), nodes, grace);
    lan.flaw = flaw;
    lan.rules.withdraws = seed % 3 == 1;
    lan.rules.rebalance = (seed % 5 == 4).then_some(milliseconds(1500));
    lan.network.loss = [0, 0, 0, 20, 100][lan.dice.below(5)];
    lan.network.has_chatter = lan.dice.happens(700);
    if lan.dice.happens(300) {
        lan.network.delay.1 = milliseconds(8);
    }
    if lan.dice.happens(300) {
        lan.jitter = milliseconds(120);
    }
    play(&mut lan).map_err(|error| {
        let log = &lan.log[lan.log.len().saturating_sub(400)..];
        format!("seed {seed}, {nodes} nodes, {:?}: {error}\n{}", lan.network, log.join("\n"))
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
    ];
    let missed = flaws.into_iter().filter(|flaw| (0..PLANTED).all(|seed| history(seed, Some(*flaw)).is_ok()));
    let missed: Vec<Flaw> = missed.collect();
    assert!(missed.is_empty(), "not found: {missed:?}");
}
