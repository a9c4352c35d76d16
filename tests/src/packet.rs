//! Builds packets from their fields and parses them back.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use etherparse::{IpFragOffset, IpNumber, Ipv4Header, Ipv6FlowLabel, Ipv6Header, TcpHeader};

use crate::tcp_option::{self, TcpOption};

/// Bytes of an Ethernet header.
pub const ETHERNET_BYTES: usize = 14;

/// TCP flag bits as in byte 13 of the header.
pub mod flag {
    pub const FIN: u8 = 1;
    pub const SYN: u8 = 2;
    pub const RST: u8 = 4;
    pub const PSH: u8 = 8;
    pub const ACK: u8 = 16;
    pub const URG: u8 = 32;
    pub const ECE: u8 = 64;
    pub const CWR: u8 = 128;
}

/// A TCP segment in an Ethernet frame, as its fields. Lengths and checksums are computed from them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Destination and source of the frame.
    pub ethernet: ([u8; 6], [u8; 6]),
    pub from: SocketAddr,
    pub to: SocketAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// IPv4 only.
    pub identification: u16,
    /// IPv4 only.
    pub dont_fragment: bool,
    /// IPv6 only.
    pub flow_label: u32,
    pub seq: u32,
    pub ack: u32,
    /// Bits of [`flag`].
    pub flags: u8,
    /// As on the wire, unscaled.
    pub window: u16,
    pub urgent: u16,
    pub options: Vec<TcpOption>,
    pub payload: Vec<u8>,
}

/// A segment without flags, options or payload; window 64,240, hop limit 64, don't fragment.
pub fn segment(from: SocketAddr, to: SocketAddr) -> Segment {
    Segment {
        ethernet: ([0; 6], [0; 6]),
        from,
        to,
        hop_limit: 64,
        traffic_class: 0,
        identification: 0,
        dont_fragment: true,
        flow_label: 0,
        seq: 0,
        ack: 0,
        flags: 0,
        window: 64_240,
        urgent: 0,
        options: Vec::new(),
        payload: Vec::new(),
    }
}

impl Segment {
    pub fn ethernet(mut self, destination: [u8; 6], source: [u8; 6]) -> Self {
        self.ethernet = (destination, source);
        self
    }

    /// Adds flag bits.
    pub fn flags(mut self, bits: u8) -> Self {
        self.flags |= bits;
        self
    }

    pub fn syn(self, seq: u32) -> Self {
        self.flags(flag::SYN).seq(seq)
    }

    pub fn rst(self) -> Self {
        self.flags(flag::RST)
    }

    pub fn fin(self) -> Self {
        self.flags(flag::FIN)
    }

    pub fn psh(self) -> Self {
        self.flags(flag::PSH)
    }

    /// Sets the acknowledgement number and the ACK bit.
    pub fn ack(mut self, ack: u32) -> Self {
        self.ack = ack;
        self.flags(flag::ACK)
    }

    pub fn seq(mut self, seq: u32) -> Self {
        self.seq = seq;
        self
    }

    pub fn window(mut self, window: u16) -> Self {
        self.window = window;
        self
    }

    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    /// Appends an option.
    pub fn option(mut self, option: TcpOption) -> Self {
        self.options.push(option);
        self
    }

    pub fn mss(self, mss: u16) -> Self {
        self.option(TcpOption::Mss(mss))
    }

    pub fn window_scale(self, shift: u8) -> Self {
        self.option(TcpOption::Nop).option(TcpOption::WindowScale(shift))
    }

    pub fn sack_permitted(self) -> Self {
        self.option(TcpOption::SackPermitted)
    }

    pub fn timestamps(self, value: u32, echo: u32) -> Self {
        self.option(TcpOption::Timestamps(value, echo))
    }

    pub fn sack(self, blocks: &[(u32, u32)]) -> Self {
        self.option(TcpOption::Sack(blocks.to_vec()))
    }

    /// The options Linux sends in a SYN: MSS, SACK permitted, timestamps, window scale.
    pub fn linux_syn_options(self, mss: u16, timestamp: u32, scale: u8) -> Self {
        self.mss(mss).sack_permitted().timestamps(timestamp, 0).window_scale(scale)
    }

    pub fn payload(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.payload = bytes.into();
        self
    }

    /// The sequence number that follows this segment.
    pub fn end(&self) -> u32 {
        let flags = u32::from(self.flags & flag::SYN != 0) + u32::from(self.flags & flag::FIN != 0);
        self.seq.wrapping_add(self.payload.len() as u32).wrapping_add(flags)
    }

    /// Returns the frame, with correct lengths and checksums.
    pub fn bytes(&self) -> Vec<u8> {
        let options = tcp_option::encode(&self.options);
        let mut tcp = TcpHeader::new(self.from.port(), self.to.port(), self.seq, self.window);
        tcp.acknowledgment_number = self.ack;
        tcp.urgent_pointer = self.urgent;
        tcp.set_options_raw(&options).expect("at most 40 bytes of options");
        let mut header = tcp.to_bytes().to_vec();
        header[13] = self.flags;
        let mut transport = header;
        transport.extend(&self.payload);
        let sum = transport_checksum(self.from.ip(), self.to.ip(), 6, &transport);
        transport[16..18].copy_from_slice(&sum.to_be_bytes());
        let mut frame = self.header(transport.len());
        frame.extend(transport);
        frame
    }

    /// Returns the Ethernet and IP headers for a transport part of this length.
    fn header(&self, length: usize) -> Vec<u8> {
        let mut frame = Vec::new();
        frame.extend(self.ethernet.0);
        frame.extend(self.ethernet.1);
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                frame.extend([0x08, 0x00]);
                let mut ip = Ipv4Header::new(
                    u16::try_from(length).expect("fits"),
                    self.hop_limit,
                    IpNumber::TCP,
                    from.octets(),
                    to.octets(),
                )
                .expect("fits");
                ip.identification = self.identification;
                ip.dont_fragment = self.dont_fragment;
                ip.fragment_offset = IpFragOffset::ZERO;
                let mut bytes = ip.to_bytes().to_vec();
                bytes[1] = self.traffic_class;
                bytes[10..12].fill(0);
                let sum = checksum(&bytes, 0);
                bytes[10..12].copy_from_slice(&sum.to_be_bytes());
                frame.extend(bytes);
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                frame.extend([0x86, 0xdd]);
                let ip = Ipv6Header {
                    traffic_class: self.traffic_class,
                    flow_label: Ipv6FlowLabel::try_new(self.flow_label).expect("20 bits"),
                    payload_length: u16::try_from(length).expect("fits"),
                    next_header: IpNumber::TCP,
                    hop_limit: self.hop_limit,
                    source: from.octets(),
                    destination: to.octets(),
                };
                frame.extend(ip.to_bytes());
            }
            (from, to) => panic!("{from} and {to} are of two families"),
        }
        frame
    }

    /// Parses a frame. Returns `None` unless it is a whole TCP segment without IP options or extension
    /// headers. Checksums are not verified: compare bytes for that.
    pub fn parse(frame: &[u8]) -> Option<Self> {
        let (ethernet, rest) = frame.split_at_checked(ETHERNET_BYTES)?;
        let mut parsed = segment(([0, 0, 0, 0], 0).into(), ([0, 0, 0, 0], 0).into());
        parsed.ethernet = (ethernet[..6].try_into().ok()?, ethernet[6..12].try_into().ok()?);
        let (from, to, transport): (IpAddr, IpAddr, &[u8]) = match ethernet[12..] {
            [0x08, 0x00] => {
                let (ip, transport) = Ipv4Header::from_slice(rest).ok()?;
                if ip.protocol != IpNumber::TCP || ip.header_len() != 20 || ip.is_fragmenting_payload() {
                    return None;
                }
                parsed.hop_limit = ip.time_to_live;
                parsed.traffic_class = rest[1];
                parsed.identification = ip.identification;
                parsed.dont_fragment = ip.dont_fragment;
                let length = usize::from(ip.payload_len().ok()?);
                (
                    Ipv4Addr::from(ip.source).into(),
                    Ipv4Addr::from(ip.destination).into(),
                    transport.get(..length)?,
                )
            }
            [0x86, 0xdd] => {
                let (ip, transport) = Ipv6Header::from_slice(rest).ok()?;
                if ip.next_header != IpNumber::TCP {
                    return None;
                }
                parsed.hop_limit = ip.hop_limit;
                parsed.traffic_class = ip.traffic_class;
                parsed.flow_label = ip.flow_label.value();
                let transport = transport.get(..usize::from(ip.payload_length))?;
                (Ipv6Addr::from(ip.source).into(), Ipv6Addr::from(ip.destination).into(), transport)
            }
            _ => return None,
        };
        let (tcp, payload) = TcpHeader::from_slice(transport).ok()?;
        parsed.from = SocketAddr::new(from, tcp.source_port);
        parsed.to = SocketAddr::new(to, tcp.destination_port);
        parsed.seq = tcp.sequence_number;
        parsed.ack = tcp.acknowledgment_number;
        parsed.flags = transport[13];
        parsed.window = tcp.window_size;
        parsed.urgent = tcp.urgent_pointer;
        parsed.options = tcp_option::decode(tcp.options.as_slice());
        parsed.payload = payload.to_vec();
        Some(parsed)
    }
}

/// Returns the Internet checksum over `bytes`, starting from `sum`.
pub fn checksum(bytes: &[u8], sum: u32) -> u16 {
    let mut sum = u64::from(sum);
    for pair in bytes.chunks(2) {
        sum += u64::from(u16::from_be_bytes([pair[0], pair.get(1).copied().unwrap_or(0)]));
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

/// Returns the checksum over pseudo header and transport part. The checksum field itself must be zero.
pub fn transport_checksum(from: IpAddr, to: IpAddr, protocol: u8, transport: &[u8]) -> u16 {
    let mut pseudo = Vec::new();
    for address in [from, to] {
        match address {
            IpAddr::V4(v4) => pseudo.extend(v4.octets()),
            IpAddr::V6(v6) => pseudo.extend(v6.octets()),
        }
    }
    let sum: u32 = pseudo.chunks(2).map(|pair| u32::from(u16::from_be_bytes([pair[0], pair[1]]))).sum();
    checksum(transport, sum + u32::from(protocol) + transport.len() as u32)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn examples() -> [Segment; 2] {
        [("192.0.2.7:40000", "203.0.113.1:443"), ("[2001:db8::7]:40000", "[2001:db8:1::1]:443")].map(
            |(from, to)| {
                segment(from.parse().unwrap(), to.parse().unwrap())
                    .syn(7)
                    .linux_syn_options(1460, 99, 7)
                    .payload(*b"odd")
                    .ack(3)
            },
        )
    }

    #[test]
    fn segments_survive_the_round_trip() {
        for example in examples() {
            assert_eq!(Segment::parse(&example.bytes()).unwrap(), example);
            assert_eq!(example.end(), 7 + 1 + 3);
        }
    }

    #[test]
    fn etherparse_agrees_on_checksums() {
        for example in examples() {
            let frame = example.bytes();
            let packet = etherparse::PacketHeaders::from_ethernet_slice(&frame).unwrap();
            let tcp = packet.transport.unwrap().tcp().unwrap();
            let expected = match packet.net.unwrap() {
                etherparse::NetHeaders::Ipv4(ip, _) => {
                    assert_eq!(ip.header_checksum, ip.calc_header_checksum());
                    tcp.calc_checksum_ipv4(&ip, &example.payload).unwrap()
                }
                etherparse::NetHeaders::Ipv6(ip, _) => tcp.calc_checksum_ipv6(&ip, &example.payload).unwrap(),
                other => panic!("{other:?}"),
            };
            assert_eq!(tcp.checksum, expected);
        }
    }
}
