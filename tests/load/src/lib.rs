//! Clients and servers of `cargo xtask bench`: few system calls, every byte checked.

/// Messages between the conductor and the load processes.
pub mod order;
/// The bytes that are sent.
pub mod content;
/// The backends' process.
pub mod serve;
/// The clients' process.
pub mod dial;
