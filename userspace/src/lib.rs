//! Vestibule in user space: from what a source says to what the kernel does.
//!
//! Data flows down this list: sources -> model -> compile -> plan -> dataplane.

/// Checked words: server names, listeners, routes, problems.
pub mod model;
/// From what is applied to what is desired: map writes in order. Pure.
pub mod plan;
