//! What the ends know of their connections: sequence numbers to build packets with, and what was sent where.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use common::maps::flow::BackendTuple;
use tests::addresses::{server_name, wildcard_suffix};
use tests::hello::hello;
use tests::packet::{Segment, flag, segment};
use tests::tcp_option::TcpOption;
use tests::world::Device;

use super::decode::{Base, Number, Payload, Shape};
use super::hosts::{self, Ends};

/// Initial sequence numbers; the client's wraps in the middle of the hello.
const ISN: u32 = 0xffff_ff00;
const BACKEND_ISN: u32 = 0x1000_0000;
/// Initial timestamps.
const TIME: u32 = 5_000;
const BACKEND_TIME: u32 = 900_000;

/// The client's end of a connection.
#[derive(Debug, Clone, Default)]
pub struct Client {
    /// End of the highest segment sent.
    next: Option<u32>,
    /// Whether anything was sent at all.
    pub spoke: bool,
    /// The other side's initial sequence number, and the one expected next.
    first: u32,
    expected: u32,
    /// The other side's last timestamp.
    time: u32,
    /// Everything that was sent: the sequence number of the first byte, and the bytes.
    sent: Vec<(u32, Vec<u8>)>,
    /// Backends that were dialled for it, in order.
    pub dialled: Vec<BackendTuple>,
}

/// A backend's end of a connection.
#[derive(Debug, Clone)]
pub struct Backend {
    /// The connection that it was dialled for.
    pub connection: Ends,
    /// The client's initial sequence number, as in the SYN.
    isn: u32,
    /// End of the highest segment sent.
    next: u32,
    time: u32,
    /// What was received without a gap.
    pub stream: Vec<u8>,
    /// The distance by which its sequence numbers are moved towards the client, once seen.
    pub delta: Option<u32>,
    /// Of packets that left at the same moment it is not known which it received first, and that matters: `stream` may be
    /// another.
    pub doubtful: bool,
}

impl Client {
    /// Whether it sent this byte at this sequence number.
    pub fn has_sent(&self, seq: u32, byte: u8) -> bool {
        self.sent.iter().any(|(from, bytes)| bytes.get(seq.wrapping_sub(*from) as usize) == Some(&byte))
    }

    /// Records a segment that was sent to it.
    pub fn receives(&mut self, segment: &Segment) {
        if segment.flags & flag::RST != 0 {
            return;
        }
        if segment.flags & flag::SYN != 0 {
            self.first = segment.seq;
            self.expected = segment.seq;
        }
        let end = segment.end();
        if end.wrapping_sub(self.expected) < 1 << 31 {
            self.expected = end;
        }
        self.time = time_of(segment).unwrap_or(self.time);
    }

    /// Records a segment that it sends.
    pub fn sends(&mut self, segment: &Segment) {
        let end = segment.end();
        if self.next.is_none_or(|next| end.wrapping_sub(next) < 1 << 31) {
            self.next = Some(end);
        }
    }

    /// Records a frame that it sends, well-formed or not.
    pub fn speaks(&mut self, frame: &[u8]) {
        self.spoke = true;
        if let Some((seq, payload)) = data_of(frame).filter(|(_, payload)| !payload.is_empty()) {
            self.sent.push((seq, payload.to_vec()));
        }
    }
}

impl Backend {
    pub fn new(connection: Ends, isn: u32) -> Self {
        Self { connection, isn, next: BACKEND_ISN, time: 0, stream: Vec::new(), delta: None, doubtful: false }
    }

    /// Whether it was dialled for this connection, with this initial sequence number.
    pub fn is(&self, connection: Ends, isn: u32) -> bool {
        self.connection == connection && self.isn == isn
    }

    /// Records a segment that was sent to it, like a receiver: in order, and only the first copy counts.
    pub fn receives(&mut self, segment: &Segment) {
        self.time = time_of(segment).unwrap_or(self.time);
        let expected = self.isn.wrapping_add(1).wrapping_add(self.stream.len() as u32);
        let known = expected.wrapping_sub(segment.seq) as usize;
        if let Some(new) = segment.payload.get(known..) {
            self.stream.extend(new);
        }
    }

    /// Records segments that were sent to it at the same moment, in any order: like a receiver that waits for what is missing
    /// before them.
    pub fn receives_at_once(&mut self, mut segments: Vec<Segment>) {
        let first = self.isn.wrapping_add(1);
        segments.sort_by_key(|segment| segment.seq.wrapping_sub(first));
        let start = self.stream.len();
        for segment in &segments {
            self.receives(segment);
        }
        // Bytes that are new to it, in two versions.
        let new = &self.stream[start..];
        let differs = |segment: &Segment| {
            let at = segment.seq.wrapping_sub(first).wrapping_sub(start as u32);
            let known = |offset: usize| new.get(at.wrapping_add(offset as u32) as usize);
            (0..).zip(&segment.payload).any(|(offset, byte)| known(offset).is_some_and(|known| known != byte))
        };
        self.doubtful |= segments.iter().any(differs);
    }

    /// Records a segment that it sends.
    pub fn sends(&mut self, segment: &Segment) {
        let end = segment.end();
        if end.wrapping_sub(self.next) < 1 << 31 {
            self.next = end;
        }
    }
}

fn time_of(segment: &Segment) -> Option<u32> {
    segment.options.iter().find_map(|option| match option {
        TcpOption::Timestamps(value, _) => Some(*value),
        _ => None,
    })
}

/// The hellos that clients send: for tenants a and b by name, for a by wildcard, with an unknown and a
/// reserved name, without a name, and long ones for a by name and for b by one label.
pub fn hellos() -> [Vec<u8>; 8] {
    [
        hello().name(server_name(0)).bytes(),
        hello().name(server_name(1)).bytes(),
        hello().name(format!("x.{}", wildcard_suffix(0))).records_of(40).bytes(),
        hello().name("unknown.example.com").bytes(),
        hello().name("kubernetes.default").bytes(),
        hello().bytes(),
        hello().name(server_name(0)).length(5000).bytes(),
        hello().name(format!("x.{}", wildcard_suffix(1))).length(3000).records_of(500).bytes(),
    ]
}

/// All clients and backends.
#[derive(Debug)]
pub struct Known {
    pub clients: BTreeMap<Ends, Client>,
    pub backends: BTreeMap<BackendTuple, Backend>,
    hellos: [Vec<u8>; 8],
}

impl Known {
    pub fn new() -> Self {
        Self { clients: BTreeMap::new(), backends: BTreeMap::new(), hellos: hellos() }
    }

    /// Builds a segment that a client sends.
    pub fn client_sends(&mut self, connection: usize, shape: &Shape) -> Segment {
        let ends = hosts::ends(connection);
        let known = self.clients.entry(ends).or_default().clone();
        let next = known.next.unwrap_or(ISN);
        let (payload, at) = self.payload(&shape.payload, next.wrapping_sub(ISN.wrapping_add(1)));
        let natural = match at {
            Some(at) => ISN.wrapping_add(1).wrapping_add(at),
            None if shape.flags & flag::SYN != 0 => ISN,
            None => next,
        };
        let neighbour = hosts::ends((connection + 1) % hosts::CONNECTIONS);
        let other = self.clients.get(&neighbour).map_or(0, |other| other.expected);
        let seq = number(shape.seq, natural, ISN, next);
        let ack = number(shape.ack, known.expected, known.first, other);
        let segment = ethernet(segment(ends.0, ends.1), Device::Client);
        let segment = finish(segment, shape, (seq, ack), (TIME + 1, known.time), payload);
        self.clients.entry(ends).or_default().sends(&segment);
        segment
    }

    /// Builds a segment of the backend dialled for a connection, the last one or one before.
    pub fn backend_sends(&mut self, connection: usize, back: usize, shape: &Shape) -> Option<Segment> {
        let dialled = &self.clients.get(&hosts::ends(connection))?.dialled;
        let tuple = *dialled.get(dialled.len().checked_sub(1 + back)?)?;
        let known = self.backends.get(&tuple)?;
        let (backend, source) = hosts::ends_of(&tuple);
        let natural = if shape.flags & flag::SYN != 0 { BACKEND_ISN } else { known.next };
        let expected = known.isn.wrapping_add(1).wrapping_add(known.stream.len() as u32);
        let (payload, _) = self.payload(&shape.payload, 0);
        let seq = number(shape.seq, natural, BACKEND_ISN, known.next);
        let ack = number(shape.ack, expected, known.isn.wrapping_add(1), known.isn);
        let segment = ethernet(segment(backend, source), Device::Backend);
        let segment = finish(segment, shape, (seq, ack), (BACKEND_TIME + 1, known.time), payload);
        if let Some(known) = self.backends.get_mut(&tuple) {
            known.sends(&segment);
        }
        Some(segment)
    }

    /// Returns the payload, and its offset in the hello that it is part of.
    fn payload(&self, payload: &Payload, sent: u32) -> (Vec<u8>, Option<u32>) {
        match payload {
            Payload::None => (Vec::new(), None),
            Payload::Data(bytes) => ((0..*bytes).map(|at| at as u8 ^ 0x55).collect(), None),
            Payload::Raw(bytes) => (bytes.clone(), None),
            Payload::Pending(which, from, bytes) => {
                let hello = &self.hellos[*which];
                let from = from.map_or(sent as usize, usize::from).min(hello.len());
                let end = (from + usize::from(*bytes)).min(hello.len());
                (hello[from..end].to_vec(), Some(from as u32))
            }
        }
    }
}

fn number(number: Number, natural: u32, first: u32, other: u32) -> u32 {
    let base = match number.base {
        Base::Natural => natural,
        Base::First => first,
        Base::Other => other,
        Base::Zero => 0,
    };
    base.wrapping_add(number.offset)
}

fn ethernet(segment: Segment, device: Device) -> Segment {
    segment.ethernet(device.near_mac(), device.far_mac())
}

fn finish(
    mut segment: Segment,
    shape: &Shape,
    (seq, ack): (u32, u32),
    time: (u32, u32),
    payload: Vec<u8>,
) -> Segment {
    segment.seq = seq;
    segment.flags = shape.flags;
    segment.window = 502;
    // The field is set even without the flag.
    segment.ack = ack;
    segment.options = options(shape.options, shape.flags & flag::SYN != 0, time, ack);
    segment.payload = payload;
    segment
}

/// Returns options by kind and parameter: those of honest ends, none, and those that no end should send.
fn options((kind, parameter): (u8, u8), syn: bool, (value, echo): (u32, u32), ack: u32) -> Vec<TcpOption> {
    use TcpOption::{Mss, Nop, Raw, Sack, SackPermitted, Timestamps, WindowScale};
    let linux = [Mss(1440), SackPermitted, Timestamps(value, echo), Nop, WindowScale(7)];
    let stamp = [Nop, Nop, Timestamps(value, echo)];
    let block = |n: u32| (ack.wrapping_add(n * 1000), ack.wrapping_add(n * 1000 + 500));
    match kind {
        0 if syn => linux.to_vec(),
        0 => stamp.to_vec(),
        1 => vec![],
        2 => vec![Mss([0, 1, 88, 100, 216, 536, 1460, 65_535][usize::from(parameter & 7)])],
        3 => vec![Mss(1460), WindowScale(parameter)],
        4 => vec![Nop, Timestamps(value, echo)],
        5 => vec![Sack((1..=1 + u32::from(parameter & 3)).map(block).collect())],
        6 => {
            [&stamp[..], &[Nop, Nop, Sack((1..=1 + u32::from(parameter % 3)).map(block).collect())]].concat()
        }
        7 => vec![Nop, Sack(vec![block(1)]), Timestamps(value, echo)],
        // Wrong lengths: zero, one, beyond the header.
        8 => vec![Raw(vec![parameter, 0, 0, 0])],
        9 => vec![Raw(vec![8, 1, 1, 1])],
        10 => vec![Nop, Nop, Raw(vec![8, 10 + parameter, 0, 0, 0, 1])],
        11 => vec![Raw(vec![5, parameter, 0, 0, 0, 1, 0, 0])],
        // Options twice, and one option forty times.
        12 => vec![Timestamps(1, 2), Timestamps(value, echo), Mss(100), Mss(1400)],
        13 => vec![Nop; 40],
        14 => vec![Raw(vec![parameter, 4, 1, 2]), SackPermitted, Nop, Nop],
        _ => vec![Mss(1460), WindowScale(0), SackPermitted],
    }
}

/// Offset of the transport header if there are no IP options.
pub fn transport_at(frame: &[u8]) -> usize {
    if frame.get(12..14) == Some(&[0x86, 0xdd]) { 54 } else { 34 }
}

/// Returns the sequence number of a frame, well-formed or not, and the bytes after its TCP header.
pub fn data_of(frame: &[u8]) -> Option<(u32, &[u8])> {
    let at = transport_at(frame);
    let (seq, length) = (frame.get(at + 4..at + 8)?, frame.get(at + 12)?);
    let payload = frame.get(at + usize::from(length >> 4) * 4..).unwrap_or_default();
    Some((u32::from_be_bytes(seq.try_into().ok()?), payload))
}

/// Returns sender and receiver of a frame, whatever else is wrong with it.
pub fn addresses(frame: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let port = |at: usize| frame.get(at..at + 2).map_or(0, |bytes| u16::from_be_bytes([bytes[0], bytes[1]]));
    match frame.get(12..14)? {
        [0x08, 0x00] => {
            let bytes: &[u8; 8] = frame.get(26..34)?.try_into().ok()?;
            let [a, b, c, d, e, f, g, h] = *bytes;
            Some((([a, b, c, d], port(34)).into(), ([e, f, g, h], port(36)).into()))
        }
        [0x86, 0xdd] => {
            let from: [u8; 16] = frame.get(22..38)?.try_into().ok()?;
            let to: [u8; 16] = frame.get(38..54)?.try_into().ok()?;
            Some(((from, port(54)).into(), (to, port(56)).into()))
        }
        _ => None,
    }
}
