//! TLS ClientHello over any number of segments and records (RFC 8446 section 4.1.2, RFC 6066 section 3).
//!
//! A push parser: it consumes every byte it is offered, keeps partial fields in [`Parser`], and never looks back. The
//! same code runs in the kernel, in `vestibule explain`, in tests and in fuzzers. It fails closed: the whole hello is
//! walked, every length must fit, and only then the name counts. Names are judged by `decide::server_name`.
//!
//! Work is cut in steps of bounded cost, so that the kernel can run it by `bpf_loop`: each step consumes at least one
//! byte or is the last.

use crate::decide::server_name::{SCAN_BYTES_MAX, Scan, Verdict};
use crate::maps::map_struct;

/// Most bytes of a stream, record headers included, in which a ClientHello must end.
pub const STREAM_BYTES_MAX: u32 = 16384;

/// Bytes of [`Window`]: the stream and room for what a copy of fixed size writes behind its end.
pub const WINDOW_BYTES: usize = 25600;

/// Steps that any stream is done in: each consumes a byte, and the last one may consume none.
pub const STEPS_MAX: u32 = STREAM_BYTES_MAX + 1;

/// Bytes of a stream at their place in it.
pub trait Stream {
    /// The byte at `position`, which is below [`STREAM_BYTES_MAX`]; any value where no byte is.
    fn at(&self, position: u32) -> u8;

    /// Four bytes from `position` on, network byte order.
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

/// The stream as the kernel keeps it, every byte at its absolute position. Only bytes not yet consumed matter.
#[repr(C)]
pub struct Window {
    pub bytes: [u8; WINDOW_BYTES],
}

impl Stream for Window {
    // The mask is what the verifier and LLVM see as the bound.
    #[inline(always)]
    fn at(&self, position: u32) -> u8 {
        self.bytes[(position & 0x3fff) as usize]
    }

    #[inline(always)]
    fn word(&self, position: u32) -> u32 {
        let at = (position & 0x3fff) as usize;
        u32::from_be_bytes([self.bytes[at], self.bytes[at + 1], self.bytes[at + 2], self.bytes[at + 3]])
    }
}

impl Stream for [u8] {
    fn at(&self, position: u32) -> u8 {
        self.get(position as usize).copied().unwrap_or(0)
    }
}

/// What the bytes so far amount to.
#[repr(u32)]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// The hello is not complete.
    NeedMore = 0,
    /// Complete; [`Parser::name`] holds the name.
    Name = 1,
    /// Complete, without a server name or with an IP literal in its place.
    NoName = 2,
    /// The first record is not a TLS handshake record.
    NotTls = 3,
    /// Not a ClientHello, or one that breaks the rules.
    Malformed = 4,
    /// It cannot end within [`STREAM_BYTES_MAX`].
    TooLong = 5,
    /// Complete, but its server name is not a DNS name.
    NameInvalid = 6,
}

/// Content type of handshake records (RFC 8446 section 5.1).
const RECORD_HANDSHAKE: u8 = 22;
/// Most bytes of a plaintext record (RFC 8446 section 5.1).
const RECORD_BYTES_MAX: u32 = 1 << 14;
/// Bytes of a record's header.
const RECORD_HEADER: u32 = 5;
/// Major version of every TLS record, whatever the minor (RFC 5246 appendix E.1).
const RECORD_MAJOR: u8 = 3;
/// Handshake message type (RFC 8446 section 4).
const CLIENT_HELLO: u32 = 1;
/// Bytes of legacy_version and random.
const VERSION_AND_RANDOM: u32 = 2 + 32;
/// Most bytes of legacy_session_id.
const SESSION_ID_MAX: u32 = 32;
/// Extension type (RFC 6066 section 3).
const SERVER_NAME: u32 = 0;
/// NameType (RFC 6066 section 3).
const HOST_NAME: u32 = 0;

// `Parser::field`, in the order of the message.
/// Handshake type and length, 4 bytes.
const MESSAGE: u8 = 0;
/// Length of legacy_session_id, 1 byte.
const SESSION_ID: u8 = 1;
/// Length of cipher_suites, 2 bytes.
const CIPHER_SUITES: u8 = 2;
// 3 is the length of legacy_compression_methods, 1 byte.
/// Length of the extensions, 2 bytes.
const EXTENSIONS: u8 = 4;
/// Type and length of an extension, 4 bytes.
const EXTENSION: u8 = 5;
/// Length of the server_name list, 2 bytes.
const NAME_LIST: u8 = 6;
/// Type and length of an entry of that list, 3 bytes.
const NAME_ENTRY: u8 = 7;

/// Bytes of each field: four bits a field, the first one lowest.
const FIELD_BYTES: u32 = 0x3242_1214;

/// [`Parser::flags`]: the server_name extension was seen.
const SEEN_SERVER_NAME: u8 = 1;
/// [`Parser::flags`]: its host name was seen.
const SEEN_HOST_NAME: u8 = 2;
/// [`Parser::flags`]: the host name is longer than any name.
const NAME_TOO_LONG: u8 = 4;
/// [`Parser::flags`]: bytes follow the extensions inside the message.
const TRAILING_BYTES: u8 = 8;

map_struct! {
    /// Where the parser stands. All zero is the beginning of a stream.
    pub struct Parser = 288 {
        /// The server name, lower case, without trailing dot, zero behind it. Valid with [`Outcome::Name`].
        pub name: [u8; 256],
        /// Bytes of the stream consumed.
        pub position: u32,
        /// The bytes read of a field that is cut by the end of a record or of the data.
        pub value: u32,
        /// Bytes to pass over.
        pub skip: u16,
        /// Bytes of the record not yet consumed.
        pub record: u16,
        /// Bytes of the message that no field has claimed yet.
        pub message: u16,
        /// Bytes of the server_name list that no entry has claimed yet.
        pub list: u16,
        /// Judgement of the name so far.
        pub scan: Scan,
        /// The field read next.
        pub field: u8,
        /// Bytes in `value`.
        pub value_bytes: u8,
        /// Bytes read of a record header that is cut by the end of the data.
        pub header_bytes: u8,
        /// Upper byte of the record length in such a header.
        pub header_length: u8,
        /// Bytes of the name to come.
        pub name_left: u8,
        /// What was seen.
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
    /// Begins a stream.
    #[inline(always)]
    pub fn begin(&mut self) {
        *self = Self::zeroed();
    }

    /// What the bytes so far amount to.
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

    /// Goes one step on in a stream of which `end` bytes are there. `true` = stop: decided, or all is consumed.
    #[inline(always)]
    pub fn step<S: Stream + ?Sized>(&mut self, stream: &S, end: u32) -> bool {
        if self.outcome != 0 {
            return true;
        }
        let end = if end < STREAM_BYTES_MAX { end } else { STREAM_BYTES_MAX };
        self.pass_over(end.saturating_sub(self.position));
        if self.skip == 0 && self.name_left == 0 && self.settle() {
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
            self.read_name_byte(stream.at(self.position));
            return false;
        }
        self.read_field(stream, left)
    }

    /// Takes steps until `stream`, of which `end` bytes are there, is consumed or decided. User space only: the
    /// kernel loops with `bpf_loop`.
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

    /// Consumes what is to be passed over, as far as record and data reach.
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

    /// Stores the outcome. Always `true`: stop.
    #[inline(always)]
    fn decide(&mut self, outcome: Outcome) -> bool {
        self.outcome = outcome as u8;
        true
    }

    /// Before a field is read: is the message at its end, is there room for the field in what encloses it? `true` =
    /// decided.
    #[inline(always)]
    fn settle(&mut self) -> bool {
        let field = self.field;
        if field == MESSAGE {
            return false;
        }
        let in_list = field >= NAME_LIST;
        let room = if in_list { self.list } else { self.message };
        // A hello of TLS 1.2 may end before the extensions' length (RFC 5246 section 7.4.1.2).
        if room == 0 && (field == EXTENSIONS || field == EXTENSION) {
            return self.conclude();
        }
        (room as u32) < field_bytes(field) && self.decide(Outcome::Malformed)
    }

    /// The message ended where it should: judges what was found.
    #[inline(always)]
    fn conclude(&mut self) -> bool {
        if self.flags & TRAILING_BYTES != 0 {
            return self.decide(Outcome::Malformed);
        }
        if self.flags & SEEN_HOST_NAME == 0 {
            return self.decide(Outcome::NoName);
        }
        if self.flags & NAME_TOO_LONG != 0 {
            return self.decide(Outcome::NameInvalid);
        }
        match self.scan.verdict() {
            Verdict::Address => self.decide(Outcome::NoName),
            Verdict::Invalid => self.decide(Outcome::NameInvalid),
            Verdict::Name => {
                let length = self.scan.name_length();
                // The trailing dot, or a byte behind the name that is zero anyway.
                self.name[length as usize] = 0;
                self.name_length = length;
                self.decide(Outcome::Name)
            }
        }
    }

    /// Reads a record header: all of it, or one byte of it.
    #[inline(always)]
    fn read_header<S: Stream + ?Sized>(&mut self, stream: &S, left: u32) -> bool {
        // Only the very first byte tells whether the client speaks TLS at all.
        let refusal = if self.position < RECORD_HEADER { Outcome::NotTls } else { Outcome::Malformed };
        let byte = stream.at(self.position);
        let read = self.header_bytes;
        if read == 0 && left >= RECORD_HEADER {
            let rest = stream.word(self.position.wrapping_add(1));
            if byte != RECORD_HANDSHAKE || (rest >> 24) as u8 != RECORD_MAJOR {
                return self.decide(refusal);
            }
            self.position = self.position.wrapping_add(RECORD_HEADER);
            return self.begin_record(rest & 0xffff);
        }
        if read == 0 && byte != RECORD_HANDSHAKE || read == 1 && byte != RECORD_MAJOR {
            return self.decide(refusal);
        }
        self.position = self.position.wrapping_add(1);
        self.header_bytes = read.wrapping_add(1);
        if read == 3 {
            self.header_length = byte;
        }
        if read >= 4 {
            self.header_bytes = 0;
            return self.begin_record((self.header_length as u32) << 8 | byte as u32);
        }
        false
    }

    /// Begins a record of `length` bytes.
    #[inline(always)]
    fn begin_record(&mut self, length: u32) -> bool {
        self.record = length as u16;
        // Empty handshake records are forbidden (RFC 8446 section 5.1).
        (length == 0 || length > RECORD_BYTES_MAX) && self.decide(Outcome::Malformed)
    }

    /// Takes a byte of the name.
    #[inline(always)]
    fn read_name_byte(&mut self, byte: u8) {
        let at = self.scan.length as usize;
        self.name[at] = self.scan.push(byte);
        self.name_left = self.name_left.wrapping_sub(1);
        self.consume(1);
    }

    /// Reads a field: all of it, or one byte of it.
    #[inline(always)]
    fn read_field<S: Stream + ?Sized>(&mut self, stream: &S, left: u32) -> bool {
        let field = self.field;
        let bytes = field_bytes(field);
        if self.value_bytes == 0 && left >= bytes && self.record as u32 >= bytes {
            let value = stream.word(self.position) >> ((32 - 8 * bytes) & 31);
            self.consume(bytes as u16);
            return self.take(field, bytes, value);
        }
        let value = self.value << 8 | stream.at(self.position) as u32;
        self.consume(1);
        self.value = value;
        self.value_bytes = self.value_bytes.wrapping_add(1);
        if (self.value_bytes as u32) < bytes {
            return false;
        }
        self.value = 0;
        self.value_bytes = 0;
        self.take(field, bytes, value)
    }

    /// Acts on a field that was read. [`Self::settle`] has made sure that it fits in what encloses it.
    #[inline(always)]
    fn take(&mut self, field: u8, bytes: u32, value: u32) -> bool {
        match field {
            MESSAGE => self.take_message(value),
            EXTENSIONS => self.take_extensions(value),
            EXTENSION => self.take_extension(value),
            NAME_LIST => self.take_list(value),
            NAME_ENTRY => self.take_entry(value),
            _ => self.take_vector(field, bytes, value),
        }
    }

    /// Handshake type and length.
    #[inline(always)]
    fn take_message(&mut self, value: u32) -> bool {
        let length = value & 0x00ff_ffff;
        if value >> 24 != CLIENT_HELLO {
            return self.decide(Outcome::Malformed);
        }
        if self.position.wrapping_add(length) > STREAM_BYTES_MAX {
            return self.decide(Outcome::TooLong);
        }
        if length < VERSION_AND_RANDOM {
            return self.decide(Outcome::Malformed);
        }
        self.message = (length - VERSION_AND_RANDOM) as u16;
        self.skip = VERSION_AND_RANDOM as u16;
        self.field = SESSION_ID;
        false
    }

    /// Length of a vector whose content does not matter.
    #[inline(always)]
    fn take_vector(&mut self, field: u8, bytes: u32, length: u32) -> bool {
        let rest = (self.message as u32).wrapping_sub(bytes);
        let bad = length > rest
            || field == SESSION_ID && length > SESSION_ID_MAX
            || field != SESSION_ID && length == 0
            || field == CIPHER_SUITES && length & 1 != 0;
        self.message = rest.wrapping_sub(length) as u16;
        self.skip = length as u16;
        self.field = field.wrapping_add(1);
        bad && self.decide(Outcome::Malformed)
    }

    /// Length of the extensions block.
    #[inline(always)]
    fn take_extensions(&mut self, length: u32) -> bool {
        let rest = (self.message as u32).wrapping_sub(2);
        self.message = rest as u16;
        self.field = EXTENSION;
        if length < rest {
            // Broken for certain, but only the end of the message shows that nothing else is meant.
            self.flags |= TRAILING_BYTES;
            self.skip = rest as u16;
            self.message = 0;
        }
        length > rest && self.decide(Outcome::Malformed)
    }

    /// Type and length of an extension.
    #[inline(always)]
    fn take_extension(&mut self, value: u32) -> bool {
        let length = value & 0xffff;
        let rest = (self.message as u32).wrapping_sub(4);
        self.message = rest.wrapping_sub(length) as u16;
        if length > rest {
            return self.decide(Outcome::Malformed);
        }
        if value >> 16 != SERVER_NAME {
            self.skip = length as u16;
            return false;
        }
        let twice = self.flags & SEEN_SERVER_NAME != 0;
        self.flags |= SEEN_SERVER_NAME;
        self.list = length as u16;
        self.field = NAME_LIST;
        twice && self.decide(Outcome::Malformed)
    }

    /// Length of the server_name list.
    #[inline(always)]
    fn take_list(&mut self, length: u32) -> bool {
        let rest = (self.list as u32).wrapping_sub(2);
        self.list = rest as u16;
        self.field = NAME_ENTRY;
        (length != rest || length == 0) && self.decide(Outcome::Malformed)
    }

    /// Type and length of an entry of the server_name list. Types but host_name are passed over: what they would
    /// mean is not defined.
    #[inline(always)]
    fn take_entry(&mut self, value: u32) -> bool {
        let length = value & 0xffff;
        let rest = (self.list as u32).wrapping_sub(3);
        let list = rest.wrapping_sub(length) as u16;
        self.list = list;
        self.field = if list == 0 { EXTENSION } else { NAME_ENTRY };
        if length == 0 || length > rest {
            return self.decide(Outcome::Malformed);
        }
        if value >> 16 != HOST_NAME {
            self.skip = length as u16;
            return false;
        }
        let twice = self.flags & SEEN_HOST_NAME != 0;
        self.flags |= SEEN_HOST_NAME;
        if length > SCAN_BYTES_MAX {
            self.flags |= NAME_TOO_LONG;
            self.skip = length as u16;
        } else {
            self.name_left = length as u8;
        }
        twice && self.decide(Outcome::Malformed)
    }
}

/// Bytes of a field.
#[inline(always)]
const fn field_bytes(field: u8) -> u32 {
    FIELD_BYTES >> ((field & 7) << 2) & 7
}

/// Parses the beginning of a stream at one go.
pub fn parse(bytes: &[u8]) -> (Outcome, Parser) {
    let mut parser = Parser::zeroed();
    let end = u32::try_from(bytes.len()).unwrap_or(u32::MAX);
    (parser.run(bytes, end), parser)
}
