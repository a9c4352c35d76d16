//! What only a walk over all flows finds, and happened since the last one: a RST put a flow on trial that was not reported, because the ring
//! of reports has an end, and one host that dies may abort thousands of connections within a second; or a backend had no source port for a
//! connection.

use common::reason::Reason;

use super::pin::Pins;
use super::read::Counter;
use super::table::TableError;

/// What the programs count then.
const COUNTED: [Reason; 2] = [Reason::ForwardUnreported, Reason::ConnectNoPort];

/// What the programs counted since the last walk over all flows began.
#[derive(Debug)]
pub(super) struct Awaited {
    counters: Vec<Counter>,
    sum: Sum,
}

/// A sum that only grows.
#[derive(Debug, Default)]
struct Sum {
    at_begin: u64,
}

impl Sum {
    fn begin(&mut self, sum: u64) {
        self.at_begin = sum;
    }

    fn has_grown(&self, sum: u64) -> bool {
        sum != self.at_begin
    }
}

impl Awaited {
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        let counters = COUNTED.into_iter().map(|reason| Counter::open(pins, reason));
        Ok(Self { counters: counters.collect::<Result<_, _>>()?, sum: Sum::default() })
    }

    /// Begins a walk.
    pub(super) fn begin(&mut self) -> Result<(), TableError> {
        self.sum.begin(self.sum()?);
        Ok(())
    }

    /// Whether there was something since the walk began: it may have passed that flow before, or the port may have been taken since.
    pub(super) fn is_there(&self) -> Result<bool, TableError> {
        Ok(self.sum.has_grown(self.sum()?))
    }

    fn sum(&self) -> Result<u64, TableError> {
        self.counters.iter().map(Counter::read).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_counted_since_the_walk_began_calls_for_another() {
        let mut sum = Sum::default();
        assert!(sum.has_grown(7), "by the programs before the daemon's first walk");
        sum.begin(7);
        assert!(!sum.has_grown(7));
        assert!(sum.has_grown(8), "during the walk");
        sum.begin(8);
        assert!(!sum.has_grown(8));
    }
}
