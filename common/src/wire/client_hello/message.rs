//! The handshake message: fields and what they enclose (RFC 8446 section 4.1.2, RFC 6066 section 3).

use super::{MESSAGE_BYTES_MAX, Outcome, Parser, SEEN_HOST_NAME, SEEN_SERVER_NAME, Stream, TRAILING_BYTES};
use crate::decide::server_name::SCAN_BYTES_MAX;

/// Handshake message type (RFC 8446 section 4).
const CLIENT_HELLO: u32 = 1;
/// Bytes of handshake type and length.
const MESSAGE_HEADER: u32 = 4;
/// Bytes of legacy_version and random.
const VERSION_AND_RANDOM: u32 = 2 + 32;
/// The most bytes in legacy_session_id.
const SESSION_ID_MAX: u32 = 32;
/// Extension type (RFC 6066 section 3).
const SERVER_NAME: u32 = 0;
/// NameType (RFC 6066 section 3).
const HOST_NAME: u32 = 0;

// Values of `Parser::field`, in the order of the message.
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
/// Type and length of an entry of the server_name list, 3 bytes.
const NAME_ENTRY: u8 = 7;

/// Bytes of each field: four bits per field, the first field in the lowest bits.
const FIELD_BYTES: u32 = 0x3242_1214;

/// The most bytes of the name that one step reads.
const NAME_STEP: u32 = 4;

impl Parser {
    /// Checks before a field is read whether the message has ended, and whether the field fits in what
    /// encloses it. `end` is the number of available bytes. `true` = decided.
    #[inline(always)]
    pub(super) fn settle(&mut self, end: u32) -> bool {
        let field = self.field;
        if field == MESSAGE {
            return false;
        }
        let in_list = field >= NAME_LIST;
        let room = if in_list { self.list } else { self.message };
        // A hello of TLS 1.2 may end before the extensions' length (RFC 5246 section 7.4.1.2).
        if room == 0 && (field == EXTENSIONS || field == EXTENSION) {
            return self.finish(end);
        }
        (room as u32) < field_bytes(field) && self.decide(Outcome::Malformed)
    }

    /// Reads up to [`NAME_STEP`] bytes of the name, limited by the record and the available data.
    #[inline(always)]
    pub(super) fn read_name<S: Stream + ?Sized>(&mut self, stream: &S, left: u32) {
        let mut count = if (self.name_left as u32) < left { self.name_left as u32 } else { left };
        count = if count < self.record as u32 { count } else { self.record as u32 };
        count = if count < NAME_STEP { count } else { NAME_STEP };
        let mut scan = self.scan;
        let mut taken = 0;
        while taken < NAME_STEP {
            if taken < count {
                let at = scan.length as usize;
                self.name[at] = scan.push(stream.at(self.position.wrapping_add(taken)));
            }
            taken += 1;
        }
        self.scan = scan;
        self.name_left = self.name_left.wrapping_sub(count as u8);
        self.consume(count as u16);
    }

    /// Reads a whole field if it is available, otherwise one byte of it. `true` = decided.
    #[inline(always)]
    pub(super) fn read_field<S: Stream + ?Sized>(&mut self, stream: &S, left: u32) -> bool {
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

    /// Processes a field that was read. [`Self::settle`] has checked that it fits in what encloses it.
    /// `true` = decided.
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

    /// Processes the handshake type and length.
    #[inline(always)]
    fn take_message(&mut self, value: u32) -> bool {
        let length = value & 0x00ff_ffff;
        if value >> 24 != CLIENT_HELLO {
            return self.decide(Outcome::Malformed);
        }
        if length > MESSAGE_BYTES_MAX - MESSAGE_HEADER {
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

    /// Processes the length of a vector whose content is skipped.
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

    /// Processes the length of the extensions block.
    #[inline(always)]
    fn take_extensions(&mut self, length: u32) -> bool {
        let rest = (self.message as u32).wrapping_sub(2);
        self.message = rest as u16;
        self.field = EXTENSION;
        if length < rest {
            // The message is malformed, but that is only reported at the end of its record.
            self.flags |= TRAILING_BYTES;
            self.skip = rest as u16;
            self.message = 0;
        }
        length > rest && self.decide(Outcome::Malformed)
    }

    /// Processes the type and length of an extension.
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

    /// Processes the length of the server_name list.
    #[inline(always)]
    fn take_list(&mut self, length: u32) -> bool {
        let rest = (self.list as u32).wrapping_sub(2);
        self.list = rest as u16;
        self.field = NAME_ENTRY;
        length != rest && self.decide(Outcome::Malformed)
    }

    /// Processes the type and length of an entry of the server_name list. Types other than host_name are
    /// skipped: their meaning is not defined.
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
            // None of it is scanned, and an empty scan is an invalid name.
            self.skip = length as u16;
        } else {
            self.name_left = length as u8;
        }
        twice && self.decide(Outcome::Malformed)
    }
}

/// Returns the number of bytes of a field.
#[inline(always)]
const fn field_bytes(field: u8) -> u32 {
    FIELD_BYTES >> ((field & 7) << 2) & 7
}
