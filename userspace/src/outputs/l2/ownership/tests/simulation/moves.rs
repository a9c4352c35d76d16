use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::address;
use super::lan::Lan;
use super::laws;
use super::node::Wanted;
use crate::outputs::l2::ownership::precedence::weight;
use crate::outputs::l2::ownership::{Candidate, NodeId};

const ADDRESSES: usize = 14;
const AFTER: Duration = Duration::from_secs(20);

fn seconds(number: f64) -> Duration {
    Duration::from_secs_f64(number)
}

/// Returns the addresses for which this node comes first.
fn preferring(lan: &Lan, number: usize) -> BTreeSet<IpAddr> {
    let first = |address: &IpAddr| {
        (0..lan.nodes.len()).max_by_key(|number| weight(address, lan.nodes[*number].id)) == Some(number)
    };
    (1..=ADDRESSES).map(address).filter(first).collect()
}

/// All addresses, for these candidates.
fn all_wanted(candidates: Arc<[Candidate]>) -> Wanted {
    (1..=ADDRESSES).map(|number| (address(number), Arc::clone(&candidates))).collect()
}

/// A segment to which the last of its nodes came five seconds ago, when the others had all addresses.
fn joined(seed: u64, nodes: usize, rebalance: Option<Duration>) -> Lan {
    let mut lan = Lan::new(seed, nodes, seconds(2.0));
    lan.rules.rebalance = rebalance;
    let all: Vec<NodeId> = lan.nodes.iter().map(|node| node.id).collect();
    let wanted = |ids: &[NodeId]| all_wanted(ids.iter().copied().map(Candidate::from).collect());
    let before = wanted(&all[..nodes - 1]);
    for node in 0..nodes - 1 {
        lan.follow(node, before.clone());
        lan.start(node);
    }
    lan.pass(seconds(3.0));
    laws::settled(&lan).unwrap();
    lan.laws.turnover.clear();
    for node in 0..nodes {
        lan.follow(node, wanted(&all));
    }
    lan.start(nodes - 1);
    lan.pass(seconds(5.0));
    laws::settled(&lan).unwrap();
    lan
}

/// Returns the times of all closings, and the longest time from one to the opening elsewhere.
fn gaps(lan: &Lan) -> (Vec<Duration>, Duration) {
    let (mut closed, mut longest) = (Vec::new(), Duration::ZERO);
    for (at, (time, _, address, is_opened)) in lan.laws.turnover.iter().enumerate() {
        if !is_opened {
            closed.push(*time);
            let opened =
                lan.laws.turnover[at..].iter().find(|(_, _, other, opens)| *opens && other == address);
            longest = longest.max(opened.map_or(Duration::MAX, |(opened, ..)| *opened - *time));
        }
    }
    (closed, longest)
}

/// The share of a node that joins moves to it after the delay, nothing else does, one address a second, and each is unanswered for less than
/// a tenth of a second.
#[test]
fn a_node_that_joins_gets_its_share_after_the_delay() {
    let (mut shares, mut worst) = (0, Duration::ZERO);
    for seed in 0..20 {
        let nodes = 2 + (seed % 3) as usize;
        let mut lan = joined(seed, nodes, Some(AFTER));
        lan.pass(AFTER - seconds(5.5));
        assert_eq!(lan.laws.turnover, [], "seed {seed}: before the delay");
        let share = preferring(&lan, nodes - 1);
        lan.pass(seconds(1.3 * share.len() as f64 + 1.0));
        assert_eq!((laws::preferred(&lan), &lan.laws.breach), (Ok(()), &None), "seed {seed}");
        let moved: Vec<IpAddr> = lan
            .laws
            .turnover
            .iter()
            .filter(|(.., opens)| *opens)
            .map(|(_, _, address, _)| *address)
            .collect();
        assert_eq!((moved.len(), BTreeSet::from_iter(moved)), (share.len(), share), "seed {seed}");
        let (closed, longest) = gaps(&lan);
        let is_slow = closed.windows(2).all(|two| two[1] - two[0] >= seconds(1.0));
        assert!(is_slow && lan.laws.double.is_zero(), "seed {seed}: {closed:?}");
        (shares, worst) = (shares + closed.len(), worst.max(longest));
        lan.pass(AFTER * 3);
        assert_eq!(gaps(&lan).0.len(), closed.len(), "seed {seed}: at rest nothing moves");
    }
    assert!(shares > 50, "{shares} moves");
    assert!(worst < seconds(0.1), "unanswered for {worst:?}");
    println!("{shares} moves, each address unanswered for at most {worst:?}");
}

/// All addresses move to the node that is preferred from now on, after the delay, one a second; while it is away the others have them, and
/// then it gets them back.
#[test]
fn a_node_that_is_preferred_gets_all_after_the_delay() {
    for seed in 0..6 {
        let mut lan = joined(seed, 3, Some(AFTER));
        lan.pass(AFTER * 4);
        assert_eq!((laws::preferred(&lan), &lan.laws.breach), (Ok(()), &None), "seed {seed}");
        let weights = [1, 100, 0];
        let candidates = lan.nodes.iter().zip(weights);
        let candidates = candidates.map(|(node, preference)| Candidate { node: node.id, preference });
        let wanted = all_wanted(candidates.collect());
        (0..3).for_each(|node| lan.follow(node, wanted.clone()));
        lan.laws.turnover.clear();
        lan.pass(AFTER - seconds(0.5));
        assert_eq!(lan.laws.turnover, [], "seed {seed}: before the delay");
        lan.pass(seconds(1.3 * ADDRESSES as f64 + 1.0));
        assert_eq!((laws::preferred(&lan), &lan.laws.breach), (Ok(()), &None), "seed {seed}");
        let (closed, longest) = gaps(&lan);
        let is_slow = closed.windows(2).all(|two| two[1] - two[0] >= seconds(1.0));
        assert!(is_slow && longest < seconds(0.1) && lan.laws.double.is_zero(), "seed {seed}: {closed:?}");
        // The next by weight takes over from it, as the first to bid.
        lan.turn_off(1);
        lan.pass(seconds(5.0));
        let all = (1..=ADDRESSES).map(address);
        assert!(all.clone().all(|address| lan.answering(&address) == [0]), "seed {seed}");
        lan.turn_on(1);
        lan.start(1);
        lan.pass(AFTER + seconds(1.3 * ADDRESSES as f64 + 6.0));
        assert_eq!((laws::preferred(&lan), &lan.laws.breach), (Ok(()), &None), "seed {seed}");
        assert!(all.clone().all(|address| lan.answering(&address) == [1]), "seed {seed}");
    }
}

/// Each time an address had been left to a node before, the next time took twice as long, whatever had happened since.
#[test]
fn a_preference_that_changes_again_and_again_takes_no_longer_each_time() {
    for seed in 0..2 {
        let mut lan = joined(seed, 2, Some(AFTER));
        lan.pass(AFTER * 4);
        for turn in 0..8 {
            let weights = if turn % 2 == 0 { [1, 0] } else { [0, 1] };
            let candidates = lan.nodes.iter().zip(weights);
            let candidates = candidates.map(|(node, preference)| Candidate { node: node.id, preference });
            let wanted = all_wanted(candidates.collect());
            (0..2).for_each(|node| lan.follow(node, wanted.clone()));
            lan.pass(AFTER + seconds(1.3 * ADDRESSES as f64 + 2.0));
            assert_eq!(
                (laws::preferred(&lan), &lan.laws.breach),
                (Ok(()), &None),
                "seed {seed}, turn {turn}"
            );
        }
    }
}

/// As while agents of two releases run, or the one node knows of a change before the other: each holds itself to be the first. Of two bids by
/// the same epoch, both take the same for the higher.
#[test]
fn two_nodes_that_disagree_on_who_is_preferred_never_both_answer_for_long() {
    for seed in 0..20 {
        let mut lan = Lan::new(seed, 2, seconds(2.0));
        lan.rules.rebalance = Some(AFTER);
        for node in 0..2 {
            let one = |number: usize| Candidate {
                node: lan.nodes[number].id,
                preference: u32::from(number == node),
            };
            let wanted = all_wanted([one(0), one(1)].into());
            lan.follow(node, wanted);
            lan.start(node);
        }
        lan.pass(seconds(6.0));
        laws::settled(&lan).unwrap();
        lan.pass(AFTER * 10);
        assert_eq!(lan.laws.breach, None, "seed {seed}");
        laws::settled(&lan).unwrap();
    }
}

#[test]
fn where_planned_moves_are_off_a_node_that_joins_gets_nothing() {
    let mut lan = joined(3, 3, None);
    assert!(!preferring(&lan, 2).is_empty());
    lan.pass(AFTER * 20);
    assert_eq!(lan.laws.turnover, []);
}

/// A node whose agent, heartbeats or power fail from time to time is not steady, and gets nothing until it is.
#[test]
fn the_delay_starts_again_with_each_interruption() {
    for disturbance in 0..3 {
        let mut lan = joined(5, 3, Some(AFTER));
        for _ in 0..5 {
            lan.pass(AFTER / 2);
            match disturbance {
                0 => {
                    lan.turn_off(2);
                    lan.pass(seconds(1.0));
                    lan.turn_on(2);
                    lan.start(2);
                }
                1 => {
                    lan.pause(2);
                    lan.pass(seconds(1.5));
                    lan.resume(2);
                }
                _ => {
                    (lan.network.deaf[2][0], lan.network.deaf[2][1]) = (true, true);
                    lan.pass(seconds(1.0));
                    lan.network.heal();
                }
            }
        }
        assert_eq!(lan.laws.turnover, [], "disturbance {disturbance}");
        lan.pass(AFTER + seconds(25.0));
        assert_eq!(laws::preferred(&lan), Ok(()), "disturbance {disturbance}");
    }
}

/// As where its programs have no room for it: the owner takes it back, and tries again later and later.
#[test]
fn an_address_that_its_first_candidate_does_not_take_is_taken_back() {
    let mut lan = joined(7, 2, Some(AFTER));
    let share = preferring(&lan, 1);
    let mut wanted = lan.nodes[1].wanted.clone();
    wanted.retain(|address, _| !share.contains(address));
    lan.follow(1, wanted);
    lan.pass(AFTER * 16);
    let (closed, longest) = gaps(&lan);
    // After 1, 3, 7 and 15 times the delay.
    assert_eq!(closed.len(), share.len() * 4);
    assert!(longest < seconds(1.5), "{longest:?}");
    assert_eq!(lan.answering(share.first().unwrap()), [0]);
}

#[test]
fn a_node_without_an_agent_does_not_keep_the_others_from_moving_theirs() {
    let mut lan = joined(11, 4, Some(AFTER));
    lan.kill(0);
    lan.pass(AFTER + seconds(25.0));
    let share = preferring(&lan, 3);
    assert!(!share.is_empty() && share.iter().all(|address| lan.answering(address) == [3]), "{share:?}");
    assert_eq!(lan.laws.breach, None);
}
