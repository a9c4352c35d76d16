//! `vestibule agent` in its own network namespace, against a real API server, with the rights of the chart.

/// Namespace, API server, agents.
pub(crate) mod scene;
/// Objects reach the maps, and the content of the maps is reported.
mod programs;
/// The API server is away, and the node boots without it.
mod away;
/// The node boots without it, with a state that is too old.
mod aged;
/// Killed at every step of a change.
mod killed;
/// The content of maps, with names.
mod named;
/// Addresses that are announced.
mod announced;
/// Another program changes the maps.
mod drift;
/// One agent takes over from another.
mod handover;
/// Maps of another version.
mod other_maps;
/// The node's port of `/metrics`.
mod port;
/// Ten thousand routes.
mod speed;
