//! Compares the RSTs captured with the reasons counted.
//!
//! Every RST that leaves the node has a counted reason. What is sent for a reason is a fixed number of RSTs, so that
//! the sums must be equal at any moment without traffic.

use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::Duration;

use ::tests::daemon::Daemon;
use ::tests::net::Namespace;
use anyhow::{Context, Result};
use common::reason::Reason;

use crate::capture::{Capture, Counts, of_stack};

/// Reasons for which one RST of ours is sent: to the sender of the packet, or to the end that waits.
const ONE: &[Reason] = &[
    Reason::ClassifyNoListener,
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
    Reason::ForwardStray,
    Reason::ExpireHello,
    Reason::AdmitRouteFull,
    Reason::AdmitSourceFull,
    Reason::AdmitConnecting,
];

/// Reasons for which both ends are reset.
const TWO: &[Reason] = &[
    Reason::ConnectTableFull,
    Reason::ConnectRetired,
    Reason::ExpireIdle,
    Reason::ExpireRemoved,
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

/// Samples without any change, a tenth of a second apart, after which unequal sums are a fault.
const STILL: u32 = 15;
/// Samples after which the comparison is given up, because the traffic does not end.
const SAMPLES: u32 = 600;

/// Both sides of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sums {
    pub(crate) captured: Counts,
    /// RSTs of the node's own stack, which are captured as well.
    pub(crate) of_stack: u64,
    /// By reason, each times its RSTs.
    pub(crate) counted: BTreeMap<&'static str, u64>,
    pub(crate) own: u64,
    pub(crate) passed: u64,
    /// Packets for reasons whose RSTs are not known.
    pub(crate) uncertain: u64,
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
    pub(crate) fn are_equal(&self) -> bool {
        (self.captured.own, self.captured.passed, 0) == (self.own, self.passed, self.uncertain)
    }

    /// RSTs captured as sent, and counted.
    pub(crate) fn totals(&self) -> [u64; 2] {
        [self.captured.own + self.captured.passed, self.own + self.passed]
    }
}

/// The end of a comparison.
#[derive(Clone, Debug)]
pub(crate) enum Verdict {
    Equal(Sums),
    Unequal(Sums),
    /// There is always some traffic, or the capture missed RSTs.
    Unknown(Sums),
}

/// Waits until nothing moves, and compares.
pub(crate) fn compare(daemon: &Daemon, node: &Namespace, capture: &Capture) -> Result<Verdict> {
    let mut before = Sums::default();
    let mut still = 0;
    for _ in 0..SAMPLES {
        let sums = sample(daemon, node, capture)?;
        if sums.uncertain > 0 {
            return Ok(Verdict::Unequal(sums));
        }
        if sums.captured.missed > 0 {
            return Ok(Verdict::Unknown(sums));
        }
        still = if sums == before { still + 1 } else { 0 };
        if still > 0 && sums.are_equal() {
            return Ok(Verdict::Equal(sums));
        }
        if still == STILL {
            return Ok(Verdict::Unequal(sums));
        }
        before = sums;
        sleep(Duration::from_millis(100));
    }
    Ok(Verdict::Unknown(before))
}

/// The numbers at one moment.
fn sample(daemon: &Daemon, node: &Namespace, capture: &Capture) -> Result<Sums> {
    let reasons = daemon.reasons().context("reading the counters")?;
    let of_stack = of_stack(node)?;
    // What was counted is captured by now, but may wait to be read.
    sleep(Duration::from_millis(40));
    Ok(Sums::of(&reasons, capture.counts(), of_stack))
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
}
