//! `vestibule probe`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use clap::ArgGroup;

use super::print;
use crate::admin;

/// Where the agent of this pod is asked.
pub(super) const SOCKET: &str = "/run/vestibule-pod/probe.sock";

/// How long an agent may take to answer; the loop it answers in may be loading programs.
const LIMIT: Duration = Duration::from_secs(4);

/// What the command line says.
#[derive(Debug, clap::Args)]
#[command(group(ArgGroup::new("what").required(true).args(["readyz", "livez", "metrics"])))]
pub(super) struct Args {
    /// Whether it could write the node's maps, and whether what it knows is up to date.
    #[arg(long)]
    readyz: bool,
    /// Whether it runs.
    #[arg(long)]
    livez: bool,
    /// What it counts, and what the programs count.
    #[arg(long)]
    metrics: bool,
    /// Where it is asked.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
}

/// Asks and prints the answer; exit status 1 when it is no.
pub(super) fn ask(question: &Args) -> Result<ExitCode> {
    let path = match (question.readyz, question.livez) {
        (true, _) => "/readyz",
        (_, true) => "/livez",
        _ => "/metrics",
    };
    let socket = &question.socket;
    let answer = admin::ask(socket, path, LIMIT).with_context(|| socket.display().to_string())?;
    print::line(&answer.text.trim_end())?;
    Ok(if answer.is_ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
