//! What the fuzz targets check. The corpus level of the tests replays the corpus with the same checks.

/// The rules again, as plainly as possible.
pub mod oracle;
/// Any bytes, cut anywhere, as the start of a TLS connection.
pub mod client_hello;
/// Any bytes as a configured host name.
pub mod config_name;
/// Any bytes as a message of ARP or neighbour discovery.
pub mod neighbour;
/// Any packets, run through the loaded programs.
pub mod packets;
