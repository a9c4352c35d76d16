//! Which Claim is written next: those that did not fail before those that did, grants before losses, and all by turns.

use super::{ClaimWrite, Claims, SETTLED};
use crate::controller::claim_flights::When;
use std::collections::BTreeSet;
use std::ops::Bound;
use std::time::Instant;

/// What was seen while the next write was looked for.
struct Seen {
    /// When to look again.
    soonest: Option<Instant>,
}

impl Seen {
    fn at(&mut self, at: Option<Instant>) {
        self.soonest = self.soonest.into_iter().chain(at).min();
    }
}

/// Returns all names, those after this one first.
fn by_turns<'a>(names: &'a BTreeSet<String>, last: &'a String) -> impl Iterator<Item = &'a String> {
    let after = names.range::<String, _>((Bound::Excluded(last), Bound::Unbounded));
    after.chain(names.range::<String, _>(..=last))
}

impl Claims {
    /// Returns the next write. Otherwise, when to ask again; `None`: when something changes.
    pub(in crate::controller) fn next(
        &mut self,
        now: Instant,
    ) -> Result<(String, ClaimWrite), Option<Instant>> {
        if self.stored.is_none() || !self.is_settled {
            return Err(None);
        }
        self.mark.look(now);
        self.flights.look(now);
        let has_room = self.flights.have_room();
        let mut seen = Seen { soonest: None };
        let mut found = None;
        if has_room {
            found = self.first_grant(now, &mut seen).or_else(|| self.first_loss(now, &mut seen));
        } else {
            // Those that hang make room when that is known.
            seen.at(self.flights.next_slow());
        }
        found = found.or_else(|| self.failed_grant(now, &mut seen));
        if has_room {
            found = found.or_else(|| self.failed_loss(now));
        }
        let write = match found {
            Some(name) => {
                self.last.clone_from(&name);
                self.difference(&name).map(|write| (name, write))
            }
            None if has_room => self.next_mark(now, &mut seen),
            None => None,
        };
        let (name, write) = write.ok_or(seen.soonest)?;
        self.flights.begin(&name, now);
        Ok((name, write))
    }

    /// Returns the name of the next claim that is granted something, or of which something else changes, and whose last write did not
    /// fail.
    fn first_grant(&mut self, now: Instant, seen: &mut Seen) -> Option<String> {
        let (mut done, mut losses, mut found) = (Vec::new(), Vec::new(), None);
        for name in by_turns(&self.due, &self.last).filter(|name| !self.held.contains(*name)) {
            if !self.differs(name) {
                done.push(name.clone());
                continue;
            }
            match self.flights.when(name, now) {
                When::Now if self.is_loss(name) => losses.push(name.clone()),
                When::Now if self.flights.may_try(name) => {
                    found = Some(name.clone());
                    break;
                }
                When::At(at) => seen.at(Some(at)),
                When::InFlight | When::Pruned | When::Now => {}
            }
        }
        for name in done.iter().chain(&losses) {
            self.due.remove(name);
        }
        for name in &done {
            self.flights.settled(name);
        }
        self.losses.extend(losses);
        found
    }

    /// The same of one whose last write failed.
    fn failed_grant(&self, now: Instant, seen: &mut Seen) -> Option<String> {
        let is_due = |name: &String| {
            self.due.contains(name) && !self.held.contains(name) && self.differs(name) && !self.is_loss(name)
        };
        let (found, soonest) = self.flights.next_failed(now, is_due);
        seen.at(soonest);
        found
    }

    /// Returns the name of the next claim that only loses something, and whose last write did not fail. What others are to get is given
    /// before, so that a name which changes hands is nobody's at no time.
    fn first_loss(&mut self, now: Instant, seen: &mut Seen) -> Option<String> {
        if self.losses.is_empty() {
            return None;
        }
        let (mut done, mut found) = (Vec::new(), None);
        self.follow_awaited();
        for name in by_turns(&self.losses, &self.last).filter(|name| !self.held.contains(*name)) {
            if !self.differs(name) {
                done.push(name.clone());
                continue;
            }
            match self.flights.when(name, now) {
                When::Now if self.flights.may_try(name) && !self.loses_to_others(name) => {
                    found = Some(name.clone());
                    break;
                }
                When::At(at) => seen.at(Some(at)),
                When::InFlight | When::Pruned | When::Now => {}
            }
        }
        for name in done {
            self.losses.remove(&name);
            self.flights.settled(&name);
        }
        found
    }

    /// The same of one whose last write failed. When to try others again, and what is awaited, is known from [`Claims::first_loss`].
    fn failed_loss(&self, now: Instant) -> Option<String> {
        if self.losses.is_empty() {
            return None;
        }
        let is_due = |name: &String| {
            self.losses.contains(name)
                && !self.held.contains(name)
                && self.differs(name)
                && !self.loses_to_others(name)
        };
        self.flights.next_failed(now, is_due).0
    }

    /// Returns the write of the mark, if all others are written but those that wait for a kind that cannot be listed, and those that are
    /// refused before any node holds one: an agent that lists them now knows that.
    fn next_mark(&self, now: Instant, seen: &mut Seen) -> Option<(String, ClaimWrite)> {
        if self.mark.is_there() || !self.due.iter().chain(&self.losses).all(|name| self.is_done(name)) {
            return None;
        }
        match (self.flights.when(SETTLED, now), self.mark.quiet_until(now)) {
            (When::Now, None) => return Some((SETTLED.to_owned(), self.mark.write())),
            (When::Now, Some(at)) | (When::At(at), _) => seen.at(Some(at)),
            (When::InFlight | When::Pruned, _) => {}
        }
        None
    }

    /// Whether the mark does not wait for this one, whatever it says.
    pub(super) fn is_done(&self, name: &String) -> bool {
        self.held.contains(name) || self.is_as_it_can_be(name) || self.is_left_out(name)
    }

    /// Returns the write that makes a Claim say what it should.
    fn difference(&self, name: &str) -> Option<ClaimWrite> {
        let stored = self.stored.as_ref().and_then(|stored| stored.get(name));
        match (stored, self.wanted.get(name).map(|(_, spec)| spec)) {
            (None, None) => None,
            (None, Some(wanted)) => Some(ClaimWrite::Create(wanted.clone())),
            (Some(stored), None) => {
                Some(ClaimWrite::Delete { uid: stored.uid.clone(), version: stored.version.clone() })
            }
            (Some(stored), Some(wanted)) => (!wanted.is_same(&stored.spec)).then(|| {
                let mut wanted = wanted.clone();
                wanted.keep_since(&stored.spec);
                ClaimWrite::Replace(wanted, stored.version.clone())
            }),
        }
    }

    /// Whether there is one. Asked for thousands.
    pub(super) fn differs(&self, name: &str) -> bool {
        let stored = self.stored.as_ref().and_then(|stored| stored.get(name));
        match (stored, self.wanted.get(name)) {
            (None, None) => false,
            (Some(stored), Some((_, wanted))) => !wanted.is_same(&stored.spec),
            _ => true,
        }
    }

    /// Whether it takes from a claim, and gives it nothing.
    fn is_loss(&self, name: &str) -> bool {
        let stored = self.stored.as_ref().and_then(|stored| stored.get(name));
        match (stored, self.wanted.get(name)) {
            (Some(_), None) => true,
            (Some(stored), Some((_, wanted))) => {
                // What a claim must comply with does not wait for others.
                wanted.grants.len() < stored.spec.grants.len()
                    && wanted.has_only_of(&stored.spec)
                    && wanted.policy == stored.spec.policy
            }
            (None, _) => false,
        }
    }
}
