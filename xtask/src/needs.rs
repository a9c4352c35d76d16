//! What tests need from the machine, and why it does not provide that.

use crate::{process, setup};
use std::fs;
use std::path::Path;

/// What the machine must provide.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// Permission to load programs, and a kernel that has what they use.
    Kernel,
    /// Also network namespaces and the programs that talk through them.
    Lab,
    /// Also a Kubernetes API server, which is built with Go.
    Control,
    /// Also MetalLB's controller.
    Witness,
    /// Also a whole cluster.
    Cluster,
}

/// Returns why this machine does not provide it; `None`: it does.
pub(crate) fn obstacle(needs: Needs) -> Option<String> {
    if needs == Needs::Nothing {
        return None;
    }
    if !process::is_root() {
        return Some("not root: programs cannot be loaded into the kernel".into());
    }
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    if let Some(name) = missing_capability(&status) {
        return Some(format!("root without {name}; in a container, run it privileged"));
    }
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    if version(&release) < Some((6, 6)) {
        return Some(format!("kernel {} has no TCX, which came with 6.6", release.trim()));
    }
    if !Path::new("/sys/kernel/btf/vmlinux").exists() {
        return Some("this kernel has no BTF (/sys/kernel/btf/vmlinux)".into());
    }
    bpffs().or_else(|| setup::go::missing().filter(|_| needs >= Needs::Control))
}

/// Mounts the BPF file system, which contains pins, if it is not mounted.
fn bpffs() -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.split(' ').nth(1) == Some("/sys/fs/bpf")) {
        return None;
    }
    let mounted = process::answer(process::command("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]));
    mounted.is_none().then(|| "/sys/fs/bpf cannot be mounted".into())
}

/// Bits of `CapEff`, as in linux/capability.h.
const CAPABILITIES: &[(u32, &str)] = &[(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

fn missing_capability(status: &str) -> Option<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    CAPABILITIES.iter().find(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| *name)
}

/// Parses major and minor number of a kernel release like `6.18.5-amd64`.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(|c: char| !c.is_ascii_digit()).map(str::parse);
    Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_releases_compare_as_numbers() {
        assert!(version("6.18.5") >= Some((6, 6)));
        assert!(version("6.1.0-40-amd64\n") < Some((6, 6)));
        assert!(version("") < Some((6, 6)));
    }

    #[test]
    fn a_missing_capability_is_named() {
        assert_eq!(missing_capability("CapEff:\t000001ffffffffff\n"), None);
        assert_eq!(missing_capability("CapEff:\t00000000a80425fb\n"), Some("CAP_NET_ADMIN"));
    }
}
