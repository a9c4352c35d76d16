//! The store, without and with an API server.

/// A Service's endpoints as its slices come and go.
mod endpoints;
/// What the store makes of what it is told.
mod store;
