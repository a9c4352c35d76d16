//! The status of an IPAddressPool of MetalLB.

use super::changed;
use crate::ipam::PoolUse;
use serde_json::{Value, json};

/// Returns what to write to the status: how many addresses are in use, and how many are free.
pub fn desired_status(current: &Value, pool: &PoolUse) -> Option<Value> {
    let count = |count: u64| json!(i64::try_from(count).unwrap_or(i64::MAX));
    let PoolUse { assigned, available } = pool;
    changed(
        current,
        [
            ("assignedIPv4", count(assigned[0])),
            ("assignedIPv6", count(assigned[1])),
            ("availableIPv4", count(available[0])),
            ("availableIPv6", count(available[1])),
        ],
    )
}
