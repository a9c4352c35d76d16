//! What the fuzz targets check. The tests' corpus level replays the corpus with the same checks.

/// The rules once more, as plainly as can be.
pub mod oracle;
/// Any bytes, cut anywhere, as the beginning of a TLS connection.
pub mod client_hello;
/// Any bytes as a configured host name.
pub mod config_name;
/// Any packets, run through the loaded programs.
pub mod packets;
