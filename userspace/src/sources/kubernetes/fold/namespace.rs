//! Namespace.

use super::super::api::object::{Nothing, Raw};
use super::super::interner::Interner;
use crate::model::Problem;
use crate::model::cluster::Labels;

pub(in super::super) fn fold(raw: Raw<Nothing>, interner: &Interner) -> (Labels, Vec<Problem>) {
    let labels = raw.meta.labels.unwrap_or_default();
    (labels.iter().map(|(key, value)| (interner.of(key), interner.of(value))).collect(), Vec::new())
}
