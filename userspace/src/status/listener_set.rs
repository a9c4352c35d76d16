//! The status of a ListenerSet.

use super::condition::{Judged, merge};
use super::progress::{Progress, programmed};
use super::{changed, listener};
use crate::model::verdict::ListenerSetVerdict;
use serde_json::Value;

/// Returns what to write to the status; `now` is RFC 3339, UTC.
pub fn desired_status(
    current: &Value,
    verdict: &ListenerSetVerdict,
    progress: &Progress,
    now: &str,
) -> Option<Value> {
    let judged = Judged { generation: verdict.generation, now };
    let programmed = programmed("Programmed", &verdict.programmable, progress);
    let conditions = verdict.conditions.iter().chain([&programmed]);
    let listeners = listener::statuses(current.get("listeners"), &verdict.listeners, &programmed, judged);
    changed(
        current,
        [("conditions", merge(current.get("conditions"), conditions, judged)), ("listeners", listeners)],
    )
}
