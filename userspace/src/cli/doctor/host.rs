//! The kernel, and the capabilities of this process.

use std::fs::{self, File};
use std::io::Read;

use flate2::read::GzDecoder;

use super::{Finding, Verdict, finding};
use crate::dataplane::hooks::{self, Hook};
use crate::dataplane::pin;

/// The oldest kernel with TCX links.
const KERNEL: (u32, u32) = (6, 6);

/// Kernel options that the programs need: TCX, bpf(2), types for the verifier, JIT compilation.
const OPTIONS: [&str; 4] =
    ["CONFIG_NET_XGRESS", "CONFIG_BPF_SYSCALL", "CONFIG_DEBUG_INFO_BTF", "CONFIG_BPF_JIT"];

/// Capabilities that serving needs, with their numbers (linux/capability.h).
const NEEDED: [(&str, u32); 3] = [("CAP_NET_ADMIN", 12), ("CAP_PERFMON", 38), ("CAP_BPF", 39)];

/// The number of CAP_NET_RAW, which announcing addresses needs.
const NET_RAW: u32 = 13;

/// The number of CAP_SYS_ADMIN, which is needed to read the names of other programs.
const SYS_ADMIN: u32 = 21;

/// The index of the loopback device, the same in every network namespace.
const LOOPBACK: u32 = 1;

/// An upper limit for the size of a kernel configuration.
const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Checks that the kernel has what the programs need.
pub(super) fn kernel() -> Vec<Finding> {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let release = release.trim();
    let is_new = version(release).is_some_and(|version| version >= KERNEL);
    let kernel = if is_new { Verdict::Ok } else { Verdict::Bad };
    let has_btf = fs::metadata("/sys/kernel/btf/vmlinux").is_ok();
    let btf = if has_btf { Verdict::Ok } else { Verdict::Bad };
    let mut findings = vec![
        finding(kernel, "kernel", release, if is_new { "" } else { "Linux 6.6 or newer: TCX links" }),
        finding(
            btf,
            "BTF",
            if has_btf { "there" } else { "missing" },
            if has_btf { "" } else { "a kernel with CONFIG_DEBUG_INFO_BTF=y" },
        ),
    ];
    findings.push(match config(release) {
        Some(config) => judged(&config),
        None => finding(Verdict::Note, "kernel options", "cannot be read here", "see `tcx` below"),
    });
    findings.extend([tcx(), jit(), bpffs()]);
    findings
}

/// Returns the configuration of the running kernel, if it is readable.
fn config(release: &str) -> Option<String> {
    let mut text = String::new();
    if let Ok(file) = File::open("/proc/config.gz") {
        GzDecoder::new(file).take(CONFIG_BYTES_MAX).read_to_string(&mut text).ok()?;
        return Some(text);
    }
    fs::read_to_string(format!("/boot/config-{release}")).ok()
}

fn judged(config: &str) -> Finding {
    let is_set = |option: &str| {
        config
            .lines()
            .filter_map(|line| line.split_once('='))
            .any(|(name, value)| name == option && value == "y")
    };
    let missing: Vec<&str> = OPTIONS.into_iter().filter(|option| !is_set(option)).collect();
    match missing[..] {
        [] => finding(Verdict::Ok, "kernel options", "all there", ""),
        _ => finding(
            Verdict::Bad,
            "kernel options",
            format!("missing: {}", missing.join(", ")),
            "a kernel built with them",
        ),
    }
}

/// Checks for TCX: without it, the query for the programs on loopback fails.
fn tcx() -> Finding {
    match hooks::programs(LOOPBACK, Hook::TcxIngress) {
        Ok(_) => finding(Verdict::Ok, "tcx", "there", ""),
        Err(error) if error.raw_os_error() == Some(libc::EPERM) => {
            finding(Verdict::Note, "tcx", "may not be asked for", "needs CAP_NET_ADMIN")
        }
        Err(error) => finding(Verdict::Bad, "tcx", error.to_string(), "Linux 6.6 with CONFIG_NET_XGRESS=y"),
    }
}

/// Checks for the JIT compiler. Without it, programs are interpreted, which is many times slower.
fn jit() -> Finding {
    const SETTING: &str = "net.core.bpf_jit_enable";
    match fs::read_to_string("/proc/sys/net/core/bpf_jit_enable") {
        Ok(text) if text.trim() == "0" => finding(
            Verdict::Bad,
            SETTING,
            "0: programs are interpreted",
            "`sysctl -w net.core.bpf_jit_enable=1`",
        ),
        Ok(text) => finding(Verdict::Ok, SETTING, text.trim(), ""),
        // Only root of the initial user namespace may read it.
        Err(error) => finding(Verdict::Note, SETTING, format!("cannot be read: {error}"), ""),
    }
}

fn bpffs() -> Finding {
    match pin::has_bpffs() {
        true => finding(Verdict::Ok, "bpffs", pin::BPFFS, ""),
        false => finding(
            Verdict::Bad,
            "bpffs",
            format!("not mounted at {}", pin::BPFFS),
            "`mount -t bpf bpf /sys/fs/bpf`; `vestibule run` as root does it itself",
        ),
    }
}

/// Returns the major and minor number of a release such as `6.12.9-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

/// Checks that this process has the capabilities that serving needs.
pub(super) fn capabilities() -> Vec<Finding> {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let bits = effective(&status).unwrap_or(0);
    let names = match has(bits, SYS_ADMIN) {
        true => finding(Verdict::Ok, "names of others' programs", "shown", ""),
        false => finding(
            Verdict::Note,
            "names of others' programs",
            "not shown: the kernel shows them to CAP_SYS_ADMIN only",
            "run it as root on the node to see them",
        ),
    };
    vec![serving(bits), names]
}

fn has(bits: u64, number: u32) -> bool {
    bits & (1 << number) != 0
}

fn serving(bits: u64) -> Finding {
    // CAP_SYS_ADMIN includes the capabilities that were split off from it.
    let missing: Vec<&str> = NEEDED
        .iter()
        .filter(|(name, number)| !has(bits, *number) && !(has(bits, SYS_ADMIN) && *name != "CAP_NET_ADMIN"))
        .map(|(name, _)| *name)
        .collect();
    match missing[..] {
        [] if has(bits, NET_RAW) => {
            finding(Verdict::Ok, "capabilities", "enough to serve and to announce addresses", "")
        }
        [] => finding(
            Verdict::Note,
            "capabilities",
            "enough to serve, but not to announce addresses: CAP_NET_RAW is missing",
            "none without `addresses.l2` and `metallb.namespaces`; the chart gives it with either",
        ),
        _ => finding(
            Verdict::Bad,
            "capabilities",
            format!("missing: {}", missing.join(", ")),
            "run it as root on the node, or in the agent's pod",
        ),
    }
}

fn effective(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
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
    }

    #[test]
    fn what_announcing_needs_is_asked_for_beside_what_serving_needs() {
        let bits = |numbers: &[u32]| numbers.iter().fold(0, |bits, number| bits | 1 << number);
        let serves = [12, 38, 39];
        let with = |number| serving(bits(&[12, 38, 39, number]));
        let without = serving(bits(&serves));
        assert_eq!(without.verdict, Verdict::Note);
        assert!(without.found.contains("CAP_NET_RAW"), "{}", without.found);
        assert_eq!(with(NET_RAW).verdict, Verdict::Ok);
        let none = serving(bits(&[38, NET_RAW]));
        assert_eq!((none.verdict, &*none.found), (Verdict::Bad, "missing: CAP_NET_ADMIN, CAP_BPF"));
    }

    #[test]
    fn options_that_are_not_built_in_are_named() {
        let all = OPTIONS.map(|option| format!("{option}=y\n")).concat();
        assert_eq!(judged(&all).verdict, Verdict::Ok);
        let found = judged(&all.replace("CONFIG_NET_XGRESS=y", "# CONFIG_NET_XGRESS is not set"));
        assert_eq!((found.verdict, found.found.as_str()), (Verdict::Bad, "missing: CONFIG_NET_XGRESS"));
        assert_eq!(judged(&all.replace("BPF_JIT=y", "BPF_JIT=m")).verdict, Verdict::Bad);
    }
}
