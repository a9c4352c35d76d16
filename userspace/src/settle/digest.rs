//! The digest of what the maps hold of an object: a number that is the same on every node, whatever its
//! version of Rust. Parts are added up, so their order does not matter. A collision helps no attacker: the
//! digest is neither a secret nor a key.

use common::decide::maglev::mix;
use std::net::{IpAddr, SocketAddr};

/// A part of a digest that is still being computed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part(u64);

impl Part {
    /// Starts a part. `what` distinguishes parts of different sorts.
    pub(super) fn new(what: &str) -> Self {
        Self(0x243f_6a88_85a3_08d3).text(what)
    }

    /// Adds a text. Its end counts: `ab` + `c` is not `a` + `bc`.
    #[must_use]
    pub(super) fn text(self, text: &str) -> Self {
        let word = |bytes: &[u8]| {
            let mut word = [0; 8];
            word[..bytes.len()].copy_from_slice(bytes);
            u64::from_be_bytes(word)
        };
        text.as_bytes().chunks(8).fold(self.number(text.len() as u64), |part, bytes| part.number(word(bytes)))
    }

    /// Adds a number.
    #[must_use]
    pub(super) fn number(self, number: u64) -> Self {
        // The value so far is rotated, so that equal numbers in a row do not cancel each other.
        Self(mix(self.0.rotate_left(29) ^ number))
    }

    /// Adds an address and port.
    #[must_use]
    pub(super) fn at(self, at: SocketAddr) -> Self {
        let this = match at.ip() {
            IpAddr::V4(address) => self.number(4).number(u64::from(address.to_bits())),
            IpAddr::V6(address) => {
                let bits = address.to_bits();
                self.number(6).number((bits >> 64) as u64).number(bits as u64)
            }
        };
        this.number(u64::from(at.port()))
    }

    /// Returns the part as a number, to be added to others with wrapping.
    pub(super) fn done(self) -> u64 {
        mix(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_counts_and_so_does_its_place() {
        let new = || Part::new("x");
        let at = |text: &str| text.parse().unwrap();
        let parts = [
            new(),
            Part::new("y"),
            new().text(""),
            new().text("ab").text("c"),
            new().text("a").text("bc"),
            new().text("abc"),
            new().text("abc\0"),
            new().text("abcdefgh").text(""),
            new().text("abcdefghi"),
            new().number(1).number(1),
            new().number(5),
            new().number(0).number(0),
            new().at(at("192.0.2.1:443")),
            new().at(at("192.0.2.1:444")),
            new().at(at("192.0.2.2:443")),
            new().at(at("[::192.0.2.1]:443")),
        ];
        let mut digests: Vec<u64> = parts.into_iter().map(Part::done).collect();
        digests.sort_unstable();
        digests.dedup();
        assert_eq!(digests.len(), parts.len());
        // Changes only if the computation of digests changes: agents and controller of two versions would
        // never agree.
        assert_eq!(new().text("192.0.2.1").number(7).done(), 10_554_853_942_936_245_792);
    }
}
