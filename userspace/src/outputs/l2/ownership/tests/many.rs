use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::lab::{Lab, OWN};
use crate::outputs::l2::ownership::{Action, NodeId};

#[test]
fn probes_of_many_addresses_are_spread() {
    let many: Vec<IpAddr> =
        (0..1000u16).map(|number| IpAddr::from([10, 0, (number >> 8) as u8, number as u8])).collect();
    let mut lab = Lab::new();
    lab.want(&many, &[OWN]);
    lab.pass(3000);
    let done = lab.done();
    let probes = done.iter().filter(|(_, action)| matches!(action, Action::Probe(_)));
    let mut slots = BTreeMap::<u64, usize>::new();
    probes.for_each(|(time, _)| *slots.entry(time / 50).or_default() += 1);
    assert_eq!(slots.values().sum::<usize>(), 3000);
    assert!(slots.values().all(|count| *count <= 100), "{slots:?}");
    assert_eq!(done.iter().filter(|(_, action)| matches!(action, Action::Open { .. })).count(), 1000);
}

/// Time is measured generously: a cost by the square of the number would be far beyond it.
#[test]
fn ten_thousand_addresses_of_32_nodes_cost_little() {
    let nodes: Vec<NodeId> = (1..=32).collect();
    let all: Vec<IpAddr> =
        (0..10_000u32).map(|number| IpAddr::from((0x0a00_0000 + number).to_be_bytes())).collect();
    let mut lab = Lab::new();
    for node in 2..=32 {
        let its: Vec<(IpAddr, u64)> =
            all.iter().skip(node as usize - 2).step_by(31).map(|address| (*address, 1)).collect();
        lab = lab.with(node, &its);
    }
    lab.want(&all, &nodes);
    lab.pass(3000);
    assert_eq!(lab.done().iter().filter(|(_, action)| matches!(action, Action::Open { .. })).count(), 0);
    let begin = Instant::now();
    lab.pass(10_000);
    let at_rest = begin.elapsed();
    // All others go at once.
    lab.others.values_mut().for_each(|other| (other.answers, other.replies) = (false, false));
    let begin = Instant::now();
    lab.pass(1000);
    let take_over = begin.elapsed();
    assert_eq!(lab.opened().len(), 10_000);
    assert!(
        at_rest < Duration::from_secs(5) && take_over < Duration::from_secs(10),
        "{at_rest:?} {take_over:?}"
    );
}
