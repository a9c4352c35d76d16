//! What a node says of itself.

use super::announcement::Announcement;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// A device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// As `ip link` shows it.
    pub name: String,
    /// Bytes.
    pub mtu: u32,
    /// Whether packets on it begin with an Ethernet header, as the programs expect. Loopback's do not count.
    pub ethernet: bool,
    /// Its link address, by which the hosts of its segment reach this node; `None`: they do not ask for it by ARP.
    pub link_address: Option<[u8; 6]>,
    /// Whether frames can be sent on it now (`IFF_LOWER_UP`).
    pub has_carrier: bool,
    /// The number of an XDP program on it, whosever.
    pub xdp: Option<u32>,
    /// The index of the device that it is a part of: a bridge or bond.
    pub master: Option<u32>,
    /// The index of the device that it sends and receives through: of a VLAN or macvlan device.
    pub lower: Option<u32>,
    /// Whether it is an end of a veth pair.
    pub is_veth: bool,
    /// Whether it is a bridge.
    pub is_bridge: bool,
}

/// The node's network at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Node {
    /// By index.
    pub links: BTreeMap<u32, Link>,
    /// Addresses on its devices.
    pub own: HashSet<IpAddr>,
    /// Those of them for which the kernel answers ARP and neighbour discovery, with their devices: those with a link address.
    pub answered: HashSet<(u32, IpAddr)>,
    /// Devices on whose subnet other hosts are: those with an address that is not link-local, and whose prefix is shorter than itself.
    pub subnets: BTreeSet<u32>,
    /// Devices of the default routes, both families.
    pub defaults: BTreeSet<u32>,
    /// Those of them whose default route is of the main table, which the node's own sockets follow.
    pub main_defaults: BTreeSet<u32>,
    /// Own addresses that may go at any time: of the full length of their family, as virtual addresses are lent to a node, and those that the
    /// kernel marks as secondary, temporary, deprecated or tentative.
    pub lent: BTreeSet<IpAddr>,
    /// The routers of these routes, with their devices.
    pub routers: BTreeSet<(u32, IpAddr)>,
    /// Devices of all unicast routes, link-local ones apart: where packets to clients and backends may leave, and so
    /// theirs may come from.
    pub routed: BTreeSet<u32>,
    /// The next hops of all its routes: other hosts, whatever else has their addresses.
    pub next_hops: BTreeSet<IpAddr>,
    /// Where tunnels lead (VXLAN): mostly other nodes.
    pub tunnelled: BTreeSet<IpAddr>,
}

impl Node {
    /// The index of a device.
    pub fn index(&self, name: &str) -> Option<u32> {
        self.links.iter().find(|(_, link)| link.name == name).map(|(index, _)| *index)
    }

    /// The name of a device, for people.
    pub fn name(&self, index: u32) -> String {
        self.links.get(&index).map_or_else(|| format!("#{index}"), |link| link.name.clone())
    }
}

/// What a node says of itself: what lies outside of every source and differs from node to node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// First and last port that the node's kernel hands out (`net.ipv4.ip_local_port_range`); `None` = not known.
    pub local_ports: Option<(u16, u16)>,
    /// Its name in the cluster; `None`: it is in none, and no endpoint is on it.
    pub name: Option<Arc<str>>,
    /// Its zone (label `topology.kubernetes.io/zone`); `None`: endpoints' hints are not looked at.
    pub zone: Option<Arc<str>>,
    /// Backends that its own probes find down.
    pub failing: BTreeSet<SocketAddr>,
    /// Devices that its operator names; none: those of the routes.
    pub devices: Vec<Arc<str>>,
    /// Its devices, addresses and routes. Each look at them is another [`Arc`]: a route may have changed that does not
    /// are here.
    pub network: Arc<Node>,
    /// It takes no new connections: `vestibule drain`.
    pub is_draining: bool,
    /// Addresses of API servers, as far as they are known: it would be cut off from one whose address is led elsewhere.
    pub api_servers: Arc<BTreeSet<IpAddr>>,
    /// What the cluster announces, and who; `None`: nothing.
    pub announcement: Option<Arc<Announcement>>,
}
