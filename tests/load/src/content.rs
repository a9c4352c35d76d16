//! The bytes on the wire, made so that each can be checked: hellos, answers, requests, streams.

use serde::{Deserialize, Serialize};

/// Bytes of a server's answer to a hello, of a request and of a response.
pub const MESSAGE: usize = 64;
/// First byte of a request.
pub const ASK: u8 = b'R';
/// First byte of a request for data, which the server sends until the client sends again.
pub const DOWN: u8 = b'D';
/// First byte before data that the client sends until it closes its direction.
pub const UP: u8 = b'U';

/// Digits of a tenant's number in its name.
const DIGITS: usize = 7;

/// A tenant's host name; all have the same length.
pub fn host_name(tenant: u32) -> String {
    format!("t{tenant:0DIGITS$}.bench.example.com")
}

/// A hello whose name can be changed in place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    bytes: Vec<u8>,
    digits_at: usize,
}

impl Template {
    /// Makes a template from the hello for tenant 0; `None` if that does not contain its name.
    pub fn new(bytes: Vec<u8>) -> Option<Self> {
        let name = host_name(0);
        let name_at = bytes.windows(name.len()).position(|window| window == name.as_bytes())?;
        Some(Self { bytes, digits_at: name_at + 1 })
    }

    /// Returns the hello for a tenant.
    pub fn of(&mut self, tenant: u32) -> &[u8] {
        let mut left = tenant;
        for digit in self.bytes[self.digits_at..self.digits_at + DIGITS].iter_mut().rev() {
            *digit = b'0' + (left % 10) as u8;
            left /= 10;
        }
        &self.bytes
    }
}

/// Length of the first record with its header; `None` until the header is complete.
pub fn hello_length(bytes: &[u8]) -> Option<usize> {
    let &[high, low] = bytes.get(3..)?.first_chunk()?;
    Some(5 + usize::from(u16::from_be_bytes([high, low])))
}

/// A hash of all bytes; different for any two of our hellos.
pub fn digest(bytes: &[u8]) -> u64 {
    let mut state = bytes.len() as u64;
    let (words, rest) = bytes.as_chunks();
    for word in words {
        state = (state ^ u64::from_le_bytes(*word)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    for byte in rest {
        state = (state ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    state
}

/// The server's answer to a hello: a TLS record that names the server and proves every byte of the hello.
pub fn answer(server: u32, hello: u64) -> [u8; MESSAGE] {
    let mut message = [0x5c; MESSAGE];
    message[..5].copy_from_slice(&[22, 3, 3, 0, MESSAGE as u8 - 5]);
    message[5..9].copy_from_slice(&server.to_be_bytes());
    message[9..17].copy_from_slice(&hello.to_be_bytes());
    message
}

/// The server that sent an answer.
pub fn server_of(answer: &[u8; MESSAGE]) -> u32 {
    u32::from_be_bytes([answer[5], answer[6], answer[7], answer[8]])
}

/// Request number `count` of a connection.
pub fn request(count: u64) -> [u8; MESSAGE] {
    let mut message = [ASK; MESSAGE];
    message[1..9].copy_from_slice(&count.to_be_bytes());
    message
}

/// The response of a server to a request.
pub fn response(server: u32, request: &[u8; MESSAGE]) -> [u8; MESSAGE] {
    let mut message = *request;
    message[0] = b'A';
    message[9..13].copy_from_slice(&server.to_be_bytes());
    message
}

/// Bytes per write or read of a stream.
pub const PIECE: usize = 64 * 1024;
/// Not a multiple of any usual block size, so that a block at the wrong offset is noticed.
const PERIOD: usize = 262_144 - 13;

/// The content of streams: a long pattern that each connection starts at its own offset.
#[derive(Debug)]
pub struct Pattern {
    bytes: Vec<u8>,
}

impl Default for Pattern {
    fn default() -> Self {
        Self::new()
    }
}

impl Pattern {
    /// Makes the pattern.
    pub fn new() -> Self {
        // xorshift64 (Marsaglia 2003).
        let mut state = 97_u64;
        let mut bytes: Vec<u8> = (0..PERIOD)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        // Repeats the start, so that every piece is contiguous.
        bytes.extend_from_within(..PIECE);
        Self { bytes }
    }

    /// Returns the stream of `seed` from a position on: at least [`PIECE`] bytes.
    pub fn from(&self, seed: u32, position: u64) -> &[u8] {
        let at = (u64::from(seed) * 7919 + position) % PERIOD as u64;
        &self.bytes[at as usize..]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Template {
        let rest = [0x5a; 40];
        let bytes = [&[22, 3, 1, 0, 85], host_name(0).as_bytes(), &rest[..]].concat();
        Template::new(bytes).unwrap()
    }

    #[test]
    fn a_template_names_its_tenant() {
        for tenant in [0, 7, 1_234_567] {
            let mut template = template();
            assert_eq!(&template.of(tenant)[5..5 + host_name(0).len()], host_name(tenant).as_bytes());
        }
        assert_eq!(hello_length(template().of(0)), Some(90));
        assert_eq!(Template::new(vec![0; 600]), None);
    }

    #[test]
    fn a_digest_depends_on_every_byte() {
        let bytes = template().of(5).to_vec();
        let whole = digest(&bytes);
        for at in 0..bytes.len() {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(digest(&other), whole, "byte {at}");
        }
        assert_ne!(digest(&bytes[..bytes.len() - 1]), whole);
    }

    #[test]
    fn a_stream_goes_on_where_the_piece_before_ended() {
        let pattern = Pattern::new();
        let mut position = 0;
        let first = pattern.from(3, 0)[..100].to_vec();
        for step in [1, 100, PIECE, 7919, PIECE, PIECE, PIECE] {
            let (long, next) = (pattern.from(3, position), pattern.from(3, position + step as u64));
            assert!(long.len() >= PIECE);
            let both = (long.len() - step.min(long.len())).min(next.len());
            assert_eq!(long[step.min(long.len())..][..both], next[..both]);
            position += step as u64;
        }
        assert_ne!(pattern.from(4, 0)[..100], first[..]);
        assert_eq!(pattern.from(3, PERIOD as u64)[..100], first[..]);
    }
}
