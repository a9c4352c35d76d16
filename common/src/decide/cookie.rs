//! Our SYN cookies (SipHash-2-4), valid on every node that has the key.
//!
//! A cookie is our initial sequence number. Its bits, from the highest to the lowest:
//!
//! | bits | what |
//! | --- | --- |
//! | 1 | epoch, lowest bit |
//! | 1 | key index |
//! | 3 | index into [`MSS`] |
//! | 4 | the client's window scale, 15 = not offered |
//! | 1 | SACK permitted |
//! | 11 | exact tag: over the same as the tuple tag, and the client's initial sequence number |
//! | 11 | tuple tag: over tuple, epoch and options (including whether there are timestamps) |
//!
//! A client with timestamps (RFC 7323) also echoes the lowest byte of our timestamp, which holds seven more
//! bits of the exact tag. Its lowest bit is 0 in a SYN-ACK and 1 in every later segment of ours ([`ACKNOWLEDGED`]): who
//! echoes a 1 had part of its hello acknowledged, so no first segment is still to come. A second segment of a hello that arrives first is mistaken for the first one, and
//! refused, once in 2,048 times without timestamps and once in 262,144 times with them.
//!
//! The exact tag makes a cookie valid for one first segment only. The tuple tag alone distinguishes an early
//! *second* segment of a hello (whose sequence number does not reveal the initial one) from a packet of a
//! lost connection: the former is dropped and the client repeats it, the latter is answered with RST. The
//! tuple tag is in the lowest bits so that a client that has acknowledged the first byte of an answer is
//! recognised as one of a lost connection.

use core::hint::black_box;

use super::siphash::SipState;
use crate::maps::flow::ClientTuple;
use crate::maps::settings::CookieKey;

/// The client's MSS is rounded down to one of these.
pub const MSS: [u16; 8] = [216, 536, 1220, 1340, 1400, 1440, 1460, 8900];

/// The length of an epoch is 2^36 ns = 68.7 s. Cookies of the current and the previous epoch are valid, so
/// each cookie is valid for at least 68 s.
pub const EPOCH_SHIFT: u32 = 36;

/// After this time no cookie is valid any more: 137 s.
pub const LIFE_NS: u64 = 2 << EPOCH_SHIFT;

/// The lowest bit of our timestamp: set in acknowledgements of a hello's parts, and never in a SYN-ACK.
pub const ACKNOWLEDGED: u8 = 1;

/// What the client offered in its SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    /// Host byte order.
    pub mss: u16,
    /// 0 to 14, or `WINDOW_SCALE_NONE`.
    pub window_scale: u8,
    pub sack: bool,
    pub timestamps: bool,
}

/// What a SYN-ACK carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cookie {
    /// Our initial sequence number.
    pub seq: u32,
    /// The lowest byte of our timestamp; used only if the client offered timestamps.
    pub stamp: u8,
}

/// What a cookie says about a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The first data of the connection, or its third handshake packet.
    First(Offer),
    /// A segment of this handshake, but not the first one.
    Later,
    /// The cookie is not ours, or too old.
    Mismatch,
}

/// Returns the epoch of a wall-clock time (CLOCK_TAI, nanoseconds).
#[inline(always)]
pub const fn epoch(tai_ns: u64) -> u32 {
    (tai_ns >> EPOCH_SHIFT) as u32
}

/// Returns the largest index into [`MSS`] whose value is at most `mss`; 0 when all are larger.
#[inline(always)]
const fn mss_index(mss: u16) -> u32 {
    let mut index = 0;
    let mut i = 1;
    while i < MSS.len() {
        if mss >= MSS[i] {
            index = i as u32;
        }
        i += 1;
    }
    index
}

/// Makes the cookie that answers a SYN.
#[inline(always)]
pub fn make(
    key: &CookieKey,
    key_index: u32,
    tuple: &ClientTuple,
    isn: u32,
    epoch: u32,
    offer: &Offer,
) -> Cookie {
    let options = (epoch & 1) << 31
        | (key_index & 1) << 30
        | mss_index(offer.mss) << 27
        | ((offer.window_scale & 15) as u32) << 23
        | (offer.sack as u32) << 22;
    let tags = tags(key, tuple, isn, epoch, options, offer.timestamps);
    Cookie { seq: options | tags.seq, stamp: tags.stamp }
}

/// Returns the index of the key that signed `cookie`.
#[inline(always)]
pub const fn key_index(cookie: u32) -> u32 {
    cookie >> 30 & 1
}

/// Checks a segment that acknowledges `cookie` + 1 and whose first byte has the sequence number `isn` + 1.
/// `stamp` is the lowest byte of the timestamp that it echoes; `None` if it has no timestamps. The caller
/// refuses the all-zero key: a map that is not filled yet must not verify anything.
#[inline(always)]
pub fn check(
    key: &CookieKey,
    tuple: &ClientTuple,
    isn: u32,
    now_epoch: u32,
    cookie: u32,
    stamp: Option<u8>,
) -> Verdict {
    // The newest epoch whose lowest bit is the cookie's is the one that signed it.
    let epoch = now_epoch.wrapping_sub((now_epoch ^ cookie >> 31) & 1);
    let options = cookie & 0xffc0_0000;
    let tags = tags(key, tuple, isn, epoch, options, stamp.is_some());
    let differs = (options | tags.seq) ^ cookie;
    if differs == 0 && stamp.is_none_or(|stamp| stamp == tags.stamp) {
        return Verdict::First(Offer {
            mss: MSS[(cookie >> 27 & 7) as usize],
            window_scale: (cookie >> 23 & 15) as u8,
            sack: cookie >> 22 & 1 == 1,
            timestamps: stamp.is_some(),
        });
    }
    // Bytes of this connection were acknowledged, but it is not known any more: it was refused, and the RST got lost.
    let acknowledged = stamp.is_some_and(|stamp| stamp & ACKNOWLEDGED != 0);
    if differs & 0x7ff == 0 && !acknowledged { Verdict::Later } else { Verdict::Mismatch }
}

/// Returns both tags, at their bit positions in the cookie.
#[inline(always)]
fn tags(
    key: &CookieKey,
    tuple: &ClientTuple,
    isn: u32,
    epoch: u32,
    options: u32,
    timestamps: bool,
) -> Cookie {
    let mut sip = SipState::new(key);
    let c = &tuple.client.bytes;
    let v = &tuple.vip.bytes;
    let ports = (tuple.client_port.number() as u64) << 16 | tuple.vip_port.number() as u64;
    let words = [
        u64::from_le_bytes([c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7]]),
        u64::from_le_bytes([c[8], c[9], c[10], c[11], c[12], c[13], c[14], c[15]]),
        u64::from_le_bytes([v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]]),
        u64::from_le_bytes([v[8], v[9], v[10], v[11], v[12], v[13], v[14], v[15]]),
        ports << 32 | epoch as u64,
        (options as u64) << 1 | timestamps as u64,
        isn as u64,
    ];
    let mut tags = [0; 2];
    // The loops must not be unrolled: the hash would be the longest part of the kernel's program, and at a
    // low rate of connections it takes longer to fetch than to run. The counters have 64 bits, because the
    // verifier tracks values on the stack only as whole 64-bit words.
    let mut at = black_box(0usize);
    while at < words.len() {
        sip.word(words[at]);
        at += 1;
        if at > 5 {
            tags[at & 1] = sip.finish(8 * at as u64);
        }
    }
    let [tuple_tag, exact_tag] = tags;
    Cookie {
        seq: (exact_tag as u32 & 0x7ff) << 11 | tuple_tag as u32 & 0x7ff,
        stamp: (exact_tag >> 32) as u8 & !ACKNOWLEDGED,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::address::{Address, Port};

    const KEY: CookieKey = CookieKey { k0: 0x0706_0504_0302_0100, k1: 0x0f0e_0d0c_0b0a_0908 };

    fn tuple() -> ClientTuple {
        let (client, vip) = (Address::v4([192, 0, 2, 7]), Address::v4([203, 0, 113, 1]));
        ClientTuple::tcp(client, vip, Port::new(40_000), Port::new(443))
    }

    fn offers() -> impl Iterator<Item = Offer> {
        MSS.into_iter().flat_map(|mss| {
            (0..16).flat_map(move |window_scale| {
                [false, true].into_iter().flat_map(move |sack| {
                    [false, true].into_iter().map(move |timestamps| Offer {
                        mss,
                        window_scale,
                        sack,
                        timestamps,
                    })
                })
            })
        })
    }

    #[test]
    fn a_cookie_gives_back_what_was_offered() {
        for offer in offers() {
            let Cookie { seq, stamp } = make(&KEY, 1, &tuple(), 77, 9, &offer);
            let stamp = offer.timestamps.then_some(stamp);
            assert_eq!(key_index(seq), 1);
            assert_eq!(check(&KEY, &tuple(), 77, 9, seq, stamp), Verdict::First(offer));
            assert_eq!(check(&KEY, &tuple(), 77, 10, seq, stamp), Verdict::First(offer));
        }
    }

    #[test]
    fn any_change_is_noticed() {
        let offer = Offer { mss: 1440, window_scale: 7, sack: true, timestamps: true };
        let Cookie { seq, stamp } = make(&KEY, 0, &tuple(), 77, 9, &offer);
        for bit in 0..32 {
            let verdict = check(&KEY, &tuple(), 77, 9, seq ^ 1 << bit, Some(stamp));
            assert!(!matches!(verdict, Verdict::First(_)), "bit {bit}");
        }
        for bit in 0..8 {
            let verdict = check(&KEY, &tuple(), 77, 9, seq, Some(stamp ^ 1 << bit));
            // The lowest bit: a segment of a client that had an acknowledgement.
            let expected = if bit == 0 { Verdict::Mismatch } else { Verdict::Later };
            assert_eq!(verdict, expected, "bit {bit} of the timestamp");
        }
        let other = ClientTuple { client_port: Port::new(40_001), ..tuple() };
        let stamp = Some(stamp);
        assert_eq!(check(&KEY, &other, 77, 9, seq, stamp), Verdict::Mismatch);
        assert_eq!(check(&KEY, &tuple(), 77, 11, seq, stamp), Verdict::Mismatch);
        assert_ne!(check(&KEY, &tuple(), 77, 9, seq, None), Verdict::First(offer));
        assert_eq!(check(&CookieKey { k0: 1, k1: 2 }, &tuple(), 77, 9, seq, stamp), Verdict::Mismatch);
    }

    #[test]
    fn a_later_segment_is_known_as_such() {
        let offer = Offer { mss: 536, window_scale: 15, sack: false, timestamps: false };
        let Cookie { seq, .. } = make(&KEY, 0, &tuple(), 77, 9, &offer);
        assert_eq!(check(&KEY, &tuple(), 77 + 536, 9, seq, None), Verdict::Later);
        for answered in [1, 100, 2047, 10_000] {
            let acknowledged = seq.wrapping_add(answered);
            assert_eq!(check(&KEY, &tuple(), 77 + 536, 9, acknowledged, None), Verdict::Mismatch);
        }
    }

    /// A hello of two segments whose first is lost. When only 11 bits distinguished the second segment from a
    /// first one, three of 80,000 connections were refused as "not TLS".
    #[test]
    fn a_later_segment_hardly_ever_passes_for_the_first() {
        let offer = Offer { mss: 1440, window_scale: 7, sack: true, timestamps: true };
        let Cookie { seq, stamp } = make(&KEY, 0, &tuple(), 77, 9, &offer);
        let firsts = |seq, stamp| {
            let verdicts = (1..100_000).map(|ahead| check(&KEY, &tuple(), 77 + ahead, 9, seq, stamp));
            verdicts.filter(|verdict| matches!(verdict, Verdict::First(_))).count()
        };
        assert!(firsts(seq, Some(stamp)) <= 1);
        // Without timestamps, about one in two thousand.
        let Cookie { seq, .. } = make(&KEY, 0, &tuple(), 77, 9, &Offer { timestamps: false, ..offer });
        assert!((25..100).contains(&firsts(seq, None)));
    }
}
