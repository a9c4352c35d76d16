//! Forged ICMP messages about a connection.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::dice::Dice;
use crate::icmp::{self, Icmp};
use crate::packet::{flag, segment};

use super::forged::{Number, Side};

/// MTUs below, at and around what IPv4 and IPv6 allow, and what Linux believes (552 and 1280).
const MTUS: [u32; 14] = [0, 1, 20, 67, 68, 551, 552, 576, 1279, 1280, 1281, 1500, 0xffff, u32::MAX];

/// An ICMP message that quotes a segment of its receiver.
#[derive(Debug)]
pub(super) struct Error {
    kind: icmp::Kind,
    /// Who claims to send it; `None`: the other end itself.
    router: Option<IpAddr>,
    /// MTU, or the pointer to a wrong byte.
    rest: u32,
    /// What it quotes: numbers, flags, and how many bytes behind the IP header.
    seq: Number,
    ack: Number,
    flags: u8,
    quoted: usize,
    /// A byte of the quotation that is another, and how.
    spoiled: Option<(usize, u8)>,
    wrong_sum: bool,
}

impl Error {
    pub(super) fn any(dice: &mut Dice, v4: bool) -> Self {
        let number = |dice: &mut Dice| match dice.below(4) {
            0 => Number::Any(dice.number() as u32),
            1 => Number::From(dice.distance(1..18)),
            // The only one that is in flight while both ends wait, and so the one that is believed.
            _ => Number::From(0),
        };
        let host = 1 + dice.below(250);
        let router: IpAddr = match v4 {
            true => Ipv4Addr::new(198, 51, 100, host as u8).into(),
            false => Ipv6Addr::from(0x2001_0db8_00ff << 80 | u128::from(host)).into(),
        };
        Self {
            kind: kind(dice, v4),
            router: (!dice.one_in(3)).then_some(router),
            rest: if dice.one_in(4) { dice.number() as u32 } else { dice.pick(&MTUS) },
            seq: number(dice),
            ack: number(dice),
            flags: if dice.one_in(4) { dice.number() as u8 } else { flag::ACK },
            quoted: dice.pick(&[0, 3, 4, 7, 8, 11, 12, 19, 20, 32, 60, 500]),
            spoiled: dice.one_in(8).then(|| (dice.index(60), 1 + dice.below(255) as u8)),
            wrong_sum: dice.one_in(10),
        }
    }

    /// Returns it as a frame.
    pub(super) fn bytes(&self, side: &Side) -> Vec<u8> {
        let mut about = segment(side.to, side.from);
        about.seq = self.seq.of(side.ack);
        about.ack = self.ack.of(side.seq);
        about.flags = self.flags;
        about.payload = vec![b'x'; 600];
        let mut quotation = icmp::quotation(&about, self.quoted);
        if let Some((at, how)) = self.spoiled
            && let Some(byte) = quotation.get_mut(at)
        {
            *byte ^= how;
        }
        let from = self.router.unwrap_or(side.from.ip());
        let mut frame = Icmp::new(self.kind, from, side.to.ip())
            .ethernet(side.ethernet.0, side.ethernet.1)
            .rest(self.rest)
            .body(quotation)
            .bytes();
        if self.wrong_sum {
            let at = if side.from.is_ipv4() { 34 } else { 54 } + 2;
            frame[at] ^= 0x5a;
        }
        frame
    }
}

/// Returns the type and code of an error, seldom those of any message.
fn kind(dice: &mut Dice, v4: bool) -> icmp::Kind {
    let code = |dice: &mut Dice, last| dice.between(0, last) as u8;
    match (v4, dice.below(10)) {
        // Unreachable: network, host, protocol, port and eleven more (RFC 792, RFC 1122, RFC 1812).
        (true, 0..4) => (3, code(dice, 15)),
        (true, 4 | 5) => (3, 4),
        (true, 6) => (11, code(dice, 1)),
        (true, 7) => (12, code(dice, 2)),
        // Source quench, and a redirect, which hosts take from their own router only.
        (true, 8) => dice.pick(&[(4, 0), (5, 0), (5, 1)]),
        (false, 0..4) => (1, code(dice, 7)),
        (false, 4 | 5) => (2, code(dice, 1)),
        (false, 6) => (3, code(dice, 1)),
        (false, 7) => (4, code(dice, 2)),
        (false, 8) => (137, 0),
        _ => (dice.number() as u8, dice.number() as u8),
    }
}
