//! Vestibule in user space: from what a source says to what the kernel does.
//!
//! Data flows down this list: sources -> model -> compile -> plan -> outputs -> dataplane.

/// Outside world to facts: the static file.
pub mod sources;
/// The static file's format: as written, to checked facts. Pure.
pub mod config;
/// Checked words: server names, listeners, routes, problems.
pub mod model;
/// From facts to what the data plane shall do, without contradictions. Pure.
pub mod compile;
/// Which addresses Gateways and Services have. Pure.
pub mod ipam;
/// From what is applied to what is desired: map writes in order. Pure.
pub mod plan;
/// Which tenant, which backend, and why: the kernel's decision on maps in memory. Pure.
pub mod explain;

/// What the status of each Kubernetes object shall say. Pure.
pub mod status;

/// The kernel's side: programs, maps, devices. The only folder that knows aya and bpf(2).
pub mod dataplane;
/// The node's network: devices, addresses, the way to each backend.
pub mod net;
/// What one node does: the loop of `vestibule run` and `vestibule agent`.
pub mod node;
/// Where what is desired goes: the kernel's maps.
pub mod outputs;
/// Active probes of backends.
pub mod health;
/// `/metrics`, `/readyz` and `/livez` over HTTP.
pub mod admin;
/// What `/metrics` tells.
pub mod metrics;
/// `vestibule controller`: conditions, addresses, Events.
pub mod controller;
/// The command line.
pub mod cli;
