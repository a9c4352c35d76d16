//! `metav1.LabelSelector`.

use super::super::api::gateway::{Expression, Selector};
use super::super::interner::Interner;
use super::super::value::{Findings, wrong};
use crate::model::cluster::{LabelSelector, Operator, Requirement};
use std::sync::Arc;

/// Folds a selector. `None`: an operator is not known; `remedy` says what to do, and what happens meanwhile.
pub(super) fn selector(
    raw: &Selector,
    field: &str,
    remedy: &'static str,
    found: &mut Findings,
    interner: &Interner,
) -> Option<LabelSelector> {
    let mut requirements = Vec::new();
    for (key, value) in raw.match_labels.iter().flatten() {
        requirements
            .push(Requirement { key: interner.of(key), operator: Operator::In(vec![interner.of(value)]) });
    }
    for (place, raw) in raw.match_expressions.iter().flatten().enumerate() {
        let requirement = requirement(raw, interner);
        if requirement.is_none() {
            let operator = raw.operator.as_deref().unwrap_or_default();
            let field = format!("{field}.matchExpressions[{place}].operator");
            found.tell(field, operator, wrong("is not known", remedy));
        }
        requirements.push(requirement?);
    }
    Some(LabelSelector { requirements })
}

/// Folds selectors of which one must match. One that cannot be read selects nothing: a list that says whom something is for never
/// becomes one for everybody.
pub(super) fn selectors<'a>(
    raw: impl Iterator<Item = &'a Selector>,
    field: &str,
    remedy: &'static str,
    found: &mut Findings,
    interner: &Interner,
) -> Vec<LabelSelector> {
    let mut all = Vec::new();
    for (at, raw) in raw.enumerate() {
        let selector = selector(raw, &format!("{field}[{at}]"), remedy, found, interner);
        all.push(selector.unwrap_or_else(of_nothing));
    }
    all
}

/// No label has an empty key.
fn of_nothing() -> LabelSelector {
    LabelSelector { requirements: vec![Requirement { key: Arc::from(""), operator: Operator::Exists }] }
}

fn requirement(raw: &Expression, interner: &Interner) -> Option<Requirement> {
    let values = || raw.values.iter().flatten().map(|value| interner.of(value)).collect();
    let operator = match raw.operator.as_deref()? {
        "In" => Operator::In(values()),
        "NotIn" => Operator::NotIn(values()),
        "Exists" => Operator::Exists,
        "DoesNotExist" => Operator::DoesNotExist,
        _ => return None,
    };
    Some(Requirement { key: interner.of(raw.key.as_deref().unwrap_or_default()), operator })
}
