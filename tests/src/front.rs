//! XDP in front of TCX: run on single frames, and on a device of the small network.

use anyhow::{Context, Result, ensure};
use aya::programs::links::{FdLink, LinkType};
use aya::programs::{Xdp, XdpMode};

use crate::pinned::xdp_on;
use crate::program::{Outcome, Programs};
use crate::world::Device;

impl Programs {
    /// Runs `front` on a frame as if it had arrived on a device; the verdict is of [`crate::program::xdp_verdict`].
    pub fn front(&mut self, device: Device, frame: &[u8]) -> Outcome {
        self.front_in_pieces(device, frame, frame.len())
    }

    /// The same for a frame of which only the first bytes are in one piece. Behind the rest there is no room.
    pub fn front_in_pieces(&mut self, device: Device, frame: &[u8], first: usize) -> Outcome {
        // `struct xdp_md`: the end of the first piece at 4, the device at 12.
        let mut context = [0; 24];
        context[4..8].copy_from_slice(&(first as u32).to_ne_bytes());
        context[12..16].copy_from_slice(&self.world.ifindex(device).to_ne_bytes());
        self.run_with("front", &context, frame, 0)
    }

    /// Attaches `front` to the client's device, too: by a link and in the driver, as the kernel is asked to confirm.
    pub fn attach_front(&mut self) -> Result<()> {
        let (world, ebpf) = (&self.world, &mut self.ebpf);
        let ifindex = world.ifindex(Device::Client);
        let link = world.node.run(|| -> Result<FdLink> {
            let program: &mut Xdp =
                ebpf.program_mut("front").context("no front in the object")?.try_into()?;
            let link = program.attach(ifindex, XdpMode::Driver).context("attaching front")?;
            // The library falls back to netlink silently.
            program.take_link(link)?.try_into().context("front has no link")
        })?;
        let info = link.info().context("asking the kernel for the link")?;
        let kind = info.link_type().context("the link's type")?;
        ensure!(kind == LinkType::Xdp, "front is attached by a link of type {kind:?}");
        let shown = xdp_on(&world.node, Device::Client.name())?;
        ensure!(
            shown == Some((1, u64::from(info.program_id()))),
            "the device shows {shown:?} as (mode, program), and not front in the driver"
        );
        self.front = Some(link);
        Ok(())
    }
}
