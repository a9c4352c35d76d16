//! Pseudo-random numbers derived from a seed.

use common::decide::maglev::mix;

/// A generator (SplitMix64, Steele et al. 2014).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) const fn new(seed: u64) -> Self {
        Self(mix(seed))
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// Returns a number from 0 to `end` - 1.
    pub(super) fn below(&mut self, end: usize) -> usize {
        (self.number() % end as u64) as usize
    }

    /// Returns a number from `least` to `most`.
    pub(super) fn within(&mut self, least: usize, most: usize) -> usize {
        least + self.below(most - least + 1)
    }

    /// Returns true once in this many times.
    pub(super) fn once_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub(super) fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}
