//! Passes packets on to the node that announced their address before, out of the device on which they came.

use common::decide::previous;
use common::decide::tables;
use common::maps::announced::{Announced, AnnouncedKey};
use common::maps::next_hop::link;
use common::maps::previous::{Peer, PeerKey, Previous};
use common::reason::Reason;

use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::maps;
use crate::packet::{ETH_BYTES, Headers};
use crate::scratch::Received;
use crate::segment::{draft, reply, sums};
use crate::stage::neighbour::AlignedKey;
use crate::verified::verified;

/// Offsets in [`Headers`] of the Ethernet header.
const V4_FRAME: usize = Headers::V4 - ETH_BYTES as usize;
const V6_FRAME: usize = Headers::V6 - ETH_BYTES as usize;
/// Offsets of the hop limit or TTL: in [`Headers`], and in the frame.
const V4_HOPS: usize = Headers::V4 + 8;
const V6_HOPS: usize = Headers::V6 + 7;
const V4_HOPS_AT: u32 = ETH_BYTES + 8;
const V6_HOPS_AT: u32 = ETH_BYTES + 7;

/// The segment proves a handshake in full.
pub(crate) const HAS_COOKIE: u32 = 1;
/// This node announces the packet's address.
pub(crate) const IS_HERE: u32 = 2;

verified! {
    /// Finds the node that the packet goes on to, if it goes on; `packet` is [`HAS_COOKIE`] and [`IS_HERE`], if so. The agent of this node
    /// last stamped at `stamp_ns`.
    pub(crate) fn find as previous_find[Skb, skb](received: Received, peer: Peer; packet: u32, stamp_ns: u64) -> Result<bool, Exit> {
        let device = skb.ifindex();
        let key = AlignedKey(AnnouncedKey { address: received.segment.tuple.vip, device });
        let mut before = Previous::zeroed();
        let known = tables::stable(&mut before, |to| {
            maps::previous(&key.0).is_some_and(|found| {
                kernel::assign(to, found);
                true
            })
        });
        if !known.map_err(Exit::refused)? || !is_known(peer, before.node, device)? {
            return Ok(false);
        }
        let h = &received.headers;
        let from = match received.segment.v4 {
            true => link(h.word(V4_FRAME + 6), h.be16(V4_FRAME + 10).to_be()),
            false => link(h.word(V6_FRAME + 6), h.be16(V6_FRAME + 10).to_be()),
        };
        let now_ns = kernel::monotonic_ns();
        let (has_cookie, is_here) = (packet & HAS_COOKIE != 0, packet & IS_HERE != 0);
        let is_passing = previous::is_passing(&before, is_here, has_cookie, now_ns);
        Ok(is_passing & previous::passes(&before, peer, from, has_cookie, stamp_ns, now_ns))
    }
}

#[inline(always)]
fn is_known(peer: &mut Peer, node: u64, device: u32) -> Result<bool, Exit> {
    let key = PeerKey::new(node, device);
    let known = tables::stable(peer, |to| {
        maps::peer(&key).is_some_and(|found| {
            kernel::assign(to, found);
            true
        })
    });
    known.map_err(Exit::refused)
}

verified! {
    /// Sends the packet on to the node, from the link address by which its address is announced. Nothing else changes but the hop limit or TTL,
    /// of which `most` are left before: it may be a super-packet of many segments, whose checksums are still to be made.
    pub(crate) fn send as previous_send[Skb, skb](received: Received, to: Peer, from: Announced; most: u32) -> Exit {
        let stored = match received.segment.v4 {
            true => store::<true>(skb, received, to.link, &from.link, most),
            false => store::<false>(skb, received, to.link, &from.link, most),
        };
        match stored {
            Ok(stored) => reply::send(skb, stored, Reason::PreviousPassed),
            Err(exit) => exit,
        }
    }
}

#[inline(always)]
fn store<const V4: bool>(
    skb: Skb,
    received: &mut Received,
    to: u64,
    from: &[u8; 6],
    most: u32,
) -> Result<bool, Exit> {
    let (frame, hops_in, hops_at) =
        if V4 { (V4_FRAME, V4_HOPS, V4_HOPS_AT) } else { (V6_FRAME, V6_HOPS, V6_HOPS_AT) };
    let h = &mut received.headers;
    let hops = h.bytes[hops_in];
    if hops <= 1 {
        return Err(Exit::drop(Reason::PreviousHopLimit));
    }
    let left = (if u32::from(hops) > most { most as u8 } else { hops }) - 1;
    h.bytes[hops_in] = left;
    h.set_link_word(frame, to);
    h.set_link(frame + 6, from);
    // With the IPv4 header's checksum, which keeps the sum over the packet what it was.
    let changed = if V4 { 4 } else { 1 };
    if V4 {
        draft::write_ip_checksum(h, Headers::V4);
    } else {
        skb.add_to_sum(sums::v6_header_changed(0, hops, left));
    }
    let body = h.bytes.as_ptr().wrapping_add(hops_in);
    Ok(skb.store_headers(0, h.frame(V4), ETH_BYTES) && skb.store_headers(hops_at, body, changed))
}
