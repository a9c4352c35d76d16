//! `vestibule agent`: what one node of a cluster does. It follows the API server, compiles what objects say, and keeps
//! the node's maps in step; it tells what the maps hold, and that it lives.
//!
//! ```text
//! Store ──► compile ──► Control ──► maps          one writer a node: `handover`
//!    ▲         │            └─────► NodeState, Lease: `report`
//! failing   probes ──► Prober
//! ```

/// What it is doing, for those who ask.
mod told;
/// The loop.
mod serve;
/// One turn of the loop.
mod turn;
/// What was compiled last, and what of it is in force.
mod state;
/// Who writes the maps: this agent, another one, nobody.
mod role;
/// From one agent to the next.
mod handover;
/// What it writes to the API server.
mod report;
/// The keys that all nodes have.
mod keys;
/// The last compiled state.
mod saved;
/// Files that outlive the boot.
mod disk;

use std::path::PathBuf;

use crate::daemon::StartError;
use crate::model::Problem;
use crate::net::NetError;

pub use serve::run;

/// What an agent is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// The chart's file. Read once.
    pub config: PathBuf,
    /// A static file with listeners and routes besides those of the cluster; read again when it changes.
    pub file: Option<PathBuf>,
    /// Where maps, programs and links are pinned.
    pub pins: PathBuf,
    /// Where the last compiled state and the keys are kept for the next boot.
    pub state: PathBuf,
    /// Where agents of this node meet.
    pub run: PathBuf,
    /// The socket that probes ask.
    pub admin: PathBuf,
    /// The port of `/metrics`; 0: none.
    pub metrics_port: u16,
    /// Whether each route has series of its own.
    pub metrics_per_route: bool,
    /// Who it is.
    pub identity: Identity,
}

/// Who an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of its node.
    pub node: String,
    /// Name of its pod.
    pub pod: String,
    /// Namespace of its pod: of Leases and of the Secret.
    pub namespace: String,
}

/// Why an agent ends.
#[derive(Debug, thiserror::Error)]
pub enum AgentError {
    /// A file is refused.
    #[error("{}: {}", file.display(), lines(problems))]
    File {
        /// Which one.
        file: PathBuf,
        /// Why.
        problems: Vec<Problem>,
    },
    /// It does not know where the API server is.
    #[error(transparent)]
    Infer(#[from] kube::config::InferConfigError),
    /// It cannot be asked as we were told.
    #[error(transparent)]
    Connect(#[from] kube::Error),
    /// The kernel's side.
    #[error(transparent)]
    Kernel(#[from] StartError),
    /// The node's network cannot be followed.
    #[error(transparent)]
    Net(#[from] NetError),
    /// A folder or socket.
    #[error("{}: {source}", path.display())]
    Path {
        /// Which one.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The system.
    #[error("{0}")]
    System(#[from] std::io::Error),
}

fn lines(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}
