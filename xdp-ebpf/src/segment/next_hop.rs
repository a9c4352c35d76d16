//! The next hop of outgoing packets: looked up in the FIB, and remembered for up to 134 milliseconds.
//!
//! A lookup takes about as long as the rest of the program does for a forwarded packet. Its result serves the
//! following packets until the unit of time ends ([`age`]): those between the same addresses on the same CPU
//! through `NEXT_HOPS`, those of the same flow through the number of the hop ([`hops`]), however many flows there are. A changed route or neighbour takes effect
//! only then. The delay is shorter than the shortest retransmission timeout in use (200 ms on Linux): what is
//! lost meanwhile is sent again, and the repetition uses the new route.

use common::maps::next_hop::{NODE_LINK_WORD, age};
use common::reason::Reason;

use super::hops;
use crate::exit::Exit;
use crate::kernel::{self, Found, Packet, Skb, Xdp};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers};
use crate::scratch::{Draft, NextHop, Received};
use crate::verified::verified;

/// Finds the route and the neighbour of the draft's receiver and writes the link addresses. `Ok(true)`:
/// resolved. `Ok(false)`: the link address must still be resolved. `ip_bytes` as in
/// [`kernel::route_request`].
#[inline(always)]
pub(crate) fn find(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    ip_bytes: u32,
) -> Result<bool, Exit> {
    find_for(skb, received, draft, ip_bytes, 0)
}

/// Like [`find`], for the packet in hand of the flow in `received`, which is passed on in the flow's direction.
#[inline(always)]
pub(crate) fn find_for_flow(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    ip_bytes: u32,
) -> Result<bool, Exit> {
    if hops::take(received, draft, ip_bytes, skb.ifindex()) {
        draft.looked_up = false;
        return Ok(true);
    }
    find_for(skb, received, draft, ip_bytes, 0)
}

/// Like [`find`], whatever MTU the route has: the draft's route then has that of the device.
#[inline(always)]
pub(crate) fn find_on_device(skb: Skb, received: &mut Received, draft: &mut Draft) -> Result<bool, Exit> {
    find_for(skb, received, draft, 0, 0)
}

/// Like [`find`], for one of our own segments. If the path has become narrower than the MSS allows, there is
/// no sender to notify, so the segment is sent as far as the device takes it. The router that cannot pass it
/// on reports that to `icmp`, which sends the hello again in smaller segments.
#[inline(always)]
pub(crate) fn find_for_ours(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    ip_bytes: u32,
) -> Result<bool, Exit> {
    find_for(skb, received, draft, ip_bytes, 1)
}

/// `BPF_FIB_LKUP_RET_FWD_DISABLED` and `BPF_FIB_LKUP_RET_FRAG_NEEDED` of linux/bpf.h.
const FORWARDING_OFF: i64 = 5;
const TOO_BIG: i64 = 8;

verified! {
    /// `ours` = 1: behaves as [`find_for_ours`].
    fn find_for as next_hop_find[Skb, skb](received: Received, draft: Draft; ip_bytes: u32, ours: u32) -> Result<bool, Exit> {
        remembered(skb, received, draft, ip_bytes, ours)
    }
}

#[inline(always)]
fn remembered(
    skb: Skb,
    received: &mut Received,
    draft: &mut Draft,
    mut ip_bytes: u32,
    ours: u32,
) -> Result<bool, Exit> {
    draft.looked_up = false;
    // Whatever a packet by the pair is, what answers it is from its receiver. Other packets are of a connection.
    let vip = if received.by_pair { received.segment.tuple.vip } else { received.client.vip };
    if received.from_node && draft.tuple.client == vip {
        return to_node(received, draft);
    }
    let age = age(received.now_ns);
    let (ingress, v4) = (skb.ifindex(), received.segment.v4);
    let place = maps::next_hop(place(draft, ingress));
    if ip_bytes != 0
        && let Some(known) = &place
        && is_hop(known, draft, ingress, age)
        && ip_bytes <= known.mtu
    {
        draft.route.ifindex = known.egress;
        write_link(&mut received.headers, v4, &known.links.to, &known.links.from);
        return Ok(true);
    }
    let mut code = look_up(skb, draft, v4, ingress, ip_bytes);
    if code == TOO_BIG && ours == 1 {
        ip_bytes = 0;
        code = look_up(skb, draft, v4, ingress, ip_bytes);
    }
    let resolved = match kernel::route_result(code) {
        Found::Resolved => true,
        Found::Unresolved => false,
        Found::Failed(FORWARDING_OFF) => return Err(Exit::drop(Reason::EmitForwardingOff)),
        Found::Failed(TOO_BIG) => return Err(Exit::drop(Reason::EmitTooBig)),
        Found::Failed(_) => return Err(Exit::drop(Reason::EmitNoRoute)),
    };
    // Without a length the kernel does not return the MTU of the route.
    draft.looked_up = resolved && ip_bytes != 0;
    let (to, from) = kernel::link_addresses(&draft.route);
    if draft.looked_up
        && let Some(known) = place
    {
        keep(known, draft, ingress, age, kernel::mtu_found(&draft.route));
    }
    write_link(&mut received.headers, v4, to, from);
    Ok(resolved)
}

/// The path to a client on this node: by the pair that it came by, so that the node's stack sees both directions. The FIB would lead to
/// a pod without its stack, and to itself not at all. The pair takes packets of any size.
#[inline(always)]
fn to_node(received: &mut Received, draft: &mut Draft) -> Result<bool, Exit> {
    draft.route.ifindex = maps::node_clients();
    if draft.route.ifindex == 0 {
        return Err(Exit::drop(Reason::EmitNoRoute));
    }
    hops::write_link(&mut received.headers, received.segment.v4, NODE_LINK_WORD, NODE_LINK_WORD);
    Ok(true)
}

#[inline(always)]
fn look_up(packet: impl Packet, draft: &mut Draft, v4: bool, ingress: u32, ip_bytes: u32) -> i64 {
    let (from, to) = (&draft.tuple.client, &draft.tuple.vip);
    kernel::route_request(&mut draft.route, from, to, v4, ingress, ip_bytes);
    packet.find_route(&mut draft.route)
}

/// Whether the frame in hand is addressed to the device that it came in on. `None`: no look-up of this unit of time has shown the
/// device's link address, see [`leads_to_device`]. Thus forged sources cost no look-up each.
#[inline(always)]
pub(super) fn is_to_device(xdp: Xdp, received: &Received) -> Option<bool> {
    let ingress = xdp.ifindex();
    let known = maps::front_hop(place_of_device(ingress))?;
    is_device(known, ingress, age(received.now_ns))
        .then(|| *received.headers.part::<6>(link_at(received.segment.v4)) == known.links.from)
}

/// The same where the draft, which answers the frame, leaves by that device; the link address then serves all frames to the device.
#[inline(always)]
pub(super) fn leads_to_device(xdp: Xdp, received: &Received, draft: &mut Draft) -> bool {
    if !leads_back(xdp, received, draft, 0) {
        return false;
    }
    let ingress = xdp.ifindex();
    if let Some(known) = maps::front_hop(place_of_device(ingress)) {
        keep_device(known, draft, ingress, age(received.now_ns));
    }
    true
}

/// Whether the frame in hand, which the draft answers by `ip_bytes` bytes, is addressed to the device that it came in on, and the answer
/// leaves there; its link addresses are then written. `false`, too: no packet of this unit of time
/// was sent by the kernel's neighbour entry yet, see [`depart`], which XDP cannot do.
#[inline(always)]
pub(super) fn find_back(xdp: Xdp, received: &mut Received, draft: &mut Draft, ip_bytes: u32) -> bool {
    let (ingress, age, v4) = (xdp.ifindex(), age(received.now_ns), received.segment.v4);
    let place = maps::front_hop(place(draft, ingress));
    if let Some(known) = &place
        && is_hop(known, draft, ingress, age)
        && ip_bytes <= known.mtu
    {
        let is_ours = *received.headers.part::<6>(link_at(v4)) == known.links.from;
        write_link(&mut received.headers, v4, &known.links.to, &known.links.from);
        return is_ours;
    }
    if !leads_back(xdp, received, draft, ip_bytes) || !hops::is_confirmed(draft, ingress, age) {
        return false;
    }
    if let Some(known) = place {
        keep(known, draft, ingress, age, kernel::mtu_found(&draft.route));
    }
    let (to, from) = kernel::link_addresses(&draft.route);
    write_link(&mut received.headers, v4, to, from);
    true
}

/// Whether the element has the next hop of the draft in this unit of time.
#[inline(always)]
fn is_hop(known: &NextHop, draft: &Draft, ingress: u32, age: u32) -> bool {
    known.age == age
        && known.ingress == ingress
        && known.egress != 0
        && known.from == draft.tuple.client
        && known.to == draft.tuple.vip
}

/// Whether the element has the link address of the device itself in this unit of time: a next hop has an egress.
#[inline(always)]
fn is_device(known: &NextHop, ingress: u32, age: u32) -> bool {
    known.age == age && known.ingress == ingress && known.egress == 0
}

/// Stores the link address of the device that the draft's look-up led to, as that of no next hop.
#[inline(always)]
fn keep_device(known: &mut NextHop, draft: &Draft, ingress: u32, age: u32) {
    keep(known, draft, ingress, age, 0);
    known.egress = 0;
}

/// Stores the next hop that the draft's look-up gave, for IP packets of up to `mtu` bytes.
#[inline(always)]
fn keep(known: &mut NextHop, draft: &Draft, ingress: u32, age: u32, mtu: u32) {
    let (to, from) = kernel::link_addresses(&draft.route);
    known.from = draft.tuple.client;
    known.to = draft.tuple.vip;
    known.ingress = ingress;
    known.egress = draft.route.ifindex;
    known.mtu = mtu;
    known.age = age;
    known.links.to = *to;
    known.links.from = *from;
}

/// Whether the look-up shows that the draft, which answers the frame in hand, leaves by the device that the frame came in on, and
/// that the frame is addressed to that device. `ip_bytes` as in [`kernel::route_request`].
#[inline(always)]
fn leads_back(xdp: Xdp, received: &Received, draft: &mut Draft, ip_bytes: u32) -> bool {
    let (ingress, v4) = (xdp.ifindex(), received.segment.v4);
    let code = look_up(xdp, draft, v4, ingress, ip_bytes);
    if !matches!(kernel::route_result(code), Found::Resolved) || draft.route.ifindex != ingress {
        return false;
    }
    let (_, own) = kernel::link_addresses(&draft.route);
    received.headers.part::<6>(link_at(v4)) == own
}

/// Returns the offset of the Ethernet header in the headers in hand.
#[inline(always)]
const fn link_at(v4: bool) -> usize {
    if v4 { Headers::V4 - ETH_BYTES as usize } else { Headers::V6 - ETH_BYTES as usize }
}

/// Returns the element of `NEXT_HOPS` that may hold the next hop towards the draft's receiver. The device
/// that the packet came in on is part of the key, because packets to one client start on different devices:
/// our answers on the client's, other packets on its backend's.
#[inline(always)]
fn place(draft: &Draft, ingress: u32) -> u32 {
    let d = &draft.tuple;
    spread(d.vip.low_word() ^ d.client.low_word().rotate_left(16) ^ ingress.rotate_left(8))
}

/// Returns the element of `FRONT_HOPS` that may hold the link address of the device itself.
#[inline(always)]
fn place_of_device(ingress: u32) -> u32 {
    spread(ingress)
}

/// Multiplying by the golden ratio spreads neighbouring addresses (Knuth, TAOCP 6.4).
#[inline(always)]
fn spread(mixed: u32) -> u32 {
    mixed.wrapping_mul(0x9e37_79b1) >> 24
}

#[inline(always)]
fn write_link(h: &mut Headers, v4: bool, to: &[u8; 6], from: &[u8; 6]) {
    let at = link_at(v4);
    h.set_link(at, to);
    h.set_link(at + 6, from);
    h.set_be16(at + 12, if v4 { 0x0800 } else { 0x86dd });
}

/// Sets the device and next hop to which the packet is sent when the program returns. `bpf_redirect` alone would never
/// let the kernel notice that a neighbour is in use: an entry would stay as it is (STALE) although its host has another
/// link address by now. So the kernel itself sends the first packet to each hop in each unit of time, and verifies the
/// neighbour as it does for what it forwards.
#[inline(always)]
pub(super) fn depart(skb: Skb, received: &mut Received, draft: &mut Draft, resolved: bool) {
    let found = hops::store_looked_up(skb, received, draft);
    leave(draft, resolved && !found.must_ask());
}

/// Like [`depart`], for the packet in hand that is passed on in its flow's direction: its flow keeps the hop.
#[inline(always)]
pub(super) fn depart_on_flow(skb: Skb, received: &mut Received, draft: &mut Draft, resolved: bool) {
    let found = hops::store_looked_up(skb, received, draft);
    if draft.looked_up {
        hops::keep(received, found);
    }
    leave(draft, resolved && !found.must_ask());
}

#[inline(always)]
fn leave(draft: &mut Draft, resolved: bool) {
    if resolved {
        kernel::redirect(draft.route.ifindex);
    } else {
        kernel::next_hop(&draft.route, &mut draft.unresolved);
        kernel::redirect_unresolved(draft.route.ifindex, &mut draft.unresolved);
    }
}

/// Sets where an ICMP message goes that was made, counted under this reason; otherwise returns the exit.
#[inline(always)]
pub(crate) fn departed(made: Result<bool, Exit>, draft: &mut Draft, reason: u32) -> Exit {
    match made {
        Ok(resolved) => {
            leave(draft, resolved);
            Exit::sent_for(reason)
        }
        Err(exit) => exit,
    }
}
