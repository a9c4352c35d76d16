//! The status of a GatewayClass.

use super::changed;
use super::condition::{Judged, merge};
use crate::model::verdict::ClassVerdict;
use serde_json::{Value, json};

/// `supportedFeatures`, sorted: each has upstream conformance tests that ran and passed; see `deploy/conformance`.
const FEATURES: &[&str] = &["Gateway", "ReferenceGrant", "TCPRoute", "TLSRoute"];

/// What the status shall say; `now` is RFC 3339, UTC.
pub fn desired_status(current: &Value, verdict: &ClassVerdict, now: &str) -> Option<Value> {
    let judged = Judged { generation: verdict.generation, now };
    let features: Vec<Value> = FEATURES.iter().map(|name| json!({ "name": name })).collect();
    changed(
        current,
        [
            ("conditions", merge(current.get("conditions"), &verdict.conditions, judged)),
            ("supportedFeatures", Value::Array(features)),
        ],
    )
}
