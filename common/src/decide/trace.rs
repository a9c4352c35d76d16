//! Which packets `vestibule trace` prints.

use crate::maps::address::{Address, Port};
use crate::maps::trace::{
    KNOWN_NOTHING, KNOWN_SEGMENT, LINES_PER_SECOND, REASON_ANY, TraceCount, TraceFilter, TraceRecord,
};

const SECOND_NS: u64 = 1_000_000_000;

/// Whether the filter chooses the packet. It compares the client and the VIP of the connection, for packets
/// of both directions.
#[inline(always)]
pub fn chooses(filter: &TraceFilter, packet: &TraceRecord) -> bool {
    let ends = &packet.client;
    packet.known != KNOWN_NOTHING
        && (filter.reason == REASON_ANY || filter.reason == u32::from(packet.reason))
        && (filter.vip_port == Port::default()
            || (packet.known >= KNOWN_SEGMENT && filter.vip_port == ends.vip_port))
        && is_within(&ends.client, &filter.clients, &filter.clients_mask)
        && is_within(&ends.vip, &filter.vip, &filter.vip_mask)
}

/// Whether this packet may still be logged in the current second. `number` is the count of packets chosen
/// before it.
///
/// If two CPUs start a second at the same moment, the `second_first` of either may remain; both are nearly
/// equal.
#[inline(always)]
pub fn is_within_limit(count: &mut TraceCount, number: u64, now_ns: u64) -> bool {
    if now_ns.wrapping_sub(count.second_ns) >= SECOND_NS {
        count.second_ns = now_ns;
        count.second_first = number;
    }
    number.wrapping_sub(count.second_first) < LINES_PER_SECOND
}

#[inline(always)]
fn is_within(address: &Address, network: &Address, mask: &Address) -> bool {
    let (address, network, mask) = (words(address), words(network), words(mask));
    (address[0] ^ network[0]) & mask[0]
        | (address[1] ^ network[1]) & mask[1]
        | (address[2] ^ network[2]) & mask[2]
        | (address[3] ^ network[3]) & mask[3]
        == 0
}

#[inline(always)]
fn words(address: &Address) -> [u32; 4] {
    let b = &address.bytes;
    let word = |at: usize| u32::from_ne_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]]);
    [word(0), word(4), word(8), word(12)]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maps::flow::ClientTuple;
    use crate::maps::trace::{KNOWN_ADDRESSES, KNOWN_CLIENT};

    const ALL: Address = Address { bytes: [0xff; 16] };

    fn packet() -> TraceRecord {
        let client = ClientTuple::tcp(
            Address::v4([192, 0, 2, 77]),
            Address::v4([10, 97, 0, 10]),
            Port::new(40_000),
            Port::new(443),
        );
        TraceRecord { client, known: KNOWN_CLIENT, reason: 20, ..TraceRecord::zeroed() }
    }

    /// Chooses clients in 192.0.2.64/26, and anything in all other fields.
    fn filter() -> TraceFilter {
        let mut mask = ALL;
        mask.bytes[15] = 0b1100_0000;
        TraceFilter {
            clients: Address::v4([192, 0, 2, 64]),
            clients_mask: mask,
            reason: REASON_ANY,
            ..TraceFilter::zeroed()
        }
    }

    #[test]
    fn clients_are_chosen_by_network() {
        let with = |last: u8| {
            let mut packet = packet();
            packet.client.client = Address::v4([192, 0, 2, last]);
            chooses(&filter(), &packet)
        };
        assert_eq!([63, 64, 127, 128].map(with), [false, true, true, false]);
        let mut v6 = packet();
        v6.client.client.bytes[10] = 0;
        assert!(!chooses(&filter(), &v6));
    }

    #[test]
    fn vip_port_and_reason_narrow_the_choice() {
        let chosen = |change: fn(&mut TraceFilter)| {
            let mut filter = filter();
            change(&mut filter);
            chooses(&filter, &packet())
        };
        assert!(chosen(|f| f.vip_port = Port::new(443)));
        assert!(!chosen(|f| f.vip_port = Port::new(444)));
        assert!(chosen(|f| f.reason = 20));
        assert!(!chosen(|f| f.reason = 21));
        assert!(chosen(|f| (f.vip, f.vip_mask) = (Address::v4([10, 97, 0, 10]), ALL)));
        assert!(!chosen(|f| (f.vip, f.vip_mask) = (Address::v4([10, 97, 0, 11]), ALL)));
    }

    #[test]
    fn what_was_not_read_is_not_compared() {
        let known = |known: u8, port: u16| {
            let filter = TraceFilter { vip_port: Port::new(port), ..filter() };
            chooses(&filter, &TraceRecord { known, ..packet() })
        };
        // The fields are left over from an earlier packet.
        assert!(!known(KNOWN_NOTHING, 0));
        assert!(known(KNOWN_ADDRESSES, 0));
        assert!(!known(KNOWN_ADDRESSES, 443));
        assert!(known(KNOWN_SEGMENT, 443));
    }

    #[test]
    fn each_second_has_its_limit() {
        let mut count = TraceCount::zeroed();
        let start = 5 * SECOND_NS;
        let logged = |count: &mut TraceCount, from: u64, now: u64| {
            (from..from + 25_000).filter(|number| is_within_limit(count, *number, now)).count() as u64
        };
        assert_eq!(logged(&mut count, 0, start), LINES_PER_SECOND);
        assert_eq!(logged(&mut count, 25_000, start + SECOND_NS - 1), 0);
        assert_eq!(logged(&mut count, 50_000, start + SECOND_NS), LINES_PER_SECOND);
    }
}
