//! The next hop of what is sent: asked of the FIB, and remembered for up to 134 milliseconds.
//!
//! A look-up takes about as long as the rest of the program for a forwarded packet. What was found serves the packets
//! behind it until the unit of time ends ([`AGE_SHIFT`]); a route or neighbour that changes is believed in as long. That is
//! less than the shortest retransmission time-out in use (200 ms on Linux): what goes astray meanwhile is sent once more, and
//! the second time the new way.

use aya_ebpf::bindings::__sk_buff;
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::{self, Found, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers, Scratch};

/// Units of time, 2^27 ns each: what was found in one is asked for again in the next.
const AGE_SHIFT: u64 = 27;

/// Finds route and neighbour of the draft's receiver and writes the link addresses.
/// `Ok(true)`: resolved. `Ok(false)`: the link address has to be asked for. `ip_bytes` as in [`kernel::route_request`].
#[inline(always)]
pub(crate) fn find(skb: Skb, s: &mut Scratch, ip_bytes: u32) -> Result<bool, Exit> {
    found(hop_find(skb.0, s, ip_bytes, 0))
}

/// [`find`] for a segment of ours. Where the way got narrower than the MSS allows nobody could be told: it goes as far as
/// the device takes it, and the router that cannot pass it on says so to `icmp`, which has the hello cut smaller.
#[inline(always)]
pub(crate) fn find_for_ours(skb: Skb, s: &mut Scratch, ip_bytes: u32) -> Result<bool, Exit> {
    found(hop_find(skb.0, s, ip_bytes, 1))
}

#[inline(always)]
fn found(code: u32) -> Result<bool, Exit> {
    match code {
        UNRESOLVED => Ok(false),
        code => Exit::from_code(code).map(|()| true),
    }
}

/// `BPF_FIB_LKUP_RET_FRAG_NEEDED` of linux/bpf.h.
const TOO_BIG: i64 = 8;

/// Result of [`hop_find`]: the link address has to be asked for.
const UNRESOLVED: u32 = u32::MAX - 1;

/// `ours` = 1: as [`find_for_ours`]. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn hop_find(skb: *mut __sk_buff, s: *mut Scratch, ip_bytes: u32, ours: u32) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return UNRESOLVED };
    match remembered(Skb(skb), s, ip_bytes, ours) {
        Ok(false) => UNRESOLVED,
        result => Exit::code(result.map(|_| ())),
    }
}

#[inline(always)]
fn remembered(skb: Skb, s: &mut Scratch, mut ip_bytes: u32, ours: u32) -> Result<bool, Exit> {
    let age = (s.now_ns >> AGE_SHIFT) as u32;
    let ingress = skb.ifindex();
    let place = maps::next_hop(place(s, ingress));
    if ip_bytes != 0
        && let Some(known) = &place
        && known.age == age
        && known.ingress == ingress
        && known.from == s.draft.tuple.client
        && known.to == s.draft.tuple.vip
        && ip_bytes <= known.mtu
    {
        s.route_request.ifindex = known.egress;
        write_link(&mut s.headers, s.segment.v4, &known.links.to, &known.links.from);
        return Ok(true);
    }
    let v4 = s.segment.v4;
    let d = &s.draft.tuple;
    kernel::route_request(&mut s.route_request, &d.client, &d.vip, v4, ingress, ip_bytes);
    let mut code = skb.find_route(&mut s.route_request);
    if code == TOO_BIG && ours == 1 {
        ip_bytes = 0;
        let d = &s.draft.tuple;
        kernel::route_request(&mut s.route_request, &d.client, &d.vip, v4, ingress, ip_bytes);
        code = skb.find_route(&mut s.route_request);
    }
    let resolved = match kernel::route_result(code) {
        Found::Resolved => true,
        Found::Unresolved => false,
        Found::Failed(5) => return Err(Exit::drop(Reason::EmitForwardingOff)),
        Found::Failed(TOO_BIG) => return Err(Exit::drop(Reason::EmitTooBig)),
        Found::Failed(_) => return Err(Exit::drop(Reason::EmitNoRoute)),
    };
    let (to, from) = kernel::link_addresses(&s.route_request);
    // Without a length the kernel does not tell the way's MTU.
    if resolved
        && ip_bytes != 0
        && let Some(known) = place
    {
        known.from = s.draft.tuple.client;
        known.to = s.draft.tuple.vip;
        known.ingress = ingress;
        known.egress = s.route_request.ifindex;
        known.mtu = kernel::mtu_found(&s.route_request);
        known.age = age;
        known.links.to = *to;
        known.links.from = *from;
    }
    write_link(&mut s.headers, s.segment.v4, to, from);
    Ok(resolved)
}

/// Where the next hop towards the draft's receiver is remembered, if it is. The device that the packet came in by is a part
/// of it: to a client go the node's own answers, from the client's side, and what its backend sends.
#[inline(always)]
fn place(s: &Scratch, ingress: u32) -> u32 {
    let d = &s.draft.tuple;
    let mixed = d.vip.low_word() ^ d.client.low_word().rotate_left(16) ^ ingress.rotate_left(8);
    // The golden ratio spreads neighbouring addresses (Knuth, TAOCP 6.4).
    mixed.wrapping_mul(0x9e37_79b1) >> 24
}

#[inline(always)]
fn write_link(h: &mut Headers, v4: bool, to: &[u8; 6], from: &[u8; 6]) {
    let at = if v4 { Headers::V4 } else { Headers::V6 } - ETH_BYTES as usize;
    h.set_link(at, to);
    h.set_link(at + 6, from);
    h.set_be16(at + 12, if v4 { 0x0800 } else { 0x86dd });
}

/// Chooses the way out for the packet when the program returns.
#[inline(always)]
pub(crate) fn depart(s: &mut Scratch, resolved: bool) {
    if resolved {
        kernel::redirect(s.route_request.ifindex);
    } else {
        kernel::next_hop(&s.route_request, &mut s.next_hop);
        kernel::redirect_unresolved(s.route_request.ifindex, &mut s.next_hop);
    }
}
