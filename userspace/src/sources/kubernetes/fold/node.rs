//! Node.

use super::super::api::object::{Nothing, Raw};
use super::super::interner::Interner;
use crate::model::Problem;
use crate::model::advertisement::ClusterNode;
use serde_json::Value;

/// The label, whatever its value, of a node that load balancers leave out.
const EXCLUDED: &str = "node.kubernetes.io/exclude-from-external-load-balancers";

pub(in super::super) fn fold(raw: Raw<Nothing>, interner: &Interner) -> (ClusterNode, Vec<Problem>) {
    let labels = raw.meta.labels.unwrap_or_default();
    let conditions = raw.status.get("conditions").and_then(Value::as_array);
    let is_unavailable = |one: &Value| one["type"] == "NetworkUnavailable" && one["status"] == "True";
    let is_left_out = labels.contains_key(EXCLUDED) || conditions.into_iter().flatten().any(is_unavailable);
    let labels = labels.iter().map(|(key, value)| (interner.of(key), interner.of(value))).collect();
    (ClusterNode { labels, is_left_out }, Vec::new())
}

#[cfg(test)]
mod tests {
    use super::super::super::api::object::Object;
    use super::*;
    use serde_json::json;

    #[test]
    fn a_node_is_left_out_by_its_label_or_its_condition() {
        let node = |label: &str, status: &str| {
            let object = json!({
                "metadata": {"name": "n", "labels": {label: ""}},
                "status": {"conditions": [{"type": "Ready", "status": "True"},
                                          {"type": "NetworkUnavailable", "status": status}]},
            });
            let raw = serde_json::from_value::<Object<_, true>>(object).unwrap().0;
            fold(raw, &Interner::default()).0
        };
        assert_eq!(node("zone", "False").labels, [("zone".into(), "".into())].into());
        let is_left_out = |label, status| node(label, status).is_left_out;
        assert!(!is_left_out("zone", "False") && !is_left_out("zone", "Unknown"));
        assert!(is_left_out(EXCLUDED, "False") && is_left_out("zone", "True"));
        let bare = serde_json::from_value::<Object<_, true>>(json!({"metadata": {"name": "n"}})).unwrap().0;
        assert_eq!(fold(bare, &Interner::default()).0, ClusterNode::default());
    }
}
