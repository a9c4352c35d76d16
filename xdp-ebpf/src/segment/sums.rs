//! Checksums of what we make and receive (RFC 1071): pseudo header, TCP header, payload, ICMP messages.

use common::maps::address::Address;
use common::maps::flow::ClientTuple;
use common::wire::checksum;
use common::wire::client_hello::{STREAM_BYTES_MAX, Stream, WINDOW_BYTES};
use network_types::ip::IpProto;

use crate::kernel::{self, Skb};
use crate::packet::{Headers, Segment, TCP_AT};
use crate::scratch::{Cursors, Draft, Received};
use crate::verified::looped;

/// The maximum payload of one draft, in bytes. The window has room for it behind any stream position.
pub(crate) const PAYLOAD_MAX: u32 = 8960;

const _: () = assert!(WINDOW_BYTES - STREAM_BYTES_MAX as usize >= PAYLOAD_MAX as usize);

/// Bytes of a packet summed at a time: the maximum that older kernels take.
const PIECE: u32 = 512;
/// Number of pieces of the longest packet.
const PIECES: u32 = 65_536 / PIECE + 1;

/// Sums the pseudo header and, unless the checksum is left to the device, the TCP header.
#[inline(always)]
pub(crate) fn transport(received: &Received, draft: &Draft, tcp_bytes: u32) -> u32 {
    let sum = pseudo_as_in_memory(&draft.tuple, tcp_bytes + draft.payload_bytes);
    if received.partial {
        return to_network(sum);
    }
    let header = received.headers.bytes.as_ptr().wrapping_add(TCP_AT);
    let length = core::hint::black_box(tcp_bytes) & 60;
    to_network(kernel::checksum_difference(core::ptr::null(), 0, header, length, sum))
}

/// Sums the pseudo header of a TCP segment of `length` bytes, header included.
#[inline(always)]
pub(crate) fn pseudo(tuple: &ClientTuple, length: u32) -> u32 {
    to_network(pseudo_as_in_memory(tuple, length))
}

#[inline(always)]
fn pseudo_as_in_memory(tuple: &ClientTuple, length: u32) -> u32 {
    // The 0xffff of both IPv4-mapped addresses adds nothing to the sum, so IPv4 can be summed over 32 bytes too. Without a
    // helper call, which takes longer.
    let seed = (6 + length).swap_bytes();
    fold(u64::from(seed) + of_address(&tuple.client) + of_address(&tuple.vip))
}

/// Adds up the words of an address, as they are in memory.
#[inline(always)]
fn of_address(address: &Address) -> u64 {
    let (high, low) = address.halves();
    (high >> 32) + (high & 0xffff_ffff) + (low >> 32) + (low & 0xffff_ffff)
}

/// Length of a TCP header with timestamps: nearly every segment of an open connection has this one or a shorter one.
pub(crate) const USUAL_HEADER: u32 = 32;

/// Returns the change of the packet's checksum when the draft's addresses replace the segment's. Ports are
/// part of the TCP header.
#[inline(always)]
pub(crate) fn addresses_changed(segment: &Segment, draft: &Draft) -> u32 {
    let (old, new) = (&segment.tuple, &draft.tuple);
    if segment.v4 {
        let low = |address: &Address| u64::from(address.low_word());
        let gone = |address: &Address| u64::from(!address.low_word());
        return fold(low(&new.client) + low(&new.vip) + gone(&old.client) + gone(&old.vip));
    }
    // Both addresses at once: their order does not affect the sum.
    let (old, new) = (core::ptr::from_ref(old).cast::<u8>(), core::ptr::from_ref(new).cast::<u8>());
    kernel::checksum_difference(old, 32, new, 32, 0)
}

/// Returns the change of the packet's checksum due to the changes of the TCP header since it was received.
#[inline(always)]
pub(crate) fn header_changed(received: &Received, bytes: u32) -> u32 {
    if bytes > USUAL_HEADER {
        let was = received.kept.bytes.as_ptr();
        let is = received.headers.bytes.as_ptr().wrapping_add(TCP_AT);
        return kernel::checksum_difference(was, bytes, is, bytes, 0);
    }
    // Without a helper call, which takes longer. Bytes after a shorter header are the same in both.
    let (mut sum, mut at) = (0, 0);
    while at < USUAL_HEADER as usize {
        sum += u64::from(received.headers.word(TCP_AT + at)) + u64::from(!received.kept.word(at));
        at += 4;
    }
    fold(sum)
}

/// Returns what the sum over a packet (CHECKSUM_COMPLETE) lacks once its IPv6 header was replaced and its checksum field
/// updated: the kernel takes the change of a checksum due to addresses for a change of the sum, as with IPv4, whose header has
/// a checksum of its own, unless `BPF_F_IPV6` is set, which only newer kernels know. The hop limit was `before`.
#[inline(always)]
pub(crate) fn v6_header_changed(addresses: u32, before: u8, after: u8) -> u32 {
    let in_memory = |hops: u8| u32::from(u16::from(hops).to_be());
    fold(u64::from(addresses) + u64::from(in_memory(after)) + u64::from(!in_memory(before)))
}

/// Folds a sum of words to one word (RFC 1071 section 2).
#[inline(always)]
const fn fold(sum: u64) -> u32 {
    let sum = (sum >> 32) + (sum & 0xffff_ffff);
    ((sum >> 32) + (sum & 0xffff_ffff)) as u32
}

/// Sums the IPv4 header without options that starts at a constant offset, divisible by 4; 0xffff when it is right.
#[inline(always)]
pub(crate) fn ip_header(headers: &Headers, begin: usize) -> u16 {
    let (mut sum, mut at) = (0, begin);
    while at < begin + 20 {
        sum += u64::from(headers.word(at));
        at += 4;
    }
    u16::from_be(checksum::fold(fold(sum)))
}

/// Converts the kernel's sum (over words in memory order) to a sum of host-order words.
#[inline(always)]
pub(crate) fn to_network(sum: u32) -> u32 {
    u32::from(checksum::fold(sum).swap_bytes())
}

/// Adds `length` bytes of working memory to a sum; `length` is a multiple of 4 and at most 512.
#[inline(always)]
pub(crate) fn of(from: *const u8, length: u32, seed: u32) -> u32 {
    seed + to_network(kernel::checksum_difference(core::ptr::null(), 0, from, length, 0))
}

/// Sums the pseudo header of one of our ICMP messages: IPv4 has none.
#[inline(always)]
pub(crate) fn icmp_pseudo(v4: bool, draft: &Draft, icmp_bytes: u32) -> u32 {
    if v4 { 0 } else { icmp6_pseudo(&draft.tuple, icmp_bytes) }
}

/// Sums the pseudo header of an ICMPv6 message between the addresses of `tuple`.
#[inline(always)]
pub(crate) fn icmp6_pseudo(tuple: &ClientTuple, icmp_bytes: u32) -> u32 {
    let tuple = core::ptr::from_ref(tuple).cast::<u8>();
    let seed = (u32::from(IpProto::Ipv6Icmp as u8) + icmp_bytes).swap_bytes();
    to_network(kernel::checksum_difference(core::ptr::null(), 0, tuple, 32, seed))
}

/// Adds the draft's payload to a sum.
#[inline(always)]
pub(crate) fn payload(draft: &Draft, cursors: &mut Cursors, seed: u32) -> u32 {
    if draft.payload_bytes == 0 {
        return seed;
    }
    cursors.at = draft.payload_from;
    cursors.left = draft.payload_bytes;
    cursors.sum = seed;
    add_window(cursors);
    cursors.sum
}

looped! {
    /// Adds bytes of the window, a piece at a time.
    fn add_window(cursors: Cursors) times PAYLOAD_MAX / PIECE + 2, |_round| {
        if cursors.left == 0 {
            return true;
        }
        let at = core::hint::black_box(cursors.at) & 0x7fff;
        if at as usize > cursors.window.bytes.len() - PIECE as usize {
            return true;
        }
        let from = cursors.window.bytes.as_mut_ptr().wrapping_add(at as usize);
        let piece = cursors.left.min(PIECE);
        let whole = core::hint::black_box(piece & !3) & 0x3fc;
        if whole > 0 && whole <= PIECE {
            let sum = kernel::checksum_difference(core::ptr::null(), 0, from, whole, 0);
            cursors.sum += to_network(sum);
        }
        // The last one to three bytes, as if zeros followed.
        let rest = cursors.window.word(at + (piece & !3)) & !(u32::MAX >> (8 * (piece & 3)));
        cursors.sum += (rest >> 16) + (rest & 0xffff);
        cursors.at += piece;
        cursors.left -= piece;
        false
    }
}

/// Writes the checksum of the ICMP message at the start of the window.
///
/// A PARTIAL packet was UDP: the device will write the complement of the whole sum to byte 6, which ICMP
/// leaves unused. If byte 6 has the sum of the pseudo header before that, and byte 2 is zero, the message
/// then sums up correctly.
#[inline(always)]
pub(crate) fn icmp(received: &Received, draft: &Draft, cursors: &mut Cursors, icmp_bytes: u32) {
    let v4 = received.segment.v4;
    let pseudo = icmp_pseudo(v4, draft, icmp_bytes);
    let message = &mut cursors.window.bytes;
    if received.partial {
        let sum = checksum::fold(pseudo).to_be_bytes();
        message[6] = sum[0];
        message[7] = sum[1];
        return;
    }
    let sum = if v4 { of(message.as_ptr(), 36, pseudo) } else { of(message.as_ptr(), 56, pseudo) };
    let sum = (!checksum::fold(sum)).to_be_bytes();
    message[2] = sum[0];
    message[3] = sum[1];
}

/// Whether `length` bytes of the frame from `at` on sum up correctly, starting from `seed`. Overwrites the
/// start of the window.
#[inline(always)]
pub(crate) fn whole(skb: Skb, cursors: &mut Cursors, at: u32, length: u32, seed: u32) -> bool {
    cursors.at = at;
    cursors.left = length;
    cursors.sum = seed;
    add_frame(skb, cursors);
    cursors.left == 0 && checksum::fold(cursors.sum) == 0xffff
}

looped! {
    /// Adds bytes of the frame, a piece at a time.
    fn add_frame[Skb, skb](cursors: Cursors) times PIECES, |_round| {
        if cursors.left == 0 {
            return true;
        }
        // The mask changes nothing, but shows the verifier that at least one byte is loaded.
        let last = core::hint::black_box(cursors.left.min(PIECE) - 1) & (PIECE - 1);
        let piece = last + 1;
        // The last one to three bytes count as if zeros followed.
        let end = (last & !3) as usize;
        cursors.window.bytes[end..end + 4].fill(0);
        let bytes = cursors.window.bytes.as_mut_ptr();
        if !skb.load(cursors.at, bytes, piece) {
            return true;
        }
        let words = (last & !3) + 4;
        cursors.sum += to_network(kernel::checksum_difference(core::ptr::null(), 0, bytes, words, 0));
        cursors.at += piece;
        cursors.left -= piece;
        false
    }
}
