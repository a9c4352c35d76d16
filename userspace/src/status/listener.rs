//! The status of listeners of Gateways and ListenerSets.

use super::condition::{Judged, merge};
use super::{elements, text};
use crate::model::cluster::GroupKind;
use crate::model::verdict::{Condition, ListenerVerdict, Status};
use serde_json::{Map, Value, json};

/// Returns `status.listeners`. `object` is the condition `Programmed` of the Gateway or ListenerSet they
/// belong to.
pub(super) fn statuses(
    current: Option<&Value>,
    listeners: &[ListenerVerdict],
    object: &Condition,
    judged: Judged<'_>,
) -> Value {
    let current = elements(current);
    let status = |listener: &ListenerVerdict| {
        let old = current.iter().find(|old| text(old, "name") == &*listener.name);
        let programmed = programmed(listener, object);
        let conditions = listener.conditions.iter().chain([&programmed]);
        let conditions = merge(old.and_then(|old| old.get("conditions")), conditions, judged);
        let mut fields = old.and_then(Value::as_object).cloned().unwrap_or_default();
        fields.insert("name".to_owned(), json!(&*listener.name));
        fields.insert("attachedRoutes".to_owned(), json!(listener.attached_routes));
        fields.insert("supportedKinds".to_owned(), kinds(&listener.supported_kinds));
        fields.insert("conditions".to_owned(), conditions);
        Value::Object(fields)
    };
    Value::Array(listeners.iter().map(status).collect())
}

/// A listener is programmed when its object is, unless it cannot be programmed at all.
fn programmed(listener: &ListenerVerdict, object: &Condition) -> Condition {
    if let Some(refusal) = &listener.unprogrammable {
        return refusal.clone();
    }
    let reason = match (object.status, object.reason) {
        (Status::True, _) => "Programmed",
        (Status::False | Status::Unknown, "Invalid") => "Invalid",
        // Listeners have fewer reasons than Gateways.
        (Status::False | Status::Unknown, _) => "Pending",
    };
    Condition { reason, ..object.clone() }
}

fn kinds(kinds: &[GroupKind]) -> Value {
    let one = |kind: &GroupKind| {
        let mut fields = Map::new();
        fields.insert("group".to_owned(), json!(&*kind.group));
        fields.insert("kind".to_owned(), json!(&*kind.kind));
        Value::Object(fields)
    };
    Value::Array(kinds.iter().map(one).collect())
}
