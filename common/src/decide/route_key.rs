//! Keys of the name maps, built from listener and server name: first the exact name, then the name with `*` for
//! its first label, then the longest wildcard.

use crate::maps::route::{NAME_BYTES_MAX, NameKey, SHORT_NAME_BYTES_MAX, ShortNameKey, SuffixKey};
use core::mem::offset_of;
use zerocopy::IntoBytes;

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

/// Memory for the keys of a name's lookups; its previous content does not matter.
#[repr(C)]
#[derive(Clone, Debug, Default)]
pub struct Keys {
    /// The key of the exact name, later that of the pattern of one label that matches it.
    pub name: NameKey,
    /// The key of the wildcards of any depth that match it.
    pub suffix: SuffixKey,
}

/// The offset of [`ShortNameKey::length`] in a key.
const LENGTH: usize = offset_of!(ShortNameKey, length);
/// The offset of the name's first byte in a key.
const FIRST: usize = offset_of!(ShortNameKey, name);

/// Makes the keys of the patterns that match a name out of the key of the name itself, as [`exact`] filled it.
/// `each` calls [`take`] for each byte of the name, in order; the kernel passes its own loop.
///
/// No pattern has the key of a name of one label, which is `*`.
#[inline(always)]
pub fn patterns(keys: &mut Keys, listener: u32, length: u8, each: impl FnOnce(&mut Keys)) {
    keys.suffix.prefix_bits = 16 + 8 * length as u32;
    keys.suffix.listener = (listener as u16).to_be_bytes();
    keys.name.short.length = 1;
    each(keys);
    keys.name.short.name[0] = b'*';
}

/// Takes byte `at` of a name into the keys of patterns: into that of the wildcards from behind, and, from the
/// first dot on, behind the `*` of one label.
#[inline(always)]
pub fn take(keys: &mut Keys, name: &[u8; NAME_BUFFER], length: u8, at: u32) {
    // One number for both offsets: the kernel's verifier does not carry what a comparison says of `at` to a copy of it.
    let place = (at & 0xff) as usize;
    let byte = name[place];
    let behind = (length as u32).wrapping_sub(1).wrapping_sub(at);
    if let Some(to) = keys.suffix.reversed.get_mut(behind as usize) {
        *to = byte;
    }
    let key = keys.name.as_mut_bytes();
    // The name's own key had a byte here, and the shorter one has only those that are written from now on.
    if let Some(old) = key.get_mut(FIRST + place) {
        *old = 0;
    }
    // Before the first dot, each byte is written where the `*` will be.
    if byte == b'.' || key[LENGTH] > 1 {
        key[LENGTH] = key[LENGTH].wrapping_add(1);
    }
    let last = FIRST - 1 + key[LENGTH] as usize;
    if let Some(to) = key.get_mut(last) {
        *to = byte;
    }
}

/// The most bytes of a pattern's suffix: at least one label and the dot precede it.
pub const SUFFIX_BYTES_MAX: usize = NAME_BYTES_MAX - 2;

/// Returns the key under which the wildcard of any depth `*.suffix` is stored. `suffix` is normalised and does
/// not include the `*.`. `None` if the suffix is empty, or so long that no name could match.
pub fn wildcard(listener: u32, suffix: &[u8]) -> Option<SuffixKey> {
    if suffix.is_empty() || suffix.len() > SUFFIX_BYTES_MAX {
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

/// Returns the key under which the pattern of one label before `suffix` is stored: that of the exact name
/// `*.suffix`. No client can ask for this name, for `*` is no valid byte of one. `None` as for [`wildcard`].
pub fn one_label(listener: u32, suffix: &[u8]) -> Option<NameKey> {
    if suffix.is_empty() || suffix.len() > SUFFIX_BYTES_MAX {
        return None;
    }
    let mut bytes = [0; NAME_BUFFER];
    for (to, from) in bytes.iter_mut().zip(b"*.".iter().chain(suffix)) {
        *to = *from;
    }
    let mut key = NameKey::zeroed();
    exact(&mut key, listener, &bytes, suffix.len() as u8 + 2);
    Some(key)
}

/// Returns the suffix of the pattern of one label that is stored under the key of this name; `None`: it is an
/// exact name.
pub fn suffix_of(name: &[u8]) -> Option<&[u8]> {
    name.strip_prefix(b"*.")
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

    /// Returns the keys of the patterns that match a name on listener 3.
    fn asked(name: &[u8]) -> Keys {
        let (bytes, length) = buffer(name).unwrap();
        // What an earlier name left behind must not matter.
        let mut keys = Keys::default();
        keys.name.as_mut_bytes().fill(b'x');
        keys.suffix.as_mut_bytes().fill(b'x');
        exact(&mut keys.name, 3, &bytes, length);
        patterns(&mut keys, 3, length, |keys| {
            (0..length.into()).for_each(|at| take(keys, &bytes, length, at))
        });
        keys
    }

    fn matches(wildcard_suffix: &str, name: &str) -> bool {
        let stored = wildcard(3, wildcard_suffix.as_bytes()).unwrap();
        let asked = asked(name.as_bytes()).suffix;
        let n = ((stored.prefix_bits - 16) / 8) as usize;
        asked.prefix_bits >= stored.prefix_bits && asked.reversed[..n] == stored.reversed[..n]
    }

    /// Whether a lookup of the name finds the pattern of one label, as the maps compare their keys.
    fn is_one_label(suffix: &str, name: &str) -> bool {
        let (stored, asked) = (one_label(3, suffix.as_bytes()).unwrap(), asked(name.as_bytes()).name);
        match is_short(stored.short.length) {
            true => stored.short == asked.short,
            false => stored == asked,
        }
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
    fn one_label_is_exactly_one() {
        assert!(is_one_label("example.com", "a.example.com"));
        assert!(is_one_label("example.com", "tenant-a.example.com"));
        assert!(is_one_label("com", "example.com"));
        assert!(!is_one_label("example.com", "a.b.example.com"));
        assert!(!is_one_label("example.com", "example.com"));
        assert!(!is_one_label("example.com", "badexample.com"));
        assert!(!is_one_label("example.com", "a.example.com.evil"));
        assert!(!is_one_label("com", "com"));
        // A name of one label has no suffix.
        assert_eq!(asked(b"localhost").name.name(), b"*");
        assert!(one_label(3, b"").is_none());
        assert_eq!(suffix_of(b"*.example.com"), Some(&b"example.com"[..]));
        assert_eq!(suffix_of(b"a.example.com"), None);
    }

    /// Of first label and suffix, each length that a name can have.
    #[test]
    fn one_label_of_any_length_is_replaced() {
        let longest = [b'n'; SUFFIX_BYTES_MAX];
        for label in 1..=63 {
            for bytes in 1..=NAME_BYTES_MAX - label - 1 {
                let suffix = &longest[..bytes];
                let name = [&[b'l'; 63][..label], b".", suffix].concat();
                let (stored, asked) = (one_label(3, suffix).unwrap(), asked(&name));
                let short = is_short(stored.short.length);
                assert_eq!(stored.short, asked.name.short, "{label} {bytes}");
                assert!(short || stored == asked.name, "{label} {bytes}");
                assert_eq!(suffix_of(stored.name()), Some(suffix));
                let back: Vec<u8> = name.iter().rev().copied().collect();
                assert_eq!(asked.suffix.reversed[..name.len()], back, "{label} {bytes}");
            }
        }
        assert!(one_label(3, &longest).is_some() && one_label(3, &[b'n'; SUFFIX_BYTES_MAX + 1]).is_none());
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
        let key = asked(&name).suffix;
        assert_eq!(key.prefix_bits, 16 + 8 * 253);
        assert_eq!(&key.reversed[..253], &name[..]);
        assert!(wildcard(1, &name).is_none() && buffer(&[b'a'; 254]).is_none() && wildcard(1, b"").is_none());
    }
}
