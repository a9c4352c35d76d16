//! The rules again, as plainly as possible: whole buffers, slices, the standard library. Uses no code under test.

use std::net::IpAddr;

/// What a stream or a name is judged to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The hello or its last record is incomplete, and possibly already invalid.
    Incomplete,
    /// Not a ClientHello, or one that breaks the rules.
    Broken,
    /// No server name, or an IP literal.
    NoName,
    /// A name, normalised.
    Name(String),
    /// Not a DNS name.
    InvalidName,
    /// Looks like an IP literal but is not one: an address or an ordinary name, both are right.
    LikeIpv4(String),
    /// The same with colons: an address or invalid, both are right.
    LikeIpv6,
}

/// The record in which a hello ends must end within this many bytes of its stream: nine buffers.
const STREAM_MAX: usize = 18_432;
/// The most bytes of a record, and of the handshake message with its header of four bytes.
const RECORD_MAX: usize = 16_384;

/// Judges the start of a stream.
pub fn stream(bytes: &[u8]) -> Verdict {
    let end = bytes.len().min(STREAM_MAX);
    match message(&bytes[..end]) {
        Ok(message) => hello(&message).unwrap_or(Verdict::Broken),
        Err(Verdict::Incomplete) if bytes.len() >= STREAM_MAX => Verdict::Broken,
        Err(verdict) => verdict,
    }
}

/// Returns the handshake message without its header, assembled from its records, all of which must be complete.
pub fn message(stream: &[u8]) -> Result<Vec<u8>, Verdict> {
    let (mut message, mut rest, mut end) = (Vec::new(), stream, 0);
    loop {
        if let [kind, high, middle, low, body @ ..] = message.as_slice() {
            let length = u32::from_be_bytes([0, *high, *middle, *low]) as usize;
            if *kind != 1 || 4 + length > RECORD_MAX {
                return Err(Verdict::Broken);
            }
            if let Some(body) = body.get(..length).filter(|_| end <= stream.len()) {
                return Ok(body.to_vec());
            }
        }
        let expected = [(0, 22), (1, 3)];
        if expected.iter().any(|(at, value)| rest.get(*at).is_some_and(|byte| byte != value)) {
            return Err(Verdict::Broken);
        }
        let Some((header, behind)) = rest.split_first_chunk::<5>() else { return Err(Verdict::Incomplete) };
        let length = u16::from_be_bytes([header[3], header[4]]) as usize;
        end += 5 + length;
        if length == 0 || length > RECORD_MAX || end > STREAM_MAX {
            return Err(Verdict::Broken);
        }
        let (payload, next) = behind.split_at(length.min(behind.len()));
        message.extend(payload);
        rest = next;
    }
}

/// Splits off `count` bytes.
fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(count)?;
    *bytes = rest;
    Some(taken)
}

/// Splits off a number of `size` bytes.
fn number(bytes: &mut &[u8], size: usize) -> Option<usize> {
    Some(take(bytes, size)?.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)))
}

/// Splits off a vector whose length has `size` bytes.
fn vector<'a>(bytes: &mut &'a [u8], size: usize) -> Option<&'a [u8]> {
    let length = number(bytes, size)?;
    take(bytes, length)
}

/// Judges the body of a ClientHello; `None`: broken.
fn hello(mut body: &[u8]) -> Option<Verdict> {
    let body = &mut body;
    take(body, 34)?;
    let session_id = vector(body, 1)?;
    let suites = vector(body, 2)?;
    let compression = vector(body, 1)?;
    if session_id.len() > 32 || suites.is_empty() || suites.len() % 2 != 0 || compression.is_empty() {
        return None;
    }
    if body.is_empty() {
        return Some(Verdict::NoName);
    }
    let mut extensions = vector(body, 2)?;
    if !body.is_empty() {
        return None;
    }
    let mut names = Vec::new();
    while !extensions.is_empty() {
        let kind = number(&mut extensions, 2)?;
        let mut data = vector(&mut extensions, 2)?;
        if kind == 0 {
            let list = vector(&mut data, 2)?;
            if list.is_empty() || !data.is_empty() {
                return None;
            }
            names.push(list);
        }
    }
    match names.as_slice() {
        [] => Some(Verdict::NoName),
        [list] => host_name(list),
        _ => None,
    }
}

/// Judges a list of names.
fn host_name(mut list: &[u8]) -> Option<Verdict> {
    let mut hosts = Vec::new();
    while !list.is_empty() {
        let kind = number(&mut list, 1)?;
        let text = vector(&mut list, 2)?;
        if text.is_empty() {
            return None;
        }
        if kind == 0 {
            hosts.push(text);
        }
    }
    match hosts.as_slice() {
        [] => Some(Verdict::NoName),
        [text] => Some(name(text)),
        _ => None,
    }
}

/// Judges a name.
pub fn name(text: &[u8]) -> Verdict {
    let bare = text.strip_suffix(b".").unwrap_or(text);
    let has = |set: fn(&u8) -> bool| bare.iter().all(set);
    let Ok(string) = str::from_utf8(bare) else { return Verdict::InvalidName };
    if string.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4() || bare == text) {
        return Verdict::NoName;
    }
    if text.contains(&b':') {
        let like = text.iter().all(|byte| byte.is_ascii_hexdigit() || b":.".contains(byte));
        return if like { Verdict::LikeIpv6 } else { Verdict::InvalidName };
    }
    let legal = has(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(byte));
    let labels = string.split('.').all(|label| (1..=63).contains(&label.len()));
    if !legal || !labels || bare.len() > 253 {
        return Verdict::InvalidName;
    }
    let string = string.to_ascii_lowercase();
    match has(|byte| byte.is_ascii_digit() || *byte == b'.') && string.split('.').count() == 4 {
        true => Verdict::LikeIpv4(string),
        false => Verdict::Name(string),
    }
}
