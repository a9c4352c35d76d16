//! The egress to the desired backends over our devices, kept and updated across changes.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::net::IpAddr;
use std::sync::Arc;

use foldhash::HashMap;

use super::devices::{Choice, Chosen, choose};
use crate::model::{Desired, DesiredRoute, Difference, Node};
use crate::net::NetError;
use crate::net::egress::towards;
use crate::plan::{Hop, Hops, NextHops};

/// Changed routes are counted one by one if they are at most this fraction of all: one in this many.
const SHARE: usize = 8;
/// This many changed routes are always counted one by one.
const FEW: usize = 64;

/// Returns the next hop for each address of a list.
type Ask = fn(&[IpAddr], &Node) -> Result<Vec<Option<Hop>>, NetError>;

/// What the kernel reports about the egress to backends, and which devices are ours.
#[derive(Debug)]
pub(super) struct Egress {
    /// Queries the kernel.
    ask: Ask,
    choice: Choice,
    node: Arc<Node>,
    /// The number of addresses reached over each device.
    over: BTreeMap<u32, usize>,
    chosen: Arc<Chosen>,
    /// The next hop to each address of a backend.
    hops: Hops,
    /// The network changed since the next hops were found.
    has_moved: bool,
    /// The counts do not match what is in effect and must be recomputed.
    is_stale: bool,
}

/// The differences of two lists of routes.
type Changed<'a> = Difference<'a, Arc<DesiredRoute>>;

impl Egress {
    /// For the node as it is now. Does not query the kernel yet.
    pub(super) fn new(choice: Choice, node: Arc<Node>) -> Self {
        Self {
            ask: towards,
            choice,
            node,
            over: BTreeMap::new(),
            chosen: Arc::default(),
            hops: Hops::default(),
            has_moved: true,
            is_stale: true,
        }
    }

    /// The egress over our devices.
    pub(super) fn hops(&self) -> &Hops {
        &self.hops
    }

    /// The devices that are ours.
    pub(super) fn chosen(&self) -> Arc<Chosen> {
        Arc::clone(&self.chosen)
    }

    /// The node's network as last read.
    pub(super) fn node(&self) -> &Arc<Node> {
        &self.node
    }

    /// Replaces the node's network. Everything known about egress becomes invalid.
    pub(super) fn look_again(&mut self, node: Arc<Node>) {
        self.node = node;
        self.has_moved = true;
        self.is_stale = true;
    }

    /// Whether what was found last still holds: the network has not changed since, and it took effect.
    pub(super) fn is_current(&self) -> bool {
        !self.is_stale
    }

    /// Must be called if what was found last did not take effect: the next [`Self::find`] or [`Self::follow`]
    /// counts everything again.
    pub(super) fn distrust(&mut self) {
        self.is_stale = true;
    }

    /// Finds the egress to all backends. Queries the kernel only for addresses that are not known.
    pub(super) fn find(&mut self, desired: &Desired) -> Result<(), NetError> {
        self.is_stale = true;
        let mut backends: HashMap<IpAddr, u32> = HashMap::default();
        for route in desired.routes.iter() {
            addresses(route).for_each(|address| *backends.entry(address).or_default() += 1);
        }
        let known = |address: &IpAddr| self.hops.towards.said(address).filter(|_| !self.has_moved);
        let mut unknown: Vec<IpAddr> =
            backends.keys().filter(|address| known(address).is_none()).copied().collect();
        unknown.sort_unstable();
        let mut found: Vec<_> = unknown.iter().copied().zip((self.ask)(&unknown, &self.node)?).collect();
        found.extend(backends.keys().filter_map(|address| Some((*address, known(address)?))));
        let mut towards = NextHops::default();
        self.over.clear();
        for (address, hop) in found {
            if let Some(hop) = &hop {
                *self.over.entry(hop.ifindex).or_default() += 1;
            }
            towards.put(address, backends.get(&address).copied().unwrap_or_default(), hop);
        }
        self.chosen = Arc::new(choose(&self.choice, &self.node, &mut towards));
        self.set(towards);
        (self.has_moved, self.is_stale) = (false, false);
        Ok(())
    }

    /// Like [`Self::find`], where only these routes differ from those whose egress was found last.
    pub(super) fn follow(&mut self, desired: &Desired, changed: &[Changed<'_>]) -> Result<(), NetError> {
        let is_little = changed.len() <= FEW.max(desired.routes.len() / SHARE);
        let is_counted = !replace(&mut self.is_stale, true) && is_little && self.count(changed)?;
        self.is_stale = false;
        if is_counted { Ok(()) } else { self.find(desired) }
    }

    /// Removes next hops over devices without our program. Returns whether a chosen device lacks it.
    pub(super) fn keep_to(&mut self, attached: &BTreeSet<u32>) -> bool {
        let is_less = !self.chosen.devices.is_subset(attached);
        if is_less {
            self.hops.towards.keep_to(attached);
            self.hops.edition += 1;
            // The devices may have it the next time.
            self.is_stale = true;
        }
        is_less
    }

    /// Counts the backends of changed routes. Returns `false` if the set of our devices may change with them.
    fn count(&mut self, changed: &[Changed<'_>]) -> Result<bool, NetError> {
        // By address: how many backends lost it, and how many gained it.
        let mut more: BTreeMap<IpAddr, (u32, u32)> = BTreeMap::new();
        for (old, new) in changed {
            old.iter()
                .flat_map(|old| addresses(old))
                .for_each(|address| more.entry(address).or_default().0 += 1);
            new.iter()
                .flat_map(|new| addresses(new))
                .for_each(|address| more.entry(address).or_default().1 += 1);
        }
        let towards = &mut self.hops.towards;
        let unknown: Vec<IpAddr> =
            more.keys().filter(|address| towards.said(address).is_none()).copied().collect();
        let found = (self.ask)(&unknown, &self.node)?;
        let mut devices_stay = true;
        for (address, hop) in unknown.into_iter().zip(found) {
            if let Some(hop) = &hop {
                *self.over.entry(hop.ifindex).or_default() += 1;
                devices_stay &= self.chosen.devices.contains(&hop.ifindex);
            }
            towards.put(address, 0, hop);
        }
        for (address, (fewer, more)) in more {
            if towards.count(&address, more, fewer) > 0 {
                continue;
            }
            let gone = towards.said(&address).flatten();
            towards.remove(&address);
            if let Some(hop) = gone {
                let left = self.over.entry(hop.ifindex).or_default();
                *left = left.saturating_sub(1);
                devices_stay &= *left > 0 && self.chosen.devices.contains(&hop.ifindex);
            }
        }
        Ok(devices_stay)
    }

    /// Replaces the egress. If it is the same as before, the edition does not change.
    fn set(&mut self, towards: NextHops) {
        let before = &self.hops;
        let is_same = before.edition != 0 && before.towards == towards && before.own == self.node.own;
        let edition = if is_same { before.edition } else { before.edition + 1 };
        self.hops = Hops { towards, own: self.node.own.clone(), edition };
    }
}

/// The addresses of a route's backends, except refusing ones.
fn addresses(route: &DesiredRoute) -> impl Iterator<Item = IpAddr> {
    route.backends.iter().filter(|backend| !backend.is_refusing()).map(|backend| backend.address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BackendSpec, Link};
    use proptest::prelude::*;

    /// Reaches an address over the device of its last byte modulo 5: none, three Ethernet devices, a tunnel.
    fn over(addresses: &[IpAddr], _: &Node) -> Result<Vec<Option<Hop>>, NetError> {
        let hop = |address: &IpAddr| {
            let IpAddr::V4(v4) = address else { return None };
            let ifindex = u32::from(v4.octets()[3]) % 5;
            (ifindex > 0).then_some(Hop {
                source: [192, 0, 2, 1].into(),
                ifindex,
                mtu: 1500,
                is_on_link: true,
            })
        };
        Ok(addresses.iter().map(hop).collect())
    }

    fn node() -> Node {
        let link = |index: u32| {
            let name = format!("d{index}");
            (index, Link { name, mtu: 1500, ethernet: index < 4, ..Link::default() })
        };
        Node { links: (1..5).map(link).collect(), defaults: [1].into(), ..Node::default() }
    }

    fn desired(routes: &BTreeMap<u8, Vec<u8>>) -> Desired {
        let backend = |host: &u8| BackendSpec {
            address: [10, 0, 0, *host].into(),
            port: 443,
            weight: 1,
            failing: false,
        };
        let route = |(name, hosts): (&u8, &Vec<u8>)| DesiredRoute {
            name: format!("{name:03}").into(),
            backends: hosts.iter().map(backend).collect(),
            ..DesiredRoute::default()
        };
        Desired { routes: routes.iter().map(route).map(Arc::new).collect(), ..Desired::default() }
    }

    fn fresh(choice: &Choice, desired: &Desired) -> Egress {
        let mut egress = Egress { ask: over, ..Egress::new(choice.clone(), Arc::new(node())) };
        egress.find(desired).unwrap();
        egress
    }

    proptest! {
        #[test]
        fn ways_that_follow_are_those_that_are_found(
            named in any::<bool>(),
            steps in prop::collection::vec(
                prop::collection::btree_map(0..6u8, prop::collection::vec(0..12u8, 0..4), 0..4),
                1..10,
            ),
        ) {
            let names = ["d1", "d2", "d4"].map(Arc::from).to_vec();
            let choice = if named { Choice::Named(names) } else { Choice::Routes };
            let mut routes = BTreeMap::new();
            let mut before = desired(&routes);
            let mut egress = fresh(&choice, &before);
            for step in steps {
                for (name, hosts) in step {
                    if hosts.is_empty() {
                        routes.remove(&name);
                    } else {
                        routes.insert(name, hosts);
                    }
                }
                let now = desired(&routes);
                let edition = egress.hops().edition;
                let held = egress.hops().towards.clone();
                egress.follow(&now, &before.routes.differences(&now.routes)).unwrap();
                let whole = fresh(&choice, &now);
                prop_assert_eq!(&egress.hops().towards, &whole.hops().towards);
                prop_assert_eq!(egress.chosen(), whole.chosen());
                if egress.hops().edition == edition {
                    let mut both = held.iter().filter_map(|(at, hop)| Some((hop, egress.hops().towards.get(&at)?)));
                    prop_assert!(both.all(|(was, is)| was == is));
                }
                before = now;
            }
        }
    }

    #[test]
    fn backends_over_one_device_share_their_hop() {
        let before = desired(&[(1, vec![1, 6])].into());
        let now = desired(&[(1, vec![1, 6, 11])].into());
        let mut egress = fresh(&Choice::Routes, &before);
        egress.follow(&now, &before.routes.differences(&now.routes)).unwrap();
        let towards = &egress.hops().towards;
        assert_eq!((towards.iter().count(), towards.distinct().count()), (3, 1));
    }

    /// Otherwise every route would be planned again whenever something of the network changes.
    #[test]
    fn a_network_that_changes_no_next_hop_leaves_the_edition() {
        let desired = desired(&[(1, vec![1, 2])].into());
        let mut egress = fresh(&Choice::Routes, &desired);
        let edition = egress.hops().edition;
        egress.look_again(Arc::new(node()));
        assert!(!egress.is_current());
        egress.find(&desired).unwrap();
        assert!(egress.is_current() && egress.hops().edition == edition);
        egress.look_again(Arc::new(node()));
        egress.ask = |addresses, node| {
            let next = |hop: Hop| Hop { mtu: 1400, ..hop };
            Ok(over(addresses, node)?.into_iter().map(|hop| hop.map(next)).collect())
        };
        egress.find(&desired).unwrap();
        assert!(egress.hops().edition > edition);
        assert!(egress.hops().towards.iter().all(|(_, hop)| hop.mtu == 1400));
    }

    #[test]
    fn a_backend_over_known_devices_leaves_the_edition() {
        let mut routes: BTreeMap<u8, Vec<u8>> = [(1, vec![1]), (2, vec![2, 3])].into();
        let before = desired(&routes);
        let mut egress = fresh(&Choice::Routes, &before);
        let edition = egress.hops().edition;
        routes.insert(1, vec![6]);
        let now = desired(&routes);
        egress.follow(&now, &before.routes.differences(&now.routes)).unwrap();
        assert_eq!(egress.hops().edition, edition);
        // The second device leads to no backend any more.
        routes.insert(2, vec![3]);
        let last = desired(&routes);
        egress.follow(&last, &now.routes.differences(&last.routes)).unwrap();
        assert_eq!(egress.chosen().devices, [1, 3].into());
        assert!(egress.keep_to(&[1].into()) && egress.hops().towards.iter().count() == 1);
        assert!(egress.hops().edition > edition);
    }
}
