//! Checksums of what we make (RFC 1071): pseudo header, TCP header, payload, ICMP messages.

use aya_ebpf::bindings::__sk_buff;
use common::maps::address::Address;
use common::maps::flow::ClientTuple;
use common::wire::checksum;
use core::ffi::c_void;
use network_types::ip::IpProto;

use crate::kernel::{self, Skb};
use crate::packet::{Headers, Scratch, TCP_AT};

/// Most payload bytes of one draft: what the window holds behind its last stream position.
pub(crate) const PAYLOAD_MAX: u32 = 8960;

/// Bytes of a packet summed at a time: the most that older kernels take.
const PIECE: u32 = 512;
/// Pieces of the longest packet.
const PIECES: u32 = 65_536 / PIECE + 1;

/// Sum over pseudo header and, unless the checksum is left to the device, the TCP header.
#[inline(always)]
pub(crate) fn transport(s: &Scratch, tcp_bytes: u32) -> u32 {
    let sum = pseudo_as_in_memory(&s.draft.tuple, tcp_bytes + s.draft.payload_bytes);
    if s.partial {
        return to_network(sum);
    }
    let header = s.headers.bytes.as_ptr().wrapping_add(TCP_AT);
    let length = core::hint::black_box(tcp_bytes) & 60;
    to_network(kernel::checksum_difference(core::ptr::null(), 0, header, length, sum))
}

/// Sum of the pseudo header of a TCP segment of `length` bytes, header included.
#[inline(always)]
pub(crate) fn pseudo(tuple: &ClientTuple, length: u32) -> u32 {
    to_network(pseudo_as_in_memory(tuple, length))
}

#[inline(always)]
fn pseudo_as_in_memory(tuple: &ClientTuple, length: u32) -> u32 {
    // The mapped form's 0xffff twice sums to zero, so IPv4 may be summed over 32 bytes too.
    let seed = (6 + length).swap_bytes();
    kernel::checksum_difference(core::ptr::null(), 0, core::ptr::from_ref(tuple).cast::<u8>(), 32, seed)
}

/// Bytes of a TCP header with timestamps: what nearly every segment of an open connection has, or less.
pub(crate) const USUAL_HEADER: u32 = 32;

/// What the packet's checksum changes by because the draft's addresses are others than the segment's. Ports are part of the
/// TCP header.
#[inline(always)]
pub(crate) fn addresses_changed(s: &Scratch) -> u32 {
    let (old, new) = (&s.segment.tuple, &s.draft.tuple);
    if s.segment.v4 {
        let low = |address: &Address| u64::from(address.low_word());
        let gone = |address: &Address| u64::from(!address.low_word());
        return fold(low(&new.client) + low(&new.vip) + gone(&old.client) + gone(&old.vip));
    }
    // Both addresses at once: the sum does not care for their order.
    let (old, new) = (core::ptr::from_ref(old).cast::<u8>(), core::ptr::from_ref(new).cast::<u8>());
    kernel::checksum_difference(old, 32, new, 32, 0)
}

/// What the packet's checksum changes by because the TCP header is not the received one any more.
#[inline(always)]
pub(crate) fn header_changed(s: &Scratch, bytes: u32) -> u32 {
    if bytes > USUAL_HEADER {
        let was = s.received.bytes.as_ptr();
        let is = s.headers.bytes.as_ptr().wrapping_add(TCP_AT);
        return kernel::checksum_difference(was, bytes, is, bytes, 0);
    }
    // Without a call, which takes longer. What stands behind a shorter header is the same in both.
    let (mut sum, mut at) = (0, 0);
    while at < USUAL_HEADER as usize {
        sum += u64::from(s.headers.word(TCP_AT + at)) + u64::from(!s.received.word(at));
        at += 4;
    }
    fold(sum)
}

/// Of a sum of words to one word (RFC 1071 section 2).
#[inline(always)]
const fn fold(sum: u64) -> u32 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
}

/// Sum of the IPv4 header without options that begins at a constant offset, divisible by 4; 0xffff where it is right.
#[inline(always)]
pub(crate) fn ip_header(headers: &Headers, begin: usize) -> u16 {
    let (mut sum, mut at) = (0, begin);
    while at < begin + 20 {
        sum += u64::from(headers.word(at));
        at += 4;
    }
    u16::from_be(checksum::fold(fold(sum)))
}

/// From the kernel's sum (over words as they lie in memory) to a sum of host-order words.
#[inline(always)]
pub(crate) fn to_network(sum: u32) -> u32 {
    u32::from(checksum::fold(sum).swap_bytes())
}

/// Context of [`sum_step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Sum {
    scratch: *mut Scratch,
}

/// Adds `length` bytes of working memory, a multiple of 4 and at most 512, to a sum.
#[inline(always)]
pub(crate) fn of(from: *const u8, length: u32, seed: u32) -> u32 {
    seed + to_network(kernel::checksum_difference(core::ptr::null(), 0, from, length, 0))
}

/// Sum of the pseudo header of an ICMP message of ours: IPv4 has none.
#[inline(always)]
pub(crate) fn icmp_pseudo(s: &Scratch, icmp_bytes: u32) -> u32 {
    if s.segment.v4 { 0 } else { icmp6_pseudo(&s.draft.tuple, icmp_bytes) }
}

/// Sum of the pseudo header of an ICMPv6 message between the addresses of `tuple`.
#[inline(always)]
pub(crate) fn icmp6_pseudo(tuple: &ClientTuple, icmp_bytes: u32) -> u32 {
    let tuple = core::ptr::from_ref(tuple).cast::<u8>();
    let seed = (u32::from(IpProto::Ipv6Icmp as u8) + icmp_bytes).swap_bytes();
    to_network(kernel::checksum_difference(core::ptr::null(), 0, tuple, 32, seed))
}

/// Adds the payload to a sum, 512 bytes at a time (the most older kernels take).
#[inline(always)]
pub(crate) fn payload(s: &mut Scratch, seed: u32) -> u32 {
    if s.draft.payload_bytes == 0 {
        return seed;
    }
    s.at = s.draft.payload_from;
    s.left = s.draft.payload_bytes;
    s.sum = seed;
    let mut state = Sum { scratch: s };
    kernel::repeat(PAYLOAD_MAX / 512 + 2, sum_step, core::ptr::from_mut(&mut state).cast());
    s.sum
}

/// Adds one piece; 1 = the end.
unsafe extern "C" fn sum_step(_: u32, state: *mut c_void) -> i64 {
    // SAFETY: `payload_sum` passes a `Sum` on its stack.
    let state = unsafe { &mut *state.cast::<Sum>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { state.scratch.as_mut() }) else { return 1 };
    if s.left == 0 {
        return 1;
    }
    let at = core::hint::black_box(s.at) & 0x7fff;
    if at as usize > s.window.bytes.len() - 512 {
        return 1;
    }
    let from = s.window.bytes.as_mut_ptr().wrapping_add(at as usize);
    let piece = s.left.min(512);
    let whole = core::hint::black_box(piece & !3) & 0x3fc;
    if whole > 0 && whole <= 512 {
        let sum = kernel::checksum_difference(core::ptr::null(), 0, from, whole, 0);
        s.sum += to_network(sum);
    }
    // The last one to three bytes, as if zeros followed.
    let mut i = 0;
    while i < 3 {
        let offset = (piece & !3) + i;
        if offset < piece {
            let byte = u32::from(s.window.bytes[((at + offset) & 0x3fff) as usize]);
            s.sum += if i & 1 == 0 { byte << 8 } else { byte };
        }
        i += 1;
    }
    s.at += piece;
    s.left -= piece;
    0
}

/// Writes the checksum of the ICMP message at the start of the window.
///
/// A PARTIAL packet was UDP's: the device will write the complement of the whole sum at byte 6, which ICMP leaves
/// unused. With the pseudo header's sum there before, and none at byte 2, the message then sums up as it must.
#[inline(always)]
pub(crate) fn icmp(s: &mut Scratch, icmp_bytes: u32) {
    let pseudo = icmp_pseudo(s, icmp_bytes);
    if s.partial {
        let sum = checksum::fold(pseudo).to_be_bytes();
        s.window.bytes[6] = sum[0];
        s.window.bytes[7] = sum[1];
        return;
    }
    let message = s.window.bytes.as_ptr();
    let sum = if s.segment.v4 { of(message, 36, pseudo) } else { of(message, 56, pseudo) };
    let sum = (!checksum::fold(sum)).to_be_bytes();
    s.window.bytes[2] = sum[0];
    s.window.bytes[3] = sum[1];
}

/// Context of [`packet_step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct PacketSum {
    skb: *mut __sk_buff,
    scratch: *mut Scratch,
}

/// Whether `length` bytes of the frame from `at` on sum up, going on from `seed`. Overwrites the start of the window.
#[inline(always)]
pub(crate) fn whole(skb: Skb, s: &mut Scratch, at: u32, length: u32, seed: u32) -> bool {
    s.at = at;
    s.left = length;
    s.sum = seed;
    let mut state = PacketSum { skb: skb.0, scratch: s };
    kernel::repeat(PIECES, packet_step, core::ptr::from_mut(&mut state).cast());
    s.left == 0 && checksum::fold(s.sum) == 0xffff
}

/// Adds one piece; 1 = the end.
unsafe extern "C" fn packet_step(_: u32, state: *mut c_void) -> i64 {
    // SAFETY: `whole` passes a `PacketSum` on its stack.
    let state = unsafe { &mut *state.cast::<PacketSum>() };
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
    s.sum += to_network(kernel::checksum_difference(core::ptr::null(), 0, bytes, words, 0));
    s.at += piece;
    s.left -= piece;
    0
}
