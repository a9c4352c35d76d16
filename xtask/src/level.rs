//! One level of tests, and how it is run.

use crate::bench;
use crate::build::Built;
use crate::cluster::{self, Surroundings};
use crate::failure::Outcome;
use crate::needs::Needs;
use crate::report::Report;
use crate::{process, setup};
use std::io::BufReader;
use std::process::{Command, Stdio};
use std::time::Instant;

/// A level of tests: one `cargo test` each.
pub(crate) struct Level {
    /// Its name on the command line.
    pub name: &'static str,
    /// Arguments for cargo.
    pub targets: &'static [&'static str],
    /// What the machine must provide.
    pub needs: Needs,
}

/// The level of those tests of the benchmark that start a whole system, with its load.
pub(crate) const BENCH: &str = "bench";

/// The level that runs only if it is named: loads of many minutes.
pub(crate) const SLOW: &str = "slow";

/// The level of simulations that are too large for the unit tests. It runs with [`SLOW`].
pub(crate) const SIMULATION: &str = "simulation";

/// The level of control tests that take many minutes: fifty agents, five hundred nodes. It runs with [`SLOW`].
pub(crate) const FLEET: &str = "fleet";

/// The level that compares ours with MetalLB's own controller, for many minutes. It runs with [`SLOW`].
pub(crate) const WITNESS: &str = "witness";

/// The level of the cluster tests about announced addresses that takes forty minutes. It runs with [`SLOW`].
pub(crate) const L2: &str = "l2";

/// The level of control tests in which nodes, links and agents of a segment fail, fifty and ten times. It runs with [`SLOW`].
pub(crate) const TRIALS: &str = "trials";

/// How long a level may take in CI before it counts as hanging.
const CI_LIMIT: &str = "26m";
/// The same for the slow level.
const SLOW_LIMIT: &str = "3h";

/// Tests in the lab and with an API server mostly wait, for timeouts, retransmissions, Leases and watches, so more of
/// them run at once than there are cores.
const WAITING_THREADS: &str = "6";

impl Level {
    /// Builds and runs the level's tests, shows and counts them.
    pub(crate) fn run(&self, built: Option<&Built>, surroundings: &Surroundings) -> Outcome<Report> {
        println!("\n== {} ==", self.name);
        let begun = Instant::now();
        let mut report = Report::new(self.name);
        if !self.compile(&mut report)? {
            return Ok(report);
        }
        let mut command = self.command(&["--no-fail-fast"]);
        command.args(["--", "--show-output"]);
        if matches!(self.name, SIMULATION | FLEET | WITNESS) {
            command.args(["--ignored", "--nocapture"]);
        }
        if self.name == BENCH {
            command.arg("--ignored").env("LOAD_BIN", bench::load()?);
            if setup::go::missing().is_none() {
                command.envs(cluster::api_server()?);
            }
        }
        if matches!(self.name, FLEET | WITNESS | L2 | TRIALS) {
            // Modules of the control tests, or of the cluster tests.
            command.arg(self.name);
        }
        if matches!(self.needs, Needs::Lab | Needs::Control) {
            command.args(["--test-threads", WAITING_THREADS]);
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
            report.broke_off(format!("did not end within {}", self.limit()));
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

    /// Returns whether the tests build. A level that does not build counts as failed, and the others still run.
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

    fn limit(&self) -> &'static str {
        if matches!(self.name, SLOW | SIMULATION | FLEET | WITNESS | L2 | TRIALS) {
            SLOW_LIMIT
        } else {
            CI_LIMIT
        }
    }

    fn command(&self, options: &[&str]) -> Command {
        let mut command = match process::quiet() {
            // A test that hangs must not block CI for ever; at a terminal, a person notices it.
            true => process::command("timeout"),
            false => process::cargo(),
        };
        if process::quiet() {
            command.args(["--kill-after=10s", self.limit(), "rustup", "run", process::CHANNEL, "cargo"]);
        }
        if matches!(self.name, SLOW | L2 | TRIALS) {
            // Without this variable, the tests run a short form.
            command.env("VESTIBULE_SOAK", "1").env("VESTIBULE_COMMIT", process::commit(&[]));
        }
        command.arg("test").args(self.targets).args(options);
        command
    }
}
