//! Verifies checksums before a packet is acted on.
//!
//! A segment is summed when we take its bytes, when it makes, frees or ends state, and when we answer it.
//! Data of an established flow is not summed: its checksum is changed only by the difference of the headers.
//! So a wrong checksum stays wrong, and the end host judges it.

use common::reason::Reason;
use common::wire::checksum;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::{Headers, TCP_AT};
use crate::scratch::{Cursors, Received};
use crate::segment::{emit, sums};
use crate::verified::verified;

/// Refuses an IPv4 header (without options) whose checksum is wrong, as a router does (RFC 1812 section 5.2.2).
#[inline(always)]
pub(crate) fn ip(received: &Received) -> Result<(), Exit> {
    let right = !received.segment.v4 || sums::ip_header(&received.headers, Headers::V4) == 0xffff;
    if right { Ok(()) } else { Err(Exit::drop(Reason::ParseIpChecksum)) }
}

/// Whether the checksum of a segment without payload is there and right, by its headers alone. One that equals the pseudo
/// header's sum may be left to a device (CHECKSUM_PARTIAL), which XDP cannot see.
#[inline(always)]
pub(crate) fn is_complete(received: &Received) -> bool {
    let seg = &received.segment;
    let pseudo = sums::pseudo(&seg.tuple, seg.tcp_bytes);
    if received.headers.be16(TCP_AT + 16) == checksum::fold(pseudo) {
        return false;
    }
    let header = received.headers.bytes.as_ptr().wrapping_add(TCP_AT);
    let bytes = core::hint::black_box(seg.tcp_bytes) & 60;
    checksum::fold(sums::of(header, bytes, pseudo)) == 0xffff
}

verified! {
    /// Refuses a segment whose TCP checksum is wrong. A checksum that its sender left to a device (CHECKSUM_PARTIAL),
    /// or that a device has verified (CHECKSUM_UNNECESSARY), is trusted, as the kernel trusts it.
    pub(crate) fn tcp as checksum_tcp[Skb, skb](received: Received, cursors: Cursors) -> Result<(), Exit> {
        match is_trusted(skb, received, cursors) {
            true => Ok(()),
            false => Err(Exit::drop(Reason::ParseTcpChecksum)),
        }
    }
}

#[inline(always)]
fn is_trusted(skb: Skb, received: &mut Received, cursors: &mut Cursors) -> bool {
    // Already checked, and trusted.
    if received.partial_known {
        return true;
    }
    let seg = &received.segment;
    let fixed = seg.tcp_at();
    let length = seg.tcp_bytes + seg.payload_bytes;
    let pseudo = sums::pseudo(&seg.tuple, length);
    // A sender that leaves the sum to a device writes the pseudo header's sum: true of most packets between
    // namespaces.
    let likely = received.headers.be16(TCP_AT + 16) == checksum::fold(pseudo);
    if likely && is_left_to_device(skb, received) {
        return true;
    }
    if skb.checksum_vouched() {
        received.partial = false;
        received.partial_known = true;
        return true;
    }
    sums::whole(skb, cursors, fixed, length, pseudo) || !likely && is_left_to_device(skb, received)
}

/// Whether the checksum is still to be completed.
#[inline(always)]
fn is_left_to_device(skb: Skb, received: &mut Received) -> bool {
    received.partial_known = emit::learn_partial_of_received(skb, received).is_ok() && received.partial;
    received.partial_known
}
