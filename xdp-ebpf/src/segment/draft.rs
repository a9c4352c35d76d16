//! Our own segments: described by a [`Draft`], then written into the headers in hand.

use common::maps::flow::{ClientTuple, WINDOW_SCALE_NONE};
use common::reason::Reason;
use network_types::ip::IpProto;

use super::{emit, sums};
use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::{ACK, Headers, RST, SYN, Segment, TCP_AT, V4_BYTES, V6_BYTES};
use crate::scratch::{Draft, Received};

/// "Do not fragment", beside the fragment's offset (RFC 791).
const DF: u16 = 0x4000;

/// Hop limit of segments that we make.
pub(crate) const HOP_LIMIT: u8 = 64;

/// Drafts an answer to the sender of the packet in hand: addresses and ports swapped, no payload, no options.
#[inline(always)]
pub(crate) fn answer(d: &mut Draft, segment: &Segment) {
    let t = &segment.tuple;
    d.tuple.client = t.vip;
    d.tuple.vip = t.client;
    d.tuple.client_port = t.vip_port;
    d.tuple.vip_port = t.client_port;
    d.payload_bytes = 0;
    d.payload_from = 0;
    d.timestamps = false;
}

/// Addresses the draft to a client, from the VIP.
#[inline(always)]
pub(crate) fn to_client(draft: &mut Draft, client: &ClientTuple) {
    let d = &mut draft.tuple;
    d.client = client.vip;
    d.vip = client.client;
    d.client_port = client.vip_port;
    d.vip_port = client.client_port;
}

/// Makes the draft a RST at this sequence number, without payload and options.
#[inline(always)]
pub(crate) fn reset_at(draft: &mut Draft, seq: u32) {
    draft.payload_bytes = 0;
    draft.payload_from = 0;
    draft.timestamps = false;
    draft.window = 0;
    draft.seq = seq;
    draft.ack = 0;
    draft.flags = RST;
}

/// Sets the numbers of a reset that the sender of `segment` must accept (RFC 9293 section 3.10.7.1, RFC 5961
/// section 3).
#[inline(always)]
pub(crate) fn reset_numbers(draft: &mut Draft, segment: &Segment) {
    draft.window = 0;
    if segment.has(ACK) {
        draft.seq = segment.ack;
        draft.ack = 0;
        draft.flags = RST;
    } else {
        draft.seq = 0;
        draft.ack = segment.end();
        draft.flags = RST | ACK;
    }
}

/// Writes the headers of the draft and resizes the packet to its length.
#[inline(always)]
pub(crate) fn make(skb: Skb, received: &mut Received, d: &Draft) -> Result<(), Exit> {
    emit::take_jumbo_off(skb, received)?;
    let length = write(received, d);
    // A PARTIAL packet may never be shorter than its checksum field; every draft is longer.
    let fits = skb.length() == length && skb.segment_payload() == 0;
    if !fits && !skb.resize(length) {
        return Err(Exit::drop(Reason::EmitFailed));
    }
    Ok(())
}

/// Returns the length of the frame that [`write`] makes.
#[inline(always)]
pub(super) fn bytes(received: &Received, d: &Draft) -> u32 {
    let fixed = if received.segment.v4 { V4_BYTES } else { V6_BYTES };
    let tcp_bytes = match (d.flags & SYN != 0, d.timestamps && d.flags & RST == 0) {
        (true, _) => 40,
        (false, true) => 32,
        (false, false) => 20,
    };
    fixed + tcp_bytes + d.payload_bytes
}

/// Writes the headers of the draft into those in hand, and returns the length of its frame.
#[inline(always)]
pub(super) fn write(received: &mut Received, d: &Draft) -> u32 {
    let v4 = received.segment.v4;
    let h = &mut received.headers;
    let tcp_bytes = write_options(h, d);
    let payload = d.payload_bytes;
    if v4 {
        h.set_be32(Headers::V4, 0x4500_0000 | (20 + tcp_bytes + payload));
        h.set_be32(Headers::V4 + 4, 0x0000_4000);
        h.bytes[Headers::V4 + 8] = HOP_LIMIT;
        h.bytes[Headers::V4 + 9] = 6;
    } else {
        h.set_be32(Headers::V6, 0x6000_0000);
        h.set_be16(Headers::V6 + 4, (tcp_bytes + payload) as u16);
        h.bytes[Headers::V6 + 6] = 6;
        h.bytes[Headers::V6 + 7] = HOP_LIMIT;
    }
    write_addresses(h, d, v4);
    h.set_port(TCP_AT, d.tuple.client_port);
    h.set_port(TCP_AT + 2, d.tuple.vip_port);
    h.set_be32(TCP_AT + 4, d.seq);
    h.set_be32(TCP_AT + 8, d.ack);
    h.bytes[TCP_AT + 12] = (tcp_bytes << 2) as u8;
    h.bytes[TCP_AT + 13] = d.flags;
    h.set_be16(TCP_AT + 14, d.window);
    h.set_be32(TCP_AT + 16, 0);
    received.segment.tcp_bytes = tcp_bytes;
    (if v4 { V4_BYTES } else { V6_BYTES }) + tcp_bytes + payload
}

/// Writes the options of the draft in the order Linux uses, and returns the bytes of the TCP header.
#[inline(always)]
fn write_options(h: &mut Headers, d: &Draft) -> u32 {
    if d.flags & SYN != 0 {
        // Fixed offsets, with NOPs for options that are not wanted: MSS, SACK permitted, timestamps, window scale.
        h.set_be32(TCP_AT + 20, 0x0204_0000 | u32::from(d.mss));
        let sack = if d.sack_permitted { 0x0402 } else { 0x0101 };
        let (stamp, val, ecr) =
            if d.timestamps { (0x080a, d.tsval, d.tsecr) } else { (0x0101, 0x0101_0101, 0x0101_0101) };
        h.set_be16(TCP_AT + 24, sack);
        h.set_be16(TCP_AT + 26, stamp);
        h.set_be32(TCP_AT + 28, val);
        h.set_be32(TCP_AT + 32, ecr);
        let scale = if d.window_scale == WINDOW_SCALE_NONE {
            0x0101_0101
        } else {
            0x0103_0300 | u32::from(d.window_scale)
        };
        h.set_be32(TCP_AT + 36, scale);
        return 40;
    }
    if d.timestamps && d.flags & RST == 0 {
        h.set_be32(TCP_AT + 20, 0x0101_080a);
        h.set_be32(TCP_AT + 24, d.tsval);
        h.set_be32(TCP_AT + 28, d.tsecr);
        return 32;
    }
    20
}

/// Writes the IP header of one of our ICMP messages, with the draft's addresses.
#[inline(always)]
pub(crate) fn icmp_header(received: &mut Received, draft: &Draft, icmp_bytes: u32) {
    let (v4, h) = (received.segment.v4, &mut received.headers);
    if v4 {
        h.set_be32(Headers::V4, 0x4500_0000 | (20 + icmp_bytes));
        h.set_be32(Headers::V4 + 4, 0);
        h.bytes[Headers::V4 + 8] = HOP_LIMIT;
        h.bytes[Headers::V4 + 9] = IpProto::Icmp as u8;
    } else {
        h.set_be32(Headers::V6, 0x6000_0000);
        h.set_be16(Headers::V6 + 4, icmp_bytes as u16);
        h.bytes[Headers::V6 + 6] = IpProto::Ipv6Icmp as u8;
        h.bytes[Headers::V6 + 7] = HOP_LIMIT;
    }
    write_addresses(h, draft, v4);
}

/// Writes the draft's addresses and, for IPv4, the header checksum.
#[inline(always)]
pub(crate) fn write_addresses(h: &mut Headers, draft: &Draft, v4: bool) {
    if v4 {
        h.set_address(Headers::V4 + 12, &draft.tuple.client, true);
        h.set_address(Headers::V4 + 16, &draft.tuple.vip, true);
        write_ip_checksum(h, Headers::V4);
    } else {
        h.set_address(Headers::V6 + 8, &draft.tuple.client, false);
        h.set_address(Headers::V6 + 24, &draft.tuple.vip, false);
    }
}

/// Lets routers fragment the IPv4 packet, which gets an identification of its own (RFC 6864). Its checksum must be
/// written behind this.
#[inline(always)]
pub(crate) fn lose_df(h: &mut Headers, identification: u16) {
    let flags = h.be16(Headers::V4 + 6) & !DF;
    h.set_be16(Headers::V4 + 6, flags);
    h.set_be16(Headers::V4 + 4, identification);
}

/// Writes the checksum of the IPv4 header without options at a constant offset.
#[inline(always)]
pub(crate) fn write_ip_checksum(h: &mut Headers, at: usize) {
    h.set_be16(at + 10, 0);
    h.set_be16(at + 10, !sums::ip_header(h, at));
}
