//! Vestibule in user space: from the data of sources to the state of the kernel.
//!
//! Data flows down this list: sources -> model -> settle -> compile -> plan -> outputs -> dataplane.

/// Reads the outside world as facts: files and Kubernetes objects.
pub mod sources;
/// The format of the static file: from the file as written to checked facts. Pure.
pub mod config;
/// Checked types: server names, listeners, routes, problems.
pub mod model;
/// Kinds of objects that ask for names at listeners of the chart: one module and one line each. Pure.
pub(crate) mod origins;
/// Settles who owns what: from objects to claims with grants, and to verdicts on each object. Pure.
pub mod settle;
/// Compiles claims, endpoints and facts of the node to the desired state of the data plane. Pure.
pub mod compile;
/// Assigns addresses to Gateways and Services. Pure.
pub mod ipam;
/// Plans the map writes from what is applied to what is desired, in order. Pure.
pub mod plan;
/// Explains which tenant and backend a connection reaches: the kernel's decision on maps in memory. Pure.
pub mod explain;

/// Computes the status of each Kubernetes object. Pure.
pub mod status;

/// Access to the kernel: programs, maps, devices. The only folder that uses aya and bpf(2).
pub mod dataplane;
/// The node's network: devices, addresses, the next hop to each backend.
pub mod net;
/// The process on one node: the loop of `vestibule run` and `vestibule agent`.
pub mod node;
/// The outputs, which hold the desired state: the kernel's maps.
pub mod outputs;
/// Active probes of backends.
pub mod health;
/// `/metrics`, `/readyz` and `/livez` over HTTP.
pub mod admin;
/// HTTP on TCP ports that strangers may reach.
pub mod http_server;
/// The metrics of `/metrics`.
pub mod metrics;
/// `vestibule controller`: writes conditions, addresses and Events.
pub mod controller;
/// The command line.
pub mod cli;

/// Chance in simulations.
#[cfg(test)]
mod dice;
