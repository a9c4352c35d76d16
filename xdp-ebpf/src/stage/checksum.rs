//! Judges checksums before a packet is believed.
//!
//! A segment is summed wherever its bytes become ours, wherever it makes, frees or ends state, and wherever we answer
//! it. Data of an established flow is not: its checksum is changed by the difference of the headers alone, so what was
//! wrong stays wrong, and the end host judges it.

use aya_ebpf::bindings::__sk_buff;
use common::reason::Reason;
use common::wire::checksum;

use crate::exit::Exit;
use crate::kernel::Skb;
use crate::packet::{Headers, Scratch, TCP_AT, V4_BYTES, V6_BYTES};
use crate::stage::emit;
use crate::sum;

/// Refuses an IPv4 header (without options) whose checksum is wrong, as a router does (RFC 1812 section 5.2.2).
#[inline(always)]
pub(crate) fn ip(s: &Scratch) -> Result<(), Exit> {
    if !s.segment.v4 {
        return Ok(());
    }
    let right = sum::ip_header(&s.headers, Headers::V4) == 0xffff;
    if right { Ok(()) } else { Err(Exit::drop(Reason::ParseIpChecksum)) }
}

/// Refuses a segment whose TCP checksum is wrong. One that its sender left to a device (CHECKSUM_PARTIAL), or that a
/// device has checked (CHECKSUM_UNNECESSARY), is trusted as the kernel trusts it.
#[inline(always)]
pub(crate) fn tcp(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    if checksum_tcp(skb.0, s) == 1 { Ok(()) } else { Err(Exit::drop(Reason::ParseTcpChecksum)) }
}

/// 1 = to be trusted. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn checksum_tcp(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    u32::from(trusted(Skb(skb), s))
}

#[inline(always)]
fn trusted(skb: Skb, s: &mut Scratch) -> bool {
    // Asked before, and found good.
    if s.partial_known {
        return true;
    }
    if skb.checksum_vouched() {
        s.partial = false;
        s.partial_known = true;
        return true;
    }
    let fixed = if s.segment.v4 { V4_BYTES } else { V6_BYTES };
    let length = s.segment.tcp_bytes + s.segment.payload_bytes;
    let pseudo = sum::pseudo(&s.segment.tuple, length);
    // A sender that leaves the sum to a device writes the pseudo header's: most packets between namespaces.
    let likely = s.headers.be16(TCP_AT + 16) == checksum::fold(pseudo);
    if likely {
        if left_to_device(skb, s) {
            return true;
        }
        // Chance: the question changed the field.
        let field = s.headers.bytes.as_ptr().wrapping_add(TCP_AT + 16);
        if !skb.store_headers(fixed + 16, field, 2) {
            return false;
        }
    }
    sum::whole(skb, s, fixed, length, pseudo) || !likely && left_to_device(skb, s)
}

/// Whether the checksum is still to be completed; a packet for which it is not is changed by the question.
#[inline(always)]
fn left_to_device(skb: Skb, s: &mut Scratch) -> bool {
    s.partial_known = emit::learn_partial(skb, s).is_ok() && s.partial;
    s.partial_known
}
