//! Runs the pinned program `expire`: for one order, or for many flows that are to be ended.

use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use common::maps::event::{EXPIRE_BUSY, EXPIRE_DONE, EXPIRE_SEVERAL, Expiry};

use super::pin::{Pins, program};
use super::request::{packet, packet_of_several, runs};
use super::syscall;
use super::table::TableError;

/// Offset of the device index in `__sk_buff`. It determines how much of that structure is passed.
const CONTEXT_IFINDEX: usize = 40;

/// Tries while the CPU is busy with a packet, and the pause after each.
const BUSY_TRIES: u32 = 1_000;
const BUSY_PAUSE: Duration = Duration::from_micros(100);

/// The most threads that end flows, and the runs that each of them is worth: starting one takes as long as a few.
pub(super) const THREADS_MAX: usize = 4;
const RUNS_OF_A_THREAD: usize = 64;

/// Why no connection could be ended.
#[derive(Debug, thiserror::Error)]
pub enum ExpireError {
    /// The program is not pinned.
    #[error("program expire cannot be opened: {0}")]
    Open(std::io::Error),
    /// The kernel refused to run the program.
    #[error("program expire cannot be run: {0}")]
    Run(std::io::Error),
    /// Working memory stayed marked as busy.
    #[error(
        "program expire cannot be run: packets are being handled on this CPU all the time; see `vestibule doctor`"
    )]
    Busy,
    /// A map cannot be read.
    #[error(transparent)]
    Table(#[from] TableError),
}

/// The open program.
#[derive(Debug)]
pub(super) struct Runner {
    program: OwnedFd,
    /// One of our devices. The kernel requires one for a run; the program itself chooses where to send.
    ifindex: u32,
}

impl Runner {
    /// Opens the program.
    pub(super) fn open(pins: &Pins, ifindex: u32) -> Result<Self, ExpireError> {
        let pin = pins.programs().join(program::EXPIRE);
        let program = syscall::open_pinned(&pin).map_err(ExpireError::Open)?;
        Ok(Self { program, ifindex })
    }

    /// Sets the device for runs, one of ours.
    pub(super) fn set_device(&mut self, ifindex: u32) {
        self.ifindex = ifindex;
    }

    /// Runs the program for one connection. Returns false if there was no such connection.
    pub(super) fn run(&self, expiry: &Expiry) -> Result<bool, ExpireError> {
        Ok(self.request(expiry)? == EXPIRE_DONE)
    }

    /// Runs the program for one connection, and returns its result.
    pub(super) fn request(&self, expiry: &Expiry) -> Result<u32, ExpireError> {
        self.run_on(&packet(expiry))
    }

    /// Runs the program for each of these connections. Returns how many there were.
    pub(super) fn run_all(&self, expiries: &[Expiry]) -> Result<u32, ExpireError> {
        let mut done = 0;
        for expiry in expiries {
            done += u32::from(self.run(expiry)?);
        }
        Ok(done)
    }

    /// Ends flows, several in each run, and many on several CPUs. Returns how many there were.
    pub(super) fn end_flows(&self, mut orders: Vec<Expiry>) -> Result<u32, ExpireError> {
        let runs = runs(&mut orders);
        spread(&runs, processors().min(THREADS_MAX), |orders| self.end_several(orders))
    }

    /// Ends flows, several in each run, on this CPU. Returns how many there were.
    pub(super) fn end_here(&self, mut orders: Vec<Expiry>) -> Result<u32, ExpireError> {
        runs(&mut orders).into_iter().map(|orders| self.end_several(orders)).sum()
    }

    fn end_several(&self, orders: &[Expiry]) -> Result<u32, ExpireError> {
        if let [one] = orders {
            return self.run(one).map(u32::from);
        }
        // Less, if it did not get as far as the orders.
        Ok(self.run_on(&packet_of_several(orders))?.saturating_sub(EXPIRE_SEVERAL))
    }

    fn run_on(&self, data: &[u8]) -> Result<u32, ExpireError> {
        let mut context = [0u8; CONTEXT_IFINDEX + 4];
        context[CONTEXT_IFINDEX..].copy_from_slice(&self.ifindex.to_ne_bytes());
        // Under PREEMPT_RT the CPU's working memory may be in use by a packet, which takes microseconds.
        for _ in 0..BUSY_TRIES {
            match syscall::test_run(&self.program, data, &context).map_err(ExpireError::Run)? {
                EXPIRE_BUSY => thread::sleep(BUSY_PAUSE),
                code => return Ok(code),
            }
        }
        Err(ExpireError::Busy)
    }
}

/// Returns the number of processors that this process may use.
pub(super) fn processors() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Does the work of each run, on at most this many threads. Returns the sum of what they return, or the first error, at which
/// its thread stops.
pub(super) fn spread<T: Sync>(
    runs: &[T],
    threads_max: usize,
    work: impl Fn(&T) -> Result<u32, ExpireError> + Sync,
) -> Result<u32, ExpireError> {
    let next = AtomicUsize::new(0);
    let one = || -> Result<u32, ExpireError> {
        let mut done = 0;
        while let Some(run) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
            done += work(run)?;
        }
        Ok(done)
    };
    let more = threads_max.min(runs.len() / RUNS_OF_A_THREAD).saturating_sub(1);
    thread::scope(|scope| {
        let start = |_| thread::Builder::new().name("reaper+".into()).spawn_scoped(scope, one);
        let threads: Vec<_> = (0..more).map(start).collect();
        let mut sum = one();
        // One that could not be started leaves its part to the others.
        for thread in threads.into_iter().flatten() {
            let done = thread.join().unwrap_or_else(|panic| resume_unwind(panic));
            sum = sum.and_then(|sum| Ok(sum + done?));
        }
        sum
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::sync::{Barrier, Mutex};

    use super::*;

    #[test]
    fn each_run_is_done_once_whatever_the_threads() {
        for (runs, threads) in [(0, 4), (1, 4), (63, 4), (1_000, 1), (3_125, 4)] {
            let runs: Vec<usize> = (0..runs).collect();
            let done = Mutex::new(BTreeSet::new());
            let sum = spread(&runs, threads, |run| Ok(u32::from(done.lock().unwrap().insert(*run))));
            assert_eq!(sum.unwrap() as usize, runs.len());
            assert_eq!(done.into_inner().unwrap().len(), runs.len());
        }
    }

    /// It would never return: each thread's first run waits for that of the other.
    #[test]
    fn many_runs_are_done_on_several_threads_at_once() {
        let (runs, both) = (vec![(); 2 * RUNS_OF_A_THREAD], Barrier::new(2));
        let met = Mutex::new(BTreeSet::new());
        let first = || met.lock().unwrap().insert(format!("{:?}", thread::current().id()));
        let sum = spread(&runs, 2, |()| {
            if first() {
                both.wait();
            }
            Ok(1)
        });
        assert_eq!(sum.unwrap() as usize, runs.len());
    }

    #[test]
    fn an_error_is_reported_and_the_other_threads_go_on() {
        let (runs, done): (Vec<usize>, _) = ((0..4 * RUNS_OF_A_THREAD).collect(), AtomicUsize::new(0));
        let sum = spread(&runs, 2, |run| {
            if *run == 0 {
                return Err(ExpireError::Busy);
            }
            done.fetch_add(1, Ordering::Relaxed);
            Ok(1)
        });
        assert!(matches!(sum, Err(ExpireError::Busy)));
        assert_eq!(done.load(Ordering::Relaxed), runs.len() - 1);
    }
}
