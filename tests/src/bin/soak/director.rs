//! Changes everything around the connections: loss, routes, backends, the daemon's life. Compares the RSTs whenever
//! there is no traffic.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::{Duration, Instant};

use ::tests::daemon::Daemon;
use ::tests::dice::Dice;
use ::tests::resets::capture::Capture;
use ::tests::resets::ledger::{self, Sums, Verdict};
use anyhow::{Context, Result};
use nix::sys::signal::Signal;

use crate::book::Book;
use crate::network::{Network, devices};
use crate::signals;
use crate::tail::Tail;
use crate::tenants::{ALL, TENANTS, config};

/// Seconds between two comparisons, and until the connections of one have ended.
const COMPARE_SECS: u64 = 120;
const DRAIN: Duration = Duration::from_secs(100);
/// Seconds between two lines of progress.
const LINE_SECS: u64 = 60;

/// The events of the director's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Weather,
    Change,
    Kill,
    Compare,
    Line,
}

/// What happened, for the table.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) kills: u64,
    pub(crate) changes: u64,
    /// Comparisons in which all sums were equal, and those that gave nothing.
    pub(crate) equal: u64,
    pub(crate) unknown: u64,
    pub(crate) sums: Sums,
}

/// Conducts the soak.
pub(crate) struct Director<'a> {
    pub(crate) book: &'a Arc<Book>,
    pub(crate) network: &'a Network,
    pub(crate) capture: &'a Capture,
    pub(crate) tail: &'a Tail,
    pub(crate) daemon: Daemon,
    pub(crate) tally: Tally,
    /// The counters at the last comparison.
    pub(crate) before: BTreeMap<String, u64>,
    dice: Dice,
    /// The backends of each tenant, as configured.
    backends: [u8; TENANTS.len()],
    begun: Instant,
}

impl<'a> Director<'a> {
    /// Starts the daemon.
    pub(crate) fn new(
        book: &'a Arc<Book>,
        network: &'a Network,
        (capture, tail): (&'a Capture, &'a Tail),
        seed: u64,
    ) -> Result<Self> {
        let backends = [ALL; TENANTS.len()];
        // By itself it would find those of the default route and of the backends.
        let devices = devices().join(",");
        let daemon = Daemon::start(&network.node, &config(&backends), &["--devices", &devices])?;
        book.note("READY after the first start");
        let before = daemon.reasons()?;
        let (tally, dice, begun) = (Tally::default(), Dice::new(seed, u64::MAX - 1), Instant::now());
        Ok(Self { book, network, capture, tail, daemon, tally, before, dice, backends, begun })
    }

    /// Runs until the time is over, a signal comes, or a fault is found.
    pub(crate) fn run(&mut self, time: Duration) -> Result<()> {
        let events = [Event::Weather, Event::Change, Event::Kill, Event::Compare, Event::Line];
        let mut due = events.map(|event| (event, Instant::now() + self.pause(event)));
        while self.begun.elapsed() < time && !self.book.is_over() && !signals::came() {
            sleep(Duration::from_millis(20));
            for (event, at) in &mut due {
                if Instant::now() >= *at {
                    self.act(*event)?;
                    *at = Instant::now() + self.pause(*event);
                }
            }
            if let Some(line) = self.daemon.log().lines().find(|line| line.contains(" ERROR ")) {
                self.book.fault(format!("the daemon's log: {line}"), None);
            }
            if !self.daemon.runs() {
                self.book.fault(format!("the daemon ended by itself:\n{}", self.daemon.log()), None);
            }
        }
        if !self.book.is_over() {
            self.compare()?;
        }
        // The traffic does not start again.
        self.book.stop.store(true, Ordering::Relaxed);
        self.book.paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// The time until an event of this kind comes again.
    fn pause(&mut self, event: Event) -> Duration {
        let milliseconds = match event {
            Event::Weather => self.dice.between(3000, 15_000),
            Event::Change => self.dice.between(1500, 9000),
            Event::Kill => self.dice.between(10_000, 45_000),
            Event::Compare => COMPARE_SECS * 1000,
            Event::Line => LINE_SECS * 1000,
        };
        Duration::from_millis(milliseconds)
    }

    fn act(&mut self, event: Event) -> Result<()> {
        match event {
            Event::Weather => self.weather(),
            Event::Change => {
                self.choose();
                let took = self.daemon.reload(&config(&self.backends)).context("reloading")?;
                self.book.note(format!("READY, {took:.3?} after SIGHUP"));
                self.book.in_force();
            }
            Event::Kill => self.kill()?,
            Event::Compare => {
                self.compare()?;
                self.book.paused.store(false, Ordering::Relaxed);
            }
            Event::Line => self.line(),
        }
        Ok(())
    }

    /// Sets other rates of loss, duplication and reordering on one side.
    fn weather(&mut self) {
        let dice = &mut self.dice;
        let side = dice.below(2) as usize;
        let loss = dice.weighted(&[(3, 0), (3, 1), (2, 2), (1, 5)]);
        let (duplication, reordering) = (dice.below(3) as u32, dice.below(3) as u32);
        self.network.set(side, loss, duplication, reordering);
        let of = ["clients", "backends"][side];
        self.book.note(format!(
            "weather of the {of}: loss {loss}, duplication {duplication}, reordering {reordering}"
        ));
    }

    /// Chooses other backends for one of the tenants that change, or none.
    fn choose(&mut self) {
        let changing: Vec<_> = TENANTS.iter().filter(|tenant| tenant.changing).collect();
        let tenant = changing[self.dice.below(changing.len() as u64) as usize].number;
        let before = self.backends[tenant as usize];
        let after =
            if before != 0 && self.dice.chance(20) { 0 } else { self.dice.between(1, ALL.into()) as u8 };
        self.book.change(tenant, before, after);
        self.backends[tenant as usize] = after;
        self.tally.changes += 1;
    }

    /// Kills the daemon, at times in the middle of a reload, and starts it again, at times with another configuration.
    fn kill(&mut self) -> Result<()> {
        if self.dice.chance(40) {
            self.choose();
            self.daemon.write_config(&config(&self.backends).json())?;
            self.book.note("SIGHUP, and a signal that ends the daemon");
            self.daemon.signal(Signal::SIGHUP)?;
            sleep(Duration::from_micros(self.dice.below(30_000)));
        }
        let signal = if self.dice.chance(85) { Signal::SIGKILL } else { Signal::SIGTERM };
        self.book.note(format!("{signal} is sent"));
        self.daemon.end(signal)?;
        self.book.note("the daemon has ended");
        self.book.killed();
        self.tally.kills += 1;
        sleep(Duration::from_millis(self.dice.weighted(&[(3, 0), (4, 500), (2, 3000), (1, 8000)])));
        if self.dice.chance(40) {
            self.choose();
            self.daemon.write_config(&config(&self.backends).json())?;
        }
        self.book.note("the daemon is started");
        self.daemon.launch(&self.network.node).context("starting the daemon again")?;
        self.book.note("READY after a start");
        self.book.in_force();
        Ok(())
    }

    /// Lets all connections end, and compares captured RSTs with counted ones. No new connections start.
    fn compare(&mut self) -> Result<()> {
        let book = self.book;
        book.paused.store(true, Ordering::Relaxed);
        let start = Instant::now();
        while book.active.load(Ordering::Relaxed) > 0 && start.elapsed() < DRAIN && !book.is_over() {
            sleep(Duration::from_millis(20));
        }
        book.note(format!(
            "new connections were paused {:.3?} ago, {} are left",
            start.elapsed(),
            book.active.load(Ordering::Relaxed)
        ));
        let verdict = ledger::compare(&self.daemon, &self.network.node, self.capture)?;
        match verdict {
            Verdict::Equal(sums) => {
                self.tally.equal += 1;
                self.tally.sums = sums;
            }
            Verdict::Unknown(sums) => {
                println!("no comparison: {sums:?}");
                self.tally.unknown += 1;
                self.tally.sums = sums;
            }
            Verdict::Unequal(sums) => {
                let difference = sums.difference();
                book.fault(
                    format!(
                        "RSTs captured and counted are not equal: {difference}\n{sums:#?}\nat the last comparison: {:#?}",
                        self.tally.sums
                    ),
                    None,
                );
                self.tally.sums = sums;
            }
        }
        book.note("the RSTs were compared");
        if !book.is_over() {
            self.before = self.daemon.reasons()?;
        }
        Ok(())
    }

    /// Prints the progress.
    fn line(&self) {
        let classes = self.book.classes();
        let total: u64 = classes.values().sum();
        let [captured, counted] = self.tally.sums.totals();
        println!(
            "{:>4} min: {total} connections, {} kills, {} changes, {} comparisons equal ({captured} RSTs of {counted})",
            self.begun.elapsed().as_secs() / 60,
            self.tally.kills,
            self.tally.changes,
            self.tally.equal,
        );
    }

    /// Packets by reason since the last comparison.
    pub(crate) fn moved(&self) -> Result<BTreeMap<String, u64>> {
        Ok(moved(&self.before, &self.daemon.reasons()?))
    }

    /// How long it has run.
    pub(crate) fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }
}

/// The counters that are higher than before.
fn moved(before: &BTreeMap<String, u64>, after: &BTreeMap<String, u64>) -> BTreeMap<String, u64> {
    let since = after.iter().map(|(reason, count)| {
        (reason.clone(), count - before.get(reason).copied().unwrap_or(0).min(*count))
    });
    since.filter(|(_, count)| *count > 0).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_counters_that_are_higher_have_moved() {
        let of = |counts: &[(&str, u64)]| {
            counts.iter().map(|(reason, count)| ((*reason).to_owned(), *count)).collect::<BTreeMap<_, _>>()
        };
        let (before, after) = (of(&[("a", 1), ("b", 2)]), of(&[("a", 1), ("b", 5), ("c", 4)]));
        assert_eq!(moved(&before, &after), of(&[("b", 3), ("c", 4)]));
    }
}
