//! `vestibule doctor`: whether this node can serve, and what else is on its devices.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::ExitCode;

use anyhow::Result;
use serde_json::json;

use super::Format;
use super::print::{self, Row};
use crate::dataplane::hooks::{self, Attached, Hook};
use crate::dataplane::load;
use crate::dataplane::pin::Pins;
use crate::net::filters;
use crate::net::node::Node;
use crate::net::sysctl;

/// The oldest kernel with TCX links.
const KERNEL: (u32, u32) = (6, 6);

/// Capabilities that serving needs, by their number (linux/capability.h).
const NEEDED: [(&str, u32); 3] = [("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];

/// What names of others' programs need.
const SYS_ADMIN: u32 = 21;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    Ok,
    /// Worth knowing.
    Note,
    /// It keeps the node from serving.
    Bad,
}

impl Verdict {
    fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Note => "note",
            Self::Bad => "bad",
        }
    }
}

struct Finding {
    verdict: Verdict,
    what: String,
    found: String,
    /// What to do about it; empty where nothing is to be done.
    remedy: String,
}

fn finding(verdict: Verdict, what: impl Into<String>, found: impl Into<String>, remedy: &str) -> Finding {
    Finding { verdict, what: what.into(), found: found.into(), remedy: remedy.into() }
}

/// Looks, prints, and says by its exit status whether this node can serve.
pub(super) fn show(pins: &Pins, format: Format) -> Result<ExitCode> {
    let node = Node::look()?;
    let mut findings = kernel();
    findings.extend(capabilities());
    findings.extend(pinned(pins));
    let linked: BTreeSet<u32> = pins.linked_devices().unwrap_or_default().into_iter().collect();
    findings.extend(forwarding(&node));
    for (index, link) in &node.links {
        if linked.contains(index) || node.routed.contains(index) {
            findings.extend(device(pins, *index, &link.name));
        }
    }
    let rows: Vec<Row> = findings.iter().map(row).collect();
    print::rows(&["verdict", "what", "found", "remedy"], &rows, format)?;
    let is_bad = findings.iter().any(|finding| finding.verdict == Verdict::Bad);
    Ok(if is_bad { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn row(finding: &Finding) -> Row {
    let Finding { verdict, what, found, remedy } = finding;
    let verdict = verdict.text();
    Row {
        cells: vec![verdict.into(), what.clone(), found.clone(), remedy.clone()],
        json: json!({"verdict": verdict, "what": what, "found": found, "remedy": remedy}).into(),
    }
}

fn kernel() -> Vec<Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let is_new = version(release).is_some_and(|version| version >= KERNEL);
    let kernel = if is_new { Verdict::Ok } else { Verdict::Bad };
    let has_btf = fs::metadata("/sys/kernel/btf/vmlinux").is_ok();
    let btf = if has_btf { Verdict::Ok } else { Verdict::Bad };
    vec![
        finding(kernel, "kernel", release, if is_new { "" } else { "Linux 6.6 or newer: TCX links" }),
        finding(
            btf,
            "BTF",
            if has_btf { "there" } else { "missing" },
            if has_btf { "" } else { "a kernel with CONFIG_DEBUG_INFO_BTF=y" },
        ),
    ]
}

/// Major and minor number of a release such as `6.12.9-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

fn capabilities() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = effective(&status).unwrap_or(0);
    let has = |number: u32| bits & (1 << number) != 0;
    // CAP_SYS_ADMIN stands for those that were split off from it.
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(name, number)| !has(*number) && !(has(SYS_ADMIN) && *name != "CAP_NET_ADMIN"))
        .map(|(name, _)| *name)
        .collect();
    let serving = match missing[..] {
        [] => finding(Verdict::Ok, "capabilities", "enough to serve", ""),
        _ => finding(
            Verdict::Bad,
            "capabilities",
            format!("missing: {}", missing.join(", ")),
            "run it as root on the node, or in the agent's pod",
        ),
    };
    let names = match has(SYS_ADMIN) {
        true => finding(Verdict::Ok, "names of others' programs", "shown", ""),
        false => finding(
            Verdict::Note,
            "names of others' programs",
            "not shown: the kernel tells them to CAP_SYS_ADMIN only",
            "run it as root on the node to see them",
        ),
    };
    vec![serving, names]
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn pinned(pins: &Pins) -> Vec<Finding> {
    let folder = pins.folder().display().to_string();
    let maps = match (pins.holds_maps(), load::need_version(pins)) {
        (false, _) => {
            finding(Verdict::Note, "maps", format!("none in {folder}"), "no instance runs with these pins")
        }
        (true, Ok(())) => finding(Verdict::Ok, "maps", format!("in {folder}, of this version"), ""),
        (true, Err(error)) => {
            finding(Verdict::Bad, "maps", error.to_string(), "use the version that made them, or detach")
        }
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
    vec![maps, writer]
}

/// Who holds a lock by flock(2) on this file, as `/proc/locks` tells.
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

/// What is on a device: our program, others', and what its own settings mean for packets that are handed on.
fn device(pins: &Pins, index: u32, name: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let ours = hooks::ours(pins).ok().flatten();
    for hook in Hook::ALL {
        let what = format!("{name} {}", hook.text());
        match hooks::programs(index, hook) {
            Ok(programs) if programs.is_empty() => {}
            Ok(programs) => findings.push(order(what, &programs, ours)),
            Err(error) => findings.push(finding(
                Verdict::Note,
                what,
                format!("cannot be asked: {error}"),
                "needs CAP_NET_ADMIN",
            )),
        }
    }
    for filter in filters::filters(index) {
        let program = filter.id.map(|id| named(&Attached { id, name: filter.name.clone() }));
        let found = program.unwrap_or_else(|| format!("a filter of kind {}", filter.kind));
        findings.push(finding(
            Verdict::Note,
            format!("{name} {}", filter.hook),
            found,
            "runs behind TCX programs",
        ));
    }
    let strict = |device: &str| {
        let path = format!("/proc/sys/net/ipv4/conf/{device}/rp_filter");
        fs::read_to_string(path).is_ok_and(|text| text.trim() == "1")
    };
    if strict(name) || strict("all") {
        findings.push(finding(
            Verdict::Note,
            format!("rp_filter on {name}"),
            "strict",
            "of no effect on what our programs send on; it judges what they hand to the node itself",
        ));
    }
    findings
}

/// Programs of a hook in the order they run.
fn order(what: String, programs: &[Attached], ours: Option<u32>) -> Finding {
    let place = programs.iter().position(|program| Some(program.id) == ours);
    let list: Vec<String> = programs
        .iter()
        .map(|program| match Some(program.id) == ours {
            true => format!("#{} (ours)", program.id),
            false => named(program),
        })
        .collect();
    let (verdict, remedy) = match place {
        Some(1..) => (Verdict::Note, "others run before ours and may take packets for our addresses"),
        Some(0) | None => (Verdict::Ok, ""),
    };
    finding(verdict, what, list.join(", then "), remedy)
}

fn named(program: &Attached) -> String {
    match &program.name {
        Some(name) => format!("#{} {name}", program.id),
        None => format!("#{}", program.id),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_what_the_kernel_writes() {
        assert_eq!(version("6.12.9-amd64"), Some((6, 12)));
        assert_eq!(version("6.6"), Some((6, 6)));
        assert_eq!(version("linux"), None);
        assert_eq!(effective("Name:\tx\nCapEff:\t000001ffffffffff\n"), Some(0x1ff_ffff_ffff));
        assert_eq!(effective(""), None);
        let locks =
            "1: POSIX  ADVISORY  WRITE 700 00:1f:9 0 EOF\n2: FLOCK  ADVISORY  WRITE 812 00:2a:77 0 EOF\n";
        assert_eq!((holder(locks, 77), holder(locks, 9)), (Some(812), None));
    }

    #[test]
    fn the_order_is_shown_and_who_is_before_us_is_noted() {
        let program = |id, name: Option<&str>| Attached { id, name: name.map(str::to_owned) };
        let both = [program(7, Some("cil_from_netdev")), program(9, None)];
        let found = order("eth0 tcx/ingress".into(), &both, Some(9));
        assert_eq!(
            (found.verdict, found.found.as_str()),
            (Verdict::Note, "#7 cil_from_netdev, then #9 (ours)")
        );
        let found = order("eth0 tcx/ingress".into(), &both, Some(7));
        assert_eq!((found.verdict, found.found.as_str()), (Verdict::Ok, "#7 (ours), then #9"));
        assert_eq!(order(String::new(), &both, None).verdict, Verdict::Ok);
    }
}
