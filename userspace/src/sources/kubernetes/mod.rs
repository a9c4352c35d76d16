//! The under cluster: Services, EndpointSlices and the Gateway API, watched and folded to [`Cluster`](crate::model::Cluster).
//!
//! ```text
//! discovery (CRDs) ──► watch ──► fold ──► store ──► Cluster
//!                      a kind each        one table a kind, never whole objects
//! ```

/// Objects as they come over the wire.
pub mod api;
/// What is watched.
mod source;
/// What the watches tell the store.
mod news;
/// Which watches run.
mod watches;
/// Endpoints of Services, from their slices.
mod endpoints;
/// The tables a cluster is made of.
mod tables;
/// What the under cluster says, kept up to date.
mod store;

pub use store::{Options, Stale, Store, StoredStatus};
