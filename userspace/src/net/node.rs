//! Devices, own addresses and default routes of the node.

use std::net::IpAddr;

use netlink_packet_route::address::{AddressAttribute, AddressHeader, AddressHeaderFlags, AddressMessage};
use netlink_packet_route::link::{
    InfoKind, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage, LinkXdp,
};
use netlink_packet_route::neighbour::{NeighbourAddress, NeighbourAttribute, NeighbourMessage};
use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteHeader, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::netlink::{NetError, Netlink};
use super::pair::{FAR, NEAR};
use crate::model::{Link, Node};

impl Node {
    /// Queries the kernel.
    pub fn look() -> Result<Self, NetError> {
        let mut netlink = Netlink::open()?;
        let mut node = Self::default();
        for object in netlink.dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
            if let RouteNetlinkMessage::NewLink(message) = object {
                node.links.insert(message.header.index, link(&message));
            }
        }
        for object in netlink.dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
            if let RouteNetlinkMessage::NewAddress(message) = object {
                node.add(&message);
            }
        }
        for family in [AddressFamily::Inet, AddressFamily::Inet6] {
            let mut question = RouteMessage::default();
            question.header.address_family = family;
            for object in netlink.dump(RouteNetlinkMessage::GetRoute(question))? {
                if let RouteNetlinkMessage::NewRoute(message) = object {
                    node.defaults.extend(default_devices(&message));
                    if message.header.table == RouteHeader::RT_TABLE_MAIN {
                        node.main_defaults.extend(default_devices(&message));
                    }
                    node.routers.extend(default_routers(&message));
                    node.routed.extend(routed_devices(&message));
                    node.next_hops.extend(next_hops(&message));
                }
            }
        }
        let mut question = NeighbourMessage::default();
        question.header.family = AddressFamily::Bridge;
        for object in netlink.dump(RouteNetlinkMessage::GetNeighbour(question))? {
            if let RouteNetlinkMessage::NewNeighbour(message) = object {
                node.tunnelled.extend(tunnel_end(&message));
            }
        }
        node.leave_pair_out();
        Ok(node)
    }

    /// Takes the pair for clients on the node itself out of the devices of routes: no other host is behind it.
    fn leave_pair_out(&mut self) {
        for index in [NEAR, FAR].into_iter().filter_map(|name| self.index(name)).collect::<Vec<_>>() {
            self.defaults.remove(&index);
            self.main_defaults.remove(&index);
            self.routed.remove(&index);
        }
    }

    /// Adds an address of a device that is known already.
    fn add(&mut self, message: &AddressMessage) {
        let Some(address) = own_address(message) else { return };
        self.own.insert(address);
        let device = message.header.index;
        if self.links.get(&device).is_some_and(|link| link.link_address.is_some()) {
            self.answered.insert((device, address));
        }
        if is_lent(address, &message.header) {
            self.lent.insert(address);
        }
        if has_subnet(address, message.header.prefix_len) {
            self.subnets.insert(device);
        }
    }
}

impl Link {
    /// Queries the kernel for the device with this index; `None`: there is none.
    pub fn look(index: u32) -> Result<Option<Self>, NetError> {
        let mut question = LinkMessage::default();
        question.header.index = index;
        let answers = Netlink::open()?.ask_all([RouteNetlinkMessage::GetLink(question)])?;
        Ok(answers.into_iter().flatten().find_map(|answer| match answer {
            RouteNetlinkMessage::NewLink(message) => Some(link(&message)),
            _ => None,
        }))
    }
}

fn link(message: &LinkMessage) -> Link {
    let mut link = Link {
        name: String::new(),
        mtu: 0,
        ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        link_address: None,
        has_carrier: message.header.flags.contains(LinkFlags::LowerUp),
        xdp: None,
        master: None,
        lower: None,
        is_veth: false,
        is_bridge: false,
    };
    // A device in another namespace, and the other end of a pair, are named by the same attribute.
    let mut is_elsewhere = false;
    let speaks_arp = link.ethernet && !message.header.flags.contains(LinkFlags::Noarp);
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Address(address) if speaks_arp => {
                link.link_address = address.as_slice().try_into().ok();
            }
            LinkAttribute::Xdp(parts) => {
                link.xdp = parts.iter().find_map(|part| match part {
                    LinkXdp::ProgId(id) => Some(*id),
                    _ => None,
                });
            }
            LinkAttribute::Controller(index) => link.master = Some(*index),
            LinkAttribute::Link(index) => link.lower = Some(*index),
            LinkAttribute::LinkNetNsId(_) => is_elsewhere = true,
            LinkAttribute::LinkInfo(parts) => {
                link.is_veth = parts.contains(&LinkInfo::Kind(InfoKind::Veth));
                link.is_bridge = parts.contains(&LinkInfo::Kind(InfoKind::Bridge));
            }
            _ => {}
        }
    }
    link.lower = link.lower.filter(|_| !is_elsewhere && !link.is_veth);
    link
}

/// Returns our address. On a point-to-point link the address attribute is the peer's, the local one is ours.
fn own_address(message: &AddressMessage) -> Option<IpAddr> {
    let local = message.attributes.iter().find_map(|attribute| match attribute {
        AddressAttribute::Local(address) => Some(*address),
        _ => None,
    });
    local.or_else(|| {
        message.attributes.iter().find_map(|attribute| match attribute {
            AddressAttribute::Address(address) => Some(*address),
            _ => None,
        })
    })
}

/// Whether an address may go at any time; see [`Node::lent`].
fn is_lent(address: IpAddr, header: &AddressHeader) -> bool {
    let most = if address.is_ipv4() { 32 } else { 128 };
    let passing =
        AddressHeaderFlags::Secondary | AddressHeaderFlags::Deprecated | AddressHeaderFlags::Tentative;
    header.prefix_len == most || header.flags.intersects(passing)
}

/// Whether other hosts may be on the subnet of an own address. Network plugins give each pod's device one without a subnet.
fn has_subnet(address: IpAddr, prefix: u8) -> bool {
    match address {
        IpAddr::V4(address) => prefix < 32 && !address.is_link_local(),
        IpAddr::V6(address) => prefix < 128 && !address.is_unicast_link_local(),
    }
}

/// Returns the devices of a default route; none for any other route.
fn default_devices(message: &RouteMessage) -> Vec<u32> {
    if message.header.destination_prefix_length == 0 { devices(message) } else { Vec::new() }
}

/// Returns the router of a default route that has one, with its device.
fn default_routers(message: &RouteMessage) -> Option<(u32, IpAddr)> {
    let device = *default_devices(message).first()?;
    message.attributes.iter().find_map(|attribute| match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(router)) => Some((device, (*router).into())),
        RouteAttribute::Gateway(RouteAddress::Inet6(router))
        | RouteAttribute::Via(RouteVia::Inet6(router)) => Some((device, (*router).into())),
        _ => None,
    })
}

/// Returns all next hops of a unicast route.
fn next_hops(message: &RouteMessage) -> Vec<IpAddr> {
    if message.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let hops = message.attributes.iter().filter_map(|attribute| match attribute {
        RouteAttribute::MultiPath(hops) => Some(hops),
        _ => None,
    });
    let several = hops.flatten().flat_map(|hop| &hop.attributes);
    message.attributes.iter().chain(several).filter_map(next_hop).collect()
}

fn next_hop(attribute: &RouteAttribute) -> Option<IpAddr> {
    match attribute {
        RouteAttribute::Gateway(RouteAddress::Inet(hop)) | RouteAttribute::Via(RouteVia::Inet(hop)) => {
            Some((*hop).into())
        }
        RouteAttribute::Gateway(RouteAddress::Inet6(hop)) | RouteAttribute::Via(RouteVia::Inet6(hop)) => {
            Some((*hop).into())
        }
        _ => None,
    }
}

/// Returns the host to which a tunnel leads for a link address; `None`: it is none of a tunnel.
fn tunnel_end(message: &NeighbourMessage) -> Option<IpAddr> {
    let end = message.attributes.iter().find_map(|attribute| match attribute {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(end)) => Some(IpAddr::from(*end)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(end)) => Some(IpAddr::from(*end)),
        _ => None,
    });
    end.filter(|end| !end.is_unspecified() && !end.is_multicast())
}

/// Returns the devices of a route to other hosts; none for the device's own link-local route.
fn routed_devices(message: &RouteMessage) -> Vec<u32> {
    let link_local = message.attributes.iter().any(|attribute| {
        matches!(attribute, RouteAttribute::Destination(RouteAddress::Inet6(to)) if to.is_unicast_link_local())
    });
    if link_local { Vec::new() } else { devices(message) }
}

fn devices(message: &RouteMessage) -> Vec<u32> {
    if message.header.kind != RouteType::Unicast {
        return Vec::new();
    }
    let mut devices = Vec::new();
    for attribute in &message.attributes {
        match attribute {
            RouteAttribute::Oif(index) => devices.push(*index),
            RouteAttribute::MultiPath(hops) => devices.extend(hops.iter().map(|hop| hop.interface_index)),
            _ => {}
        }
    }
    devices
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_route::route::RouteNextHop;

    #[test]
    fn this_node_has_loopback_which_is_not_ethernet() {
        let node = Node::look().unwrap();
        let index = node.index("lo").unwrap();
        let loopback = &node.links[&index];
        assert!(!loopback.ethernet && loopback.mtu > 0);
        assert_eq!((node.name(index).as_str(), node.name(0).as_str()), ("lo", "#0"));
        assert_eq!(Link::look(index).unwrap().as_ref(), Some(loopback));
        assert_eq!(Link::look(u32::MAX >> 1).unwrap(), None);
    }

    /// As the plugin ptp makes it: 10.88.1.1/32 on each.
    #[test]
    fn a_device_whose_address_is_alone_in_its_prefix_has_no_subnet() {
        let mut node = Node::default();
        for (device, address, prefix) in [
            (2, "10.77.0.11", 24),
            (3, "10.88.1.1", 32),
            (3, "fd88::1", 128),
            (3, "fe80::1", 64),
            (4, "fd77::11", 64),
            (5, "169.254.1.1", 16),
            (6, "192.0.2.0", 31),
        ] {
            let mut message = AddressMessage::default();
            message.header.index = device;
            message.header.prefix_len = prefix;
            message.attributes.push(AddressAttribute::Address(address.parse().unwrap()));
            node.add(&message);
        }
        assert_eq!(node.subnets, [2, 4, 6].into());
        assert_eq!(node.own.len(), 7);
    }

    #[test]
    fn the_pair_leads_to_no_other_host() {
        let named = |name: &str| Link { name: name.into(), ..Link::default() };
        let links = [(2, named("eth0")), (3, named(NEAR)), (4, named(FAR))].into();
        let mut node = Node { links, defaults: [2, 4].into(), routed: [2, 3, 4].into(), ..Node::default() };
        node.leave_pair_out();
        assert_eq!((node.defaults, node.routed), ([2].into(), [2].into()));
    }

    #[test]
    fn only_a_unicast_route_to_everywhere_is_a_default_route() {
        let mut route = RouteMessage::default();
        route.header.kind = RouteType::Unicast;
        route.attributes.push(RouteAttribute::Oif(7));
        assert_eq!((default_devices(&route), default_routers(&route)), (vec![7], None));
        route.attributes.push(RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, 1].into())));
        assert_eq!(default_routers(&route), Some((7, [192, 0, 2, 1].into())));
        route.header.destination_prefix_length = 8;
        assert!(default_devices(&route).is_empty());
        route.header.destination_prefix_length = 0;
        route.header.kind = RouteType::Unreachable;
        assert!(default_devices(&route).is_empty());
    }

    #[test]
    fn every_next_hop_of_a_route_and_every_end_of_a_tunnel_is_another_host() {
        let hop = |last: u8| RouteAttribute::Gateway(RouteAddress::Inet([192, 0, 2, last].into()));
        let mut route = RouteMessage::default();
        route.header.kind = RouteType::Unicast;
        let mut several = RouteNextHop::default();
        several.attributes.push(hop(7));
        route.attributes.extend([
            hop(1),
            RouteAttribute::MultiPath(vec![several]),
            RouteAttribute::Via(RouteVia::Inet6("2001:db8::1".parse().unwrap())),
            RouteAttribute::Oif(3),
        ]);
        let hosts = ["192.0.2.1", "2001:db8::1", "192.0.2.7"].map(|host| host.parse::<IpAddr>().unwrap());
        assert_eq!(next_hops(&route), hosts);
        route.header.kind = RouteType::Unreachable;
        assert!(next_hops(&route).is_empty());
        let mut entry = NeighbourMessage::default();
        assert_eq!(tunnel_end(&entry), None);
        for (end, is_host) in [([192, 0, 2, 9], true), ([0; 4], false), ([239, 1, 1, 1], false)] {
            entry.attributes = vec![NeighbourAttribute::Destination(NeighbourAddress::Inet(end.into()))];
            assert_eq!(tunnel_end(&entry), is_host.then_some(end.into()));
        }
    }

    #[test]
    fn a_route_to_a_network_leads_over_its_device_but_the_links_own_does_not() {
        let mut route = RouteMessage::default();
        route.header.kind = RouteType::Unicast;
        route.header.destination_prefix_length = 64;
        route.attributes.push(RouteAttribute::Oif(9));
        route.attributes.push(RouteAttribute::Destination(RouteAddress::Inet6("fd00::".parse().unwrap())));
        assert_eq!(routed_devices(&route), [9]);
        route.attributes[1] = RouteAttribute::Destination(RouteAddress::Inet6("fe80::".parse().unwrap()));
        assert!(routed_devices(&route).is_empty());
        route.attributes.pop();
        route.header.kind = RouteType::Local;
        assert!(routed_devices(&route).is_empty());
    }
}
