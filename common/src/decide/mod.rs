//! Pure decisions: given bytes and numbers, the same answer in the kernel, in tests and in `explain`.

/// SYN cookies of our own (SipHash-2-4), good on every node that has the key.
pub mod cookie;
/// What a server name may hold, and names nobody may claim.
pub mod server_name;
/// From (listener, server name) to the keys looked up in the name maps.
pub mod route_key;
/// Consistent hashing with weights.
pub mod maglev;
/// What a decision looks up.
pub mod tables;
/// A listener and a server name lead to a route.
pub mod route;
/// A route and a client lead to a backend.
pub mod pick;
/// Which packets are traced.
pub mod trace;
