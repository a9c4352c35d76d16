//! Walks over all flows as the daemon does, which runs beside it, with a clock that is ahead: what takes it hours.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdout, Stdio};

use crate::daemon::Daemon;
use crate::machine;
use crate::topology::Lab;

/// Whether this kernel has time namespaces.
pub fn has_clocks() -> bool {
    let has = Path::new("/proc/self/ns/time_for_children").exists();
    assert!(has || !machine::is_ci(), "this kernel has no time namespaces (CONFIG_TIME_NS)");
    if !has {
        eprintln!("SKIPPED: this kernel has no time namespaces (CONFIG_TIME_NS)");
    }
    has
}

/// The process that walks.
#[derive(Debug)]
pub struct Walker {
    child: Child,
    answers: BufReader<ChildStdout>,
}

impl Walker {
    /// Starts the binary `walker` beside the daemon. Panics if it cannot be started.
    #[must_use]
    pub fn start(binary: &str, lab: &Lab, daemon: &Daemon) -> Self {
        let mut command = lab.balancer.command(binary);
        command.arg(daemon.pins()).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap_or_else(|error| panic!("starting {binary}: {error}"));
        let Some(stdout) = child.stdout.take() else { panic!("{binary} has no output") };
        Self { child, answers: BufReader::new(stdout) }
    }

    /// Walks this number of seconds from now; returns how many flows that ends. Panics if the process has ended.
    pub fn walk(&mut self, ahead_secs: u32) -> u32 {
        // One that has ended answers nothing.
        let _ = self.child.stdin.as_mut().map(|stdin| writeln!(stdin, "{ahead_secs}"));
        let mut answer = String::new();
        let read = self.answers.read_line(&mut answer);
        answer.trim().parse().unwrap_or_else(|_| panic!("the walker ended: {read:?}, {answer:?}"))
    }
}

impl Drop for Walker {
    fn drop(&mut self) {
        // It ends with its input.
        self.child.stdin.take();
        let _ = self.child.wait();
    }
}
