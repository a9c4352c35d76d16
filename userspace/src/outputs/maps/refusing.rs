//! Which routes refuse connections, where routes have no metrics of their own. Pure.

use common::maps::event::RouteCounters;
use foldhash::{HashMap, HashSet};

/// The interval in which connections are counted, in seconds.
pub(super) const INTERVAL_SECS: u32 = 150;
/// A route refuses if more than one of this number of connections is refused.
const ONE_IN: u64 = 20;

/// Routes that refuse connections.
#[derive(Debug, Default)]
pub(super) struct Refusing {
    /// Connected and refused connections of each route when it was last looked at.
    before: HashMap<u32, (u64, u64)>,
    /// The routes that refused in the last interval; `None`: none is over yet.
    refused: Option<HashSet<u32>>,
    has_looked: bool,
}

impl Refusing {
    /// Looks at the counters at the end of an interval. The first time, it only begins. Returns the number of routes that refused
    /// in it and in the one before, once there are two: of many routes, one or another has a bad moment at any time.
    pub(super) fn look(&mut self, counters: &[(u32, RouteCounters)]) -> Option<u64> {
        let refuses = |(id, now): &&(u32, RouteCounters)| {
            self.before.get(id).is_some_and(|(connected, refused)| {
                let refused = now.refused.saturating_sub(*refused);
                refused * ONE_IN > refused + now.connected.saturating_sub(*connected)
            })
        };
        let refused: HashSet<u32> = counters.iter().filter(refuses).map(|(id, _)| *id).collect();
        let again = self.refused.as_ref().map(|before| refused.intersection(before).count() as u64);
        self.refused = self.has_looked.then_some(refused);
        self.has_looked = true;
        self.before = counters.iter().map(|(id, now)| (*id, (now.connected, now.refused))).collect();
        again
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_that_refuse_twice_in_a_row_are_counted() {
        let mut refusing = Refusing::default();
        let mut counters = [(1, RouteCounters::zeroed()), (2, RouteCounters::zeroed())];
        counters[0].1.refused = 1_000;
        assert_eq!(refusing.look(&counters), None, "what was before is not known");
        // Connections of both routes in each interval, the refused ones of them; and what is counted.
        for (connected, refused, count) in [
            ([9, 95], [1, 5], None),
            ([9, 94], [1, 6], Some(1)),
            ([0, 94], [3, 6], Some(2)),
            ([7, 94], [0, 6], Some(1)),
            ([0, 0], [5, 0], Some(0)),
            ([0, 0], [5, 9], Some(1)),
            ([0, 0], [0, 0], Some(0)),
        ] {
            for (at, (_, counters)) in counters.iter_mut().enumerate() {
                counters.connected += connected[at];
                counters.refused += refused[at];
            }
            assert_eq!(refusing.look(&counters), count, "{connected:?} {refused:?}");
        }
    }
}
