use super::{Options, Seen, Simulation, percentile};
use std::time::Duration;

const SECOND: Duration = Duration::from_secs(1);

/// A cluster of a size that a debug build plays in seconds.
fn small(seed: u64) -> Options {
    Options {
        seed,
        nodes: 40,
        namespaces: 10,
        routes: 300,
        changes: 10.0,
        lasts: 20 * SECOND,
        judging: Duration::from_millis(20),
        hangs: None,
        dies: None,
        restarts: None,
    }
}

fn played(options: Options) -> Seen {
    let seen = Simulation::new(options.clone()).play();
    let [p50, p99, dead] = [
        percentile(&seen.delays, 0.5),
        percentile(&seen.delays, 0.99),
        percentile(&seen.delays_with_dead, 0.99),
    ];
    eprintln!(
        "{options:?}: all programmed after {:?}; of {} changes p50 {p50:?}, p99 {p99:?}, {} with a dead node p99 {dead:?}; \
         writes a change: {:.2} statuses, {:.2} Claims; {} judgements of {:?}",
        seen.first,
        seen.delays.len(),
        seen.delays_with_dead.len(),
        seen.writes.0,
        seen.writes.1,
        seen.judgements,
        seen.judged / u32::try_from(seen.judgements).unwrap(),
    );
    assert_eq!(seen.open, 0, "changes without an answer");
    seen
}

/// The bounds that hold at any size.
fn check(seen: &Seen) {
    assert!(seen.first <= 60 * SECOND, "{:?}", seen.first);
    assert!(percentile(&seen.delays, 0.99) <= 4 * SECOND, "{:?}", percentile(&seen.delays, 0.99));
    assert!(percentile(&seen.delays_with_dead, 0.99) <= 12 * SECOND);
    // Accepted at once, programmed later; those that ask for another's name add some.
    assert!(seen.writes.0 <= 2.5 && seen.writes.1 <= 1.5, "{:?}", seen.writes);
}

#[test]
fn changes_are_programmed_within_seconds() {
    for seed in 1..=2 {
        let seen = played(small(seed));
        assert!(seen.delays.len() > 100);
        check(&seen);
    }
}

#[test]
fn a_dead_node_delays_them_by_ten_seconds_while_its_lease_lives() {
    let seen = played(Options { dies: Some(5 * SECOND), lasts: 80 * SECOND, ..small(4) });
    assert!(seen.delays_with_dead.len() > 100);
    check(&seen);
}

#[test]
fn a_webhook_that_hangs_in_one_namespace_delays_no_other() {
    let seen = played(Options { hangs: Some(3), ..small(5) });
    assert!(seen.delays.len() > 100);
    check(&seen);
}

#[test]
fn another_controller_that_begins_to_lead_writes_nothing() {
    let mut simulation = Simulation::new(small(7));
    simulation.start();
    let pass = |simulation: &mut Simulation, seconds: u32| {
        simulation.run(simulation.now + seconds * SECOND, |_| false);
        simulation.server.counts
    };
    let before = pass(&mut simulation, 30);
    simulation.restart();
    assert_eq!(pass(&mut simulation, 90), before);
}

/// It knows only what the API server has: nobody loses a name, and no change is forgotten.
#[test]
fn controllers_that_change_in_the_middle_of_everything_take_nothing_from_anybody() {
    let restarts = Some(Duration::from_millis(7_300));
    let seen = played(Options { restarts, lasts: 40 * SECOND, ..small(8) });
    assert!(seen.delays.len() > 100);
}

/// Slow: `cargo xtask test slow` plays it in a release build.
#[test]
#[ignore = "takes minutes, and needs a release build"]
fn ten_thousand_routes_on_five_hundred_nodes() {
    let large = Options {
        seed: 6,
        nodes: 500,
        namespaces: 200,
        routes: 10_000,
        changes: 100.0,
        lasts: 90 * SECOND,
        judging: Duration::from_millis(250),
        hangs: Some(3),
        dies: Some(20 * SECOND),
        restarts: None,
    };
    let seen = played(large);
    assert!(seen.delays.len() > 1_000 && seen.delays_with_dead.len() > 1_000);
    check(&seen);
    // The API server and the nodes of the simulation are in it, too.
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let peak_mib = peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap() / 1024;
    eprintln!("at most {peak_mib} MiB");
    assert!(peak_mib < 512, "{peak_mib} MiB");
}
