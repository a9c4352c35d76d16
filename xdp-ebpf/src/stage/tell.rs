//! Tells the sender of a segment that cannot be passed on why, as a router does (RFC 1812 section 4.3, RFC 4443).
//!
//! The segment itself becomes the quotation: it is cut, and what stands before it is put in front. A checksum that a
//! device has yet to complete (CHECKSUM_PARTIAL) is then the quoted one's, and what it will make of it is known.

use aya_ebpf::bindings::__sk_buff;
use common::reason::Reason;
use common::wire::checksum;

use crate::draft;
use crate::exit::Exit;
use crate::hop;
use crate::kernel::{self, Skb};
use crate::packet::{ETH_BYTES, Scratch, TCP_AT, V4_BYTES, V6_BYTES};
use crate::stage::emit;
use crate::sum;

/// Bytes of TCP that are quoted: the header without options. Receivers need the first 8.
const QUOTED_TCP: u32 = 20;
/// Bytes of the whole ICMP message.
const MESSAGE_V4: u32 = 8 + 20 + QUOTED_TCP;
const MESSAGE_V6: u32 = 8 + 40 + QUOTED_TCP;

/// Answers the TCP segment in hand, which nothing has changed yet, for the reason of an [`Exit::tell`].
#[inline(always)]
pub(crate) fn sender(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    match Exit::from_code(tell_sender(skb.0, s, exit.reason())) {
        Ok(()) => Exit::drop(Reason::EmitFailed),
        Err(exit) => exit,
    }
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn tell_sender(skb: *mut __sk_buff, s: *mut Scratch, reason: u32) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    let skb = Skb(skb);
    let told = if s.segment.v4 { quote::<true>(skb, s, reason) } else { quote::<false>(skb, s, reason) };
    match told {
        Ok(resolved) => {
            hop::depart(s, resolved);
            Exit::sent_code(reason)
        }
        Err(exit) => Exit::code(Err(exit)),
    }
}

#[inline(always)]
fn quote<const V4: bool>(skb: Skb, s: &mut Scratch, reason: u32) -> Result<bool, Exit> {
    let failed = Exit::drop(Reason::EmitFailed);
    let (fixed, ip_bytes, message) = if V4 { (V4_BYTES, 20, MESSAGE_V4) } else { (V6_BYTES, 40, MESSAGE_V6) };
    let too_big = reason == Reason::IcmpTooBig as u32;
    // Of the way on; the way back is looked up below.
    let mtu = if too_big { kernel::mtu_found(&s.route_request) } else { 0 };
    if !skb.resize(fixed + QUOTED_TCP) {
        return Err(failed);
    }
    emit::learn_partial(skb, s)?;
    // The question may have changed the field.
    let field = s.headers.bytes.as_ptr().wrapping_add(TCP_AT + 16);
    let told = s.headers.be16(TCP_AT + 16);
    if !skb.store_headers(fixed + 16, field, 2)
        || !skb.load(ETH_BYTES, s.window.bytes[8..].as_mut_ptr(), ip_bytes + QUOTED_TCP)
        || !skb.grow_in_front(8 + ip_bytes)
    {
        return Err(failed);
    }
    let kind = match (V4, too_big) {
        (true, true) => [3, 4],
        (true, false) => [11, 0],
        (false, true) => [2, 0],
        (false, false) => [3, 0],
    };
    s.window.bytes[0] = kind[0];
    s.window.bytes[1] = kind[1];
    s.window.bytes[2..4].fill(0);
    // IPv4 has the MTU in the last two of these four bytes (RFC 1191), IPv6 in all.
    s.window.bytes[4..8].copy_from_slice(&mtu.to_be_bytes());
    draft::answer(s);
    draft::icmp_header(s, message);
    let bytes = s.window.bytes.as_ptr();
    let whole = if s.partial { 8 + ip_bytes } else { message };
    let mut sum = sum::of(bytes, whole, sum::icmp_pseudo(s, message));
    if s.partial {
        // The device makes the quoted segment sum up to the complement of what stands in its field now.
        sum += u32::from(!told);
    }
    let sum = (!checksum::fold(sum)).to_be_bytes();
    s.window.bytes[2] = sum[0];
    s.window.bytes[3] = sum[1];
    let resolved = hop::find(skb, s, 0)?;
    if !skb.store(0, s.headers.frame(V4), fixed) || !skb.store(fixed, s.window.bytes.as_ptr(), 8) {
        return Err(failed);
    }
    Ok(resolved)
}
