//! Forged packets that are no plain segments: fragments, options and extension headers, other protocols, garbage.

use crate::dice::Dice;
use crate::packet::{ETHERNET_BYTES, checksum};

use super::forged::Side;

const TCP: u8 = 6;
const V6_FRAGMENT: u8 = 44;
const V6_AUTHENTICATION: u8 = 51;

/// IPv4: more fragments follow.
const MORE: u16 = 0x2000;

/// IPv6 extension headers (hop-by-hop, routing, fragment, authentication, none, destination, mobility), and an unknown one.
const HEADERS: [u8; 9] = [0, 43, V6_FRAGMENT, V6_AUTHENTICATION, 59, 60, 60, 135, 253];

/// IPv4 options: none that matter, router alert, record route, loose and strict source route, timestamps, and two that lie about
/// their length.
const V4_OPTIONS: [&[u8]; 8] = [
    &[1, 1, 1, 0],
    &[148, 4, 0, 0],
    &[7, 7, 4, 0, 0, 0, 0, 0],
    &[131, 7, 4, 10, 97, 0, 10, 0],
    &[137, 7, 4, 10, 97, 0, 10, 0],
    &[68, 12, 5, 0, 0, 0, 0, 0, 0, 0, 0, 0],
    &[148, 40, 0, 0],
    &[148, 0, 0, 0],
];

/// IPv6 options, without the two bytes before them: padding, router alert, a jumbo length, and unknown ones of each kind (RFC 8200
/// section 4.2: skip, drop, answer, answer a unicast).
const V6_OPTIONS: [[u8; 6]; 7] = [
    [1, 4, 0, 0, 0, 0],
    [5, 2, 0, 0, 1, 0],
    [0xc2, 4, 0, 0, 0, 40],
    [0x1e, 4, 0, 0, 0, 0],
    [0x5e, 4, 0, 0, 0, 0],
    [0x9e, 4, 0, 0, 0, 0],
    [0xde, 4, 0, 0, 0, 0],
];

fn is_v4(frame: &[u8]) -> bool {
    frame[12] == 8
}

/// Returns the end of the IP header of a frame without options.
fn ip_end(frame: &[u8]) -> usize {
    ETHERNET_BYTES + if is_v4(frame) { 20 } else { 40 }
}

/// Returns a packet between the same addresses as another, with right lengths and IP checksum. `options` are bytes of the IPv4
/// header or IPv6 extension headers, `fragment` the word of IPv4's flags and offset, with its identification before it.
fn packet(like: &[u8], protocol: u8, options: &[u8], body: &[u8], fragment: (u16, u16)) -> Vec<u8> {
    let mut frame = like[..ip_end(like)].to_vec();
    frame.extend(options);
    frame.extend(body);
    let length = frame.len() - ETHERNET_BYTES;
    let (is_v4, ip) = (is_v4(like), &mut frame[ETHERNET_BYTES..]);
    if is_v4 {
        ip[0] = 0x45 + (options.len() / 4) as u8;
        ip[2..4].copy_from_slice(&(length as u16).to_be_bytes());
        ip[4..6].copy_from_slice(&fragment.0.to_be_bytes());
        ip[6..8].copy_from_slice(&fragment.1.to_be_bytes());
        ip[9] = protocol;
        sum_v4(ip, 20 + options.len());
    } else {
        ip[4..6].copy_from_slice(&((length - 40) as u16).to_be_bytes());
        ip[6] = protocol;
    }
    frame
}

fn sum_v4(ip: &mut [u8], header_bytes: usize) {
    ip[10..12].fill(0);
    let sum = checksum(&ip[..header_bytes], 0);
    ip[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// How a segment is cut into fragments.
#[derive(Debug)]
pub(super) struct Cut {
    /// The end of the first one, in units of eight bytes.
    at: usize,
    /// Few different ones, so that some fragments fit others, which were sent before.
    id: u16,
    /// Which are sent: the first, the later one, or both in either order.
    parts: &'static [bool],
    /// The later one claims not to be the last.
    goes_on: bool,
    /// The later one begins this many units too early or too late.
    shift: i16,
}

impl Cut {
    pub(super) fn any(dice: &mut Dice) -> Self {
        Self {
            at: dice.count(1, 4),
            id: dice.below(4) as u16,
            parts: dice.pick(&[&[true], &[false], &[true, false], &[false, true]]),
            goes_on: dice.one_in(5),
            shift: if dice.one_in(5) { dice.between(0, 4) as i16 - 2 } else { 0 },
        }
    }

    pub(super) fn fragments(&self, frame: &[u8]) -> Vec<Vec<u8>> {
        let body = &frame[ip_end(frame)..];
        let at = self.at.min((body.len() - 1) / 8);
        let one = |first: &bool| {
            let (part, unit, more) = match first {
                true => (&body[..8 * at], 0, true),
                false => (&body[8 * at..], (at as i16 + self.shift).max(0) as u16, self.goes_on),
            };
            if is_v4(frame) {
                return packet(frame, TCP, &[], part, (self.id, unit | if more { MORE } else { 0 }));
            }
            let [high, low] = (unit << 3 | u16::from(more)).to_be_bytes();
            let header = [TCP, 0, high, low, 0, 0, 0, self.id as u8];
            packet(frame, V6_FRAGMENT, &header, part, (0, 0))
        };
        self.parts.iter().map(one).collect()
    }
}

/// IPv4 options, or IPv6 extension headers.
#[derive(Debug)]
pub(super) struct Options {
    bytes: Vec<u8>,
    /// The first IPv6 header.
    first: u8,
}

impl Options {
    pub(super) fn any(dice: &mut Dice, v4: bool) -> Self {
        if v4 {
            let mut bytes = match dice.one_in(4) {
                true => (0..dice.count(1, 40)).map(|_| dice.number() as u8).collect(),
                false => dice.pick(&V4_OPTIONS).to_vec(),
            };
            bytes.resize(bytes.len().next_multiple_of(4), 0);
            return Self { bytes, first: TCP };
        }
        // Seldom more than any of the programs reads.
        let count = if dice.one_in(8) { 18 } else { dice.count(1, 5) };
        let kinds: Vec<u8> =
            (0..count).map(|_| if count > 5 { 60 } else { dice.pick(&HEADERS) }).chain([TCP]).collect();
        let headers = kinds.windows(2).map(|pair| header(dice, pair[0], pair[1]));
        Self { bytes: headers.collect::<Vec<_>>().concat(), first: kinds[0] }
    }

    pub(super) fn added_to(&self, frame: &[u8]) -> Vec<u8> {
        packet(frame, self.first, &self.bytes, &frame[ip_end(frame)..], (0, 0))
    }
}

/// Returns an IPv6 extension header.
fn header(dice: &mut Dice, kind: u8, next: u8) -> Vec<u8> {
    let units = if kind == V6_FRAGMENT { 1 } else { dice.count(1, 3) };
    let mut bytes = vec![0; 8 * units];
    match kind {
        0 | 60 => bytes[2..8].copy_from_slice(&dice.pick(&V6_OPTIONS)),
        // Its type, and how many addresses are still to be visited (RFC 8200 section 4.4).
        43 => bytes[2..4].copy_from_slice(&[dice.pick(&[0, 2, 3, 4, 253]), dice.pick(&[0, 1, 255])]),
        V6_FRAGMENT => bytes[3] = dice.pick(&[0, 1, 8]),
        _ => bytes[2..].fill_with(|| dice.number() as u8),
    }
    if (kind == 0 || kind == 60) && units > 1 {
        bytes[8..10].copy_from_slice(&[1, 8 * (units - 1) as u8 - 2]);
    }
    bytes[0] = next;
    bytes[1] = if kind == V6_AUTHENTICATION { 2 * units as u8 - 2 } else { units as u8 - 1 };
    if kind == V6_FRAGMENT {
        bytes[1] = 0;
    }
    if dice.one_in(10) {
        bytes[1] = dice.number() as u8;
    }
    bytes
}

/// What is wrong with a packet.
#[derive(Debug)]
pub(super) enum Spoiled {
    /// At most this many bytes are left behind the link header.
    Cut(usize),
    /// These bytes are others; whether the sum of the IPv4 header is right nevertheless.
    Flipped(Vec<(usize, u8)>, bool),
    /// Bytes behind its end.
    Padded(usize),
}

impl Spoiled {
    pub(super) fn any(dice: &mut Dice) -> Self {
        match dice.below(4) {
            0 => Self::Cut(dice.count(1, 80)),
            1 => Self::Padded(dice.count(1, 80)),
            _ => {
                let bytes = (0..dice.count(1, 4)).map(|_| (dice.index(80), 1 + dice.below(255) as u8));
                Self::Flipped(bytes.collect(), dice.one_in(2))
            }
        }
    }

    pub(super) fn applied_to(&self, mut frame: Vec<u8>) -> Vec<u8> {
        let (was_v4, whole) = (is_v4(&frame), frame.len());
        match self {
            Self::Cut(bytes) => frame.truncate(ETHERNET_BYTES + bytes),
            Self::Padded(bytes) => frame.resize(whole + bytes, 0x5a),
            Self::Flipped(bytes, summed) => {
                // Other addresses would be other hosts, for whose link addresses the node would ask without end.
                let addresses = if was_v4 { 26..34 } else { 22..54 };
                for (at, how) in bytes {
                    let at = 12 + at % (whole - 12);
                    if !addresses.contains(&at) {
                        frame[at] ^= how;
                    }
                }
                if *summed && was_v4 {
                    sum_v4(&mut frame[ETHERNET_BYTES..], 20);
                }
            }
        }
        frame
    }
}

/// A packet of any protocol, which begins with the connection's ports.
#[derive(Debug)]
pub(super) struct Other {
    protocol: u8,
    bytes: Vec<u8>,
}

impl Other {
    pub(super) fn any(dice: &mut Dice) -> Self {
        let protocol = if dice.one_in(2) { 17 } else { dice.number() as u8 };
        Self { protocol, bytes: (0..dice.index(64)).map(|_| dice.number() as u8).collect() }
    }

    pub(super) fn bytes(&self, side: &Side) -> Vec<u8> {
        let ports = [side.from.port().to_be_bytes(), side.to.port().to_be_bytes()].concat();
        // Any other length than that of the protocol's own header would be dropped at once.
        let length = (8 + self.bytes.len() as u16).to_be_bytes();
        let body = [&ports, length.as_slice(), &[0, 0], &self.bytes].concat();
        packet(&side.segment().bytes(), self.protocol, &[], &body, (0, 0))
    }
}
