//! Reads and writes bytes on the wire.

/// Internet checksum arithmetic (RFC 1071, RFC 1624).
pub mod checksum;
/// TCP sequence numbers: arithmetic modulo 2^32 (RFC 9293 section 3.4).
pub mod seq;
/// ARP (RFC 826).
pub mod arp;
/// Neighbour discovery (RFC 4861).
pub mod ndp;
/// Frames by which nodes of a segment show each other that they live, and which addresses they announce.
pub mod heartbeat;
/// TLS ClientHello over any number of segments and records (RFC 8446, RFC 6066).
pub mod client_hello;
/// An established connection, described for another node.
pub mod opening;
