//! Heartbeats: frames by which the nodes of a segment show each other that they live, and which addresses they announce. All
//! numbers are big-endian. A frame has exactly [`BYTES`] bytes behind its Ethernet header and,
//! of [`BIDS`], its entries.
//!
//! | offset | bytes | field |
//! | --- | --- | --- |
//! | 0 | 4 | `VSB1` |
//! | 4 | 1 | [`Heartbeat::kind`] |
//! | 5 | 1 | [`Heartbeat::key`] |
//! | 6 | 2 | [`Heartbeat::entries`] |
//! | 8 | 8 | [`Heartbeat::sender`] |
//! | 16 | 8 | [`Heartbeat::receiver`] |
//! | 24 | 8 | [`Heartbeat::nonce`] |
//! | 32 | 8 | [`Heartbeat::boot`] |
//! | 40 | 4 | [`Heartbeat::stamp_age_ms`] |
//! | 44 | 4 | zero |
//! | 48 | 8 | [`Heartbeat::digest`] |
//! | 56 | 8 | tag: SipHash-2-4 over all before it and, of bids, the entries behind it |
//!
//! An entry of bids: address (16), epoch (8), the sender's link address (6; zero: it does not say), and 2 bytes that are zero in what we send and
//! not looked at in what we receive.

use core::hint::black_box;

use zerocopy::big_endian::{U16, U32, U64};

use crate::decide::siphash::SipState;
use crate::maps::segment::Segment;
use crate::maps::settings::CookieKey;

/// EtherType of heartbeats: IEEE 802 Local Experimental 1 (RFC 9542 section 3.6).
pub const ETHER_TYPE: u16 = 0x88b5;
/// The link address to which a node sends what is for all others. It is locally administered, and a group's.
pub const GROUP: [u8; 6] = [0x03, 0x56, 0x53, 0x54, 0x42, 0x01];

/// Bytes of a heartbeat, without the entries of bids.
pub const BYTES: usize = 64;
/// Bytes of an entry of bids.
pub const ENTRY_BYTES: usize = 32;
/// The most entries of a frame.
pub const ENTRIES_MAX: usize = 40;

/// Returns the most entries of a frame on a device with this MTU. One that has no room for any is not used for IP either.
pub const fn entries(mtu: u32) -> usize {
    let room = (mtu as usize).saturating_sub(BYTES) / ENTRY_BYTES;
    if room < 1 {
        1
    } else if room > ENTRIES_MAX {
        ENTRIES_MAX
    } else {
        room
    }
}

/// [`Heartbeat::kind`]: are you there? The kernel of each receiver answers.
pub const ASK: u8 = 1;
/// [`Heartbeat::kind`]: the answer.
pub const ANSWER: u8 = 2;
/// [`Heartbeat::kind`]: a part of the sender's table of bids: the addresses that it announces, with their epochs.
pub const BIDS: u8 = 3;
/// [`Heartbeat::kind`]: the receiver is asked to send its table of bids again.
pub const RESEND: u8 = 4;

const MAGIC: [u8; 4] = *b"VSB1";

/// Where the tag begins, and how many words of eight bytes are before it.
const TAG_AT: usize = 56;
const WORDS: usize = TAG_AT / 8;

/// A heartbeat, without its tag and without the entries of bids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Heartbeat {
    /// [`ASK`], [`ANSWER`], [`BIDS`] or [`RESEND`].
    pub kind: u8,
    /// Index of the key that signs.
    pub key: u8,
    /// Number of entries of bids; 0 in other kinds.
    pub entries: u16,
    /// Id of the node that sends.
    pub sender: u64,
    /// Id of the node that asked, or is asked to send again; of bids [`part`]; in a question [`asker`], or 0 of a node of an earlier version.
    pub receiver: u64,
    /// A number that the asker draws and the answer repeats; of bids the version of the table.
    pub nonce: u64,
    /// [`Segment::boot`] of the sender.
    pub boot: u64,
    /// In an answer, how long ago the sender's agent said that it lives.
    pub stamp_age_ms: u32,
    /// Digest of the sender's table of bids.
    pub digest: u64,
}

/// Returns [`Heartbeat::receiver`] of this part of a table of bids, counted from 0.
pub const fn part(part: u32, parts: u32) -> u64 {
    (part as u64) << 32 | parts as u64
}

/// Bit of [`Heartbeat::receiver`] in a question: the node may announce nothing here, and asks for the sake of connections that are open.
const OBSERVER: u64 = 1 << 48;

/// Returns [`Heartbeat::receiver`] in a question of a node with this link address, which may announce something here or nothing any more
/// (`is_observer`). The first byte of the link address is the lowest.
pub const fn asker([a, b, c, d, e, f]: [u8; 6], is_observer: bool) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, f, 0, 0]) | if is_observer { OBSERVER } else { 0 }
}

/// A heartbeat on the wire.
#[repr(C)]
#[derive(zerocopy::IntoBytes, zerocopy::FromBytes, zerocopy::Immutable, zerocopy::KnownLayout)]
struct Raw {
    magic: [u8; 4],
    kind: u8,
    key: u8,
    entries: U16,
    sender: U64,
    receiver: U64,
    nonce: U64,
    boot: U64,
    stamp_age_ms: U32,
    zero: U32,
    digest: U64,
    tag: U64,
}

impl Heartbeat {
    /// Reads a heartbeat; `None`: it is none, or of a kind that we do not know. Whether its sender wrote it, [`is_authentic`] and
    /// `read_bids` say.
    #[inline(always)]
    pub fn read(bytes: &[u8; BYTES]) -> Option<Self> {
        let raw: &Raw = zerocopy::transmute_ref!(bytes);
        let entries = raw.entries.get();
        let most = match raw.kind {
            ASK | ANSWER | RESEND => 0,
            BIDS => ENTRIES_MAX as u16,
            _ => return None,
        };
        if raw.magic != MAGIC || raw.zero.get() != 0 || entries > most {
            return None;
        }
        Some(Self {
            kind: raw.kind,
            key: raw.key,
            entries,
            sender: raw.sender.get(),
            receiver: raw.receiver.get(),
            nonce: raw.nonce.get(),
            boot: raw.boot.get(),
            stamp_age_ms: raw.stamp_age_ms.get(),
            digest: raw.digest.get(),
        })
    }

    /// Writes the heartbeat, with a tag of zero.
    #[inline(always)]
    pub fn write(&self, to: &mut [u8; BYTES]) {
        let raw: &mut Raw = zerocopy::transmute_mut!(to);
        raw.magic = MAGIC;
        raw.kind = self.kind;
        raw.key = self.key;
        raw.entries.set(self.entries);
        raw.sender.set(self.sender);
        raw.receiver.set(self.receiver);
        raw.nonce.set(self.nonce);
        raw.boot.set(self.boot);
        raw.stamp_age_ms.set(self.stamp_age_ms);
        raw.zero.set(0);
        raw.digest.set(self.digest);
        raw.tag.set(0);
    }

    /// In a question, the link address of the node that asks, packed by [`crate::maps::next_hop::link`]; 0: it does not say.
    #[inline(always)]
    pub const fn askers_link(&self) -> u64 {
        (self.receiver & (OBSERVER - 1)).to_le()
    }

    /// In a question, whether the node that asks may announce nothing here.
    #[inline(always)]
    pub const fn is_of_observer(&self) -> bool {
        self.receiver & OBSERVER != 0
    }

    /// Returns the answer of the node with this segment to a question.
    #[inline(always)]
    pub fn answer(&self, segment: &Segment, now_ns: u64) -> Self {
        let age_ms = now_ns.saturating_sub(segment.stamp_ns) / 1_000_000;
        Self {
            kind: ANSWER,
            key: segment.key,
            entries: 0,
            sender: segment.node,
            receiver: self.sender,
            nonce: self.nonce,
            boot: segment.boot,
            stamp_age_ms: if age_ms > u32::MAX as u64 { u32::MAX } else { age_ms as u32 },
            digest: segment.digest,
        }
    }
}

/// Adds what is before the tag to the hash. A loop that must not be unrolled: see `decide::cookie`.
#[inline(always)]
fn hash(bytes: &[u8; BYTES], key: &CookieKey) -> SipState {
    let words: &[[u8; 8]; BYTES / 8] = zerocopy::transmute_ref!(bytes);
    let mut sip = SipState::new(key);
    let mut at = black_box(0usize);
    while at < WORDS {
        sip.word(u64::from_le_bytes(words[at]));
        at += 1;
    }
    sip
}

#[inline(always)]
fn tag(bytes: &[u8; BYTES], key: &CookieKey) -> u64 {
    hash(bytes, key).finish(TAG_AT as u64)
}

/// Writes the tag of a heartbeat without entries.
#[inline(always)]
pub fn sign(bytes: &mut [u8; BYTES], key: &CookieKey) {
    let tag = tag(bytes, key);
    let raw: &mut Raw = zerocopy::transmute_mut!(bytes);
    raw.tag.set(tag);
}

/// Returns the key that signed, by its index; `None`: there is none, or it is zero because it was not set yet.
#[inline(always)]
fn signer(raw: &Raw, keys: &[CookieKey; 2]) -> Option<CookieKey> {
    let key = match raw.key {
        0 => keys[0],
        1 => keys[1],
        _ => return None,
    };
    (key.k0 | key.k1 != 0).then_some(key)
}

/// Whether a heartbeat without entries was signed with one of the keys. One with entries, which are signed with it, is not judged: `false`.
#[inline(always)]
pub fn is_authentic(bytes: &[u8; BYTES], keys: &[CookieKey; 2]) -> bool {
    let raw: &Raw = zerocopy::transmute_ref!(bytes);
    match signer(raw, keys) {
        Some(key) => raw.entries.get() == 0 && raw.tag.get() == tag(bytes, &key),
        None => false,
    }
}

#[cfg(any(test, feature = "user"))]
mod bids;
#[cfg(any(test, feature = "user"))]
pub use bids::{Bid, bids, read_bids};

#[cfg(test)]
mod tests;
