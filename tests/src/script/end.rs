//! The ends of connections: addresses, sequence numbers, and the bytes that each of them sends.

use std::net::SocketAddr;

use anyhow::{Context, Result, bail, ensure};
use common::decide::maglev::mix;

use super::{Opt, Packet};
use crate::addresses::{BACKEND_PORT, Family, TLS_PORT, backend, client, server_name, vip};
use crate::config::DIRECT_PORT;
use crate::hello::hello;
use crate::packet::{Segment, flag, segment};
use crate::tcp_option::TcpOption;
use crate::world::Device;

/// The window of packets sent without `win`.
const WINDOW: u16 = 64_240;

/// The bytes that an end sends: a beginning, then bytes generated from a seed.
#[derive(Clone, Debug)]
pub(super) struct Stream {
    pub(super) beginning: Vec<u8>,
    pub(super) seed: u64,
}

impl Stream {
    /// Bytes `from` to `until`, counted from 0.
    pub(super) fn bytes(&self, from: u64, until: u64) -> Vec<u8> {
        let byte = |at: u64| match self.beginning.get(at as usize) {
            Some(byte) => *byte,
            None => (mix((self.seed << 40) ^ (at / 8)) >> (at % 8 * 8)) as u8,
        };
        (from..until).map(byte).collect()
    }
}

/// One end of one connection.
#[derive(Clone, Debug)]
pub(super) struct End {
    pub(super) device: Device,
    pub(super) own: SocketAddr,
    /// The other end's address; a backend learns it from the SYN.
    pub(super) peer: Option<SocketAddr>,
    pub(super) isn: u32,
    /// The other end's initial sequence number, as received.
    pub(super) peer_isn: Option<u32>,
    /// The other end's first timestamp, as received.
    pub(super) peer_clock: Option<u32>,
    pub(super) stream: Stream,
    /// The stream that it must receive.
    pub(super) heard: Option<Stream>,
}

impl End {
    /// Creates an end from its name.
    pub(super) fn named(name: &str, family: Family, tcp: bool) -> Result<Self> {
        let (kind, count) = split(name)?;
        let (device, own, isn) = match kind {
            // Ports of clients are two apart, so all are even.
            "client" | "forger" => {
                let isn = 0xffff_ff00_u32.wrapping_add(u32::from(count) << 24).wrapping_sub(1 << 24);
                (Device::Client, SocketAddr::new(client(family), 40_000 + 2 * (count - 1)), isn)
            }
            "backend" => (Device::Backend, SocketAddr::new(backend(family, 0, 0), BACKEND_PORT), 0xffff_fe00),
            "other" => (Device::Backend, SocketAddr::new(backend(family, 0, 1), BACKEND_PORT), 0x2000_0000),
            _ => bail!("{name} is no end"),
        };
        let forged = if kind == "forger" { 0x4000_0000 } else { 0 };
        let port = if tcp { DIRECT_PORT } else { TLS_PORT };
        let client = device == Device::Client;
        let name = name.bytes().fold(0u64, |seed, byte| seed * 31 + u64::from(byte)) & 0xff_ffff;
        Ok(Self {
            device,
            own,
            peer: client.then(|| SocketAddr::new(vip(family), port)),
            isn: isn ^ forged,
            peer_isn: None,
            peer_clock: None,
            stream: Stream {
                beginning: if client && !tcp {
                    usual_hello(0, super::parse::HELLO_BYTES)
                } else {
                    Vec::new()
                },
                seed: name,
            },
            heard: None,
        })
    }

    /// Converts a packet in relative numbers to a segment.
    pub(super) fn segment(&self, packet: &Packet) -> Result<Segment> {
        let peer = self.peer.context("nobody has spoken to this end yet")?;
        let mut made = segment(self.own, peer)
            .ethernet(self.device.near_mac(), self.device.far_mac())
            .flags(packet.flags)
            .seq(self.isn.wrapping_add(packet.begin as u32))
            .window(packet.window.unwrap_or(WINDOW));
        made.ack = packet.ack.map_or(0, |ack| self.of_peer(ack));
        made.urgent = packet.urgent;
        made.traffic_class = packet.ecn;
        for option in packet.options.iter().flatten() {
            made.options.push(match option {
                Opt::Mss(mss) => TcpOption::Mss(*mss),
                Opt::Scale(shift) => TcpOption::WindowScale(*shift),
                Opt::SackPermitted => TcpOption::SackPermitted,
                Opt::Timestamps(value, echo) => {
                    let (value, echo) = value.zip(*echo).context("what is sent has no `*`")?;
                    let clock = if echo == 0 { 0 } else { self.peer_clock.unwrap_or(0) };
                    TcpOption::Timestamps(value, clock.wrapping_add(echo.saturating_sub(1)))
                }
                Opt::Sack(blocks) => TcpOption::Sack(
                    blocks.iter().map(|(left, right)| (self.of_peer(*left), self.of_peer(*right))).collect(),
                ),
                Opt::Nop => TcpOption::Nop,
                Opt::Raw(bytes) => TcpOption::Raw(bytes.clone()),
            });
        }
        let (from, until) = payload(packet.flags, packet.begin, packet.end);
        Ok(made.payload(self.stream.bytes(from, until)))
    }

    fn of_peer(&self, number: u64) -> u32 {
        self.peer_isn.unwrap_or(0).wrapping_add(number as u32)
    }

    /// Records the other end's address, sequence number and timestamp from a SYN.
    pub(super) fn learn(&mut self, heard: &Segment) {
        if heard.flags & flag::SYN != 0 {
            self.peer_isn = Some(heard.seq);
            self.peer = Some(heard.from);
            self.peer_clock = heard.options.iter().find_map(|option| match option {
                TcpOption::Timestamps(value, _) => Some(*value),
                _ => None,
            });
        }
    }

    /// Checks that a segment which arrived is the one the script expects.
    pub(super) fn check(&self, expected: &Packet, got: &Segment) -> Result<()> {
        ensure!(got.to == self.own, "it is for {}", got.to);
        ensure!(self.peer.is_none_or(|peer| peer == got.from), "it is from {}", got.from);
        ensure!(got.flags == expected.flags, "other flags");
        // A reset that belongs to no connection has an absolute number: there is no peer ISN to subtract.
        let seq = got.seq.wrapping_sub(self.peer_isn.unwrap_or(0));
        ensure!(seq == expected.begin as u32, "other sequence number");
        ensure!(got.payload.len() as u64 == expected.end - expected.begin, "other length");
        if let Some(ack) = expected.ack {
            ensure!(got.ack.wrapping_sub(self.isn) == ack as u32, "other acknowledgement");
        }
        ensure!(expected.window.is_none_or(|window| window == got.window), "other window");
        ensure!(got.urgent == expected.urgent, "other urgent pointer");
        ensure!(got.traffic_class == expected.ecn, "other ECN bits {:#x}", got.traffic_class);
        if let Some(options) = &expected.options {
            self.check_options(options, &got.options)?;
        }
        let (from, until) = payload(expected.flags, expected.begin, expected.end);
        if from < until {
            let heard = self.heard.as_ref().context("whose bytes it should receive is not known")?;
            ensure!(got.payload == heard.bytes(from, until), "OTHER BYTES than were sent");
        }
        Ok(())
    }

    fn check_options(&self, expected: &[Opt], got: &[TcpOption]) -> Result<()> {
        let got: Vec<_> = got.iter().filter(|option| **option != TcpOption::Nop).collect();
        let expected: Vec<_> = expected.iter().filter(|option| **option != Opt::Nop).collect();
        ensure!(got.len() == expected.len(), "other options");
        for (expected, got) in expected.into_iter().zip(got) {
            let same = match (expected, got) {
                (Opt::Mss(a), TcpOption::Mss(b)) => a == b,
                (Opt::Scale(a), TcpOption::WindowScale(b)) => a == b,
                (Opt::SackPermitted, TcpOption::SackPermitted) => true,
                (Opt::Timestamps(value, echo), TcpOption::Timestamps(v, e)) => {
                    let relative = self.since_clock(*v);
                    value.is_none_or(|value| value == relative) && echo.is_none_or(|echo| echo == *e)
                }
                (Opt::Sack(a), TcpOption::Sack(b)) => {
                    // SACK blocks refer to this end's own bytes.
                    let own = |number: &u32| u64::from(number.wrapping_sub(self.isn));
                    a.iter().copied().eq(b.iter().map(|(left, right)| (own(left), own(right))))
                }
                (Opt::Raw(a), TcpOption::Raw(b)) => a == b,
                _ => false,
            };
            ensure!(same, "other options: {got:?} for {expected:?}");
        }
        Ok(())
    }

    /// Returns the other end's timestamp relative to its first one, which is 1: 0 stands for none.
    pub(super) fn since_clock(&self, value: u32) -> u32 {
        self.peer_clock.map_or(value, |first| value.wrapping_sub(first).wrapping_add(1))
    }
}

/// A client's hello for a tenant.
pub(super) fn usual_hello(tenant: usize, bytes: usize) -> Vec<u8> {
    hello().name(server_name(tenant)).length(bytes).bytes()
}

/// Returns the range of stream bytes of a segment, counted from 0: those after its SYN.
fn payload(flags: u8, begin: u64, end: u64) -> (u64, u64) {
    let before = u64::from(flags & flag::SYN == 0);
    (begin.saturating_sub(before), end.saturating_sub(before))
}

/// Splits a name into the name without its number, and the number.
fn split(name: &str) -> Result<(&str, u16)> {
    let (name, connection) = match name.split_once('/') {
        Some((name, connection)) => (name, Some(connection)),
        None => (name, None),
    };
    let kind = name.trim_end_matches(|c: char| c.is_ascii_digit());
    let number = &name[kind.len()..];
    let count = match (number, connection) {
        ("", None) => 1,
        (number, None) => number.parse()?,
        ("", Some(connection)) => connection.parse()?,
        _ => bail!("{name}: a client has a number, a backend's connection has one behind a `/`"),
    };
    ensure!(count > 0, "ends are counted from 1");
    Ok((kind, count))
}
