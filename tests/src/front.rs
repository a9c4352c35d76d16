//! XDP in front of TCX, on a device of the small network.

use anyhow::{Context, Result, ensure};
use aya::programs::links::FdLink;
use aya::programs::{Xdp, XdpMode};

use crate::program::Programs;
use crate::world::Device;

impl Programs {
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
        let shown =
            world.node.command("ip").args(["-j", "link", "show", "dev", Device::Client.name()]).output()?;
        let shown: serde_json::Value =
            serde_json::from_slice(&shown.stdout).context("reading `ip`'s answer")?;
        ensure!(shown[0]["xdp"]["mode"] == 1, "front is not in the driver: {}", shown[0]["xdp"]);
        self.front = Some(link);
        Ok(())
    }
}
