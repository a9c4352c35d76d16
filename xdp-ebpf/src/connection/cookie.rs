//! What proves that a client received our SYN-ACK: the cookie, which is the SYN-ACK's sequence number.

use common::decide::cookie::{self, Verdict};
use common::maps::flow::{OPTION_SACK, OPTION_TIMESTAMPS};

use crate::kernel;
use crate::maps;
use crate::packet::{ACK, FIN, RST, SYN};
use crate::scratch::{Received, Waiting};
use crate::verified::verified;

/// No valid cookie.
pub(crate) const PROOF_NONE: u32 = 0;
/// A segment of one of our handshakes, but later than the first.
pub(crate) const PROOF_LATER: u32 = 1;
/// The client's first segment after our SYN-ACK.
pub(crate) const PROOF_FIRST: u32 = 2;
/// A keep-alive of a client that has not sent its first segment yet.
pub(crate) const PROOF_KEEP_ALIVE: u32 = 3;

/// Returns what the segment proves: `PROOF_*`. With [`PROOF_FIRST`] and [`PROOF_KEEP_ALIVE`], `pending` has what the
/// client offered.
#[inline(always)]
pub(crate) fn proof(received: &mut Received, waiting: &mut Waiting) -> u32 {
    if received.segment.flags & (SYN | RST | ACK) != ACK {
        return PROOF_NONE;
    }
    if received.segment.payload_bytes > 1 || received.segment.has(FIN) {
        return check(received, waiting, 1);
    }
    of_short(received, waiting)
}

verified! {
    /// Returns what a segment proves that may be a keep-alive: it has at most one byte, and repeats the last number that was
    /// acknowledged (RFC 9293 section 3.8.4).
    fn of_short as cookie_of_short(received: Received, waiting: Waiting) -> u32 {
        // A single byte is more likely garbage than the hello's first, and would have the hello refused.
        let garbage = received.segment.payload_bytes == 1;
        let (expected, other) = match garbage {
            true => (PROOF_KEEP_ALIVE, PROOF_FIRST),
            false => (PROOF_FIRST, PROOF_KEEP_ALIVE),
        };
        match check(received, waiting, u32::from(!garbage)) {
            PROOF_FIRST => expected,
            // Hashed a second time only if the tuple's tag is right: a flood of such segments costs no more than one of
            // others.
            PROOF_LATER if check(received, waiting, u32::from(garbage)) == PROOF_FIRST => other,
            proof => proof,
        }
    }
}

verified! {
    /// Checks the cookie that a segment acknowledges. The segment begins `ahead` bytes behind the SYN's own number.
    fn check as cookie_check(received: Received, waiting: Waiting; ahead: u32) -> u32 {
        let seg = &received.segment;
        let cookie = seg.ack.wrapping_sub(1);
        let isn = seg.seq.wrapping_sub(ahead);
        let Some(key) = maps::cookie_key(cookie::key_index(cookie)) else { return PROOF_NONE };
        // The key is zero while the map is not filled: it proves nothing.
        if key.k0 | key.k1 == 0 {
            return PROOF_NONE;
        }
        let epoch = cookie::epoch(kernel::tai_ns());
        let stamp = match seg.timestamps_at {
            0 => None,
            at => Some(received.headers.tcp_byte(at + 7)),
        };
        match cookie::check(key, &seg.tuple, isn, epoch, cookie, stamp) {
            Verdict::Mismatch => PROOF_NONE,
            Verdict::Later => PROOF_LATER,
            Verdict::First(offer) => {
                let p = &mut waiting.pending;
                p.isn = isn;
                p.vip_isn = cookie;
                p.mss = offer.mss;
                p.window_scale = offer.window_scale;
                p.options = if offer.sack { OPTION_SACK } else { 0 };
                if offer.timestamps {
                    p.options |= OPTION_TIMESTAMPS;
                }
                PROOF_FIRST
            }
        }
    }
}
