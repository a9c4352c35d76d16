//! What a frame says to a connection, read without the programs' code.

use std::net::{IpAddr, SocketAddr};

use ::tests::packet::flag::{ACK, FIN, SYN};
use ::tests::packet::{checksum, transport_checksum};
use ::tests::tuple::backend_tuple;
use common::maps::flow::{BackendTuple, ClientTuple, End, FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, Flow};

use super::hosts::{self, Ends};

/// What a TCP segment says.
#[derive(Clone, Copy, Debug)]
pub struct Said {
    pub from: SocketAddr,
    pub to: SocketAddr,
    pub seq: u32,
    /// The number after its last byte, or its FIN.
    pub end: u32,
    pub ack: u32,
    pub flags: u8,
    pub window: u16,
    /// Whether its checksum is right.
    pub is_whole: bool,
}

impl Said {
    /// Reads a frame, with IP options and extension headers too. `None`: nobody finds a TCP segment in it.
    pub fn read(frame: &[u8]) -> Option<Self> {
        let (from, to, segment) = transport(frame)?;
        let header = segment.get(..20)?;
        let short = |at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
        let long = |at: usize| u32::from(short(at)) << 16 | u32::from(short(at + 2));
        let payload = segment.get(usize::from(header[12] >> 4).max(5) * 4..)?;
        let (seq, flags) = (long(4), header[13]);
        let counted = u32::from(flags & (SYN | FIN) != 0);
        Some(Self {
            from: SocketAddr::new(from, short(0)),
            to: SocketAddr::new(to, short(2)),
            seq,
            end: seq.wrapping_add(payload.len() as u32).wrapping_add(counted),
            ack: long(8),
            flags,
            window: short(14),
            is_whole: transport_checksum(from, to, 6, segment) == 0,
        })
    }

    pub fn has(&self, flags: u8) -> bool {
        self.flags & flags != 0
    }

    /// Whether it begins a connection.
    pub fn opens(&self) -> bool {
        self.flags & (SYN | ACK) == SYN
    }

    /// Returns the connection that it belongs to, and the end that sent it. `holder` returns the connection that has a port to a backend.
    pub fn owner(&self, holder: impl Fn(&BackendTuple) -> Option<Ends>) -> Option<(ClientTuple, Side)> {
        let (ends, side) = match hosts::is_vip(self.to.ip()) {
            true => ((self.from, self.to), Side::Client),
            false => (holder(&backend_tuple(self.from, self.to))?, Side::Backend),
        };
        Some((hosts::tuple(ends), side))
    }
}

/// Returns addresses and TCP segment of a frame.
fn transport(frame: &[u8]) -> Option<(IpAddr, IpAddr, &[u8])> {
    let ip = frame.get(14..)?;
    let short = |at: usize| ip.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    // A length of zero means "as long as the packet".
    let until = |at: usize, before: usize| match short(at).map(usize::from)? {
        0 => Some(ip),
        told => ip.get(..before + told),
    };
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let header = ip.get(..usize::from(ip.first()? & 15).max(5) * 4)?;
            let refused = header[0] >> 4 != 4 || header[9] != 6 || short(6)? & 0x3fff != 0;
            if refused || header.len() == 20 && checksum(header, 0) != 0 {
                return None;
            }
            let address = |at: usize| <[u8; 4]>::try_from(&header[at..at + 4]).ok().map(IpAddr::from);
            Some((address(12)?, address(16)?, until(2, 0)?.get(header.len()..)?))
        }
        [0x86, 0xdd] => {
            let header = ip.get(..40)?;
            let (mut kind, mut rest) = (header[6], until(4, 40)?.get(40..)?);
            while let 0 | 43 | 51 | 60 = kind {
                let (next, told) = (*rest.first()?, usize::from(*rest.get(1)?));
                rest = rest.get(if kind == 51 { (told + 2) * 4 } else { (told + 1) * 8 }..)?;
                kind = next;
            }
            let address = |at: usize| <[u8; 16]>::try_from(&header[at..at + 16]).ok().map(IpAddr::from);
            (header[0] >> 4 == 6 && kind == 6).then_some((address(8)?, address(24)?, rest))
        }
        _ => None,
    }
}

/// The end that a segment is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Backend,
}

impl Side {
    /// Returns sender and receiver.
    pub fn ends(self, flow: &Flow) -> (End, End) {
        match self {
            Self::Client => (flow.client, flow.backend),
            Self::Backend => (flow.backend, flow.client),
        }
    }

    /// Returns the flag for a RST of this end that is on trial.
    pub fn trial(self) -> u8 {
        match self {
            Self::Client => FLOW_CLIENT_ON_TRIAL,
            Self::Backend => FLOW_BACKEND_ON_TRIAL,
        }
    }

    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Backend,
            Self::Backend => Self::Client,
        }
    }
}

#[cfg(test)]
mod tests {
    use ::tests::packet::segment;

    use super::*;

    #[test]
    fn segments_behind_ip_options_and_extension_headers_are_read() {
        let (client, vip) = hosts::ends(0);
        let plain = segment(client, vip).seq(5).ack(6).payload([1; 10]).bytes();
        let mut with = plain.clone();
        with.splice(34..34, [1, 1, 1, 0]);
        (with[14], with[17]) = (0x46, with[17] + 4);
        let (said, same) = (Said::read(&with).expect("a segment"), Said::read(&plain).expect("a segment"));
        assert_eq!((said.seq, said.end, said.ack, said.is_whole), (same.seq, same.end, same.ack, true));
        let (client, vip) = hosts::ends(hosts::CONNECTIONS - 1);
        let plain = segment(client, vip).seq(7).ack(9).payload([1; 10]).bytes();
        let mut with = plain.clone();
        with.splice(54..54, [6, 0, 1, 4, 0, 0, 0, 0]);
        (with[20], with[19]) = (0, with[19] + 8);
        let (said, same) = (Said::read(&with).expect("a segment"), Said::read(&plain).expect("a segment"));
        assert_eq!((said.from, said.seq, said.end, said.is_whole), (same.from, 7, 17, true));
    }
}
