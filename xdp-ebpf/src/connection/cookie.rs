//! What proves that a client received our SYN-ACK: the cookie, which is the SYN-ACK's sequence number.

use common::decide::cookie::{self, Verdict};
use common::maps::flow::{OPTION_SACK, OPTION_TIMESTAMPS};

use crate::kernel;
use crate::maps;
use crate::packet::{ACK, RST, SYN};
use crate::scratch::{Received, Waiting};
use crate::verified::verified;

/// No valid cookie.
pub(crate) const PROOF_NONE: u32 = 0;
/// A segment of one of our handshakes, but later than the first.
pub(crate) const PROOF_LATER: u32 = 1;
/// The client's first segment after our SYN-ACK.
pub(crate) const PROOF_FIRST: u32 = 2;

/// Returns what the segment proves: `PROOF_*`. With [`PROOF_FIRST`], `pending` has what the client offered.
#[inline(always)]
pub(crate) fn proof(received: &mut Received, waiting: &mut Waiting) -> u32 {
    if received.segment.flags & (SYN | RST | ACK) != ACK {
        return PROOF_NONE;
    }
    check(received, waiting)
}

verified! {
    /// Checks the cookie that a segment acknowledges.
    fn check as cookie_check(received: Received, waiting: Waiting) -> u32 {
        let seg = &received.segment;
        let cookie = seg.ack.wrapping_sub(1);
        let isn = seg.seq.wrapping_sub(1);
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
