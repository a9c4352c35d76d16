//! Long contents that are generated and verified without being stored.

use std::io::{self, Read, Write};

use ring::digest::{Context, SHA256};

const BLOCK: usize = 64 * 1024;

/// A stream of bytes generated from a seed (SplitMix64).
#[derive(Clone, Debug)]
pub struct Content {
    state: u64,
}

impl Content {
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// Fills a block. Only the last block may have a length that is not a multiple of eight.
    pub fn fill(&mut self, block: &mut [u8]) {
        for word in block.chunks_mut(8) {
            self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let bytes = common::decide::maglev::mix(self.state).to_le_bytes();
            word.copy_from_slice(&bytes[..word.len()]);
        }
    }
}

/// Sends `count` bytes of the seed's content.
pub fn send(to: &mut impl Write, count: u64, seed: u64) -> io::Result<()> {
    let mut content = Content::new(seed);
    let mut left = count;
    let mut block = vec![0; BLOCK];
    while left > 0 {
        let length = left.min(BLOCK as u64) as usize;
        content.fill(&mut block[..length]);
        to.write_all(&block[..length])?;
        left -= length as u64;
    }
    to.flush()
}

/// Returns the SHA-256 of the content that [`send`] sends, in hex.
pub fn hash(count: u64, seed: u64) -> String {
    let mut sink = Hasher(Context::new(&SHA256));
    // Writing to the hasher cannot fail.
    let _ = send(&mut sink, count, seed);
    sink.finish()
}

/// Reads exactly `count` bytes and returns their SHA-256 in hex.
pub fn receive(from: &mut impl Read, count: u64) -> io::Result<String> {
    let mut sink = Hasher(Context::new(&SHA256));
    let got = io::copy(&mut from.take(count), &mut sink)?;
    if got == count { Ok(sink.finish()) } else { Err(io::ErrorKind::UnexpectedEof.into()) }
}

/// Reads to the end; returns the number of bytes and their SHA-256 in hex.
pub fn receive_all(from: &mut impl Read) -> io::Result<(u64, String)> {
    let mut sink = Hasher(Context::new(&SHA256));
    let got = io::copy(from, &mut sink)?;
    Ok((got, sink.finish()))
}

struct Hasher(Context);

impl Hasher {
    fn finish(self) -> String {
        self.0.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

impl Write for Hasher {
    fn write(&mut self, block: &[u8]) -> io::Result<usize> {
        self.0.update(block);
        Ok(block.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ends_agree_on_the_content() {
        for count in [0, 1, 7, 8, BLOCK as u64, 3 * BLOCK as u64 + 13] {
            let mut sent = Vec::new();
            send(&mut sent, count, 5).unwrap();
            assert_eq!(receive(&mut &sent[..], count).unwrap(), hash(count, 5));
            assert_eq!(receive_all(&mut &sent[..]).unwrap(), (count, hash(count, 5)));
            assert!(receive(&mut &sent[..], count + 1).is_err());
        }
        assert_ne!(hash(100, 1), hash(100, 2));
    }
}
