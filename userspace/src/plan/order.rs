//! The order of writes: a name that leads somewhere before and after a plan leads somewhere at every moment.
//!
//! 1. Settings, and ids before they are used: a daemon that dies never leaves an id that is assigned twice.
//! 2. Entries that nothing leads to yet: addresses by which replies are known, labels, counters, backends, members,
//!    pages, policies.
//! 3. Routes: the one write that switches a route to its new backends. (A family that loses its last backend
//!    is switched in step 5.)
//! 4. What leads to routes. Names, the more exact ones first, so that a wildcard does not briefly match a
//!    name that is about to have its own route. Then listeners, whose default may replace a name.
//! 5. What should no longer lead anywhere: listeners, then names, the more exact ones last. Entries that
//!    moved were overwritten in step 4. Then VIPs, new ones first: everything that answers on them is now
//!    complete. (If an address and port moves between two listeners that both stay, and their names change
//!    too, a connection may briefly match a name of either.)
//! 6. Once no packet is between two lookups: removed backends take no more flows, and their flows end.
//! 7. Later, after the repeated reset (see [`super::Plan::later`]): deletions of what nothing leads to any
//!    more.

use super::change::{Change, Selector};
use common::decide::route_key;

/// The writes of one plan, by step.
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

/// Writes of a step, those of addresses first; apart from that, the order does not matter. They are grouped by map, which makes few and long
/// batches.
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
    /// Reserves room for the minimum that this many new routes need. Lists that grow step by step would leave
    /// unused gaps in memory.
    pub(super) fn reserve(&mut self, routes: usize) {
        let lists = self.fill.0.iter_mut().chain([&mut self.switch, &mut self.names]);
        lists.for_each(|list| list.reserve(routes));
    }

    /// Returns the writes in order, and those of step 7.
    pub(super) fn into_changes(mut self) -> (Vec<Change>, Vec<Change>) {
        // Sorts are stable, so equal plans stay equal.
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

/// Joins lists into one. Frees each list as it is joined, so that the writes of a million routes are not in
/// memory twice.
fn joined(steps: impl Iterator<Item = Vec<Change>>) -> Vec<Change> {
    let mut changes = Vec::new();
    steps.for_each(|step| changes.extend(step));
    changes
}

/// The number of values that [`map`] returns.
const MAPS: usize = 9;

/// Returns a number for the map that is written.
fn map(change: &Change) -> usize {
    match change {
        // Before the backends whose replies are known by them.
        Change::PutAddress(..) => 0,
        Change::PutLabel(..) | Change::DeleteLabel(_) => 1,
        Change::PutRouteCounters(_) | Change::DeleteRouteCounters(_) => 2,
        Change::PutBackend(..) | Change::DeleteBackend(_) => 3,
        Change::PutMember(..) | Change::DeleteMember(_) => 4,
        Change::PutPage(..) | Change::DeletePage(_) => 5,
        Change::PutRoute(..) | Change::DeleteRoute(_) => 6,
        Change::PutPolicy(_) | Change::DeletePolicy(_) => 7,
        _ => 8,
    }
}

/// Returns the number of bits that a name must match. Lookups prefer entries with more bits. Those of one label
/// come before all wildcards.
fn exactness(change: &Change) -> u32 {
    match change {
        // The bits of the listener's id, the suffix and the dot before it, as in the key.
        Change::PutWildcard(_, suffix, _) => 16 + 8 * (suffix.as_str().len() as u32 + 1),
        Change::DeleteWildcard(key) => key.prefix_bits,
        Change::PutOneLabel(..) => u32::MAX - 1,
        Change::DeleteName(key) if route_key::suffix_of(key.name()).is_some() => u32::MAX - 1,
        _ => u32::MAX,
    }
}
