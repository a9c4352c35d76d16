//! `vestibule withdraw`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};
use tracing::warn;

use super::print;
use crate::config;
use crate::controller::withdraw::{self, Options};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The chart's file, YAML or JSON.
    #[arg(long, value_name = "FILE", default_value = "/etc/vestibule/vestibule.yaml")]
    config: PathBuf,
    /// How long to wait for nodes to refuse new connections. Those that have not by then are named.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = config::duration)]
    wait: Duration,
    /// Log format.
    #[arg(long, value_enum, default_value_t = super::LogFormat::Text)]
    log_format: super::LogFormat,
}

/// Withdraws from the cluster.
pub(super) fn run(asked: Args) -> Result<ExitCode> {
    super::log(asked.log_format);
    let variable = |name: &str| {
        std::env::var(name).with_context(|| super::in_a_pod(name, "Deployment vestibule-controller"))
    };
    let (pod, namespace) = (variable("POD_NAME")?, variable("POD_NAMESPACE")?);
    let withdrawn = withdraw::run(&Options { pod, namespace, config: asked.config, wait: asked.wait })?;
    for why in &withdrawn.others {
        warn!("a node may still take new connections: {why}");
    }
    print::line(&format!(
        "withdrawn: {} nodes refuse new connections, {} are not known to; {} objects were cleared",
        withdrawn.nodes,
        withdrawn.others.len(),
        withdrawn.written
    ))?;
    Ok(ExitCode::SUCCESS)
}
