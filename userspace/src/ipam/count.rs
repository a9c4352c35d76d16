//! Which addresses of a range go only to who asks for them by value, and how many are left.

use crate::model::cluster::AddressRange;
use ipnet::IpNet;
use std::net::IpAddr;

/// Which addresses of its ranges a pool gives only to who asks for them by value, or to nobody.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LeftOut {
    /// None.
    Nothing,
    /// Those that MetalLB's `avoidBuggyIPs` means: IPv4 addresses that end in 0 or 255, also of a range of one. Nobody gets them.
    Buggy,
    /// Those too which some take for the address of a network, of the chart's ranges: also IPv6 addresses that end in 64 zero bits, the
    /// anycast address of a subnet's routers (RFC 4291 section 2.6.1). A range of one address means that one.
    Ends,
}

impl LeftOut {
    /// Whether an address of a range is one of them.
    pub(super) fn has(self, range: &AddressRange, address: IpAddr) -> bool {
        match (self, address) {
            (Self::Nothing, _) | (Self::Buggy, IpAddr::V6(_)) => false,
            (Self::Ends, _) if range.is_single() => false,
            (_, IpAddr::V4(address)) => matches!(address.octets()[3], 0 | 255),
            (Self::Ends, IpAddr::V6(address)) => address.to_bits() << 64 == 0,
        }
    }

    /// The number of those from `first` to `last`, of a range.
    fn count(self, range: &AddressRange, first: u128, last: u128) -> u128 {
        // Of those from 0 to below `end`.
        let below = |end: u128| match (self, range.first.is_ipv4()) {
            (Self::Nothing, _) | (Self::Buggy, false) => 0,
            (Self::Ends, _) if range.is_single() => 0,
            (_, true) => end.div_ceil(256) + end / 256,
            (Self::Ends, false) => (end >> 64) + u128::from(end << 64 != 0),
        };
        below(last + 1) - below(first)
    }
}

/// Returns the number of addresses of a range that are given to who asks for none by value. `excluded`: networks of which none is
/// given, each address in one of them at most.
pub(super) fn count(range: &AddressRange, left_out: LeftOut, excluded: &[IpNet]) -> u128 {
    let (first, last) = (bits(range.first), bits(range.last));
    let mut left = vec![(first, last)];
    for net in excluded.iter().filter(|net| net.network().is_ipv4() == range.first.is_ipv4()) {
        let (from, to) = (bits(net.network()), bits(net.broadcast()));
        let cut = |(first, last): (u128, u128)| {
            let before = (first < from).then(|| (first, last.min(from - 1)));
            let after = (last > to).then(|| (first.max(to + 1), last));
            before.into_iter().chain(after)
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left.into_iter().map(|(first, last)| last - first + 1 - left_out.count(range, first, last)).sum()
}

fn bits(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::range;
    use super::*;

    #[test]
    fn each_address_is_counted_unless_it_is_left_out_or_excluded() {
        let of = |text: &str, left_out, excluded: &[&str]| {
            let excluded: Vec<IpNet> = excluded.iter().map(|net| net.parse().unwrap()).collect();
            count(&range(text), left_out, &excluded)
        };
        use LeftOut::{Buggy, Ends, Nothing};
        assert_eq!(of("192.0.2.0-192.0.2.255", Nothing, &[]), 256);
        assert_eq!(of("192.0.2.0-192.0.2.255", Ends, &[]), 254);
        assert_eq!(of("192.0.2.255-192.0.3.0", Ends, &[]), 0);
        assert_eq!(of("192.0.2.255-192.0.2.255", Ends, &[]), 1);
        assert_eq!(
            of("192.0.2.0-192.0.3.255", Nothing, &["192.0.2.128/25", "192.0.3.1/32", "2001:db8::/32"]),
            383
        );
        assert_eq!(of("192.0.2.0-192.0.3.255", Ends, &["192.0.2.128/25", "192.0.3.1/32"]), 380);
        assert_eq!(of("192.0.2.0-192.0.2.9", Ends, &["192.0.0.0/16"]), 0);
        assert_eq!(of("2001:db8::-2001:db8:0:1::", Ends, &[]), (1 << 64) - 1);
        // What MetalLB leaves out is IPv4 only, and also the one of a range.
        assert_eq!(of("192.0.2.0-192.0.2.255", Buggy, &[]), 254);
        assert_eq!(of("192.0.2.255-192.0.2.255", Buggy, &[]), 0);
        assert_eq!(of("2001:db8::-2001:db8:0:1::", Buggy, &[]), (1 << 64) + 1);
        assert_eq!(of("2001:db8::1-2001:db8::9", Ends, &["2001:db8::8/125"]), 7);
    }

    /// The same by looking at each address.
    #[test]
    fn ends_are_those_that_are_left_out() {
        let wide = range("192.0.0.0-192.0.9.255");
        for (first, last) in [(0_u32, 0), (0, 255), (255, 256), (1, 254), (5, 1500), (256, 511), (255, 1023)]
        {
            let base = 0xc000_0000;
            let addresses = (base + first..=base + last).map(|bits| IpAddr::V4(bits.into()));
            let expected = addresses.filter(|address| LeftOut::Ends.has(&wide, *address)).count() as u128;
            assert_eq!(
                LeftOut::Ends.count(&wide, (base + first).into(), (base + last).into()),
                expected,
                "{first} {last}"
            );
        }
    }
}
