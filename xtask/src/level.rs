//! One level's run: what it needs, what came out.

use crate::failure::Outcome;
use crate::process;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

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
}

/// How many tests ended how.
#[derive(Clone, Copy, Default, Debug, PartialEq, Eq)]
pub(crate) struct Tally {
    pub passed: u32,
    pub failed: u32,
    pub skipped: u32,
}

/// What came out of a level.
pub(crate) struct Report {
    pub name: &'static str,
    pub tally: Tally,
    pub time: Duration,
    /// Why something was skipped or could not be counted.
    pub notes: Vec<String>,
}

impl Tally {
    /// Sums up.
    pub(crate) fn add(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }

    /// Reads a line like `test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; ...`.
    fn of_line(line: &str) -> Option<Self> {
        let counts = line.strip_prefix("test result: ")?;
        let count = |word: &str| {
            let before = counts.split(word).next()?;
            before.rsplit([' ', ';']).find(|part| !part.is_empty())?.parse().ok()
        };
        Some(Self { passed: count(" passed")?, failed: count(" failed")?, skipped: count(" ignored")? })
    }
}

/// How long a level may take in CI before it counts as hanging.
const CI_LIMIT: &str = "20m";

impl Level {
    /// Runs the level's tests, shows them, counts them.
    pub(crate) fn run(&self, binary: Option<&Path>) -> Outcome<Report> {
        println!("\n== {} ==", self.name);
        let begun = Instant::now();
        let mut command = self.command();
        command.arg("--no-fail-fast");
        if let Some(binary) = binary {
            command.env("VESTIBULE_BIN", binary);
        }
        let step = format!("running the {} tests", self.name);
        let mut child = command.stdout(Stdio::piped()).spawn();
        let child = child.as_mut().map_err(|error| process::not_run(&step, &command, error))?;
        let mut report =
            Report { name: self.name, tally: Tally::default(), time: Duration::ZERO, notes: Vec::new() };
        if let Some(stdout) = child.stdout.take() {
            report.read(BufReader::new(stdout));
        }
        let status = child.wait().map_err(|error| process::not_run(&step, &command, &error))?;
        report.time = begun.elapsed();
        if !status.success() && report.tally.failed == 0 {
            report.tally.failed = 1;
            report.notes.push(match status.code() {
                Some(124) => format!("did not end within {CI_LIMIT}"),
                _ => format!("did not build, or broke off ({status})"),
            });
        }
        Ok(report)
    }

    /// Counts the level's tests without running them.
    pub(crate) fn skip(&self, reason: &str) -> Report {
        println!("\n== {} == SKIPPED: {reason}", self.name);
        let begun = Instant::now();
        let list = process::answer(self.command().args(["--", "--list", "--format", "terse"]));
        let mut tally = Tally::default();
        let mut notes = vec![reason.to_owned()];
        match list {
            Some(list) => tally.skipped = list.lines().filter(|line| line.ends_with(": test")).count() as u32,
            None => {
                tally.failed = 1;
                notes.push("its tests do not build".to_owned());
            }
        }
        Report { name: self.name, tally, time: begun.elapsed(), notes }
    }

    fn command(&self) -> Command {
        let mut command = match process::quiet() {
            // A test that hangs must not hold up CI for ever; at a terminal there is a person to see it.
            true => process::command("timeout"),
            false => process::cargo(),
        };
        if process::quiet() {
            command.args(["--kill-after=10s", CI_LIMIT, "rustup", "run", process::CHANNEL, "cargo"]);
        }
        command.arg("test").args(self.targets);
        if process::quiet() {
            command.arg("--quiet");
        }
        command
    }
}

impl Report {
    /// Shows what the tests print and keeps what the summary needs.
    fn read(&mut self, output: impl BufRead) {
        for line in output.lines().map_while(Result::ok) {
            if let Some(tally) = Tally::of_line(&line) {
                self.tally.add(tally);
            }
            if let Some((test, why)) = ignored(&line) {
                self.notes.push(format!("{test}: {why}"));
            }
            println!("{line}");
        }
    }
}

/// Reads a line like `test name ... ignored, reason`.
fn ignored(line: &str) -> Option<(&str, &str)> {
    let (test, why) = line.strip_prefix("test ")?.split_once(" ... ignored")?;
    Some((test, why.strip_prefix(", ").unwrap_or("ignored")))
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
    bpffs()
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
    fn a_result_line_is_counted() {
        let line = "test result: FAILED. 17 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.3s";
        assert_eq!(Tally::of_line(line), Some(Tally { passed: 17, failed: 2, skipped: 1 }));
        assert_eq!(Tally::of_line("test path ... ok"), None);
    }

    #[test]
    fn output_is_summed_over_binaries_and_ignored_tests_are_told() {
        let output = "test a ... ok\ntest b ... ignored, needs a switch\n\
            test result: ok. 1 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s\n\
            test result: ok. 4 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s\n";
        let mut report =
            Report { name: "x", tally: Tally::default(), time: Duration::ZERO, notes: Vec::new() };
        report.read(output.as_bytes());
        assert_eq!(report.tally, Tally { passed: 5, failed: 0, skipped: 1 });
        assert_eq!(report.notes, ["b: needs a switch"]);
    }

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
