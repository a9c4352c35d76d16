//! Pure decisions: the same input gives the same result in the kernel, in tests and in `explain`.

/// The keyed hash of cookies and heartbeats.
pub mod siphash;
/// Our SYN cookies (SipHash-2-4), valid on every node that has the key.
pub mod cookie;
/// Which server names are valid, and which are reserved.
pub mod server_name;
/// Keys of the name maps, built from listener and server name.
pub mod route_key;
/// Consistent hashing with weights.
pub mod maglev;
/// The tables that decisions read.
pub mod tables;
/// Finds the route for a listener and a server name.
pub mod route;
/// Whether a route takes one more connection of a client.
pub mod admit;
/// Whether a TCP listener passes a SYN on, or answers it by a cookie.
pub mod half_open;
/// Picks the backend for a route and a client.
pub mod pick;
/// Whether a packet goes on to the node that announced its address before.
pub mod previous;
/// Chooses our port towards a backend.
pub mod source_port;
/// Which segments of a flow are believed, and which end it.
pub mod track;
/// Why an element of a map was not stored, or not removed.
pub mod store;
/// Which clients share a bound on errors that reach backends.
pub mod told;
/// Which packets are traced.
pub mod trace;
