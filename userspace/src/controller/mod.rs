//! `vestibule controller`: alone writes conditions, addresses, ingress and Events, as leader of those that run.
//!
//! ```text
//! Store, agents ──► judge (ipam, compile, status) ──► queue ──► writes
//!                                               └──► telling ──┘
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
/// What shall be written.
mod judge;
/// Which status is written next, and when. Pure.
mod queue;
/// What is told as Events. Pure.
mod notes;
/// Which Events are told, and when. Pure.
mod telling;
/// The keys of the release. Pure.
pub mod keys;
/// Requests to the API server.
mod writes;
/// Readiness, liveness, metrics.
mod telemetry;
/// The loop.
mod run;

pub use run::{ControllerError, Options, run};
