//! The control plane against a real API server, without nodes; one file per story.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests too: a panic with its location is the report"
)]

/// Our programs as processes.
mod process;
/// What the API server counted.
mod counted;
/// A connection that is held open.
mod held;

mod agent;
mod chart;
mod check;
mod controller;
mod definitions;
mod restart;
mod sources;
mod together;
