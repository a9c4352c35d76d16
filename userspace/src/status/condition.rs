//! Conditions, merged by type: ours as judged, others unchanged.

use super::{CONTROLLER_NAME, elements, progress, text};
use crate::model::Kind;
use crate::model::kind::{OUR_PROGRAMMED, OWNED, Says};
use crate::model::verdict::{Condition, Status};
use serde_json::{Map, Value, json};

/// Types of the Gateway API that its controller writes. One that is no longer judged is removed.
const OURS: &[&str] =
    &["Accepted", "Conflicted", "PartiallyInvalid", "Programmed", "ResolvedRefs", "SupportedVersion"];
/// The most conditions of an object, listener or parent (CRDs of the Gateway API).
const CONDITIONS_MAX: usize = 8;
/// Our types by importance. Types that others wait for come first.
const WORTH: &[&str] = &[
    "Accepted",
    "Programmed",
    OUR_PROGRAMMED,
    "ResolvedRefs",
    "Conflicted",
    "SupportedVersion",
    "PartiallyInvalid",
    OWNED,
];
/// Types with this prefix are ours too.
const OUR_PREFIX: &str = "vestibule.dev/";
/// The most bytes of `message` (`metav1.Condition`).
const MESSAGE_BYTES_MAX: usize = 32_768;

/// The context of judging one object.
#[derive(Clone, Copy)]
pub(crate) struct Judged<'a> {
    /// `observedGeneration`; 0: the kind has none.
    pub(crate) generation: i64,
    /// RFC 3339, UTC.
    pub(crate) now: &'a str,
}

/// Returns `current` with `ours` merged in. If conditions of others leave too little room, our least
/// important ones are left out. An unchanged condition keeps its position and its `lastTransitionTime`.
pub(crate) fn merge<'c>(
    current: Option<&Value>,
    ours: impl IntoIterator<Item = &'c Condition>,
    judged: Judged<'_>,
) -> Value {
    let mut new: Vec<&Condition> = ours.into_iter().collect();
    // Only objects of CRDs have a generation here, and only they have a limit.
    if judged.generation != 0 {
        let foreign = elements(current).iter().filter(|old| !is_ours(text(old, "type"))).count();
        new.sort_by_key(|condition| worth(condition.kind));
        new.truncate(CONDITIONS_MAX.saturating_sub(foreign));
    }
    let mut merged = Vec::new();
    for old in elements(current) {
        let kind = text(old, "type");
        if let Some(place) = new.iter().position(|condition| condition.kind == kind) {
            merged.push(one(new.remove(place), Some(old), judged));
        } else if !is_ours(kind) {
            merged.push(old.clone());
        }
    }
    merged.extend(new.into_iter().map(|condition| one(condition, None, judged)));
    Value::Array(merged)
}

/// Whether a status says that this generation of the object is programmed; 0: the kind has none.
pub fn is_programmed(status: &Value, kind: Kind, generation: i64) -> bool {
    let says = |conditions: Option<&Value>, name: &str| says_programmed(conditions, name, generation);
    match kind.programmed() {
        Says::Condition(name) => says(status.get("conditions"), name),
        Says::ParentCondition(name) => elements(status.get("parents")).iter().any(|parent| {
            text(parent, "controllerName") == CONTROLLER_NAME && says(parent.get("conditions"), name)
        }),
        Says::Addresses => !elements(status.pointer("/loadBalancer/ingress")).is_empty(),
        Says::Nowhere => false,
    }
}

fn says_programmed(conditions: Option<&Value>, name: &str, generation: i64) -> bool {
    elements(conditions).iter().any(|condition| {
        let observed = condition.get("observedGeneration").and_then(Value::as_i64);
        text(condition, "type") == name
            && text(condition, "status") == "True"
            && (generation == 0 || observed == Some(generation))
    })
}

/// Returns the position of a type in [`WORTH`]: the last ones are dropped first.
fn worth(kind: &str) -> usize {
    WORTH.iter().position(|known| *known == kind).unwrap_or(WORTH.len())
}

fn is_ours(kind: &str) -> bool {
    OURS.contains(&kind) || kind.starts_with(OUR_PREFIX)
}

fn one(condition: &Condition, old: Option<&Value>, judged: Judged<'_>) -> Value {
    let status = match condition.status {
        Status::True => "True",
        Status::False => "False",
        Status::Unknown => "Unknown",
    };
    let kept = old.filter(|old| text(old, "status") == status).map(|old| text(old, "lastTransitionTime"));
    let since = kept.filter(|since| !since.is_empty()).unwrap_or(judged.now);
    let is_of_this = |old: &&Value| {
        judged.generation == 0
            || old.get("observedGeneration").and_then(Value::as_i64) == Some(judged.generation)
    };
    let knows_more = |old: &&Value| {
        text(old, "status") == status
            && progress::knows_less(&condition.message, text(old, "reason"), text(old, "message"))
    };
    if let Some(old) = old.filter(is_of_this).filter(knows_more) {
        return old.clone();
    }
    let mut fields = Map::new();
    if judged.generation != 0 {
        fields.insert("observedGeneration".to_owned(), json!(judged.generation));
    }
    let texts = [
        ("type", condition.kind),
        ("status", status),
        ("reason", condition.reason),
        ("message", cut(&condition.message, MESSAGE_BYTES_MAX)),
        ("lastTransitionTime", since),
    ];
    fields.extend(texts.map(|(name, value)| (name.to_owned(), Value::from(value))));
    Value::Object(fields)
}

/// Returns the longest prefix of at most `most` bytes, without splitting a character.
pub(crate) fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Whether a route has everything it requested of a parent; `Err` has the message if not. `None`: the
/// parent's entry has no such condition.
pub fn owned(parent: &Value) -> Option<Result<(), &str>> {
    let condition =
        elements(parent.get("conditions")).iter().find(|condition| text(condition, "type") == OWNED)?;
    Some(if text(condition, "status") == "False" { Err(text(condition, "message")) } else { Ok(()) })
}
