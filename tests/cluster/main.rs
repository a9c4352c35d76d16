//! A whole cluster: real kubelets, real pods, clients beyond a router; one file per story.
#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests are tests too: a panic with its location is the report"
)]

/// The chart as an operator installs it, and a tenant behind it.
mod scene;
/// Clients that hold connections and open new ones.
mod traffic;
/// A host of the nodes' segment that asks for addresses.
mod asker;

mod ground;
mod l2;
mod operate;
mod rights;
mod rollout;
mod uninstall;
