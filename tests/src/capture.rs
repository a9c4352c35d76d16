//! Packet captures for debugging: with `VESTIBULE_PCAP=FOLDER`, `tcpdump` records what each end of a lab
//! sends and receives.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Bytes captured of each frame: the headers with all options, and the start of a hello.
const SNAP_BYTES: &str = "200";

/// A running `tcpdump`; killed when dropped.
#[derive(Debug)]
pub struct Capture {
    child: Child,
}

impl Capture {
    /// Starts a capture on a device if captures are enabled.
    pub fn start(namespace: &Namespace, device: &str) -> Result<Option<Self>> {
        let Some(folder) = std::env::var_os("VESTIBULE_PCAP").map(PathBuf::from) else { return Ok(None) };
        let file = folder.join(format!("{}-{device}.pcap", namespace.name()));
        let mut command = namespace.command("tcpdump");
        // `-Z root` keeps root rights, so that any folder of ours is writable. `-U` is unbuffered, because a
        // signal ends it.
        command.args(["-i", device, "-s", SNAP_BYTES, "-U", "-Z", "root", "-w"]).arg(&file);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Some(Self { child: child.context("starting tcpdump")? }))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // It may have ended already: then both calls fail, and there is nothing left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
