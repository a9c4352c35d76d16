//! Kinds that this release does not know. A later controller has written their Claims, and nodes serve these all the same.

use super::kind::{CORE_GROUP, Kind, KindRow, Resource, Says};
use std::sync::{Mutex, PoisonError};

/// How many are known at a time of a process: their rows are never dropped. A release has a few kinds more than the one before.
const KINDS_MAX: usize = 64;
/// The most bytes of a kind's name, as of any DNS label.
const KIND_BYTES_MAX: usize = 63;

static ROWS: Mutex<Vec<&'static KindRow>> = Mutex::new(Vec::new());

/// Returns the kind of this name, which no kind that is known has. `None`: it is no name of a kind (one to 63 ASCII letters and digits, the
/// first a letter), or there were 64 others before.
pub fn unknown_kind(text: &str) -> Option<Kind> {
    let is_name = text.len() <= KIND_BYTES_MAX
        && text.starts_with(|first: char| first.is_ascii_alphabetic())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !is_name {
        return None;
    }
    let mut rows = ROWS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(row) = rows.iter().find(|row| row.text == text) {
        return Some(Kind::Origin(row));
    }
    if rows.len() == KINDS_MAX {
        return None;
    }
    // What the API calls its objects nobody asks: no object of the kind is read or written.
    let resource = Resource { group: CORE_GROUP, plural: "" };
    let text = Box::leak(Box::from(text));
    let row: &'static KindRow =
        Box::leak(Box::new(KindRow { text, resource, is_namespaced: true, programmed: Says::Nowhere }));
    rows.push(row);
    Some(Kind::Origin(row))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_has_one_row_and_the_name_that_was_written() {
        let kind = unknown_kind("Tomorrow").unwrap();
        assert_eq!((kind.text(), unknown_kind("Tomorrow")), ("Tomorrow", Some(kind)));
        let rows = ROWS.lock().unwrap();
        assert_eq!(rows.iter().filter(|row| row.text == "Tomorrow").count(), 1);
    }

    #[test]
    fn what_is_no_name_of_a_kind_is_none() {
        for text in ["", "a/b", "a b", "1a", "ä", &"x".repeat(KIND_BYTES_MAX + 1)] {
            assert_eq!(unknown_kind(text), None, "{text}");
        }
    }
}
