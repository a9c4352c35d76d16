//! The status of a Gateway.

use super::condition::{Judged, merge};
use super::progress::{Progress, programmed};
use super::{changed, listener};
use crate::model::verdict::GatewayVerdict;
use serde_json::{Value, json};
use std::net::IpAddr;

/// Returns what to write to the status. `addresses` are those assigned to the Gateway now, in order; `now` is
/// RFC 3339, UTC.
pub fn desired_status(
    current: &Value,
    verdict: &GatewayVerdict,
    addresses: &[IpAddr],
    progress: &Progress,
    now: &str,
) -> Option<Value> {
    let judged = Judged { generation: verdict.generation, now };
    let programmed = programmed("Programmed", &verdict.programmable, progress);
    let conditions = verdict.conditions.iter().chain([&programmed]);
    let addresses: Vec<Value> = addresses
        .iter()
        .map(|address| json!({ "type": "IPAddress", "value": address.to_string() }))
        .collect();
    let mut fields = vec![
        ("conditions", merge(current.get("conditions"), conditions, judged)),
        ("listeners", listener::statuses(current.get("listeners"), &verdict.listeners, &programmed, judged)),
    ];
    // For readers, absent and empty are the same. Older CRDs do not have `attachedListenerSets`.
    if !addresses.is_empty() || current.get("addresses").is_some() {
        fields.push(("addresses", Value::Array(addresses)));
    }
    if verdict.attached_listener_sets != 0 || current.get("attachedListenerSets").is_some() {
        fields.push(("attachedListenerSets", json!(verdict.attached_listener_sets)));
    }
    changed(current, fields)
}
