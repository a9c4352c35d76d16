//! Answers SYNs of TLS listeners with a cookie and checks the cookie when it comes back. Stores nothing.

use common::decide::cookie::{self, Offer, Verdict};
use common::maps::flow::{
    HELLO_BYTES_MAX, HELLO_SACK, HELLO_TIMESTAMPS, WINDOW_SCALE_ANNOUNCED, WINDOW_SCALE_NONE,
};
use common::reason::Reason;

use crate::draft;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ACK, FIN, RST, SYN, Scratch};
use crate::stage::emit;

/// MSS of a client that names none (RFC 9293 section 3.7.1).
const MSS_DEFAULT_V4: u16 = 536;
const MSS_DEFAULT_V6: u16 = 1220;

/// Turns a SYN into its SYN-ACK.
#[inline(always)]
pub(crate) fn answer(skb: Skb, s: &mut Scratch) -> Exit {
    match Exit::from_code(syn_draft(s)) {
        Err(exit) => exit,
        Ok(()) => emit::send(skb, s, Reason::SynAnswered),
    }
}

/// Drafts the SYN-ACK. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn syn_draft(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    Exit::code(draft(s))
}

#[inline(always)]
fn draft(s: &mut Scratch) -> Result<(), Exit> {
    let seg = &s.segment;
    let mss = if seg.mss != 0 {
        seg.mss
    } else if seg.v4 {
        MSS_DEFAULT_V4
    } else {
        MSS_DEFAULT_V6
    };
    let timestamps = seg.timestamps_at != 0;
    let offer = Offer { mss, window_scale: seg.window_scale, sack: seg.sack_permitted, timestamps };
    let index = maps::settings().map_or(0, |settings| settings.cookie_key) & 1;
    let Some(key) = maps::cookie_key(index) else { return Err(Exit::drop(Reason::EmitFailed)) };
    let epoch = cookie::epoch(kernel::tai_ns());
    let cookie = cookie::make(key, index, &seg.tuple, seg.seq, epoch, &offer);
    draft::answer(s);
    let (d, seg) = (&mut s.draft, &s.segment);
    d.seq = cookie.seq;
    d.ack = seg.seq.wrapping_add(1);
    d.flags = SYN | ACK;
    // Never scaled (RFC 7323 section 2.2): what the stash takes.
    d.window = HELLO_BYTES_MAX as u16;
    d.mss = s.listener_mss;
    d.window_scale =
        if seg.window_scale == WINDOW_SCALE_NONE { WINDOW_SCALE_NONE } else { WINDOW_SCALE_ANNOUNCED };
    d.sack_permitted = seg.sack_permitted;
    d.timestamps = timestamps;
    d.tsval = kernel::timestamp(s.now_ns) & !0xff | u32::from(cookie.stamp);
    d.tsecr = seg.tsval;
    Ok(())
}

/// Judges the cookie a segment acknowledges. Verified once, on its own.
/// 0 = mismatch, 1 = a later segment of this handshake, 2 = the first: `s.hello` has what the client offered.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn syn_check(s: *mut Scratch) -> u32 {
    // SAFETY: as in `syn_draft`.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let seg = &s.segment;
    let cookie = seg.ack.wrapping_sub(1);
    let isn = seg.seq.wrapping_sub(1);
    let Some(key) = maps::cookie_key(cookie::key_index(cookie)) else { return 0 };
    // A map not yet filled is nobody's key.
    if key.k0 | key.k1 == 0 {
        return 0;
    }
    let epoch = cookie::epoch(kernel::tai_ns());
    let stamp = match seg.timestamps_at {
        0 => None,
        at => Some(s.headers.tcp_byte(at + 7)),
    };
    match cookie::check(key, &seg.tuple, isn, epoch, cookie, stamp) {
        Verdict::Mismatch => 0,
        Verdict::Later => 1,
        Verdict::First(offer) => {
            let h = &mut s.hello;
            h.isn = isn;
            h.cookie = cookie;
            h.mss = offer.mss;
            h.window_scale = offer.window_scale;
            h.flags = if offer.sack { HELLO_SACK } else { 0 };
            if offer.timestamps {
                h.flags |= HELLO_TIMESTAMPS;
            }
            2
        }
    }
}

/// Whether the segment begins a connection by a valid cookie: `s.hello` then has what the client offered. `Some(false)`: it
/// belongs to such a connection, behind its beginning.
#[inline(always)]
pub(crate) fn begins(s: &mut Scratch) -> Option<bool> {
    if s.segment.flags & (SYN | RST | ACK) != ACK {
        return None;
    }
    match syn_check(s) {
        2 => Some(true),
        1 => Some(false),
        _ => None,
    }
}

/// Lets through the first data of a connection; all else of a TLS listener without flow and hello leaves here.
#[inline(always)]
pub(crate) fn verify(s: &mut Scratch) -> Result<(), Exit> {
    if s.segment.has(RST) {
        return Err(Exit::drop(Reason::SynStray));
    }
    if !s.segment.has(ACK) || s.segment.has(SYN) {
        return Err(Exit::reset(Reason::SynCookieMismatch));
    }
    match syn_check(s) {
        2 if s.segment.payload_bytes > 0 => Ok(()),
        2 if s.segment.has(FIN) => Err(Exit::reset(Reason::SynClosedEarly)),
        2 => Err(Exit::drop(Reason::SynAcked)),
        // Of this handshake, but ahead of the hello (a later segment, or the bare answer to a repeated SYN-ACK): the
        // client has got nothing yet, and will repeat its hello.
        1 => Err(Exit::drop(Reason::SynEarly)),
        _ => Err(Exit::reset(Reason::SynCookieMismatch)),
    }
}
