//! What the chart's file says of announcing.

use super::checked::Check;
use crate::model::Problem;
use crate::model::advertisement::{AnnouncingPolicy, GRACE};
use std::ops::RangeInclusive;
use std::time::Duration;

/// What `agentGraceSeconds` may be: an agent stamps every 100 ms.
const GRACES: RangeInclusive<u64> = 1..=3600;

impl Check<'_> {
    /// Checks `addresses.l2` and `agentGraceSeconds`.
    pub(super) fn announcing(&mut self, l2: Option<bool>, grace: Option<i64>) -> AnnouncingPolicy {
        let own_ranges = l2.unwrap_or(false);
        let Some(seconds) = grace else { return AnnouncingPolicy { own_ranges, grace: GRACE } };
        let checked = u64::try_from(seconds).ok().filter(|checked| GRACES.contains(checked));
        if checked.is_none() {
            let problem =
                Problem::error("agentGraceSeconds", "is out of range", "write a number from 1 to 3600");
            self.problems.push(problem.value(seconds));
        }
        AnnouncingPolicy { own_ranges, grace: checked.map_or(GRACE, Duration::from_secs) }
    }
}
