//! Real Kubernetes for tests: an API server alone, or a cluster of three nodes.
//!
//! ```no_run
//! # fn main() -> anyhow::Result<()> {
//! use tests::cluster::ApiServer;
//! let server = ApiServer::start()?;
//! server.kubectl().apply("apiVersion: v1\nkind: Namespace\nmetadata: {name: tenant-a}\n")?;
//! let namespace = server.kubectl().get(&["namespace", "tenant-a"])?;
//! assert_eq!(namespace["status"]["phase"], "Active");
//! # Ok(())
//! # }
//! ```

/// Where programs and definitions are, and the cleanup after killed tests.
mod places;
/// kubectl as a client.
mod kubectl;
/// The API over HTTP, for requests that must be fast.
mod rest;
/// etcd and an API server, without nodes.
mod api_server;
/// etcd and its data.
mod etcd;
/// What they start from.
mod seed;
/// An admission webhook in the test's process.
mod webhook;
/// Turns between tests that measure and others.
mod turn;
/// The release's rights, and its programs as processes.
mod release;
/// Agents that only report.
mod reporting;
/// Many Services.
pub mod balancers;
/// Three nodes, a router and a client.
mod nodes;
/// The kinds that are listed only where they are not streamed.
mod streamed;

pub use api_server::{ApiServer, Options};
pub use kubectl::{Kubectl, OwnNamespace};
pub use nodes::{Alone, Cluster, Node, Shared};
pub use places::{
    gateway_definitions, helm, image, metallb, own_definitions, previous_release, programs, promtool,
};
pub use release::{Controller, Process, RELEASE, rights};
pub use reporting::{ReportingAgent, Reports, newest_claim};
pub use rest::{Connection, Rest};
pub use streamed::streamed;
pub use webhook::{Review, Verdict, Webhook};
