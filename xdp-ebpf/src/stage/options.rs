//! Takes IPv4 options and IPv6 extension headers off a packet for a VIP: they end here, at their destination. What is
//! left is a packet without, which the stages behind read at fixed places.
//!
//! Refused are headers that ask for more than to be read over: source routes, routing and authentication headers,
//! options that an end host must not ignore (RFC 8200 section 4.2), and chains longer than [`HEADERS_MAX`].

use aya_ebpf::bindings::__sk_buff;
use common::reason::Reason;
use core::ffi::c_void;
use network_types::ip::IpProto;

use crate::draft;
use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::packet::{ETH_BYTES, Headers, Scratch, V4_BYTES, V6_BYTES};

/// Most extension headers of one packet, and the most bytes of them together.
const HEADERS_MAX: u32 = 4;
const BYTES_MAX: u32 = 512;
/// Most options in all of them; one more step a header.
const OPTIONS_MAX: u32 = 64;

/// Loose and strict source route (RFC 791): kind bytes with their copied bit.
const LOOSE_ROUTE: u8 = 131;
const STRICT_ROUTE: u8 = 137;

/// Makes the packet one without options; its headers are then to be read again.
#[inline(always)]
pub(crate) fn strip(skb: Skb, s: &mut Scratch) -> Result<(), Exit> {
    if options_strip(skb.0, s) == 1 { Ok(()) } else { Err(Exit::drop(Reason::ParseOptions)) }
}

/// 1 = done. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn options_strip(skb: *mut __sk_buff, s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let skb = Skb(skb);
    u32::from(if s.segment.v4 { strip_v4(skb, s) } else { strip_v6(skb, s) })
}

#[inline(always)]
fn strip_v4(skb: Skb, s: &mut Scratch) -> bool {
    let header_bytes = u32::from(s.headers.bytes[Headers::V4] & 15) * 4;
    let told = u32::from(s.headers.be16(Headers::V4 + 2));
    if s.headers.bytes[Headers::V4] >> 4 != 4 || header_bytes <= 20 || told < header_bytes {
        return false;
    }
    // Judged as it came: the sum of the shorter header is written anew.
    if !crate::sum::whole(skb, s, ETH_BYTES, header_bytes, 0) {
        return false;
    }
    let extra = header_bytes - 20;
    // The options are where TCP will be: whole in the headers in hand, for at most 40 bytes.
    if skb.length() < V4_BYTES + extra || !walk(s, extra, true) || !skb.shrink_behind_ip(extra) {
        return false;
    }
    s.headers.bytes[Headers::V4] = 0x45;
    s.headers.set_be16(Headers::V4 + 2, (told - extra) as u16);
    draft::write_ip_checksum(&mut s.headers, Headers::V4);
    let ip = s.headers.bytes.as_ptr().wrapping_add(Headers::V4);
    skb.store(ETH_BYTES, ip, 20)
}

#[inline(always)]
fn strip_v6(skb: Skb, s: &mut Scratch) -> bool {
    let told = u32::from(s.headers.be16(Headers::V6 + 4));
    s.options_next = s.headers.bytes[Headers::V6 + 6];
    let mut extra = 0;
    let mut header = 0;
    while header < HEADERS_MAX {
        let next = s.options_next;
        if next != IpProto::HopOpt as u8 && next != IpProto::Ipv6Opts as u8 {
            break;
        }
        if !one_header(skb, s, extra) {
            return false;
        }
        extra += s.options_bytes;
        header += 1;
    }
    // TCP alone is worth it; a fragment, a routing header and the like are not behind it either.
    if s.options_next != IpProto::Tcp as u8 || extra == 0 || extra > BYTES_MAX || told <= extra {
        return false;
    }
    if !skb.shrink_behind_ip(extra) {
        return false;
    }
    s.headers.set_be16(Headers::V6 + 4, (told - extra) as u16);
    s.headers.bytes[Headers::V6 + 6] = s.options_next;
    let ip = s.headers.bytes.as_ptr().wrapping_add(Headers::V6);
    skb.store(ETH_BYTES, ip, 40)
}

/// Reads the extension header `extra` bytes behind the IPv6 header: what follows it, and whether its options may be
/// read over.
#[inline(always)]
fn one_header(skb: Skb, s: &mut Scratch, extra: u32) -> bool {
    if extra > BYTES_MAX || !skb.load(V6_BYTES + extra, s.received.bytes.as_mut_ptr(), 2) {
        return false;
    }
    s.options_next = s.received.bytes[0];
    let bytes = (u32::from(s.received.bytes[1]) + 1) * 8;
    s.options_bytes = bytes;
    if bytes > BYTES_MAX {
        return false;
    }
    let length = core::hint::black_box(bytes - 2);
    if length == 0 || length > BYTES_MAX {
        return false;
    }
    skb.load(V6_BYTES + extra + 2, s.window.bytes.as_mut_ptr(), length) && walk(s, length, false)
}

/// Whether `length` bytes of options, at the start of the window (IPv6) or behind the IPv4 header, may all be read over.
#[inline(always)]
fn walk(s: &mut Scratch, length: u32, v4: bool) -> bool {
    if v4 {
        let from = s.headers.bytes.as_ptr().wrapping_add(crate::packet::TCP_AT);
        kernel::copy(s.window.bytes.as_mut_ptr(), from, 40);
    }
    s.at = 0;
    s.left = length;
    let mut state = Walk { scratch: s };
    kernel::repeat(OPTIONS_MAX, step, core::ptr::from_mut(&mut state).cast());
    s.left == 0
}

/// Context of [`step`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Walk {
    scratch: *mut Scratch,
}

/// Reads over one option; 1 = the end, and `left` is 0 when nothing forbids it.
unsafe extern "C" fn step(_: u32, state: *mut c_void) -> i64 {
    // SAFETY: `walk` passes a `Walk` on its stack.
    let state = unsafe { &mut *state.cast::<Walk>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { state.scratch.as_mut() }) else { return 1 };
    let v4 = s.segment.v4;
    let kind = s.window.bytes[(s.at & 0x3ff) as usize];
    let told = u32::from(s.window.bytes[((s.at + 1) & 0x3ff) as usize]);
    let length = match (v4, kind) {
        // End of options: what follows is padding.
        (true, 0) => s.left,
        (true, 1) | (false, 0) => 1,
        (true, LOOSE_ROUTE | STRICT_ROUTE) => return 1,
        (true, _) if told < 2 => return 1,
        (true, _) => told,
        // The two high bits say what a host does that does not know the option; 0 = reads over it.
        (false, _) if kind >> 6 != 0 => return 1,
        (false, _) => told + 2,
    };
    if length > s.left {
        return 1;
    }
    s.at += length;
    s.left -= length;
    i64::from(s.left == 0)
}
