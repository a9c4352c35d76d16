//! Chooses our port towards a backend (RFC 6056 section 3.3.4, double-hash port selection).
//!
//! Each connection tries the ports of the range from a start of its own. The start moves on by one port with
//! each connection to the same destination. So a port comes again after all others, when the backend most likely
//! has forgotten its last connection (TIME_WAIT). One step to the next try is about 0.6 or 0.4 of the range, so that
//! a run of busy ports, as a burst leaves it, is left at the first or second step.

use super::maglev::mix;
use crate::maps::flow::BackendTuple;
use crate::maps::settings::Settings;

/// Elements of `PORT_CURSORS`.
pub const CURSORS: usize = 1024;

/// The most ports tried for one connection. With 9 of 10 ports in use at random, all tries fail for one
/// connection in 700,000.
pub const TRIES_MAX: u32 = 128;

/// Where a destination's sequence of ports is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Position {
    /// Element of `PORT_CURSORS` that counts the connections. Destinations may share it.
    pub cursor: u32,
    /// The destination's own distance from that count.
    pub offset: u32,
}

/// Returns the position for a destination: the backend's address and port, and our address. Backends of two
/// routes with the same address have the same ports to choose from, and so the same position.
#[inline(always)]
pub fn position(nat: &BackendTuple) -> Position {
    let (backend, source) = (nat.backend.halves(), nat.source.halves());
    let hash =
        mix(mix(mix(0x9e37_79b9_7f4a_7c15 ^ backend.0) ^ backend.1) ^ u64::from(nat.backend_port.number()));
    let hash = mix(mix(hash ^ source.0) ^ source.1);
    Position { cursor: hash as u32 % CURSORS as u32, offset: (hash >> 32) as u32 }
}

/// The ports that one connection tries, each port of the range once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sequence {
    first: u32,
    count: u32,
    start: u32,
    stride: u32,
}

impl Sequence {
    /// Returns the sequence of the connection before which the position's cursor was `moves`. `None`: the range
    /// is empty.
    #[inline(always)]
    pub fn new(settings: &Settings, offset: u32, moves: u64) -> Option<Self> {
        let first = u32::from(settings.source_port_first);
        let count = (u32::from(settings.source_port_last) + 1).saturating_sub(first);
        if count == 0 {
            return None;
        }
        let start = (moves.wrapping_add(u64::from(offset)) % u64::from(count)) as u32;
        // By turns, so that ports which one stride leaves busy are scattered for the other. With a single stride,
        // busy ports clump along it (the primary clustering of linear probing).
        let stride = u32::from(settings.source_port_strides[(moves & 1) as usize]);
        Some(Self { first, count, start, stride })
    }

    /// Returns the port to try when `tried` others are busy; `None` when that is the whole range.
    #[inline(always)]
    pub const fn port(&self, tried: u32) -> Option<u16> {
        if tried >= self.count {
            return None;
        }
        Some((self.first + (self.start + tried * self.stride) % self.count) as u16)
    }
}

/// Fractions of the range, in 65,536ths: the golden ratio minus 1, and the square root of 2 minus 1. Multiples of
/// either are spread over the range more evenly than those of most other numbers.
const FRACTIONS: [u32; 2] = [40_503, 27_146];

/// Returns the two strides for a range of ports: the numbers nearest to [`FRACTIONS`] that have no divisor in
/// common with the number of ports. Only such a stride visits every port. An odd one does not suffice: the usual
/// range of 28,976 ports is 16 x 1,811.
pub fn strides(first: u16, last: u16) -> [u16; 2] {
    let count = (u32::from(last) + 1).saturating_sub(u32::from(first));
    FRACTIONS.map(|fraction| coprime_near(count, count * fraction / 65_536))
}

/// Returns the number from 1 to `count` - 1 nearest to `near` that has no divisor in common with `count`; 1 if
/// there is none.
fn coprime_near(count: u32, near: u32) -> u16 {
    (0..count)
        .flat_map(|distance| [near.saturating_sub(distance), near + distance])
        .find(|stride| (1..count).contains(stride) && divisor(*stride, count) == 1)
        .map_or(1, |stride| stride as u16)
}

/// Returns the greatest common divisor.
const fn divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::address::{Address, Port};

    /// Sizes of ranges: small ones, primes, powers of two, the usual one, the largest.
    const COUNTS: [u32; 19] =
        [1, 2, 3, 4, 5, 6, 7, 8, 12, 30, 97, 100, 1_811, 2_048, 4_096, 28_976, 28_977, 32_749, 64_512];

    /// Returns settings with this many ports.
    fn settings(count: u32) -> Settings {
        let (first, last) = (1024, (1023 + count) as u16);
        let source_port_strides = strides(first, last);
        Settings {
            source_port_first: first,
            source_port_last: last,
            source_port_strides,
            ..Settings::zeroed()
        }
    }

    /// Returns the ports that one connection tries.
    fn ports(settings: &Settings, offset: u32, moves: u64) -> impl Iterator<Item = u16> {
        let sequence = Sequence::new(settings, offset, moves).unwrap();
        (0..).map_while(move |tried| sequence.port(tried))
    }

    #[test]
    fn a_connection_tries_every_port_once() {
        for count in COUNTS {
            for (offset, moves) in [(0, 0), (0, 1), (77_777, 12), (u32::MAX, 12_345), (5, u64::MAX)] {
                let mut tried: Vec<u16> = ports(&settings(count), offset, moves).collect();
                assert_eq!(tried.len(), count as usize);
                tried.sort_unstable();
                assert!(
                    tried.iter().copied().eq(1024..=(1023 + count) as u16),
                    "{count} ports, {moves} moves"
                );
            }
        }
    }

    #[test]
    fn every_range_has_strides_that_miss_no_port() {
        for count in 1..=65_536u32 {
            for stride in strides((65_536 - count) as u16, 65_535) {
                assert_eq!(divisor(u32::from(stride), count), 1, "stride {stride} of {count}");
            }
        }
        assert_eq!(strides(1024, 29_999), [17_907, 12_001]);
    }

    #[test]
    fn an_empty_range_has_no_port() {
        let empty = Settings { source_port_first: 2, source_port_last: 1, ..Settings::zeroed() };
        assert_eq!(Sequence::new(&empty, 0, 0), None);
        assert_eq!(strides(2, 1), [1, 1]);
    }

    #[test]
    fn the_port_used_last_comes_again_last() {
        for count in COUNTS {
            let settings = settings(count);
            let first = |moves| ports(&settings, 4_321, moves).next().unwrap();
            for moves in [0, 1, 99] {
                let used = first(moves);
                let after: Vec<u16> = (1..=u64::from(count)).map(|more| first(moves + more)).collect();
                assert_eq!(after.iter().position(|port| *port == used), Some(count as usize - 1));
            }
        }
    }

    #[test]
    fn a_run_of_busy_ports_is_left_within_a_few_tries() {
        for count in COUNTS.into_iter().filter(|count| *count > 1_000) {
            let settings = settings(count);
            // 17 % of the ports from the start on, then half of them.
            for (busy, tries) in [(count * 17 / 100, 3), (count / 2, 4)] {
                for moves in [0, 1] {
                    let begin = ports(&settings, 0, moves).next().unwrap();
                    let is_busy = |port: &u16| u32::from(port.wrapping_sub(begin)) < busy;
                    let tried = ports(&settings, 0, moves).take_while(is_busy).count() + 1;
                    assert!(tried <= tries, "{tried} tries with {busy} of {count} ports busy");
                }
            }
        }
    }

    /// Ports towards one backend, and its cursor.
    struct Node {
        settings: Settings,
        moves: u64,
        busy: Vec<bool>,
    }

    impl Node {
        fn new(count: u32) -> Self {
            Self { settings: settings(count), moves: 0, busy: vec![false; count as usize] }
        }

        fn open(&mut self) -> Option<usize> {
            let tried = ports(&self.settings, 0, self.moves).take(TRIES_MAX as usize);
            self.moves += 1;
            let port = tried.map(|port| usize::from(port) - 1024).find(|port| !self.busy[*port])?;
            self.busy[port] = true;
            Some(port)
        }
    }

    #[test]
    fn with_nine_of_ten_ports_held_at_random_nobody_is_refused() {
        for count in [28_976, 28_977, 64_512, 4_096] {
            let mut node = Node::new(count);
            let mut shuffled: Vec<usize> = (0..count as usize).collect();
            shuffled.sort_by_key(|port| mix(*port as u64));
            shuffled[..count as usize * 9 / 10].iter().for_each(|port| node.busy[*port] = true);
            for _ in 0..20_000 {
                let port = node.open().expect("a port");
                node.busy[port] = false;
            }
        }
    }

    #[test]
    fn with_nine_of_ten_ports_in_use_for_long_fewer_than_one_in_a_thousand_are_refused() {
        for count in [28_976, 28_977, 10_007] {
            let mut node = Node::new(count);
            let mut open: Vec<usize> = Vec::new();
            while open.len() < count as usize * 9 / 10 {
                open.extend(node.open());
            }
            // One connection ends, another begins.
            let mut refused = 0;
            for round in 0..100_000 {
                let ends = mix(round) as usize % open.len();
                node.busy[open[ends]] = false;
                match node.open() {
                    Some(port) => open[ends] = port,
                    None => {
                        refused += 1;
                        node.busy[open[ends]] = true;
                    }
                }
            }
            assert!(refused < 100, "{refused} of 100,000 refused");
        }
    }

    #[test]
    fn a_position_depends_on_all_of_the_destination() {
        let address = |last| Address::v4([192, 0, 2, last]);
        let tuple = |backend, source, port, source_port| {
            BackendTuple::tcp(address(backend), address(source), Port::new(port), Port::new(source_port))
        };
        let usual = position(&tuple(1, 2, 443, 0));
        for other in [tuple(3, 2, 443, 0), tuple(1, 3, 443, 0), tuple(2, 1, 443, 0), tuple(1, 2, 444, 0)] {
            assert_ne!(position(&other), usual);
        }
        assert_eq!(position(&tuple(1, 2, 443, 5_000)), usual);
    }
}
