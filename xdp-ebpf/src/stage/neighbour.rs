//! ARP and neighbour discovery for announced addresses: the node that announces an address answers, every other node is silent.

use common::decide::tables;
use common::maps::address::Address;
use common::maps::announced::{Announced, AnnouncedKey, OWNER_HERE, OWNER_ONLY};
use common::maps::segment::Gate;
use common::reason::Reason;
use common::wire::arp::{self, About, Message};
use common::wire::checksum;
use common::wire::ndp::{self, Asker, Heading};
use network_types::ip::IpProto;

use crate::atomic;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers, TCP_AT, V6_BYTES};
use crate::scratch::{Cursors, Draft, Received};
use crate::segment::{reply, sums};
use crate::verified::verified;

/// Offsets in [`Headers`] of the Ethernet header: in front of an ARP message, which begins where an IPv4 header does, and in front
/// of an IPv6 header.
const ARP_FRAME: usize = Headers::V4 - ETH_BYTES as usize;
const V6_FRAME: usize = Headers::V6 - ETH_BYTES as usize;

/// A frame with an ARP message.
const ARP_BYTES: u32 = ETH_BYTES + arp::BYTES as u32;
/// A frame with an advertisement.
const ADVERTISEMENT_BYTES: u32 = V6_BYTES + ndp::ADVERTISEMENT_BYTES as u32;

verified! {
    /// Answers an ARP request for an address that this node announces. `Ok`: the message concerns no announced address, and
    /// is the kernel's.
    pub(crate) fn arp as neighbour_arp[Skb, skb](received: Received) -> Result<(), Exit> {
        let h = &mut received.headers;
        if skb.length() < ARP_BYTES || !skb.load(0, h.frame(true), ARP_BYTES) {
            return Ok(());
        }
        let Some(message) = Message::read(h.part(Headers::V4)) else { return Ok(()) };
        let (about, address) = message.about();
        let Some(announced) = announced(skb, &Address::v4(address))? else {
            // Who asks for another address says that it has the sender's (RFC 5227 section 2.4).
            return match about {
                About::Asks => claims(skb, &Address::v4(message.sender), &message.sender_link),
                About::Claims => Ok(()),
            };
        };
        let is_here = announced.owner == OWNER_HERE;
        if about == About::Claims {
            return claimed(is_here && message.sender_link != announced.link);
        }
        if !is_here {
            return Err(silence(announced.owner));
        }
        // A group's link address: our answer would go to all of them.
        if message.sender_link[0] & 1 != 0 {
            return Err(Exit::drop(Reason::NeighbourMalformed));
        }
        message.reply(announced.link).write(h.part_mut(Headers::V4));
        h.set_link(ARP_FRAME, &message.sender_link);
        h.set_link(ARP_FRAME + 6, &announced.link);
        let body = h.bytes.as_ptr().wrapping_add(Headers::V4);
        let stored = reply::untag(skb)
            && skb.store_headers(0, h.frame(true), ETH_BYTES)
            && skb.store(ETH_BYTES, body, arp::BYTES as u32);
        Err(reply::send(skb, stored, Reason::NeighbourAnswered))
    }
}

verified! {
    /// Answers a neighbour solicitation for an address that this node announces. `Ok`: the message concerns no announced
    /// address, and is the kernel's.
    pub(crate) fn discovery as neighbour_discovery[Skb, skb](
        received: Received, draft: Draft, cursors: Cursors
    ) -> Result<(), Exit> {
        let h = &received.headers;
        let (kind, length) = (h.bytes[TCP_AT], u32::from(h.be16(Headers::V6 + 4)));
        let Some(target) = ndp::target(h.part(TCP_AT), length) else { return Ok(()) };
        let target = Address::v6(target);
        // Otherwise an IPv4 address would be found.
        if target.is_v4() {
            return Ok(());
        }
        let Some(announced) = announced(skb, &target)? else {
            let link = received.headers.part(V6_FRAME + 6);
            return match kind {
                ndp::SOLICITATION => claims(skb, &received.segment.tuple.client, link),
                _ => Ok(()),
            };
        };
        match (kind, announced.owner) {
            (ndp::SOLICITATION | ndp::ADVERTISEMENT, OWNER_HERE) => {}
            (ndp::SOLICITATION, owner) => return Err(silence(owner)),
            _ => return Ok(()),
        }
        let is_whole = is_whole(skb, received, cursors, length);
        if kind == ndp::ADVERTISEMENT {
            let is_believed = ndp::is_advertisement(&heading(received, length), received.headers.part(TCP_AT));
            let is_ours = *received.headers.part::<6>(V6_FRAME + 6) == announced.link;
            return claimed(is_whole && is_believed && !is_ours);
        }
        let malformed = Err(Exit::drop(Reason::NeighbourMalformed));
        if !is_whole {
            return malformed;
        }
        let asker = ndp::solicitation(&heading(received, length), received.headers.part(TCP_AT));
        let h = &mut received.headers;
        let to = &mut draft.tuple;
        (to.client, to.vip) = (target, received.segment.tuple.client);
        let is_solicited = asker != Asker::EVERYBODY;
        if asker == Asker::NOBODY || asker == Asker::FRAME && h.bytes[V6_FRAME + 6] & 1 != 0 {
            return malformed;
        } else if !is_solicited {
            to.vip = Address::v6(ndp::ALL_HOSTS);
            h.set_link(V6_FRAME, &ndp::ALL_HOSTS_LINK);
        } else if let Some(offset) = asker.link_at() {
            let [a, b, c, d] = h.tcp_be32(offset).to_be_bytes();
            let [.., e, f] = h.tcp_be32(offset + 2).to_be_bytes();
            h.set_link(V6_FRAME, &[a, b, c, d, e, f]);
        } else {
            let link = *h.part::<6>(V6_FRAME + 6);
            h.set_link(V6_FRAME, &link);
        }
        advertise(h, draft, &announced.link, is_solicited);
        let body = h.bytes.as_ptr().wrapping_add(Headers::V6);
        let stored = reply::untag(skb)
            && skb.resize(ADVERTISEMENT_BYTES)
            && skb.store_headers(0, h.frame(false), ETH_BYTES)
            && skb.store(ETH_BYTES, body, ADVERTISEMENT_BYTES - ETH_BYTES);
        Err(reply::send(skb, stored, Reason::NeighbourAnswered))
    }
}

/// Writes the advertisement of the draft's sender to its receiver, whose link address is in the frame already.
#[inline(always)]
fn advertise(h: &mut Headers, draft: &Draft, own: &[u8; 6], is_solicited: bool) {
    let tuple = &draft.tuple;
    h.set_link(V6_FRAME + 6, own);
    h.set_be32(Headers::V6, 6 << 28);
    h.set_be16(Headers::V6 + 4, ndp::ADVERTISEMENT_BYTES as u16);
    h.bytes[Headers::V6 + 6] = IpProto::Ipv6Icmp as u8;
    h.bytes[Headers::V6 + 7] = ndp::HOP_LIMIT;
    h.set_address(Headers::V6 + 8, &tuple.client, false);
    h.set_address(Headers::V6 + 24, &tuple.vip, false);
    *h.part_mut(TCP_AT) = ndp::advertisement(&tuple.client.bytes, *own, is_solicited);
    let length = ndp::ADVERTISEMENT_BYTES as u32;
    let message = h.bytes.as_ptr().wrapping_add(TCP_AT);
    let sum = sums::of(message, length, sums::icmp6_pseudo(tuple, length));
    h.set_be16(TCP_AT + 2, !checksum::fold(sum));
}

/// Whether all of the ICMPv6 message is there, and sums up.
#[inline(always)]
fn is_whole(skb: Skb, received: &Received, cursors: &mut Cursors, length: u32) -> bool {
    let pseudo = sums::icmp6_pseudo(&received.segment.tuple, length);
    V6_BYTES + length <= skb.length() && sums::whole(skb, cursors, V6_BYTES, length, pseudo)
}

#[inline(always)]
fn heading(received: &Received, length: u32) -> Heading<'_> {
    let tuple = &received.segment.tuple;
    let hop_limit = received.headers.bytes[Headers::V6 + 7];
    Heading { source: &tuple.client.bytes, destination: &tuple.vip.bytes, hop_limit, length }
}

/// A key that the compiler may store in words of eight bytes, which the verifier wants to be aligned.
#[repr(align(8))]
pub(crate) struct AlignedKey(pub(crate) AnnouncedKey);

/// Owner of an address that this node announces, while its gate is closed; in no map.
const OWNER_GATED: u16 = u16::MAX;

/// Looks up how an address is announced on the packet's device; `None`: not at all. While the node's gate is closed, it is not here.
#[inline(always)]
fn announced(skb: Skb, address: &Address) -> Result<Option<Announced>, Exit> {
    let Some(mut announced) = owned(skb, address)? else { return Ok(None) };
    // No other node may take what is this node's alone.
    if announced.owner == OWNER_ONLY {
        announced.owner = OWNER_HERE;
    } else if announced.owner == OWNER_HERE && is_gate_closed(skb)? {
        announced.owner = OWNER_GATED;
    }
    Ok(Some(announced))
}

/// Looks up how an address is announced on the packet's device, whether the node's gate is closed or not.
#[inline(always)]
pub(crate) fn owned(skb: Skb, address: &Address) -> Result<Option<Announced>, Exit> {
    let key = AlignedKey(AnnouncedKey { address: *address, device: skb.ifindex() });
    let mut announced = Announced::zeroed();
    let found = tables::stable(&mut announced, |to| {
        maps::announced(&key.0).is_some_and(|found| {
            *to = *found;
            true
        })
    });
    Ok(found.map_err(Exit::refused)?.then_some(announced))
}

verified! {
    /// Whether this node must leave its addresses on the packet's device to the other nodes there.
    pub(crate) fn is_gate_closed as neighbour_gate[Skb, skb]() -> Result<bool, Exit> {
        let device = skb.ifindex();
        let mut gate = Gate::NONE;
        let gated = tables::stable(&mut gate, |to| {
            maps::segment(&device).is_some_and(|found| {
                *to = found.gate();
                true
            })
        });
        if !gated.map_err(Exit::refused)? {
            return Ok(false);
        }
        let heard_ns = maps::heard(&device).map_or(0, |heard| atomic::read_long(heard));
        Ok(gate.is_closed(heard_ns, kernel::monotonic_ns()))
    }
}

/// When the agent last stamped on the packet's device. One that never does there counts as alive. An element that becomes another device's
/// while it is read has that one's stamp, of the same agent.
#[inline(always)]
pub(crate) fn stamp_ns(skb: Skb) -> u64 {
    maps::segment(&skb.ifindex()).map_or(u64::MAX, |segment| atomic::read_long(&segment.stamp_ns))
}

/// How a question is dropped for an address that has this owner.
#[inline(always)]
fn silence(owner: u16) -> Exit {
    match owner {
        OWNER_GATED => Exit::drop(Reason::NeighbourGateClosed),
        _ => Exit::drop(Reason::NeighbourElsewhere),
    }
}

/// Handles a message of the host with this link address, which says that it has this address.
#[inline(always)]
fn claims(skb: Skb, address: &Address, link: &[u8; 6]) -> Result<(), Exit> {
    match announced(skb, address)? {
        Some(announced) => claimed(announced.owner == OWNER_HERE && *link != announced.link),
        None => Ok(()),
    }
}

/// Handles a message of a host that says it has an announced address.
#[inline(always)]
fn claimed(is_conflict: bool) -> Result<(), Exit> {
    if is_conflict { Err(Exit::next(Reason::NeighbourConflict)) } else { Ok(()) }
}
