//! What must precede what, so that at every moment a name that leads somewhere before and after leads somewhere.
//!
//! 1. Settings, and ids before they are used: a daemon that dies never leaves an id that is given out twice.
//! 2. What nothing leads to yet: labels, counters, backends, members, pages, and our addresses towards backends.
//! 3. Routes: the one write that switches a route to its new backends. (A family that loses its last one: step 5.)
//! 4. What leads to routes: names, the more exact ones first, lest a wildcard take a name for a moment that is about
//!    to have a route of its own; then listeners, whose default may replace a name.
//! 5. What shall lead nowhere any more: listeners, then names, the more exact ones last. Something that moved was
//!    overwritten in step 4. Then VIPs, new ones first: all that answers on them is in order now. (An address and port
//!    that moves between two listeners which both stay, and whose names change with it, can meet a name of either for
//!    a moment.)
//! 6. Once no packet is between two lookups: backends that are gone take no more flows, and those they have end.
//! 7. Later, when those flows have ended twice (see [`super::Plan::later`]): what nothing leads to any more.

use super::change::{Change, Selector};

/// The writes of one plan, each at its step.
#[derive(Debug, Default)]
pub(super) struct Steps {
    /// Step 1.
    pub(super) settings: Vec<Change>,
    /// Step 2.
    pub(super) fill: ByMap,
    /// Step 3.
    pub(super) switch: Vec<Change>,
    /// Step 4.
    pub(super) names: Vec<Change>,
    /// Step 4.
    pub(super) listeners: Vec<Change>,
    /// Step 5.
    pub(super) close: Vec<Change>,
    /// Step 5.
    pub(super) forget: Vec<Change>,
    /// Step 5.
    pub(super) vips: Vec<Change>,
    /// Step 5.
    pub(super) leave: Vec<Change>,
    /// Step 6.
    pub(super) retire: Vec<Change>,
    /// Step 6.
    pub(super) ended: Selector,
    /// Step 7.
    pub(super) later: ByMap,
}

/// Writes of a step within which any order will do: one map after the other makes few and long batches of writes.
#[derive(Debug, Default)]
pub(super) struct ByMap([Vec<Change>; MAPS]);

impl ByMap {
    pub(super) fn push(&mut self, change: Change) {
        self.0[map(&change)].push(change);
    }

    pub(super) fn extend(&mut self, changes: impl IntoIterator<Item = Change>) {
        changes.into_iter().for_each(|change| self.push(change));
    }
}

impl Steps {
    /// Makes room for what this many new routes need at least, once: lists that grow step by step leave holes behind.
    pub(super) fn reserve(&mut self, routes: usize) {
        let lists = self.fill.0.iter_mut().chain([&mut self.switch, &mut self.names]);
        lists.for_each(|list| list.reserve(routes));
    }

    /// The writes in order, and those of step 7.
    pub(super) fn into_changes(mut self) -> (Vec<Change>, Vec<Change>) {
        // All sorts are stable: equal plans stay equal.
        self.names.sort_by_key(|change| std::cmp::Reverse(exactness(change)));
        self.forget.sort_by_key(exactness);
        let steps = [self.switch, self.names, self.listeners, self.close, self.forget, self.vips, self.leave];
        let mut changes = joined([self.settings].into_iter().chain(self.fill.0).chain(steps));
        if !self.retire.is_empty() {
            changes.push(Change::Settle);
            changes.extend(self.retire);
        }
        if !self.ended.is_empty() {
            changes.push(Change::Reset(Box::new(self.ended)));
        }
        (changes, joined(self.later.0.into_iter()))
    }
}

/// One list of many, each of which is given up for it: those of a million routes are not to be there twice.
fn joined(steps: impl Iterator<Item = Vec<Change>>) -> Vec<Change> {
    let mut changes = Vec::new();
    steps.for_each(|step| changes.extend(step));
    changes
}

/// Numbers that [`map`] gives.
const MAPS: usize = 7;

/// Which map is written, as a number.
fn map(change: &Change) -> usize {
    match change {
        Change::PutLabel(..) | Change::DeleteLabel(_) => 0,
        Change::PutRouteCounters(_) | Change::DeleteRouteCounters(_) => 1,
        Change::PutBackend(..) | Change::DeleteBackend(_) => 2,
        Change::PutMember(..) | Change::DeleteMember(_) => 3,
        Change::PutPage(..) | Change::DeletePage(_) => 4,
        Change::PutRoute(..) | Change::DeleteRoute(_) => 5,
        _ => 6,
    }
}

/// Bits that a name must match: more of them are looked at first.
fn exactness(change: &Change) -> u32 {
    match change {
        // Of the listener's id, the suffix and the dot before it, as in the key.
        Change::PutWildcard(_, suffix, _) => 16 + 8 * (suffix.as_str().len() as u32 + 1),
        Change::DeleteWildcard(key) => key.prefix_bits,
        _ => u32::MAX,
    }
}
