//! The mark, and the Claims that it does not wait for.
//!
//! One Claim that cannot be written keeps no other from being served. Where nodes may serve what it asks for, as after all Claims were
//! deleted, the mark says which are missing, and nodes go on with what they knew of these alone.

use super::{ClaimWrite, Claims, SETTLED};
use crate::sources::kubernetes::api::claim::SETTLED_IN_PART;
use std::collections::BTreeSet;

/// The most Claims that the mark leaves out by their names: where more fail, it is no fault of a few.
pub(super) const LEFT_OUT_MAX: usize = 64;

impl Claims {
    /// Whether this one can be left out: it is refused for what it says, or fails again and again as if it hung, and others are written.
    /// What is stored and cannot be changed or deleted is waited for: another Claim may have been granted the same.
    pub(super) fn is_left_out(&self, name: &str) -> bool {
        self.flights.is_given_up(name) && !self.is_stored(name) && self.is_any_written()
    }

    /// Whether no node loses what it serves by a mark that does not name what is left out.
    pub(super) fn is_served_nowhere(&self) -> bool {
        self.served.on_nodes.is_none() && self.served.in_statuses.is_none()
    }

    /// Whether the mark does not wait for this one, whatever it says.
    pub(super) fn is_done(&self, name: &String) -> bool {
        self.held.contains(name) || self.is_as_it_can_be(name)
    }

    /// Whether this many can be left out.
    pub(super) fn may_leave_out(&self, count: usize) -> bool {
        self.is_served_nowhere() || self.mark.may_be_in_part() && count <= LEFT_OUT_MAX
    }

    /// Whether one that the mark leaves out may be served on: its object may still ask for it.
    fn is_asked_for(&self, name: &String) -> bool {
        self.wanted.contains_key(name) || self.held.contains(name)
    }

    /// Returns the name and the write of the mark, if all others are written but those that wait for a kind that cannot be listed, and
    /// those that are left out.
    pub(super) fn mark_write(&self) -> Option<(&'static str, ClaimWrite)> {
        if self.mark.is_settled() {
            return self.mark.end_part().map(|write| (SETTLED_IN_PART, write));
        }
        let listed = self.mark.left_out();
        // Others may be granted what nobody asks for any more.
        let rest = |listed: &BTreeSet<String>| -> BTreeSet<String> {
            listed.iter().filter(|name| self.is_asked_for(name)).cloned().collect()
        };
        if let Some(rest) = listed.map(rest).filter(|rest| listed.is_some_and(|listed| rest != listed)) {
            return Some((SETTLED_IN_PART, self.mark.write_part(rest)));
        }
        let mut left_out = BTreeSet::new();
        for name in self.due.iter().chain(&self.losses).filter(|name| !self.is_done(name)) {
            if !self.is_left_out(name) {
                return None;
            }
            left_out.insert(name.clone());
        }
        let is_whole = left_out.is_empty() && listed.into_iter().flatten().all(|name| self.is_stored(name));
        if is_whole || self.is_served_nowhere() {
            return Some((SETTLED, self.mark.write()));
        }
        // Which are left out later, no node serves.
        let is_first = listed.is_none() && !left_out.is_empty();
        let may = is_first && self.may_leave_out(left_out.len());
        may.then(|| (SETTLED_IN_PART, self.mark.write_part(left_out)))
    }
}
