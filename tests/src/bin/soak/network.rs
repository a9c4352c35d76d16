//! The network: two client namespaces, a stranger's, the node, and two of backends. One of the clients' and one of
//! the backends' are behind an injector.
//!
//! ```text
//! clients 10.97.1.0/24 ──(injector)──┐          ┌──(injector)── backends 10.97.2.0/24
//! clients 10.97.5.0/24 ──────────────┤── node ──┤
//! stranger 10.97.9.0/24 ─────────────┘          └────────────── backends 10.97.3.0/24
//! ```
//!
//! All link addresses are permanent entries. The node's default route leads to the stranger, who drops everything.

use std::net::IpAddr;

use anyhow::Result;
use tests::addresses::{BALANCER, FAMILIES, Family, balancer, host, vip};
use tests::injector::{Faults, Injector};
use tests::net::{End, Namespace, veth};
use tests::tap::Tap;

use crate::tenants::{BACKENDS, SITE_NETS};

/// The clients' networks: behind the injector, and connected directly.
const CLIENT_NETS: [u8; 2] = [1, 5];
/// Client addresses of each family in each network: hosts 2 and up.
pub(crate) const CLIENT_HOSTS: u8 = 32;
/// The stranger's network.
const STRANGER_NET: u8 = 9;
/// The only device of every namespace but the node's.
const UPLINK: &str = "uplink";
const MTU: u16 = 1500;

/// Destination and source of a frame.
pub(crate) type Ethernet = ([u8; 6], [u8; 6]);

/// Fields drop in order: injectors before the namespaces of their ends.
#[derive(Debug)]
pub(crate) struct Network {
    /// Towards the clients, and towards the backends.
    pub(crate) injectors: Vec<Injector>,
    pub(crate) clients: [Namespace; 2],
    pub(crate) sites: [Namespace; 2],
    pub(crate) stranger: Namespace,
    pub(crate) node: Namespace,
}

/// The address of a client.
pub(crate) fn client(family: Family, net: usize, number: u8) -> IpAddr {
    host(family, CLIENT_NETS[net], 2 + number)
}

fn hosts(net: u8, numbers: impl Iterator<Item = u8> + Clone) -> Vec<(Family, IpAddr)> {
    let of = |family| numbers.clone().map(move |number| (family, host(family, net, number)));
    FAMILIES.into_iter().flat_map(of).collect()
}

impl Network {
    /// Creates everything.
    pub(crate) fn new(seed: u64) -> Result<Self> {
        let [lossy, direct] = ["lossy-client", "client"].map(Namespace::new);
        let [lossy_site, site] = ["lossy-site", "site"].map(Namespace::new);
        let mut network = Self {
            injectors: Vec::new(),
            clients: [lossy?, direct?],
            sites: [lossy_site?, site?],
            stranger: Namespace::new("stranger")?,
            node: Namespace::new("node")?,
        };
        network.node.forward()?;
        let node = &network.node;
        let mut injectors = Vec::new();
        for (which, (namespace, net)) in network.clients.iter().zip(CLIENT_NETS).enumerate() {
            let lossy = (which == 0).then_some(seed);
            injectors.extend(link(node, namespace, net, &hosts(net, 2..2 + CLIENT_HOSTS), lossy)?);
            routes(namespace, net, "default")?;
            namespace.sysctl("net/ipv4/ip_local_port_range", "1024 65535")?;
            namespace.sysctl("net/ipv4/tcp_max_tw_buckets", "2000000")?;
        }
        for (which, (namespace, net)) in network.sites.iter().zip(SITE_NETS).enumerate() {
            let lossy = (which == 0).then_some(seed.wrapping_add(1));
            injectors.extend(link(node, namespace, net, &hosts(net, 10..10 + BACKENDS), lossy)?);
        }
        let stranger = hosts(STRANGER_NET, 2..3);
        link(node, &network.stranger, STRANGER_NET, &stranger, None)?;
        for (_, address) in stranger {
            node.ip(&format!("route add default via {address}\n"))?;
        }
        // What one connection measured must not slow down the next.
        for namespace in network.clients.iter().chain(&network.sites) {
            namespace.sysctl("net/ipv4/tcp_no_metrics_save", "1")?;
        }
        network.injectors = injectors;
        Ok(network)
    }

    /// The node's addresses that connections have: the VIPs, and those towards backends.
    pub(crate) fn addresses() -> Vec<IpAddr> {
        let own = |family| SITE_NETS.map(|net| balancer(family, net)).into_iter().chain([vip(family)]);
        FAMILIES.into_iter().flat_map(own).collect()
    }

    /// Frames that the stranger sends, with the link addresses they need.
    pub(crate) fn tap_of_stranger(&self) -> Result<(Tap, Ethernet)> {
        let ethernet = (self.node.mac(&device(STRANGER_NET))?, self.stranger.mac(UPLINK)?);
        Ok((Tap::open(&self.stranger, UPLINK)?, ethernet))
    }

    /// Sets the rates of the faults of one injector.
    pub(crate) fn set(&self, injector: usize, loss: u32, duplication: u32, reordering: u32) {
        self.injectors[injector].set(Faults { loss, duplication, reordering, seed: 0 });
    }
}

/// The node's device of a network.
fn device(net: u8) -> String {
    format!("net{net}")
}

/// All devices of the node.
pub(crate) fn devices() -> Vec<String> {
    CLIENT_NETS.into_iter().chain(SITE_NETS).chain([STRANGER_NET]).map(device).collect()
}

/// The name of the node's device with this index, for reports.
pub(crate) fn device_name(node: &Namespace, index: u32) -> String {
    devices()
        .into_iter()
        .find(|name| node.ifindex(name).is_ok_and(|own| own == index))
        .unwrap_or_else(|| index.to_string())
}

/// Connects a namespace to the node, with an injector if there is a seed for one.
fn link(
    node: &Namespace,
    far: &Namespace,
    net: u8,
    hosts: &[(Family, IpAddr)],
    lossy: Option<u64>,
) -> Result<Option<Injector>> {
    let prefixed =
        |family: Family, address: IpAddr| format!("{address}/{}", if family.is_v4() { 24 } else { 64 });
    let ours = FAMILIES.map(|family| prefixed(family, host(family, net, BALANCER)));
    let ours = ours.each_ref().map(String::as_str);
    let theirs: Vec<String> = hosts.iter().map(|(family, address)| prefixed(*family, *address)).collect();
    let theirs: Vec<&str> = theirs.iter().map(String::as_str).collect();
    let name = device(net);
    let near_end = End { namespace: node, device: &name, addresses: &ours };
    let far_end = End { namespace: far, device: UPLINK, addresses: &theirs };
    let injector = match lossy {
        Some(seed) => {
            let none = Faults { loss: 0, duplication: 0, reordering: 0, seed };
            Some(Injector::between(near_end, far_end, MTU, none)?)
        }
        None => {
            veth(near_end, far_end, MTU)?;
            None
        }
    };
    let neighbour = |of: IpAddr, mac: [u8; 6], dev: &str| {
        let mac = mac.map(|byte| format!("{byte:02x}")).join(":");
        format!("neigh replace {of} lladdr {mac} dev {dev} nud permanent\n")
    };
    let (near_mac, far_mac) = (node.mac(&name)?, far.mac(UPLINK)?);
    node.ip(&hosts.iter().map(|(_, address)| neighbour(*address, far_mac, &name)).collect::<String>())?;
    let ours = FAMILIES.map(|family| neighbour(balancer(family, net), near_mac, UPLINK));
    far.ip(&ours.concat())?;
    Ok(injector)
}

fn routes(far: &Namespace, net: u8, to: &str) -> Result<()> {
    FAMILIES
        .into_iter()
        .try_for_each(|family| far.ip(&format!("route add {to} via {}\n", balancer(family, net))))
}
