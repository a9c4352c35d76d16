//! How often all flows are checked: a check of millions takes a second or more.

use std::time::Duration;

use common::maps::settings::Settings;
use tokio::time::Instant;
use tracing::debug;

use crate::dataplane::held::WALK_SECS;
use crate::dataplane::read::thread_ns;

/// The longest interval between checks of all flows. A quarter of the idle timeout applies if it is shorter.
const FLOWS_EVERY_SECS: u32 = 10;

/// Returns how much of a CPU's time this thread has used since it had used this many nanoseconds.
fn cpu_since(begun_ns: u64) -> Duration {
    Duration::from_nanos(thread_ns() - begun_ns)
}

/// Returns the seconds between checks of all flows.
pub(super) fn every_secs(settings: &Settings) -> u32 {
    (settings.idle_timeout_secs / 4).clamp(1, FLOWS_EVERY_SECS)
}

/// A check of all flows that takes less is not put off.
const SHORT: Duration = Duration::from_millis(10);
/// The longest time that one is put off: a tick and a walk are within [`WALK_SECS`], too. Flows on trial are reported, and those that are held
/// looked up by themselves.
const REST_MAX: Duration = Duration::from_secs((WALK_SECS - 2 * FLOWS_EVERY_SECS) as u64);
/// The same where only walks find some of what they are made for.
const REST_AWAITED: Duration = Duration::from_secs(45);

/// What the next check is needed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Need {
    /// Nothing that anyone waits for.
    Left,
    /// Time limits.
    Limits,
    /// Flows on trial that were not reported, or source ports.
    Awaited,
    /// Room in a crowded map.
    Room,
}

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
    /// Carries out the check, which is given `why`, and logs what it took if that is not little.
    pub(super) fn during<T>(why: &'static str, check: impl FnOnce(&'static str) -> T) -> Self {
        let (begun, begun_ns) = (Instant::now(), thread_ns());
        check(why);
        let took = cpu_since(begun_ns);
        if took >= SHORT {
            let (elapsed_ms, cpu_ms) = (begun.elapsed().as_millis(), took.as_millis());
            debug!(elapsed_ms, cpu_ms, "checked: {why}");
        }
        Self { ended: Some(Instant::now()), took, is_awaited: false }
    }

    /// Carries out more of what the check has found, which counts as if it belonged to the check.
    pub(super) fn go_on<T>(&mut self, more: impl FnOnce() -> T) -> T {
        let begun_ns = thread_ns();
        let done = more();
        self.took += cpu_since(begun_ns);
        self.ended = Some(Instant::now());
        done
    }

    /// Whether to check now, where it `is_time` for it or room has to be made. What is put off is done as soon as it may be.
    pub(super) fn calls_for_next(&mut self, is_time: bool, need: Need) -> bool {
        self.is_awaited |= is_time;
        (self.is_awaited || need == Need::Room) && self.allows(need)
    }

    /// Whether the next check does not take too much of a CPU: one in thirty seconds of it, if no more than time limits depend on
    /// it, one in a hundred, if not even these, or one in three, in a crowded map. It is never put off for longer than 220 seconds: connections are held for longer by as much.
    fn allows(&self, need: Need) -> bool {
        let rest = match need {
            Need::Left => (self.took * 99).min(REST_MAX),
            Need::Limits => (self.took * 29).min(REST_MAX),
            Need::Awaited => (self.took * 24).min(REST_AWAITED),
            Need::Room => (self.took * 2).min(REST_AWAITED),
        };
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
    use super::Need::{Awaited, Left, Limits, Room};
    use super::*;

    /// Ten million flows take two seconds: every ten seconds, that would be a fifth of a CPU.
    #[test]
    fn a_long_check_of_all_flows_is_put_off_and_less_so_in_a_crowded_map() {
        let walked = Walked::took;
        assert!(Walked::default().allows(Limits));
        assert!(walked(9, 0).allows(Limits), "a short one is not");
        assert!(!walked(100, 9_800).allows(Left) && walked(100, 9_900).allows(Left));
        assert!(!walked(100, 2_800).allows(Limits) && walked(100, 2_900).allows(Limits));
        assert!(!walked(20_000, 219_000).allows(Limits) && walked(20_000, 220_000).allows(Limits));
        assert!(!walked(100, 150).allows(Room) && walked(100, 200).allows(Room));
        assert!(walked(90_000, 45_000).allows(Room));
        assert!(!walked(20_000, 44_000).allows(Awaited) && walked(20_000, 45_000).allows(Awaited));
        assert!(!walked(100, 2_300).allows(Awaited), "nor for more of a CPU");
    }

    /// Else the next check would follow the last of them at once, however long they take.
    #[test]
    fn what_goes_on_after_a_check_counts_for_the_pause_after_it() {
        let mut walked = Walked::took(20, 30);
        assert!(!walked.allows(Room));
        walked.go_on(|| {
            let begun = thread_ns();
            while thread_ns() - begun < 20_000_000 {}
        });
        assert!(walked.took >= Duration::from_millis(40));
        assert!(walked.ended.unwrap().elapsed() < Duration::from_millis(30), "it ends now");
    }

    /// Checks are called for every ten seconds.
    #[test]
    fn what_was_put_off_is_done_as_soon_as_it_may_be() {
        let mut walked = Walked::took(2_000, 0);
        assert!(!walked.calls_for_next(false, Limits) && !walked.calls_for_next(true, Limits));
        walked.ended = Walked::took(0, 58_000).ended;
        assert!(walked.calls_for_next(false, Limits));
        let mut other = Walked::took(2_000, 58_000);
        assert!(!other.calls_for_next(false, Limits), "it is not time");
        assert!(other.calls_for_next(false, Room), "room has to be made");
        assert!(!Walked::during("", drop).is_awaited);
    }

    /// They took between 2.1 and 6.7 s on two machines. With what else the daemon does, it is to be less than a twentieth.
    #[test]
    fn ten_million_flows_take_less_than_a_twentieth_of_a_cpu() {
        for took in [500, 1_000, 2_070, 4_300, 6_700] {
            let rest = (0..).find(|ago| Walked::took(took, *ago * 100).allows(Limits)).unwrap() * 100;
            assert!(took * 28 <= took + rest, "{took} ms, and {rest} ms after it");
        }
    }

    #[test]
    fn a_check_takes_as_long_as_it_has_a_cpu() {
        let waited = Walked::during("", |_| std::thread::sleep(Duration::from_millis(100)));
        assert!(waited.took < Duration::from_millis(50), "{waited:?}");
        let begun = thread_ns();
        let worked = Walked::during("", |_| while thread_ns() - begun < 20_000_000 {});
        assert!(worked.took >= Duration::from_millis(20), "{worked:?}");
    }
}
