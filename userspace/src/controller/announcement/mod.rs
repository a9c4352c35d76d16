//! The object that says what the cluster announces: when it is to be written. Pure: time is an argument.
//!
//! All agents watch it, so that it changes only when what it says changes, and not more often than once a second: when all nodes of a
//! cluster start, their agents join one by one.

/// What it is to say.
pub(super) mod resolve;
/// Follows it.
pub(super) mod watch;

use super::claim_flights::{ClaimFlights, When};
use super::claim_store::ClaimOutcome;
use super::claims::Edited;
use crate::sources::kubernetes::Named;
use crate::sources::kubernetes::api::announcement::{AnnouncementSpec, NAME};
use std::time::{Duration, Instant};

/// It is written at most this often.
const EVERY: Duration = Duration::from_secs(1);
/// Why it does not say all that it should.
const PRUNED: &str = "the API server takes out part of what is written: the definition of Announcements is of another release; apply those of \
     this one, which `vestibule crds` prints";

/// From this failure of its write on, one after the other, it is reported: one alone may be of a restart of the API server.
const FAILURES: u32 = 2;

/// The object as the API server has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) spec: AnnouncementSpec,
    /// `metadata.resourceVersion`.
    pub(super) version: String,
    /// `metadata.uid`.
    pub(super) uid: String,
}

/// A write of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum AnnouncementWrite {
    /// There is none.
    Create(AnnouncementSpec),
    /// It says something else, in this version.
    Replace(AnnouncementSpec, String),
}

/// What the object says, and should.
#[derive(Debug, Default)]
pub(super) struct Announcements {
    /// `None`: not listed yet. Nothing is written before.
    stored: Option<Option<Stored>>,
    /// `None`: not known yet.
    wanted: Option<AnnouncementSpec>,
    flights: ClaimFlights,
    written: Option<Instant>,
    edited: Option<Edited>,
    /// How often its write has failed since it succeeded, and why it did last.
    failed: (u32, String),
}

impl Announcements {
    /// Takes what the watch reports. Returns whether it is listed for the first time: what is to be written may depend on it.
    pub(super) fn take(&mut self, news: Named<Stored>) -> bool {
        let now = match news {
            Named::Listed(mut all, _) => all.remove(NAME),
            Named::Put(name, stored) if name == NAME => Some(stored),
            Named::Gone(name) if name == NAME => None,
            Named::Put(..) | Named::Gone(_) | Named::Stale(_) | Named::Fresh => return false,
        };
        let is_first = self.stored.is_none();
        let said =
            |stored: &Option<Stored>| stored.as_ref().map(|stored| &stored.spec) == self.wanted.as_ref();
        if let Some(Some(before)) = self.stored.as_ref().filter(|before| said(before) && !said(&now)) {
            let (name, uid) = (NAME.to_owned(), before.uid.clone());
            self.edited = Some(Edited { name, uid, is_deleted: now.is_none() });
        }
        self.flights.reported(NAME);
        self.stored = Some(now);
        if is_first {
            // What was wanted before took no account of what it says.
            self.wanted = None;
        }
        is_first
    }

    /// Returns that another client has changed or deleted it, if one did since it was asked last.
    pub(super) fn edited(&mut self) -> Option<Edited> {
        self.edited.take()
    }

    /// What was announced up to now: what it says when this controller begins to lead, and what that one wants later, for others may have
    /// changed the object; `None`: nothing, or that is not known.
    pub(super) fn said(&self) -> Option<&AnnouncementSpec> {
        let stored = || self.stored.as_ref()?.as_ref().map(|stored| &stored.spec);
        self.wanted.as_ref().or_else(stored)
    }

    /// It is to say this.
    pub(super) fn want(&mut self, spec: AnnouncementSpec) {
        if self.wanted.as_ref() != Some(&spec) {
            self.flights.changed(NAME);
            self.wanted = Some(spec);
        }
    }

    /// This controller begins or ceases to lead. Another one may have written what our watch has not reported yet: nothing is made of what
    /// was announced before that, and the object is to be listed again.
    pub(super) fn clear(&mut self) {
        self.stored = None;
        self.wanted = None;
        self.failed = Default::default();
        self.flights.forget();
    }

    /// Returns the next write. Otherwise, when to ask again; `None`: when something changes.
    pub(super) fn next(&mut self, now: Instant) -> Result<AnnouncementWrite, Option<Instant>> {
        let (Some(stored), Some(wanted)) = (&self.stored, &self.wanted) else { return Err(None) };
        let write = match stored {
            None => AnnouncementWrite::Create(wanted.clone()),
            Some(stored) if stored.spec != *wanted => {
                AnnouncementWrite::Replace(wanted.clone(), stored.version.clone())
            }
            Some(_) => {
                self.flights.settled(NAME);
                self.failed = Default::default();
                return Err(None);
            }
        };
        let free = match self.flights.when(NAME, now) {
            When::Now => self.written.map_or(now, |written| written + EVERY),
            When::At(at) => at,
            When::InFlight | When::Pruned => return Err(None),
        };
        if free > now {
            return Err(Some(free));
        }
        self.flights.begin(NAME, now);
        self.written = Some(now);
        Ok(write)
    }

    /// Why it does not say all that it should; `None`: it does, as far as it is written.
    pub(super) fn trouble(&self) -> Option<&str> {
        let (failures, why) = &self.failed;
        let fails = (*failures >= FAILURES).then_some(why.as_str());
        fails.or(self.flights.prunes().then_some(PRUNED))
    }

    /// Records how a write that [`Announcements::next`] returned has ended; `Err`: why it failed.
    pub(super) fn ended(&mut self, outcome: Result<ClaimOutcome, String>, now: Instant) {
        let outcome = match outcome {
            Ok(outcome) => {
                self.failed = Default::default();
                outcome
            }
            Err(why) => {
                let why = format!("what is announced cannot be written, and stays as it was: {why}");
                self.failed = (self.failed.0 + 1, why);
                ClaimOutcome::Failed
            }
        };
        self.flights.ended(NAME, outcome, true, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    fn spec(member: &str) -> AnnouncementSpec {
        AnnouncementSpec {
            agent_grace_seconds: 15,
            members: vec![member.to_owned()],
            ..AnnouncementSpec::default()
        }
    }

    fn stored(member: &str, version: &str) -> Stored {
        Stored { spec: spec(member), version: version.to_owned(), uid: "u".to_owned() }
    }

    fn put(member: &str, version: &str) -> Named<Stored> {
        Named::Put(NAME.to_owned(), stored(member, version))
    }

    fn listed(stored: Option<Stored>) -> Named<Stored> {
        let all: BTreeMap<String, Stored> =
            stored.into_iter().map(|stored| (NAME.to_owned(), stored)).collect();
        Named::Listed(all, String::new())
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn it_is_written_when_it_says_something_else_and_once_a_second_at_most() {
        let begun = Instant::now();
        let mut this = Announcements::default();
        this.want(spec("a"));
        assert_eq!(this.next(begun), Err(None), "it may be there");
        assert!(this.take(listed(None)));
        assert_eq!(this.next(begun), Err(None), "what is wanted may depend on it");
        this.want(spec("a"));
        assert_eq!(this.next(begun), Ok(AnnouncementWrite::Create(spec("a"))));
        assert_eq!(this.next(begun), Err(None), "it is in flight");
        this.ended(Ok(ClaimOutcome::Written), begun);
        assert!(!this.take(put("a", "1")));
        for _ in 0..3 {
            this.want(spec("a"));
            assert_eq!(this.next(begun + 100 * SECOND), Err(None), "it says so");
        }
        this.want(spec("b"));
        assert_eq!(this.next(begun + SECOND / 2), Err(Some(begun + SECOND)));
        this.want(spec("c"));
        let write = Ok(AnnouncementWrite::Replace(spec("c"), "1".to_owned()));
        assert_eq!(this.next(begun + SECOND), write, "both in one");
        this.ended(Err("refused".to_owned()), begun + SECOND);
        assert_eq!(this.next(begun + SECOND), Err(Some(begun + 2 * SECOND)));
        assert_eq!(this.next(begun + 2 * SECOND), write);
        this.take(put("c", "2"));
        this.ended(Ok(ClaimOutcome::Written), begun + 2 * SECOND);
        assert_eq!(this.next(begun + 9 * SECOND), Err(None));
        assert_eq!(this.edited(), None, "all of it was ours");
    }

    /// What the former leader had announced last, as by an L2Advertisement, was taken back for a minute, or came back.
    #[test]
    fn a_new_leader_begins_with_what_the_former_one_wrote_however_late_the_watch_is() {
        let begun = Instant::now();
        let mut this = Announcements::default();
        this.take(listed(Some(stored("a", "1"))));
        // Another one writes "b", and its Lease ends.
        this.clear();
        assert_eq!(this.said(), None, "it may say something else by now");
        this.want(spec("a"));
        assert_eq!(this.next(begun), Err(None));
        assert!(this.take(listed(Some(stored("b", "2")))), "it is to be resolved again");
        assert_eq!(this.said(), Some(&spec("b")));
        assert_eq!(this.next(begun), Err(None));
        this.want(spec("b"));
        assert_eq!((this.next(begun), this.edited()), (Err(None), None));
    }

    #[test]
    fn what_others_do_to_it_is_undone() {
        let begun = Instant::now();
        let mut this = Announcements::default();
        this.take(listed(Some(stored("a", "1"))));
        this.want(spec("a"));
        this.take(put("x", "2"));
        assert_eq!(this.said(), Some(&spec("a")), "nothing is made of what others write");
        let edited = |is_deleted| Some(Edited { name: NAME.to_owned(), uid: "u".to_owned(), is_deleted });
        assert_eq!((this.edited(), this.edited()), (edited(false), None));
        assert_eq!(this.next(begun), Ok(AnnouncementWrite::Replace(spec("a"), "2".to_owned())));
        this.take(put("a", "3"));
        this.ended(Ok(ClaimOutcome::Written), begun);
        this.take(Named::Gone(NAME.to_owned()));
        assert_eq!(this.edited(), edited(true));
        assert_eq!(this.next(begun + SECOND), Ok(AnnouncementWrite::Create(spec("a"))));
    }

    #[test]
    fn a_new_leader_writes_nothing_before_it_knows_what() {
        let begun = Instant::now();
        let mut this = Announcements::default();
        this.take(listed(Some(stored("a", "1"))));
        this.want(spec("b"));
        this.clear();
        assert_eq!(this.next(begun), Err(None));
        this.take(listed(Some(stored("c", "2"))));
        assert_eq!(this.next(begun), Err(None));
        assert_eq!(this.edited(), None, "another leader wrote it");
    }

    #[test]
    fn what_the_api_server_prunes_is_reported_and_tried_again_after_a_while() {
        let begun = Instant::now();
        let mut this = Announcements::default();
        this.take(listed(None));
        this.want(spec("a"));
        assert!(this.next(begun).is_ok() && this.trouble().is_none());
        this.take(put("", "1"));
        this.ended(Ok(ClaimOutcome::Pruned), begun);
        assert!(this.trouble().is_some());
        assert!(matches!(this.next(begun + 9 * SECOND), Err(Some(_))));
        assert!(this.next(begun + 99 * SECOND).is_ok());
        this.take(put("a", "2"));
        this.ended(Ok(ClaimOutcome::Written), begun + 99 * SECOND);
        assert!(this.trouble().is_none());
    }

    #[test]
    fn a_write_that_goes_on_failing_is_reported_until_one_succeeds() {
        let begun = Instant::now();
        let mut this = Announcements::default();
        this.take(listed(None));
        this.want(spec("a"));
        let fail = |this: &mut Announcements, at: Instant, why: &str| {
            assert!(this.next(at).is_ok());
            this.ended(Err(why.to_owned()), at);
        };
        fail(&mut this, begun, "403 Forbidden: a webhook denies it");
        assert_eq!(this.trouble(), None, "one alone may be of a restart of the API server");
        fail(&mut this, begun + 99 * SECOND, "403 Forbidden: a quota is exceeded");
        let why = this.trouble().unwrap().to_owned();
        assert!(why.ends_with(": 403 Forbidden: a quota is exceeded"), "{why}");
        // That it is to say something else does not change it.
        this.want(spec("b"));
        assert_eq!(this.trouble(), Some(&*why));
        assert!(this.next(begun + 999 * SECOND).is_ok());
        this.ended(Ok(ClaimOutcome::Written), begun + 999 * SECOND);
        assert_eq!(this.trouble(), None);
        let failed = |this: &mut Announcements, from: u32| {
            this.want(spec("c"));
            for at in [from, from + 1000] {
                fail(this, begun + at * SECOND, "late");
            }
            assert!(this.trouble().is_some());
        };
        // A write without an answer may have been done.
        failed(&mut this, 2000);
        this.take(put("c", "1"));
        assert_eq!(this.next(begun + 4000 * SECOND), Err(None));
        assert_eq!(this.trouble(), None);
        // Another leader's trouble is not this one's.
        this.take(put("d", "2"));
        failed(&mut this, 5000);
        this.clear();
        assert_eq!(this.trouble(), None);
    }
}
