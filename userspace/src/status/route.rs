//! The status of a TLSRoute or TCPRoute: one entry of `parents` for each parent of ours. Other controllers'
//! entries are unchanged.

use super::condition::{Judged, merge};
use super::{CONTROLLER_NAME, Progress, changed, elements, progress, text};
use crate::model::cluster::ParentRef;
use crate::model::kind::{GATEWAY_GROUP, OUR_PROGRAMMED};
use crate::model::verdict::{Condition, ParentVerdict, Programmable, RouteVerdict, Status};
use serde_json::{Map, Value, json};

/// The most entries of `parents`.
const PARENTS_MAX: usize = 32;

/// Conditions that a route has alike at several parents.
#[derive(Clone, Copy, Debug, Default)]
pub struct OfAll<'a> {
    /// About its backends, at all parents.
    pub health: Option<&'a Condition>,
    /// Whether nodes hold it, at parents that accept it.
    pub programmed: Option<&'a Condition>,
}

/// Returns the condition whether nodes hold a route; `progress` is `None` if nothing was granted to it.
pub fn programmed(progress: Option<&Progress>) -> Condition {
    let message =
        "it was granted nothing yet: its parents have no address, or others have all that it asks for";
    let refusal = Condition {
        kind: OUR_PROGRAMMED,
        status: Status::False,
        reason: "NothingGranted",
        message: message.to_owned(),
    };
    match progress {
        Some(progress) => progress::programmed(OUR_PROGRAMMED, &Programmable::Yes, progress),
        None => refusal,
    }
}

/// Returns what to write to the status of a route in `namespace`. `verdict` is `None` if no parent is ours. `now` is RFC 3339, UTC.
pub fn desired_status(
    current: &Value,
    verdict: Option<&RouteVerdict>,
    of_all: OfAll<'_>,
    namespace: &str,
    now: &str,
) -> Option<Value> {
    let mut new: Vec<(Key<'_>, &ParentVerdict)> = Vec::new();
    for parent in verdict.map_or(&[][..], |verdict| &verdict.parents) {
        let key = Key::written(&parent.parent, namespace);
        if new.iter().all(|(other, _)| *other != key) {
            new.push((key, parent));
        }
    }
    let judged = Judged { generation: verdict.map_or(0, |verdict| verdict.generation), now };
    let mut parents = Vec::new();
    for old in elements(current.get("parents")) {
        if text(old, "controllerName") != CONTROLLER_NAME {
            parents.push(old.clone());
            continue;
        }
        let reference = old.get("parentRef").unwrap_or(&Value::Null);
        let key = Key::stored(reference, namespace);
        if let Some(place) = new.iter().position(|(other, _)| *other == key) {
            let (_, parent) = new.remove(place);
            parents.push(entry(parent, of_all, reference.clone(), old.get("conditions"), judged));
        }
    }
    for (_, parent) in new {
        if parents.len() < PARENTS_MAX {
            parents.push(entry(parent, of_all, reference(&parent.parent), None, judged));
        }
    }
    if parents.is_empty() && current.get("parents").is_none() {
        return None;
    }
    changed(current, [("parents", Value::Array(parents))])
}

fn entry(
    parent: &ParentVerdict,
    of_all: OfAll<'_>,
    reference: Value,
    old: Option<&Value>,
    judged: Judged<'_>,
) -> Value {
    let programmed = of_all.programmed.filter(|_| parent.is_accepted());
    let conditions = parent.conditions.iter().chain(of_all.health).chain(programmed);
    json!({
        "parentRef": reference,
        "controllerName": CONTROLLER_NAME,
        "conditions": merge(old, conditions, judged),
    })
}

/// Returns the reference as written, without fields that were not written.
fn reference(parent: &ParentRef) -> Value {
    let texts = [
        ("group", &parent.group),
        ("kind", &parent.kind),
        ("namespace", &parent.namespace),
        ("sectionName", &parent.section),
    ];
    let mut fields = Map::new();
    fields.insert("name".to_owned(), json!(&*parent.name));
    for (name, value) in texts {
        if let Some(value) = value {
            fields.insert(name.to_owned(), json!(&**value));
        }
    }
    if let Some(port) = parent.port {
        fields.insert("port".to_owned(), json!(port));
    }
    Value::Object(fields)
}

/// The meaning of a parentRef. The API server fills in defaults, so a stored reference may have more fields
/// than the written one.
#[derive(PartialEq, Eq)]
struct Key<'a> {
    group: &'a str,
    kind: &'a str,
    namespace: &'a str,
    name: &'a str,
    section: Option<&'a str>,
    port: Option<u64>,
}

const KIND: &str = "Gateway";

impl<'a> Key<'a> {
    fn written(parent: &'a ParentRef, namespace: &'a str) -> Self {
        Self {
            group: parent.group.as_deref().unwrap_or(GATEWAY_GROUP),
            kind: parent.kind.as_deref().unwrap_or(KIND),
            namespace: parent.namespace.as_deref().unwrap_or(namespace),
            name: &parent.name,
            section: parent.section.as_deref(),
            port: parent.port.map(u64::from),
        }
    }

    fn stored(parent: &'a Value, namespace: &'a str) -> Self {
        let text = |field| parent.get(field).and_then(Value::as_str);
        Self {
            group: text("group").unwrap_or(GATEWAY_GROUP),
            kind: text("kind").unwrap_or(KIND),
            namespace: text("namespace").unwrap_or(namespace),
            name: text("name").unwrap_or_default(),
            section: text("sectionName"),
            port: parent.get("port").and_then(Value::as_u64),
        }
    }
}
