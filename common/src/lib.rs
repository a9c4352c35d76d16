//! What the kernel half and the user-space half of Vestibule agree on.
//!
//! No allocation, no I/O, no clock, no BPF helper: everything here runs unchanged in the eBPF programs, in the
//! daemon, in `vestibule explain`, in tests and in fuzzers.
#![cfg_attr(not(test), no_std)]

/// Keys and values of every BPF map, their names and capacities.
pub mod maps;
/// Bytes on the wire, read and written.
pub mod wire;
/// Pure decisions, the same code in kernel, tests and `explain`.
pub mod decide;
/// Every reason for which a packet leaves the path.
pub mod reason;
