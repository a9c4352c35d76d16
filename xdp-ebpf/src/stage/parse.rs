//! Reads Ethernet, IP and TCP headers into [`Segment`]. Changes nothing.

use common::maps::flow::{TRANSPORT_TCP, WINDOW_SCALE_NONE};
use common::reason::Reason;
use common::wire::heartbeat;
use network_types::eth::EtherType;
use network_types::ip::IpProto;

use crate::exit::Exit;
use crate::kernel::{Packet, Skb, Xdp};
use crate::packet::{
    ACK, ETH_BYTES, FIN, Headers, JUMBO_BYTES, RST, SYN, Segment, TCP_AT, TCP_BYTES_MAX, V4_BYTES, V6_BYTES,
};
use crate::scratch::Received;
use crate::verified::{looped, verified};

const ETH_P_IP: u16 = u16::from_be(EtherType::Ipv4 as u16);
const ETH_P_ARP: u16 = u16::from_be(EtherType::Arp as u16);
const ETH_P_IPV6: u16 = u16::from_be(EtherType::Ipv6 as u16);

/// Reads the addresses. On failure the packet leaves as [`Exit::next`], since it is not known yet whether it
/// concerns us.
#[inline(always)]
pub(crate) fn addresses(skb: Skb, s: &mut Received) -> Result<(), Exit> {
    if skb.is_for_another_host() {
        return Err(Exit::next(Reason::NotOurs));
    }
    if skb.has_vlan() && skb.vlan() != 0 {
        return Err(Exit::next(Reason::ParseNotIp));
    }
    let v4 = match skb.protocol() {
        ETH_P_IP => true,
        ETH_P_IPV6 => false,
        _ => return Err(Exit::next(Reason::ParseNotIp)),
    };
    headers(skb, v4, s)
}

/// The same for the frame that XDP has, which is IPv4 or IPv6.
#[inline(always)]
pub(crate) fn frame(xdp: Xdp, v4: bool, s: &mut Received) -> Result<(), Exit> {
    headers(xdp, v4, s)
}

#[inline(always)]
fn headers(packet: impl Packet, v4: bool, s: &mut Received) -> Result<(), Exit> {
    s.segment.v4 = v4;
    s.segment.jumbo_bytes = 0;
    let present = packet.length();
    let fixed = if v4 { V4_BYTES } else { V6_BYTES };
    if present < fixed {
        return Err(Exit::next(Reason::ParseTruncated));
    }
    let wanted = core::hint::black_box(present.min(fixed + TCP_BYTES_MAX));
    if wanted < V4_BYTES || wanted > fixed + TCP_BYTES_MAX || !packet.load(0, s.headers.frame(v4), wanted) {
        return Err(Exit::next(Reason::ParseTruncated));
    }
    let h = &s.headers;
    let tuple = &mut s.segment.tuple;
    if v4 {
        tuple.client = h.address(Headers::V4 + 12, true);
        tuple.vip = h.address(Headers::V4 + 16, true);
    } else {
        // The kernel drops these, too.
        let is_mapped = is_mapped(h, Headers::V6 + 8) || is_mapped(h, Headers::V6 + 24);
        if h.bytes[Headers::V6] >> 4 != 6 || is_mapped {
            return Err(Exit::next(Reason::ParseNotIp));
        }
        tuple.client = h.address(Headers::V6 + 8, false);
        tuple.vip = h.address(Headers::V6 + 24, false);
    }
    Ok(())
}

/// Whether there is an IPv4-mapped address (::ffff:0:0/96), which no packet may have (RFC 6890 section 2.2.3): in the maps it is an IPv4
/// address, whose connections a stranger would reach by IPv6.
#[inline(always)]
fn is_mapped(h: &Headers, at: usize) -> bool {
    h.word(at) | h.word(at + 4) == 0 && h.word(at + 8) == u32::from_ne_bytes([0, 0, 0xff, 0xff])
}

verified! {
    /// Whether the packet has the jumbo header that the kernel itself puts into a super-packet of more than 64 KiB (BIG TCP).
    /// It stays in the packet, because a receiving kernel needs it; the headers in hand are then as if it were not there.
    pub(crate) fn jumbo as parse_jumbo[Skb, skb](received: Received) -> bool {
        let (h, present) = (&received.headers, skb.length());
        // Next header, length, option of type 0xc2 with four bytes: the length of all that follows the IPv6 header.
        let is = !received.segment.v4
            && h.be32(Headers::V6 + 4) >> 8 == u32::from(IpProto::HopOpt as u8)
            && h.be32(TCP_AT) == u32::from(IpProto::Tcp as u8) << 24 | 0xc204
            && present > 0xffff + V6_BYTES
            && h.be32(TCP_AT + 4) == present - V6_BYTES;
        let tcp = received.headers.bytes.as_mut_ptr().wrapping_add(TCP_AT);
        if !is || !skb.load(V6_BYTES + JUMBO_BYTES, tcp, TCP_BYTES_MAX) {
            return false;
        }
        received.headers.bytes[Headers::V6 + 6] = IpProto::Tcp as u8;
        received.segment.jumbo_bytes = JUMBO_BYTES;
        true
    }
}

/// Removes a VLAN tag that has only a priority: what we send for the packet, or of it, has none.
#[inline(always)]
pub(crate) fn untag(skb: Skb) -> Result<(), Exit> {
    if skb.has_vlan() && !skb.untag() {
        return Err(Exit::drop(Reason::EmitFailed));
    }
    Ok(())
}

/// What a frame is that is neither IPv4 nor IPv6, by its EtherType, where it is for this host and the device's own network.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Link {
    Arp,
    Heartbeat,
    Other,
}

/// Returns what a frame is of which no addresses were read.
#[inline(always)]
pub(crate) fn link(skb: Skb) -> Link {
    match skb.protocol() {
        ETH_P_ARP if is_own(skb) => Link::Arp,
        heartbeat::ETHER_TYPE if is_own(skb) => Link::Heartbeat,
        _ => Link::Other,
    }
}

/// Whether the frame is for this host and the device's own network.
#[inline(always)]
fn is_own(skb: Skb) -> bool {
    !skb.is_for_another_host() && (!skb.has_vlan() || skb.vlan() == 0)
}

/// Whether the packet is TCP, by its IP header.
#[inline(always)]
pub(crate) fn is_tcp(s: &Received) -> bool {
    protocol(s) == IpProto::Tcp as u8
}

/// Whether the packet is IPv6 neighbour or router discovery (RFC 4861, ICMPv6 types 133 to 137): the node's
/// stack answers it, for proxied addresses too.
#[inline(always)]
pub(crate) fn is_neighbour_discovery(s: &Received) -> bool {
    !s.segment.v4 && protocol(s) == IpProto::Ipv6Icmp as u8 && matches!(s.headers.bytes[TCP_AT], 133..=137)
}

/// Returns the reason if the packet is a fragment, or has IP options or extension headers.
#[inline(always)]
pub(crate) fn unusual(s: &Received) -> Option<Reason> {
    let h = &s.headers;
    if s.segment.v4 {
        if h.be16(Headers::V4 + 6) & 0x3fff != 0 {
            return Some(Reason::ParseFragment);
        }
        return (h.bytes[Headers::V4] != 0x45).then_some(Reason::ParseOptions);
    }
    match protocol(s) {
        p if p == IpProto::Ipv6Frag as u8 => Some(Reason::ParseFragment),
        p if p == IpProto::HopOpt as u8
            || p == IpProto::Ipv6Route as u8
            || p == IpProto::Ipv6Opts as u8
            || p == IpProto::Ah as u8 =>
        {
            Some(Reason::ParseOptions)
        }
        _ => None,
    }
}

/// Reads the ports of a first fragment that is TCP; `false` for all others.
#[inline(always)]
pub(crate) fn fragment_ports(s: &mut Received) -> bool {
    let (h, seg) = (&s.headers, &mut s.segment);
    let tcp = IpProto::Tcp as u8;
    let at = if seg.v4 {
        if h.be16(Headers::V4 + 6) & 0x1fff != 0
            || h.bytes[Headers::V4 + 9] != tcp
            || h.bytes[Headers::V4] != 0x45
        {
            return false;
        }
        TCP_AT
    } else {
        // After the fragment header (RFC 8200 section 4.5), which is where TCP is otherwise.
        if h.be16(TCP_AT + 2) & 0xfff8 != 0 || h.bytes[TCP_AT] != tcp {
            return false;
        }
        TCP_AT + 8
    };
    seg.tuple.client_port = h.port(at);
    seg.tuple.vip_port = h.port(at + 2);
    seg.tuple.transport = TRANSPORT_TCP;
    true
}

/// Returns the IPv4 protocol or IPv6 next header.
#[inline(always)]
pub(crate) fn protocol(s: &Received) -> u8 {
    if s.segment.v4 { s.headers.bytes[Headers::V4 + 9] } else { s.headers.bytes[Headers::V6 + 6] }
}

/// Reads the TCP header of a packet without IP options. An invalid one leaves as [`Exit::drop`].
#[inline(always)]
pub(crate) fn tcp(packet: impl Packet, s: &mut Received) -> Result<(), Exit> {
    let v4 = s.segment.v4;
    let fixed = s.segment.tcp_at();
    let present = packet.length();
    if present < fixed + 20 {
        return Err(Exit::drop(Reason::ParseTruncated));
    }
    let h = &s.headers;
    let tcp_bytes = u32::from(h.bytes[TCP_AT + 12] >> 4) * 4;
    // The IP length separates payload from padding; 0 in its field means "as long as the packet" (RFC 2675, BIG TCP).
    let told = u32::from(h.be16(if v4 { Headers::V4 + 2 } else { Headers::V6 + 4 }));
    let before = if v4 { ETH_BYTES } else { V6_BYTES };
    let end = if told == 0 { present } else { told + before };
    if end > present {
        return Err(Exit::drop(Reason::ParseTruncated));
    }
    if tcp_bytes < 20 || fixed + tcp_bytes > end {
        return Err(Exit::drop(Reason::ParseTcpHeader));
    }
    let seg = &mut s.segment;
    seg.tuple.client_port = h.port(TCP_AT);
    seg.tuple.vip_port = h.port(TCP_AT + 2);
    seg.tuple.transport = TRANSPORT_TCP;
    seg.seq = h.be32(TCP_AT + 4);
    seg.ack = h.be32(TCP_AT + 8);
    seg.flags = h.bytes[TCP_AT + 13];
    seg.window = h.be16(TCP_AT + 14);
    seg.tcp_bytes = tcp_bytes;
    seg.payload_at = fixed + tcp_bytes;
    seg.payload_bytes = end - fixed - tcp_bytes;
    seg.timestamps_at = 0;
    seg.sack_at = 0;
    seg.sack_blocks = 0;
    seg.mss = 0;
    seg.window_scale = WINDOW_SCALE_NONE;
    seg.sack_permitted = false;
    seg.tsval = 0;
    // No sender sets two of them at once, or none of them without ACK.
    let kind = seg.flags & (SYN | FIN | RST);
    if kind & (kind.wrapping_sub(1)) != 0 || kind | seg.flags & ACK == 0 {
        return Err(Exit::drop(Reason::ParseFlags));
    }
    // NOP NOP timestamps, as in nearly every segment of an open connection (RFC 7323 appendix A).
    if tcp_bytes == 32 && s.headers.be32(TCP_AT + 20) == 0x0101_080a {
        s.segment.timestamps_at = 24;
        s.segment.tsval = s.headers.be32(TCP_AT + 24);
    } else if tcp_bytes == 40
        && s.headers.be16(TCP_AT + 20) == 0x0204
        && s.headers.be32(TCP_AT + 24) == 0x0402_080a
        && s.headers.be32(TCP_AT + 36) >> 8 == 0x01_0303
    {
        // MSS, SACK permitted, timestamps, NOP, window scale, as in SYN and SYN-ACK of Linux.
        s.segment.mss = s.headers.be16(TCP_AT + 22);
        s.segment.sack_permitted = true;
        s.segment.timestamps_at = 28;
        s.segment.tsval = s.headers.be32(TCP_AT + 28);
        s.segment.window_scale = s.headers.bytes[TCP_AT + 39].min(14);
    } else if tcp_bytes > 20 {
        options(s);
    }
    Ok(())
}

verified! {
    /// Walks the options (RFC 9293 section 3.2).
    fn options as parse_options(received: Received) -> () {
        received.segment.option_at = 20;
        each_option(received);
    }
}

looped! {
    /// Reads one option.
    fn each_option(received: Received) times 40, |_round| {
        let at = u32::from(received.segment.option_at);
        if at >= received.segment.tcp_bytes {
            return true;
        }
        let kind = received.headers.tcp_byte(at);
        if kind == 0 {
            return true;
        }
        if kind == 1 {
            received.segment.option_at = (at + 1) as u8;
            return false;
        }
        let length = u32::from(received.headers.tcp_byte(at + 1));
        if length < 2 || at + length > received.segment.tcp_bytes {
            return true;
        }
        note(&received.headers, &mut received.segment, kind, at, length);
        received.segment.option_at = (at + length) as u8;
        false
    }
}

/// Stores the value of an option that we recognize.
#[inline(always)]
fn note(h: &Headers, seg: &mut Segment, kind: u8, at: u32, length: u32) {
    match (kind, length) {
        (2, 4) => seg.mss = (h.tcp_be32(at) & 0xffff) as u16,
        (3, 3) => seg.window_scale = h.tcp_byte(at + 2).min(14),
        (4, 2) => seg.sack_permitted = true,
        (5, 10 | 18 | 26 | 34) => {
            seg.sack_at = at + 2;
            seg.sack_blocks = (length - 2) / 8;
        }
        (8, 10) => {
            seg.timestamps_at = at + 2;
            seg.tsval = h.tcp_be32(at + 2);
        }
        _ => {}
    }
}
