//! Two packets at the same moment, on two CPUs.

use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, bail};
use common::reason::Reason;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::program::{Programs, run_once};
use crate::world::{Device, sent_inside};

/// A packet for one of the programs.
#[derive(Clone, Debug)]
pub struct Given {
    /// `ingress`, or `expire` with an order in the packet.
    pub program: &'static str,
    pub device: Device,
    pub frame: Vec<u8>,
    /// Steps of a busy loop between the common start and the packet: which of the two is ahead, and by how much.
    pub delay: u32,
}

/// What became of both packets.
#[derive(Clone, Debug, Default)]
pub struct BothDone {
    /// The verdict of each, and the packet as the program left it.
    pub left: Vec<(u32, Vec<u8>)>,
    /// Frames that the programs emitted themselves, in the order of their arrival.
    pub emitted: Vec<Vec<u8>>,
    /// Every counter that changed, and by how much.
    pub counted: Vec<(Reason, u64)>,
}

impl Programs {
    /// Runs both packets at the same moment. Where there is one CPU alone, the scheduler chooses.
    pub fn at_once(&mut self, both: &[Given; 2]) -> BothDone {
        let cpus = two_cpus().ok();
        self.world.drain();
        let before = self.counters();
        let world = &self.world;
        let sent = || world.node.run(|| sent_inside().expect("the node's devices are counted"));
        let sent_before = sent();
        let waiting = AtomicU32::new(2);
        let left = std::thread::scope(|scope| {
            let threads = [0, 1].map(|number| {
                let (given, waiting) = (&both[number], &waiting);
                let (ebpf, context) = (&self.ebpf, self.context(given.device));
                scope.spawn(move || {
                    world.node.enter();
                    if let Some(cpus) = cpus {
                        pin(cpus[number]);
                    }
                    waiting.fetch_sub(1, Ordering::SeqCst);
                    while waiting.load(Ordering::SeqCst) != 0 {
                        std::hint::spin_loop();
                    }
                    for _ in 0..given.delay {
                        std::hint::spin_loop();
                    }
                    run_once(ebpf, given.program, &given.frame, (&context, 0), 65_536)
                })
            });
            threads.map(|thread| thread.join().expect("the packet runs")).to_vec()
        });
        let emitted = self.world.receive(sent() - sent_before).into_iter().map(|(_, frame)| frame).collect();
        let after = self.counters();
        let moved = |reason: &Reason| (*reason, after[reason] - before[reason]);
        let counted = Reason::ALL.iter().map(moved).filter(|(_, by)| *by != 0).collect();
        BothDone { left, emitted, counted }
    }
}

/// Returns the first two CPUs that the process may run on. This thread may have been pinned to one before.
pub fn two_cpus() -> Result<[usize; 2]> {
    let allowed = sched_getaffinity(Pid::this()).context("asking for the CPUs of this process")?;
    let mut cpus = (0..CpuSet::count()).filter(|cpu| allowed.is_set(*cpu).unwrap_or(false));
    match (cpus.next(), cpus.next()) {
        (Some(first), Some(second)) => Ok([first, second]),
        _ => bail!("needs two CPUs, and the process may run on one: see taskset(1)"),
    }
}

/// Returns the set of this CPU alone.
pub fn only(cpu: usize) -> Result<CpuSet> {
    let mut set = CpuSet::new();
    set.set(cpu).with_context(|| format!("CPU {cpu}"))?;
    Ok(set)
}

/// Keeps the thread on this CPU. If that is not possible, the scheduler chooses.
pub fn pin(cpu: usize) {
    if let Ok(set) = only(cpu) {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}
