//! Conditions in a short notation.

use crate::model::verdict::{Condition, Programmable, Status};

/// True with the reason of the same name is `Accepted`, anything else `Accepted=False/Reason`.
pub(crate) fn conditions(all: &[Condition]) -> String {
    let told = all.iter().filter(|condition| condition.reason != "NoConflicts").map(|condition| {
        assert!(!condition.message.is_empty(), "{condition:?}");
        match condition.status {
            Status::True if condition.kind == condition.reason => condition.kind.to_owned(),
            status => format!("{}={status:?}/{}", condition.kind, condition.reason),
        }
    });
    told.collect::<Vec<_>>().join(" ")
}

pub(crate) fn programmed(programmable: &Programmable) -> String {
    match programmable {
        Programmable::Yes => "programmable".to_owned(),
        Programmable::No(condition) => conditions(std::slice::from_ref(condition)),
    }
}
