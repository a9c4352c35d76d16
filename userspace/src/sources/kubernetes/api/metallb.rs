//! `metallb.io/v1beta1`: IPAddressPool, L2Advertisement.

use super::gateway::Selector;
use serde::Deserialize;

/// `IPAddressPool.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct AddressPool {
    pub(in super::super) addresses: Option<Vec<String>>,
    pub(in super::super) auto_assign: Option<bool>,
    #[serde(rename = "avoidBuggyIPs")]
    pub(in super::super) avoid_buggy_ips: Option<bool>,
    pub(in super::super) service_allocation: Option<Allocation>,
}

/// `serviceAllocation`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct Allocation {
    pub(in super::super) priority: Option<i64>,
    pub(in super::super) namespaces: Option<Vec<String>>,
    pub(in super::super) namespace_selectors: Option<Vec<Selector>>,
    pub(in super::super) service_selectors: Option<Vec<Selector>>,
}

/// `L2Advertisement.spec`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct L2Advertisement {
    pub(in super::super) ip_address_pools: Option<Vec<String>>,
    pub(in super::super) ip_address_pool_selectors: Option<Vec<Selector>>,
    pub(in super::super) node_selectors: Option<Vec<Selector>>,
    pub(in super::super) interfaces: Option<Vec<String>>,
    pub(in super::super) service_selectors: Option<Vec<Selector>>,
    pub(in super::super) preferred_node_selectors: Option<Vec<PreferredNodes>>,
}

/// `preferredNodeSelectors[]`
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in super::super) struct PreferredNodes {
    /// 1 to 100.
    pub(in super::super) weight: i64,
    pub(in super::super) preference: Option<Selector>,
}
