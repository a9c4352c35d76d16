//! Who may announce which address on which device, as the whole cluster decided. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use super::ownership::{Candidate, NodeId};
use crate::model::digest;
use crate::model::{Announcement, AnnouncementRule, Node};
use crate::plan::Leading;

/// The most candidates of one segment: each asks all others ten times a second.
const MOST: usize = 32;

/// The candidates for each address, by device.
pub(super) type Candidates = BTreeMap<u32, BTreeMap<IpAddr, Arc<[Candidate]>>>;

/// Returns the number by which frames name a node.
pub(super) fn node_id(name: &str) -> NodeId {
    digest::of(&["node", name])
}

/// Returns who may announce each address on each of these devices; an address that no rule covers there is not announced
/// there. Also returns the devices whose segment has more candidates than it may.
pub(super) fn candidates(
    announcement: &Announcement,
    addresses: &BTreeSet<IpAddr>,
    devices: &BTreeSet<u32>,
    node: &Node,
) -> (Candidates, BTreeSet<u32>) {
    let (mut found, mut crowded) = (Candidates::new(), BTreeSet::new());
    for device in devices {
        let Some(link) = node.links.get(device).filter(|link| link.link_address.is_some()) else { continue };
        // A network of pods may have a device for each of them: only who names such a device means it.
        let is_hosts = is_hosts(*device, node);
        let is_meant =
            |rule: &&AnnouncementRule| rule.is_for(&link.name) && (is_hosts || !rule.interfaces.is_empty());
        let rules: Vec<_> = announcement.rules.iter().filter(is_meant).collect();
        let is_one = |member: &&Arc<str>| rules.iter().any(|rule| rule.admits(member));
        let all: Vec<&Arc<str>> = announcement.members.iter().filter(is_one).collect();
        if all.len() > MOST {
            crowded.insert(*device);
        }
        // Whatever is preferred: a weight for some addresses must not take the candidates of others away.
        let some = &all[..all.len().min(MOST)];
        let covered: Vec<_> = rules.iter().map(|rule| rule.covered()).collect();
        let covers = |number: &usize, address: IpAddr| {
            covered[*number].as_ref().is_none_or(|ranges| ranges.holds(address))
        };
        // Most addresses are covered by the same rules.
        let mut known: BTreeMap<Vec<usize>, Arc<[Candidate]>> = BTreeMap::new();
        let mut on_device = BTreeMap::new();
        for address in addresses {
            let covering: Vec<usize> = (0..rules.len()).filter(|number| covers(number, *address)).collect();
            if covering.is_empty() {
                continue;
            }
            let admits = |member: &&&Arc<str>| covering.iter().any(|number| rules[*number].admits(member));
            let preference = |member: &str| {
                let weights = covering.iter().map(|number| rules[*number].weight(member));
                weights.fold(0, u32::saturating_add)
            };
            let candidate =
                |member: &&Arc<str>| Candidate { node: node_id(member), preference: preference(member) };
            let these = || some.iter().filter(admits).map(candidate).collect();
            let these = known.entry(covering.clone()).or_insert_with(these);
            on_device.insert(*address, Arc::clone(these));
        }
        if !on_device.is_empty() {
            found.insert(*device, on_device);
        }
    }
    (found, crowded)
}

/// Leaves only nodes among the candidates that lead to a backend, on each node the same: the first of them would otherwise be waited for,
/// and be left an address that it does not take. Where none of the candidates does, all may refuse.
pub(super) fn limit(candidates: &mut Candidates, leading: &BTreeMap<IpAddr, Leading>, own: NodeId) {
    let mut known: BTreeMap<&str, NodeId> = BTreeMap::new();
    for (address, nodes) in candidates.values_mut().flatten() {
        let Some(Leading { here, others, is_unknown }) = leading.get(address) else { continue };
        let others: Vec<NodeId> =
            others.iter().map(|name| *known.entry(name).or_insert_with(|| node_id(name))).collect();
        let leads = |Candidate { node, .. }: &Candidate| match *node == own {
            true => *here,
            false => *is_unknown || others.contains(node),
        };
        let some: Arc<[Candidate]> = nodes.iter().copied().filter(leads).collect();
        if !some.is_empty() {
            *nodes = some;
        }
    }
}

/// Leaves a node that refuses new connections no candidate for what others may announce, but for what it announces already.
pub(super) fn spare(candidates: &mut Candidates, here: &BTreeSet<(u32, IpAddr)>, own: NodeId) {
    for (device, addresses) in candidates {
        let new = addresses.iter_mut().filter(|(address, _)| !here.contains(&(*device, **address)));
        for (_, nodes) in new {
            let others: Arc<[Candidate]> = nodes.iter().copied().filter(|other| other.node != own).collect();
            if !others.is_empty() {
                *nodes = others;
            }
        }
    }
}

/// Whether a device is one of the node's own on a network of hosts: it has a default route, or a subnet that is none of the node's own pods.
fn is_hosts(device: u32, node: &Node) -> bool {
    node.defaults.contains(&device) || (node.subnets.contains(&device) && !is_of_pods(device, node))
}

/// Whether a device is a bridge that nothing but pods or containers of this node is on, as network plugins and container engines make them.
fn is_of_pods(device: u32, node: &Node) -> bool {
    let mut ports = node.links.values().filter(|link| link.master == Some(device));
    node.links.get(&device).is_some_and(|link| link.is_bridge) && ports.all(|port| port.is_veth)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;
    use crate::model::announcement::Preferred;
    use crate::model::pool::AddressRange;
    use std::time::Duration;

    fn node() -> Node {
        let link = |name: &str, link_address| Link { name: name.into(), link_address, ..Link::default() };
        let links =
            [(2, link("eth0", Some([2; 6]))), (3, link("eth1", Some([2; 6]))), (4, link("kube-ipvs0", None))];
        Node { links: links.into(), subnets: [2, 3].into(), ..Node::default() }
    }

    fn range(first: &str, last: &str) -> AddressRange {
        AddressRange { first: first.parse().unwrap(), last: last.parse().unwrap() }
    }

    fn announcement(members: usize, rules: Vec<AnnouncementRule>) -> Announcement {
        let members = (0..members).map(|number| format!("node{number:02}").into()).collect();
        Announcement { grace: Duration::from_secs(15), members, rules, rebalance: None, withdraws: false }
    }

    fn found(announcement: &Announcement, addresses: &[&str]) -> BTreeMap<(u32, String), Vec<NodeId>> {
        let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
        let (found, _) = candidates(announcement, &addresses, &[2, 3, 4, 9].into(), &node());
        let on = |(device, addresses): (u32, BTreeMap<IpAddr, Arc<[Candidate]>>)| {
            let one = move |(address, nodes): (IpAddr, Arc<[Candidate]>)| {
                ((device, address.to_string()), nodes_of(&nodes))
            };
            addresses.into_iter().map(one)
        };
        found.into_iter().flat_map(on).collect()
    }

    fn nodes_of(candidates: &[Candidate]) -> Vec<NodeId> {
        candidates.iter().map(|candidate| candidate.node).collect()
    }

    fn ids(names: &[&str]) -> Vec<NodeId> {
        names.iter().map(|name| node_id(name)).collect()
    }

    /// Each node would announce all addresses on its own `cni0`, and `docker0` would have no owner for good.
    #[test]
    fn a_bridge_of_pods_is_no_segment_and_one_with_a_port_of_the_node_is() {
        let mut node = node();
        node.links.insert(10, Link { name: "cni0".into(), is_bridge: true, ..Link::default() });
        node.subnets.insert(10);
        assert!(!is_hosts(10, &node), "without ports");
        node.links.insert(11, Link { master: Some(10), is_veth: true, ..Link::default() });
        assert!(!is_hosts(10, &node));
        node.links.insert(12, Link { master: Some(10), ..Link::default() });
        assert!(is_hosts(10, &node), "with a port that leads elsewhere");
        node.links.remove(&12);
        node.defaults.insert(10);
        assert!(is_hosts(10, &node), "with a default route");
        assert!(is_hosts(3, &node) && !is_hosts(4, &node));
    }

    #[test]
    fn without_a_rule_nothing_is_announced() {
        assert!(found(&announcement(3, vec![]), &["192.0.2.7"]).is_empty());
    }

    #[test]
    fn a_rule_without_fields_is_about_all_addresses_devices_and_members() {
        let all = announcement(2, vec![AnnouncementRule::default()]);
        let both = ids(&["node00", "node01"]);
        let on = |device, address: &str| ((device, address.to_owned()), both.clone());
        let expected = [on(2, "192.0.2.7"), on(2, "2001:db8::7"), on(3, "192.0.2.7"), on(3, "2001:db8::7")];
        assert_eq!(found(&all, &["192.0.2.7", "2001:db8::7"]), expected.into());
    }

    /// As Calico's, one for each pod, or the plugin ptp's, each of which has an address of the node.
    #[test]
    fn a_device_without_a_subnet_is_meant_only_by_its_name() {
        let mut node = node();
        node.answered = [(3, "10.88.1.1".parse().unwrap())].into();
        node.subnets.clear();
        node.defaults = [2].into();
        let found = |rule: AnnouncementRule| {
            let addresses = ["192.0.2.7".parse().unwrap()].into();
            let (found, _) = candidates(&announcement(1, vec![rule]), &addresses, &[2, 3].into(), &node);
            found.into_keys().collect::<Vec<_>>()
        };
        assert_eq!(found(AnnouncementRule::default()), [2]);
        let named = AnnouncementRule { interfaces: vec!["eth1".into()], ..AnnouncementRule::default() };
        assert_eq!(found(named), [3]);
    }

    #[test]
    fn rules_that_cover_an_address_add_up_and_others_do_not_count() {
        let rule = |addresses, node: &str, device: &str| AnnouncementRule {
            addresses,
            nodes: vec![node.into()],
            interfaces: vec![device.into()],
            preferred: Vec::new(),
        };
        let low = range("192.0.2.1", "192.0.2.9");
        let all = announcement(
            3,
            vec![
                rule(vec![low], "node00", "eth0"),
                rule(vec![range("192.0.2.5", "192.0.2.5")], "node02", "eth0"),
                rule(vec![low], "elsewhere", "eth1"),
            ],
        );
        let expected = [
            ((2, "192.0.2.1".to_owned()), ids(&["node00"])),
            ((2, "192.0.2.5".to_owned()), ids(&["node00", "node02"])),
            // Covered, so that nothing on this node answers; but nobody may.
            ((3, "192.0.2.1".to_owned()), vec![]),
            ((3, "192.0.2.5".to_owned()), vec![]),
        ];
        assert_eq!(found(&all, &["192.0.2.1", "192.0.2.5", "192.0.2.10"]), expected.into());
    }

    /// The others do not know what is not about them.
    #[test]
    fn weights_of_rules_that_cover_an_address_on_the_device_add_up() {
        let rule = |address: &str, nodes: &[&str], device: &str, weights: &[(u32, &str)]| AnnouncementRule {
            addresses: vec![range(address, address)],
            nodes: nodes.iter().map(|name| Arc::from(*name)).collect(),
            interfaces: vec![device.into()],
            preferred: weights
                .iter()
                .map(|(weight, node)| Preferred { weight: *weight, nodes: vec![(*node).into()] })
                .collect(),
        };
        let all = announcement(
            3,
            vec![
                rule("192.0.2.1", &[], "eth0", &[(70, "node00"), (20, "node01")]),
                rule("192.0.2.1", &["node01"], "eth0", &[(60, "node01"), (100, "node02")]),
                rule("192.0.2.1", &[], "eth1", &[(100, "node02")]),
                rule("192.0.2.2", &[], "eth0", &[(100, "node02")]),
            ],
        );
        let address = "192.0.2.1".parse().unwrap();
        let (found, _) = candidates(&all, &[address].into(), &[2].into(), &node());
        let mut weights: Vec<_> = found[&2][&address].iter().map(|one| (one.node, one.preference)).collect();
        weights.sort();
        let mut expected =
            [("node00", 70), ("node01", 80), ("node02", 0)].map(|(name, weight)| (node_id(name), weight));
        expected.sort();
        assert_eq!(weights, expected);
    }

    #[test]
    fn nodes_that_have_nobody_to_lead_to_are_no_candidates_and_programs_still_know_the_address() {
        let both = announcement(2, vec![AnnouncementRule::default()]);
        let addresses = ["192.0.2.7", "192.0.2.8"].map(|text| text.parse().unwrap());
        let (mut found, _) = candidates(&both, &addresses.into(), &[2, 3].into(), &node());
        let leading = |here, others: &[&str], is_unknown| {
            let others = others.iter().map(|name| Arc::from(*name)).collect();
            [(addresses[0], Leading { here, others, is_unknown })].into()
        };
        let all = found.clone();
        for (leading, expected) in [
            (leading(false, &["node00"], false), &["node00"][..]),
            (leading(true, &[], false), &["node01"]),
            (leading(true, &["node00", "node07"], false), &["node00", "node01"]),
            // No candidate does: each refuses.
            (leading(false, &[], false), &["node00", "node01"]),
            (leading(false, &["node07"], false), &["node00", "node01"]),
            // It is not known which others do.
            (leading(false, &[], true), &["node00"]),
            (leading(true, &[], true), &["node00", "node01"]),
        ] {
            found.clone_from(&all);
            limit(&mut found, &leading, node_id("node01"));
            for device in [2, 3] {
                assert_eq!(nodes_of(&found[&device][&addresses[0]]), ids(expected), "{leading:?}");
                assert_eq!(nodes_of(&found[&device][&addresses[1]]), ids(&["node00", "node01"]));
            }
        }
    }

    /// Clients would be refused that others serve.
    #[test]
    fn a_node_that_drains_is_no_candidate_for_what_it_does_not_announce() {
        let both = announcement(2, vec![AnnouncementRule::default()]);
        let addresses = ["192.0.2.7", "192.0.2.8"].map(|text| text.parse().unwrap());
        let (mut found, _) = candidates(&both, &addresses.into(), &[2].into(), &node());
        spare(&mut found, &[(2, addresses[0])].into(), node_id("node01"));
        assert_eq!(nodes_of(&found[&2][&addresses[0]]), ids(&["node00", "node01"]));
        assert_eq!(nodes_of(&found[&2][&addresses[1]]), ids(&["node00"]));
        let only = announcement(1, vec![AnnouncementRule::default()]);
        let (mut found, _) = candidates(&only, &addresses.into(), &[2].into(), &node());
        spare(&mut found, &BTreeSet::new(), node_id("node00"));
        assert_eq!(nodes_of(&found[&2][&addresses[1]]), ids(&["node00"]), "nobody else may");
    }

    #[test]
    fn a_segment_has_at_most_thirty_two_candidates_and_says_so() {
        let many = announcement(33, vec![AnnouncementRule::default()]);
        let (found, crowded) =
            candidates(&many, &["192.0.2.7".parse().unwrap()].into(), &[2].into(), &node());
        assert_eq!((found[&2].values().next().unwrap().len(), crowded), (MOST, [2].into()));
        let few = announcement(32, vec![AnnouncementRule::default()]);
        // A preference for one address leaves those of others as they are.
        let rule = AnnouncementRule {
            preferred: vec![Preferred { weight: 1, nodes: vec!["node32".into()] }],
            ..AnnouncementRule::default()
        };
        let addresses = ["192.0.2.7".parse().unwrap()].into();
        let (found, _) = candidates(&announcement(33, vec![rule]), &addresses, &[2].into(), &node());
        let candidates_of = &found[&2][addresses.first().unwrap()];
        let preferred = Candidate { node: node_id("node32"), preference: 1 };
        assert!(candidates_of.len() == MOST && !candidates_of.contains(&preferred), "{candidates_of:?}");
        let (_, crowded) = candidates(&few, &["192.0.2.7".parse().unwrap()].into(), &[2].into(), &node());
        assert!(crowded.is_empty());
    }
}
