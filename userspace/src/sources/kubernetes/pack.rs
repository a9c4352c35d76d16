//! Maps without room.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;

/// Takes the room out of a map. One that was filled in order, as by a list, is half empty.
pub(super) fn map<K: Ord, V>(map: &mut BTreeMap<K, V>) {
    *map = take(map).into_iter().collect();
}

/// As [`map`].
pub(super) fn set<T: Ord>(set: &mut BTreeSet<T>) {
    *set = take(set).into_iter().collect();
}
