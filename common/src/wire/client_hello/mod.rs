//! TLS ClientHello over any number of segments and records (RFC 8446 section 4.1.2, RFC 6066 section 3).
//!
//! A push parser: it consumes all bytes that are available, keeps partial fields in [`Parser`], and never
//! reads a consumed byte again. The same code runs in the kernel, in `vestibule explain`, in tests and in
//! fuzzers. It fails closed: a name is accepted only at the end of the record that the hello ends in, and only
//! if every length fits. `decide::server_name` checks the name.
//!
//! The work is divided into steps of bounded cost, so that the kernel can run it with `bpf_loop`. Each step
//! consumes at least one byte or is the last one.
//!
//! The verifier accepts a caller of this form (the context of `bpf_loop` must be on the stack; a global
//! function is verified once for all its callers):
//!
//! ```text
//! #[repr(C)]
//! struct Walk { parser: *mut Parser, window: *const Window, end: u32, reserved: u32 }
//!
//! unsafe extern "C" fn step(_: u32, context: *mut c_void) -> i64 {
//!     let walk = unsafe { &*(context as *const Walk) };
//!     let parser = unsafe { &mut *walk.parser };
//!     parser.step(unsafe { &*walk.window }, walk.end) as i64
//! }
//!
//! #[inline(never)]
//! #[unsafe(no_mangle)]
//! pub extern "C" fn parse_hello(parser: *mut Parser, window: *const Window, end: u32) -> u32 {
//!     if parser.is_null() || window.is_null() {
//!         return Outcome::Malformed as u32;
//!     }
//!     let mut walk = Walk { parser, window, end, reserved: 0 };
//!     unsafe { bpf_loop(STEPS_MAX, step as *mut c_void, &raw mut walk as *mut c_void, 0) };
//!     unsafe { (*parser).outcome() as u32 }
//! }
//! ```
//!
//! The caller copies a segment to `window.bytes[have..]`; `end` is then `have` + the segment's length.
//! A `Parser` is initialised in its final memory, because a copy by value does not fit on the stack.

use crate::decide::server_name::{Scan, Verdict};
use crate::maps::map_struct;

/// The record layer: headers.
mod record;
/// The handshake message: fields and what they enclose.
mod message;

/// The most bytes of a ClientHello without record headers. The four bytes of its own header count: such a message
/// fills the largest record (RFC 8446 section 5.1).
pub const MESSAGE_BYTES_MAX: u32 = 1 << 14;

/// The record in which a ClientHello ends must end within this number of bytes of the stream, including record
/// headers.
pub const STREAM_BYTES_MAX: u32 = 18_432;

/// The size of [`Window`]: the stream, and room for half of it behind any position.
pub const WINDOW_BYTES: usize = STREAM_BYTES_MAX as usize * 3 / 2;

/// The most steps that a stream takes: each consumes at least one byte, except possibly the last one.
pub const STEPS_MAX: u32 = STREAM_BYTES_MAX + 1;

/// Access to the bytes of a stream by their position.
pub trait Stream {
    /// Returns the byte at `position`, which is below [`STREAM_BYTES_MAX`]; any value if there is no byte.
    fn at(&self, position: u32) -> u8;

    /// Returns the four bytes from `position` on, read in network byte order.
    #[inline(always)]
    fn word(&self, position: u32) -> u32 {
        u32::from_be_bytes([
            self.at(position),
            self.at(position.wrapping_add(1)),
            self.at(position.wrapping_add(2)),
            self.at(position.wrapping_add(3)),
        ])
    }
}

/// The stream as the kernel stores it, with every byte at its absolute position. Consumed bytes are not read
/// again.
#[repr(C)]
pub struct Window {
    pub bytes: [u8; WINDOW_BYTES],
}

impl Stream for Window {
    // The verifier must see the bound of each access: `black_box` keeps LLVM from leaving out a check that an earlier
    // one makes superfluous.
    #[inline(always)]
    fn at(&self, position: u32) -> u8 {
        let at = core::hint::black_box(position) as usize;
        self.bytes.get(at).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn word(&self, position: u32) -> u32 {
        let at = core::hint::black_box(position) as usize;
        if at > WINDOW_BYTES - 4 {
            return 0;
        }
        u32::from_be_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

impl Stream for [u8] {
    fn at(&self, position: u32) -> u8 {
        self.get(position as usize).copied().unwrap_or(0)
    }
}

/// The result of parsing the bytes so far.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The hello is not complete, or the record in which it ends is not.
    NeedMore = 0,
    /// Complete; the name is in [`Parser::name`].
    Name = 1,
    /// Complete, without a server name, or with an IP literal instead of one.
    NoName = 2,
    /// The first record is not a TLS handshake record.
    NotTls = 3,
    /// Not a ClientHello, or an invalid one.
    Malformed = 4,
    /// The message is longer than [`MESSAGE_BYTES_MAX`], or its records do not end within [`STREAM_BYTES_MAX`].
    TooLong = 5,
    /// Complete, but its server name is not a DNS name.
    NameInvalid = 6,
}

/// [`Parser::flags`]: the server_name extension was seen.
const SEEN_SERVER_NAME: u8 = 1;
/// [`Parser::flags`]: a host name in that extension was seen.
const SEEN_HOST_NAME: u8 = 2;
/// [`Parser::flags`]: bytes follow the extensions inside the message.
const TRAILING_BYTES: u8 = 4;

map_struct! {
    /// The state of the parser. All zero is the start of a stream.
    pub struct Parser = 288 {
        /// The server name: lower case, no trailing dot, followed by zeros. Valid with [`Outcome::Name`].
        pub name: [u8; 256],
        /// Bytes of the stream consumed.
        pub position: u32,
        /// The bytes read so far of a field that is split by the end of a record or of the available data.
        pub value: u32,
        /// Bytes to skip.
        pub skip: u16,
        /// Bytes of the record not yet consumed.
        pub record: u16,
        /// Bytes of the message that no field has claimed yet.
        pub message: u16,
        /// Bytes of the server_name list that no entry has claimed yet.
        pub list: u16,
        /// State of the name's check.
        pub scan: Scan,
        /// The field read next.
        pub field: u8,
        /// Bytes in `value`.
        pub value_bytes: u8,
        /// Number of bytes read so far of a record header that is split by the end of the available data.
        pub header_bytes: u8,
        /// Upper byte of the record length in that header.
        pub header_length: u8,
        /// Bytes of the name not yet read.
        pub name_left: u8,
        /// What was seen so far, as bits.
        pub flags: u8,
        /// An [`Outcome`].
        pub outcome: u8,
        /// Bytes of `name` in use, 1 to 253. Valid with [`Outcome::Name`], else 0.
        pub name_length: u8,
        /// Zero.
        pub reserved: [u8; 3],
    }
}

impl Parser {
    /// Resets the parser to the start of a stream.
    #[inline(always)]
    pub fn begin(&mut self) {
        *self = Self::zeroed();
    }

    /// Returns the result of parsing the bytes so far.
    #[inline(always)]
    pub fn outcome(&self) -> Outcome {
        match self.outcome {
            0 => Outcome::NeedMore,
            1 => Outcome::Name,
            2 => Outcome::NoName,
            3 => Outcome::NotTls,
            5 => Outcome::TooLong,
            6 => Outcome::NameInvalid,
            _ => Outcome::Malformed,
        }
    }

    /// Runs one step on a stream of which `end` bytes are available. `true` = stop: decided, or all bytes are
    /// consumed.
    #[inline(always)]
    pub fn step<S: Stream + ?Sized>(&mut self, stream: &S, end: u32) -> bool {
        if self.outcome != 0 {
            return true;
        }
        let end = if end < STREAM_BYTES_MAX { end } else { STREAM_BYTES_MAX };
        self.pass_over(end.saturating_sub(self.position));
        if self.skip == 0 && self.name_left == 0 && self.settle(end) {
            return true;
        }
        let left = end.saturating_sub(self.position);
        if left == 0 {
            if end == STREAM_BYTES_MAX {
                self.decide(Outcome::TooLong);
            }
            return true;
        }
        if self.record == 0 {
            return self.read_header(stream, left);
        }
        if self.name_left != 0 {
            self.read_name(stream, left);
            return false;
        }
        self.read_field(stream, left)
    }

    /// Runs steps on a stream of which `end` bytes are available, until they are consumed or the outcome is
    /// decided. User space only: the kernel loops with `bpf_loop`.
    pub fn run<S: Stream + ?Sized>(&mut self, stream: &S, end: u32) -> Outcome {
        let mut steps = 0;
        while !self.step(stream, end) {
            steps += 1;
            if steps == STEPS_MAX {
                self.decide(Outcome::Malformed);
            }
        }
        self.outcome()
    }

    /// Consumes bytes to skip, limited by the record and the available data.
    #[inline(always)]
    fn pass_over(&mut self, left: u32) {
        let mut count = self.skip;
        count = if count < self.record { count } else { self.record };
        count = if (count as u32) < left { count } else { left as u16 };
        self.skip = self.skip.wrapping_sub(count);
        self.consume(count);
    }

    /// Counts bytes of the record as consumed.
    #[inline(always)]
    fn consume(&mut self, count: u16) {
        self.record = self.record.wrapping_sub(count);
        self.position = self.position.wrapping_add(count as u32);
    }

    /// Stores the outcome. Returns `true`, which means stop.
    #[inline(always)]
    fn decide(&mut self, outcome: Outcome) -> bool {
        self.outcome = outcome as u8;
        true
    }

    /// Passes over what follows the message in its record, then decides. The record is complete before the hello is,
    /// and passes to the backend as a whole (RFC 8446 section 5.1). `true` = decided.
    #[inline(always)]
    fn finish(&mut self, end: u32) -> bool {
        self.skip = self.record;
        self.pass_over(end.saturating_sub(self.position));
        self.skip == 0 && self.conclude()
    }

    /// Decides the outcome after the message ended where it should. Returns `true`.
    #[inline(always)]
    fn conclude(&mut self) -> bool {
        if self.flags & TRAILING_BYTES != 0 {
            return self.decide(Outcome::Malformed);
        }
        if self.flags & SEEN_HOST_NAME == 0 {
            return self.decide(Outcome::NoName);
        }
        match self.scan.verdict() {
            Verdict::Address => self.decide(Outcome::NoName),
            Verdict::Invalid => self.decide(Outcome::NameInvalid),
            Verdict::Name => {
                let length = self.scan.name_length();
                // Clears the trailing dot. Without one, this byte is already zero.
                self.name[length as usize] = 0;
                self.name_length = length;
                self.decide(Outcome::Name)
            }
        }
    }
}

/// Parses the start of a stream in one call.
pub fn parse(bytes: &[u8]) -> (Outcome, Parser) {
    let mut parser = Parser::zeroed();
    let end = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    (parser.run(bytes, end), parser)
}

#[cfg(test)]
mod builder;
#[cfg(test)]
mod limits;
#[cfg(test)]
mod tests;
