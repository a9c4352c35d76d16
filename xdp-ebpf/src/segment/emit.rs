//! Sends packets: writes headers and checksums, and finds the next hop. No other code sends.

use common::maps::flow::{HELLO_BYTES_MAX, HELLO_OFFSET_MASK};
use common::reason::Reason;
use common::wire::checksum;
use network_types::ip::IpProto;

use super::{draft, hops, next_hop, sums};
use crate::connection::narrow;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers, JUMBO_BYTES, RST, TCP_AT, TCP_BYTES_MAX, V4_BYTES, V6_BYTES};
use crate::scratch::{Cursors, Draft, Received};
use crate::verified::verified;

/// Determines whether the packet's checksum is still to be completed. A checksum replacement without pseudo
/// header leaves such a packet alone and changes any other; the change is taken back. Must run before the packet is changed.
#[inline(always)]
pub(crate) fn learn_partial(skb: Skb, received: &mut Received) -> Result<(), Exit> {
    if received.partial_known {
        return Ok(());
    }
    let at = checksum_at(received);
    learn_partial_at(skb, received, at)
}

/// The same for a packet whose headers are as they were received.
#[inline(always)]
pub(crate) fn learn_partial_of_received(skb: Skb, received: &mut Received) -> Result<(), Exit> {
    received.kept.bytes[0] = received.headers.bytes[TCP_AT + 16];
    received.kept.bytes[1] = received.headers.bytes[TCP_AT + 17];
    let at = checksum_at(received);
    try_replacement(skb, received, at)
}

/// Like [`learn_partial`], but tries it on any two bytes of the transport header.
#[inline(always)]
pub(super) fn learn_partial_at(skb: Skb, received: &mut Received, at: u32) -> Result<(), Exit> {
    if !skb.load(at, received.kept.bytes.as_mut_ptr(), 2) {
        return Err(Exit::drop(Reason::EmitFailed));
    }
    try_replacement(skb, received, at)
}

verified! {
    /// Learns it by changing two bytes, which are in `received.kept`.
    fn try_replacement as emit_learn_partial[Skb, skb](received: Received; at: u32) -> Result<(), Exit> {
        let field = &mut received.kept;
        let failed = Exit::drop(Reason::EmitFailed);
        if !skb.fix_checksum(at, 1, false) {
            return Err(failed);
        }
        let now = field.bytes.as_mut_ptr().wrapping_add(2);
        if !skb.load(at, now, 2) {
            return Err(failed);
        }
        received.partial = field.be16(0) == field.be16(2);
        // Like the replacement, without a change of the sum over the packet.
        if !received.partial && !skb.store_headers(at, field.bytes.as_ptr(), 2) {
            return Err(failed);
        }
        Ok(())
    }
}

/// Returns the offset of the TCP checksum in the frame.
#[inline(always)]
fn checksum_at(received: &Received) -> u32 {
    received.segment.tcp_at() + 16
}

verified! {
    /// Sends the draft in place of the packet, counted under `draft.reason`. [`learn_partial`] must have run.
    pub(crate) fn emit_draft as emit_in_place[Skb, skb](received: Received, draft: Draft, cursors: Cursors) -> Exit {
        match draft::make(skb, received, draft).and_then(|()| store(skb, received, draft, cursors)) {
            Ok(resolved) => {
                next_hop::depart(skb, received, draft, resolved);
                Exit::sent_for(draft.reason)
            }
            Err(exit) => exit,
        }
    }
}

verified! {
    /// Sends a copy of the draft; the packet stays in hand for another draft. Returns `false` when it was not
    /// sent, which is counted: a copy cannot wait for a link address.
    pub(crate) fn copy as emit_copy[Skb, skb](received: Received, draft: Draft, cursors: Cursors) -> bool {
        let made = draft::make(skb, received, draft).and_then(|()| store(skb, received, draft, cursors));
        if matches!(made, Ok(true)) && skb.clone_to(draft.route.ifindex) {
            return true;
        }
        maps::count_event(Reason::EmitCopyLost);
        false
    }
}

verified! {
    /// Sends the packet after its headers were rewritten in place; `draft.tuple` has sender and receiver.
    fn emit_rewritten as emit_packet[Skb, skb](received: Received, draft: Draft) -> Exit {
        match rewrite(skb, received, draft) {
            Ok(resolved) => {
                next_hop::depart_on_flow(skb, received, draft, resolved);
                Exit::sent_for(draft.reason)
            }
            Err(exit) => exit,
        }
    }
}

#[inline(always)]
fn rewrite(skb: Skb, received: &mut Received, draft: &mut Draft) -> Result<bool, Exit> {
    let v4 = received.segment.v4;
    if v4 && hops::may_be_fragmented(received) {
        draft::lose_df(&mut received.headers, maps::next_identification(skb.segments()));
    }
    if !lower_hop_limit(received, draft) {
        return Err(Exit::icmp_error(Reason::IcmpHopLimit));
    }
    received.headers.set_port(TCP_AT, draft.tuple.client_port);
    received.headers.set_port(TCP_AT + 2, draft.tuple.vip_port);
    let ip_bytes = segment_bytes(skb, received);
    let resolved = match next_hop::find_for_flow(skb, received, draft, ip_bytes) {
        Err(exit) if exit == Exit::drop(Reason::EmitTooBig) => too_big(skb, received, draft, ip_bytes)?,
        found => found?,
    };
    let failed = Exit::drop(Reason::EmitFailed);
    let bytes = core::hint::black_box(received.segment.tcp_bytes) & 60;
    let addresses = sums::addresses_changed(&received.segment, draft);
    let header = sums::header_changed(received, bytes);
    let length = core::hint::black_box((if v4 { V4_BYTES } else { V6_BYTES }) + bytes);
    if !(20..=V6_BYTES + 60).contains(&length) {
        return Err(failed);
    }
    if v4 {
        let length = core::hint::black_box(length.min(V4_BYTES + 60));
        if !(20..=V4_BYTES + 60).contains(&length)
            || !skb.store_headers(0, received.headers.frame(true), length)
        {
            return Err(failed);
        }
    } else if received.segment.jumbo_bytes != 0 {
        if !store_jumbo(skb, received, bytes) {
            return Err(failed);
        }
    } else if !skb.store_headers(0, received.headers.frame(false), length) {
        return Err(failed);
    }
    let at = checksum_at(received);
    if !skb.fix_checksum(at, addresses, true) || !skb.fix_checksum(at, header, false) {
        return Err(failed);
    }
    if !v4 {
        // By one, whatever it was.
        skb.add_to_sum(sums::v6_header_changed(addresses, 1, 0));
    }
    Ok(resolved)
}

/// Finds the next hop of a packet that is larger than the MTU of its route. The node learns such an MTU from ICMP errors to its own
/// addresses, which a client may send about itself; a backend would believe it of all clients. So an IPv4 packet that the device
/// takes loses DF, and an IPv6 backend is not notified of too many.
#[inline(always)]
fn too_big(skb: Skb, received: &mut Received, draft: &mut Draft, ip_bytes: u32) -> Result<bool, Exit> {
    let told = Exit::icmp_error(Reason::IcmpTooBig);
    if !hops::is_about_all(received) {
        return Err(told);
    }
    if !received.segment.v4 {
        let second = (received.now_ns / 1_000_000_000) as u32;
        let may_notify = narrow::may_notify(&mut received.client, received.generation, second);
        return Err(if may_notify { told } else { Exit::drop(Reason::IcmpTooMany) });
    }
    let resolved = next_hop::find_on_device(skb, received, draft)
        .map_err(|exit| if exit == Exit::drop(Reason::EmitTooBig) { told } else { exit })?;
    if ip_bytes > kernel::mtu_found(&draft.route) {
        return Err(told);
    }
    if !hops::may_be_fragmented(received) {
        draft::lose_df(&mut received.headers, maps::next_identification(skb.segments()));
        draft::write_ip_checksum(&mut received.headers, Headers::V4);
    }
    Ok(resolved)
}

/// Stores the headers around the jumbo header, which stays as it is. The TCP header has `bytes` bytes.
#[inline(always)]
fn store_jumbo(skb: Skb, received: &mut Received, bytes: u32) -> bool {
    received.headers.bytes[Headers::V6 + 6] = IpProto::HopOpt as u8;
    let bytes = core::hint::black_box(bytes);
    if bytes == 0 || bytes > TCP_BYTES_MAX {
        return false;
    }
    let tcp = received.headers.bytes.as_ptr().wrapping_add(TCP_AT);
    skb.store_headers(V6_BYTES + JUMBO_BYTES, tcp, bytes)
        && skb.store_headers(0, received.headers.frame(false), V6_BYTES)
}

/// Takes the jumbo header off, before the packet becomes another one that needs none. [`learn_partial`] must have run.
#[inline(always)]
pub(super) fn take_jumbo_off(skb: Skb, received: &mut Received) -> Result<(), Exit> {
    if received.segment.jumbo_bytes == 0 {
        return Ok(());
    }
    without_jumbo(skb, received)
}

verified! {
    fn without_jumbo as emit_without_jumbo[Skb, skb](received: Received) -> Result<(), Exit> {
        received.segment.jumbo_bytes = 0;
        received.kept.bytes[0] = IpProto::Tcp as u8;
        let next_header = received.kept.bytes.as_ptr();
        match skb.shrink_behind_ip(JUMBO_BYTES) && skb.store(ETH_BYTES + 6, next_header, 1) {
            true => Ok(()),
            false => Err(Exit::drop(Reason::EmitFailed)),
        }
    }
}

/// Returns the length of the IP packet in hand or, if it is a GSO packet, of the largest one it is cut into.
#[inline(always)]
fn segment_bytes(skb: Skb, received: &Received) -> u32 {
    let (seg, cut) = (&received.segment, skb.segment_payload());
    let payload = if cut == 0 { seg.payload_bytes } else { seg.payload_bytes.min(cut) };
    // The jumbo header is in none of them.
    seg.payload_at - (seg.jumbo_bytes & JUMBO_BYTES) - ETH_BYTES + payload
}

/// Lowers the TTL or hop limit by one, and writes the new addresses and the IPv4 header checksum. Returns
/// `false` when no hop is left.
#[inline(always)]
pub(crate) fn lower_hop_limit(received: &mut Received, draft: &Draft) -> bool {
    let v4 = received.segment.v4;
    let at = if v4 { Headers::V4 + 8 } else { Headers::V6 + 7 };
    let h = &mut received.headers;
    if h.bytes[at] <= 1 {
        return false;
    }
    h.bytes[at] -= 1;
    draft::write_addresses(h, draft, v4);
    true
}

/// Saves the TCP header as received, for the checksum difference of [`pass`]. Must be called before the
/// header is changed.
#[inline(always)]
pub(crate) fn keep_received(received: &mut Received) {
    let bytes = received.segment.tcp_bytes;
    keep(received, bytes);
}

/// Saves the first `bytes` bytes after the IP header, at most 60.
#[inline(always)]
pub(crate) fn keep(received: &mut Received, bytes: u32) {
    let mut i = 0;
    while i < sums::USUAL_HEADER as usize {
        let word = received.headers.be32(TCP_AT + i);
        received.kept.set_be32(i, word);
        i += 4;
    }
    if bytes <= sums::USUAL_HEADER {
        return;
    }
    while i < 60 {
        let word = received.headers.be32(TCP_AT + i);
        received.kept.set_be32(i, word);
        i += 4;
    }
}

/// Stores the draft's headers and payload in the packet, and finds its next hop.
#[inline(always)]
fn store(skb: Skb, received: &mut Received, draft: &mut Draft, cursors: &mut Cursors) -> Result<bool, Exit> {
    let v4 = received.segment.v4;
    // The length of the draft: `draft::make` has resized the packet to it.
    let resolved = next_hop::find_for_ours(skb, received, draft, skb.length() - ETH_BYTES)?;
    let failed = Exit::drop(Reason::EmitFailed);
    let tcp_bytes = received.segment.tcp_bytes & 60;
    let fixed = if v4 { V4_BYTES } else { V6_BYTES };
    let payload = core::hint::black_box(draft.payload_bytes);
    let from = core::hint::black_box(draft.payload_from) & HELLO_OFFSET_MASK;
    let sum = sums::transport(received, draft, tcp_bytes);
    let field = match received.partial {
        true => checksum::fold(sum),
        false => !checksum::fold(sums::payload(draft, cursors, sum)),
    };
    received.headers.set_be16(TCP_AT + 16, field);
    let length = core::hint::black_box(tcp_bytes) & 60;
    if v4 {
        if !store_frame::<true>(skb, received, V4_BYTES + length) {
            return Err(failed);
        }
    } else if !store_frame::<false>(skb, received, V6_BYTES + length) {
        return Err(failed);
    }
    if payload > 0 {
        if from > HELLO_BYTES_MAX as u32 || payload > sums::PAYLOAD_MAX {
            return Err(failed);
        }
        let at = cursors.window.bytes.as_ptr().wrapping_add(from as usize);
        if !skb.store(fixed + tcp_bytes, at, payload) {
            return Err(failed);
        }
    }
    Ok(resolved)
}

/// Stores the first `bytes` bytes of a frame, all headers: a sum over the packet (CHECKSUM_COMPLETE) begins behind Ethernet's.
#[inline(always)]
pub(crate) fn store_frame<const V4: bool>(skb: Skb, received: &mut Received, bytes: u32) -> bool {
    let frame = received.headers.frame(V4);
    let ip = frame.wrapping_add(ETH_BYTES as usize);
    let most = (if V4 { V4_BYTES } else { V6_BYTES }) + TCP_BYTES_MAX - ETH_BYTES;
    let bytes = core::hint::black_box(bytes - ETH_BYTES);
    if bytes == 0 || bytes > most {
        return false;
    }
    skb.store(ETH_BYTES, ip, bytes) && skb.store_headers(0, frame, ETH_BYTES)
}

/// Sends the packet with its rewritten headers to the receiver of `draft.tuple`.
#[inline(always)]
pub(crate) fn pass(skb: Skb, received: &mut Received, draft: &mut Draft, reason: Reason) -> Exit {
    draft.reason = reason as u32;
    emit_rewritten(skb, received, draft)
}

/// Answers the packet in hand with RST, for the reason of an [`Exit::reset`]. A RST is never answered, and has a reason of
/// its own, so that RSTs sent can be counted by reason.
#[inline(always)]
pub(crate) fn reset(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    cursors: &mut Cursors,
    exit: Exit,
) -> Exit {
    if received.segment.has(RST) {
        return Exit::drop(Reason::EmitUnanswered);
    }
    draft::answer(draft, &received.segment);
    draft::reset_numbers(draft, &received.segment);
    send_for(skb, received, draft, cursors, exit)
}

/// Sends the draft in place of the packet.
#[inline(always)]
pub(crate) fn send(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    cursors: &mut Cursors,
    reason: Reason,
) -> Exit {
    send_for(skb, received, draft, cursors, Exit::sent(reason))
}

/// Sends the draft in place of the packet, counted under the reason of `exit`.
#[inline(always)]
pub(crate) fn send_for(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    cursors: &mut Cursors,
    exit: Exit,
) -> Exit {
    if let Err(failed) = learn_partial(skb, received) {
        return failed;
    }
    draft.reason = exit.reason();
    emit_draft(skb, received, draft, cursors)
}
