//! To which addresses of listeners clients on the node itself are led by a route. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;

use crate::model::{Desired, Node, Problem};
use crate::plan::Leading;

/// The most addresses that a problem names.
const NAMED: usize = 5;

/// What is known of who has which addresses.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    /// As [`crate::plan::Applied::leading`].
    pub(super) leading: &'a BTreeMap<IpAddr, Leading>,
    pub(super) node: &'a Node,
    /// As [`crate::model::NodeFacts::api_servers`].
    pub(super) api_servers: &'a BTreeSet<IpAddr>,
    /// Addresses that other hosts of a segment have, with their link addresses.
    pub(super) foreign: &'a BTreeMap<IpAddr, [u8; 6]>,
}

/// Why no route of ours leads to an address: it would cut the node off from its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Left {
    /// It is the node's own; no route is asked about those.
    Own,
    /// Of an API server.
    ApiServer,
    /// A route leads over it.
    NextHop,
    /// A tunnel leads there.
    Tunnelled,
    /// The host with this link address has it.
    Foreign([u8; 6]),
}

/// What is to be done for clients on the node.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Addresses that routes lead into the pair, each with the source that the node's own sockets have by it.
    pub(super) routes: BTreeMap<IpAddr, Option<IpAddr>>,
    /// Those that none leads to, and why.
    pub(super) left: BTreeMap<IpAddr, Left>,
}

impl fmt::Display for Left {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Own => f.write_str("an address of the node itself"),
            Self::ApiServer => f.write_str("the address of an API server"),
            Self::NextHop => f.write_str("the next hop of a route of this node"),
            Self::Tunnelled => f.write_str("where a tunnel of this node leads"),
            Self::Foreign([a, b, c, d, e, g]) => {
                let link = format_args!("{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}");
                write!(f, "had by the host with link address {link}")
            }
        }
    }
}

impl Left {
    /// Why none is to lead to the address, as far as the node's own network says.
    pub(crate) fn by_network(address: &IpAddr, node: &Node) -> Option<Self> {
        let found = [
            (node.own.contains(address), Self::Own),
            (node.next_hops.contains(address), Self::NextHop),
            (node.tunnelled.contains(address), Self::Tunnelled),
        ];
        found.into_iter().find_map(|(is_so, why)| is_so.then_some(why))
    }

    fn of(address: &IpAddr, around: Around<'_>) -> Option<Self> {
        let of_api = around.api_servers.contains(address).then_some(Self::ApiServer);
        let foreign = || around.foreign.get(address).map(|link| Self::Foreign(*link));
        match Self::by_network(address, around.node) {
            Some(Self::Own) => Some(Self::Own),
            by_network => of_api.or(by_network).or_else(foreign),
        }
    }
}

impl Wanted {
    /// Of the addresses of all listeners. Nothing is said of those of which each node leads to its own backends, if it has none: they are
    /// reached by the wire.
    pub(super) fn new(desired: &Desired, around: Around<'_>) -> Self {
        let vips: BTreeSet<IpAddr> =
            desired.listeners.iter().flat_map(|listener| &listener.addresses).copied().collect();
        let leads = |vip: &IpAddr| around.leading.get(vip).is_none_or(|leading| leading.here);
        let sources = [true, false].map(|is_v4| source(around.node, is_v4));
        // Without an address of the family a client is refused at once, and tries the other family.
        let has_own = [true, false].map(|is_v4| around.node.own.iter().any(|own| is_usable(own, is_v4)));
        let is_reachable = |vip: &IpAddr| if vip.is_ipv4() { has_own[0] } else { has_own[1] };
        let mut this = Self::default();
        for vip in vips.into_iter().filter(leads).filter(is_reachable) {
            match Left::of(&vip, around) {
                Some(why) => drop(this.left.insert(vip, why)),
                None => drop(this.routes.insert(vip, if vip.is_ipv4() { sources[0] } else { sources[1] })),
            }
        }
        this
    }

    /// Returns what there is to say of addresses to which no route leads. That the node has one itself is usual.
    pub(super) fn problems(&self, field: &'static str) -> Vec<Problem> {
        let mut by_reason: BTreeMap<Left, Vec<IpAddr>> = BTreeMap::new();
        for (address, why) in self.left.iter().filter(|(_, why)| **why != Left::Own) {
            by_reason.entry(*why).or_default().push(*address);
        }
        let problem = |(why, addresses): (Left, Vec<IpAddr>)| {
            let what = format!(
                "clients on the node itself are not led to {}: {} {why}, which a route of ours would cut off",
                named(&addresses),
                if addresses.len() == 1 { "it is" } else { "each is" }
            );
            Problem::warning(field, what, "give the listener another address, and take this one out of pools")
        };
        by_reason.into_iter().map(problem).collect()
    }
}

/// Names the first of some addresses.
pub(crate) fn named(addresses: &[IpAddr]) -> String {
    let mut text: Vec<String> = addresses.iter().take(NAMED).map(IpAddr::to_string).collect();
    if addresses.len() > NAMED {
        text.push(format!("and {} more", addresses.len() - NAMED));
    }
    text.join(", ")
}

/// Whether an address of the node is one that others can answer to, of this family.
fn is_usable(address: &IpAddr, is_v4: bool) -> bool {
    match address {
        IpAddr::V4(address) => is_v4 && !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !is_v4 && !address.is_unicast_link_local() && !address.is_loopback(),
    }
}

/// Returns the node's address of a family, the same each time: of a device with a default route that the node's own sockets follow, if there
/// is one, then none that is only lent to the node, and the lowest.
fn source(node: &Node, is_v4: bool) -> Option<IpAddr> {
    let usable = node.answered.iter().filter(|(_, address)| is_usable(address, is_v4));
    let rank = |(device, address): &&(u32, IpAddr)| {
        (!node.main_defaults.contains(device), node.lent.contains(address), *device, *address)
    };
    usable.min_by_key(rank).map(|(_, address)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DesiredListener, Protocol};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn desired(addresses: &[IpAddr]) -> Desired {
        let listener = |addresses: &[IpAddr]| DesiredListener {
            name: "l".into(),
            addresses: addresses.to_vec(),
            port: 443,
            protocol: Protocol::Tls,
            route: None,
        };
        Desired { listeners: vec![listener(addresses), listener(&addresses[..1])], ..Desired::default() }
    }

    const NOBODY: (BTreeSet<IpAddr>, BTreeMap<IpAddr, [u8; 6]>) = (BTreeSet::new(), BTreeMap::new());

    #[test]
    fn routes_lead_to_vips_that_are_not_the_nodes_own_and_are_served_here() {
        let vips = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "2001:db8::1"].map(address);
        let here = |here| Leading { here, ..Leading::default() };
        let leading = [(vips[2], here(true)), (vips[3], here(false))].into();
        let mut node = Node {
            own: [vips[1], address("2001:db8::7")].into(),
            answered: [(2, address("192.0.2.7"))].into(),
            ..Node::default()
        };
        let (api_servers, foreign) = &NOBODY;
        let found =
            Wanted::new(&desired(&vips), Around { leading: &leading, node: &node, api_servers, foreign });
        let v4 = Some(address("192.0.2.7"));
        assert_eq!(found.routes, [(vips[0], v4), (vips[2], v4), (vips[4], None)].into());
        assert_eq!(found.left, [(vips[1], Left::Own)].into());
        assert!(found.problems("f").is_empty(), "the node's own listeners may have it");
        node.own.retain(IpAddr::is_ipv4);
        let around = Around { leading: &leading, node: &node, api_servers, foreign };
        let found = Wanted::new(&desired(&vips), around);
        assert!(!found.routes.contains_key(&vips[4]), "the node has no IPv6");
    }

    /// Each node would send into the pair what is for that host.
    #[test]
    fn no_route_leads_to_an_address_that_another_host_is_known_to_have() {
        let vips =
            ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "2001:db8::1", "2001:db8::2"].map(address);
        let node = Node {
            own: ["192.0.2.7", "2001:db8::7"].map(address).into(),
            next_hops: [vips[1], vips[4]].into(),
            tunnelled: [vips[2]].into(),
            ..Node::default()
        };
        let link = [2, 0, 0, 0, 0, 9];
        let (api_servers, foreign) = (&[vips[0], vips[4]].into(), &[(vips[3], link), (vips[0], link)].into());
        let leading = BTreeMap::new();
        let found =
            Wanted::new(&desired(&vips), Around { leading: &leading, node: &node, api_servers, foreign });
        assert_eq!(found.routes, [(vips[5], None)].into());
        let left = [
            (vips[0], Left::ApiServer),
            (vips[1], Left::NextHop),
            (vips[2], Left::Tunnelled),
            (vips[3], Left::Foreign(link)),
            (vips[4], Left::ApiServer),
        ];
        assert_eq!(found.left, left.into());
        let told: Vec<String> = found.problems("f").iter().map(ToString::to_string).collect();
        assert_eq!(told.len(), 4, "{told:?}");
        let said =
            ["10.0.0.1, 2001:db8::1: each is the address of an API server", "10.0.0.2: it is the next hop"];
        assert!(told[0].contains(said[0]) && told[1].contains(said[1]), "{told:?}");
        assert!(told[3].contains("10.0.0.4: it is had by the host with link address 02:00:00:00:00:09"));
    }

    #[test]
    fn of_many_addresses_the_first_are_named() {
        let addresses: Vec<IpAddr> = (1..9).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        assert_eq!(named(&addresses[..2]), "10.0.0.1, 10.0.0.2");
        assert!(named(&addresses).ends_with("10.0.0.5, and 3 more"));
    }

    #[test]
    fn the_source_is_an_address_of_the_default_routes_device() {
        let at = |device, text| (device, address(text));
        let answered = [
            at(2, "169.254.0.1"),
            at(2, "10.1.0.1"),
            at(3, "10.0.0.9"),
            at(3, "10.0.0.8"),
            at(3, "fe80::1"),
            at(2, "2001:db8::2"),
        ];
        let mut node = Node { answered: answered.into(), main_defaults: [3].into(), ..Node::default() };
        assert_eq!(
            [true, false].map(|v4| source(&node, v4)),
            ["10.0.0.8", "2001:db8::2"].map(|text| Some(address(text)))
        );
        // As kube-vip and keepalived lend them, and go with them.
        node.lent.insert(address("10.0.0.8"));
        assert_eq!(source(&node, true), Some(address("10.0.0.9")));
        node.lent.insert(address("10.0.0.9"));
        assert_eq!(source(&node, true), Some(address("10.0.0.8")), "it has no other there");
        node.main_defaults.clear();
        assert_eq!(source(&node, true), Some(address("10.1.0.1")));
        node.answered.clear();
        assert_eq!(source(&node, true), None);
    }
}
