//! What one node does, by `vestibule run` or by `vestibule agent`: one loop, which differs in its inputs alone.
//!
//! ```text
//! inputs ──► Facts ──► compile ──► Desired ──► outputs        one writer a node: `role`, `handover`
//!    ▲                    │                       │
//!    │                    └──► probes             ▼
//!    └─────────────────────────────────── what is held ──► telemetry
//! ```

/// `vestibule run`: its inputs.
pub mod run;
/// `vestibule agent`: its inputs.
pub mod agent;
/// Who an agent is.
mod identity;
/// Why a node's process ends.
mod error;
/// What the loop hears of.
mod inputs;
/// What sources say, and what it comes to.
mod facts;
/// What was compiled last, and what is told of it.
mod state;
/// The loop.
mod reconcile;
/// How the loop becomes the writer, and gives the maps away.
mod take_over;
/// What outputs were told, and what they said since.
mod orders;
/// Who writes the maps: this process, another one, nobody.
mod role;
/// From one process to the next.
mod handover;
/// When the loop turns.
mod pace;
/// What is told of the node.
mod telemetry;
/// What it is doing, for those who ask.
mod told;
/// Messages to the service manager.
mod notify;
/// What it writes to the API server.
mod report;
/// The keys that all nodes have.
mod keys;
/// What outlives a boot.
mod saving;
/// The last compiled state.
mod saved;
/// Files that outlive the boot.
mod disk;

#[cfg(test)]
mod tests;

pub use error::NodeError;
pub use identity::Identity;
