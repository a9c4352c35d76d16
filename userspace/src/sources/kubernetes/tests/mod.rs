//! The store, without and with an API server.

/// A Service's endpoints as its slices come and go.
mod endpoints;
/// What the store makes of reports.
mod store;
/// The watches against an API server that does what a test says.
mod watches;
/// That API server.
mod server;
