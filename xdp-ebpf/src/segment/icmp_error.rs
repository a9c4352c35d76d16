//! Our own ICMP errors: to the sender of a segment that cannot be passed on, as a router does (RFC 1812
//! section 4.3, RFC 4443), and to senders of packets other than TCP.
//!
//! The segment itself becomes the quotation: it is cut short, and the new headers are put in front of it. If
//! a device must still complete its checksum (CHECKSUM_PARTIAL), that is the checksum of the quoted segment,
//! and the result is known in advance.

use common::reason::Reason;
use common::wire::checksum;
use network_types::ip::IpProto;

use super::{draft, emit, next_hop, sums};
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::packet::{ETH_BYTES, Headers, TCP_AT, V4_BYTES, V6_BYTES};
use crate::scratch::{Cursors, Draft, Received};
use crate::verified::verified;

/// TCP bytes that are quoted: the header without options. Receivers need the first 8.
const QUOTED_TCP: u32 = 20;
/// Length of the whole ICMP message.
const MESSAGE_V4: u32 = 8 + 20 + QUOTED_TCP;
const MESSAGE_V6: u32 = 8 + 40 + QUOTED_TCP;

/// Bytes quoted after the IP header of a packet that is not TCP (RFC 792, RFC 4443).
const QUOTED: u32 = 8;

verified! {
    /// Answers the TCP segment in hand, which must still be unchanged, for the reason of an
    /// [`Exit::icmp_error`].
    pub(crate) fn about_segment as icmp_error_segment[Skb, skb](
        received: Received, draft: Draft, cursors: Cursors; reason: u32
    ) -> Exit {
        let made = match received.segment.v4 {
            true => quote_segment::<true>(skb, received, draft, cursors, reason),
            false => quote_segment::<false>(skb, received, draft, cursors, reason),
        };
        next_hop::departed(made, draft, reason)
    }
}

verified! {
    /// Answers a packet that is not TCP with "port unreachable" (UDP) or "protocol unreachable".
    pub(crate) fn unreachable as icmp_error_unreachable[Skb, skb](
        received: Received, draft: Draft, cursors: Cursors
    ) -> Exit {
        let made = quote_packet(skb, received, draft, cursors);
        next_hop::departed(made, draft, Reason::ClassifyUnreachable as u32)
    }
}

#[inline(always)]
fn quote_segment<const V4: bool>(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    cursors: &mut Cursors,
    reason: u32,
) -> Result<bool, Exit> {
    let failed = Exit::drop(Reason::EmitFailed);
    let (fixed, ip_bytes, message) = if V4 { (V4_BYTES, 20, MESSAGE_V4) } else { (V6_BYTES, 40, MESSAGE_V6) };
    let too_big = reason == Reason::IcmpTooBig as u32;
    // The MTU towards the receiver, read before the route back is looked up below.
    let mtu = if too_big { kernel::mtu_found(&draft.route) } else { 0 };
    if !V4 && received.segment.jumbo_bytes != 0 {
        emit::learn_partial(skb, received)?;
        received.partial_known = true;
        emit::take_jumbo_off(skb, received)?;
    }
    if !skb.resize(fixed + QUOTED_TCP) {
        return Err(failed);
    }
    emit::learn_partial(skb, received)?;
    let window = &mut cursors.window.bytes;
    let pseudo = received.headers.be16(TCP_AT + 16);
    if !skb.load(ETH_BYTES, window[8..].as_mut_ptr(), ip_bytes + QUOTED_TCP)
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
    window[0] = kind[0];
    window[1] = kind[1];
    window[2..4].fill(0);
    // IPv4 has the MTU in the last two of these four bytes (RFC 1191), IPv6 in all four.
    window[4..8].copy_from_slice(&mtu.to_be_bytes());
    draft::answer(draft, &received.segment);
    draft::icmp_header(received, draft, message);
    let whole = if received.partial { 8 + ip_bytes } else { message };
    let mut sum = sums::of(window.as_ptr(), whole, sums::icmp_pseudo(V4, draft, message));
    if received.partial {
        // The device makes the quoted segment sum up to the complement of what is in its checksum field now.
        sum += u32::from(!pseudo);
    }
    let sum = (!checksum::fold(sum)).to_be_bytes();
    window[2] = sum[0];
    window[3] = sum[1];
    let resolved = next_hop::find(skb, received, draft, 0)?;
    let stored =
        emit::store_frame::<V4>(skb, received, fixed) && skb.store(fixed, cursors.window.bytes.as_ptr(), 8);
    if stored { Ok(resolved) } else { Err(failed) }
}

#[inline(always)]
fn quote_packet(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    cursors: &mut Cursors,
) -> Result<bool, Exit> {
    let v4 = received.segment.v4;
    let (fixed, ip_bytes) = if v4 { (V4_BYTES, 20) } else { (V6_BYTES, 40) };
    let at = if v4 { Headers::V4 + 9 } else { Headers::V6 + 6 };
    let protocol = received.headers.bytes[at];
    // An error about ICMP is never sent: two hosts could answer each other forever.
    if protocol == IpProto::Icmp as u8 || protocol == IpProto::Ipv6Icmp as u8 || skb.length() < fixed + QUOTED
    {
        return Err(Exit::drop(Reason::ClassifyDropped));
    }
    let quoted = ip_bytes + QUOTED;
    let failed = Exit::drop(Reason::EmitFailed);
    // After the 8 bytes of the ICMP header, in the window.
    let window = &mut cursors.window.bytes;
    window[..8].fill(0);
    if !(if v4 {
        skb.load(ETH_BYTES, window[8..].as_mut_ptr(), 28)
    } else {
        skb.load(ETH_BYTES, window[8..].as_mut_ptr(), 48)
    }) {
        return Err(failed);
    }
    // After the quotation was read, because this changes the packet.
    emit::learn_partial_at(skb, received, fixed + 2)?;
    let udp = protocol == IpProto::Udp as u8;
    let window = &mut cursors.window.bytes;
    window[0] = if v4 { 3 } else { 1 };
    window[1] = if v4 { if udp { 3 } else { 2 } } else { 4 };
    draft::answer(draft, &received.segment);
    let icmp_bytes = 8 + quoted;
    draft::icmp_header(received, draft, icmp_bytes);
    if !skb.resize(fixed + icmp_bytes) {
        return Err(failed);
    }
    sums::icmp(received, draft, cursors, icmp_bytes);
    let resolved = next_hop::find(skb, received, draft, 0)?;
    let message = cursors.window.bytes.as_ptr();
    let stored = if v4 {
        emit::store_frame::<true>(skb, received, V4_BYTES) && skb.store(V4_BYTES, message, 36)
    } else {
        emit::store_frame::<false>(skb, received, V6_BYTES) && skb.store(V6_BYTES, message, 56)
    };
    if stored { Ok(resolved) } else { Err(failed) }
}
