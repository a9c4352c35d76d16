//! Which server names are valid, and which are reserved.
//!
//! One automaton checks names from the wire and from the configuration, byte by byte: `[A-Za-z0-9._-]`,
//! labels of 1 to 63 bytes, at most 253 bytes in total (RFC 1035 section 2.3.4). It folds ASCII to lower case
//! and drops one trailing dot. IP literals are not server names (RFC 6066 section 3).

use super::route_key::NAME_BUFFER;
use crate::maps::map_struct;
use crate::maps::route::NAME_BYTES_MAX;

/// The most bytes in a label (RFC 1035 section 2.3.4).
pub const LABEL_BYTES_MAX: u8 = 63;

/// Names of a cluster's own API server. Every cluster uses them, so no tenant may claim them.
pub const RESERVED: [&str; 4] =
    ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local"];

/// The most bytes that [`Scan`] accepts: the longest name and a trailing dot.
pub const SCAN_BYTES_MAX: u32 = NAME_BYTES_MAX as u32 + 1;

/// [`Scan::flags`]: a byte that is allowed neither in names nor in addresses.
const ILLEGAL: u8 = 1;
/// [`Scan::flags`]: an empty label.
const EMPTY_LABEL: u8 = 2;
/// [`Scan::flags`]: a label of more than 63 bytes.
const LONG_LABEL: u8 = 4;
/// [`Scan::flags`]: not a dotted quad: another byte, or a part over 255 or of more than three digits.
const NOT_IPV4: u8 = 8;
/// [`Scan::flags`]: a byte that is not allowed in an IPv6 literal.
const NOT_IPV6: u8 = 16;
/// [`Scan::flags`]: at least one colon.
const COLON: u8 = 32;
/// [`Scan::flags`]: at least two colons. Every IPv6 literal has them; `host:port` does not.
const COLONS: u8 = 64;

map_struct! {
    /// The state of the check of a name.
    pub struct Scan = 5 {
        /// What was seen so far, as bits.
        pub flags: u8,
        /// Bytes seen so far.
        pub length: u8,
        /// Bytes of the last label so far.
        pub label: u8,
        /// Dots seen so far.
        pub dots: u8,
        /// The last label as a decimal number; valid while it can be part of a dotted quad.
        pub octet: u8,
    }
}

/// The result of checking a text.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// A server name.
    Name,
    /// An IPv4 or IPv6 address as text.
    Address,
    /// Neither.
    Invalid,
}

impl Scan {
    /// Checks the next byte and returns it in lower case. Called at most [`SCAN_BYTES_MAX`] times.
    #[inline(always)]
    pub fn push(&mut self, byte: u8) -> u8 {
        let letter = (byte | 0x20).wrapping_sub(b'a');
        let digit = byte.wrapping_sub(b'0');
        self.length = self.length.wrapping_add(1);
        if byte == b'.' {
            let empty = if self.label == 0 { EMPTY_LABEL } else { 0 };
            self.flags |= empty;
            self.label = 0;
            self.octet = 0;
            self.dots = self.dots.wrapping_add(1);
            return byte;
        }
        if byte == b':' {
            let more = if self.flags & COLON != 0 { COLONS } else { COLON };
            self.flags |= more | NOT_IPV4;
            return byte;
        }
        self.label = self.label.wrapping_add(1);
        if self.label > LABEL_BYTES_MAX {
            self.flags |= LONG_LABEL;
        }
        if digit < 10 {
            let octet = (self.octet as u32) * 10 + digit as u32;
            self.octet = octet as u8;
            if octet > 255 || self.label > 3 {
                self.flags |= NOT_IPV4;
            }
            return byte;
        }
        let strange = if letter < 26 || byte == b'-' || byte == b'_' { 0 } else { ILLEGAL };
        let not_hex = if letter < 6 { 0 } else { NOT_IPV6 };
        self.flags |= strange | not_hex | NOT_IPV4;
        if letter < 26 { byte | 0x20 } else { byte }
    }

    /// Returns the result for the bytes pushed so far.
    #[inline(always)]
    pub fn verdict(&self) -> Verdict {
        let flags = self.flags;
        if flags & COLON != 0 {
            // Labels are not checked here: `::` has none, and labels after a dot are an embedded IPv4
            // address.
            let address = flags & (COLONS | NOT_IPV6 | ILLEGAL) == COLONS;
            return if address { Verdict::Address } else { Verdict::Invalid };
        }
        if flags & (ILLEGAL | EMPTY_LABEL | LONG_LABEL) != 0
            || self.length == 0
            || self.name_length() > NAME_BYTES_MAX as u8
        {
            return Verdict::Invalid;
        }
        let inner_dots = self.dots.wrapping_sub(self.trailing_dot());
        if flags & NOT_IPV4 == 0 && inner_dots == 3 { Verdict::Address } else { Verdict::Name }
    }

    /// Returns 1 if the last byte is a dot, else 0.
    #[inline(always)]
    pub fn trailing_dot(&self) -> u8 {
        (self.length != 0 && self.label == 0) as u8
    }

    /// Returns the number of bytes without the trailing dot.
    #[inline(always)]
    pub fn name_length(&self) -> u8 {
        self.length.wrapping_sub(self.trailing_dot())
    }
}

/// Whether a normalised name (zero after `length`) is one of [`RESERVED`].
#[inline(always)]
pub fn is_reserved(name: &[u8; NAME_BUFFER], length: u8) -> bool {
    // Each reserved name is a prefix of the longest one. Its parts are compared without a branch per byte.
    let known = length == 10 || length == 18 || length == 22 || length == 36;
    known
        && differs::<0, 10>(name) == 0
        && (length < 18 || differs::<10, 18>(name) == 0)
        && (length < 22 || differs::<18, 22>(name) == 0)
        && (length < 36 || differs::<22, 36>(name) == 0)
}

/// Returns 0 if the bytes `FROM..TO` equal those of the longest reserved name.
#[inline(always)]
fn differs<const FROM: usize, const TO: usize>(name: &[u8; NAME_BUFFER]) -> u8 {
    let longest = RESERVED[3].as_bytes();
    let mut difference = 0;
    let mut i = FROM;
    while i < TO {
        difference |= name[i] ^ longest[i];
        i += 1;
    }
    difference
}

/// A server name in the form that the maps store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerName {
    /// Lower case, no trailing dot, zero after `length`.
    pub bytes: [u8; NAME_BUFFER],
    /// Bytes in use, 1 to 253.
    pub length: u8,
}

impl ServerName {
    /// Returns the name.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..self.length as usize).unwrap_or_default()
    }

    /// Returns the name as text, which is ASCII.
    pub fn as_str(&self) -> &str {
        core::str::from_utf8(self.as_bytes()).unwrap_or_default()
    }

    /// Whether the name is one of [`RESERVED`].
    pub fn is_reserved(&self) -> bool {
        is_reserved(&self.bytes, self.length)
    }
}

/// Why a text is not a valid server name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NameError {
    /// No bytes.
    Empty,
    /// More than 253 bytes.
    TooLong,
    /// The first byte outside `[A-Za-z0-9._-]`.
    Byte(u8),
    /// A leading dot, two dots in a row, or only a dot.
    EmptyLabel,
    /// A label of more than 63 bytes.
    LabelTooLong,
    /// An IP address.
    Address,
}

impl core::fmt::Display for NameError {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        match self {
            Self::Empty => f.write_str("is empty"),
            Self::TooLong => write!(f, "is longer than {NAME_BYTES_MAX} bytes"),
            Self::Byte(byte) => write!(
                f,
                "holds '{}'; letters, digits, '-', '_' and '.' are allowed",
                core::ascii::escape_default(*byte)
            ),
            Self::EmptyLabel => f.write_str("has an empty label"),
            Self::LabelTooLong => write!(f, "has a label longer than {LABEL_BYTES_MAX} bytes"),
            Self::Address => f.write_str("is an IP address, which clients do not send as server name"),
        }
    }
}

impl core::error::Error for NameError {}

/// Checks and normalises a name from the configuration, by the same rules as names from the wire.
pub fn normalise(text: &[u8]) -> Result<ServerName, NameError> {
    if text.is_empty() {
        return Err(NameError::Empty);
    }
    if text.len() > NAME_BYTES_MAX + 1 {
        return Err(NameError::TooLong);
    }
    let mut scan = Scan::zeroed();
    let mut bytes = [0; NAME_BUFFER];
    for (to, from) in bytes.iter_mut().zip(text) {
        *to = scan.push(*from);
    }
    match scan.verdict() {
        Verdict::Address => Err(NameError::Address),
        Verdict::Invalid => Err(why(&scan, text)),
        Verdict::Name => {
            let length = scan.name_length();
            if let Some(dot) = bytes.get_mut(length as usize) {
                *dot = 0;
            }
            Ok(ServerName { bytes, length })
        }
    }
}

/// Returns why `text`, already scanned, is invalid.
fn why(scan: &Scan, text: &[u8]) -> NameError {
    let illegal = |byte: &&u8| {
        let mut alone = Scan::zeroed();
        alone.push(**byte);
        alone.flags & (ILLEGAL | COLON) != 0
    };
    if let Some(byte) = text.iter().find(illegal) {
        NameError::Byte(*byte)
    } else if scan.flags & EMPTY_LABEL != 0 {
        NameError::EmptyLabel
    } else if scan.flags & LONG_LABEL != 0 {
        NameError::LabelTooLong
    } else {
        NameError::TooLong
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Result<String, NameError> {
        normalise(text.as_bytes()).map(|name| {
            assert!(name.bytes.iter().skip(name.length as usize).all(|byte| *byte == 0));
            name.as_str().to_owned()
        })
    }

    #[test]
    fn letters_are_folded_and_one_trailing_dot_is_dropped() {
        assert_eq!(name("API.c1.Example.COM").unwrap(), "api.c1.example.com");
        assert_eq!(name("a_b-c.example.com.").unwrap(), "a_b-c.example.com");
        assert_eq!(name("-a.b-").unwrap(), "-a.b-");
        assert_eq!(name("xn--bcher-kva.example").unwrap(), "xn--bcher-kva.example");
        assert_eq!(name("localhost").unwrap(), "localhost");
    }

    #[test]
    fn every_byte_outside_the_set_is_named() {
        for byte in 0..=255_u8 {
            let legal = byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
            let found = normalise(&[b'x', byte, b'y']);
            match legal {
                true => assert_eq!(found.unwrap().as_bytes()[1], byte.to_ascii_lowercase()),
                false => assert_eq!(found, Err(NameError::Byte(byte))),
            }
        }
        // Bytes that `| 0x20` alone would turn into legal ones, and other special characters.
        assert_eq!(name("a\rb"), Err(NameError::Byte(b'\r')));
        assert_eq!(name("[::1]"), Err(NameError::Byte(b'[')));
        assert_eq!(name("*.example.com"), Err(NameError::Byte(b'*')));
        assert_eq!(name("example.com:443"), Err(NameError::Byte(b':')));
    }

    #[test]
    fn labels_have_1_to_63_bytes_and_names_253() {
        let label = "x".repeat(63);
        assert_eq!(name(&label).unwrap(), label);
        assert_eq!(name(&format!("a.{label}y.b")), Err(NameError::LabelTooLong));
        assert_eq!(name(&format!("{label}y")), Err(NameError::LabelTooLong));
        for text in [".", "..", ".a", "a..", "a..b"] {
            assert_eq!(name(text), Err(NameError::EmptyLabel), "{text}");
        }
        assert_eq!(name(""), Err(NameError::Empty));
        let long = [label.as_str(); 4].join(".");
        assert_eq!(name(&long[..253]).unwrap(), long[..253]);
        assert_eq!(name(&format!("{}.", &long[..253])).unwrap(), long[..253]);
        assert_eq!(name(&long[..254]), Err(NameError::TooLong));
        assert_eq!(name(&long), Err(NameError::TooLong));
        assert_eq!(name(&long.repeat(3)), Err(NameError::TooLong));
        assert_eq!(name(&["a"; 127].join(".")).unwrap().len(), 253);
    }

    #[test]
    fn addresses_are_no_names() {
        for text in ["10.0.0.1", "255.255.255.255", "0.0.0.0.", "010.000.000.001"] {
            assert_eq!(name(text), Err(NameError::Address), "{text}");
        }
        for text in ["::", "::1", "FD97::10", "fe80:0:0:0:1:2:3:4", "::ffff:10.0.0.1", "64:ff9b::1.2.3.4"] {
            assert_eq!(name(text), Err(NameError::Address), "{text}");
        }
        // Texts that resemble addresses are ordinary names or invalid.
        for text in
            ["1.2.3", "1.2.3.4.5", "1.2.3.256", "1.2.3.x", "1.2.3.0004", "1-2-3-4", "1.2.3.4.example.com"]
        {
            assert_eq!(name(text).unwrap(), text);
        }
        for text in ["cafe:6443", "fe80::1%eth0", "::g", "a:b:z"] {
            assert!(matches!(name(text), Err(NameError::Byte(_))), "{text}");
        }
    }

    #[test]
    fn exactly_the_four_reserved_names_are_reserved() {
        for text in RESERVED {
            assert!(normalise(text.as_bytes()).unwrap().is_reserved(), "{text}");
            assert!(normalise(format!("{}.", text.to_uppercase()).as_bytes()).unwrap().is_reserved());
            // A suffix added, a byte removed or a byte changed.
            assert!(!normalise(format!("{text}x").as_bytes()).unwrap().is_reserved());
            assert!(!normalise(format!("{text}.x").as_bytes()).unwrap().is_reserved());
            assert!(!normalise(&text.as_bytes()[..text.len() - 1]).unwrap().is_reserved());
            for i in 0..text.len() {
                let mut other = text.as_bytes().to_vec();
                other[i] = b'0';
                assert!(!normalise(&other).unwrap().is_reserved());
            }
        }
        for text in
            ["kubernetes.default.svc.cluster", "default", "kubernetes.example.com", "kubernetes.de", "k"]
        {
            assert!(!normalise(text.as_bytes()).unwrap().is_reserved(), "{text}");
        }
    }

    #[test]
    fn reasons_say_what_is_wrong() {
        let text = |error: NameError| error.to_string();
        assert_eq!(text(NameError::Byte(b'*')), "holds '*'; letters, digits, '-', '_' and '.' are allowed");
        assert!(text(NameError::Byte(0)).contains("\\x00"));
        assert!(text(NameError::TooLong).contains("253"));
    }
}
