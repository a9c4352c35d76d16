//! When the Lease is renewed. Pure: time and chance are arguments.

use std::time::Duration;

use tokio::time::Instant;

use crate::sources::kubernetes::share;

/// The interval between renewals while nothing changes.
const REST: Duration = Duration::from_secs(10);
/// A change is reported within this time, at random: all nodes see it at once.
const SPREAD: Duration = Duration::from_millis(500);
/// The shortest interval between renewals.
const GAP: Duration = Duration::from_secs(2);

/// The renewals of a Lease.
#[derive(Debug)]
pub(crate) struct Renewals {
    /// When it is renewed next.
    pub next: Instant,
    /// The earliest time for that.
    free: Instant,
}

impl Renewals {
    /// The first one is due now.
    pub(crate) fn new(now: Instant) -> Self {
        Self { next: now, free: now }
    }

    /// What it reports has changed. `chance`: any number.
    pub(crate) fn changed(&mut self, now: Instant, chance: u64) {
        let soon = (now + SPREAD.mul_f64(share(chance))).max(self.free);
        self.next = self.next.min(soon);
    }

    /// It was renewed, or that failed.
    pub(crate) fn written(&mut self, now: Instant, is_ok: bool) {
        self.free = now + GAP;
        self.next = now + if is_ok { REST } else { GAP };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_reported_soon_and_not_too_often_and_at_rest_it_is_renewed_every_ten_seconds() {
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        let mut renewals = Renewals::new(begun);
        assert_eq!(renewals.next, begun);
        renewals.written(begun, true);
        assert_eq!(renewals.next, at(10_000));
        renewals.changed(at(5_000), u64::MAX);
        assert_eq!(renewals.next, at(5_500));
        renewals.changed(at(5_100), u64::MAX);
        assert_eq!(renewals.next, at(5_500), "a second change does not put it off");
        renewals.written(at(5_500), true);
        renewals.changed(at(5_600), 0);
        assert_eq!(renewals.next, at(7_500), "two seconds after the last one");
        renewals.written(at(7_500), true);
        assert_eq!(renewals.next, at(17_500));
        renewals.changed(at(17_400), u64::MAX);
        assert_eq!(renewals.next, at(17_500), "a renewal that is due anyway carries it");
        renewals.written(at(17_500), false);
        assert_eq!(renewals.next, at(19_500), "one that failed is tried again");
    }
}
