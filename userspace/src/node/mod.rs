//! The process on one node: `vestibule run` and `vestibule agent` share one loop, with different inputs.
//!
//! ```text
//! inputs ──► Facts ──► compile ──► Desired ──► outputs        one writer per node: `role`, `handover`
//!    ▲                    │                       │
//!    │                    └──► probes             ▼
//!    └─────────────────────────────────── what is held ──► telemetry
//! ```

/// `vestibule run` and its inputs.
pub mod run;
/// `vestibule agent` and its inputs.
pub mod agent;
/// The identity of an agent.
mod identity;
/// Why a node's process ends.
mod error;
/// The inputs of the loop.
mod inputs;
/// Whether the agent's DaemonSet still wants an agent on this node.
mod daemon_set;
/// The chart's file, followed.
mod chart;
/// The facts from the sources, and compiling them.
mod facts;
/// The last compiled state, and what is reported about it.
mod state;
/// The loop.
mod reconcile;
/// How the loop becomes the writer, and how it hands the maps over.
mod take_over;
/// The orders to the outputs, and their answers.
mod orders;
/// The writer of the maps: this process, another one or none.
mod role;
/// The handover from one process to the next.
mod handover;
/// The timing of the loop.
mod pace;
/// What the node reports to the API server, probes and scrapers.
mod telemetry;
/// Answers to probes about what the agent is doing.
mod told;
/// Messages to the service manager.
mod notify;
/// What an agent writes to the API server.
pub mod report;
/// Answers of the API server to it.
mod answer;
/// When the Lease is renewed.
mod renewals;
/// The cookie keys that all nodes share.
mod keys;
/// Saves what must survive a reboot.
mod saving;
/// The file with the last compiled state.
mod saved;
/// The file with what is announced.
mod saved_announcement;
/// Addresses of API servers, and the file with them.
mod api_servers;
/// A start without the API server.
mod boot;
mod open_files;
/// Files that survive a reboot.
mod disk;

#[cfg(test)]
mod tests;

pub use error::NodeError;
pub use identity::Identity;
#[cfg(test)]
pub(crate) use renewals::Renewals;
pub(crate) use telemetry::NODE_STATE;
