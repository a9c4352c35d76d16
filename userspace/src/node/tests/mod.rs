//! Tests the loop of `vestibule run` and `agent`, with an image of the maps and scripted inputs.

/// What is logged.
pub(super) mod log;
/// A loop with its inputs, and what is expected of it.
mod scene;
/// Changes of the static file.
mod file;
/// Changes in the cluster.
mod chart;
mod cluster;
/// The addresses of API servers.
mod api_servers;
/// What cannot be written or followed.
mod stale;
/// What is served though no Claims are known.
mod kept;
/// Answers of the outputs.
mod outputs;
/// What the node does not hold of its Claims.
mod unheld;
/// The writer of the maps.
mod hands;
