//! Keys of the name maps, built from listener and server name: first the exact name, then the longest
//! wildcard.

use crate::maps::route::{NAME_BYTES_MAX, NameKey, SHORT_NAME_BYTES_MAX, SuffixKey};

/// The size of the buffer that holds a server name; the bytes after the name are zero.
pub const NAME_BUFFER: usize = 256;

/// Whether a name of this length is in `ROUTES_EXACT`; otherwise it is in `ROUTES_LONG`.
#[inline(always)]
pub const fn is_short(length: u8) -> bool {
    length as usize <= SHORT_NAME_BYTES_MAX
}

/// Fills the key of an exact name. `name` is normalised (lower case, no trailing dot) and zero after
/// `length`. For a short name ([`is_short`]), [`NameKey::rest`] is left as it is.
#[inline(always)]
pub fn exact(key: &mut NameKey, listener: u32, name: &[u8; NAME_BUFFER], length: u8) {
    key.short.listener = (listener as u16).to_be_bytes();
    key.short.length = length;
    let mut i = 0;
    while i < SHORT_NAME_BYTES_MAX {
        key.short.name[i] = name[i];
        i += 1;
    }
    if is_short(length) {
        return;
    }
    while i < NAME_BYTES_MAX {
        key.rest[i - SHORT_NAME_BYTES_MAX] = name[i];
        i += 1;
    }
}

/// Fills the key that finds the longest wildcard for a server name in `ROUTES_WILDCARD`.
#[inline(always)]
pub fn suffix(key: &mut SuffixKey, listener: u32, name: &[u8; NAME_BUFFER], length: u8) {
    key.prefix_bits = 16 + 8 * length as u32;
    key.listener = (listener as u16).to_be_bytes();
    let mut i = 0;
    while i < 254 {
        key.reversed[i] = reversed_byte(name, length, i as u32);
        i += 1;
    }
}

/// Returns byte `index` of the reversed name; 0 after its end.
#[inline(always)]
pub fn reversed_byte(name: &[u8; NAME_BUFFER], length: u8, index: u32) -> u8 {
    // After the end of the reversed name the subtraction wraps to a huge position, for which the result is 0.
    let position = (length as u32).wrapping_sub(1).wrapping_sub(index);
    if position < NAME_BYTES_MAX as u32 { name[(position & 0xff) as usize] } else { 0 }
}

/// Returns the key under which the wildcard `*.suffix` is stored. `suffix` is normalised and does not include
/// the `*.`. `None` if the suffix is empty, or so long that no name could match.
pub fn wildcard(listener: u32, suffix: &[u8]) -> Option<SuffixKey> {
    // At least one label and the dot precede the suffix.
    if suffix.is_empty() || suffix.len() > NAME_BYTES_MAX - 2 {
        return None;
    }
    let mut key = SuffixKey::zeroed();
    key.prefix_bits = 16 + 8 * (suffix.len() as u32 + 1);
    key.listener = (listener as u16).to_be_bytes();
    for (to, from) in key.reversed.iter_mut().zip(suffix.iter().rev().chain(b".")) {
        *to = *from;
    }
    Some(key)
}

/// Copies a normalised name into a zeroed buffer; `None` if it is empty or too long.
pub fn buffer(name: &[u8]) -> Option<([u8; NAME_BUFFER], u8)> {
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return None;
    }
    let mut bytes = [0; NAME_BUFFER];
    for (to, from) in bytes.iter_mut().zip(name) {
        *to = *from;
    }
    Some((bytes, name.len() as u8))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(wildcard_suffix: &str, name: &str) -> bool {
        let stored = wildcard(3, wildcard_suffix.as_bytes()).unwrap();
        let (bytes, length) = buffer(name.as_bytes()).unwrap();
        let mut asked = SuffixKey::zeroed();
        suffix(&mut asked, 3, &bytes, length);
        let n = ((stored.prefix_bits - 16) / 8) as usize;
        asked.prefix_bits >= stored.prefix_bits && asked.reversed[..n] == stored.reversed[..n]
    }

    #[test]
    fn a_wildcard_takes_one_or_more_labels_and_nothing_else() {
        assert!(matches("example.com", "a.example.com"));
        assert!(matches("example.com", "a.b.example.com"));
        assert!(!matches("example.com", "example.com"));
        assert!(!matches("example.com", "badexample.com"));
        assert!(!matches("example.com", "a.example.com.evil"));
    }

    #[test]
    fn names_are_short_up_to_61_bytes() {
        for (bytes, short) in [(1, true), (61, true), (62, false), (253, false)] {
            let name = [b'n'; NAME_BYTES_MAX];
            let (buffer, length) = buffer(&name[..bytes]).unwrap();
            assert_eq!(is_short(length), short, "{bytes}");
            let mut key = NameKey::zeroed();
            exact(&mut key, 300, &buffer, length);
            assert_eq!((key.listener(), key.name()), (300, &name[..bytes]));
            // As read back from `ROUTES_EXACT`.
            assert_eq!(NameKey::from(key.short) == key, short);
        }
    }

    #[test]
    fn the_longest_name_fits() {
        let name = [b'a'; NAME_BYTES_MAX];
        let (bytes, length) = buffer(&name).unwrap();
        let mut key = SuffixKey::zeroed();
        suffix(&mut key, 1, &bytes, length);
        assert_eq!(key.prefix_bits, 16 + 8 * 253);
        assert_eq!(&key.reversed[..253], &name[..]);
        assert_eq!(key.reversed[253], 0);
        assert!(wildcard(1, &name).is_none() && buffer(&[b'a'; 254]).is_none() && wildcard(1, b"").is_none());
    }
}
