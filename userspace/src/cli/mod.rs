//! The command line.

/// Tables, and JSON one object a line.
mod print;
/// Ids as people know them.
mod names;
/// `vestibule routes`.
mod routes;
/// `vestibule backends`.
mod backends;
/// `vestibule flows`.
mod flows;
/// `vestibule reasons`.
mod reasons;
/// `vestibule explain`.
mod explain;
/// `vestibule controller`.
mod controller;
/// `vestibule agent`.
mod agent;
/// `vestibule probe`.
mod probe;
/// `vestibule crds`.
mod crds;
/// `vestibule drain`.
mod drain;
/// `vestibule doctor`.
mod doctor;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::dataplane::pin::{PinError, Pins};
use crate::model::NodeFacts;
use crate::net::sysctl;
use crate::node::NodeError;
use crate::node::run::{self, Options};
use crate::outputs::StartError;
use crate::sources;

/// SNI load balancer in the kernel: one VIP for every tenant's TLS server.
#[derive(Debug, Parser)]
#[command(name = "vestibule", version, max_term_width = 100)]
struct Cli {
    /// Where maps, programs and links are pinned; one folder an instance.
    #[arg(long, global = true, value_name = "DIR", default_value = "/sys/fs/bpf/vestibule")]
    pins: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve, and follow the file and the node's network until SIGTERM. What is in the kernel goes on serving then.
    Run(Run),
    /// Keep this node of a cluster in step with what Kubernetes objects say, until SIGTERM. What is in the kernel goes on
    /// serving then.
    Agent(agent::Args),
    /// Write conditions, addresses and Events of a cluster, as leader of those that run, until SIGTERM.
    Controller(controller::Args),
    /// Ask the agent of this pod whether it is ready, or runs.
    Probe(probe::Args),
    /// Print the definitions of our own kinds, for `kubectl apply`.
    Crds,
    /// Tell what is wrong with a file. Exit status 1 when it cannot be used.
    Check {
        /// The configuration, YAML or JSON.
        file: PathBuf,
    },
    /// Refuse new connections and wait until those that are open have ended. Exit status 1 when some are left at the
    /// deadline. New ones are refused until `drain --cancel`, `detach` or the next boot.
    Drain(drain::Args),
    /// Remove everything from the kernel; ends all connections.
    Detach,
    /// Tell whether this node can serve, and whose programs are on its devices, in which order. Exit status 1 when it
    /// cannot.
    Doctor(Shown),
    /// Routes with their listeners, names and counters.
    Routes(Shown),
    /// Backends of all routes.
    Backends(Shown),
    /// Connections.
    Flows(Shown),
    /// Packets counted by the reason why they left the path.
    Reasons {
        #[command(flatten)]
        shown: Shown,
        /// Those too that were never counted.
        #[arg(long)]
        all: bool,
    },
    /// Which tenant and backend a connection would reach, and why. Asks what is in the kernel, or a file.
    Explain(explain::Args),
}

#[derive(Debug, Args)]
struct Run {
    /// The configuration, YAML or JSON. Read again on SIGHUP and when it changes.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Devices to serve on. Default: those of the default routes and of the routes to the backends, followed as they
    /// change.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    devices: Vec<String>,
}

#[derive(Debug, Args)]
struct Shown {
    /// How to print.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    Table,
    /// One object a line.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// For people.
    Text,
    /// One object a line.
    Json,
}

/// Runs the command line's command.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match execute(cli) {
        Ok(code) => code,
        Err(error) if print::is_closed_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn execute(cli: Cli) -> Result<ExitCode> {
    let pins = Pins::new(&cli.pins);
    match cli.command {
        Command::Run(run) => return serve(run, cli.pins),
        Command::Controller(asked) => return controller::run(asked),
        Command::Agent(asked) => return agent::run(asked, cli.pins),
        Command::Probe(question) => return probe::ask(&question),
        Command::Crds => crds::show()?,
        Command::Check { file } => return check(&file),
        Command::Doctor(shown) => return doctor::show(&pins, shown.output),
        Command::Drain(asked) => return drain::run(&asked, &pins),
        Command::Detach => detach(&pins)?,
        Command::Routes(shown) => routes::show(&pins, shown.output)?,
        Command::Backends(shown) => backends::show(&pins, shown.output)?,
        Command::Flows(shown) => flows::show(&pins, shown.output)?,
        Command::Explain(question) => return explain::show(&question, &pins),
        Command::Reasons { shown, all } => reasons::show(&pins, shown.output, all)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Begins to log to standard error, as `VESTIBULE_LOG` says.
fn log(format: LogFormat) {
    let asked = std::env::var("VESTIBULE_LOG").unwrap_or_else(|_| "info".into());
    // The loader tells every relocation at debug level.
    let filter = EnvFilter::new(format!("aya=info,aya_obj=info,{asked}"));
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr()))
        .with_target(false);
    match format {
        LogFormat::Text => log.init(),
        LogFormat::Json => log.json().flatten_event(true).init(),
    }
}

fn serve(run: Run, pins: PathBuf) -> Result<ExitCode> {
    log(LogFormat::Text);
    let options = Options { config: run.config, devices: run.devices, pins };
    match run::run(&options) {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(NodeError::File { problems, .. } | NodeError::Kernel(StartError::Problems(problems))) => {
            Ok(print::refused(&options.config, &problems, "nothing was touched"))
        }
        Err(error) => Err(error.into()),
    }
}

fn check(path: &Path) -> Result<ExitCode> {
    let report = sources::check::check(
        path,
        &NodeFacts { local_ports: sysctl::local_port_range(), ..NodeFacts::default() },
    );
    print::line(&report)?;
    Ok(if report.is_usable() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn detach(pins: &Pins) -> Result<()> {
    let writer = match pins.lock() {
        Err(PinError::Nothing(_)) => return print::line(&"nothing is pinned there; nothing to remove"),
        lock => lock.context("detaching")?,
    };
    pins.remove().context("detaching")?;
    drop(writer);
    print::line(&"detached; programs, maps and connections are gone")
}
