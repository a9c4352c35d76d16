//! The under cluster: Services, EndpointSlices and the Gateway API, watched and folded to [`Cluster`](crate::model::Cluster).
//!
//! ```text
//! discovery (CRDs) ──► watch ──► fold ──► store ──► Cluster    the controller
//!                      watch ──► fold ──► store ──► ClaimSet   agents: Claims and EndpointSlices alone
//!                      a kind each        one table a kind, never whole objects
//! ```

/// Objects as they come over the wire.
pub mod api;
/// How a kind comes into the cluster, and what is watched of it.
pub(crate) mod served;
/// What is watched.
mod source;
/// What a watch asks the API server for.
mod target;
/// Single values of objects.
pub(crate) mod value;
/// One copy of each text that many objects share.
pub(crate) mod interner;
/// The annotation that says how endpoints are probed.
mod probe;
/// From an object to what decisions need of it.
pub(crate) mod fold;
/// How long to wait.
mod retry;
/// Why a watch ended.
mod trouble;
/// Follows all objects of one kind.
mod watch;
/// The objects of one kind by name, for a receiver that keeps them itself.
mod named;
/// Which kinds of the Gateway API there are.
mod discovery;
/// Which watches run.
mod watches;
/// What the watches report to the store.
mod watch_event;
/// Endpoints of Services, from their slices.
mod endpoints;
/// Claims, as far as they are known to be whole.
mod claim_table;
/// Maps without room.
mod pack;
/// The tables a cluster is made of.
mod tables;
/// What the under cluster says, kept up to date.
mod store;

pub(crate) use named::{Named, follow, follow_some};
pub(crate) use retry::{chance, share};
pub(crate) use source::{Source, Waits};
pub use store::{Changes, Stale, Store};
pub(crate) use target::Target;
pub(crate) use watch::{Event, Sink, Watch};
pub use watch_event::StoredStatus;
pub use watches::{Options, Reads};

use axum::http::HeaderValue;
use axum::http::header::USER_AGENT;

/// A client for an API server as [`Store`] needs it. `who`: what it is, and in parentheses of which node or pod. The server's audit log shows
/// it: all agents have one account.
pub fn connect(mut config: kube::Config, who: &str) -> kube::Result<kube::Client> {
    let name = format!("vestibule/{} {who}", env!("CARGO_PKG_VERSION"));
    config.headers.extend(HeaderValue::from_str(&name).ok().map(|name| (USER_AGENT, name)));
    // The watches decide themselves when to retry, and report what is stale until then: a client that waits up to
    // 1000 s behind 503 and 429 hides that.
    config.default_retry = false;
    config.connect_timeout = Some(CONNECT);
    kube::Client::try_from(config)
}

/// A connection to the API server must be open within this time.
const CONNECT: std::time::Duration = std::time::Duration::from_secs(5);

#[cfg(test)]
pub(crate) mod script;
#[cfg(test)]
mod golden;
#[cfg(test)]
mod tests;
