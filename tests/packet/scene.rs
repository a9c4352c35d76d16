//! One client and one backend around the programs, packet by packet.

use std::net::{IpAddr, SocketAddr};

use common::maps::flow::{BackendTuple, ClientTuple, Flow, Pending, Reply};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{
    BACKEND_PORT, FAMILIES, Family, TENANT_NETS, TLS_PORT, balancer, client, server_name, vip,
};
use tests::compare::assert_frame;
use tests::packet::{Segment, flag, segment};
use tests::program::{Outcome, Programs};
use tests::tcp_option::TcpOption;
use tests::tuple::{backend_tuple, client_tuple};
use tests::world::Device;

use crate::check::{sent, timestamps};

/// The client's first sequence number; the numbers wrap in the middle of the hello.
pub(crate) const ISN: u32 = 0xffff_ff00;
/// The backend's first sequence number.
pub(crate) const BACKEND_ISN: u32 = 0x1000_0000;
/// The client's first timestamp.
pub(crate) const CLIENT_TIME: u32 = 5_000;
/// The backend's first timestamp.
pub(crate) const BACKEND_TIME: u32 = 900_000;
/// The client's window once the connection is open, as it is on the wire.
pub(crate) const CLIENT_WINDOW: u16 = 502;
/// The backend's window.
pub(crate) const BACKEND_WINDOW: u16 = 128;

/// Loads the programs with a TLS listener and one route.
pub(crate) fn ready() -> Programs {
    let mut programs = Programs::load().expect("the programs load");
    programs.tls_with_one_route();
    programs
}

/// Returns a hello of 517 bytes for tenant a, as OpenSSL sends it.
pub(crate) fn usual_hello() -> Vec<u8> {
    tests::hello::hello().name(server_name(0)).length(517).bytes()
}

/// What one side offers in its SYN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Offer {
    pub(crate) mss: Option<u16>,
    pub(crate) sack: bool,
    pub(crate) timestamps: bool,
    pub(crate) scale: Option<u8>,
}

impl Offer {
    /// Returns an offer of the segment size only.
    pub(crate) const fn plain(mss: u16) -> Self {
        Self { mss: Some(mss), sack: false, timestamps: false, scale: None }
    }

    /// Returns Linux's offer.
    pub(crate) const fn linux(mss: u16, scale: u8) -> Self {
        Self { mss: Some(mss), sack: true, timestamps: true, scale: Some(scale) }
    }

    /// Adds the options to a segment in Linux's order; what is not offered is left out.
    pub(crate) fn put(self, mut segment: Segment, value: u32, echo: u32) -> Segment {
        segment.options.extend(self.mss.map(TcpOption::Mss));
        if self.sack {
            segment = segment.sack_permitted();
        }
        if self.timestamps {
            segment = segment.timestamps(value, echo);
        }
        match self.scale {
            Some(scale) => segment.window_scale(scale),
            None => segment,
        }
    }

    /// Adds the options as our own SYNs have them: each at its fixed offset, with NOPs for what is not offered.
    pub(crate) fn put_fixed(self, mut segment: Segment, value: u32, echo: u32) -> Segment {
        let nops = |count| std::iter::repeat_n(TcpOption::Nop, count);
        segment.options.extend(self.mss.map(TcpOption::Mss));
        segment = if self.sack { segment.sack_permitted() } else { with(segment, nops(2)) };
        segment = if self.timestamps { segment.timestamps(value, echo) } else { with(segment, nops(10)) };
        match self.scale {
            Some(scale) => segment.window_scale(scale),
            None => with(segment, nops(4)),
        }
    }
}

fn with(mut segment: Segment, options: impl Iterator<Item = TcpOption>) -> Segment {
    segment.options.extend(options);
    segment
}

/// Adds NOP, NOP, timestamps, as on segments of an open connection.
pub(crate) fn stamped(segment: Segment, value: u32, echo: u32) -> Segment {
    segment.option(TcpOption::Nop).option(TcpOption::Nop).timestamps(value, echo)
}

/// A connection before it is dialled.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    pub(crate) family: Family,
    pub(crate) host: IpAddr,
    pub(crate) port: u16,
    pub(crate) vip_port: u16,
    pub(crate) offer: Offer,
}

/// Returns a connection to the TLS listener with Linux's options.
pub(crate) fn dial(family: Family) -> Dial {
    let offer = Offer::linux(1440, 7);
    Dial { family, host: client(family), port: 40_000, vip_port: TLS_PORT, offer }
}

impl Dial {
    pub(crate) fn host(self, host: impl Into<IpAddr>) -> Self {
        Self { host: host.into(), ..self }
    }

    pub(crate) fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    pub(crate) fn to_port(self, vip_port: u16) -> Self {
        Self { vip_port, ..self }
    }

    pub(crate) fn offer(self, offer: Offer) -> Self {
        Self { offer, ..self }
    }

    pub(crate) fn client(self) -> SocketAddr {
        SocketAddr::new(self.host, self.port)
    }

    pub(crate) fn vip(self) -> SocketAddr {
        SocketAddr::new(vip(self.family), self.vip_port)
    }

    /// Returns the key of the connection's entries.
    pub(crate) fn tuple(self) -> ClientTuple {
        client_tuple(self.client(), self.vip())
    }

    /// Returns a segment of the client as we receive it.
    pub(crate) fn segment(self) -> Segment {
        segment(self.client(), self.vip()).ethernet(Device::Client.near_mac(), Device::Client.far_mac())
    }

    /// Returns a segment to the client as it leaves, with hop limit 64 as in all packets we make.
    pub(crate) fn to_client(self) -> Segment {
        segment(self.vip(), self.client())
            .ethernet(Device::Client.far_mac(), Device::Client.near_mac())
            .window(0)
    }

    /// Returns the client's SYN.
    pub(crate) fn syn(self) -> Segment {
        self.offer.put(self.segment().syn(ISN), CLIENT_TIME, 0)
    }

    /// Dials until the SYN-ACK.
    #[track_caller]
    pub(crate) fn shake(self, programs: &mut Programs) -> Client {
        let outcome = programs.ingress(Device::Client, &self.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let answer = sent(&outcome);
        Client { dial: self, cookie: 0, time: 0 }.told(&answer)
    }
}

/// A client that has our SYN-ACK.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Client {
    pub(crate) dial: Dial,
    /// Our first sequence number.
    pub(crate) cookie: u32,
    /// Our timestamp in the SYN-ACK.
    pub(crate) time: u32,
}

impl Client {
    /// Returns the same client with another SYN-ACK of ours.
    pub(crate) fn told(self, answer: &Segment) -> Self {
        Self { cookie: answer.seq, time: timestamps(answer).map_or(0, |(value, _)| value), ..self }
    }

    /// Returns a segment that acknowledges the SYN-ACK, `offset` bytes after the SYN.
    pub(crate) fn at(self, offset: u32) -> Segment {
        let ack = self.cookie.wrapping_add(1);
        let s = self.dial.segment().seq(behind(ISN, offset)).ack(ack).window(CLIENT_WINDOW);
        if self.dial.offer.timestamps { stamped(s, CLIENT_TIME + 1, self.time) } else { s }
    }

    /// Sends a part of the hello.
    pub(crate) fn send(self, programs: &mut Programs, offset: u32, bytes: &[u8]) -> Outcome {
        programs.ingress(Device::Client, &self.at(offset).payload(bytes).bytes())
    }

    /// Sends a segment.
    pub(crate) fn give(self, programs: &mut Programs, segment: &Segment) -> Outcome {
        programs.ingress(Device::Client, &segment.bytes())
    }

    /// Sends a whole hello and reads the SYN that goes to a backend for it.
    #[track_caller]
    pub(crate) fn ask(self, programs: &mut Programs, hello: &[u8]) -> Backend {
        let outcome = self.send(programs, 0, hello);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        Backend::of(&sent(&outcome))
    }

    /// Returns a wrong acknowledgement number: one bit of the cookie's four-tuple tag differs.
    pub(crate) fn wrong_ack(self) -> u32 {
        (self.cookie ^ 1 << 4).wrapping_add(1)
    }

    /// Returns the RST that refuses this client, at the number it expects.
    pub(crate) fn refusal(self) -> Segment {
        self.dial.to_client().rst().seq(self.cookie.wrapping_add(1))
    }

    /// Asserts the acknowledgement of `bytes` hello bytes; the timestamp is read from the packet that was sent.
    #[track_caller]
    pub(crate) fn assert_acknowledged(self, outcome: &Outcome, bytes: u32) {
        let answer = sent(outcome);
        let unit = if self.dial.offer.scale.is_some() { 128 } else { 1 };
        let expected = self
            .dial
            .to_client()
            .seq(self.cookie.wrapping_add(1))
            .ack(behind(ISN, bytes))
            .window((18_432 - bytes).div_ceil(unit) as u16);
        let expected = match timestamps(&answer) {
            Some((value, _)) if self.dial.offer.timestamps => {
                assert!(value.wrapping_sub(self.time) < 60_000, "time goes on: {} {value}", self.time);
                stamped(expected, value, CLIENT_TIME + 1)
            }
            _ => expected,
        };
        assert_frame(&outcome.packet, &expected);
    }

    /// Returns its waiting hello.
    pub(crate) fn waiting(self, programs: &Programs) -> Option<Pending> {
        programs.entry(name::PENDING, self.dial.tuple())
    }

    /// Returns its flow.
    pub(crate) fn flow(self, programs: &Programs) -> Option<Flow> {
        programs.entry(name::FLOWS, self.dial.tuple())
    }
}

/// Returns the number `offset` bytes after a SYN with this number.
pub(crate) fn behind(isn: u32, offset: u32) -> u32 {
    isn.wrapping_add(1).wrapping_add(offset)
}

/// A backend that received our SYN.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Backend {
    pub(crate) address: SocketAddr,
    pub(crate) source: SocketAddr,
    pub(crate) timestamps: bool,
}

impl Backend {
    /// Returns the backend that a SYN of ours is sent to.
    #[track_caller]
    pub(crate) fn of(syn: &Segment) -> Self {
        let family = FAMILIES[usize::from(syn.to.is_ipv6())];
        assert_eq!(syn.flags, flag::SYN);
        assert_eq!(syn.from.ip(), balancer(family, TENANT_NETS[0]));
        assert_eq!(syn.to.port(), BACKEND_PORT);
        Self { address: syn.to, source: syn.from, timestamps: timestamps(syn).is_some() }
    }

    /// Returns the key of its NAT entry.
    pub(crate) fn tuple(self) -> BackendTuple {
        backend_tuple(self.address, self.source)
    }

    /// Returns the owner of its NAT entry.
    pub(crate) fn owner(self, programs: &Programs) -> Option<ClientTuple> {
        programs.entry(name::NATS, self.tuple()).map(|reply: Reply| reply.tuple())
    }

    /// Returns a segment of the backend as we receive it.
    pub(crate) fn segment(self) -> Segment {
        segment(self.address, self.source).ethernet(Device::Backend.near_mac(), Device::Backend.far_mac())
    }

    /// Returns a segment to the backend as it leaves.
    pub(crate) fn to_backend(self) -> Segment {
        segment(self.source, self.address).ethernet(Device::Backend.far_mac(), Device::Backend.near_mac())
    }

    /// Returns its SYN-ACK.
    pub(crate) fn syn_ack(self) -> Segment {
        let offer = if self.timestamps { Offer::linux(1460, 9) } else { Offer::plain(1460) };
        self.syn_ack_with(offer)
    }

    /// Returns its SYN-ACK with these options.
    pub(crate) fn syn_ack_with(self, offer: Offer) -> Segment {
        let s = self.segment().flags(flag::SYN).seq(BACKEND_ISN).ack(behind(ISN, 0));
        offer.put(s, BACKEND_TIME, CLIENT_TIME)
    }

    /// Returns an established segment: `seq` and `ack` count from after the SYNs.
    pub(crate) fn at(self, seq: u32, ack: u32) -> Segment {
        let s = self.segment().seq(behind(BACKEND_ISN, seq)).ack(behind(ISN, ack)).window(BACKEND_WINDOW);
        if self.timestamps { stamped(s, BACKEND_TIME + 10, CLIENT_TIME + 1) } else { s }
    }

    /// Sends a segment.
    pub(crate) fn give(self, programs: &mut Programs, segment: &Segment) -> Outcome {
        programs.ingress(Device::Backend, &segment.bytes())
    }

    /// Accepts the connection, so that the hello is delivered.
    #[track_caller]
    pub(crate) fn accept(self, programs: &mut Programs) -> Outcome {
        let outcome = self.give(programs, &self.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
        outcome
    }

    /// Refuses: answers our SYN with a RST.
    pub(crate) fn refuse(self, programs: &mut Programs) -> Outcome {
        self.give(programs, &self.segment().rst().ack(behind(ISN, 0)).window(0))
    }
}
