//! Source ranges: whose connections a route admits.

use ipnet::IpNet;
use std::net::IpAddr;
use std::sync::Arc;

/// Ranges of client addresses. A client in none of them is not admitted; without any, nobody is. Equal if they hold the same
/// addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRanges(Arc<[IpNet]>);

/// The most ranges of one route or Service. They are in one Claim for each port, and each is an element of a map.
pub const RANGES_OF_ONE_MAX: usize = 1_024;

impl SourceRanges {
    /// Merges ranges to as few as possible, in order, none of which holds another.
    pub fn new(ranges: &[IpNet]) -> Self {
        let mut merged = IpNet::aggregate(&ranges.to_vec());
        merged.sort_unstable();
        Self(merged.into())
    }

    /// The ranges: networks, in order.
    pub fn ranges(&self) -> &[IpNet] {
        &self.0
    }

    /// Whether it admits nobody.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether a client of this address is admitted.
    pub fn holds(&self, client: IpAddr) -> bool {
        // They are in order and apart, so only the last one that begins before the client may hold it.
        let behind = self.0.partition_point(|range| range.network() <= client);
        behind.checked_sub(1).and_then(|place| self.0.get(place)).is_some_and(|range| range.contains(&client))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn ranges(texts: &[&str]) -> SourceRanges {
        SourceRanges::new(&texts.iter().map(|text| text.parse().unwrap()).collect::<Vec<_>>())
    }

    #[test]
    fn ranges_of_the_same_addresses_are_equal() {
        let merged =
            ranges(&["10.1.2.3/8", "10.0.0.0/9", "192.0.2.0/25", "192.0.2.128/25", "2001:db8::7/32"]);
        assert_eq!(merged, ranges(&["2001:db8::/32", "192.0.2.0/24", "10.0.0.0/8", "10.9.9.9/32"]));
        let text: Vec<String> = merged.ranges().iter().map(ToString::to_string).collect();
        assert_eq!(text, ["10.0.0.0/8", "192.0.2.0/24", "2001:db8::/32"]);
    }

    #[test]
    fn a_family_without_a_range_is_not_admitted() {
        let holds = |texts: &[&str], client: &str| ranges(texts).holds(client.parse().unwrap());
        assert!(holds(&["0.0.0.0/0"], "203.0.113.1") && !holds(&["0.0.0.0/0"], "2001:db8::1"));
        assert!(holds(&["::/0"], "2001:db8::1") && !holds(&["::/0"], "203.0.113.1"));
        assert!(!holds(&[], "203.0.113.1") && ranges(&[]).is_empty());
    }

    proptest! {
        /// Against each range by itself.
        #[test]
        fn who_is_in_one_of_the_ranges_is_admitted(
            v4 in prop::collection::vec((any::<u32>(), 0u8..=32), 0..12),
            v6 in prop::collection::vec((any::<u128>(), 0u8..=128), 0..12),
            clients in prop::collection::vec((0usize..24, any::<u8>()), 1..24),
        ) {
            let v4 = v4.into_iter().map(|(address, bits)| {
                IpNet::new(IpAddr::from((address & 0x0f0f_000f).to_be_bytes()), bits).unwrap()
            });
            let v6 = v6.into_iter().map(|(address, bits)| IpNet::new(IpAddr::from(address.to_be_bytes()), bits).unwrap());
            let written: Vec<IpNet> = v4.chain(v6).collect();
            let merged = SourceRanges::new(&written);
            for (place, change) in clients {
                let Some(near) = written.get(place) else { continue };
                let client = match near.addr() {
                    IpAddr::V4(address) => IpAddr::from((u32::from(address) ^ u32::from(change)).to_be_bytes()),
                    IpAddr::V6(address) => IpAddr::from((u128::from(address) ^ u128::from(change)).to_be_bytes()),
                };
                prop_assert_eq!(merged.holds(client), written.iter().any(|range| range.contains(&client)));
            }
        }
    }
}
