//! The store, without and with an API server.

/// A Service's endpoints as its slices come and go.
mod endpoints;
/// What the store makes of reports.
mod store;
/// The watches against an API server that does what a test says.
mod watches;
/// When a watch asks for what, by a virtual clock.
mod rules;
/// That API server.
mod server;
