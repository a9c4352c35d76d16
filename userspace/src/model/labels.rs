//! Labels, and what selects by them.

use std::collections::BTreeMap;
use std::sync::Arc;

/// Labels of an object, by key.
pub type Labels = BTreeMap<Arc<str>, Arc<str>>;

/// `metav1.LabelSelector`: all of it must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LabelSelector {
    /// `matchLabels` and `matchExpressions` as requirements.
    pub requirements: Vec<Requirement>,
}

/// One requirement on labels.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Requirement {
    /// Label.
    pub key: Arc<str>,
    /// What its value must be.
    pub operator: Operator,
}

/// What a label's value must be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Operator {
    /// One of these.
    In(Vec<Arc<str>>),
    /// None of these; a missing label satisfies it.
    NotIn(Vec<Arc<str>>),
    /// Present.
    Exists,
    /// Absent.
    DoesNotExist,
}

impl LabelSelector {
    /// Whether labels satisfy every requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.requirements.iter().all(|Requirement { key, operator }| {
            let value = labels.get(key);
            match operator {
                Operator::In(values) => value.is_some_and(|value| values.contains(value)),
                Operator::NotIn(values) => value.is_none_or(|value| !values.contains(value)),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }
}
