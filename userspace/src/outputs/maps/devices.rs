//! Chooses the devices that get the program. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use crate::model::Node;
use crate::plan::NextHops;

/// The devices that the user selects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// None named: the devices of the default routes and of the egress to backends.
    Routes,
    /// The devices of all routes to other hosts: clients may be on any of them.
    Routed,
    /// These devices, by name.
    Named(Vec<Arc<str>>),
}

impl Choice {
    /// Returns the devices that the operator names, or this choice if there are none.
    pub(super) fn or_named(self, names: &[Arc<str>]) -> Self {
        if names.is_empty() { self } else { Self::Named(names.to_vec()) }
    }
}

/// The result of a choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Chosen {
    /// Indices of the devices that should have the program.
    pub devices: BTreeSet<u32>,
    /// Those of them without which something does not work.
    pub needed: BTreeSet<u32>,
    /// Why devices cannot be used.
    pub unusable: Vec<String>,
    /// Backends that are reached over a device the user did not name.
    pub beyond: Vec<String>,
}

/// Chooses devices, and gives up next hops over other devices.
pub(super) fn choose(choice: &Choice, node: &Node, towards: &mut NextHops) -> Chosen {
    let mut chosen = Chosen::default();
    let of_hops = || towards.distinct().map(|hop| hop.ifindex);
    let wanted: BTreeSet<u32> = match choice {
        Choice::Routes => node.defaults.iter().copied().chain(of_hops()).collect(),
        Choice::Routed => node.routed.iter().copied().chain(of_hops()).collect(),
        Choice::Named(names) => named(names, node, &mut chosen.unusable),
    };
    for index in wanted {
        match node.links.get(&index) {
            Some(link) if link.ethernet => {
                chosen.devices.insert(index);
            }
            // A route alone is no reason to complain: possibly no packet ever uses it.
            Some(_) if !needed(choice, node, towards, index) => {}
            Some(link) => chosen.unusable.push(format!(
                "device {} carries no Ethernet frames, which the programs need; what comes or goes over it is not \
                 handled",
                link.name
            )),
            // It disappeared after the routes were read; another change will follow.
            None => {}
        }
    }
    towards.keep_to(&chosen.devices);
    let is_needed = |index: &u32| needed(choice, node, towards, *index);
    chosen.needed = chosen.devices.iter().copied().filter(is_needed).collect();
    if matches!(choice, Choice::Named(_)) {
        let mut beyond: Vec<(IpAddr, u32)> =
            towards.beyond().map(|(address, hop)| (address, hop.ifindex)).collect();
        beyond.sort_unstable();
        chosen.beyond.extend(beyond.iter().map(|(address, index)| {
            format!("backend {address} is reached over {}, which is not among --devices", node.name(*index))
        }));
    }
    chosen
}

/// Returns whether something does not work without this device.
fn needed(choice: &Choice, node: &Node, towards: &NextHops, index: u32) -> bool {
    *choice != Choice::Routed
        || node.defaults.contains(&index)
        || towards.distinct().any(|hop| hop.ifindex == index)
}

fn named(names: &[Arc<str>], node: &Node, problems: &mut Vec<String>) -> BTreeSet<u32> {
    let mut wanted = BTreeSet::new();
    for name in names {
        match node.index(name) {
            Some(index) => {
                wanted.insert(index);
            }
            None => problems.push(format!("there is no device {name} here")),
        }
    }
    wanted
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;
    use crate::plan::Hop;

    fn link(name: &str, ethernet: bool) -> Link {
        Link { name: name.into(), mtu: 1500, ethernet, ..Link::default() }
    }

    fn node() -> Node {
        Node {
            links: [
                (1, link("lo", false)),
                (2, link("eth0", true)),
                (3, link("eth1", true)),
                (4, link("tun0", false)),
            ]
            .into(),
            defaults: [2].into(),
            ..Node::default()
        }
    }

    fn towards(egress: &[(u8, u32)]) -> NextHops {
        let source = IpAddr::from([192, 0, 2, 1]);
        let hop = |(host, ifindex): &(u8, u32)| {
            let hop = Hop { source, ifindex: *ifindex, mtu: 1500, is_on_link: true };
            (IpAddr::from([10, 0, 0, *host]), hop)
        };
        egress.iter().map(hop).collect()
    }

    #[test]
    fn default_routes_and_ways_to_backends_choose() {
        let mut egress = towards(&[(1, 3)]);
        let chosen = choose(&Choice::Routes, &node(), &mut egress);
        let devices = BTreeSet::from([2, 3]);
        assert_eq!(chosen, Chosen { needed: devices.clone(), devices, ..Chosen::default() });
        assert_eq!(egress.iter().count(), 1);
    }

    #[test]
    fn every_routed_device_has_the_program_and_only_needed_ones_are_missed() {
        let node = Node { routed: [2, 3, 4].into(), ..node() };
        let mut egress = towards(&[(1, 2)]);
        let chosen = choose(&Choice::Routed, &node, &mut egress);
        assert_eq!(chosen, Chosen { devices: [2, 3].into(), needed: [2].into(), ..Chosen::default() });
        let mut egress = towards(&[(1, 4)]);
        let chosen = choose(&Choice::Routed, &node, &mut egress);
        assert!(chosen.unusable[0].contains("tun0"), "{chosen:?}");
        assert_eq!(egress, NextHops::default());
    }

    #[test]
    fn a_way_over_a_tunnel_is_no_way() {
        let mut egress = towards(&[(1, 3), (2, 4)]);
        let chosen = choose(&Choice::Routes, &node(), &mut egress);
        assert_eq!(chosen.devices, [2, 3].into());
        assert!(chosen.unusable[0].contains("tun0 carries no Ethernet"), "{:?}", chosen.unusable);
        assert_eq!(egress, towards(&[(1, 3)]));
    }

    #[test]
    fn named_devices_are_the_only_ones() {
        let mut egress = towards(&[(1, 3)]);
        let names = Choice::Named(vec!["eth0".into(), "eth7".into()]);
        let chosen = choose(&names, &node(), &mut egress);
        assert_eq!(chosen.devices, [2].into());
        assert_eq!((chosen.unusable.len(), chosen.beyond.len()), (1, 1));
        assert!(chosen.unusable[0].contains("no device eth7"), "{:?}", chosen.unusable);
        assert!(chosen.beyond[0].contains("10.0.0.1 is reached over eth1"), "{:?}", chosen.beyond);
        assert_eq!(egress, NextHops::default());
    }
}
