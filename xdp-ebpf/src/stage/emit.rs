//! Puts packets on their way: headers, checksums, next hop. The only stage that sends.

use aya_ebpf::bindings::__sk_buff;
use common::reason::Reason;
use common::wire::checksum;
use network_types::ip::IpProto;

use crate::draft;
use crate::exit::Exit;
use crate::hop;
use crate::kernel::Skb;
use crate::maps;
use crate::packet::{ETH_BYTES, Headers, RST, Scratch, TCP_AT, V4_BYTES, V6_BYTES};
use crate::sum;

/// Learns whether the packet's checksum is still to be completed: a replacement without pseudo header leaves such a
/// packet alone and changes any other (splice.md 3.a). Must run before the packet is changed.
#[inline(always)]
pub(crate) fn learn_partial(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    if s.partial_known {
        return Ok(());
    }
    let at = checksum_at(s.segment.v4);
    learn_partial_at(skb, s, at)
}

/// [`learn_partial`] by two bytes of the transport header that will be overwritten.
#[inline(always)]
fn learn_partial_at(skb: Skb, s: &mut Scratch, at: u32) -> Result<(), Exit> {
    let probe = s.received.bytes.as_mut_ptr();
    let failed = Exit::drop(Reason::EmitFailed);
    if !skb.load(at, probe, 2) || !skb.fix_checksum(at, 1, false) {
        return Err(failed);
    }
    let before = s.received.be16(0);
    if !skb.load(at, s.received.bytes.as_mut_ptr(), 2) {
        return Err(failed);
    }
    s.partial = s.received.be16(0) == before;
    Ok(())
}

/// Offset of the TCP checksum in the frame.
#[inline(always)]
const fn checksum_at(v4: bool) -> u32 {
    (if v4 { V4_BYTES } else { V6_BYTES }) + 16
}

/// Sends the draft in the packet's place. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn emit_draft(skb: *mut __sk_buff, s: *mut Scratch, reason: u32) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    let skb = Skb(skb);
    match draft::make(skb, s).and_then(|()| store(skb, s)) {
        Ok(resolved) => {
            hop::depart(s, resolved);
            Exit::sent_code(reason)
        }
        Err(exit) => Exit::code(Err(exit)),
    }
}

/// Sends a copy of the draft; the packet stays in hand for another draft. 1 = sent; one that is not is counted: a copy
/// cannot wait for a link address. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn emit_copy(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: as in `emit_draft`.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let skb = Skb(skb);
    let resolved = matches!(draft::make(skb, s).and_then(|()| store(skb, s)), Ok(true));
    if resolved && skb.clone_to(s.route_request.ifindex) {
        return 1;
    }
    maps::count_event(Reason::EmitCopyLost);
    0
}

/// Sends the packet whose headers were rewritten in place; `draft.tuple` tells the way. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn emit_rewritten(skb: *mut __sk_buff, s: *mut Scratch, reason: u32) -> u32 {
    // SAFETY: as in `emit_draft`.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    let skb = Skb(skb);
    match rewrite(skb, s) {
        Ok(resolved) => {
            hop::depart(s, resolved);
            Exit::sent_code(reason)
        }
        Err(exit) => Exit::code(Err(exit)),
    }
}

#[inline(always)]
fn rewrite(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let v4 = s.segment.v4;
    if !lower_hop_limit(s) {
        return Err(Exit::tell(Reason::IcmpHopLimit));
    }
    write_ports(s);
    let resolved = hop::find(skb, s, segment_bytes(skb, s)).map_err(|exit| {
        if exit == Exit::drop(Reason::EmitTooBig) { Exit::tell(Reason::IcmpTooBig) } else { exit }
    })?;
    let failed = Exit::drop(Reason::EmitFailed);
    let bytes = core::hint::black_box(s.segment.tcp_bytes) & 60;
    let (addresses, header) = (sum::addresses_changed(s), sum::header_changed(s, bytes));
    let length = core::hint::black_box((if v4 { V4_BYTES } else { V6_BYTES }) + bytes);
    if !(20..=V6_BYTES + 60).contains(&length) {
        return Err(failed);
    }
    if v4 {
        let length = core::hint::black_box(length.min(V4_BYTES + 60));
        if !(20..=V4_BYTES + 60).contains(&length) || !skb.store_headers(0, s.headers.frame(true), length) {
            return Err(failed);
        }
    } else if !skb.store_headers(0, s.headers.frame(false), length) {
        return Err(failed);
    }
    if !skb.fix_checksum(checksum_at(v4), addresses, true)
        || !skb.fix_checksum(checksum_at(v4), header, false)
    {
        return Err(failed);
    }
    Ok(resolved)
}

/// Bytes of the IP packet in hand, or of the largest it is cut into.
#[inline(always)]
fn segment_bytes(skb: Skb, s: &Scratch) -> u32 {
    let (seg, cut) = (&s.segment, skb.segment_payload());
    let payload = if cut == 0 { seg.payload_bytes } else { seg.payload_bytes.min(cut) };
    seg.payload_at - ETH_BYTES + payload
}

/// Takes one hop off TTL or hop limit, writes the new addresses, and the IPv4 header checksum. `false`: none is left.
#[inline(always)]
pub(crate) fn lower_hop_limit(s: &mut Scratch) -> bool {
    let v4 = s.segment.v4;
    let at = if v4 { Headers::V4 + 8 } else { Headers::V6 + 7 };
    let h = &mut s.headers;
    if h.bytes[at] <= 1 {
        return false;
    }
    h.bytes[at] -= 1;
    draft::write_addresses(h, &s.draft, v4);
    true
}

#[inline(always)]
fn write_ports(s: &mut Scratch) {
    let (h, d) = (&mut s.headers, &s.draft.tuple);
    h.set_port(TCP_AT, d.client_port);
    h.set_port(TCP_AT + 2, d.vip_port);
}

/// Keeps the TCP header as it came, for the checksum difference of [`pass`]. To be called before it is changed.
#[inline(always)]
pub(crate) fn keep_received(s: &mut Scratch) {
    let bytes = s.segment.tcp_bytes;
    keep(s, bytes);
}

/// Keeps so many bytes, at most 60, of what stands behind the IP header.
#[inline(always)]
pub(crate) fn keep(s: &mut Scratch, bytes: u32) {
    let mut i = 0;
    while i < sum::USUAL_HEADER as usize {
        let word = s.headers.be32(TCP_AT + i);
        s.received.set_be32(i, word);
        i += 4;
    }
    if bytes <= sum::USUAL_HEADER {
        return;
    }
    while i < 60 {
        let word = s.headers.be32(TCP_AT + i);
        s.received.set_be32(i, word);
        i += 4;
    }
}

/// Stores headers and payload of the draft in the packet and finds its way.
#[inline(always)]
fn store(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let v4 = s.segment.v4;
    // The draft's own length: `draft::make` has cut the packet to it.
    let resolved = hop::find_for_ours(skb, s, skb.length() - ETH_BYTES)?;
    let failed = Exit::drop(Reason::EmitFailed);
    let tcp_bytes = s.segment.tcp_bytes & 60;
    let fixed = if v4 { V4_BYTES } else { V6_BYTES };
    let payload = core::hint::black_box(s.draft.payload_bytes);
    let from = core::hint::black_box(s.draft.payload_from) & 0x3fff;
    let sum = sum::transport(s, tcp_bytes);
    let field = if s.partial { checksum::fold(sum) } else { !checksum::fold(sum::payload(s, sum)) };
    s.headers.set_be16(TCP_AT + 16, field);
    let length = core::hint::black_box(tcp_bytes) & 60;
    if v4 {
        if !skb.store(0, s.headers.frame(true), V4_BYTES + length) {
            return Err(failed);
        }
    } else if !skb.store(0, s.headers.frame(false), V6_BYTES + length) {
        return Err(failed);
    }
    if payload > 0 {
        let at = s.window.bytes.as_ptr().wrapping_add(from as usize);
        if payload > sum::PAYLOAD_MAX || !skb.store(fixed + tcp_bytes, at, payload) {
            return Err(failed);
        }
    }
    Ok(resolved)
}

/// Sends the packet with its rewritten headers the way of `draft.tuple`.
#[inline(always)]
pub(crate) fn pass(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    match Exit::from_code(emit_rewritten(skb.0, s, reason as u32)) {
        Ok(()) => Exit::drop(Reason::EmitFailed),
        Err(exit) => exit,
    }
}

/// Sends the packet with nothing but addresses and ports changed.
#[inline(always)]
pub(crate) fn pass_through(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    keep_received(s);
    pass(skb, s, reason)
}

/// Answers the packet in hand with RST, for the reason of an [`Exit::reset`].
#[inline(always)]
pub(crate) fn reset_code(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    if s.segment.has(RST) {
        return exit.dropped();
    }
    draft::answer(s);
    draft::reset_numbers(&mut s.draft, &s.segment);
    send_exit(skb, s, exit)
}

/// Answers the packet in hand with RST. A RST is never answered.
#[inline(always)]
pub(crate) fn reset(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    if s.segment.has(RST) {
        return Exit::drop(reason);
    }
    draft::answer(s);
    draft::reset_numbers(&mut s.draft, &s.segment);
    send(skb, s, reason)
}

/// Sends the draft in the packet's place.
#[inline(always)]
pub(crate) fn send(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    send_exit(skb, s, Exit::sent(reason))
}

/// Sends the draft in the packet's place, counted under the reason of `exit`.
#[inline(always)]
pub(crate) fn send_exit(skb: Skb, s: &mut Scratch, exit: Exit) -> Exit {
    if let Err(failed) = learn_partial(skb, s) {
        return failed;
    }
    match Exit::from_code(emit_draft(skb.0, s, exit.reason())) {
        Ok(()) => Exit::drop(Reason::EmitFailed),
        Err(exit) => exit,
    }
}

/// Bytes of the offending packet that an ICMP error quotes, behind its IP header (RFC 792, RFC 4443).
const QUOTED: u32 = 8;

/// Answers a packet that is not TCP with ICMP "port unreachable" (UDP) or "protocol unreachable".
#[inline(always)]
pub(crate) fn unreachable(skb: Skb, s: &mut Scratch) -> Exit {
    match Exit::from_code(emit_unreachable(skb.0, s)) {
        Ok(()) => Exit::drop(Reason::EmitFailed),
        Err(exit) => exit,
    }
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn emit_unreachable(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: as in `emit_draft`.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    match quote(Skb(skb), s) {
        Ok(resolved) => {
            hop::depart(s, resolved);
            Exit::sent_code(Reason::ClassifyUnreachable as u32)
        }
        Err(exit) => Exit::code(Err(exit)),
    }
}

#[inline(always)]
fn quote(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let v4 = s.segment.v4;
    let (fixed, ip_bytes) = if v4 { (V4_BYTES, 20) } else { (V6_BYTES, 40) };
    let protocol = if v4 { s.headers.bytes[Headers::V4 + 9] } else { s.headers.bytes[Headers::V6 + 6] };
    // Never an error about ICMP: the two could go on for ever.
    if protocol == IpProto::Icmp as u8 || protocol == IpProto::Ipv6Icmp as u8 || skb.length() < fixed + QUOTED
    {
        return Err(Exit::drop(Reason::ClassifyDropped));
    }
    let quoted = ip_bytes + QUOTED;
    let failed = Exit::drop(Reason::EmitFailed);
    // Behind the 8 bytes of the ICMP header, in the window.
    s.window.bytes[..8].fill(0);
    if !(if v4 {
        skb.load(ETH_BYTES, s.window.bytes[8..].as_mut_ptr(), 28)
    } else {
        skb.load(ETH_BYTES, s.window.bytes[8..].as_mut_ptr(), 48)
    }) {
        return Err(failed);
    }
    // Behind the quotation: it changes the packet.
    learn_partial_at(skb, s, fixed + 2)?;
    let udp = protocol == IpProto::Udp as u8;
    s.window.bytes[0] = if v4 { 3 } else { 1 };
    s.window.bytes[1] = if v4 { if udp { 3 } else { 2 } } else { 4 };
    draft::answer(s);
    let icmp_bytes = 8 + quoted;
    draft::icmp_header(s, icmp_bytes);
    if !skb.resize(fixed + icmp_bytes) {
        return Err(failed);
    }
    sum::icmp(s, icmp_bytes);
    let resolved = hop::find(skb, s, 0)?;
    let stored = if v4 {
        skb.store(0, s.headers.frame(true), V4_BYTES) && skb.store(V4_BYTES, s.window.bytes.as_ptr(), 36)
    } else {
        skb.store(0, s.headers.frame(false), V6_BYTES) && skb.store(V6_BYTES, s.window.bytes.as_ptr(), 56)
    };
    if stored { Ok(resolved) } else { Err(failed) }
}
