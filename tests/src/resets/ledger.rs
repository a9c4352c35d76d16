//! Compares the RSTs captured with the reasons counted.
//!
//! Every RST that leaves the node has a counted reason. What is sent for a reason is a fixed number of RSTs, so that
//! the sums must be equal at any moment without traffic.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};
use common::reason::Reason;

use super::capture::{Capture, Counts};
use crate::daemon::Daemon;
use crate::net::Namespace;

/// Reasons for which one RST of ours is sent: to the sender of the packet, or to the end that waits.
const ONE: &[Reason] = &[
    Reason::ClassifyNoListener,
    Reason::XdpNoListener,
    Reason::SynDraining,
    Reason::SynCookieMismatch,
    Reason::SynClosedEarly,
    Reason::HelloSourceFull,
    Reason::HelloNotTls,
    Reason::HelloMalformed,
    Reason::HelloTooLong,
    Reason::HelloNameInvalid,
    Reason::HelloAbandoned,
    Reason::HelloTimeout,
    Reason::RouteNone,
    Reason::RouteNoName,
    Reason::RouteReserved,
    Reason::PickNone,
    Reason::PickNoFamily,
    Reason::PickRefused,
    Reason::ConnectExhausted,
    Reason::ConnectNoPort,
    Reason::SynOldReset,
    Reason::ForwardLinger,
    Reason::ExpireHello,
    Reason::AdmitRouteFull,
    Reason::AdmitSourceFull,
    Reason::AdmitConnecting,
    Reason::AdmitSourceRange,
];

/// Reasons for which both ends are reset.
const TWO: &[Reason] = &[
    Reason::ConnectTableFull,
    Reason::ConnectRetired,
    Reason::ExpireIdle,
    Reason::ExpireRemoved,
    Reason::ExpireRefused,
    Reason::ExpireTrial,
    Reason::ExpireHeld,
    Reason::ExpireCrowded,
];

/// Reasons for which an end's RST is passed on.
const PASSED: &[Reason] =
    &[Reason::ForwardReset, Reason::ForwardTrial, Reason::ForwardUnfit, Reason::ConnectRefused];

/// Reasons for which zero, one or two RSTs are sent. None of them may be counted in a soak: nothing is evicted, and a
/// copy always has a link address.
const UNCERTAIN: &[Reason] = &[Reason::HelloBufferFailed, Reason::HelloEvicted, Reason::EmitCopyLost];

/// The RSTs that leave for a packet or an event with this reason; `None`: they are not known.
pub fn for_each(reason: Reason) -> Option<u64> {
    if UNCERTAIN.contains(&reason) {
        return None;
    }
    let of = |list: &[Reason], times| u64::from(list.contains(&reason)) * times;
    Some(of(ONE, 1) + of(TWO, 2) + of(PASSED, 1))
}

/// Time between two samples, and within each until what was counted has reached the capture.
const PAUSE: Duration = Duration::from_millis(100);
const ARRIVAL: Duration = Duration::from_millis(40);
/// Samples without any change after which unequal sums are a fault: 5 s.
const STILL: u32 = 36;
/// Samples after which the comparison is given up, because the traffic does not end.
const SAMPLES: u32 = 600;

/// Both sides of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    pub captured: Counts,
    /// RSTs of the node's own stack, which are captured as well.
    pub of_stack: u64,
    /// By reason, each times its RSTs.
    pub counted: BTreeMap<&'static str, u64>,
    pub own: u64,
    pub passed: u64,
    /// Packets for reasons whose RSTs are not known.
    pub uncertain: u64,
}

impl Sums {
    fn of(reasons: &BTreeMap<String, u64>, captured: Counts, of_stack: u64) -> Self {
        let mut sums = Self { captured, of_stack, own: of_stack, ..Self::default() };
        let count = |reason: &Reason| reasons.get(reason.name()).copied().unwrap_or(0);
        for (list, times) in [(ONE, 1), (TWO, 2)] {
            for reason in list {
                sums.own += times * count(reason);
                sums.counted.insert(reason.name(), times * count(reason));
            }
        }
        for reason in PASSED {
            sums.passed += count(reason);
            sums.counted.insert(reason.name(), count(reason));
        }
        sums.uncertain = UNCERTAIN.iter().map(count).sum();
        sums.counted.retain(|_, count| *count > 0);
        sums
    }

    /// Whether everything captured was counted, and the reverse.
    pub fn are_equal(&self) -> bool {
        (self.captured.own, self.captured.passed, 0) == (self.own, self.passed, self.uncertain)
    }

    /// Both sides in one line.
    pub fn difference(&self) -> String {
        let Self { captured, own, passed, uncertain, .. } = self;
        format!("own {} / {own}, passed {} / {passed}, uncertain {uncertain}", captured.own, captured.passed)
    }

    /// RSTs captured as sent, and counted.
    pub fn totals(&self) -> [u64; 2] {
        [self.captured.own + self.captured.passed, self.own + self.passed]
    }
}

/// The end of a comparison.
#[derive(Clone, Debug)]
pub enum Verdict {
    Equal(Sums),
    Unequal(Sums),
    /// There is always some traffic, or the capture missed RSTs, or it did not read all in time.
    Unknown(Sums),
}

/// Decides when nothing moves any more. RSTs that wait to be read are movement.
#[derive(Debug, Default)]
struct Watch {
    before: Option<Sums>,
    /// Samples without any change.
    still: u32,
}

impl Watch {
    /// Adds a sample; `None`: wait on.
    fn add(&mut self, sums: Sums) -> Option<Verdict> {
        let same = self.before.as_ref() == Some(&sums) && sums.captured.are_all_read();
        self.still = if same { self.still + 1 } else { 0 };
        self.before = Some(sums.clone());
        if self.still > 0 && sums.are_equal() && sums.captured.missed == 0 {
            return Some(Verdict::Equal(sums));
        }
        if self.still < STILL {
            return None;
        }
        // A reason that must not be counted is a fault whatever was missed.
        Some(match sums.uncertain == 0 && sums.captured.missed > 0 {
            true => Verdict::Unknown(sums),
            false => Verdict::Unequal(sums),
        })
    }

    /// There is no time left. What moves is not compared, but a reason that must not be counted is a fault.
    fn give_up(self) -> Verdict {
        let sums = self.before.unwrap_or_default();
        if sums.uncertain > 0 { Verdict::Unequal(sums) } else { Verdict::Unknown(sums) }
    }
}

/// Waits until nothing moves, and compares.
pub fn compare(daemon: &Daemon, node: &Namespace, capture: &Capture) -> Result<Verdict> {
    let mut watch = Watch::default();
    for _ in 0..SAMPLES {
        if let Some(verdict) = watch.add(sample(daemon, node, capture)?) {
            return Ok(verdict);
        }
        sleep(PAUSE);
    }
    Ok(watch.give_up())
}

/// The numbers at one moment.
fn sample(daemon: &Daemon, node: &Namespace, capture: &Capture) -> Result<Sums> {
    let reasons = daemon.reasons().context("reading the counters")?;
    let of_stack = node.statistic("Tcp", "OutRsts")?;
    // What was counted is captured by now, but may wait to be queued.
    sleep(ARRIVAL);
    Ok(Sums::of(&reasons, capture.counts()?, of_stack))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_that_says_reset_is_in_one_list() {
        let lists = [ONE, TWO, PASSED, UNCERTAIN];
        for reason in Reason::ALL {
            let times = lists.iter().filter(|list| list.contains(reason)).count();
            let text = reason.text();
            let ends = ["answered with RST", "reset (event)", "; client reset"];
            let resets = ends.iter().any(|end| text.contains(end)) && !text.ends_with("dropped");
            assert!(times <= 1 && (times == 1 || !resets), "{}: {text}", reason.name());
        }
    }

    /// Sums of which nothing moves: `captured` RSTs of ours, and `own` that were counted.
    fn sums(captured: u64, own: u64) -> Sums {
        let captured = Counts { own: captured, seen: captured, queued: captured, ..Counts::default() };
        Sums { captured, own, ..Sums::default() }
    }

    /// The verdict on these sums, sampled until there is one, and the samples.
    fn verdict(sums: &Sums) -> (Verdict, u32) {
        let mut watch = Watch::default();
        for samples in 1..=SAMPLES {
            if let Some(verdict) = watch.add(sums.clone()) {
                return (verdict, samples);
            }
        }
        (watch.give_up(), SAMPLES)
    }

    #[test]
    fn equal_sums_are_equal_as_soon_as_they_are_still() {
        assert!(matches!(verdict(&sums(3, 3)), (Verdict::Equal(_), 2)));
    }

    #[test]
    fn unequal_sums_are_a_fault_once_still_for_long() {
        assert!(matches!(verdict(&sums(3, 6)), (Verdict::Unequal(_), samples) if samples == STILL + 1));
        assert!((PAUSE + ARRIVAL) * STILL >= Duration::from_secs(5));
    }

    #[test]
    fn what_waits_to_be_read_is_waited_for() {
        let mut waiting = sums(3, 6);
        waiting.captured.queued = 6;
        assert!(matches!(verdict(&waiting), (Verdict::Unknown(_), SAMPLES)), "it is never read");
        let mut watch = Watch::default();
        for _ in 0..2 * STILL {
            assert!(watch.add(waiting.clone()).is_none());
        }
        assert!(watch.add(sums(6, 6)).is_none(), "it has just been read");
        assert!(matches!(watch.add(sums(6, 6)), Some(Verdict::Equal(_))));
    }

    #[test]
    fn nothing_is_known_of_what_was_missed() {
        for own in [3, 6] {
            let mut missed = sums(3, own);
            missed.captured.missed = 3;
            assert!(matches!(verdict(&missed), (Verdict::Unknown(_), samples) if samples == STILL + 1));
        }
    }

    #[test]
    fn uncertain_reasons_are_a_fault_but_only_once_still() {
        let uncertain = |captured, missed| {
            let mut sums = Sums { uncertain: 1, ..sums(captured, 3) };
            sums.captured.missed = missed;
            sums
        };
        for missed in [0, 3] {
            let (verdict, samples) = verdict(&uncertain(3, missed));
            assert!(matches!(verdict, Verdict::Unequal(_)) && samples == STILL + 1);
        }
        let mut watch = Watch::default();
        for captured in 0..2 * u64::from(STILL) {
            assert!(watch.add(uncertain(captured, 0)).is_none(), "it moves");
        }
        assert!(matches!(watch.give_up(), Verdict::Unequal(_)));
    }
}
