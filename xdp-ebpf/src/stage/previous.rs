//! Passes packets on to the node that announced their address before, out of the device on which they came.

use common::decide::{previous, tables};
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
use crate::verified::verified;

/// Offsets in [`Headers`] of the Ethernet header.
const V4_FRAME: usize = Headers::V4 - ETH_BYTES as usize;
const V6_FRAME: usize = Headers::V6 - ETH_BYTES as usize;
/// Offsets of the hop limit or TTL: in [`Headers`], and in the frame.
const V4_HOPS: usize = Headers::V4 + 8;
const V6_HOPS: usize = Headers::V6 + 7;
const V4_HOPS_AT: u32 = ETH_BYTES + 8;
const V6_HOPS_AT: u32 = ETH_BYTES + 7;

/// A key that the compiler may store in words of eight bytes, which the verifier wants to be aligned.
#[repr(align(8))]
struct AlignedKey(AnnouncedKey);

verified! {
    /// Finds the node that the packet goes on to, if it goes on. `has_cookie` is 1 for a segment that proves a handshake in full, `is_here`
    /// for an address that this node announces.
    pub(crate) fn find as previous_find[Skb, skb](received: Received, peer: Peer; has_cookie: u32, is_here: u32) -> Result<bool, Exit> {
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
        let is_passing = previous::is_passing(&before, is_here == 1, has_cookie == 1, now_ns);
        Ok(is_passing & previous::passes(&before, peer, from, has_cookie == 1, now_ns))
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
    /// Sends the packet on to the node, from the link address by which its address is announced. Nothing else changes but the hop limit or TTL:
    /// it may be a super-packet of many segments, whose checksums are still to be made.
    pub(crate) fn send as previous_send[Skb, skb](received: Received, to: Peer, from: Announced) -> Exit {
        let stored = match received.segment.v4 {
            true => store::<true>(skb, received, to.link, &from.link),
            false => store::<false>(skb, received, to.link, &from.link),
        };
        match stored {
            Ok(stored) => reply::send(skb, stored, Reason::PreviousPassed),
            Err(exit) => exit,
        }
    }
}

#[inline(always)]
fn store<const V4: bool>(skb: Skb, received: &mut Received, to: u64, from: &[u8; 6]) -> Result<bool, Exit> {
    let (frame, hops_in, hops_at) =
        if V4 { (V4_FRAME, V4_HOPS, V4_HOPS_AT) } else { (V6_FRAME, V6_HOPS, V6_HOPS_AT) };
    let h = &mut received.headers;
    let hops = h.bytes[hops_in];
    if hops <= 1 {
        return Err(Exit::drop(Reason::PreviousHopLimit));
    }
    h.bytes[hops_in] = hops - 1;
    h.set_link_word(frame, to);
    h.set_link(frame + 6, from);
    // With the IPv4 header's checksum, which keeps the sum over the packet what it was.
    let changed = if V4 { 4 } else { 1 };
    if V4 {
        draft::write_ip_checksum(h, Headers::V4);
    } else {
        skb.add_to_sum(sums::v6_header_changed(0, hops, hops - 1));
    }
    let body = h.bytes.as_ptr().wrapping_add(hops_in);
    Ok(skb.store_headers(0, h.frame(V4), ETH_BYTES) && skb.store_headers(hops_at, body, changed))
}
