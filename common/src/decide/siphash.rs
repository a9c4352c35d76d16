//! SipHash-2-4 (Aumasson, Bernstein 2012) over whole words.

use core::hint::black_box;

use crate::maps::settings::CookieKey;

/// The hash of the words so far, which are 64-bit little-endian numbers.
#[derive(Clone, Copy)]
pub struct SipState {
    v0: u64,
    v1: u64,
    v2: u64,
    v3: u64,
}

impl SipState {
    /// The hash of no words.
    #[inline(always)]
    pub fn new(key: &CookieKey) -> Self {
        Self {
            v0: key.k0 ^ 0x736f_6d65_7073_6575,
            v1: key.k1 ^ 0x646f_7261_6e64_6f6d,
            v2: key.k0 ^ 0x6c79_6765_6e65_7261,
            v3: key.k1 ^ 0x7465_6462_7974_6573,
        }
    }

    #[inline(always)]
    fn round(&mut self) {
        self.v0 = self.v0.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(13) ^ self.v0;
        self.v0 = self.v0.rotate_left(32);
        self.v2 = self.v2.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(16) ^ self.v2;
        self.v0 = self.v0.wrapping_add(self.v3);
        self.v3 = self.v3.rotate_left(21) ^ self.v0;
        self.v2 = self.v2.wrapping_add(self.v1);
        self.v1 = self.v1.rotate_left(17) ^ self.v2;
        self.v2 = self.v2.rotate_left(32);
    }

    /// Adds a word.
    #[inline(always)]
    pub fn word(&mut self, word: u64) {
        self.v3 ^= word;
        self.round();
        self.round();
        self.v0 ^= word;
    }

    /// Returns the hash of the words so far, `bytes` long in total. The state stays usable for more words.
    #[inline(always)]
    pub fn finish(&self, bytes: u64) -> u64 {
        let mut end = *self;
        end.word(bytes << 56);
        end.v2 ^= 0xff;
        // Not unrolled, for the programs' sake: see `cookie::tags`.
        let mut rounds = black_box(4u64);
        while rounds > 0 {
            end.round();
            rounds -= 1;
        }
        end.v0 ^ end.v1 ^ end.v2 ^ end.v3
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[test]
    fn the_hash_is_siphash_2_4() {
        let key = CookieKey { k0: 0x0706_0504_0302_0100, k1: 0x0f0e_0d0c_0b0a_0908 };
        let mut ours = SipState::new(&key);
        let mut theirs = siphasher::sip::SipHasher24::new_with_keys(key.k0, key.k1);
        // Beyond 256 bytes, of which the hash knows the lowest byte of the length.
        for count in 1..=40 {
            for word in [0u64, count, u64::MAX / count, 0x0123_4567_89ab_cdef] {
                ours.word(word);
                theirs.write(&word.to_le_bytes());
            }
            assert_eq!(ours.finish(32 * count), theirs.finish(), "{count} times four words");
        }
    }
}
