//! Whether every flow that a RST put on trial was reported: the ring of reports has an end, and one host that dies may abort thousands of
//! connections within a second.

use common::reason::Reason;

use super::pin::Pins;
use super::read::Counter;
use super::table::TableError;

/// What was counted and received since the last walk over all flows, which finds every flow on trial.
#[derive(Debug)]
pub(super) struct Reports {
    counter: Counter,
    /// The RSTs on trial when the walk began.
    counted: u64,
    received: u64,
}

impl Reports {
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        Ok(Self { counter: Counter::open(pins, Reason::ForwardTrial)?, counted: 0, received: 0 })
    }

    /// Begins a walk.
    pub(super) fn begin(&mut self) -> Result<(), TableError> {
        (self.counted, self.received) = (self.counter.read()?, 0);
        Ok(())
    }

    /// Notes a report.
    pub(super) fn received(&mut self) {
        self.received += 1;
    }

    /// Whether more RSTs were put on trial than were reported. So it is, too, where one was repeated, and until the last report is here.
    pub(super) fn are_lost(&self) -> Result<bool, TableError> {
        Ok(self.counter.read()?.saturating_sub(self.counted) > self.received)
    }
}
