//! `vestibule agent` in a network namespace of its own, against a real API server, with the rights of the chart.

/// Namespace, API server, agents.
pub(crate) mod scene;
/// Objects reach the maps, and what the maps hold is reported.
mod programs;
/// The API server away, the node booted without it.
mod away;
/// Killed at every step of a change.
mod killed;
/// What maps hold, with names.
mod named;
/// One agent after the other.
mod handover;
/// Ten thousand routes.
mod speed;
