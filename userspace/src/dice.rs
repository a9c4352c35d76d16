//! Chance in simulations, from a seed.

use common::decide::maglev::mix;
use std::time::Duration;

/// A pseudo-random sequence (SplitMix64), from this seed.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 if there is none.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    /// True in `parts` of a thousand cases.
    pub(crate) fn happens(&mut self, parts: usize) -> bool {
        self.below(1000) < parts
    }

    pub(crate) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from((most - least).as_micros()).unwrap();
        least + Duration::from_micros(self.next() % (span + 1))
    }
}
