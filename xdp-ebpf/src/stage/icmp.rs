//! ICMP about connections: which connection an error quotes, and the error as the other end must see it.
//!
//! As conntrack does, an error that is passed on comes from our own address on that side: the router beyond is nobody
//! the receiver could know.

use aya_ebpf::bindings::__sk_buff;
use common::maps::flow::{BackendTuple, ClientTuple, FLOW_RESET};
use common::reason::Reason;
use common::wire::{checksum, seq};
use network_types::ip::IpProto;

use crate::draft;
use crate::exit::Exit;
use crate::hop;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{Headers, Scratch, TCP_AT, V4_BYTES, V6_BYTES};
use crate::stage::emit;
use crate::sum;

/// Most bytes of an ICMP error that is read; routers quote at most 576 bytes (IPv4) or 1280 (IPv6).
const MESSAGE_MAX: u32 = 4096;

/// What an ICMP message is to us.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Echo request.
    Echo,
    /// Larger than the MTU of the way.
    TooBig,
    /// Unreachable, or underway for too long.
    Unreachable,
    /// An error that ends nothing.
    Problem,
}

/// Tells ICMP that we act on, in a packet of this IP protocol without options; `None` for everything else.
#[inline(always)]
pub(crate) fn kind(s: &Scratch, protocol: u8) -> Option<Kind> {
    let (kind, code) = (s.headers.bytes[TCP_AT], s.headers.bytes[TCP_AT + 1]);
    if s.segment.v4 && protocol == IpProto::Icmp as u8 {
        return match (kind, code) {
            (8, 0) => Some(Kind::Echo),
            (3, 4) => Some(Kind::TooBig),
            (3 | 11, _) => Some(Kind::Unreachable),
            (12, _) => Some(Kind::Problem),
            _ => None,
        };
    }
    if s.segment.v4 || protocol != IpProto::Ipv6Icmp as u8 {
        return None;
    }
    match (kind, code) {
        (128, 0) => Some(Kind::Echo),
        (2, _) => Some(Kind::TooBig),
        (1 | 3, _) => Some(Kind::Unreachable),
        (4, _) => Some(Kind::Problem),
        _ => None,
    }
}

/// Whom the quoted segment was for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quoted {
    /// From the VIP to the client at `s.client`.
    ToClient,
    /// From our source address to a backend, for the client at `s.client`.
    ToBackend,
    /// No segment of a connection here.
    Unknown,
}

/// Reads the four-tuple that the error quotes and finds its connection.
#[inline(always)]
pub(crate) fn find(skb: Skb, s: &mut Scratch) -> Quoted {
    let quoted = if s.segment.v4 { read::<true>(skb, s) } else { read::<false>(skb, s) };
    // An error comes to the sender of what it quotes.
    if !quoted || s.quoted.client != s.segment.tuple.vip {
        return Quoted::Unknown;
    }
    let q = &s.quoted;
    let to_backend = BackendTuple {
        backend: q.vip,
        source: q.client,
        backend_port: q.vip_port,
        source_port: q.client_port,
    };
    if let Some(client) = maps::nat(&to_backend) {
        s.client = *client;
        s.flow.nat = to_backend;
        return Quoted::ToBackend;
    }
    let client =
        ClientTuple { client: q.vip, vip: q.client, client_port: q.vip_port, vip_port: q.client_port };
    if maps::flow(&client).is_some() {
        s.client = client;
        return Quoted::ToClient;
    }
    Quoted::Unknown
}

/// Reads addresses, ports and sequence number (into `s.from`) of the quoted segment, which stands in the headers.
#[inline(always)]
fn read<const V4: bool>(skb: Skb, s: &mut Scratch) -> bool {
    let (fixed, ip_bytes) = if V4 { (V4_BYTES, 20) } else { (V6_BYTES, 40) };
    let (h, ip) = (&s.headers, TCP_AT + 8);
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
    s.quoted.client = h.address(source, V4);
    s.quoted.vip = h.address(destination, V4);
    s.quoted.client_port.bytes = [h.bytes[tcp], h.bytes[tcp + 1]];
    s.quoted.vip_port.bytes = [h.bytes[tcp + 2], h.bytes[tcp + 3]];
    s.from = h.be32(tcp + 4);
    true
}

/// Whether the message's checksum is right: asked before we act on it ourselves.
#[inline(always)]
pub(crate) fn is_whole(skb: Skb, s: &mut Scratch) -> bool {
    icmp_whole(skb.0, s) == 1
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn icmp_whole(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let (fixed, length, seed) = if s.segment.v4 {
        (V4_BYTES, u32::from(s.headers.be16(Headers::V4 + 2)).wrapping_sub(20), 0)
    } else {
        let length = u32::from(s.headers.be16(Headers::V6 + 4));
        (V6_BYTES, length, sum::icmp6_pseudo(&s.segment.tuple, length))
    };
    u32::from(length <= MESSAGE_MAX && sum::whole(Skb(skb), s, fixed, length, seed))
}

/// The MTU that a [`Kind::TooBig`] tells.
#[inline(always)]
pub(crate) fn mtu(s: &Scratch) -> u32 {
    let told = s.headers.be32(TCP_AT + 4);
    if s.segment.v4 { told & 0xffff } else { told }
}

/// Turns an error about a segment to the client into one for the backend; `false` when it quotes nothing under way.
#[inline(always)]
pub(crate) fn for_backend(s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.client) else { return false };
    let seq = s.from;
    let sent = flow.backend_next.wrapping_sub(flow.seq_delta);
    if flow.state == FLOW_RESET || seq::before(seq, flow.client_acked) || seq::before(sent, seq) {
        return false;
    }
    let (d, nat) = (&mut s.draft.tuple, flow.nat);
    d.client = nat.source;
    d.vip = nat.backend;
    d.client_port = nat.source_port;
    d.vip_port = nat.backend_port;
    s.seq_shift = flow.seq_delta;
    s.ack_shift = 0;
    true
}

/// Turns an error about a segment to the backend into one for the client; `false` when it quotes nothing under way.
#[inline(always)]
pub(crate) fn for_client(s: &mut Scratch) -> bool {
    let Some(flow) = maps::flow(&s.client) else { return false };
    let seq = s.from;
    if flow.nat != s.flow.nat
        || flow.state == FLOW_RESET
        || seq::before(seq, flow.backend_acked)
        || seq::before(flow.client_next, seq)
    {
        return false;
    }
    s.ack_shift = 0u32.wrapping_sub(flow.seq_delta);
    to_client(s);
    true
}

/// The receiver of an error is the client at `s.client`.
#[inline(always)]
pub(crate) fn to_client(s: &mut Scratch) {
    let (d, c) = (&mut s.draft.tuple, &s.client);
    d.client = c.vip;
    d.vip = c.client;
    d.client_port = c.vip_port;
    d.vip_port = c.client_port;
    s.seq_shift = 0;
}

/// Sends the error to the receiver of the draft: addresses, ports and numbers of the quotation as it knows them.
#[inline(always)]
pub(crate) fn pass(skb: Skb, s: &mut Scratch, reason: Reason) -> Exit {
    match Exit::from_code(icmp_pass(skb.0, s, reason as u32)) {
        Ok(()) => Exit::drop(Reason::EmitFailed),
        Err(exit) => exit,
    }
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn icmp_pass(skb: *mut __sk_buff, s: *mut Scratch, reason: u32) -> u32 {
    // SAFETY: as in `icmp_whole`.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    let skb = Skb(skb);
    let passed = if s.segment.v4 { translate::<true>(skb, s) } else { translate::<false>(skb, s) };
    match passed {
        Ok(resolved) => {
            hop::depart(s, resolved);
            Exit::sent_code(reason)
        }
        Err(exit) => Exit::code(Err(exit)),
    }
}

#[inline(always)]
fn translate<const V4: bool>(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let failed = Exit::drop(Reason::EmitFailed);
    let (fixed, ip_bytes) = if V4 { (V4_BYTES, 20) } else { (V6_BYTES, 40) };
    // What of the message stands in the headers; behind its end there are bytes of other packets, which do not change.
    let loaded = skb.length().min(fixed + 60);
    let tcp_checksum_at = fixed + 8 + ip_bytes + 16;
    emit::keep(s, 60);
    rewrite::<V4>(s, skb.length() >= fixed + 8 + ip_bytes + 12);
    if !emit::lower_hop_limit(s) {
        return Err(Exit::drop(Reason::EmitHopLimit));
    }
    let resolved = hop::find(skb, s, 0)?;
    let was = s.received.bytes.as_ptr();
    let is = s.headers.bytes.as_ptr().wrapping_add(TCP_AT);
    let changed = difference(was, is, 60);
    let old = core::ptr::from_ref(&s.quoted).cast::<u8>();
    let new = core::ptr::from_ref(&s.draft.tuple).cast::<u8>();
    // Both addresses at once, in either order. The checksum of the quoted IPv4 header took its own part back.
    let quoted = if V4 { changed + difference(old, new, 32) } else { changed };
    let mut sum = u32::from(!s.received.be16(2)) + changed;
    let covers = skb.length() >= tcp_checksum_at + 2;
    if covers {
        if !skb.load(tcp_checksum_at, s.received.bytes.as_mut_ptr(), 2) {
            return Err(failed);
        }
        let before = s.received.be16(0);
        let after = !checksum::fold(u32::from(!before) + u32::from(checksum::fold(quoted)));
        s.received.set_be16(0, after);
        sum += u32::from(after) + u32::from(!before);
    }
    if !V4 {
        let outer = core::ptr::from_ref(&s.segment.tuple).cast::<u8>();
        sum += difference(outer, new, 32);
    }
    s.headers.set_be16(TCP_AT + 2, !checksum::fold(sum));
    let loaded = core::hint::black_box(loaded);
    if !(V4_BYTES..=fixed + 60).contains(&loaded) || !skb.store(0, s.headers.frame(V4), loaded) {
        return Err(failed);
    }
    if covers && !skb.store(tcp_checksum_at, s.received.bytes.as_ptr(), 2) {
        return Err(failed);
    }
    Ok(resolved)
}

/// What a sum over `is` has more than one over `was`, as a sum of host-order words.
#[inline(always)]
fn difference(was: *const u8, is: *const u8, bytes: u32) -> u32 {
    sum::to_network(kernel::checksum_difference(was, bytes, is, bytes, 0))
}

/// Writes the quoted segment as the receiver of the draft sent it.
#[inline(always)]
fn rewrite<const V4: bool>(s: &mut Scratch, has_ack: bool) {
    let ip = TCP_AT + 8;
    let (source, destination, tcp) =
        if V4 { (ip + 12, ip + 16, ip + 20) } else { (ip + 8, ip + 24, ip + 40) };
    let (h, d) = (&mut s.headers, &s.draft.tuple);
    h.set_address(source, &d.vip, V4);
    h.set_address(destination, &d.client, V4);
    h.set_port(tcp, d.vip_port);
    h.set_port(tcp + 2, d.client_port);
    h.set_be32(tcp + 4, h.be32(tcp + 4).wrapping_add(s.seq_shift));
    if has_ack {
        h.set_be32(tcp + 8, h.be32(tcp + 8).wrapping_add(s.ack_shift));
    }
    if V4 {
        draft::write_ip_checksum(h, ip);
    }
}

/// Answers a ping, in place: as many bytes as were asked with, and no work that grows with them.
#[inline(always)]
pub(crate) fn answer(skb: Skb, s: &mut Scratch) -> Exit {
    match Exit::from_code(icmp_echo(skb.0, s)) {
        Ok(()) => Exit::drop(Reason::EmitFailed),
        Err(exit) => exit,
    }
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn icmp_echo(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: as in `icmp_whole`.
    let Some(s) = (unsafe { s.as_mut() }) else { return Exit::code(Ok(())) };
    let skb = Skb(skb);
    match echo(skb, s) {
        Ok(resolved) => {
            hop::depart(s, resolved);
            Exit::sent_code(Reason::IcmpEcho as u32)
        }
        Err(exit) => Exit::code(Err(exit)),
    }
}

#[inline(always)]
fn echo(skb: Skb, s: &mut Scratch) -> Result<bool, Exit> {
    let failed = Exit::drop(Reason::EmitFailed);
    let v4 = s.segment.v4;
    let fixed = if v4 { V4_BYTES } else { V6_BYTES };
    let was = s.headers.be32(TCP_AT);
    s.received.set_be32(0, was);
    s.headers.bytes[TCP_AT] = if v4 { 0 } else { 129 };
    // Both ends of the pseudo header change places; the sum stays.
    draft::answer(s);
    s.headers.bytes[if v4 { Headers::V4 + 8 } else { Headers::V6 + 7 }] = draft::HOP_LIMIT;
    draft::write_addresses(&mut s.headers, &s.draft, v4);
    let resolved = hop::find(skb, s, 0)?;
    let (from, to) = (s.received.bytes.as_ptr(), s.headers.bytes.as_ptr().wrapping_add(TCP_AT));
    let difference = kernel::checksum_difference(from, 4, to, 4, 0);
    let stored = if v4 {
        skb.store_headers(0, s.headers.frame(true), V4_BYTES + 2)
    } else {
        skb.store_headers(0, s.headers.frame(false), V6_BYTES + 2)
    };
    if !stored || !skb.fix_checksum(fixed + 2, difference, false) {
        return Err(failed);
    }
    Ok(resolved)
}
