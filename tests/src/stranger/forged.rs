//! Forged packets of any kind, whose addresses and numbers are those of whichever connection gets them.

use std::net::SocketAddr;

use crate::dice::Dice;
use crate::packet::{Segment, flag, segment};
use crate::tcp_option::TcpOption;

use super::error::Error;
use super::unusual::{Cut, Options, Other, Spoiled};

/// Flags of segments that ends send. Most random ones are impossible, and dropped at once.
const FLAGS: [u8; 7] = [
    flag::ACK,
    flag::ACK | flag::PSH,
    flag::ACK | flag::FIN,
    flag::ACK | flag::RST,
    flag::RST,
    flag::SYN,
    flag::ACK | flag::SYN,
];

/// A number of a forged packet.
#[derive(Clone, Copy, Debug)]
pub(super) enum Number {
    Any(u32),
    /// This far from what the receiver expects.
    From(u32),
}

impl Number {
    pub(super) fn of(self, expected: u32) -> u32 {
        match self {
            Self::Any(number) => number,
            Self::From(distance) => expected.wrapping_add(distance),
        }
    }
}

/// A forged packet.
#[derive(Debug)]
pub(super) struct Forged {
    /// Whether it claims to come from the client.
    pub(super) from_client: bool,
    kind: Kind,
}

#[derive(Debug)]
enum Kind {
    Segment(Tcp),
    /// One or two fragments of a segment.
    Fragments(Tcp, Cut),
    /// A segment with IP options or extension headers.
    Optioned(Tcp, Options),
    /// A segment of which some bytes are wrong, or missing.
    Spoiled(Tcp, Spoiled),
    /// An ICMP message, nearly always an error.
    Error(Error),
    /// A packet of another protocol.
    Other(Other),
}

impl Forged {
    /// Makes any packet. With `hit`, both numbers of a segment are near what the receiver expects, or exactly that; otherwise
    /// at least one of them is wrong, or both are far behind. ICMP may quote the right number in any case, for it ends no
    /// connection (RFC 5927 section 5.2).
    pub(super) fn any(dice: &mut Dice, hit: bool, v4: bool) -> Self {
        let from_client = dice.one_in(2);
        let kind = match dice.below(16) {
            0..6 => Kind::Segment(Tcp::any(dice, hit)),
            6 | 7 => Kind::Fragments(Tcp::any(dice, hit), Cut::any(dice)),
            8 | 9 => Kind::Optioned(Tcp::any(dice, hit), Options::any(dice, v4)),
            10 | 11 => Kind::Spoiled(Tcp::any(dice, hit), Spoiled::any(dice)),
            12 => Kind::Other(Other::any(dice)),
            _ => Kind::Error(Error::any(dice, v4)),
        };
        Self { from_client, kind }
    }

    /// Returns it in frames, for the receiver on one side of a connection.
    pub(super) fn frames(&self, side: &Side) -> Vec<Vec<u8>> {
        match &self.kind {
            Kind::Segment(tcp) => vec![tcp.bytes(side)],
            Kind::Fragments(tcp, cut) => cut.fragments(&tcp.bytes(side)),
            Kind::Optioned(tcp, options) => vec![options.added_to(&tcp.bytes(side))],
            Kind::Spoiled(tcp, spoiled) => vec![spoiled.applied_to(tcp.bytes(side))],
            Kind::Error(error) => vec![error.bytes(side)],
            Kind::Other(other) => vec![other.bytes(side)],
        }
    }
}

/// A forged segment.
#[derive(Debug)]
struct Tcp {
    seq: Number,
    ack: Number,
    flags: u8,
    window: u16,
    /// TSval and TSecr.
    timestamps: Option<(Number, Number)>,
    options: Vec<TcpOption>,
    payload: Vec<u8>,
    wrong_sum: bool,
}

impl Tcp {
    fn any(dice: &mut Dice, hit: bool) -> Self {
        let any = |dice: &mut Dice| Number::Any(dice.number() as u32);
        let near = |dice: &mut Dice| Number::From(dice.distance(1..32));
        let (seq, ack) = match (hit, dice.below(4)) {
            (true, 0) => (Number::From(0), Number::From(0)),
            (true, 1) => (Number::From(0), near(dice)),
            (true, _) => {
                (Number::From(dice.distance(1..18)), Number::From(dice.distance(1..18).wrapping_neg()))
            }
            (false, 0) => (any(dice), any(dice)),
            (false, 1) => (near(dice), any(dice)),
            (false, 2) => (any(dice), near(dice)),
            // Beyond the largest window that either end announces, on either side.
            (false, _) => (Number::From(dice.distance(24..32)), Number::From(dice.distance(1..25))),
        };
        let flags = if dice.one_in(2) { dice.pick(&FLAGS) } else { dice.number() as u8 };
        let payload = if dice.one_in(3) { vec![b'x'; 1 + dice.below(32) as usize] } else { Vec::new() };
        Self {
            seq,
            ack,
            // Few connections survive a RST at the right number, so a hit has none.
            flags: if hit { flags & !flag::RST } else { flags },
            window: dice.number() as u16,
            // Half of all random ones are newer than the receiver's last one, so these have to be relative, too.
            timestamps: dice
                .one_in(4)
                .then(|| (Number::From(dice.number() as u32), Number::From(dice.number() as u32))),
            options: Self::options(dice),
            payload,
            wrong_sum: dice.one_in(10),
        }
    }

    fn options(dice: &mut Dice) -> Vec<TcpOption> {
        let number = |dice: &mut Dice| dice.number() as u32;
        match dice.below(6) {
            1 => vec![TcpOption::Nop, TcpOption::Nop, TcpOption::Sack(vec![(number(dice), number(dice))])],
            2 => vec![TcpOption::Mss(number(dice) as u16), TcpOption::WindowScale(number(dice) as u8)],
            3 => {
                let mut bytes = vec![0; 4 + 4 * dice.below(6) as usize];
                bytes.iter_mut().for_each(|byte| *byte = dice.number() as u8);
                // Kind 8 would be timestamps, from no connection's clock.
                bytes.iter_mut().filter(|byte| **byte == 8).for_each(|byte| *byte = 9);
                vec![TcpOption::Raw(bytes)]
            }
            _ => Vec::new(),
        }
    }

    /// Returns it as a frame.
    fn bytes(&self, side: &Side) -> Vec<u8> {
        let mut segment = side.segment();
        segment.seq = self.seq.of(side.seq);
        segment.ack = self.ack.of(side.ack);
        segment.flags = self.flags;
        segment.window = self.window;
        segment.options.clone_from(&self.options);
        if let Some((value, echo)) = self.timestamps {
            let (value, echo) = (value.of(side.timestamps.0), echo.of(side.timestamps.1));
            segment
                .options
                .splice(0..0, [TcpOption::Nop, TcpOption::Nop, TcpOption::Timestamps(value, echo)]);
        }
        segment.payload.clone_from(&self.payload);
        let mut frame = segment.bytes();
        if self.wrong_sum {
            let at = if side.from.is_ipv4() { 34 } else { 54 } + 16;
            frame[at] ^= 0x5a;
        }
        frame
    }
}

/// One side of a connection, as forged packets reach it.
#[derive(Debug)]
pub(super) struct Side {
    /// Sender and receiver of packets that reach the node on this side.
    pub(super) from: SocketAddr,
    pub(super) to: SocketAddr,
    pub(super) ethernet: ([u8; 6], [u8; 6]),
    /// The numbers of the next genuine segment.
    pub(super) seq: u32,
    pub(super) ack: u32,
    /// Its timestamps: TSval and TSecr.
    pub(super) timestamps: (u32, u32),
}

impl Side {
    /// A segment with the connection's addresses and nothing else.
    pub(super) fn segment(&self) -> Segment {
        segment(self.from, self.to).ethernet(self.ethernet.0, self.ethernet.1)
    }
}
