//! The Claim that marks that all others are written, and that says whether Vestibule is withdrawn from the cluster. Pure: time is an
//! argument.

use super::claim_store::{ClaimWrite, Stored};
use super::since::STALE;
use crate::sources::kubernetes::api::claim::ClaimSpec;
use std::time::{Duration, Instant};

/// The mark is not written before nobody else has deleted a Claim for this long: it would say that all are there while those who
/// delete all of them go on.
pub(super) const QUIET: Duration = Duration::from_secs(5);

/// The mark.
#[derive(Debug, Default)]
pub(super) struct ClaimMark {
    state: State,
    /// Another client has deleted Claims since a write was asked for last.
    is_disturbed: bool,
    /// It is not written before.
    quiet_from: Option<Instant>,
    /// Since when it is missing though Claims are settled, and so waits for something; and for what it did when that had lasted.
    waits: Option<(Instant, Option<String>)>,
    /// The version by which this controller took back that Vestibule is withdrawn; 0: it did not have to.
    taken_back: u64,
}

/// What the API server has.
#[derive(Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Missing,
    There,
    /// It says, in this version, that Vestibule is withdrawn.
    Withdrawn(String),
}

impl ClaimMark {
    /// Takes it from a list of all Claims; `None`: it is not among them.
    pub(super) fn list(&mut self, stored: Option<Stored>, is_first: bool) {
        match stored {
            Some(stored) => drop(self.put(&stored)),
            None => {
                // It was seen before this controller led: another client has deleted it since.
                let was_there = std::mem::take(&mut self.state) != State::Missing;
                self.is_disturbed |= !is_first || was_there;
            }
        }
    }

    /// It was written. Returns whether that is news.
    pub(super) fn put(&mut self, stored: &Stored) -> bool {
        let state = match stored.is_withdrawn {
            true => State::Withdrawn(stored.version.clone()),
            false => State::There,
        };
        if matches!(self.state, State::Withdrawn(_)) && state == State::There {
            self.taken_back = stored.version.parse().unwrap_or_default();
        }
        let is_news = state != self.state;
        self.state = state;
        is_news
    }

    /// It is gone. Returns whether that is news.
    pub(super) fn gone(&mut self) -> bool {
        self.is_disturbed = true;
        std::mem::take(&mut self.state) != State::Missing
    }

    /// Another client has deleted a Claim.
    pub(super) fn disturb(&mut self) {
        self.is_disturbed = true;
    }

    /// Whether it says that all are written, and that they are served.
    pub(super) fn is_there(&self) -> bool {
        self.state == State::There
    }

    /// Nodes that hold less than this version still refuse new connections.
    pub(super) fn least(&self) -> u64 {
        self.taken_back
    }

    /// Another controller may have written it meanwhile: that it waits is news.
    pub(super) fn rest(&mut self) {
        self.waits = None;
    }

    /// Notes for what it waits now. Returns since when it waits, and what an Event says: what it was when it had waited for a minute, for
    /// each other text would be another Event.
    pub(super) fn waits(&mut self, why: &str, now: Instant) -> (Instant, Option<String>) {
        let (since, said) = self.waits.get_or_insert((now, None));
        if said.is_none() && *since + STALE <= now {
            *said = Some(why.to_owned());
        }
        (*since, said.clone())
    }

    /// Writes of Claims are asked for.
    pub(super) fn look(&mut self, now: Instant) {
        if std::mem::take(&mut self.is_disturbed) {
            self.quiet_from = Some(now + QUIET);
        }
    }

    /// Returns until when it must not be written.
    pub(super) fn quiet_until(&self, now: Instant) -> Option<Instant> {
        self.quiet_from.filter(|from| *from > now)
    }

    /// Returns the write that makes it say that all are written.
    pub(super) fn write(&self) -> ClaimWrite {
        match &self.state {
            State::Withdrawn(version) => ClaimWrite::Replace(ClaimSpec::settled(), version.clone()),
            State::Missing | State::There => ClaimWrite::Create(ClaimSpec::settled()),
        }
    }
}
