//! One level of tests: what it needs, how it runs.

use crate::build::Built;
use crate::cluster::Surroundings;
use crate::failure::Outcome;
use crate::report::Report;
use crate::{process, setup};
use std::fs;
use std::io::BufReader;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A level of tests: one `cargo test` each.
pub(crate) struct Level {
    /// As named on the command line.
    pub name: &'static str,
    /// What cargo is told to test.
    pub targets: &'static [&'static str],
    /// What the machine must offer.
    pub needs: Needs,
}

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

/// How long a level may take in CI before it counts as hanging.
const CI_LIMIT: &str = "20m";

/// Tests of a lab mostly wait, for time limits and repetitions: more of them at once than there are cores.
const LAB_THREADS: &str = "6";

impl Level {
    /// Builds and runs the level's tests, shows them, counts them.
    pub(crate) fn run(&self, built: Option<&Built>, surroundings: &Surroundings) -> Outcome<Report> {
        println!("\n== {} ==", self.name);
        let begun = Instant::now();
        let mut report = Report::new(self.name);
        if !self.compile(&mut report)? {
            return Ok(report);
        }
        let mut command = self.command(&["--no-fail-fast"]);
        command.args(["--", "--show-output"]);
        if self.needs == Needs::Lab {
            command.args(["--test-threads", LAB_THREADS]);
        }
        if let Some(built) = built {
            command.env("VESTIBULE_BIN", &built.binary).env("VESTIBULE_EBPF", &built.object);
        }
        command.envs(surroundings.variables.iter().map(|(name, value)| (name, value)));
        let step = format!("running the {} tests", self.name);
        let mut child = command.stdout(Stdio::piped()).spawn();
        let child = child.as_mut().map_err(|error| process::not_run(&step, &command, error))?;
        if let Some(stdout) = child.stdout.take() {
            report.read(BufReader::new(stdout), process::quiet(), |line| println!("{line}"));
        }
        let status = child.wait().map_err(|error| process::not_run(&step, &command, &error))?;
        report.time = begun.elapsed();
        if status.code() == Some(124) {
            report.broke_off(format!("did not end within {CI_LIMIT}"));
        } else if !status.success() && report.tally.failed == 0 {
            report.broke_off(format!("broke off ({status})"));
        }
        Ok(report)
    }

    /// Counts the level's tests without running them.
    pub(crate) fn skip(&self, reason: &str) -> Outcome<Report> {
        println!("\n== {} == SKIPPED: {reason}", self.name);
        let begun = Instant::now();
        let mut report = Report::new(self.name);
        if self.compile(&mut report)? {
            let list = process::answer(self.command(&[]).args(["--", "--list", "--format", "terse"]));
            let tests =
                list.as_deref().unwrap_or_default().lines().filter_map(|line| line.strip_suffix(": test"));
            let tests: Vec<String> = tests.map(str::to_owned).collect();
            report.tally.skipped = tests.len() as u32;
            report.notes.insert(reason.to_owned(), tests);
        }
        report.time = begun.elapsed();
        Ok(report)
    }

    /// Whether the tests build; a level that does not is a failure of the level, and the others still run.
    fn compile(&self, report: &mut Report) -> Outcome<bool> {
        let mut command = self.command(&["--no-run"]);
        if process::quiet() {
            command.arg("--quiet");
        }
        let status = command.status();
        let status = status.map_err(|error| {
            process::not_run(&format!("building the {} tests", self.name), &command, &error)
        })?;
        if !status.success() {
            report.broke_off("its tests do not build".to_owned());
        }
        Ok(status.success())
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = match process::quiet() {
            // A test that hangs must not hold up CI for ever; at a terminal there is a person to see it.
            true => process::command("timeout"),
            false => process::cargo(),
        };
        if process::quiet() {
            command.args(["--kill-after=10s", CI_LIMIT, "rustup", "run", process::CHANNEL, "cargo"]);
        }
        command.arg("test").args(self.targets).args(options);
        command
    }
}

/// Why this machine cannot run such a level, if it cannot.
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
pub(crate) fn bpffs() -> Option<String> {
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
