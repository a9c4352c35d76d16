//! Runs systems by turns and compares each figure with that of the first system in the same round. The first
//! system starts each round. The others follow, alternately in order and in reverse (A B C, A C B, A B C,
//! ...). So neither changes of the machine over time nor what one system leaves behind for the next favour
//! any of them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Result;
use load::order::Report;

use crate::cpu::{self, Mark, Used};
use crate::stats::Median;
use crate::system::Bench;

/// A run is repeated once if other processes used more than this share of the CPUs.
const FOREIGN_MOST: f64 = 0.25;

/// How much is measured.
#[derive(Clone, Debug)]
pub(crate) struct Effort {
    pub(crate) rounds: usize,
    /// The duration of one run.
    pub(crate) milliseconds: u64,
    /// Measure only Vestibule and plain forwarding.
    pub(crate) quick: bool,
    /// Flows in the maps for workload `flows`.
    pub(crate) flows: u32,
    /// An old build of Vestibule to measure too, in place of the peers.
    pub(crate) against: Option<PathBuf>,
}

/// One system's figures.
#[derive(Clone, Debug)]
pub(crate) struct Series {
    pub(crate) name: String,
    /// One per round.
    figures: Vec<f64>,
    /// The share of CPU time used by other processes; one per round.
    foreign: Vec<f64>,
    pub(crate) errors: BTreeMap<String, u64>,
    /// Connections, requests or streams, summed over all rounds.
    pub(crate) done: u64,
}

impl Series {
    /// A series of figures only, without errors and without load by other processes.
    #[cfg(test)]
    pub(crate) fn of(name: &str, figures: &[f64]) -> Self {
        let (name, figures) = (name.to_owned(), figures.to_vec());
        Self { name, figures, foreign: Vec::new(), errors: BTreeMap::new(), done: 0 }
    }

    /// The number of rounds.
    pub(crate) fn rounds(&self) -> usize {
        self.figures.len()
    }

    pub(crate) fn median(&self) -> Median {
        Median::of(&self.figures)
    }

    /// Returns the median of the ratios to `other`, each taken within a round.
    pub(crate) fn ratio(&self, other: &Self) -> Median {
        let pairs = self.figures.iter().zip(&other.figures);
        Median::of(&pairs.map(|(own, other)| own / other).collect::<Vec<_>>())
    }

    /// The greatest share of CPU time that other processes used in a run.
    pub(crate) fn foreign(&self) -> f64 {
        self.foreign.iter().copied().fold(0.0, f64::max)
    }
}

/// Work done per second of CPU time.
pub(crate) fn per_cpu_second(report: &Report, used: Used) -> f64 {
    report.done as f64 / used.ours.as_secs_f64()
}

/// Gigabytes per second of CPU time.
pub(crate) fn gigabytes_per_cpu_second(report: &Report, used: Used) -> f64 {
    report.bytes as f64 / 1e9 / used.ours.as_secs_f64()
}

/// Returns the order of `count` systems in a round.
fn order(round: usize, count: usize) -> Vec<usize> {
    let mut places: Vec<usize> = (0..count).collect();
    if !round.is_multiple_of(2)
        && let Some((_, others)) = places.split_first_mut()
    {
        others.reverse();
    }
    places
}

/// Checks the benches, then runs `work` on each of them in turn, `rounds` times after one warm-up round.
pub(crate) fn by_turns(
    benches: &mut [&mut Bench],
    effort: &Effort,
    work: impl FnMut(&mut Bench, u32) -> Result<Report>,
    figure: impl Fn(&Report, Used) -> f64,
) -> Result<Vec<Series>> {
    for bench in benches.iter_mut() {
        bench.check_congestion_control()?;
    }
    turns(benches, effort, work, figure)
}

/// Same as [`by_turns`] for benches that have been checked: their clients may hold connections.
pub(crate) fn turns(
    benches: &mut [&mut Bench],
    effort: &Effort,
    mut work: impl FnMut(&mut Bench, u32) -> Result<Report>,
    figure: impl Fn(&Report, Used) -> f64,
) -> Result<Vec<Series>> {
    let daemons = cpu::softirq_daemons();
    let name = |bench: &&mut Bench| bench.name();
    let empty = |name| Series { name, figures: vec![], foreign: vec![], errors: BTreeMap::new(), done: 0 };
    let mut all: Vec<Series> = benches.iter().map(name).map(empty).collect();
    let mut seed = 0;
    for round in 0..=effort.rounds {
        for place in order(round, benches.len()) {
            let (bench, series) = (&mut benches[place], &mut all[place]);
            let pids: Vec<u32> = bench.pids().into_iter().chain(daemons.iter().copied()).collect();
            for last in [false, true] {
                seed += 2;
                let mark = Mark::now(&pids)?;
                let report = work(bench, seed)?;
                // Work still in progress belongs to this run.
                std::thread::sleep(Duration::from_millis(20));
                let used = mark.until_now(&pids)?;
                // Errors count, however disturbed the run was.
                for (what, times) in &report.errors {
                    *series.errors.entry(what.clone()).or_default() += times;
                }
                series.done += report.done;
                if used.foreign <= FOREIGN_MOST || last || round == 0 {
                    if round > 0 {
                        series.figures.push(figure(&report, used));
                        series.foreign.push(used.foreign);
                    }
                    break;
                }
            }
        }
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_but_the_first_change_their_order() {
        assert_eq!([1, 2, 3].map(|round| order(round, 3)), [vec![0, 2, 1], vec![0, 1, 2], vec![0, 2, 1]]);
        assert_eq!((order(1, 0), order(1, 1), order(1, 2)), (vec![], vec![0], vec![0, 1]));
        // In an even number of rounds, each of the others precedes each other one equally often.
        let before =
            (1..=40).filter(|round| order(*round, 5)[1..].iter().position(|place| *place == 1) == Some(0));
        assert_eq!(before.count(), 20);
    }

    #[test]
    fn a_ratio_is_taken_within_each_round() {
        let series = |figures: &[f64]| Series {
            name: String::new(),
            figures: figures.to_vec(),
            foreign: vec![0.1, 0.3, 0.2],
            errors: BTreeMap::new(),
            done: 0,
        };
        // The machine was twice as fast in the second round; the ratio is not affected.
        let (direct, ours) = (series(&[100.0, 200.0, 100.0]), series(&[90.0, 180.0, 91.0]));
        assert_eq!(ours.ratio(&direct).value, 0.9);
        assert_eq!(ours.foreign(), 0.3);
    }
}
