//! How long to wait: after a failure, before a list, for a watch to end. Time and chance are arguments.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Wait after the first failure, before chance has its say.
const FIRST: Duration = Duration::from_millis(200);
/// Longest wait. Thousands of watches come back within this time when an API server does.
const LONGEST: Duration = Duration::from_secs(6);
/// What has gone well for this long was no part of a series of failures.
const WELL: Duration = Duration::from_secs(5);
/// How long watches last, in seconds. Those that began together, as after a restart of the API server, do not end together.
const WATCH_SECS: RangeInclusive<u32> = 300..=600;
/// Lists that one event makes all nodes ask for are spread over this time.
const LISTS: Duration = Duration::from_secs(30);
/// From one question for a kind that the server does not know to the next. A definition that is deleted makes all nodes ask.
const NOT_FOUND: RangeInclusive<Duration> = Duration::from_millis(100)..=Duration::from_secs(1);

/// Doubles the wait with each failure.
#[derive(Debug, Default)]
pub(super) struct Retry {
    failures: u32,
}

impl Retry {
    /// How long to wait after one more failure: half to all of the step. `went_well` is for how long nothing failed,
    /// `chance` any number.
    pub(super) fn after_failure(&mut self, went_well: Duration, chance: u64) -> Duration {
        if went_well >= WELL {
            self.failures = 0;
        }
        let step = FIRST.saturating_mul(1 << self.failures.min(8)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        let half = step / 2;
        half + half.mul_f64(share(chance))
    }

    /// The next failure is a first one.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// After how many seconds the server ends a watch.
pub(super) fn watch_secs(chance: u64) -> u32 {
    let (first, last) = (*WATCH_SECS.start(), *WATCH_SECS.end());
    let more = (u64::from(last - first + 1) * (chance >> 32)) >> 32;
    first + u32::try_from(more).unwrap_or_default()
}

/// How long to wait before a full list that replaces another.
pub(super) fn before_list(chance: u64) -> Duration {
    LISTS.mul_f64(share(chance))
}

/// How long to wait before a kind is asked for again that the server did not know.
pub(super) fn while_not_found(chance: u64) -> Duration {
    let (least, most) = (*NOT_FOUND.start(), *NOT_FOUND.end());
    least + most.saturating_sub(least).mul_f64(share(chance))
}

/// From 0 to 1.
pub(crate) fn share(chance: u64) -> f64 {
    u32::try_from(chance >> 32).map_or(0.0, f64::from) / f64::from(u32::MAX)
}

/// Where chance comes from.
pub(super) type Chance = fn() -> u64;

/// Any number, another one each time.
pub(crate) fn chance() -> u64 {
    use std::hash::{BuildHasher, Hasher, RandomState};
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_start_over_after_a_good_time() {
        let mut retry = Retry::default();
        let waits: Vec<Duration> = (0..12).map(|_| retry.after_failure(Duration::ZERO, u64::MAX)).collect();
        assert_eq!(waits[0], FIRST);
        assert_eq!(waits[1], 2 * FIRST);
        assert_eq!(waits[11], LONGEST);
        assert_eq!(retry.after_failure(WELL, 0), FIRST / 2);
        assert_eq!(retry.after_failure(Duration::ZERO, 0), FIRST);
    }

    #[test]
    fn a_watch_lasts_five_to_ten_minutes_at_random() {
        assert_eq!([0, u64::MAX / 2, u64::MAX].map(watch_secs), [300, 450, 600]);
        let all: std::collections::BTreeSet<u32> = (0..64).map(|_| watch_secs(chance())).collect();
        assert!(all.len() > 32, "{} different durations of 64", all.len());
    }

    #[test]
    fn lists_of_many_nodes_are_spread_over_thirty_seconds() {
        assert_eq!([0, u64::MAX].map(before_list), [Duration::ZERO, LISTS]);
        // 500 nodes: no second has more than some thirty lists.
        let mut seconds = [0; 31];
        for node in 0..500_u64 {
            let wait = before_list(node * (u64::MAX / 500));
            seconds[usize::try_from(wait.as_secs()).unwrap()] += 1;
        }
        assert!(seconds.iter().all(|lists| *lists <= 17), "{seconds:?}");
    }

    #[test]
    fn two_watches_do_not_wait_alike() {
        let waits: std::collections::BTreeSet<Duration> =
            (0..64).map(|_| Retry::default().after_failure(Duration::ZERO, chance())).collect();
        assert!(waits.len() > 32, "{} different waits of 64", waits.len());
        assert!(waits.iter().all(|wait| (FIRST / 2..=FIRST).contains(wait)));
    }

    #[test]
    fn two_nodes_do_not_ask_alike_for_a_kind_that_is_not_there() {
        let bounds = [Duration::from_millis(100), Duration::from_secs(1)];
        assert_eq!([0, u64::MAX].map(while_not_found), bounds);
        // 500 nodes: they ask some 1,300 times a second, not 5,000 times.
        let asked: f64 =
            (0..500).map(|node| 1.0 / while_not_found(node * (u64::MAX / 500)).as_secs_f64()).sum();
        let all: std::collections::BTreeSet<Duration> = (0..64).map(|_| while_not_found(chance())).collect();
        assert!(asked < 1_500.0 && all.len() > 32, "{asked} a second, {} different waits of 64", all.len());
    }
}
