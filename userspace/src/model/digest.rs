//! Digests of names: numbers that are the same on every node, whatever its version of Rust. A collision helps no attacker: a digest
//! is neither a secret nor a key.

use common::decide::maglev::mix;

/// Returns the digest of texts. The end of each counts: `ab` and `c` are not `a` and `bc`.
pub fn of(texts: &[&str]) -> u64 {
    let word = |bytes: &[u8]| {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        u64::from_be_bytes(word)
    };
    // The value so far is rotated, so that equal numbers in a row do not cancel each other.
    let add = |digest: u64, number: u64| mix(digest.rotate_left(29) ^ number);
    let digest = texts.iter().fold(0x243f_6a88_85a3_08d3, |digest, text| {
        text.as_bytes()
            .chunks(8)
            .fold(add(digest, text.len() as u64), |digest, bytes| add(digest, word(bytes)))
    });
    mix(digest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_counts_and_so_does_its_place() {
        let texts: [&[&str]; 9] = [
            &["x"],
            &["y"],
            &["x", ""],
            &["x", "ab", "c"],
            &["x", "a", "bc"],
            &["x", "abc"],
            &["x", "abc\0"],
            &["x", "abcdefgh", ""],
            &["x", "abcdefghi"],
        ];
        let mut digests: Vec<u64> = texts.iter().map(|texts| of(texts)).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), texts.len());
        // Changes only if the computation changes: Claims and long labels would all get new names.
        assert_eq!(of(&["x", "192.0.2.1"]), 13_997_591_054_515_398_923);
    }
}
