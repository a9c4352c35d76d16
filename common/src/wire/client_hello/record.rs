//! The record layer: headers (RFC 8446 section 5.1).

use super::{Outcome, Parser, STREAM_BYTES_MAX, Stream};

/// Content type of handshake records (RFC 8446 section 5.1).
const RECORD_HANDSHAKE: u8 = 22;
/// The most bytes in a plaintext record (RFC 8446 section 5.1).
const RECORD_BYTES_MAX: u32 = 1 << 14;
/// Bytes of a record's header.
const RECORD_HEADER: u32 = 5;
/// Major version of every TLS record; the minor version is ignored (RFC 5246 appendix E.1).
const RECORD_MAJOR: u8 = 3;

impl Parser {
    /// Reads a whole record header if it is available, otherwise one byte of it. `true` = decided.
    #[inline(always)]
    pub(super) fn read_header<S: Stream + ?Sized>(&mut self, stream: &S, left: u32) -> bool {
        // If the stream does not start with a record header, the client does not use TLS.
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
            let length = (self.header_length as u32) << 8 | byte as u32;
            self.header_bytes = 0;
            self.header_length = 0;
            return self.begin_record(length);
        }
        false
    }

    /// Starts a record of `length` bytes. `true` = decided.
    #[inline(always)]
    fn begin_record(&mut self, length: u32) -> bool {
        self.record = length as u16;
        // Empty handshake records are forbidden (RFC 8446 section 5.1).
        if length == 0 || length > RECORD_BYTES_MAX {
            return self.decide(Outcome::Malformed);
        }
        // A hello is complete only at the end of a record, so all of this one is needed.
        self.position.wrapping_add(length) > STREAM_BYTES_MAX && self.decide(Outcome::TooLong)
    }
}
