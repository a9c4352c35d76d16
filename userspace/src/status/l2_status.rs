//! The status of a ServiceL2Status of MetalLB: which node announces a Service.

use super::changed;
use crate::model::ObjectName;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Returns what to write to the status. MetalLB names no devices where it announces on all of a node; ours are always named, in order.
pub fn desired_status(
    current: &Value,
    node: &str,
    service: &ObjectName,
    devices: &BTreeSet<&str>,
) -> Option<Value> {
    let devices: Vec<Value> = devices.iter().map(|name| json!({ "name": name })).collect();
    changed(
        current,
        [
            ("node", json!(node)),
            ("serviceName", json!(*service.name)),
            ("serviceNamespace", json!(*service.namespace)),
            ("interfaces", Value::Array(devices)),
        ],
    )
}
