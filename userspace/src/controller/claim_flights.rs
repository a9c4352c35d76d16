//! Writes of Claims that are in flight, that failed, or of which the API server took out a part: when each may be written again. Pure.

use super::claim_store::{ClaimOutcome, Failure};
use super::lanes::{Bounds, Group};
use super::standing::STAYS;
use crate::sources::kubernetes::api::claim::SETTLED;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long to wait for the watch to report a write.
const NEWER_WAIT: Duration = Duration::from_secs(5);
/// Wait after the first failure; doubles up to [`FAILURE_WAIT_MAX`].
pub(super) const FAILURE_WAIT: Duration = Duration::from_secs(1);
pub(super) const FAILURE_WAIT_MAX: Duration = Duration::from_secs(64);
/// One that failed this often is not waited for, as if it were refused: with waits and answers that never come, after about 35 s.
pub(super) const GIVEN_UP: u32 = 5;
/// Writes in flight. A webhook may hang for some names only, so each is alone in its lane: those that take long share a few.
pub(super) const LANES: Bounds =
    Bounds { own: 16, of_namespace: 1, slow: 8, alone: Some(16), all: 96, all_slow: 32 };

/// The most of a reason that statuses say.
const WHY_CHARS_MAX: usize = 512;

/// When a Claim may be written.
pub(super) enum When {
    Now,
    At(Instant),
    /// When its write has ended.
    InFlight,
    /// When another one was kept as it was written.
    Pruned,
}

/// Which writes fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Failures {
    None,
    /// Some, but others did not: those that were not tried yet may be written. Until then, if no other is.
    Some {
        until: Instant,
    },
    All,
}

/// The state of all writes.
#[derive(Debug)]
pub(super) struct ClaimFlights {
    /// Those whose last write is in flight, was not reported, or failed.
    pending: BTreeMap<String, Pending>,
    lanes: Group<String>,
    /// Those of which the API server keeps only a part. To write them again would change nothing, so only the first is, from time to
    /// time.
    pruned: BTreeSet<String>,
    /// When a Claim was written last.
    written: Option<Instant>,
}

/// A Claim that is not written for now.
#[derive(Debug, Default)]
struct Pending {
    is_in_flight: bool,
    /// The watch was faster than the answer to the write.
    is_reported: bool,
    /// Something else has been wanted since the write in flight began.
    is_changed: bool,
    failures: u32,
    /// The same of what is wanted now.
    failures_of_this: u32,
    /// [`Failure::is_refusal`], of the last one.
    is_refused: bool,
    /// Why it failed, as statuses say it.
    why: Option<Arc<str>>,
    /// Not before.
    not_before: Option<Instant>,
}

impl Default for ClaimFlights {
    fn default() -> Self {
        Self { pending: BTreeMap::new(), lanes: Group::new(LANES), pruned: BTreeSet::new(), written: None }
    }
}

impl ClaimFlights {
    /// Notes which writes take long by now.
    pub(super) fn look(&mut self, now: Instant) {
        self.lanes.look(now);
    }

    /// When another one takes long, if none ends before.
    pub(super) fn next_slow(&self) -> Option<Instant> {
        self.lanes.next_slow()
    }

    /// Whether the write of one that does not take long may begin.
    pub(super) fn have_room(&self) -> bool {
        self.lanes.has_room("", true, false)
    }

    /// Whether this one may be written before any that failed.
    pub(super) fn may_try(&self, name: &str) -> bool {
        self.pending.get(name).is_none_or(|pending| pending.failures == 0) && self.has_room(name)
    }

    fn has_room(&self, name: &str) -> bool {
        self.lanes.has_room(name, true, false)
    }

    /// Returns which of those that failed may be written now: the one that has waited longest. Otherwise, when one may be.
    pub(super) fn next_failed(
        &self,
        now: Instant,
        is_due: impl Fn(&String) -> bool,
    ) -> (Option<String>, Option<Instant>) {
        let (mut first, mut soonest) = (None, None);
        for (name, pending) in self.pending.iter().filter(|(_, pending)| pending.failures > 0) {
            let when = self.when(name, now);
            if matches!(when, When::InFlight | When::Pruned) || !is_due(name) {
                continue;
            }
            match when {
                When::At(at) => soonest = soonest.into_iter().chain([at]).min(),
                _ if self.has_room(name) => {
                    first = first.into_iter().chain([(pending.not_before, name)]).min();
                }
                _ => {}
            }
        }
        (first.map(|(_, name)| name.clone()), soonest)
    }

    /// A write begins.
    pub(super) fn begin(&mut self, name: &str, now: Instant) {
        self.lanes.take(name.to_owned(), &name.into(), now);
        self.pending.entry(name.to_owned()).or_default().is_in_flight = true;
    }

    /// Returns when this one may be written.
    pub(super) fn when(&self, name: &str, now: Instant) -> When {
        match self.pending.get(name) {
            Some(pending) if pending.is_in_flight => When::InFlight,
            _ if self.pruned.first().is_some_and(|first| first != name) && self.is_pruned(name) => {
                When::Pruned
            }
            Some(Pending { not_before: Some(at), .. }) if *at > now => When::At(*at),
            _ => When::Now,
        }
    }

    /// Whether one that is not there yet may be soon: others may lose something to it.
    pub(super) fn is_imminent(&self, name: &str) -> bool {
        !self.is_pruned(name) && self.pending.get(name).is_none_or(|pending| pending.failures < 2)
    }

    /// Whether the API server keeps only a part of this one.
    pub(super) fn is_pruned(&self, name: &str) -> bool {
        self.pruned.contains(name)
    }

    /// Which of the last writes failed.
    pub(super) fn failing(&self, now: Instant) -> Failures {
        if !self.prunes() && self.pending.values().all(|pending| pending.failures == 0) {
            return Failures::None;
        }
        let until = self.written.map(|at| at + STAYS).filter(|until| *until > now);
        until.map_or(Failures::All, |until| Failures::Some { until })
    }

    /// Whether the last write of this one failed.
    pub(super) fn fails(&self, name: &str) -> bool {
        self.is_pruned(name) || self.pending.get(name).is_some_and(|pending| pending.failures > 0)
    }

    /// Why it cannot be written.
    pub(super) fn why(&self, name: &str) -> Option<Arc<str>> {
        self.pending.get(name)?.why.clone()
    }

    /// Whether this one was refused for what it says, more than once, or failed [`GIVEN_UP`] times for whatever reason.
    pub(super) fn is_given_up(&self, name: &str) -> bool {
        self.pending.get(name).is_some_and(|pending| {
            pending.is_refused && pending.failures > 1 || pending.failures_of_this >= GIVEN_UP
        })
    }

    /// Notes why the last write of this one failed. Returns whether that is to be said otherwise than before. The reason may differ each
    /// time, as where it has a time in it, so the more often it failed, the longer what was said stays.
    pub(super) fn note_why(&mut self, name: &str, failure: &Failure) -> bool {
        let Some(pending) = self.pending.get_mut(name) else { return false };
        pending.is_refused = failure.is_refusal;
        pending.failures_of_this = pending.failures_of_this.saturating_add(1);
        if !pending.failures.is_power_of_two() {
            return false;
        }
        let why: String = failure.why.chars().take(WHY_CHARS_MAX).collect();
        let why = why.replace(char::is_control, " ");
        let is_news = pending.why.as_deref() != Some(&*why);
        pending.why = Some(why.into());
        is_news
    }

    /// Whether the API server keeps only a part of any.
    pub(super) fn prunes(&self) -> bool {
        !self.pruned.is_empty()
    }

    /// All were listed: one that is gone is worth a write, even if part of it is taken out again.
    pub(super) fn listed(&mut self, is_there: impl Fn(&str) -> bool) {
        self.pruned.retain(|name| is_there(name));
        self.forget();
    }

    /// This controller begins or ceases to lead: nothing of before counts but what is in flight.
    pub(super) fn forget(&mut self) {
        self.pending.retain(|_, pending| pending.is_in_flight);
    }

    /// The newest state of this one has come: it may be written again.
    pub(super) fn reported(&mut self, name: &str) {
        match self.pending.get_mut(name) {
            Some(pending) if pending.is_in_flight => pending.is_reported = true,
            // One of which a part is taken out waits nevertheless.
            Some(pending) if pending.failures == 0 && !self.pruned.contains(name) => {
                self.pending.remove(name);
            }
            _ => {}
        }
    }

    /// Something else is wanted of this one, or nothing: that is worth a write, even if part of it is taken out again.
    pub(super) fn changed(&mut self, name: &str) {
        let was_pruned = self.pruned.remove(name);
        match self.pending.get_mut(name) {
            Some(pending) if pending.is_in_flight => pending.is_changed = true,
            Some(_) if was_pruned => drop(self.pending.remove(name)),
            // Nobody has refused what it says now.
            Some(pending) => (pending.is_refused, pending.failures_of_this) = (false, 0),
            None => {}
        }
    }

    /// This one says what it should.
    pub(super) fn settled(&mut self, name: &str) {
        self.pruned.remove(name);
        if self.pending.get(name).is_some_and(|pending| !pending.is_in_flight) {
            self.pending.remove(name);
        }
    }

    /// A write has ended. Returns the names of those that are to be written again: the first that is kept shows that the definition is
    /// another one. `is_wanted`: it was not deleted.
    pub(super) fn ended(
        &mut self,
        name: &str,
        outcome: ClaimOutcome,
        is_wanted: bool,
        now: Instant,
    ) -> BTreeSet<String> {
        self.lanes.give_back(&name.to_owned(), Some(now));
        // Who refuses Claims may let the mark pass.
        if outcome == ClaimOutcome::Written && name != SETTLED {
            self.written = Some(now);
        }
        let mut again = BTreeSet::new();
        let pending = self.pending.entry(name.to_owned()).or_default();
        pending.is_in_flight = false;
        pending.is_refused = false;
        let is_reported = std::mem::take(&mut pending.is_reported);
        let is_changed = std::mem::take(&mut pending.is_changed);
        // What was kept of it says nothing of what is wanted now.
        let outcome =
            if is_changed && outcome == ClaimOutcome::Pruned { ClaimOutcome::Written } else { outcome };
        match outcome {
            ClaimOutcome::Pruned => drop(self.pruned.insert(name.to_owned())),
            ClaimOutcome::Written if self.pruned.remove(name) && is_wanted => {
                again = std::mem::take(&mut self.pruned);
                self.pending.retain(|name, _| !again.contains(name));
            }
            ClaimOutcome::Written | ClaimOutcome::Failed => {}
        }
        let pending = self.pending.entry(name.to_owned()).or_default();
        if outcome == ClaimOutcome::Written && is_reported {
            self.pending.remove(name);
            return again;
        }
        let wait = match outcome {
            ClaimOutcome::Written => {
                (pending.failures, pending.failures_of_this) = (0, 0);
                pending.why = None;
                NEWER_WAIT
            }
            ClaimOutcome::Pruned => FAILURE_WAIT_MAX,
            ClaimOutcome::Failed => {
                let wait = FAILURE_WAIT.saturating_mul(1 << pending.failures.min(10)).min(FAILURE_WAIT_MAX);
                pending.failures += 1;
                wait
            }
        };
        pending.not_before = Some(now + wait);
        again
    }
}
