//! What a run of a program takes, as the kernel measures it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use anyhow::{Context, Result};

use crate::program::{Programs, descriptor};
use crate::test_run;
use crate::world::Device;

/// Runs `ingress` on frames of one device. May be used by any thread in the node's namespace.
#[derive(Clone, Copy, Debug)]
pub struct Timed<'p> {
    program: BorrowedFd<'p>,
    context: [u8; 192],
}

impl Programs {
    /// Prepares runs of `ingress` on frames as if they arrived on a device.
    pub fn timed(&self, device: Device) -> Result<Timed<'_>> {
        let program = self.ebpf.program("ingress").context("no ingress in the object")?;
        Ok(Timed { program: descriptor(program)?.as_fd(), context: self.context(device) })
    }
}

impl Timed<'_> {
    /// Runs it once on a frame. Returns its verdict, see [`crate::program::verdict`], and the nanoseconds of the run, the call and the
    /// frame's copies not included.
    pub fn run(&self, frame: &[u8]) -> io::Result<(u32, u32)> {
        test_run::timed(self.program, frame, &self.context)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program::verdict;

    #[test]
    fn a_run_takes_a_while_and_has_a_verdict() {
        crate::skip_without_root!();
        let programs = Programs::load().unwrap();
        let timed = programs.timed(Device::Client).unwrap();
        // Of a protocol that is not ours.
        let frame = [[0xff; 12].as_slice(), &[0x88, 0xcc], &[0; 46]].concat();
        // The first ones may find nothing in the caches, and any may be interrupted.
        let runs = programs.world.node.run(|| [(); 10].map(|()| timed.run(&frame).unwrap()));
        assert!(runs.iter().all(|(next, _)| *next == verdict::NEXT), "{runs:?}");
        let least = runs.iter().map(|(_, took)| *took).min().unwrap_or_default();
        assert!((1..1_000_000).contains(&least), "{runs:?}");
    }
}
