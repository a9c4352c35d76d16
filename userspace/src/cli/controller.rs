//! `vestibule controller`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Context, Result};

use tracing::warn;

use super::metrics_access::MetricsAccess;
use crate::config;
use crate::controller::keys::Schedule;
use crate::controller::{self, Options};
use crate::node::report::LEASE;

/// The arguments.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// The chart's file, YAML or JSON.
    #[arg(long, value_name = "FILE", default_value = "/etc/vestibule/vestibule.yaml")]
    config: PathBuf,
    /// Static file with listeners and routes in addition to those of the cluster, the same as the agents'.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Log format.
    #[arg(long, value_enum, default_value_t = super::LogFormat::Text)]
    log_format: super::LogFormat,
    /// Port of /metrics, /readyz and /livez; 0: none.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    metrics_port: u16,
    #[command(flatten)]
    access: MetricsAccess,
    /// How long a key signs cookies. Below 5m, slow clients are refused at each change of the key.
    #[arg(long, value_name = "TIME", default_value = "24h", value_parser = interval)]
    rotate_keys_every: Duration,
    /// How long agents have to receive the next key before it signs cookies. Choose longer than any outage of
    /// the API server.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = interval)]
    spread_keys_for: Duration,
    /// Delete the NodeState of a node whose agent has shown no sign of life for this long; at least 40s, for which an agent's Lease is valid.
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = interval)]
    forget_nodes_after: Duration,
}

/// Parses an interval of at least one second.
fn interval(text: &str) -> Result<Duration, String> {
    let interval = config::duration(text)?;
    if interval < Duration::from_secs(1) { Err("write 1s or more".to_owned()) } else { Ok(interval) }
}

/// Returns the silence after which a node is forgotten. A shorter one than a Lease is valid would take NodeStates from live agents.
fn forgets_after(asked: Duration) -> Duration {
    if asked < LEASE {
        warn!(
            ?asked,
            "--forget-nodes-after is less than {LEASE:?}, for which an agent's Lease is valid: {LEASE:?} counts"
        );
    }
    asked.max(LEASE)
}

/// Runs until SIGTERM or SIGINT.
pub(super) fn run(asked: Args) -> Result<ExitCode> {
    super::log(asked.log_format);
    let variable = |name: &str| {
        std::env::var(name).with_context(|| super::in_a_pod(name, "Deployment vestibule-controller"))
    };
    let options = Options {
        config: asked.config,
        file: asked.file,
        pod: variable("POD_NAME")?,
        namespace: variable("POD_NAMESPACE")?,
        metrics_port: asked.metrics_port,
        metrics_access: asked.access.into(),
        keys: Schedule { rotation: asked.rotate_keys_every, spread: asked.spread_keys_for },
        forget_nodes_after: forgets_after(asked.forget_nodes_after),
    };
    if options.keys.rotation < Schedule::LEAST {
        let (every, least) = (options.keys.rotation, Schedule::LEAST);
        warn!(?every, "cookies are good for up to {least:?}, keys for less: slow clients are refused");
    }
    controller::run(&options)?;
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_live_agent_is_forgotten() {
        for (asked, expected) in [("1s", 40), ("39s", 40), ("40s", 40), ("10m", 600)] {
            let after = forgets_after(interval(asked).unwrap());
            assert_eq!(after.as_secs(), expected, "{asked}");
        }
        assert!(interval("999ms").is_err());
    }
}
