//! The status of a ConfigurationState of MetalLB: what of its pools and L2Advertisements is wrong, or not honoured.

use super::changed;
use super::condition::{Judged, cut, merge};
use crate::model::verdict::{Condition, Status};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// The most bytes of a message, so that those of thousands of objects fit into one.
const MESSAGE_BYTES_MAX: usize = 8 << 10;

/// Returns what to write to the status, where this is wrong with pools and with L2Advertisements, each a line. With types and reasons of
/// MetalLB's own. `now` is RFC 3339, UTC.
pub fn desired_status(
    current: &Value,
    pools: &BTreeSet<String>,
    advertisements: &BTreeSet<String>,
    now: &str,
) -> Option<Value> {
    let condition = |kind, lines: &BTreeSet<String>| match lines.is_empty() {
        true => Condition { kind, status: Status::True, reason: "Reconciled", message: String::new() },
        false => {
            Condition { kind, status: Status::False, reason: "ConfigurationError", message: message(lines) }
        }
    };
    let ours = [condition("poolReconcilerValid", pools), condition("configReconcilerValid", advertisements)];
    let wrong: Vec<&str> = ours.iter().map(|one| &*one.message).filter(|text| !text.is_empty()).collect();
    let result = if wrong.is_empty() { "Valid" } else { "Invalid" };
    changed(
        current,
        [
            ("conditions", merge(current.get("conditions"), &ours, Judged { generation: 0, now })),
            ("result", json!(result)),
            ("errorSummary", json!(wrong.join("\n"))),
        ],
    )
}

/// Returns as many of the lines as there is room for, and the number of the others.
fn message(lines: &BTreeSet<String>) -> String {
    let mut text = String::new();
    for (at, line) in lines.iter().enumerate() {
        let line = cut(line, MESSAGE_BYTES_MAX);
        if text.len() + line.len() > MESSAGE_BYTES_MAX {
            return format!("{text}and {} more", lines.len() - at);
        }
        text.push_str(line);
        text.push('\n');
    }
    text.truncate(text.len() - 1);
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(all: &[&str]) -> BTreeSet<String> {
        all.iter().map(|line| (*line).to_owned()).collect()
    }

    #[test]
    fn it_says_what_is_wrong_and_nothing_is_written_while_that_stays() {
        let (none, wrong) = (BTreeSet::new(), lines(&["L2Advertisement m/b: y", "L2Advertisement m/a: x"]));
        let mut status = desired_status(&Value::Null, &none, &none, "2026-11-29T10:00:00Z").unwrap();
        assert_eq!((&status["result"], &status["errorSummary"]), (&json!("Valid"), &json!("")));
        assert_eq!(desired_status(&status, &none, &none, "2026-11-29T11:00:00Z"), None);
        let changed = desired_status(&status, &none, &wrong, "2026-11-29T11:00:00Z").unwrap();
        for (field, value) in changed.as_object().unwrap() {
            status[field] = value.clone();
        }
        let said = "L2Advertisement m/a: x\nL2Advertisement m/b: y";
        assert_eq!((&status["result"], &status["errorSummary"]), (&json!("Invalid"), &json!(said)));
        let conditions = json!([
            {"type": "poolReconcilerValid", "status": "True", "reason": "Reconciled", "message": "",
             "lastTransitionTime": "2026-11-29T10:00:00Z"},
            {"type": "configReconcilerValid", "status": "False", "reason": "ConfigurationError", "message": said,
             "lastTransitionTime": "2026-11-29T11:00:00Z"},
        ]);
        assert_eq!(status["conditions"], conditions);
        assert_eq!(desired_status(&status, &none, &wrong, "2026-11-29T12:00:00Z"), None);
    }

    #[test]
    fn of_very_much_that_is_wrong_the_rest_is_counted() {
        let many = (0..1_000).map(|at| format!("IPAddressPool m/p{at:04}: {}", "x".repeat(100))).collect();
        let text = message(&many);
        let listed = text.lines().count() - 1;
        assert!(text.len() <= MESSAGE_BYTES_MAX + 20 && listed > 50, "{}", text.len());
        assert!(text.ends_with(&format!("\nand {} more", 1_000 - listed)));
        assert_eq!(message(&lines(&["a", "b"])), "a\nb");
    }
}
