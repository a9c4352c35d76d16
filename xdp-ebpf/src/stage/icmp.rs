//! ICMP about connections: finds the connection that an error quotes, and translates the error for the other end.
//!
//! As in conntrack, an error that is passed on has our own address on that side as its source: the receiver
//! cannot know the router on the other side.

use common::maps::flow::{ClientTuple, FLOW_RESET, Flow};
use common::reason::Reason;
use common::wire::{checksum, seq};
use network_types::ip::IpProto;

use crate::atomic;
use crate::delivery;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{Headers, TCP_AT, V4_BYTES, V6_BYTES};
use crate::scratch::{Cursors, Draft, Quote, Received};
use crate::segment::{draft, emit, next_hop, sums};
use crate::verified::verified;

/// The longest ICMP error that is read; routers quote at most 576 bytes (IPv4) or 1280 (IPv6).
const MESSAGE_MAX: u32 = 4096;

/// Type of "packet too big" (RFC 4443).
const TOO_BIG_V6: u8 = 2;
/// The smallest MTU of IPv6 (RFC 8200 section 5).
pub(crate) const MTU_LEAST_V6: u32 = 1280;

/// The kind of an ICMP message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Echo request.
    Echo,
    /// Larger than the MTU of the path.
    TooBig,
    /// Unreachable, or time exceeded.
    Unreachable,
    /// An error that ends nothing.
    Problem,
}

/// Returns the kind of an ICMP message that we act on, in a packet of this IP protocol without options;
/// otherwise `None`.
#[inline(always)]
pub(crate) fn kind(received: &Received, protocol: u8) -> Option<Kind> {
    let (kind, code) = (received.headers.bytes[TCP_AT], received.headers.bytes[TCP_AT + 1]);
    let v4 = received.segment.v4;
    if v4 && protocol == IpProto::Icmp as u8 {
        return match (kind, code) {
            (8, 0) => Some(Kind::Echo),
            (3, 4) => Some(Kind::TooBig),
            (3 | 11, _) => Some(Kind::Unreachable),
            (12, _) => Some(Kind::Problem),
            _ => None,
        };
    }
    if v4 || protocol != IpProto::Ipv6Icmp as u8 {
        return None;
    }
    match (kind, code) {
        (128, 0) => Some(Kind::Echo),
        (TOO_BIG_V6, _) => Some(Kind::TooBig),
        (1 | 3, _) => Some(Kind::Unreachable),
        (4, _) => Some(Kind::Problem),
        _ => None,
    }
}

/// The receiver of the quoted segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quoted {
    /// From the VIP to the client at `received.client`.
    ToClient,
    /// To a backend, for the client at `received.client`.
    ToBackend,
    /// From the VIP to a client that has no connection here, and may have one at the node that announced the VIP before.
    Elsewhere,
    /// No segment of a connection here.
    Unknown,
}

/// Reads the four-tuple that the error quotes and finds its connection.
#[inline(always)]
pub(crate) fn find(skb: Skb, received: &mut Received, quote: &mut Quote) -> Quoted {
    let quoted = match received.segment.v4 {
        true => read::<true>(skb, received, quote),
        false => read::<false>(skb, received, quote),
    };
    // An error is addressed to the sender of what it quotes.
    if !quoted || quote.tuple.client != received.segment.tuple.vip {
        return Quoted::Unknown;
    }
    if delivery::find_quoted(received, quote) {
        return Quoted::ToBackend;
    }
    let q = &quote.tuple;
    received.client = ClientTuple::tcp(q.vip, q.client, q.vip_port, q.client_port);
    match maps::flow(&received.client) {
        Some(flow) => {
            received.generation = flow.connection.generation;
            Quoted::ToClient
        }
        None if maps::pending(&received.client).is_none() && maps::half_open(&received.client).is_none() => {
            Quoted::Elsewhere
        }
        None => Quoted::Unknown,
    }
}

/// Reads addresses, ports and sequence number of the quoted segment from the headers.
#[inline(always)]
fn read<const V4: bool>(skb: Skb, received: &Received, quote: &mut Quote) -> bool {
    let (fixed, ip_bytes) = if V4 { (V4_BYTES, 20) } else { (V6_BYTES, 40) };
    let (h, ip) = (&received.headers, TCP_AT + 8);
    let tcp = ip + ip_bytes as usize;
    let plain = if V4 {
        h.bytes[ip] == 0x45 && h.be16(ip + 6) & 0x1fff == 0 && h.bytes[ip + 9] == IpProto::Tcp as u8
    } else {
        h.bytes[ip] >> 4 == 6 && h.bytes[ip + 6] == IpProto::Tcp as u8
    };
    if !plain || skb.length() < fixed + 8 + ip_bytes + 8 {
        return false;
    }
    let (source, destination) = if V4 { (ip + 12, ip + 16) } else { (ip + 8, ip + 24) };
    quote.tuple.client = h.address(source, V4);
    quote.tuple.vip = h.address(destination, V4);
    quote.tuple.client_port.bytes = [h.bytes[tcp], h.bytes[tcp + 1]];
    quote.tuple.vip_port.bytes = [h.bytes[tcp + 2], h.bytes[tcp + 3]];
    quote.seq = h.be32(tcp + 4);
    true
}

verified! {
    /// Whether the message's checksum is right; checked before we act on the message ourselves.
    pub(crate) fn is_whole as icmp_is_whole[Skb, skb](received: Received, cursors: Cursors) -> bool {
        let (h, seg) = (&received.headers, &received.segment);
        let (fixed, length, seed) = if seg.v4 {
            (V4_BYTES, u32::from(h.be16(Headers::V4 + 2)).wrapping_sub(20), 0)
        } else {
            let length = u32::from(h.be16(Headers::V6 + 4));
            (V6_BYTES, length, sums::icmp6_pseudo(&seg.tuple, length))
        };
        length <= MESSAGE_MAX && sums::whole(skb, cursors, fixed, length, seed)
    }
}

/// Returns the MTU in a [`Kind::TooBig`].
#[inline(always)]
pub(crate) fn mtu(received: &Received) -> u32 {
    let mtu = received.headers.be32(TCP_AT + 4);
    if received.segment.v4 { mtu & 0xffff } else { mtu }
}

/// Turns an error about a segment to the client into one for the backend; `false` when it quotes nothing in flight.
#[inline(always)]
pub(crate) fn for_backend(received: &Received, draft: &mut Draft, quote: &mut Quote) -> bool {
    let Some(flow) = maps::flow(&received.client) else { return false };
    let seq = quote.seq.wrapping_add(flow.seq_delta);
    delivery::address_error_to_backend(draft, flow);
    if is_over(received, flow)
        || seq::before(seq, flow.client.acked.number)
        || seq::before(flow.backend.sent.next, seq)
    {
        return false;
    }
    quote.seq_shift = flow.seq_delta;
    quote.ack_shift = 0;
    quote.mtu_least = if received.segment.v4 { 0 } else { MTU_LEAST_V6 };
    true
}

/// Whether the backend believes of other clients, too, what it learns of the path to this one.
#[inline(always)]
pub(crate) fn is_about_all(received: &Received) -> bool {
    maps::flow(&received.client).is_some_and(|flow| delivery::shares_source(&flow.connection))
}

/// Turns an error about a segment to the backend into one for the client; `false` when it quotes nothing in flight.
#[inline(always)]
pub(crate) fn for_client(received: &mut Received, draft: &mut Draft, quote: &mut Quote) -> bool {
    let Some(flow) = maps::flow(&received.client) else { return false };
    let seq = quote.seq;
    if is_over(received, flow)
        || seq::before(seq, flow.backend.acked.number)
        || seq::before(flow.client.sent.next, seq)
    {
        return false;
    }
    received.from_node = delivery::is_to_node(&flow.connection);
    to_client(received, draft, quote, 0u32.wrapping_sub(flow.seq_delta));
    true
}

/// Whether the flow was reset, or its entry now belongs to another connection.
#[inline(always)]
fn is_over(received: &Received, flow: &Flow) -> bool {
    atomic::read_now(&flow.connection.generation) != received.generation
        || flow.connection.state == FLOW_RESET
}

/// Addresses an error to the client; `ack_shift` is added to the quoted segment's acknowledgement number.
#[inline(always)]
pub(crate) fn to_client(received: &Received, draft: &mut Draft, quote: &mut Quote, ack_shift: u32) {
    delivery::address_error_to_client(draft, &received.client);
    quote.seq_shift = 0;
    quote.ack_shift = ack_shift;
    quote.mtu_least = 0;
}

verified! {
    /// Sends the error to the receiver of the draft, with the addresses, ports and numbers that the receiver uses.
    pub(crate) fn pass as icmp_pass[Skb, skb](received: Received, draft: Draft, quote: Quote; reason: u32) -> Exit {
        let passed = match received.segment.v4 {
            true => translate::<true>(skb, received, draft, quote),
            false => translate::<false>(skb, received, draft, quote),
        };
        next_hop::departed(passed, draft, reason)
    }
}

#[inline(always)]
fn translate<const V4: bool>(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    quote: &Quote,
) -> Result<bool, Exit> {
    let failed = Exit::drop(Reason::EmitFailed);
    let (fixed, ip_bytes) = if V4 { (V4_BYTES, 20) } else { (V6_BYTES, 40) };
    // The part of the message that is in the headers. After its end there are bytes of other packets, which
    // do not change.
    let loaded = skb.length().min(fixed + 60);
    let tcp_checksum_at = fixed + 8 + ip_bytes + 16;
    // Not a change of the quotation, so before the header is kept.
    let raised = if V4 { 0 } else { raise_mtu(&mut received.headers, quote.mtu_least) };
    emit::keep(received, 60);
    rewrite::<V4>(&mut received.headers, draft, quote, skb.length() >= fixed + 8 + ip_bytes + 12);
    if !emit::lower_hop_limit(received, draft) {
        return Err(Exit::drop(Reason::EmitHopLimit));
    }
    let resolved = next_hop::find(skb, received, draft, 0)?;
    let was = received.kept.bytes.as_ptr();
    let is = received.headers.bytes.as_ptr().wrapping_add(TCP_AT);
    let changed = difference(was, is, 60);
    let old = core::ptr::from_ref(&quote.tuple).cast::<u8>();
    let new = core::ptr::from_ref(&draft.tuple).cast::<u8>();
    // Both addresses at once, in either order. For IPv4 their change is not in `changed`: the checksum of the
    // quoted IP header offsets it.
    let quoted = if V4 { changed + difference(old, new, 32) } else { changed };
    let mut sum = u32::from(!received.kept.be16(2)) + changed + raised;
    let covers = skb.length() >= tcp_checksum_at + 2;
    if covers {
        if !skb.load(tcp_checksum_at, received.kept.bytes.as_mut_ptr(), 2) {
            return Err(failed);
        }
        let before = received.kept.be16(0);
        let after = !checksum::fold(u32::from(!before) + u32::from(checksum::fold(quoted)));
        received.kept.set_be16(0, after);
        sum += u32::from(after) + u32::from(!before);
    }
    if !V4 {
        let outer = core::ptr::from_ref(&received.segment.tuple).cast::<u8>();
        sum += difference(outer, new, 32);
    }
    received.headers.set_be16(TCP_AT + 2, !checksum::fold(sum));
    if !emit::store_frame::<V4>(skb, received, loaded) {
        return Err(failed);
    }
    if covers && !skb.store(tcp_checksum_at, received.kept.bytes.as_ptr(), 2) {
        return Err(failed);
    }
    Ok(resolved)
}

/// Raises the MTU in a "packet too big" to at least this; returns how much the message's sum differs after that.
#[inline(always)]
fn raise_mtu(h: &mut Headers, least: u32) -> u32 {
    let was = h.be32(TCP_AT + 4);
    if h.bytes[TCP_AT] != TOO_BIG_V6 || was >= least {
        return 0;
    }
    h.set_be32(TCP_AT + 4, least);
    (least >> 16) + (least & 0xffff) + (!was >> 16) + (!was & 0xffff)
}

/// Returns how much a sum over `is` differs from one over `was`, as a sum of host-order words.
#[inline(always)]
fn difference(was: *const u8, is: *const u8, bytes: u32) -> u32 {
    sums::to_network(kernel::checksum_difference(was, bytes, is, bytes, 0))
}

/// Rewrites the quoted segment to the form in which the receiver of the draft sent it.
#[inline(always)]
fn rewrite<const V4: bool>(h: &mut Headers, draft: &Draft, quote: &Quote, has_ack: bool) {
    let ip = TCP_AT + 8;
    let (source, destination, tcp) =
        if V4 { (ip + 12, ip + 16, ip + 20) } else { (ip + 8, ip + 24, ip + 40) };
    let d = &draft.tuple;
    h.set_address(source, &d.vip, V4);
    h.set_address(destination, &d.client, V4);
    h.set_port(tcp, d.vip_port);
    h.set_port(tcp + 2, d.client_port);
    h.set_be32(tcp + 4, h.be32(tcp + 4).wrapping_add(quote.seq_shift));
    if has_ack {
        h.set_be32(tcp + 8, h.be32(tcp + 8).wrapping_add(quote.ack_shift));
    }
    if V4 {
        draft::write_ip_checksum(h, ip);
    }
}

verified! {
    /// Answers a ping in place, with as many bytes as the request; the work does not grow with their number.
    pub(crate) fn answer as icmp_echo[Skb, skb](received: Received, draft: Draft) -> Exit {
        let answered = echo(skb, received, draft);
        next_hop::departed(answered, draft, Reason::IcmpEcho as u32)
    }
}

#[inline(always)]
fn echo(skb: Skb, received: &mut Received, draft: &mut Draft) -> Result<bool, Exit> {
    let failed = Exit::drop(Reason::EmitFailed);
    let v4 = received.segment.v4;
    let fixed = if v4 { V4_BYTES } else { V6_BYTES };
    let was = received.headers.be32(TCP_AT);
    received.kept.set_be32(0, was);
    received.headers.bytes[TCP_AT] = if v4 { 0 } else { 129 };
    // The addresses of the pseudo header are swapped, so its sum stays the same.
    draft::answer(draft, &received.segment);
    let hops = &mut received.headers.bytes[if v4 { Headers::V4 + 8 } else { Headers::V6 + 7 }];
    let hops_were = *hops;
    *hops = draft::HOP_LIMIT;
    draft::write_addresses(&mut received.headers, draft, v4);
    let resolved = next_hop::find(skb, received, draft, 0)?;
    let (from, to) = (received.kept.bytes.as_ptr(), received.headers.bytes.as_ptr().wrapping_add(TCP_AT));
    let difference = kernel::checksum_difference(from, 4, to, 4, 0);
    let stored = match v4 {
        true => skb.store_headers(0, received.headers.frame(true), V4_BYTES + 2),
        false => skb.store_headers(0, received.headers.frame(false), V6_BYTES + 2),
    };
    if !stored || !skb.fix_checksum(fixed + 2, difference, false) {
        return Err(failed);
    }
    if !v4 {
        skb.add_to_sum(sums::v6_header_changed(0, hops_were, draft::HOP_LIMIT));
    }
    Ok(resolved)
}
