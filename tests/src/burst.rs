//! Packets as a program gets them, and many of them as fast as possible.

use crate::program::{Programs, run_once};
use crate::world::Device;

/// Room for a packet of the usual MTU.
const ROOM: usize = 2_048;

impl Programs {
    /// Runs `ingress` on each of the frames, as if they had arrived on a device; returns them as the program left them.
    pub fn ingress_all(&mut self, device: Device, frames: &[Vec<u8>]) -> Vec<Vec<u8>> {
        let context = GsoContext::default().bytes(self.world.ifindex(device));
        let (world, ebpf) = (&self.world, &self.ebpf);
        let run = |frame: &Vec<u8>| run_once(ebpf, "ingress", frame, (&context, 0), ROOM).1;
        world.node.run(|| frames.iter().map(run).collect())
    }
}

/// The GSO fields of `struct __sk_buff` that a test run sets.
#[derive(Clone, Copy, Default)]
pub(crate) struct GsoContext {
    pub(crate) gso_size: u32,
    pub(crate) gso_segments: u32,
}

impl GsoContext {
    /// `struct __sk_buff` (include/uapi/linux/bpf.h): `ifindex` at 40, `gso_segs` at 164, `gso_size` at 176.
    pub(crate) fn bytes(self, ifindex: u32) -> [u8; 192] {
        let mut bytes = [0; 192];
        bytes[40..44].copy_from_slice(&ifindex.to_ne_bytes());
        bytes[164..168].copy_from_slice(&self.gso_segments.to_ne_bytes());
        bytes[176..180].copy_from_slice(&self.gso_size.to_ne_bytes());
        bytes
    }
}
