//! Another CPU has the lock of a hash map's bucket, and its host stops it. A change of the bucket waits for a quarter
//! of a second, and is then refused (kernel: `RES_DEF_TIMEOUT`).

use std::mem::offset_of;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::thread::{JoinHandle, yield_now};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use super::code::{Code, JUMP_UNLESS_EQUAL, R1};
use super::{
    Change, PROG_TYPE_PERF_EVENT, PROG_TYPE_SCHED_CLS, Place, Told, array, load, run, stop_at, told,
};
use crate::program::{Pod, Programs};

/// How long the lock is held, in nanoseconds.
const HELD: i32 = 1_000_000_000;
/// Bytes that the small program copies in each round while it holds the lock.
const COPIED: usize = 4 << 20;
/// The time within which the other CPU has the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// A bucket that another CPU keeps locked.
#[derive(Debug)]
pub struct Stall {
    holder: JoinHandle<()>,
}

impl Stall {
    /// Waits until the other CPU has given the bucket back.
    pub fn end(self) {
        self.holder.join().expect("it changes nothing");
    }
}

impl Programs {
    /// Keeps the bucket of an element of a hash map locked for a second, from now on. From now on, this thread runs on one
    /// processor; the lock is held on another one.
    pub fn stall<K: Pod, V: Pod>(&self, map: &'static str, key: &K, value: &V) -> Result<Stall> {
        let [own, other] = two_processors()?;
        let (map_of_told, copied) = (Arc::new(array(size_of::<Told>())?), array(COPIED)?);
        // Storing an element that is there changes nothing. Its key is read while its bucket is locked.
        let refused = Change::insert(map, key, value);
        let value = refused.value()?;
        let mut code = Code::default();
        code.change(self.map_fd(map), &refused, value.as_ref().map(AsFd::as_fd));
        let store = load(PROG_TYPE_SCHED_CLS, code).context("loading the change that is refused")?;
        let address = self.address_of(&Place::looked_up(map, key), &map_of_told)?;
        let mut code = Code::default();
        code.add(map_of_told.as_fd(), offset_of!(Told, accesses));
        code.end_if(JUMP_UNLESS_EQUAL, R1, 0);
        code.linger(copied.as_fd(), COPIED, HELD);
        let linger = load(PROG_TYPE_PERF_EVENT, code).context("loading the loop")?;
        sched_setaffinity(Pid::from_raw(0), &own)?;
        let holder = std::thread::spawn(move || {
            sched_setaffinity(Pid::from_raw(0), &other).expect("the processor is there");
            let _stop = stop_at(address, &linger).expect("a hardware breakpoint");
            run(&store).expect("a run");
        });
        let until = Instant::now() + PATIENCE;
        while told(&map_of_told).accesses == 0 {
            ensure!(Instant::now() < until, "the other processor does not lock the bucket");
            yield_now();
        }
        Ok(Stall { holder })
    }
}

/// Returns two sets of one processor each.
fn two_processors() -> Result<[CpuSet; 2]> {
    // Of the process: this thread may have been put on one processor by an earlier stall.
    let all = sched_getaffinity(Pid::this())?;
    let mut sets = (0..CpuSet::count()).filter(|cpu| all.is_set(*cpu).unwrap_or(false)).map(|cpu| {
        let mut set = CpuSet::new();
        set.set(cpu).map(|()| set)
    });
    let (Some(last), Some(first)) = (sets.next(), sets.next()) else {
        anyhow::bail!("two processors are needed");
    };
    Ok([first?, last?])
}
