//! The harness of Vestibule's tests: network namespaces, links, packets, and the loaded programs.
//!
//! Everything here works on namespaces of its own, named `vst-<pid>-<n>-<role>`, and removes them when the guard
//! objects drop, also on panic.

/// Network namespaces, devices, addresses.
pub mod net;
/// Device offloads, switched by ioctl.
pub mod offload;
