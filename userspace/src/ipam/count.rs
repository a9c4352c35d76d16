//! Which addresses of a range go only to who asks for them by value, and how many are left.

use crate::model::cluster::AddressRange;
use ipnet::IpNet;
use std::net::IpAddr;

/// Whether an address is given only to who asks for it by value: IPv4 addresses that end in 0 or 255, which some take for those of a
/// network, and IPv6 addresses that end in 64 zero bits, the anycast address of a subnet's routers (RFC 4291 section 2.6.1). A range
/// of one address means that one.
pub(super) fn is_left_out(range: &AddressRange, address: IpAddr) -> bool {
    !range.is_single()
        && match address {
            IpAddr::V4(address) => matches!(address.octets()[3], 0 | 255),
            IpAddr::V6(address) => address.to_bits() << 64 == 0,
        }
}

/// Returns the number of addresses of a range that are given to who asks for none by value. `excluded`: networks of which none is
/// given, each address in one of them at most.
pub(super) fn count(range: &AddressRange, leaves_out_ends: bool, excluded: &[IpNet]) -> u128 {
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
    let leaves_out_ends = leaves_out_ends && !range.is_single();
    let ends = |first, last| if leaves_out_ends { ends(first, last, range.first.is_ipv4()) } else { 0 };
    left.into_iter().map(|(first, last)| last - first + 1 - ends(first, last)).sum()
}

/// The number of addresses from `first` to `last` for which [`is_left_out`] holds.
fn ends(first: u128, last: u128, is_v4: bool) -> u128 {
    // Of those from 0 to below `end`.
    let below = |end: u128| match is_v4 {
        true => end.div_ceil(256) + end / 256,
        false => (end >> 64) + u128::from(end << 64 != 0),
    };
    below(last + 1) - below(first)
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
        let of = |text: &str, leaves_out_ends, excluded: &[&str]| {
            let excluded: Vec<IpNet> = excluded.iter().map(|net| net.parse().unwrap()).collect();
            count(&range(text), leaves_out_ends, &excluded)
        };
        assert_eq!(of("192.0.2.0-192.0.2.255", false, &[]), 256);
        assert_eq!(of("192.0.2.0-192.0.2.255", true, &[]), 254);
        assert_eq!(of("192.0.2.255-192.0.3.0", true, &[]), 0);
        assert_eq!(of("192.0.2.255-192.0.2.255", true, &[]), 1);
        assert_eq!(
            of("192.0.2.0-192.0.3.255", false, &["192.0.2.128/25", "192.0.3.1/32", "2001:db8::/32"]),
            383
        );
        assert_eq!(of("192.0.2.0-192.0.3.255", true, &["192.0.2.128/25", "192.0.3.1/32"]), 380);
        assert_eq!(of("192.0.2.0-192.0.2.9", true, &["192.0.0.0/16"]), 0);
        assert_eq!(of("2001:db8::-2001:db8:0:1::", true, &[]), (1 << 64) - 1);
        assert_eq!(of("2001:db8::1-2001:db8::9", true, &["2001:db8::8/125"]), 7);
    }

    /// The same by looking at each address.
    #[test]
    fn ends_are_those_that_are_left_out() {
        let wide = range("192.0.0.0-192.0.9.255");
        for (first, last) in [(0_u32, 0), (0, 255), (255, 256), (1, 254), (5, 1500), (256, 511), (255, 1023)]
        {
            let base = 0xc000_0000;
            let addresses = (base + first..=base + last).map(|bits| IpAddr::V4(bits.into()));
            let expected = addresses.filter(|address| is_left_out(&wide, *address)).count() as u128;
            assert_eq!(ends((base + first).into(), (base + last).into(), true), expected, "{first} {last}");
        }
    }
}
