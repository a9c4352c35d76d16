//! `vestibule controller`: alone writes conditions, addresses, ingress and Events, as leader of those that run.
//!
//! ```text
//! Store, agents ──► judge (ipam, compile, status) ──► queue ──► writes
//!                                               └──► events ───┘
//! ```
//! Compiles the same facts with the same code as the agents; what is programmed is for their NodeStates to say.

/// Who leads: the Lease as one candidate sees it. Pure.
mod lease;
/// Takes and keeps the Lease.
mod election;
/// Which agents live. Pure.
mod liveness;
/// The agents: which live, and what they hold.
mod agents;
/// The content of files.
mod files;
/// What must be written.
mod judge;
/// Which status is written next, and when. Pure.
mod queue;
/// What routes say of their backends. Pure.
mod health;
/// What is written as Events. Pure.
mod kube_events;
/// Which Events are written, and when. Pure.
mod kube_event;
/// The keys of the release. Pure.
pub mod keys;
/// Requests to the API server.
mod writes;
/// Readiness, liveness, metrics.
mod telemetry;
/// The loop.
mod run;

use crate::model::Problem;
use std::path::PathBuf;
use std::time::Duration;

pub use run::run;

/// What `vestibule controller` is given.
#[derive(Clone, Debug)]
pub struct Options {
    /// The chart's file.
    pub config: PathBuf,
    /// A static file with listeners and routes besides those of the cluster, the one that agents have; read again when it
    /// changes.
    pub file: Option<PathBuf>,
    /// Name of its pod: the leader, and the source of Events.
    pub pod: String,
    /// Namespace of the release: of Leases and of the Secret.
    pub namespace: String,
    /// Where `/metrics`, `/readyz` and `/livez` are; 0: nowhere.
    pub metrics_port: u16,
    /// How often cookie keys change.
    pub keys: keys::Schedule,
    /// The NodeState of a node whose agent has been silent for this long is deleted.
    pub forget_nodes_after: Duration,
}

/// Why the controller does not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// A file is refused.
    #[error("{} is refused", file.display())]
    Problems {
        /// Which one.
        file: PathBuf,
        /// Why.
        problems: Vec<Problem>,
    },
    /// Neither in a pod nor with a KUBECONFIG.
    #[error("the address of the API server is not known: {0}")]
    Where(#[from] kube::config::InferConfigError),
    /// No client can be made.
    #[error("no client of the API server: {0}")]
    Client(#[source] Box<kube::Error>),
    /// Signals, sockets, the runtime.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}
