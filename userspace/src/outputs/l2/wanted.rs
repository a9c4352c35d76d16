//! Which addresses are announced on which devices. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use common::maps::announced::{Announced, OWNER_HERE};
use common::wire::ndp;

use crate::model::{Desired, Node};
use crate::net::groups::Member;

/// An address on the segment of a device, by its index.
pub(super) type OnDevice = (u32, IpAddr);

/// Returns the addresses that clients dial.
pub(super) fn dialled(desired: &Desired) -> BTreeSet<IpAddr> {
    desired.listeners.iter().flat_map(|listener| &listener.addresses).copied().collect()
}

/// Returns what a node that is alone announces: each address that clients dial, on each device with the program.
pub(super) fn alone(
    desired: &Desired,
    node: &Node,
    devices: &BTreeSet<u32>,
) -> BTreeMap<OnDevice, Announced> {
    if desired.settings.l2.is_none() {
        return BTreeMap::new();
    }
    let addresses = dialled(desired);
    let pairs = devices.iter().flat_map(|device| addresses.iter().map(|address| (*device, *address)));
    announced(pairs, node, |_| OWNER_HERE)
}

/// Returns what the programs are to know of these addresses. An address of the device itself stays the kernel's, and so does
/// every address of a device without a link address.
pub(super) fn announced(
    pairs: impl Iterator<Item = OnDevice>,
    node: &Node,
    owner: impl Fn(&OnDevice) -> u16,
) -> BTreeMap<OnDevice, Announced> {
    let value = |on_device: OnDevice| {
        let link = node.links.get(&on_device.0)?.link_address?;
        Some((on_device, Announced { link, owner: owner(&on_device) }))
    };
    pairs.filter(|on_device| !node.answered.contains(on_device)).filter_map(value).collect()
}

/// Returns the memberships that devices need to receive solicitations for these addresses; none of devices that are gone.
pub(super) fn members<'a>(announced: impl Iterator<Item = &'a OnDevice>, node: &Node) -> BTreeSet<Member> {
    let member = |(device, address): &OnDevice| match address {
        IpAddr::V6(address) => {
            let name = node.links.get(device)?.name.clone();
            Some(Member { device: *device, name, group: ndp::solicited_node(*address) })
        }
        IpAddr::V4(_) => None,
    };
    announced.filter_map(member).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DesiredListener, L2, Link, Protocol, Settings};
    use common::maps::announced::OWNER_ELSEWHERE;

    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const HERE: Announced = Announced { link: LINK, owner: OWNER_HERE };

    fn desired(addresses: &[&str]) -> Desired {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let listener =
            DesiredListener { name: "a".into(), addresses, port: 443, protocol: Protocol::Tls, route: None };
        let settings = Settings { l2: Some(L2::default()), ..Settings::default() };
        Desired { settings, listeners: vec![listener], ..Desired::default() }
    }

    fn node() -> Node {
        let link = |name: &str, link_address| Link { name: name.into(), link_address, ..Link::default() };
        Node {
            links: [
                (2, link("eth0", Some(LINK))),
                (3, link("eth1", Some(LINK))),
                (4, link("kube-ipvs0", None)),
            ]
            .into(),
            answered: [(2, "192.0.2.1".parse().unwrap())].into(),
            ..Node::default()
        }
    }

    #[test]
    fn every_address_is_announced_on_each_device_with_the_program() {
        let found = alone(&desired(&["192.0.2.7", "2001:db8::7"]), &node(), &[2, 4, 9].into());
        let on_eth0 = ["192.0.2.7", "2001:db8::7"].map(|address| ((2, address.parse().unwrap()), HERE));
        assert_eq!(found, on_eth0.into(), "neither where there is no ARP, nor on a device that is gone");
        let member = Member { device: 2, name: "eth0".into(), group: "ff02::1:ff00:7".parse().unwrap() };
        assert_eq!(members(found.keys(), &node()), [member].into());
    }

    #[test]
    fn what_a_devices_kernel_answers_for_stays_its_own_there_and_there_alone() {
        let found = alone(&desired(&["192.0.2.1"]), &node(), &[2, 3].into());
        assert_eq!(found, [((3, "192.0.2.1".parse().unwrap()), HERE)].into());
    }

    #[test]
    fn what_another_node_announces_is_dropped_here() {
        let pairs = ["192.0.2.7", "192.0.2.8"].map(|address| (2, address.parse().unwrap()));
        let owner = |on_device: &OnDevice| if *on_device == pairs[0] { OWNER_HERE } else { OWNER_ELSEWHERE };
        let found = announced(pairs.into_iter(), &node(), owner);
        let elsewhere = Announced { link: LINK, owner: OWNER_ELSEWHERE };
        assert_eq!(found, [(pairs[0], HERE), (pairs[1], elsewhere)].into());
    }

    #[test]
    fn nothing_is_announced_unless_the_settings_say_so() {
        let mut desired = desired(&["192.0.2.7"]);
        desired.settings.l2 = None;
        assert!(alone(&desired, &node(), &[2].into()).is_empty());
    }
}
