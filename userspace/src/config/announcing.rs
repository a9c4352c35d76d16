//! What the chart's file says of announcing.

use super::checked::Check;
use super::raw::Text;
use super::value;
use crate::model::Problem;
use crate::model::advertisement::{AnnouncingPolicy, GRACE, REBALANCE};
use std::ops::RangeInclusive;
use std::time::Duration;

/// What `agentGraceSeconds` may be: an agent stamps every 100 ms.
const GRACES: RangeInclusive<u64> = 1..=3600;
/// What `addresses.rebalanceAfter` may be, besides [`NEVER`].
const REBALANCES: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(365 * 24);
const NEVER: &str = "never";

impl Check<'_> {
    /// Checks `addresses.l2`, `agentGraceSeconds`, `addresses.rebalanceAfter` and `addresses.onIsolation`.
    pub(super) fn announcing(
        &mut self,
        l2: Option<bool>,
        grace: Option<i64>,
        (rebalance, on_isolation): (Option<Text<'_>>, Option<Text<'_>>),
    ) -> AnnouncingPolicy {
        let (grace, rebalance) = (self.grace(grace), self.rebalance(rebalance));
        let withdraws = on_isolation.is_some_and(|text| self.withdraws(text));
        AnnouncingPolicy { own_ranges: l2.unwrap_or(false), grace, rebalance, withdraws }
    }

    fn withdraws(&mut self, text: Text<'_>) -> bool {
        match &*text {
            "Withdraw" => return true,
            "Hold" => {}
            _ => {
                let problem =
                    Problem::error("addresses.onIsolation", "is no such action", "write Withdraw or Hold");
                self.problems.push(problem.value(text));
            }
        }
        false
    }

    fn grace(&mut self, seconds: Option<i64>) -> Duration {
        let Some(seconds) = seconds else { return GRACE };
        let checked = u64::try_from(seconds).ok().filter(|checked| GRACES.contains(checked));
        if checked.is_none() {
            let problem =
                Problem::error("agentGraceSeconds", "is out of range", "write a number from 1 to 3600");
            self.problems.push(problem.value(seconds));
        }
        checked.map_or(GRACE, Duration::from_secs)
    }

    fn rebalance(&mut self, text: Option<Text<'_>>) -> Option<Duration> {
        const REMEDY: &str = "write whole seconds, 1s to 365d, such as \"10m\", or never";
        let Some(text) = text else { return Some(REBALANCE) };
        if *text == *NEVER {
            return None;
        }
        let checked = value::duration(&text).ok();
        let checked = checked.filter(|time| REBALANCES.contains(time) && time.subsec_nanos() == 0);
        if checked.is_none() {
            let problem = Problem::error("addresses.rebalanceAfter", "is no such time", REMEDY);
            self.problems.push(problem.value(text));
        }
        checked.or(Some(REBALANCE))
    }
}
