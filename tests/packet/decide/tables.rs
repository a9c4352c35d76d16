//! Random tables: the desired state, which backends a node can reach, and which are being removed.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tests::addresses::{FAMILIES, Family, TENANT_NETS, balancer, host, vip};
use tests::dice::Dice;
use tests::program::Programs;
use tests::world::Device;
use userspace::model::{
    Affinity, BackendSpec, Desired, DesiredListener, DesiredRoute, Pattern, Protocol, ServerName, Settings,
    SourceRanges,
};
use userspace::plan::{Hop, Hops};

use super::names;

/// The hosts of tenant a's network that have backends.
const HOSTS: [u8; 6] = [2, 3, 4, 5, 6, 7];
/// One of these hosts. A route with many backends has nearly all of them on it; when it is unreachable, they
/// are skipped in a row.
const CROWDED: u8 = 4;
const PORTS: [u16; 3] = [443, 8443, 20_001];

/// The desired state of a node, and its unreachable backends.
#[derive(Clone, Debug)]
pub(super) struct Tables {
    pub(super) desired: Desired,
    /// Addresses of backends that the node has no route to.
    pub(super) unreachable: BTreeSet<IpAddr>,
}

/// Returns addresses that clients may dial, with a listener or without.
fn vips() -> [IpAddr; 4] {
    let other = |family| match vip(family) {
        IpAddr::V4(address) => IpAddr::from(u32::from(address).wrapping_add(1).to_be_bytes()),
        IpAddr::V6(address) => IpAddr::from(u128::from(address).wrapping_add(1).to_be_bytes()),
    };
    let [v4, v6] = FAMILIES;
    [vip(v4), other(v4), vip(v6), other(v6)]
}

impl Tables {
    pub(super) fn random(dice: &mut Dice) -> Self {
        let count = dice.count(1, 7);
        let mut routes: Vec<DesiredRoute> = (0..count)
            .map(|number| DesiredRoute {
                name: format!("route-{number}").into(),
                backends: backends(dice, number).into(),
                source_ranges: dice.one_in(4).then(|| source_ranges(dice)),
                affinity: dice.pick(&[Affinity::None, Affinity::None, Affinity::ClientIp]),
                traffic: Default::default(),
                ..DesiredRoute::default()
            })
            .collect();
        let listeners = listeners(dice, count);
        let mut taken = BTreeMap::new();
        for (place, listener) in listeners.iter().enumerate() {
            if listener.protocol == Protocol::Tls {
                for pattern in patterns(dice) {
                    taken.insert((place, pattern), dice.index(count));
                }
            }
        }
        for (number, route) in routes.iter_mut().enumerate() {
            let own = taken.iter().filter(|(_, taker)| **taker == number);
            route.names = own.map(|(name, _)| name.clone()).collect();
        }
        let settings = Settings { max_flows: 1024, max_hellos: 256, ..Settings::default() };
        let routes = routes.into_iter().map(Arc::new).collect();
        let desired = Desired { settings, listeners, routes, ..Desired::default() };
        let addresses = FAMILIES.into_iter().flat_map(|family| HOSTS.map(|number| address(family, number)));
        let unreachable = addresses.filter(|one| dice.one_in(if is_crowded(*one) { 2 } else { 6 })).collect();
        Self { desired, unreachable }
    }

    /// Returns what a client dials: in most cases a listener.
    pub(super) fn vip(&self, dice: &mut Dice) -> SocketAddr {
        let sockets = |listener: &DesiredListener| {
            let port = listener.port;
            listener.addresses.iter().map(move |address| SocketAddr::new(*address, port)).collect::<Vec<_>>()
        };
        let all: Vec<SocketAddr> = self.desired.listeners.iter().flat_map(sockets).collect();
        match all.is_empty() || dice.one_in(16) {
            true => SocketAddr::new(dice.pick(&vips()), dice.pick(&[9, PORTS[0], PORTS[1], PORTS[2]])),
            false => dice.pick(&all),
        }
    }

    /// Returns the names matched on this listener, wildcards and patterns of one label without their `*.`.
    pub(super) fn patterns(&self, vip: SocketAddr) -> Vec<&str> {
        let listeners = &self.desired.listeners;
        let here =
            listeners.iter().position(|one| one.port == vip.port() && one.addresses.contains(&vip.ip()));
        let all = self.desired.routes.iter().flat_map(|route| &route.names);
        all.filter(|(place, _)| Some(*place) == here)
            .map(|(_, Pattern::Exact(name) | Pattern::OneLabel(name) | Pattern::Wildcard(name))| {
                name.as_str()
            })
            .collect()
    }

    /// Returns the next hop to each backend that can be reached.
    pub(super) fn hops(&self, programs: &Programs) -> Hops {
        let ifindex = programs.world.ifindex(Device::Backend);
        let reached = self.desired.backend_addresses().into_iter();
        let towards = reached.filter(|address| !self.unreachable.contains(address)).map(|address| {
            let family = FAMILIES[usize::from(address.is_ipv6())];
            let source = balancer(family, TENANT_NETS[0]);
            (address, Hop { source, ifindex, mtu: 1500, is_on_link: true })
        });
        Hops { towards: towards.collect(), ..Hops::default() }
    }
}

fn address(family: Family, number: u8) -> IpAddr {
    host(family, TENANT_NETS[0], number)
}

fn is_crowded(one: IpAddr) -> bool {
    FAMILIES.iter().any(|family| address(*family, CROWDED) == one)
}

/// Returns the `ip` commands that set the link addresses of all hosts that have backends.
pub(super) fn neighbours() -> String {
    let mac = Device::Backend.far_mac().map(|byte| format!("{byte:02x}")).join(":");
    let device = Device::Backend.name();
    let hosts = FAMILIES.into_iter().flat_map(|family| HOSTS.map(|number| address(family, number)));
    hosts.map(|host| format!("neigh replace {host} lladdr {mac} dev {device} nud permanent\n")).collect()
}

/// Returns random listeners. Each (address, port) belongs to one listener only.
fn listeners(dice: &mut Dice, routes: usize) -> Vec<DesiredListener> {
    let mut free: BTreeSet<SocketAddr> = BTreeSet::new();
    for address in vips() {
        free.extend(PORTS.map(|port| SocketAddr::new(address, port)));
    }
    let count = dice.count(1, 5);
    let each = (0..count).map(|number| {
        let port = dice.pick(&PORTS);
        let wanted = vips().into_iter().filter(|_| !dice.one_in(3)).collect::<Vec<_>>();
        let mut addresses: Vec<IpAddr> =
            wanted.into_iter().filter(|address| free.remove(&SocketAddr::new(*address, port))).collect();
        addresses.sort();
        DesiredListener {
            name: format!("listener-{number}").into(),
            addresses,
            port,
            protocol: if dice.one_in(5) { Protocol::Tcp } else { Protocol::Tls },
            route: (!dice.one_in(2)).then(|| dice.index(routes)),
        }
    });
    each.collect()
}

/// Returns the patterns of one listener.
fn patterns(dice: &mut Dice) -> Vec<Pattern> {
    let count = dice.count(1, 16);
    let mut patterns: Vec<Pattern> = Vec::new();
    for _ in 0..count {
        // Above or below an existing one, so that they overlap.
        let name = match patterns.last() {
            Some(Pattern::Exact(near) | Pattern::OneLabel(near) | Pattern::Wildcard(near))
                if dice.one_in(2) =>
            {
                // The same one, too, as a pattern of another kind.
                if dice.one_in(4) { near.to_string() } else { names::relative(dice, near.as_str()) }
            }
            _ => names::name(dice),
        };
        let Ok(name) = ServerName::new(&name) else { continue };
        patterns.push(dice.pick::<fn(_) -> _>(&[Pattern::Exact, Pattern::OneLabel, Pattern::Wildcard])(name));
    }
    patterns
}

/// Returns ranges that hold some of the clients of `super::client`.
fn source_ranges(dice: &mut Dice) -> SourceRanges {
    let all = [
        "198.18.0.0/15",
        "198.18.0.0/16",
        "198.18.128.0/17",
        "198.19.7.0/24",
        "0.0.0.0/0",
        "::/0",
        "2001:db8::/65",
        "2001:db8::/64",
        "2001:db8:0:0:8000::/66",
    ];
    let count = dice.below(4);
    SourceRanges::new(&(0..count).map(|_| dice.pick(&all).parse().expect("a CIDR")).collect::<Vec<_>>())
}

/// Returns the backends of a route. A port belongs to one route only, so a backend identifies the route.
fn backends(dice: &mut Dice, route: usize) -> Vec<BackendSpec> {
    let mut backends = BTreeMap::new();
    for family in FAMILIES {
        let count = match dice.below(10) {
            0 => 0,
            1..=4 => 1,
            5 | 6 => 2,
            7 | 8 => dice.count(3, 8),
            _ => dice.count(20, 40),
        };
        let heavy = count < 4 && dice.one_in(3);
        for number in 0..count {
            let port = 6000 + 100 * route as u16 + number as u16;
            let weight = if heavy { dice.pick(&[1, 50, 7]) } else { dice.pick(&[0, 1, 1, 1, 1, 2, 2, 3]) };
            let crowd = count > 8 && !dice.one_in(8);
            let address = address(family, if crowd { CROWDED } else { dice.pick(&HOSTS) });
            let failing = dice.one_in(10);
            backends.insert((address, port), BackendSpec { address, port, weight, failing });
        }
        if dice.one_in(5) {
            let refusing = BackendSpec::refusing(address(family, 2), dice.pick(&[0, 1, 2]));
            backends.insert((refusing.address, refusing.port), refusing);
        }
    }
    backends.into_values().collect()
}
