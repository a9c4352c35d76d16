//! A stranger: floods, garbage, and packets forged in the names of clients and backends whose addresses and ports it
//! knows, but not their numbers.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::Ordering;
use std::thread::sleep;
use std::time::Duration;

use tests::addresses::{FAMILIES, Family, TLS_PORT, vip};
use tests::dice::Dice;
use tests::packet::{Segment, flag, segment};
use tests::tap::Tap;

use crate::book::Book;
use crate::network::Ethernet;
use crate::tenants::{CLOSED_PORT, TENANTS};

/// Time between two volleys.
const TICK: Duration = Duration::from_millis(25);
/// Hop limit of forged packets: unlike any other's, so that a report shows who sent a RST.
pub(crate) const HOPS: u8 = 77;
/// Ended connections that it knows, beside all that are open.
const ENDED: usize = 8;
/// Offset of TCP in a frame of IPv6, and of the IPv4 header. The IPv6 header has no checksum: with other addresses the
/// packet would be another client's.
const V6_FROM: usize = 54;
const V4_FROM: usize = 14;

/// Sends until the soak is over.
pub(crate) fn run(book: &Book, tap: &Tap, ethernet: Ethernet, seed: u64) {
    let mut dice = Dice::new(seed, u64::MAX);
    while !book.is_over() {
        sleep(TICK);
        if book.paused.load(Ordering::Relaxed) {
            continue;
        }
        for packet in volley(book, &mut dice) {
            let mut frame = packet.ethernet(ethernet.0, ethernet.1).bytes();
            if dice.chance(3) {
                distort(&mut dice, &mut frame);
            }
            // A packet that the queue does not take is not sent: nobody waits for it.
            let _ = tap.send(&frame);
        }
    }
}

fn volley(book: &Book, dice: &mut Dice) -> Vec<Segment> {
    let mut packets = Vec::new();
    let burst = if dice.chance(1) { 400 } else { dice.below(6) };
    // At times a burst is enough for a TCP listener to answer by cookie, too.
    let tcp = dice.chance(30).then(|| TENANTS[6 + dice.below(2) as usize]);
    for _ in 0..burst {
        let family = FAMILIES[dice.below(2) as usize];
        let to = tcp.map_or(SocketAddr::new(vip(family), TLS_PORT), |tenant| tenant.address(family));
        packets.push(segment(anyone(dice, family), to).syn(dice.number() as u32).mss(1400));
    }
    if dice.chance(25) {
        // A TCP listener passes SYNs on to its backends.
        let family = FAMILIES[dice.below(2) as usize];
        let tenant = TENANTS[6 + dice.below(2) as usize];
        packets
            .push(segment(anyone(dice, family), tenant.address(family)).syn(dice.number() as u32).mss(1400));
    }
    for _ in 0..dice.below(4) {
        packets.push(garbage(dice));
    }
    let known = book.four_tuples(ENDED);
    for _ in 0..dice.below(4).min(known.len() as u64) {
        let (from, to) = known[dice.below(known.len() as u64) as usize];
        packets.push(forged(dice, from, to));
    }
    packets.into_iter().map(|packet| packet.hop_limit(HOPS)).collect()
}

/// An address beyond the node's default route.
fn anyone(dice: &mut Dice, family: Family) -> SocketAddr {
    let ip: IpAddr = match family {
        Family::V4 => {
            Ipv4Addr::from(u32::from(Ipv4Addr::new(198, 18, 0, 0)) + dice.below(1 << 17) as u32).into()
        }
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, dice.below(1 << 16) as u16, 0, 0, 0, 0, 1).into(),
    };
    SocketAddr::new(ip, dice.between(1024, 65_535) as u16)
}

/// Any flags, numbers and bytes, to any port.
fn garbage(dice: &mut Dice) -> Segment {
    let family = FAMILIES[dice.below(2) as usize];
    let tcp = TENANTS[6].address(family).port();
    let port = dice.weighted(&[(6, TLS_PORT), (3, tcp), (1, CLOSED_PORT)]);
    let flags = dice.weighted(&[
        (4, flag::ACK),
        (3, flag::ACK | flag::PSH),
        (2, flag::ACK | flag::FIN),
        (2, flag::RST),
        (1, flag::RST | flag::ACK),
        (1, dice.clone().number() as u8),
    ]);
    let bytes = vec![dice.number() as u8; dice.size(1200) as usize];
    let from = anyone(dice, family);
    numbered(dice, segment(from, SocketAddr::new(vip(family), port)).flags(flags)).payload(bytes)
}

/// A packet in the name of a client or a backend. Data is rare: Linux takes one in some millions of such segments, from anybody.
fn forged(dice: &mut Dice, from: SocketAddr, to: SocketAddr) -> Segment {
    let flags = dice.weighted(&[
        (4, flag::RST),
        (2, flag::RST | flag::ACK),
        (3, flag::SYN),
        (3, flag::ACK),
        (2, flag::ACK | flag::FIN),
    ]);
    let bytes = if dice.chance(3) { vec![b'x'; 40] } else { Vec::new() };
    numbered(dice, segment(from, to).flags(flags)).payload(bytes)
}

fn numbered(dice: &mut Dice, mut packet: Segment) -> Segment {
    packet.seq = dice.number() as u32;
    packet.ack = dice.number() as u32;
    packet
}

/// Changes some bytes of a packet: checksums, lengths and headers are then wrong.
fn distort(dice: &mut Dice, frame: &mut [u8]) {
    let from = if frame[12] == 0x08 { V4_FROM } else { V6_FROM };
    for _ in 0..dice.between(1, 3) {
        let at = dice.between(from as u64, frame.len() as u64 - 1) as usize;
        frame[at] ^= dice.between(1, 255) as u8;
    }
}
