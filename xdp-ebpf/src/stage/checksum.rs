//! Judges checksums before a packet is believed.
//!
//! A segment is summed wherever its bytes become ours, wherever it makes, frees or ends state, and wherever we answer
//! it. Data of an established flow is not: its checksum is changed by the difference of the headers alone, so what was
//! wrong stays wrong, and the end host judges it.

use aya_ebpf::bindings::__sk_buff;
use common::reason::Reason;
use common::wire::checksum;
use core::ffi::c_void;

use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::packet::{Headers, Scratch, TCP_AT, V4_BYTES, V6_BYTES};
use crate::stage::emit;
use crate::sum;

/// Bytes summed at a time: the most that older kernels take.
const PIECE: u32 = 512;
/// Pieces of the longest packet.
const PIECES: u32 = 65_536 / PIECE + 1;

/// Refuses an IPv4 header (without options) whose checksum is wrong, as a router does (RFC 1812 section 5.2.2).
#[inline(always)]
pub(crate) fn ip(s: &Scratch) -> Result<(), Exit> {
    if !s.segment.v4 {
        return Ok(());
    }
    let h = &s.headers;
    let mut sum = 0u64;
    let mut i = 0;
    while i < 20 {
        sum += u64::from(h.be32(Headers::V4 + i));
        i += 4;
    }
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    let sum = (sum >> 32) as u32 + (sum >> 16 & 0xffff) as u32 + (sum & 0xffff) as u32;
    if checksum::fold(sum) == 0xffff { Ok(()) } else { Err(Exit::drop(Reason::ParseIpChecksum)) }
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
    whole(skb, s, fixed, length, pseudo) || !likely && left_to_device(skb, s)
}

/// Whether the checksum is still to be completed; a packet for which it is not is changed by the question.
#[inline(always)]
fn left_to_device(skb: Skb, s: &mut Scratch) -> bool {
    s.partial_known = emit::learn_partial(skb, s).is_ok() && s.partial;
    s.partial_known
}

/// Context of [`sum_step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Sum {
    skb: *mut __sk_buff,
    scratch: *mut Scratch,
}

/// Whether `length` bytes of the frame from `at` on sum up, going on from `seed`. Overwrites the start of the window.
#[inline(always)]
pub(crate) fn whole(skb: Skb, s: &mut Scratch, at: u32, length: u32, seed: u32) -> bool {
    s.at = at;
    s.left = length;
    s.sum = seed;
    let mut state = Sum { skb: skb.0, scratch: s };
    kernel::repeat(PIECES, sum_step, core::ptr::from_mut(&mut state).cast());
    s.left == 0 && checksum::fold(s.sum) == 0xffff
}

/// Adds one piece; 1 = the end.
unsafe extern "C" fn sum_step(_: u32, state: *mut c_void) -> i64 {
    // SAFETY: `whole` passes a `Sum` on its stack.
    let state = unsafe { &mut *state.cast::<Sum>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { state.scratch.as_mut() }) else { return 1 };
    if s.left == 0 {
        return 1;
    }
    // The mask changes nothing; the verifier sees that at least one byte is asked for.
    let last = core::hint::black_box(s.left.min(PIECE) - 1) & (PIECE - 1);
    let piece = last + 1;
    // The last one to three bytes count as if zeros followed.
    let end = (last & !3) as usize;
    s.window.bytes[end..end + 4].fill(0);
    let bytes = s.window.bytes.as_mut_ptr();
    if !Skb(state.skb).load(s.at, bytes, piece) {
        return 1;
    }
    let words = (last & !3) + 4;
    s.sum += sum::to_network(kernel::checksum_difference(core::ptr::null(), 0, bytes, words, 0));
    s.at += piece;
    s.left -= piece;
    0
}
