//! The command line.

/// Prints tables, and JSON with one object per line.
mod print;
/// Readable names for ids, addresses and keys.
mod names;
/// Flags that choose connections by their ends.
mod ends;
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
/// Flags of the port of `/metrics`.
mod metrics_access;
/// `vestibule controller`.
mod controller;
/// `vestibule check`.
mod check;
/// `vestibule vips`.
mod vips;
/// `vestibule withdraw`.
mod withdraw;
/// `vestibule agent`.
mod agent;
/// `vestibule probe`.
mod probe;
/// `vestibule claims`.
mod claims;
/// `vestibule crds`.
mod crds;
/// `vestibule drain`.
mod drain;
/// `vestibule doctor`.
mod doctor;
/// `vestibule trace`.
mod trace;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

use crate::dataplane::front;
use crate::dataplane::pin::{PinError, Pins};
use crate::model::Node;
use crate::node::NodeError;
use crate::node::run::{self, Options};
use crate::outputs::StartError;
use crate::outputs::l2::leave_groups;
use crate::outputs::maps::leave_node_clients;

/// SNI load balancer in the kernel: one VIP for every tenant's TLS server.
#[derive(Debug, Parser)]
#[command(name = "vestibule", version, max_term_width = 100)]
struct Cli {
    /// Folder where maps, programs and links are pinned; one per instance.
    #[arg(long, global = true, value_name = "DIR", default_value = "/sys/fs/bpf/vestibule")]
    pins: PathBuf,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve until SIGTERM, following the file and the node's network. What is in the kernel keeps serving
    /// after that.
    Run(Run),
    /// Keep this node of a cluster in step with its Kubernetes objects until SIGTERM. What is in the kernel
    /// keeps serving after that.
    Agent(agent::Args),
    /// Write conditions, addresses and Events of a cluster until SIGTERM. Of several instances, only the
    /// leader writes.
    Controller(controller::Args),
    /// Take Vestibule out of a cluster before it is uninstalled: nodes refuse new connections, and no status has an address any more.
    /// Established connections go on. A controller that leads a minute later or more takes it back.
    Withdraw(withdraw::Args),
    /// Show what routes, listeners, Services and Ingresses of the cluster were granted, and which nodes hold it. In a pod of the
    /// controller: `kubectl exec deploy/vestibule-controller -- vestibule claims`.
    Claims(claims::Args),
    /// Check whether the agent of this pod is ready or alive.
    Probe(probe::Args),
    /// Print the definitions of Vestibule's own kinds, for `kubectl apply`.
    Crds,
    /// Show the problems of a file, and the memory that the kernel's maps will take. Exit status 1 if it cannot be used.
    Check {
        /// The configuration file, YAML or JSON.
        file: PathBuf,
        /// It is the chart's file, `vestibule.yaml` of ConfigMap `vestibule`, and not one of kind StaticConfig.
        #[arg(long)]
        chart: bool,
    },
    /// Refuse new connections and wait until all open ones have ended. Exit status 1 if some are still open
    /// at the deadline. New ones are refused until `drain --cancel`, `detach` or the next boot.
    ///
    /// A node that announces addresses (`vestibule vips` shows `this node`) keeps them while it drains, and refuses all who dial them. To empty
    /// it, first label it node.kubernetes.io/exclude-from-external-load-balancers, and wait until `vips` shows no `this node`.
    Drain(drain::Args),
    /// Remove everything from the kernel. This ends all connections. Refused while a daemon or an agent of this node runs.
    Detach,
    /// Check whether this node can serve, and list the programs on its devices in the order they run. Exit
    /// status 1 if it cannot serve.
    Doctor(doctor::Args),
    /// Show routes with their listeners, names and counters.
    Routes(Shown),
    /// Show the backends of all routes.
    Backends(Shown),
    /// Show who announces which addresses by ARP and neighbour discovery on this node's devices, since when and why, and which other nodes may.
    Vips(vips::Args),
    /// Show connections: all, or those that every flag applies to.
    Flows(flows::Args),
    /// Show packet counts, by the reason why the packets left the path.
    Reasons {
        #[command(flatten)]
        shown: Shown,
        /// Also show reasons whose count is zero.
        #[arg(long)]
        all: bool,
    },
    /// Explain which tenant and backend a connection would reach, and why. Uses the kernel's state or a file.
    Explain(explain::Args),
    /// Print each packet of some clients as it leaves the programs: what it was, what it belonged to, why it left. Works
    /// with the daemon dead. At most 10,000 packets a second are printed, and those left out are counted.
    Trace(trace::Args),
}

#[derive(Debug, Args)]
struct Run {
    /// The configuration file, YAML or JSON. Read again on SIGHUP and when it changes.
    #[arg(long, value_name = "FILE")]
    config: PathBuf,
    /// Devices to serve on. Default: those of the default routes and of the routes to backends, updated as
    /// they change.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    devices: Vec<String>,
}

#[derive(Debug, Args)]
struct Shown {
    /// Output format.
    #[arg(short, long, value_enum, default_value_t = Format::Table)]
    output: Format,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    /// Human-readable table.
    Table,
    /// One JSON object per line.
    Json,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Human-readable text.
    Text,
    /// One JSON object per line.
    Json,
}

/// Runs the command given on the command line.
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
        Command::Withdraw(asked) => return withdraw::run(asked),
        Command::Agent(asked) => return agent::run(asked, cli.pins),
        Command::Probe(question) => return probe::ask(&question),
        Command::Claims(asked) => claims::show(&asked)?,
        Command::Crds => crds::show()?,
        Command::Check { file, chart } => return check::show(&file, chart),
        Command::Doctor(asked) => return doctor::show(&pins, &asked),
        Command::Drain(asked) => return drain::run(&asked, &pins),
        Command::Detach => detach(&pins)?,
        Command::Routes(shown) => routes::show(&pins, shown.output)?,
        Command::Backends(shown) => backends::show(&pins, shown.output)?,
        Command::Vips(asked) => vips::show(&pins, &asked)?,
        Command::Flows(asked) => flows::show(&asked, &pins)?,
        Command::Explain(question) => return explain::show(&question, &pins),
        Command::Trace(asked) => trace::run(&asked, &pins)?,
        Command::Reasons { shown, all } => reasons::show(&pins, shown.output, all)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Starts logging to standard error, as configured by `VESTIBULE_LOG`.
fn log(format: LogFormat) {
    let asked = std::env::var("VESTIBULE_LOG").unwrap_or_else(|_| "info".into());
    // The loader logs every relocation at debug level.
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

/// Says of a variable that is missing where it is set.
fn in_a_pod(variable: &str, of: &str) -> String {
    format!("environment variable {variable}, which the chart sets in pods of {of}")
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

fn detach(pins: &Pins) -> Result<()> {
    let writer = match pins.lock() {
        Err(PinError::Nothing(folder)) => {
            return print::line(&format!("nothing is pinned in {}; nothing was removed", folder.display()));
        }
        // Other pins, as this error advises a second daemon, are not those that are to be removed.
        Err(PinError::Locked(folder)) => bail!(
            "a daemon or an agent writes what is pinned in {}, so nothing was removed; end it first. In a cluster, its DaemonSet would \
             start it again: see Node maintenance in deploy/README.md",
            folder.display()
        ),
        lock => lock.context("detaching")?,
    };
    match Node::look() {
        Ok(network) => leave_groups(pins, &network),
        Err(error) => eprintln!("devices may still let solicitations of announced addresses pass: {error}"),
    }
    // Before the programs go, to which its routes lead.
    leave_node_clients(pins).context("detaching")?;
    // Before TCX goes, which continues what XDP answers.
    front::detach_all(pins).and_then(|()| pins.remove()).context("detaching")?;
    drop(writer);
    print::line(&"detached; programs, maps and connections are gone")
}
