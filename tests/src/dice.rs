//! Random numbers that a seed decides.

use common::decide::maglev::mix;

/// A stream of random numbers (SplitMix64).
#[derive(Clone, Debug)]
pub struct Dice(u64);

impl Dice {
    /// The stream with this number of a seed.
    pub const fn new(seed: u64, stream: u64) -> Self {
        Self(mix(seed ^ mix(stream.wrapping_add(1))))
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    /// A number below `bound`; 0 if there is none.
    pub fn below(&mut self, bound: u64) -> u64 {
        (self.number() >> 16) % bound.max(1)
    }

    /// A number of a closed range.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// The same, of things to count.
    pub fn count(&mut self, low: usize, high: usize) -> usize {
        self.between(low as u64, high as u64) as usize
    }

    /// An index below `end`.
    pub fn index(&mut self, end: usize) -> usize {
        self.below(end as u64) as usize
    }

    /// One of these, each as often.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.index(of.len())]
    }

    /// True in `percent` of the calls.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// True once in this many calls.
    pub fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    /// One of the choices, each as often as its weight is large.
    pub fn weighted<T: Copy>(&mut self, choices: &[(u64, T)]) -> T {
        let mut left = self.below(choices.iter().map(|(weight, _)| weight).sum());
        for (weight, choice) in choices {
            if left < *weight {
                return *choice;
            }
            left -= weight;
        }
        choices[choices.len() - 1].1
    }

    /// A distance of either sign whose magnitude has `bits.start` to `bits.end - 1` bits, each as likely.
    pub fn distance(&mut self, bits: std::ops::Range<u64>) -> u32 {
        let bits = bits.start + self.below(bits.end - bits.start);
        let distance = (1 << (bits - 1) | self.number() & ((1 << (bits - 1)) - 1)) as u32;
        if self.one_in(2) { distance } else { distance.wrapping_neg() }
    }

    /// A size: all magnitudes up to `most` are equally likely.
    pub fn size(&mut self, most: u64) -> u64 {
        let bits = self.below(u64::from(65 - most.leading_zeros()));
        self.below(1 << bits).min(most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_seed_decides_and_every_choice_is_met() {
        let of = |seed| {
            let mut dice = Dice::new(seed, 3);
            (0..50).map(|_| dice.weighted(&[(1, 'a'), (2, 'b'), (0, 'c'), (1, 'd')])).collect::<String>()
        };
        assert_eq!(of(7), of(7));
        assert_ne!(of(7), of(8));
        assert!(['a', 'b', 'd'].iter().all(|c| of(7).contains(*c)) && !of(7).contains('c'));
        let mut dice = Dice::new(1, 1);
        let width = |distance: u32| 32 - (distance as i32).unsigned_abs().leading_zeros();
        assert!((0..1000).all(|_| (3..5).contains(&width(dice.distance(3..5)))));
        assert!((0..1000).all(|_| dice.size(5000) <= 5000 && (3..=5).contains(&dice.between(3, 5))));
    }
}
