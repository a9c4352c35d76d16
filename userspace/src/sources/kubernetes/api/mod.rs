//! Kubernetes objects as they come over the wire, as far as anybody here reads them.

/// `Announcement`: what the cluster announces, and who.
pub mod announcement;
/// `Claim`: what an origin asks, and what it was granted.
pub mod claim;
/// Addresses that a Claim asks for.
mod claim_address;
/// What a Claim was granted and refused.
mod claim_grant;
/// Where a Claim leads.
mod claim_backend;
/// `NodeState`: what one agent says of its node.
pub mod node_state;
/// `metallb.io/v1beta1`.
pub(super) mod metallb;
/// What an agent's Lease is called.
pub mod lease_name;
/// What an agent reports in its Lease.
pub mod lease_report;
/// What every object has.
pub(super) mod object;
/// Service, EndpointSlice, CustomResourceDefinition.
pub(super) mod core;
/// The Gateway API.
pub(super) mod gateway;
