//! `vestibule probe`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ArgGroup;

use super::print;
use crate::admin;

/// The socket of this pod's agent.
pub(super) const SOCKET: &str = "/run/vestibule-pod/probe.sock";

/// The time limit for the answer. The agent's loop, which also answers, may be loading programs.
const LIMIT: Duration = Duration::from_secs(4);

/// The arguments.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("what").required(true).args(["readyz", "livez", "metrics"])))]
pub(super) struct Args {
    /// Check readiness: whether the agent has read everything once and could write the node's maps. Lists what may be old.
    #[arg(long)]
    readyz: bool,
    /// Check liveness: whether the agent runs.
    #[arg(long)]
    livez: bool,
    /// Print the metrics of the agent and of the programs.
    #[arg(long)]
    metrics: bool,
    /// Socket of the agent.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Sends the request and prints the answer. The exit status is 1 if the answer is negative.
pub(super) fn ask(question: &Args) -> Result<ExitCode> {
    let path = match (question.readyz, question.livez) {
        (true, _) => "/readyz",
        (_, true) => "/livez",
        _ => "/metrics",
    };
    let socket = &question.socket;
    let answer = admin::ask(socket, path, LIMIT).with_context(|| {
        format!(
            "no agent answers at {}; run it in the agent's pod (kubectl exec AGENT -- vestibule probe), or give its --socket",
            socket.display()
        )
    })?;
    print::line(&answer.text.trim_end())?;
    Ok(if answer.is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
