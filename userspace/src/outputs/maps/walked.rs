//! How often all flows are checked: a check of millions takes a second or more.

use std::time::Duration;

use common::maps::settings::Settings;
use tokio::time::Instant;

use crate::dataplane::read::thread_ns;

/// The longest interval between checks of all flows. A quarter of the idle timeout applies if it is shorter.
const FLOWS_EVERY_SECS: u32 = 10;

/// Returns the seconds between checks of all flows.
pub(super) fn every_secs(settings: &Settings) -> u32 {
    (settings.idle_timeout_secs / 4).clamp(1, FLOWS_EVERY_SECS)
}

/// A check of all flows that takes less is not put off.
const SHORT: Duration = Duration::from_millis(10);
/// The longest time that one is put off. Flows on trial are reported, and those that are held looked up by themselves.
const REST_MAX: Duration = Duration::from_secs(180);

/// The last check of all flows.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Walked {
    ended: Option<Instant>,
    /// Of a CPU's time: where others have the CPUs, a check takes long, and little of them.
    took: Duration,
    /// It was time for the next one, and that was put off.
    is_awaited: bool,
}

impl Walked {
    /// Carries out the check.
    pub(super) fn during<T>(check: impl FnOnce() -> T) -> Self {
        let begun = thread_ns();
        check();
        Self {
            ended: Some(Instant::now()),
            took: Duration::from_nanos(thread_ns() - begun),
            is_awaited: false,
        }
    }

    /// Whether to check now, where it `is_time` for it or room has to be made (`is_crowded`). What is put off is done as soon as it may be.
    pub(super) fn calls_for_next(&mut self, is_time: bool, is_crowded: bool) -> bool {
        self.is_awaited |= is_time;
        (self.is_awaited || is_crowded) && self.allows(is_crowded)
    }

    /// Whether the next check does not take too much of a CPU: one in twenty-five seconds of it, if no more than time limits depend on
    /// it, or one in three, in a crowded map. It is never put off for longer than three minutes: connections are held for longer by as much.
    fn allows(&self, is_crowded: bool) -> bool {
        let rest = (self.took * if is_crowded { 2 } else { 24 }).min(REST_MAX);
        self.took < SHORT || self.ended.is_none_or(|ended| ended.elapsed() >= rest)
    }
}

#[cfg(test)]
impl Walked {
    /// A check that took this number of milliseconds, and ended that long ago (milliseconds, too).
    pub(super) fn took(took: u64, ago: u64) -> Self {
        let ended = Instant::now().checked_sub(Duration::from_millis(ago));
        Self { ended, took: Duration::from_millis(took), is_awaited: false }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ten million flows take two seconds: every ten seconds, that would be a fifth of a CPU.
    #[test]
    fn a_long_check_of_all_flows_is_put_off_and_less_so_in_a_crowded_map() {
        let walked = Walked::took;
        assert!(Walked::default().allows(false));
        assert!(walked(9, 0).allows(false), "a short one is not");
        assert!(!walked(100, 2_300).allows(false) && walked(100, 2_400).allows(false));
        assert!(!walked(20_000, 179_000).allows(false) && walked(20_000, 180_000).allows(false));
        assert!(!walked(100, 150).allows(true) && walked(100, 200).allows(true));
        assert!(walked(90_000, 180_000).allows(true));
    }

    /// Checks are called for every ten seconds.
    #[test]
    fn what_was_put_off_is_done_as_soon_as_it_may_be() {
        let mut walked = Walked::took(2_000, 0);
        assert!(!walked.calls_for_next(false, false) && !walked.calls_for_next(true, false));
        walked.ended = Walked::took(0, 48_000).ended;
        assert!(walked.calls_for_next(false, false));
        let mut other = Walked::took(2_000, 48_000);
        assert!(!other.calls_for_next(false, false), "it is not time");
        assert!(other.calls_for_next(false, true), "room has to be made");
        assert!(!Walked::during(|| ()).is_awaited);
    }

    /// Ten million flows took between 2.1 and 4.5 s on two machines, sixteen million would take 7.2 s. With what else the daemon does, it is
    /// to be less than a twentieth.
    #[test]
    fn sixteen_million_flows_take_less_than_a_twentieth_of_a_cpu() {
        for took in [500, 1_000, 2_070, 4_500, 7_200] {
            let rest = (0..).find(|ago| Walked::took(took, *ago * 100).allows(false)).unwrap() * 100;
            assert!(took * 20 <= took + rest, "{took} ms, and {rest} ms after it");
        }
    }

    #[test]
    fn a_check_takes_as_long_as_it_has_a_cpu() {
        let waited = Walked::during(|| std::thread::sleep(Duration::from_millis(100)));
        assert!(waited.took < Duration::from_millis(50), "{waited:?}");
        let begun = thread_ns();
        let worked = Walked::during(|| while thread_ns() - begun < 20_000_000 {});
        assert!(worked.took >= Duration::from_millis(20), "{worked:?}");
    }
}
