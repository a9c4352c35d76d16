//! Records of connections. Flows are made by one function and ended by one function.

/// The proof that a client received our SYN-ACK.
pub(crate) mod cookie;
/// Makes the flow of an established connection.
pub(crate) mod open;
/// The lock of a waiting or half-open connection's record.
pub(crate) mod record;
/// Waiting connections of TLS listeners.
pub(crate) mod pending;
/// Half-open connections of TCP listeners.
pub(crate) mod half_open;
/// Changes of words that several CPUs change at the same time.
pub(crate) mod exchange;
/// Flows whose path to the client is narrow.
pub(crate) mod narrow;
/// A new connection on the addresses and ports of an open flow.
pub(crate) mod renew;
/// What a segment teaches about its flow.
pub(crate) mod track;
/// Ends a flow, whose entry lingers.
pub(crate) mod end;
/// Removes entries.
pub(crate) mod forget;
/// Flows that are over, in the order in which they ended.
pub(crate) mod closed;
/// Counts the outcomes of a route's connections.
pub(crate) mod count;
