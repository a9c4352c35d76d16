//! `vestibule controller`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::Args;

use crate::controller::{self, ControllerError, Options};

/// What the command line says.
#[derive(Debug, Args)]
pub(super) struct Asked {
    /// The chart's file, YAML or JSON.
    #[arg(long, value_name = "FILE", default_value = "/etc/vestibule/vestibule.yaml")]
    config: PathBuf,
    /// A file with listeners and routes besides those of the cluster, the one that agents have.
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How to log.
    #[arg(long, value_enum, default_value_t = super::LogFormat::Text)]
    log_format: super::LogFormat,
    /// Port of /metrics, /readyz and /livez; 0: none.
    #[arg(long, value_name = "PORT", default_value_t = 8080)]
    metrics_port: u16,
}

/// Runs until it is told to end.
pub(super) fn run(asked: Asked) -> Result<ExitCode> {
    super::log(asked.log_format);
    let variable = |name: &str| std::env::var(name).with_context(|| format!("environment variable {name}"));
    let options = Options {
        config: asked.config,
        file: asked.file,
        pod: variable("POD_NAME")?,
        namespace: variable("POD_NAMESPACE")?,
        metrics_port: asked.metrics_port,
    };
    match controller::run(&options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(ControllerError::Problems { file, problems }) => {
            let file = file.display().to_string();
            for problem in &problems {
                eprintln!("{}", problem.in_file(&file));
            }
            eprintln!("error: {file} is refused; nothing was written");
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}
