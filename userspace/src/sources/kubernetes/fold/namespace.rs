//! Namespace.

use super::super::api::object::{Nothing, Raw};
use super::super::words::Words;
use crate::model::Problem;
use crate::model::cluster::Labels;

pub(in super::super) fn fold(raw: Raw<Nothing>, words: &Words) -> (Labels, Vec<Problem>) {
    let labels = raw.meta.labels.unwrap_or_default();
    (labels.iter().map(|(key, value)| (words.of(key), words.of(value))).collect(), Vec::new())
}
