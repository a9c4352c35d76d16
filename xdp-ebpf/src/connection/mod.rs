//! Records of connections: opened in one place, ended in one.

/// What proves that a client got our SYN-ACK.
pub(crate) mod cookie;
/// A connection is established.
pub(crate) mod open;
/// Half-open connections of TCP listeners.
pub(crate) mod half_open;
/// A flow is over, and lingers.
pub(crate) mod end;
/// Entries are removed.
pub(crate) mod forget;
/// Flows that are over, in the order they ended.
mod closed;
/// What a route's connections came to.
pub(crate) mod count;
