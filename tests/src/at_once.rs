//! Two packets at the same moment, on two CPUs.

use std::sync::atomic::{AtomicU32, Ordering};

use common::reason::Reason;
use nix::sched::{CpuSet, sched_setaffinity};
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
    /// Runs both packets at the same moment.
    pub fn at_once(&mut self, both: &[Given; 2]) -> BothDone {
        self.world.drain();
        let before = self.counters();
        let world = &self.world;
        let sent = || world.node.run(|| sent_inside().expect("the node's devices are counted"));
        let sent_before = sent();
        let waiting = AtomicU32::new(2);
        let left = std::thread::scope(|scope| {
            let threads = [0, 1].map(|cpu| {
                let (given, waiting) = (&both[cpu], &waiting);
                let (ebpf, context) = (&self.ebpf, self.context(given.device));
                scope.spawn(move || {
                    world.node.enter();
                    pin(cpu);
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

/// Keeps the thread on this CPU. If that is not possible, the scheduler chooses.
pub fn pin(cpu: usize) {
    let mut set = CpuSet::new();
    if set.set(cpu).is_ok() {
        let _ = sched_setaffinity(Pid::from_raw(0), &set);
    }
}
