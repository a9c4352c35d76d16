//! What tests need of the machine, and why it does not offer that.

use crate::{process, setup};
use std::fs;
use std::path::Path;

/// What the machine must offer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Needs {
    /// Nothing.
    Nothing,
    /// The right to load programs into a kernel that has what they use.
    Kernel,
    /// Network namespaces and the programs that talk through them, too.
    Lab,
    /// A Kubernetes API server, too, which Go builds.
    Control,
    /// A whole cluster, too.
    Cluster,
}

/// Why this machine does not offer it, if it does not.
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

/// Mounts the file system that pins live in, where it is not mounted.
fn bpffs() -> Option<String> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    if mounts.lines().any(|line| line.split(' ').nth(1) == Some("/sys/fs/bpf")) {
        return None;
    }
    let mounted = process::answer(process::command("mount").args(["-t", "bpf", "bpf", "/sys/fs/bpf"]));
    mounted.is_none().then(|| "/sys/fs/bpf cannot be mounted".into())
}

/// Bits of `CapEff` as in linux/capability.h.
const CAPABILITIES: &[(u32, &str)] = &[(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (39, "CAP_BPF")];

fn missing_capability(status: &str) -> Option<&'static str> {
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    CAPABILITIES.iter().find(|(bit, _)| effective & (1 << bit) == 0).map(|(_, name)| *name)
}

/// Major and minor number of a kernel release like `6.18.5-amd64`.
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
