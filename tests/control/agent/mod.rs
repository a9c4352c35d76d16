//! `vestibule agent` in a network namespace of its own, against a real API server, with the rights of the chart.

/// Namespace, API server, agents.
mod scene;
/// What objects say reaches the maps, and what the maps hold is told.
mod programs;
/// The API server away, the node booted without it.
mod away;
/// One agent after the other.
mod handover;
/// Ten thousand routes.
mod speed;
