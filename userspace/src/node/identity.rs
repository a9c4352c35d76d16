//! The identity of an agent.

use crate::sources::kubernetes::api::lease_name::lease_name;

/// The identity of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of its node.
    pub node: String,
    /// The name of its pod.
    pub pod: String,
    /// The namespace of its pod, of the Leases and of the Secret.
    pub namespace: String,
}

impl Identity {
    /// The name of its node's Lease.
    pub(super) fn lease(&self) -> String {
        lease_name(&self.node)
    }
}
