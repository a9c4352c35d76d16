//! Which addresses may be assigned at all, and the next free one.

use crate::model::cluster::{AddressRange, Policy};
use ipnet::IpNet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The chart's ranges, read from first to last.
pub(super) struct Pool<'a> {
    policy: &'a Policy,
    v4: Cursor,
    v6: Cursor,
}

/// The position of the search for a free address of a family. Everything before it is taken or may not be
/// assigned.
#[derive(Default)]
struct Cursor {
    range: usize,
    /// `None`: the range's first address.
    next: Option<IpAddr>,
}

impl<'a> Pool<'a> {
    pub(super) fn new(policy: &'a Policy) -> Self {
        Self { policy, v4: Cursor::default(), v6: Cursor::default() }
    }

    /// Whether the ranges have addresses of the family.
    pub(super) fn offers(&self, is_v4: bool) -> bool {
        self.policy.ranges.iter().any(|range| range.first.is_ipv4() == is_v4)
    }

    /// Returns why no object may have an address, not even one that has it; `None`: one may.
    pub(super) fn exclusion(&self, address: IpAddr) -> Option<String> {
        let net = self.policy.excluded.iter().find(|net| net.contains(&address))?;
        Some(format!("{address} is in {net}, a range of nodes, pods or Services"))
    }

    /// Whether a range holds an address.
    pub(super) fn holds(&self, address: IpAddr) -> bool {
        self.policy.ranges.iter().any(|range| range.holds(address))
    }

    /// Returns the next address of the family that may be assigned and for which `taken` returns `false`. The
    /// search never goes back, so between two calls the set of taken addresses may only grow.
    pub(super) fn next(&mut self, is_v4: bool, taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        let policy = self.policy;
        let cursor = if is_v4 { &mut self.v4 } else { &mut self.v6 };
        loop {
            let range = policy.ranges.get(cursor.range)?;
            let from = cursor.next.unwrap_or(range.first);
            let found = if range.first.is_ipv4() == is_v4 { free(range, from, policy, &taken) } else { None };
            match found {
                Some(address) => {
                    match after(address) {
                        Some(next) if address < range.last => cursor.next = Some(next),
                        _ => *cursor = Cursor { range: cursor.range + 1, next: None },
                    }
                    return Some(address);
                }
                None => *cursor = Cursor { range: cursor.range + 1, next: None },
            }
        }
    }
}

/// Returns the first free address of a range, at or after `from`.
fn free(
    range: &AddressRange,
    from: IpAddr,
    policy: &Policy,
    taken: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut address = from;
    while range.holds(address) {
        match policy.excluded.iter().find(|net| net.contains(&address)) {
            Some(net) => address = after(last(net))?,
            None if taken(address) || policy.shared.contains(&address) || is_left_out(range, address) => {
                address = after(address)?;
            }
            None => return Some(address),
        }
    }
    None
}

/// Whether an address is given only to who asks for it by value: IPv4 addresses that end in 0 or 255, which some take for those of a
/// network, and IPv6 addresses that end in 64 zero bits, the anycast address of a subnet's routers (RFC 4291 section 2.6.1). A range
/// of one address means that one.
fn is_left_out(range: &AddressRange, address: IpAddr) -> bool {
    !range.is_single()
        && match address {
            IpAddr::V4(address) => matches!(address.octets()[3], 0 | 255),
            IpAddr::V6(address) => address.to_bits() << 64 == 0,
        }
}

fn last(net: &IpNet) -> IpAddr {
    match net {
        IpNet::V4(net) => IpAddr::V4(net.broadcast()),
        IpNet::V6(net) => IpAddr::V6(net.broadcast()),
    }
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(IpAddr::V4(Ipv4Addr::from_bits(address.to_bits().checked_add(1)?))),
        IpAddr::V6(address) => Some(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits().checked_add(1)?))),
    }
}
