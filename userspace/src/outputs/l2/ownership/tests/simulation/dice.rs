use std::time::Duration;

use common::decide::maglev::mix;

/// A pseudo-random sequence (SplitMix64).
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True in `parts` of a thousand cases.
    pub(super) fn happens(&mut self, parts: usize) -> bool {
        self.below(1000) < parts
    }

    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from((most - least).as_micros()).unwrap();
        least + Duration::from_micros(self.next() % (span + 1))
    }
}
