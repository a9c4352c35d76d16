//! Captures for whoever looks for a fault: with `VESTIBULE_PCAP=FOLDER`, `tcpdump` writes down what each end of a lab
//! sends and receives.

use std::path::PathBuf;
use std::process::{Child, Stdio};

use anyhow::{Context, Result};

use crate::net::Namespace;

/// Bytes kept of each frame: headers with all options, and the beginning of a hello.
const SNAP_BYTES: &str = "200";

/// A running `tcpdump`; ended when dropped.
#[derive(Debug)]
pub struct Capture {
    child: Child,
}

impl Capture {
    /// Captures on a device, if captures are asked for.
    pub fn start(namespace: &Namespace, device: &str) -> Result<Option<Self>> {
        let Some(folder) = std::env::var_os("VESTIBULE_PCAP").map(PathBuf::from) else { return Ok(None) };
        let file = folder.join(format!("{}-{device}.pcap", namespace.name()));
        let mut command = namespace.command("tcpdump");
        // As root, so that a folder of ours is good enough; unbuffered, because it ends by a signal.
        command.args(["-i", device, "-s", SNAP_BYTES, "-U", "-Z", "root", "-w"]).arg(&file);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        Ok(Some(Self { child: child.context("starting tcpdump")? }))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        // It may have ended by itself: then both fail, and nothing is left to do.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
