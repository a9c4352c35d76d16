//! Kubernetes objects as they come over the wire, as far as anybody here reads them.

/// What one agent says of its node.
pub mod node_state;
