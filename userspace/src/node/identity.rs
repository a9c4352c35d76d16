//! Who an agent is.

/// Who an agent is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Name of its node.
    pub node: String,
    /// Name of its pod.
    pub pod: String,
    /// Namespace of its pod: of Leases and of the Secret.
    pub namespace: String,
}
