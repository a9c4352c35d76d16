//! Agent and controller on one API server.

/// What an API server that does not stream lists is asked for.
mod lists;
/// Keys that change.
mod keys;
/// Backends that fail their probe.
mod probes;
/// What `/metrics` of both serves.
mod metrics;
/// A static file beside the cluster.
mod file;
