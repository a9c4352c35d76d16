//! Decodes bytes into steps: any bytes are valid, and a changed byte changes little.
//!
//! Two bytes of settings, then steps. A step consists of a kind, whom it concerns, and what its kind needs;
//! see [`step`].

use super::hosts::{BACKENDS, CONNECTIONS};

/// Maximum number of steps of one input.
const STEPS_MAX: usize = 24;
/// Maximum payload of a packet, in bytes: BPF_PROG_TEST_RUN accepts a frame of one page.
const PAYLOAD_MAX: u16 = 2800;

/// Settings of one input; small, so that tables fill.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    pub buffers: u32,
    pub closed_timeout_secs: u32,
    pub source_hellos_max: u32,
    /// The VIPs are also addresses of the node.
    pub own: bool,
    /// Hellos expire as soon as any time passes.
    pub impatient: bool,
    /// There are only four source ports.
    pub few_ports: bool,
}

/// One event.
#[derive(Debug, Clone)]
pub enum Step {
    /// A client sends a segment on its connection.
    Client(usize, Shape),
    /// A backend dialled for this connection sends a segment: the last one, or one before (how many dials back).
    Backend(usize, usize, Shape),
    /// The last frame arrives again, with other bytes at some offsets; checksums are repaired or not.
    Mangle(Vec<(usize, u8)>, bool),
    /// Any bytes arrive, on the clients' device (`true`) or the backends'.
    Raw(bool, Vec<u8>),
    /// The daemon runs `expire` for a connection.
    Expire(usize, Order),
    /// The daemon sets these flags of a backend.
    Flag(usize, u8),
    /// Two of the others happen at the same moment, on two CPUs; the first one so much later (or, negative, earlier).
    AtOnce(Box<[Step; 2]>, i8),
}

/// An order of the daemon.
#[derive(Debug, Clone, Copy)]
pub struct Order {
    /// What is ordered: see `orders.rs`.
    pub kind: usize,
    pub seen: Seen,
}

/// What the daemon saw of the connection that it gives an order about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Seen {
    /// The order does not say. It is about whichever connection of the client waits or is half-open, and about no flow.
    Nothing,
    /// What the maps contain now.
    Now,
    /// Another connection of the same client.
    Another,
    /// The connection, before its last packet and its last progress.
    Before,
}

/// A segment, described by its meaning.
#[derive(Debug, Clone)]
pub struct Shape {
    pub flags: u8,
    pub seq: Number,
    pub ack: Number,
    /// Kind and parameter.
    pub options: (u8, u8),
    pub payload: Payload,
    pub gso: bool,
    pub bad_checksum: bool,
}

/// A sequence number, relative to one that the sender knows.
#[derive(Debug, Clone, Copy)]
pub struct Number {
    pub base: Base,
    pub offset: u32,
}

#[derive(Debug, Clone, Copy)]
pub enum Base {
    /// What an honest sender would use.
    Natural,
    /// The first sequence number of the connection.
    First,
    /// A number from elsewhere; for a client's acknowledgement, from another connection.
    Other,
    Zero,
}

#[derive(Debug, Clone)]
pub enum Payload {
    None,
    /// Bytes of a hello: which hello, from which offset (`None`: after what was sent), how many bytes.
    Pending(usize, Option<u16>, u16),
    /// Application data.
    Data(u16),
    Raw(Vec<u8>),
}

const NUMBERS: [(Base, i64); 16] = [
    (Base::Natural, 0),
    (Base::Natural, 1),
    (Base::Natural, -1),
    (Base::Natural, 100),
    (Base::Natural, -100),
    (Base::Natural, -1460),
    (Base::Natural, 0x4000_0000),
    (Base::Natural, 0x8000_0000),
    (Base::First, 0),
    (Base::First, 1),
    (Base::First, -1),
    (Base::First, 300),
    (Base::First, 65_536),
    (Base::Other, 0),
    (Base::Other, 1),
    (Base::Zero, 0),
];

/// Bit of a step's kind: it happens at the same moment as the one after it.
const AT_ONCE: u8 = 0x80;

/// Returns the settings and steps of an input.
pub fn input(bytes: &[u8]) -> (Setting, Vec<Step>) {
    let mut reader = Reader(bytes);
    let setting = setting(reader.byte().unwrap_or(0), reader.byte().unwrap_or(0));
    let mut steps = Vec::new();
    while steps.len() < STEPS_MAX {
        let at_once = reader.0.first().is_some_and(|kind| kind & AT_ONCE != 0);
        let Some(first) = step(&mut reader) else { break };
        if !at_once {
            steps.push(first);
            continue;
        }
        let later = reader.byte().unwrap_or(0) as i8;
        let Some(second) = step(&mut reader) else { break };
        steps.push(Step::AtOnce(Box::new([first, second]), later));
    }
    (setting, steps)
}

fn setting(first: u8, second: u8) -> Setting {
    Setting {
        buffers: 6 - u32::from(first % 6),
        closed_timeout_secs: if second & 1 == 0 { 5 } else { 0 },
        source_hellos_max: [64, 1, 2, 3][usize::from(second >> 1 & 3)],
        own: second & 8 != 0,
        impatient: second & 16 != 0,
        few_ports: second & 32 != 0,
    }
}

fn step(reader: &mut Reader<'_>) -> Option<Step> {
    let kind = reader.byte()?;
    let who = usize::from(reader.byte()?);
    let connection = who % CONNECTIONS;
    Some(match kind & 7 {
        0 | 1 => Step::Client(connection, shape(reader)?),
        2 | 3 => Step::Backend(connection, usize::from(kind >> 3 & 3), shape(reader)?),
        4 => {
            let patches = (0..1 + who % 4).map_while(|_| Some((usize::from(reader.byte()?), reader.byte()?)));
            Step::Mangle(patches.collect(), kind & 8 != 0)
        }
        5 => Step::Raw(kind & 8 != 0, reader.bytes(who).to_vec()),
        6 => Step::Expire(connection, order(kind >> 3 & 7, reader)?),
        _ => Step::Flag(who % BACKENDS, kind >> 3 & 3),
    })
}

/// Of the eight kinds, the last one has a byte that says more.
fn order(kind: u8, reader: &mut Reader<'_>) -> Option<Order> {
    if kind < 7 {
        // An order about a flow always says which one.
        let seen = if kind < 3 { Seen::Now } else { Seen::Nothing };
        return Some(Order { kind: kind.into(), seen });
    }
    let more = reader.byte()?;
    let seen = [Seen::Now, Seen::Another, Seen::Before, Seen::Nothing][usize::from(more >> 4 & 3)];
    Some(Order { kind: usize::from(more & 15), seen })
}

fn shape(reader: &mut Reader<'_>) -> Option<Shape> {
    let flags = reader.byte()?;
    let numbers = reader.byte()?;
    let options = reader.byte()?;
    let kind = reader.byte()?;
    let payload = match kind & 7 {
        2 | 3 => Payload::Pending(usize::from(kind >> 3 & 7), Some(reader.word()?), reader.length()?),
        4 => Payload::Data(reader.length()?),
        5 => {
            let length = usize::from(reader.byte()?);
            Payload::Raw(reader.bytes(length).to_vec())
        }
        6 => Payload::Pending(usize::from(kind >> 3 & 7), None, reader.length()?),
        7 => Payload::Pending(usize::from(kind >> 3 & 7), Some(0), PAYLOAD_MAX),
        _ => Payload::None,
    };
    Some(Shape {
        flags,
        seq: number(numbers & 15),
        ack: number(numbers >> 4),
        options: (options & 15, options >> 4),
        payload,
        gso: kind & 0x40 != 0,
        bad_checksum: kind & 0x80 != 0,
    })
}

fn number(code: u8) -> Number {
    let (base, offset) = NUMBERS[usize::from(code & 15)];
    Number { base, offset: offset as u32 }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (byte, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*byte)
    }

    fn word(&mut self) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte()?, self.byte()?]))
    }

    /// A payload length.
    fn length(&mut self) -> Option<u16> {
        Some(self.word()? % (PAYLOAD_MAX + 1))
    }

    /// The next bytes, or those that are left.
    fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(count.min(self.0.len()));
        self.0 = rest;
        bytes
    }
}
