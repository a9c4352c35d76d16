//! Whether every flow that a RST put on trial was reported: the ring of reports has an end, and one host that dies may abort thousands of
//! connections within a second.

use common::reason::Reason;

use super::pin::Pins;
use super::read::Counter;
use super::table::TableError;

/// The reports that the programs counted as lost since the last walk over all flows began, which finds every flow on trial.
#[derive(Debug)]
pub(super) struct Reports {
    counter: Counter,
    lost: Lost,
}

/// A count of lost reports that only grows.
#[derive(Debug, Default)]
struct Lost {
    at_begin: u64,
}

impl Lost {
    fn begin(&mut self, lost: u64) {
        self.at_begin = lost;
    }

    fn has_grown(&self, lost: u64) -> bool {
        lost != self.at_begin
    }
}

impl Reports {
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        Ok(Self { counter: Counter::open(pins, Reason::ForwardUnreported)?, lost: Lost::default() })
    }

    /// Begins a walk.
    pub(super) fn begin(&mut self) -> Result<(), TableError> {
        self.lost.begin(self.counter.read()?);
        Ok(())
    }

    /// Whether a report was lost since the walk began: it may have passed that flow before.
    pub(super) fn are_lost(&self) -> Result<bool, TableError> {
        Ok(self.lost.has_grown(self.counter.read()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_reports_lost_since_the_walk_began_call_for_another() {
        let mut lost = Lost::default();
        assert!(lost.has_grown(7), "by the programs before the daemon's first walk");
        lost.begin(7);
        assert!(!lost.has_grown(7));
        assert!(lost.has_grown(8), "during the walk");
        lost.begin(8);
        assert!(!lost.has_grown(8));
    }
}
