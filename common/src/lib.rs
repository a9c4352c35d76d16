//! What the kernel part and the user-space part of Vestibule share.
//!
//! No allocation (but where bytes are for user space alone), no I/O, no clock, no BPF helper: everything here runs unchanged in the eBPF programs, in
//! the daemon, in `vestibule explain`, in tests and in fuzzers.
#![cfg_attr(not(test), no_std)]

#[cfg(any(test, feature = "user"))]
extern crate alloc;

/// Keys and values of every BPF map, and the names of the maps.
pub mod maps;
/// Reads and writes bytes on the wire.
pub mod wire;
/// Pure decisions: the same code in the kernel, in tests and in `explain`.
pub mod decide;
/// Every reason why a packet leaves the path.
pub mod reason;
