//! `vestibule controller`: the only writer of conditions, addresses, ingress and Events. Of several
//! controllers, only the leader writes.
//!
//! ```text
//! Store, agents ──► judge (ipam, settle, compile, status) ──► queue ───► writes
//!                                                       ├──► claims ──┤
//!                                                       └──► events ──┘
//! ```
//! It settles what origins ask, and writes that as Claims, which agents compile. Whether something is programmed follows from the
//! agents' Leases.

/// Who leads: the Lease as one candidate sees it. Pure.
mod lease;
/// Acquires and renews the Lease.
mod election;
/// Takes the Lease from the leader.
mod preempt;
/// Requests of the command line.
mod ask;
/// Which nodes hold each Claim, read once.
pub mod holders;
/// Reads the Lease once.
pub mod leader;
/// What else serves the same Services, read once.
pub mod neighbours;
/// What changes of the addresses of Services.
mod allocated;
/// Whether MetalLB runs beside us.
mod metallb;
/// Which agents are alive. Pure.
mod liveness;
/// The agents: which are alive, and what their nodes hold.
mod agents;
/// What is announced, and when that is written. Pure, but for its watch.
mod announcement;
/// Which Claims are written, changed and deleted. Pure.
mod claims;
/// Claims as the API server has them, and writes of them.
mod claim_store;
/// Writes of Claims that are in flight, or are to be repeated.
mod claim_flights;
/// The Claim that marks that all are written. Pure.
mod claim_mark;
/// Keeps GatewayClasses while Gateways use them.
mod class_finalizers;
/// Follows the Claims.
mod claim_watch;
/// Content of the configuration files.
mod files;
/// What the controller does with what it knows. Pure.
mod core;
/// Computes what must be written.
mod judge;
/// Whether objects are programmed. Pure.
mod standing;
/// Nodes that are not waited for. Pure.
mod lag;
/// Nodes whose report is of a history before a backup was restored. Pure.
mod history;
/// Which statuses may be written beside each other. Pure.
mod lanes;
/// Requests in flight.
mod flights;
/// Which status is written next, and when. Pure.
mod queue;
/// What is made of MetalLB's kinds for others to read. Pure.
mod reports;
/// What a route's status says about its backends. Pure.
mod health;
/// What is written as Events. Pure.
mod kube_events;
/// Which Events are written, and when. Pure.
mod kube_event;
/// The keys of the release. Pure.
pub mod keys;
/// Requests to the API server.
mod writes;
/// Those that write statuses, and what is made for others to read.
mod object_writes;
/// What waits for a kind that cannot be listed. Pure.
mod hold;
/// Since when something cannot be followed. Pure.
mod since;
/// Readiness, liveness, metrics.
mod telemetry;
/// The core in a simulated cluster.
#[cfg(test)]
mod metallb_samples;
#[cfg(test)]
mod pool_samples;
#[cfg(test)]
mod simulation;
/// The loop.
mod run;
/// Takes the cluster back from Vestibule, before it is uninstalled.
pub mod withdraw;

use crate::http_server::Access;
use std::path::PathBuf;
use std::time::Duration;

pub use run::run;

/// Options of `vestibule controller`.
#[derive(Clone, Debug)]
pub struct Options {
    /// The chart's file.
    pub config: PathBuf,
    /// A static file with listeners and routes that add to those of the cluster. Agents have the same file.
    /// It is read again when it changes.
    pub file: Option<PathBuf>,
    /// Name of the controller's pod: identifies the leader and the source of Events.
    pub pod: String,
    /// Namespace of the release, with the Leases and the Secret.
    pub namespace: String,
    /// Port of `/metrics`, `/readyz` and `/livez`; 0: none.
    pub metrics_port: u16,
    /// Where that port is served, and for whom.
    pub metrics_access: Access,
    /// How often cookie keys change.
    pub keys: keys::Schedule,
    /// The NodeState of a node whose agent has been silent for this long is deleted.
    pub forget_nodes_after: Duration,
}

/// Why the controller does not run.
#[derive(Debug, thiserror::Error)]
pub enum ControllerError {
    /// It runs neither in a pod nor with a KUBECONFIG.
    #[error("the address of the API server is not known: {0}")]
    Where(#[from] kube::config::InferConfigError),
    /// The client of the API server cannot be created.
    #[error("no client of the API server: {0}")]
    Client(#[source] Box<kube::Error>),
    /// The cluster cannot be left.
    #[error("{0}; a controller goes on to serve it")]
    Withdraw(String),
    /// An error of signals, sockets or the runtime.
    #[error("{0}")]
    Io(#[from] std::io::Error),
}
