//! `metallb.io/v1beta1`: IPAddressPool.

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
