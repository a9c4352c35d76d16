//! A million forged packets from strangers who know the addresses and ports of a connection, and the same to a direct one.

use anyhow::{Result, ensure};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use tests::stranger::{Rig, Tally};
use tests::walker::has_clocks;

use crate::loads;

/// Forged packets for each connection; `SOAKED` with `VESTIBULE_SOAK=1`.
const PACKETS: u64 = 20_000;
const SOAKED: u64 = 1_000_000;

/// Every run has another seed; `VESTIBULE_SEED` sets it.
fn seed() -> u64 {
    let told = std::env::var("VESTIBULE_SEED").ok().and_then(|seed| seed.parse().ok());
    told.unwrap_or_else(|| SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_secs()))
}

#[test]
fn a_million_forged_packets_end_nothing_that_survives_them_without_vestibule() {
    tests::skip_without_root!();
    let _beside = loads::beside();
    let (seed, begun) = (seed(), Instant::now());
    let packets = if loads::is_long() { SOAKED } else { PACKETS };
    eprintln!("seed {seed}");
    let done = load(seed, packets, begun);
    let (count, fault) = match &done {
        Ok(tally) => (format!("{tally:?}"), String::new()),
        Err(error) => (format!("{packets} packets at most"), format!("{error:#}")),
    };
    loads::record("strangers", format!("seed {seed}: {count}"), &fault, begun);
    done.unwrap();
}

/// Sends as many packets; returns what happened, or what is wrong.
fn load(seed: u64, packets: u64, begun: Instant) -> Result<Tally> {
    let rig = Rig::new()?;
    let tally = rig.run(seed, packets)?;
    eprintln!("{tally:?} in {:.0?}; packets by reason:", begun.elapsed());
    for (reason, count) in rig.daemon.reasons()?.iter().filter(|(_, count)| **count > 0) {
        eprintln!("{count:>12} {reason}");
    }
    ensure!(tally.survived * 10 >= tally.looks * 9, "too few direct connections survive: {tally:?}");
    ensure!(tally.is_taken_seldom(), "too many are taken: {tally:?}");
    let entries = left(&rig, &tally)?;
    ensure!(entries == [0; 3], "entries are left: {entries:?}");
    if !has_clocks() {
        return Ok(tally);
    }
    // What a hit left has no end that would answer.
    rig.ask_silent(env!("CARGO_BIN_EXE_walker"));
    let entries = left(&rig, &Tally::default())?;
    ensure!(entries == [0; 3], "entries of flows that were hit are left: {entries:?}");
    Ok(tally)
}

/// What is left of FLOWS, PENDING and NATS after a minute at most, but for flows that were hit.
fn left(rig: &Rig, tally: &Tally) -> Result<[usize; 3]> {
    let until = Instant::now() + Duration::from_secs(60);
    loop {
        let entries = rig.entries(tally)?;
        if entries == [0; 3] || Instant::now() > until {
            return Ok(entries);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}
