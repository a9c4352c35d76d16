//! ICMP messages of both versions (RFC 792, RFC 4443), as frames.

use std::net::IpAddr;

use crate::addresses::Family;
use crate::packet::{ETHERNET_BYTES, Segment, checksum, segment, transport_checksum};

const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// An ICMP message in an Ethernet frame, as its fields.
#[derive(Clone, Debug)]
pub struct Icmp {
    /// Destination and source of the frame.
    pub ethernet: ([u8; 6], [u8; 6]),
    pub from: IpAddr,
    pub to: IpAddr,
    /// TTL or hop limit.
    pub hop_limit: u8,
    pub kind: u8,
    pub code: u8,
    /// The four bytes after the checksum.
    pub rest: u32,
    pub body: Vec<u8>,
}

/// Type and code of a message.
pub type Kind = (u8, u8);

/// Fragmentation needed, or packet too big.
pub fn too_big(family: Family) -> Kind {
    if family.is_v4() { (3, 4) } else { (2, 0) }
}

/// Host unreachable, or address unreachable.
pub fn unreachable(family: Family) -> Kind {
    if family.is_v4() { (3, 1) } else { (1, 3) }
}

/// Time exceeded: the hop limit was used up in transit.
pub fn time_exceeded(family: Family) -> Kind {
    if family.is_v4() { (11, 0) } else { (3, 0) }
}

/// Echo request.
pub fn echo(family: Family) -> Kind {
    if family.is_v4() { (8, 0) } else { (128, 0) }
}

/// Echo reply.
pub fn echo_reply(family: Family) -> Kind {
    if family.is_v4() { (0, 0) } else { (129, 0) }
}

/// Returns the IP header of a segment and this many bytes after it, as routers quote them.
pub fn quotation(segment: &Segment, bytes: usize) -> Vec<u8> {
    let ip_bytes = if segment.from.is_ipv4() { 20 } else { 40 };
    let mut quoted = segment.bytes().split_off(ETHERNET_BYTES);
    quoted.truncate(ip_bytes + bytes);
    quoted
}

impl Icmp {
    /// A message with hop limit 64 and an empty body.
    pub fn new((kind, code): Kind, from: IpAddr, to: IpAddr) -> Self {
        Self { ethernet: ([0; 6], [0; 6]), from, to, hop_limit: 64, kind, code, rest: 0, body: Vec::new() }
    }

    pub fn ethernet(mut self, destination: [u8; 6], source: [u8; 6]) -> Self {
        self.ethernet = (destination, source);
        self
    }

    pub fn hop_limit(mut self, hop_limit: u8) -> Self {
        self.hop_limit = hop_limit;
        self
    }

    pub fn rest(mut self, rest: u32) -> Self {
        self.rest = rest;
        self
    }

    pub fn body(mut self, body: impl Into<Vec<u8>>) -> Self {
        self.body = body.into();
        self
    }

    /// Returns the frame, with correct lengths and checksums.
    pub fn bytes(&self) -> Vec<u8> {
        let mut message = vec![self.kind, self.code, 0, 0];
        message.extend(self.rest.to_be_bytes());
        message.extend(&self.body);
        let v4 = self.from.is_ipv4();
        let sum = if v4 {
            checksum(&message, 0)
        } else {
            transport_checksum(self.from, self.to, ICMP_V6, &message)
        };
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let mut frame = segment((self.from, 0).into(), (self.to, 0).into())
            .ethernet(self.ethernet.0, self.ethernet.1)
            .hop_limit(self.hop_limit)
            .bytes();
        frame.truncate(ETHERNET_BYTES + if v4 { 20 } else { 40 });
        if v4 {
            frame[16..18].copy_from_slice(&(20 + message.len() as u16).to_be_bytes());
            frame[20..22].fill(0);
            frame[23] = ICMP;
            frame[24..26].fill(0);
            let sum = checksum(&frame[14..34], 0);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        } else {
            frame[18..20].copy_from_slice(&(message.len() as u16).to_be_bytes());
            frame[20] = ICMP_V6;
        }
        frame.extend(message);
        frame
    }
}
