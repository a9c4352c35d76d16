//! One client and one backend around the programs, packet by packet.

use std::net::SocketAddr;

use common::reason::Reason;
use tests::addresses::{Family, TENANT_NETS, TLS_PORT, balancer, backend, client, vip, BACKEND_PORT};
use tests::packet::{Segment, flag, segment};
use tests::program::{Outcome, Programs, verdict};
use tests::tcp_option::TcpOption;
use tests::world::Device;

/// The client's first sequence number; the wrap comes in the middle of the hello.
pub(crate) const ISN: u32 = 0xffff_ff00;
/// The backend's first sequence number.
pub(crate) const BACKEND_ISN: u32 = 0x1000_0000;
/// The client's timestamps begin here.
pub(crate) const CLIENT_TIME: u32 = 5_000;
/// The backend's timestamps begin here.
pub(crate) const BACKEND_TIME: u32 = 900_000;

/// A connection to be made.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dial {
    pub(crate) family: Family,
    pub(crate) port: u16,
    pub(crate) vip_port: u16,
    pub(crate) mss: u16,
    /// Timestamps, SACK and window scale 7 as Linux offers them; none of them otherwise.
    pub(crate) linux: bool,
}

/// As Linux dials the TLS listener.
pub(crate) fn dial(family: Family) -> Dial {
    Dial { family, port: 40_000, vip_port: TLS_PORT, mss: 1440, linux: true }
}

impl Dial {
    pub(crate) fn port(self, port: u16) -> Self {
        Self { port, ..self }
    }

    pub(crate) fn plain(self) -> Self {
        Self { linux: false, ..self }
    }

    pub(crate) fn mss(self, mss: u16) -> Self {
        Self { mss, ..self }
    }

    pub(crate) fn to_port(self, vip_port: u16) -> Self {
        Self { vip_port, ..self }
    }

    pub(crate) fn client(self) -> SocketAddr {
        SocketAddr::new(client(self.family), self.port)
    }

    pub(crate) fn vip(self) -> SocketAddr {
        SocketAddr::new(vip(self.family), self.vip_port)
    }

    /// A segment of the client as it comes in.
    pub(crate) fn from_client(self) -> Segment {
        segment(self.client(), self.vip()).ethernet(Device::Client.near_mac(), Device::Client.far_mac())
    }

    /// A segment to the client as it leaves; hop limit 64 as in all we make.
    pub(crate) fn to_client(self) -> Segment {
        segment(self.vip(), self.client()).ethernet(Device::Client.far_mac(), Device::Client.near_mac()).window(0)
    }

    /// The client's SYN.
    pub(crate) fn syn(self) -> Segment {
        let syn = self.from_client().syn(ISN);
        if self.linux { syn.linux_syn_options(self.mss, CLIENT_TIME, 7) } else { syn.mss(self.mss) }
    }

    /// Dials as far as the SYN-ACK.
    pub(crate) fn shake(self, programs: &mut Programs) -> Client {
        let outcome = programs.ingress(Device::Client, &self.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let answer = sent(&outcome);
        Client { dial: self, cookie: answer.seq, time: timestamps(&answer).map_or(0, |(value, _)| value) }
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
    /// A segment that acknowledges the SYN-ACK, `offset` bytes behind the SYN.
    pub(crate) fn at(self, offset: u32) -> Segment {
        let s = self.dial.from_client().seq(ISN.wrapping_add(1).wrapping_add(offset)).ack(self.cookie.wrapping_add(1));
        if self.dial.linux { s.window(502).option(TcpOption::Nop).option(TcpOption::Nop).timestamps(CLIENT_TIME + 1, self.time) } else { s }
    }

    /// Sends a part of the hello.
    pub(crate) fn send(self, programs: &mut Programs, offset: u32, bytes: &[u8]) -> Outcome {
        programs.ingress(Device::Client, &self.at(offset).payload(bytes).bytes())
    }
}

/// A backend that has our SYN.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Backend {
    pub(crate) family: Family,
    pub(crate) index: usize,
    pub(crate) source: SocketAddr,
    pub(crate) linux: bool,
}

impl Backend {
    /// The backend a SYN of ours is for.
    pub(crate) fn of(syn: &Segment) -> Self {
        let family = if syn.to.is_ipv4() { Family::V4 } else { Family::V6 };
        let index = (0..2).find(|i| backend(family, 0, *i) == syn.to.ip()).expect("a backend of tenant a");
        assert_eq!(syn.from.ip(), balancer(family, TENANT_NETS[0]));
        assert_eq!(syn.to.port(), BACKEND_PORT);
        Self { family, index, source: syn.from, linux: timestamps(syn).is_some() }
    }

    pub(crate) fn address(self) -> SocketAddr {
        SocketAddr::new(backend(self.family, 0, self.index), BACKEND_PORT)
    }

    /// A segment of the backend as it comes in.
    pub(crate) fn from_backend(self) -> Segment {
        segment(self.address(), self.source).ethernet(Device::Backend.near_mac(), Device::Backend.far_mac())
    }

    /// A segment to the backend as it leaves.
    pub(crate) fn to_backend(self) -> Segment {
        segment(self.source, self.address()).ethernet(Device::Backend.far_mac(), Device::Backend.near_mac())
    }

    /// Its SYN-ACK.
    pub(crate) fn syn_ack(self) -> Segment {
        let s = self.from_backend().flags(flag::SYN).seq(BACKEND_ISN).ack(ISN.wrapping_add(1));
        if self.linux { s.mss(1460).sack_permitted().timestamps(BACKEND_TIME, CLIENT_TIME).window_scale(9) } else { s.mss(1460) }
    }

    /// An established segment: `seq` and `ack` count from behind the SYNs.
    pub(crate) fn at(self, seq: u32, ack: u32) -> Segment {
        let s = self
            .from_backend()
            .seq(BACKEND_ISN.wrapping_add(1).wrapping_add(seq))
            .ack(ISN.wrapping_add(1).wrapping_add(ack));
        if self.linux {
            s.window(128).option(TcpOption::Nop).option(TcpOption::Nop).timestamps(BACKEND_TIME + 10, CLIENT_TIME + 1)
        } else {
            s
        }
    }
}

/// The packet a run sent.
#[track_caller]
pub(crate) fn sent(outcome: &Outcome) -> Segment {
    assert_eq!(outcome.verdict, verdict::REDIRECT, "{:?}", outcome.counted);
    let parsed = Segment::parse(&outcome.packet).expect("a TCP segment");
    // The bytes themselves, so that no checksum goes unseen.
    tests::compare::assert_frame(&outcome.packet, &parsed);
    parsed
}

/// TSval and TSecr.
pub(crate) fn timestamps(segment: &Segment) -> Option<(u32, u32)> {
    segment.options.iter().find_map(|option| match option {
        TcpOption::Timestamps(value, echo) => Some((*value, *echo)),
        _ => None,
    })
}

/// An open connection through listener and route of `Programs::tls_with_one_route`.
pub(crate) struct Open {
    pub(crate) client: Client,
    pub(crate) backend: Backend,
    pub(crate) hello: Vec<u8>,
}

/// Dials, sends the hello in one segment, lets the backend accept.
#[track_caller]
pub(crate) fn open(programs: &mut Programs, dial: Dial, hello: &[u8]) -> Open {
    let client = dial.shake(programs);
    let outcome = client.send(programs, 0, hello);
    assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    let backend = Backend::of(&sent(&outcome));
    let outcome = programs.ingress(Device::Backend, &backend.syn_ack().bytes());
    assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
    assert_eq!(sent(&outcome).payload, hello);
    Open { client, backend, hello: hello.to_vec() }
}
