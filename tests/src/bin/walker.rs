//! `walker PINS`: walks over all flows as the daemon does, with its clock ahead. Each line of its input is a walk: the seconds by which the
//! monotonic clock is ahead. It answers by the number of flows that were ended.
//!
//! A time namespace sets the clock, and only a process of one thread may enter one after the other.

use std::fs::{self, File};
use std::io;
use std::path::PathBuf;

use anyhow::{Context, Result};
use nix::sched::{CloneFlags, setns, unshare};
use userspace::dataplane::expire::Expirer;
use userspace::dataplane::pin::Pins;

/// Any device of the namespace does: the program itself chooses where to send.
const LOOPBACK: u32 = 1;

fn main() -> Result<()> {
    let folder = std::env::args_os().nth(1).context("which pins?")?;
    let mut expirer = Expirer::open(&Pins::new(&PathBuf::from(folder)), LOOPBACK)?;
    for line in io::stdin().lines() {
        let line = line?;
        let secs = line.parse().with_context(|| format!("`{line}` is no number of seconds"))?;
        be_ahead(secs).context("setting the clock")?;
        let settings = expirer.maps().settings.look_up(&0)?.context("no settings")?;
        println!("{}", expirer.sweep_flows(&settings)?.flows);
    }
    Ok(())
}

/// Sets the monotonic clock of this process this number of seconds ahead of the machine's.
fn be_ahead(secs: u64) -> Result<()> {
    let time = CloneFlags::from_bits_retain(libc::CLONE_NEWTIME);
    unshare(time).context("unshare(CLONE_NEWTIME)")?;
    fs::write("/proc/self/timens_offsets", format!("monotonic {secs} 0\n"))?;
    let made = File::open("/proc/self/ns/time_for_children")?;
    setns(made, time).context("setns(CLONE_NEWTIME)")
}
