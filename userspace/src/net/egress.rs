//! The next hop to each backend (device, source address, MTU), as the kernel chooses it for our own packets.

use std::net::IpAddr;

use netlink_packet_route::route::{RouteAddress, RouteAttribute, RouteMessage, RouteMetric, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::{NetError, Netlink};
use crate::model::Node;
use crate::plan::Hop;

/// Returns the next hop to each address, in the same order; `None`: there is none.
pub fn towards(addresses: &[IpAddr], node: &Node) -> Result<Vec<Option<Hop>>, NetError> {
    if addresses.is_empty() {
        return Ok(Vec::new());
    }
    let answers = Netlink::open()?.ask_all(addresses.iter().map(|address| question(*address)))?;
    let way = |answer| match answer {
        Some(RouteNetlinkMessage::NewRoute(route)) => hop(&route, node),
        _ => None,
    };
    Ok(answers.into_iter().map(way).collect())
}

/// The question which route leads to an address.
pub(super) fn question(address: IpAddr) -> RouteNetlinkMessage {
    let mut route = RouteMessage::default();
    let (family, bits) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    route.header.address_family = family;
    route.header.destination_prefix_length = bits;
    route.attributes.push(RouteAttribute::Destination(RouteAddress::from(address)));
    RouteNetlinkMessage::GetRoute(route)
}

/// Returns `None` for a route that leads nowhere or to ourselves, or without a source address of ours.
fn hop(route: &RouteMessage, node: &Node) -> Option<Hop> {
    if route.header.kind != RouteType::Unicast {
        return None;
    }
    let (mut ifindex, mut source, mut route_mtu, mut is_on_link) = (0, None, u32::MAX, true);
    for attribute in &route.attributes {
        match attribute {
            RouteAttribute::Oif(index) => ifindex = *index,
            RouteAttribute::PrefSource(RouteAddress::Inet(address)) => source = Some(IpAddr::V4(*address)),
            RouteAttribute::PrefSource(RouteAddress::Inet6(address)) => source = Some(IpAddr::V6(*address)),
            RouteAttribute::Gateway(_) | RouteAttribute::Via(_) => is_on_link = false,
            RouteAttribute::Metrics(metrics) => {
                for metric in metrics {
                    if let RouteMetric::Mtu(mtu) = metric {
                        route_mtu = *mtu;
                    }
                }
            }
            _ => {}
        }
    }
    let link = node.links.get(&ifindex)?;
    Some(Hop { source: source?, ifindex, mtu: link.mtu.min(route_mtu), is_on_link })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;

    fn node() -> Node {
        let link = Link { name: "eth0".into(), mtu: 1500, ethernet: true, ..Link::default() };
        Node { links: [(3, link)].into(), ..Node::default() }
    }

    fn route() -> RouteMessage {
        let mut route = RouteMessage::default();
        route.header.kind = RouteType::Unicast;
        route.attributes.push(RouteAttribute::Oif(3));
        route.attributes.push(RouteAttribute::PrefSource(RouteAddress::Inet([192, 0, 2, 1].into())));
        route
    }

    #[test]
    fn a_route_gives_device_source_and_the_smaller_mtu() {
        let source = IpAddr::from([192, 0, 2, 1]);
        let direct = Hop { source, ifindex: 3, mtu: 1500, is_on_link: true };
        assert_eq!(hop(&route(), &node()), Some(direct));
        let mut by_router = route();
        by_router.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 9].into())));
        assert_eq!(hop(&by_router, &node()), Some(Hop { is_on_link: false, ..direct }));
        let mut narrow = route();
        narrow.attributes.push(RouteAttribute::Metrics(vec![RouteMetric::Mtu(1400)]));
        assert_eq!(hop(&narrow, &node()).unwrap().mtu, 1400);
    }

    #[test]
    fn a_route_to_nowhere_is_no_way() {
        for kind in [RouteType::Unreachable, RouteType::BlackHole, RouteType::Local] {
            let mut dead = route();
            dead.header.kind = kind;
            assert_eq!(hop(&dead, &node()), None, "{kind:?}");
        }
    }

    #[test]
    fn our_own_address_has_no_way() {
        let node = Node::look().unwrap();
        assert_eq!(towards(&[IpAddr::from([127, 0, 0, 1])], &node).unwrap(), [None]);
    }
}
