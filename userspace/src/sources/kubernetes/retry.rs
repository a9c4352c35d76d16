//! How long to wait after a failure. Time and chance are arguments.

use std::time::Duration;

/// Wait after the first failure, before chance has its say.
const FIRST: Duration = Duration::from_millis(200);
/// Longest wait. Thousands of watches come back within this time when an API server does.
const LONGEST: Duration = Duration::from_secs(6);
/// What has gone well for this long was no part of a series of failures.
const WELL: Duration = Duration::from_secs(5);

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
        half + half.mul_f64(u32::try_from(chance >> 32).map_or(0.0, f64::from) / f64::from(u32::MAX))
    }

    /// It on_fresh again.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

/// Any number, another one each time.
pub(super) fn chance() -> u64 {
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
    fn two_watches_do_not_wait_alike() {
        let waits: std::collections::BTreeSet<Duration> =
            (0..64).map(|_| Retry::default().after_failure(Duration::ZERO, chance())).collect();
        assert!(waits.len() > 32, "{} different waits of 64", waits.len());
        assert!(waits.iter().all(|wait| (FIRST / 2..=FIRST).contains(wait)));
    }
}
