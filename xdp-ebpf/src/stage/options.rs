//! Removes IPv4 options and IPv6 extension headers from a packet for a VIP or of a backend's connection: this is their
//! destination. The rest is a packet without options, which later stages read at fixed offsets.
//!
//! Headers that must not be skipped are refused: source routes, routing and authentication headers, options
//! that an end host must not ignore (RFC 8200 section 4.2), and chains longer than [`HEADERS_MAX`].

use common::maps::flow::TRANSPORT_TCP;
use common::reason::Reason;
use network_types::ip::IpProto;

use crate::exit::Exit;
use crate::kernel::{self, Skb};
use crate::packet::{ETH_BYTES, Headers, TCP_AT, V4_BYTES, V6_BYTES};
use crate::scratch::{Cursors, Received};
use crate::segment::{draft, sums};
use crate::verified::{looped, verified};

/// The maximum number of extension headers of one packet, and of their bytes in total.
const HEADERS_MAX: u32 = 4;
const BYTES_MAX: u32 = 512;
/// The maximum number of extension headers that are searched for the ports of a segment, taken off or not.
const CHAIN_MAX: u32 = 16;
/// The maximum number of options in one header.
const OPTIONS_MAX: u32 = 64;

/// Loose and strict source route (RFC 791): the option types with their copied flag.
const LOOSE_ROUTE: u8 = 131;
const STRICT_ROUTE: u8 = 137;

verified! {
    /// Removes the options from the packet; its headers must then be read again.
    pub(crate) fn strip as options_strip[Skb, skb](received: Received, cursors: Cursors) -> Result<(), Exit> {
        let done = match received.segment.v4 {
            true => strip_v4(skb, received, cursors),
            false => strip_v6(skb, received, cursors),
        };
        if done { Ok(()) } else { Err(Exit::drop(Reason::ParseOptions)) }
    }
}

verified! {
    /// Reads the ports of the TCP segment behind the options, whichever they are; `false`: there is none. Leaves the packet
    /// unchanged.
    pub(crate) fn ports as options_ports[Skb, skb](received: Received, cursors: Cursors) -> bool {
        let (h, v4) = (&received.headers, received.segment.v4);
        if v4 {
            // Only the first fragment has ports.
            if h.be16(Headers::V4 + 6) & 0x1fff != 0 {
                return false;
            }
            cursors.options_next = h.bytes[Headers::V4 + 9].into();
            cursors.at = ETH_BYTES + u32::from(h.bytes[Headers::V4] & 15) * 4;
        } else {
            cursors.options_next = h.bytes[Headers::V6 + 6].into();
            cursors.at = V6_BYTES;
            each_header(skb, received, cursors);
        }
        let least = if v4 { V4_BYTES } else { V6_BYTES };
        if cursors.options_next != IpProto::Tcp as u32
            || cursors.at <= least
            || !skb.load(cursors.at, received.kept.bytes.as_mut_ptr(), 4)
        {
            return false;
        }
        received.segment.tuple.client_port = received.kept.port(0);
        received.segment.tuple.vip_port = received.kept.port(2);
        received.segment.tuple.transport = TRANSPORT_TCP;
        true
    }
}

looped! {
    /// Goes to the next header of an IPv6 packet, unless this one is no extension header (RFC 8200 section 4).
    fn each_header[Skb, skb](received: Received, cursors: Cursors) times CHAIN_MAX, |_round| {
        let kind = cursors.options_next as u8;
        let known = kind == IpProto::HopOpt as u8
            || kind == IpProto::Ipv6Opts as u8
            || kind == IpProto::Ipv6Route as u8
            || kind == IpProto::Ipv6Frag as u8
            || kind == IpProto::Ah as u8;
        if !known || !skb.load(cursors.at, received.kept.bytes.as_mut_ptr(), 4) {
            return true;
        }
        // Only the first fragment has ports.
        if kind == IpProto::Ipv6Frag as u8 && received.kept.be16(2) & 0xfff8 != 0 {
            return true;
        }
        let told = u32::from(received.kept.bytes[1]);
        let bytes = if kind == IpProto::Ipv6Frag as u8 {
            8
        } else if kind == IpProto::Ah as u8 {
            (told + 2) * 4
        } else {
            (told + 1) * 8
        };
        cursors.at += bytes;
        cursors.options_next = received.kept.bytes[0].into();
        false
    }
}

#[inline(always)]
fn strip_v4(skb: Skb, s: &mut Received, c: &mut Cursors) -> bool {
    let header_bytes = u32::from(s.headers.bytes[Headers::V4] & 15) * 4;
    let told = u32::from(s.headers.be16(Headers::V4 + 2));
    if s.headers.bytes[Headers::V4] >> 4 != 4 || header_bytes <= 20 || told < header_bytes {
        return false;
    }
    // Checked as received: the checksum of the shorter header is written from scratch.
    if !sums::whole(skb, c, ETH_BYTES, header_bytes, 0) {
        return false;
    }
    let extra = header_bytes - 20;
    // The options are where TCP will be: at most 40 bytes, all within the headers in hand.
    if skb.length() < V4_BYTES + extra || !walk(s, c, extra, true) || !skb.shrink_behind_ip(extra) {
        return false;
    }
    s.headers.bytes[Headers::V4] = 0x45;
    s.headers.set_be16(Headers::V4 + 2, (told - extra) as u16);
    draft::write_ip_checksum(&mut s.headers, Headers::V4);
    let ip = s.headers.bytes.as_ptr().wrapping_add(Headers::V4);
    skb.store(ETH_BYTES, ip, 20)
}

#[inline(always)]
fn strip_v6(skb: Skb, s: &mut Received, c: &mut Cursors) -> bool {
    let told = u32::from(s.headers.be16(Headers::V6 + 4));
    c.options_next = s.headers.bytes[Headers::V6 + 6].into();
    let mut extra = 0;
    let mut header = 0;
    while header < HEADERS_MAX {
        let next = c.options_next;
        if next != IpProto::HopOpt as u32 && next != IpProto::Ipv6Opts as u32 {
            break;
        }
        if !one_header(skb, s, c, extra) {
            return false;
        }
        extra += c.options_bytes;
        header += 1;
    }
    // Only TCP is worth it. This also refuses a fragment, a routing header and the like after the options.
    if c.options_next != IpProto::Tcp as u32 || extra == 0 || extra > BYTES_MAX || told <= extra {
        return false;
    }
    if !skb.shrink_behind_ip(extra) {
        return false;
    }
    s.headers.set_be16(Headers::V6 + 4, (told - extra) as u16);
    s.headers.bytes[Headers::V6 + 6] = c.options_next as u8;
    let ip = s.headers.bytes.as_ptr().wrapping_add(Headers::V6);
    skb.store(ETH_BYTES, ip, 40)
}

/// Reads the extension header `extra` bytes behind the IPv6 header: its length, the type of the next header,
/// and whether its options may be skipped.
#[inline(always)]
fn one_header(skb: Skb, s: &mut Received, c: &mut Cursors, extra: u32) -> bool {
    if extra > BYTES_MAX || !skb.load(V6_BYTES + extra, s.kept.bytes.as_mut_ptr(), 2) {
        return false;
    }
    c.options_next = s.kept.bytes[0].into();
    let bytes = (u32::from(s.kept.bytes[1]) + 1) * 8;
    c.options_bytes = bytes;
    if bytes > BYTES_MAX {
        return false;
    }
    let length = core::hint::black_box(bytes - 2);
    if length == 0 || length > BYTES_MAX {
        return false;
    }
    skb.load(V6_BYTES + extra + 2, c.window.bytes.as_mut_ptr(), length) && walk(s, c, length, false)
}

/// Whether `length` bytes of options may all be skipped. They are at the start of the window (IPv6) or behind
/// the IPv4 header.
#[inline(always)]
fn walk(received: &mut Received, cursors: &mut Cursors, length: u32, v4: bool) -> bool {
    if v4 {
        let from = received.headers.bytes.as_ptr().wrapping_add(TCP_AT);
        kernel::copy(cursors.window.bytes.as_mut_ptr(), from, 40);
    }
    cursors.at = 0;
    cursors.left = length;
    read_over(received, cursors);
    cursors.left == 0
}

looped! {
    /// Skips one option; `left` is 0 at the end if all may be skipped.
    fn read_over(received: Received, cursors: Cursors) times OPTIONS_MAX, |_round| {
        let v4 = received.segment.v4;
        let kind = cursors.window.bytes[(cursors.at & 0x3ff) as usize];
        let told = u32::from(cursors.window.bytes[((cursors.at + 1) & 0x3ff) as usize]);
        let length = match (v4, kind) {
            // End of options: what follows is padding.
            (true, 0) => cursors.left,
            (true, 1) | (false, 0) => 1,
            (true, LOOSE_ROUTE | STRICT_ROUTE) => return true,
            (true, _) if told < 2 => return true,
            (true, _) => told,
            // The two high bits define what a host does with an option it does not know; 0 = skip it.
            (false, _) if kind >> 6 != 0 => return true,
            (false, _) => told + 2,
        };
        if length > cursors.left {
            return true;
        }
        cursors.at += length;
        cursors.left -= length;
        cursors.left == 0
    }
}
