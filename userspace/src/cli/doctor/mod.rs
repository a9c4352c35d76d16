//! `vestibule doctor`: checks whether this node can serve, and lists what else is on its devices.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use anyhow::Result;
use common::maps::{DRAIN_ASKED, DRAIN_WITHDRAWN};
use common::reason::Reason;
use serde_json::json;

use super::Shown;
use super::print::{self, Row};
use crate::dataplane::load;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::model::Node;
use crate::net::pair::FAR;
use crate::net::sysctl;

/// The kernel, and the capabilities of this process.
mod host;
/// Devices: their programs, MTUs and offloads.
mod device;
/// Rules that do not see our packets.
mod netfilter;
/// How clients on the node itself reach addresses of listeners.
mod node_clients;
/// Rules that give others' connections our source addresses.
mod masquerade;
/// What the agent cannot follow.
mod sources;
/// Segments on which it may announce addresses.
mod segments;
/// Whether a controller leads.
mod leader;
/// What else in the cluster serves the same Services.
mod cluster;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Informative.
    Note,
    /// The node serves, but some connections may fail.
    Warning,
    /// The node cannot serve.
    Bad,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Bad => "bad",
        }
    }
}

struct Finding {
    verdict: Verdict,
    what: String,
    found: String,
    /// The remedy; empty if there is nothing to do.
    remedy: String,
}

fn finding(verdict: Verdict, what: impl Into<String>, found: impl Into<String>, remedy: &str) -> Finding {
    Finding { verdict, what: what.into(), found: found.into(), remedy: remedy.into() }
}

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// Check what else in the cluster serves the same Services instead: kube-proxy and Cilium, NodePorts, MetalLB's webhook. With the rights of
    /// a controller's pod.
    #[arg(long)]
    cluster: bool,
    #[command(flatten)]
    shown: Shown,
}

/// Checks the node and prints the findings. The exit status shows whether this node can serve.
pub(super) fn show(pins: &Pins, asked: &Args) -> Result<ExitCode> {
    let findings = if asked.cluster { cluster::look() } else { of_node(pins)? };
    let rows: Vec<Row> = findings.iter().map(row).collect();
    print::rows(&["verdict", "what", "found", "remedy"], &rows, asked.shown.output)?;
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn of_node(pins: &Pins) -> Result<Vec<Finding>> {
    let node = Node::look()?;
    let mut findings = host::kernel();
    findings.extend(host::capabilities());
    findings.extend(pinned(pins));
    findings.extend(sources::look());
    findings.extend(segments::look());
    findings.extend(leader::look().into_iter().flatten());
    findings.extend(cluster::elsewhere());
    let linked: BTreeSet<u32> = pins.linked_devices().unwrap_or_default().into_iter().collect();
    findings.extend(forwarding(&node));
    findings.extend(masquerade::look(pins, &node));
    let mut used = Vec::new();
    for (index, link) in &node.links {
        if linked.contains(index) || node.routed.contains(index) {
            findings.extend(device::look(pins, *index, link));
            // The pair takes packets of any size.
            if link.name != FAR {
                used.push(link);
            }
        }
    }
    findings.extend(node_clients::look(pins, &node));
    findings.extend(device::sizes(&used));
    findings.extend(netfilter::look());
    Ok(findings)
}

fn row(finding: &Finding) -> Row {
    let Finding { verdict, what, found, remedy } = finding;
    let verdict = verdict.text();
    Row {
        cells: vec![verdict.into(), what.clone(), found.clone(), remedy.clone()],
        json: json!({"verdict": verdict, "what": what, "found": found, "remedy": remedy}).into(),
    }
}

fn pinned(pins: &Pins) -> Vec<Finding> {
    let folder = pins.folder().display().to_string();
    let maps = match (pins.holds_maps(), load::need_version(pins)) {
        (false, _) => {
            finding(Verdict::Note, "maps", format!("none in {folder}"), "no instance runs with these pins")
        }
        (true, Ok(())) => finding(Verdict::Ok, "maps", format!("in {folder}, of this version"), ""),
        (true, Err(error)) => finding(
            Verdict::Bad,
            "maps",
            error.to_string(),
            "use the version that made them, or `vestibule detach`",
        ),
    };
    let locks = fs::read_to_string("/proc/locks").unwrap_or_default();
    let inode = fs::metadata(pins.folder()).ok().map(|folder| folder.ino());
    let writer = match inode.and_then(|inode| holder(&locks, inode)) {
        Some(pid) => finding(Verdict::Ok, "writer", format!("process {pid}"), ""),
        None => finding(
            Verdict::Note,
            "writer",
            "none that can be seen from here",
            "what is in the kernel serves on; start `vestibule agent` or `vestibule run` to follow changes",
        ),
    };
    let mut findings = vec![maps, writer];
    let draining = read::open(pins).ok().and_then(|maps| maps.drain.look_up(&0).ok().flatten());
    if draining.is_some_and(|word| word & DRAIN_WITHDRAWN != 0) {
        findings.push(finding(
            Verdict::Note,
            "withdrawn",
            "new connections are refused: Vestibule leaves the cluster, or its DaemonSet this node",
            &format!(
                "to stay, start a controller or, on this node, an agent; to leave, once no connection is open and no agent runs, \
                 reboot the node, or as root on it `ip link del vestibule-n0; rm -r {folder}`"
            ),
        ));
    }
    if draining.is_some_and(|word| word & DRAIN_ASKED != 0) {
        findings.push(finding(
            Verdict::Note,
            "draining",
            "new connections are refused",
            "`vestibule drain --cancel` takes them again",
        ));
    }
    findings.extend(busy(pins));
    findings
}

/// Reports packets that met another one on the same CPU.
fn busy(pins: &Pins) -> Option<Finding> {
    let counted = read::reasons(pins).ok()?;
    let (_, packets) = counted.into_iter().find(|(reason, _)| *reason == Reason::ParseBusy)?;
    (packets > 0).then(|| {
        finding(
            Verdict::Note,
            "packets at once",
            format!("{packets} packets came while the same CPU handled another one, and were dropped"),
            "a kernel without PREEMPT_RT; the senders repeat these packets",
        )
    })
}

/// Returns the process that has a flock(2) lock on this file, according to `/proc/locks`.
fn holder(locks: &str, inode: u64) -> Option<u32> {
    locks.lines().find_map(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, "FLOCK", _, "WRITE", pid, file, ..] = words[..] else { return None };
        let is_it = file.rsplit(':').next()?.parse::<u64>().ok()? == inode;
        is_it.then(|| pid.parse().ok()).flatten()
    })
}

fn forwarding(node: &Node) -> Vec<Finding> {
    let devices = node.defaults.iter().filter_map(|index| node.links.get(index));
    let mut findings = Vec::new();
    for link in devices {
        match sysctl::forwarding(&link.name, true, true) {
            Ok(()) => findings.push(finding(Verdict::Ok, format!("forwarding on {}", link.name), "on", "")),
            Err(error) => findings.push(finding(
                Verdict::Bad,
                format!("forwarding on {}", link.name),
                error.to_string(),
                "set it, and keep it set at boot",
            )),
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_holds_the_lock_is_read_from_what_the_kernel_writes() {
        let locks =
            "1: POSIX  ADVISORY  WRITE 700 00:1f:9 0 EOF\n2: FLOCK  ADVISORY  WRITE 812 00:2a:77 0 EOF\n";
        assert_eq!((holder(locks, 77), holder(locks, 9)), (Some(812), None));
    }
}
