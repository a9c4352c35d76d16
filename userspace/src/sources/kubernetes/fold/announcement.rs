//! Announcement: what the controller wrote, back to what it meant.

use super::super::api::announcement::AnnouncementSpec;
use super::super::api::claim::REMEDY;
use super::super::api::object::{InSpec, Raw};
use super::super::value::{Findings, wrong};
use crate::model::{Announcement, Problem};
use std::sync::Arc;

/// `None`: it cannot be read, and what was known before stays.
pub(in super::super) fn fold(
    raw: Raw<InSpec<AnnouncementSpec>>,
) -> (Option<Arc<Announcement>>, Vec<Problem>) {
    let mut found = Findings::of(None);
    let name = raw.meta.name.unwrap_or_default();
    let field = |field: &str| format!("Announcement {name}: {field}");
    let body =
        raw.body.map_err(|error| wrong(format!("does not have the shape of its kind: {error}"), REMEDY));
    let spec = found.check(field("spec"), "", body).map(|body| body.spec.unwrap_or_default());
    let read = spec.and_then(|spec| match spec.read() {
        Ok(read) => Some(Arc::new(read)),
        Err((at, what)) => {
            found.tell(field(&at), "", wrong(what, REMEDY));
            None
        }
    });
    (read, found.into_problems())
}

#[cfg(test)]
mod tests {
    use super::super::super::api::object::Object;
    use super::*;
    use serde_json::{Value, json};
    use std::time::Duration;

    fn read(spec: Value) -> (Option<Arc<Announcement>>, Vec<Problem>) {
        let object = json!({"metadata": {"name": "vestibule"}, "spec": spec});
        fold(serde_json::from_value::<Object<_, false>>(object).unwrap().0)
    }

    #[test]
    fn what_cannot_be_read_is_a_problem_and_nothing_is_made_of_it() {
        let (read_well, problems) = read(json!({"agentGraceSeconds": 7, "members": ["a"], "new": 1}));
        assert_eq!(problems, []);
        assert_eq!(read_well.unwrap().grace, Duration::from_secs(7));
        for spec in [
            json!({}),
            json!({"agentGraceSeconds": "x"}),
            json!({"agentGraceSeconds": 1, "rules": [{"addresses": ["x"]}]}),
        ] {
            let (none, problems) = read(spec.clone());
            assert!(none.is_none(), "{spec}");
            assert!(problems[0].field.starts_with("Announcement vestibule: spec"), "{problems:?}");
        }
    }
}
