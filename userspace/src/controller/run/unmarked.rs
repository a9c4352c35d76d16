//! Says why not all Claims are written: to the log, and by the leader's Lease.

use crate::controller::claims::Waits;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tracing::{info, warn};

/// Claims that are not all written for less than this are about to be: one is written after the other.
const MOMENT: Duration = Duration::from_secs(10);
/// The log says what has changed meanwhile this often.
const LOGGED: Duration = Duration::from_secs(60);

/// What was said.
pub(super) struct Unmarked {
    /// Why not all Claims are written, and since when, for the leader's Lease; empty: they are.
    lease: watch::Sender<String>,
    /// When the log said it last.
    logged: Option<Instant>,
}

impl Unmarked {
    /// Also returns a receiver of what the Lease is to say.
    pub(super) fn new() -> (Self, watch::Receiver<String>) {
        let (lease, why) = watch::channel(String::new());
        (Self { lease, logged: None }, why)
    }

    /// Says nothing any more: this controller begins or ceases to lead.
    pub(super) fn clear(&mut self) {
        self.logged = None;
        self.lease.send_replace(String::new());
    }

    /// Takes what is waited for; `None`: all are written. Returns for how long, and since when and what for as text.
    pub(super) fn note(&mut self, waits: Option<Waits>, now: Instant) -> Option<(Duration, String)> {
        let waits = waits.map(|Waits { since, why, .. }| {
            let lasts = now.saturating_duration_since(since);
            (lasts, format!("since {}: {why}", before(Timestamp::now(), lasts)))
        });
        let lasting = waits.as_ref().filter(|(lasts, _)| *lasts >= MOMENT).map_or("", |(_, text)| text);
        if lasting.is_empty() && self.logged.take().is_some() {
            info!("all Claims are written");
        }
        if *self.lease.borrow() != lasting {
            self.lease.send_replace(lasting.to_owned());
        }
        if !lasting.is_empty() && self.logged.is_none_or(|at| at + LOGGED <= now) {
            self.logged = Some(now);
            warn!("not all Claims are written {lasting}");
        }
        waits
    }
}

/// Returns the time that was so long ago, in RFC 3339, UTC.
fn before(now: Timestamp, ago: Duration) -> String {
    let ago = SignedDuration::try_from(ago).unwrap_or(SignedDuration::ZERO);
    now.saturating_sub(ago).unwrap_or(now).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lease_says_what_lasts_and_nothing_once_all_are_written() {
        let (mut this, lease) = Unmarked::new();
        let begun = Instant::now();
        let waits = || Some(Waits { since: begun, why: "x".to_owned(), event: None });
        let (lasts, text) = this.note(waits(), begun).unwrap();
        assert!(lasts.is_zero() && text.ends_with(": x"), "{text}");
        assert_eq!(*lease.borrow(), "");
        let (_, text) = this.note(waits(), begun + MOMENT).unwrap();
        assert_eq!(*lease.borrow(), text);
        assert_eq!(this.note(None, begun + MOMENT), None);
        assert_eq!(*lease.borrow(), "");
        this.note(waits(), begun + MOMENT);
        this.clear();
        assert_eq!(*lease.borrow(), "");
        let now = Timestamp::from_second(1_000_000_000).unwrap();
        assert_eq!(before(now, Duration::from_secs(1)), "2001-09-09T01:46:39Z");
    }
}
