//! What decides which addresses are announced where, besides pools.

use super::labels::{LabelSelector, Labels};
use super::object::{Meta, ObjectName};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the chart says of announcing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncingPolicy {
    /// Whether addresses of the chart's own ranges are announced.
    pub own_ranges: bool,
    /// For how long a node whose agent is dead goes on answering, while others could.
    pub grace: Duration,
    /// How long the first candidate of an address has to live before its owner leaves it to that one; `None`: for ever.
    pub rebalance: Option<Duration>,
    /// Whether a node that is cut off stops answering for what others may announce.
    pub withdraws: bool,
}

/// What the chart presets.
pub const GRACE: Duration = Duration::from_secs(15);
/// The same.
pub const REBALANCE: Duration = Duration::from_mins(10);

impl Default for AnnouncingPolicy {
    fn default() -> Self {
        Self { own_ranges: false, grace: GRACE, rebalance: Some(REBALANCE), withdraws: false }
    }
}

/// What the cluster says of announcing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Announcing {
    /// L2Advertisements of MetalLB.
    pub advertisements: BTreeMap<ObjectName, Arc<AdvertisementSpec>>,
    /// Nodes, by name.
    pub nodes: BTreeMap<Arc<str>, Arc<ClusterNode>>,
    /// What was made of MetalLB's kinds for others to read.
    pub reports: Reports,
}

/// What was made of MetalLB's kinds for others to read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reports {
    /// ServiceL2Statuses.
    pub l2_statuses: BTreeMap<ObjectName, Arc<Meta>>,
    /// ConfigurationStates.
    pub configurations: BTreeMap<ObjectName, Arc<Meta>>,
}

/// An L2Advertisement of MetalLB.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AdvertisementSpec {
    /// Name and age.
    pub meta: Meta,
    /// `spec.ipAddressPools`
    pub pools: Vec<Arc<str>>,
    /// `spec.ipAddressPoolSelectors`
    pub pool_selectors: Vec<LabelSelector>,
    /// `spec.nodeSelectors`: one of them must match; none: all nodes.
    pub node_selectors: Vec<LabelSelector>,
    /// `spec.interfaces`; none: all.
    pub interfaces: Vec<Arc<str>>,
    /// `spec.serviceSelectors`: it covers what objects have that one of them selects by their labels; none: what anybody has.
    pub service_selectors: Vec<LabelSelector>,
    /// `spec.preferredNodeSelectors`: a node has the sum of the weights of those that match it.
    pub preferred: Vec<(u32, LabelSelector)>,
    /// It cannot be read: it covers nothing.
    pub is_refused: bool,
}

/// A node of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterNode {
    /// Its labels.
    pub labels: Labels,
    /// It must not announce anything: its label `node.kubernetes.io/exclude-from-external-load-balancers` or its condition
    /// NetworkUnavailable says so.
    pub is_left_out: bool,
}
