//! Strangers who know a connection's addresses and ports: a short form of `tests/slow/strangers.rs`.

use std::time::Duration;

use tests::stranger::{Rig, Tally};
use tests::walker::has_clocks;

use crate::scene::{eventually, turn};

/// Where forged packets that are no plain segments end up; of each kind there were some.
const UNUSUAL: [&str; 8] = [
    "IcmpToBackend",
    "IcmpToClient",
    "IcmpFragmented",
    "IcmpStray",
    "ParseFragment",
    "ParseOptions",
    "ParseTruncated",
    "ClassifyUnreachable",
];
/// Forged packets for each connection.
const PACKETS: u64 = 20_000;
const SEED: u64 = 16;

#[test]
fn strangers_end_nothing_that_survives_them_without_vestibule() {
    tests::skip_without_root!();
    let _turn = turn();
    let rig = Rig::new().unwrap();
    let tally = rig.run(SEED, PACKETS).unwrap();
    let reasons = rig.daemon.reasons().unwrap();
    eprintln!("{tally:?}; {reasons:?}");
    for reason in UNUSUAL {
        assert!(reasons.get(reason).is_some_and(|count| *count > 0), "no {reason} in {reasons:?}");
    }
    assert!(tally.survived * 10 >= tally.looks * 9, "too few direct connections survive: {tally:?}");
    assert!(tally.is_taken_seldom(), "{tally:?}");
    let gone = eventually(Duration::from_secs(60), || rig.entries(&tally).unwrap() == [0; 3]);
    assert!(gone, "entries of FLOWS, PENDING, NATS: {:?}; {tally:?}", rig.entries(&tally));
    if !has_clocks() {
        return;
    }
    rig.ask_silent(env!("CARGO_BIN_EXE_walker"));
    let all = || rig.entries(&Tally::default()).unwrap();
    assert!(
        eventually(Duration::from_secs(60), || all() == [0; 3]),
        "of flows that were hit: {:?}; {tally:?}",
        all()
    );
}
