//! The status of a GatewayClass.

use super::changed;
use super::condition::{Judged, merge};
use crate::model::verdict::{ClassVerdict, Condition, Status};
use crate::settle::SUPPORTED_FEATURES;
use serde_json::{Value, json};

/// The newest minor release of version 1 of the Gateway API that our tests have run with.
const NEWEST_MINOR: u32 = 6;

/// Returns what to write to the status. `bundle` is the release that the Gateway API's CRDs declare; `now` is
/// RFC 3339, UTC.
pub fn desired_status(
    current: &Value,
    verdict: &ClassVerdict,
    bundle: Option<&str>,
    now: &str,
) -> Option<Value> {
    let judged = Judged { generation: verdict.generation, now };
    let version = supported_version(bundle);
    let features: Vec<Value> = SUPPORTED_FEATURES.iter().map(|name| json!({ "name": name })).collect();
    changed(
        current,
        [
            (
                "conditions",
                merge(current.get("conditions"), verdict.conditions.iter().chain(&version), judged),
            ),
            ("supportedFeatures", Value::Array(features)),
        ],
    )
}

/// Returns the condition that says whether we know the release. An unknown release is read all the same. CRDs
/// that declare no release get no condition.
fn supported_version(bundle: Option<&str>) -> Option<Condition> {
    let bundle = bundle?;
    let minor = bundle.strip_prefix("v1.").and_then(|rest| rest.split('.').next()?.parse::<u32>().ok());
    let is_known = minor.is_some_and(|minor| minor <= NEWEST_MINOR);
    let (status, reason) = match is_known {
        true => (Status::True, "SupportedVersion"),
        false => (Status::False, "UnsupportedVersion"),
    };
    let message = match is_known {
        true => format!("the Gateway API's definitions are of release {bundle}"),
        false => format!(
            "the Gateway API's definitions are of release {bundle}; v1.0 to v1.{NEWEST_MINOR} are tested: install one \
             of these, or an implementation that knows this one"
        ),
    };
    Some(Condition { kind: "SupportedVersion", status, reason, message })
}
