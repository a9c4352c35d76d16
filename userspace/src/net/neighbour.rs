//! Link addresses of next hops, which the kernel asks for when a packet of its own needs one.

use std::net::IpAddr;

use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteVia};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::egress::question;
use super::netlink::{NetError, Netlink};

/// Has the kernel ask for the link addresses of the next hops to these addresses, unless it has them.
pub fn resolve(addresses: &[IpAddr]) -> Result<(), NetError> {
    if addresses.is_empty() {
        return Ok(());
    }
    let mut netlink = Netlink::open()?;
    let answers = netlink.ask_all(addresses.iter().map(|address| question(*address)))?;
    let routes = addresses.iter().zip(answers);
    let hops: Vec<NeighbourMessage> = routes
        .filter_map(|(address, answer)| match answer {
            Some(RouteNetlinkMessage::NewRoute(route)) => hop(*address, &route),
            _ => None,
        })
        .collect();
    let known = netlink.ask_all(hops.iter().cloned().map(RouteNetlinkMessage::GetNeighbour))?;
    let unknown = hops.into_iter().zip(known).filter(|(_, answer)| !is_known(answer.as_ref()));
    // As a packet to it would (NTF_USE of linux/neighbour.h). Given to an entry that is there, it takes its permanence away.
    netlink.create_all(unknown.map(|(mut hop, _)| {
        hop.header.flags = NeighbourFlags::Use;
        RouteNetlinkMessage::NewNeighbour(hop)
    }))
}

/// Whether the kernel has the link address, or asks for it already.
fn is_known(answer: Option<&RouteNetlinkMessage>) -> bool {
    let Some(RouteNetlinkMessage::NewNeighbour(neighbour)) = answer else { return false };
    !matches!(neighbour.header.state, NeighbourState::None | NeighbourState::Failed)
}

/// Returns the next hop of a route; `None`: the route leads to no device.
fn hop(address: IpAddr, route: &RouteMessage) -> Option<NeighbourMessage> {
    let (mut ifindex, mut hop) = (None, address);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = Some(*index),
            RouteAttribute::Gateway(RouteAddress::Inet(gateway)) => hop = (*gateway).into(),
            RouteAttribute::Gateway(RouteAddress::Inet6(gateway))
            | RouteAttribute::Via(RouteVia::Inet6(gateway)) => hop = (*gateway).into(),
            _ => {}
        }
    }
    let mut neighbour = NeighbourMessage::default();
    neighbour.header.family = if hop.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    neighbour.header.ifindex = ifindex?;
    neighbour.attributes.push(NeighbourAttribute::Destination(NeighbourAddress::from(hop)));
    Some(neighbour)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn neighbour(route: &RouteMessage) -> Option<(u32, AddressFamily, Vec<NeighbourAttribute>)> {
        let hop = hop(IpAddr::from([198, 51, 100, 7]), route)?;
        Some((hop.header.ifindex, hop.header.family, hop.attributes))
    }

    #[test]
    fn an_entry_with_a_link_address_is_left_alone() {
        let entry = |state| {
            let mut neighbour = NeighbourMessage::default();
            neighbour.header.state = state;
            RouteNetlinkMessage::NewNeighbour(neighbour)
        };
        use NeighbourState::{Delay, Failed, Incomplete, Noarp, None, Permanent, Probe, Reachable, Stale};
        for state in [Permanent, Noarp, Reachable, Stale, Delay, Probe, Incomplete] {
            assert!(is_known(Some(&entry(state))), "{state:?}");
        }
        assert!(!is_known(Some(&entry(None))) && !is_known(Some(&entry(Failed))) && !is_known(Option::None));
    }

    #[test]
    fn the_gateway_is_asked_for_where_there_is_one() {
        let of = |address| vec![NeighbourAttribute::Destination(address)];
        let mut route = RouteMessage::default();
        assert_eq!(neighbour(&route), None, "no device");
        route.attributes.push(RouteAttribute::Oif(3));
        let own = of(NeighbourAddress::Inet([198, 51, 100, 7].into()));
        assert_eq!(neighbour(&route), Some((3, AddressFamily::Inet, own)));
        let mut via = route.clone();
        via.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into())));
        let gateway = of(NeighbourAddress::Inet([192, 0, 2, 1].into()));
        assert_eq!(neighbour(&via), Some((3, AddressFamily::Inet, gateway)));
        route.attributes.push(RouteAttribute::Via(RouteVia::Inet6("fe80::1".parse().unwrap())));
        let other = of(NeighbourAddress::Inet6("fe80::1".parse().unwrap()));
        assert_eq!(neighbour(&route), Some((3, AddressFamily::Inet6, other)), "RFC 5549");
    }
}
