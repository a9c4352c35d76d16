//! `vestibule agent`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};

use super::metrics_access::MetricsAccess;
use super::print;
use super::probe::SOCKET;
use crate::metrics;
use crate::node::agent::{self, Options};
use crate::node::{Identity, NodeError};

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The chart's file, YAML or JSON.
    #[arg(long, value_name = "FILE", default_value = "/etc/vestibule/vestibule.yaml")]
    config: PathBuf,
    /// Static file with listeners and routes in addition to those of the cluster, in the format of `vestibule
    /// run`. Its settings are ignored. Read again when it changes.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Folder for the last compiled state and the keys, used for a boot without the API server.
    #[arg(long, value_name = "DIR", default_value = "/var/lib/vestibule")]
    state: PathBuf,
    /// Folder that the agents of a node use to hand over the maps.
    #[arg(long, value_name = "DIR", default_value = "/run/vestibule")]
    run: PathBuf,
    /// Socket for `vestibule probe`.
    #[arg(long, value_name = "PATH", default_value = SOCKET)]
    socket: PathBuf,
    /// The DaemonSet of whose pod this is. If it is gone or does not select this node any more when the agent is ended, new connections
    /// are refused from then on. Without it, or if the API server does not answer within 2s, they go on to be served.
    #[arg(long, value_name = "NAME")]
    daemon_set: Option<String>,
    /// Log format.
    #[arg(long, value_enum, default_value_t = super::LogFormat::Text)]
    log_format: super::LogFormat,
    /// Port of /metrics, /readyz and /livez, served by the writer, or by a waiting agent if there is none; 0: none.
    #[arg(long, value_name = "PORT", default_value_t = 9120)]
    metrics_port: u16,
    #[command(flatten)]
    access: MetricsAccess,
    /// Whether each route has metrics of its own. `auto`: where there are 200 routes at most. Otherwise they are summed up.
    #[arg(long, value_name = "auto|true|false", value_enum, default_value_t = PerRoute::Auto)]
    metrics_per_route: PerRoute,
}

/// [`metrics::PerRoute`], as a flag.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum PerRoute {
    Auto,
    #[value(name = "true")]
    Always,
    #[value(name = "false")]
    Never,
}

/// Runs until SIGTERM or SIGINT.
pub(super) fn run(asked: Args, pins: PathBuf) -> Result<ExitCode> {
    super::log(asked.log_format);
    let variable =
        |name: &str| std::env::var(name).with_context(|| super::in_a_pod(name, "DaemonSet vestibule-agent"));
    let options = Options {
        config: asked.config,
        file: asked.file,
        pins,
        state: asked.state,
        run: asked.run,
        admin: asked.socket,
        metrics_port: asked.metrics_port,
        metrics_access: asked.access.into(),
        metrics_per_route: match asked.metrics_per_route {
            PerRoute::Auto => metrics::PerRoute::Auto,
            PerRoute::Always => metrics::PerRoute::Always,
            PerRoute::Never => metrics::PerRoute::Never,
        },
        daemon_set: asked.daemon_set,
        identity: Identity {
            node: variable("NODE_NAME")?,
            pod: variable("POD_NAME")?,
            namespace: variable("POD_NAMESPACE")?,
        },
    };
    match agent::run(&options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(NodeError::File { file, problems }) => {
            Ok(print::refused(&file, &problems, "nothing was touched"))
        }
        Err(error) => Err(error.into()),
    }
}
