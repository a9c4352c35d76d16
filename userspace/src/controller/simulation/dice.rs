use std::time::Duration;

/// A pseudo-random sequence (SplitMix64).
#[derive(Debug)]
pub(super) struct Dice(pub(super) u64);

impl Dice {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn between(&mut self, least: Duration, most: Duration) -> Duration {
        let span = u64::try_from((most - least).as_micros()).unwrap();
        least + Duration::from_micros(self.next() % (span + 1))
    }
}
