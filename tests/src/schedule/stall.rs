//! Another CPU has the lock of a hash map's bucket, and its host stops it. A change of the bucket waits for a quarter
//! of a second, and is then refused (kernel: `RES_DEF_TIMEOUT`).

use std::mem::offset_of;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::yield_now;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use nix::sched::sched_setaffinity;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork};

use super::code::{Code, JUMP_UNLESS_EQUAL, R1};
use super::{
    Change, Element, MAP_UPDATE_ELEM, PROG_TYPE_PERF_EVENT, PROG_TYPE_SCHED_CLS, Place, Told, array, bpf,
    load, run, stop_at, told,
};
use crate::at_once::{only, two_cpus};
use crate::program::{Pod, Programs};

/// The longest time for which the lock is held, in nanoseconds.
const HELD_MAX: i32 = 2_000_000_000;
/// Within this time it has not given it back by itself.
const FORCED: Duration = Duration::from_millis(1_500);
/// Bytes that the small program copies in each round while it holds the lock.
const COPIED: usize = 32 << 20;
/// The time within which the other CPU has the lock.
const PATIENCE: Duration = Duration::from_secs(10);

/// One at a time: two of them would want the same processor.
static TURN: Mutex<()> = Mutex::new(());

/// A bucket that another CPU keeps locked.
#[derive(Debug)]
pub struct Stall {
    told: OwnedFd,
    holder: Pid,
    since: Instant,
    _turn: MutexGuard<'static, ()>,
}

impl Stall {
    /// Has the other CPU give the bucket back, and waits until it has. `false`: it may have given it back before by itself, for
    /// this thread had to wait for that CPU. Then nothing was forced.
    #[must_use]
    pub fn end(self) -> bool {
        let (key, done) = (0u32, Told { done: 1, ..told(&self.told) });
        let attr = Element {
            map: self.told.as_raw_fd(),
            key: std::ptr::from_ref(&key) as u64,
            value: std::ptr::from_ref(&done) as u64,
            ..Element::default()
        };
        let forced = self.since.elapsed() < FORCED;
        bpf(MAP_UPDATE_ELEM, &attr).expect("an array has its elements");
        go_first(false);
        assert_eq!(waitpid(self.holder, None), Ok(WaitStatus::Exited(self.holder, 0)));
        forced
    }
}

impl Programs {
    /// Keeps the bucket of an element of a hash map locked until [`Stall::end`], for two seconds at most. From now on, this
    /// thread runs on one processor; the lock is held on another one.
    pub fn stall<K: Pod, V: Pod>(&self, map: &'static str, key: &K, value: &V) -> Result<Stall> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let [other, own] = two_cpus()?;
        let (own, other) = (only(own)?, only(other)?);
        let (map_of_told, copied) = (array(size_of::<Told>())?, array(COPIED)?);
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
        code.linger(map_of_told.as_fd(), offset_of!(Told, done), copied.as_fd(), (COPIED, HELD_MAX));
        let linger = load(PROG_TYPE_PERF_EVENT, code).context("loading the loop")?;
        sched_setaffinity(Pid::from_raw(0), &own)?;
        go_first(true);
        // This thread may be stopped itself, as a virtual machine's processors are: the lock is not held before this moment.
        let since = Instant::now();
        // A process of its own: this one's memory would otherwise be on the other processor, which answers no request to forget
        // a mapping while it holds the lock.
        // SAFETY: the child calls the kernel alone, and ends.
        let holder = match unsafe { fork() }? {
            ForkResult::Parent { child } => child,
            ForkResult::Child => {
                let held = sched_setaffinity(Pid::from_raw(0), &other).is_ok()
                    && stop_at(address, &linger).is_ok_and(|_stop| run(&store).is_ok());
                // SAFETY: nothing of this process is cleaned up.
                unsafe { libc::_exit(i32::from(!held)) }
            }
        };
        let until = Instant::now() + PATIENCE;
        while told(&map_of_told).accesses == 0 {
            ensure!(Instant::now() < until, "the other processor does not lock the bucket");
            yield_now();
        }
        Ok(Stall { told: map_of_told, holder, since, _turn: turn })
    }
}

/// Has this thread, and the process that it creates, run before all others of its processor, or no longer: on a busy machine, the
/// second may be over before this thread runs again.
fn go_first(first: bool) {
    let (policy, priority) = if first { (libc::SCHED_FIFO, 1) } else { (libc::SCHED_OTHER, 0) };
    let parameters = libc::sched_param { sched_priority: priority };
    // SAFETY: the parameters outlive the call. Refused where processes may have no such priority.
    unsafe { libc::sched_setscheduler(0, policy, &raw const parameters) };
}
