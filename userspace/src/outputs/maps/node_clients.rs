//! Clients on the node itself: routes lead what they send to a VIP into a pair of devices, and the program at its other end gets it as
//! from any device. The pair, its routes and the program outlive the daemon.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::replace;
use std::net::IpAddr;

use common::maps::name;
use tracing::{info, warn};

use crate::dataplane::attach::{self, AttachError};
use crate::dataplane::load::Programs;
use crate::dataplane::pin::{PinError, Pins};
use crate::dataplane::table::{Table, TableError};
use crate::model::{Desired, Node, Problem};
use crate::net::NetError;
use crate::net::pair::{self, FAR, NEAR, Pair, PairError};
use crate::net::sysctl;
use crate::plan::Leading;

const FIELD: &str = "settings.nodeClients";

/// Why clients on the node do not reach VIPs.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NodeClientsError {
    #[error(transparent)]
    Pair(#[from] PairError),
    #[error(transparent)]
    Net(#[from] NetError),
    #[error(transparent)]
    Attach(#[from] AttachError),
    #[error(transparent)]
    Table(#[from] TableError),
    #[error(transparent)]
    Pin(#[from] PinError),
}

/// What is known of the pair.
#[derive(Debug, Default)]
pub(super) struct NodeClients {
    /// Nobody is led to a node that is left: Vestibule is withdrawn from the cluster or from this node.
    pub(super) is_withdrawn: bool,
    /// The end with the program, as the maps say.
    far: Option<u32>,
    /// The program there is this daemon's.
    is_attached: bool,
    /// There is no pair, and nothing of one.
    is_left: bool,
    problems: Vec<Problem>,
}

impl NodeClients {
    /// What an earlier daemon left.
    pub(super) fn found(pins: &Pins) -> Self {
        Self { far: device(pins), ..Self::default() }
    }

    /// The end of the pair that has the program.
    pub(super) fn far(&self) -> Option<u32> {
        self.far
    }

    /// Whether nobody is led by the pair, and nothing is left of it.
    pub(super) fn is_off(&self, desired: &Desired) -> bool {
        self.is_left && !desired.settings.node_clients
    }

    /// What there is to say.
    pub(super) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// Makes pair and routes what they should be, or removes them where nobody wants them. `leading`: as [`crate::plan::Applied::leading`].
    pub(super) fn follow(
        &mut self,
        desired: &Desired,
        leading: &BTreeMap<IpAddr, Leading>,
        node: &Node,
        programs: &mut Programs,
        pins: &Pins,
    ) {
        let is_wanted = desired.settings.node_clients && !self.is_withdrawn;
        let outcome = match is_wanted {
            true => self.serve(&wanted(desired, leading, node), programs, pins),
            false if self.is_left => Ok(Vec::new()),
            false => self.leave(pins),
        };
        let problems = outcome.unwrap_or_else(|error| {
            let what = match is_wanted {
                true => {
                    format!("clients on the node itself may not reach the addresses of listeners: {error}")
                }
                false => format!("the pair of devices for clients on the node itself stays: {error}"),
            };
            let remedy =
                format!("see `vestibule doctor`; `ip link del {NEAR}` removes the pair and its routes");
            vec![Problem::warning(FIELD, what, remedy)]
        });
        if replace(&mut self.problems, problems) != self.problems {
            self.problems.iter().for_each(|problem| warn!("{problem}"));
        }
    }

    fn serve(
        &mut self,
        wanted: &BTreeMap<IpAddr, Option<IpAddr>>,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Result<Vec<Problem>, NodeClientsError> {
        self.is_left = false;
        let pair = pair::make()?;
        let mut problems = Vec::new();
        if let Err(error) = [NEAR, FAR].into_iter().try_for_each(sysctl::forward) {
            let what = format!(
                "the kernel does not forward on {FAR}, so nothing that clients on the node send reaches a backend: {error}"
            );
            let remedy =
                format!("`sysctl -w net.ipv4.conf.{FAR}.forwarding=1 net.ipv6.conf.{FAR}.forwarding=1`");
            problems.push(Problem::warning(FIELD, what, remedy));
        }
        if self.far != Some(pair.far) || !self.is_attached || !attach::is_attached(programs, pair.far)? {
            attach::attach(programs, pins, pair.far)?;
            info!(device = FAR, "attached, for clients on the node itself");
        }
        // Before any route: what the program passes on there, it drops.
        Table::<u32, u32>::open(pins.folder(), name::NODE_CLIENTS)?.put(&0, &pair.far)?;
        (self.far, self.is_attached) = (Some(pair.far), true);
        let changes = pair::routes(pair)?.changes_to(wanted);
        let refused = pair::carry_out(&changes, pair)?;
        let added = changes.add.len() + changes.replace.len();
        if added > 0 || !changes.remove.is_empty() {
            info!(added, removed = changes.remove.len(), "routes for clients on the node itself");
        }
        if let Some(first) = changes.blocked.first() {
            let what = format!(
                "clients on the node itself follow another program's route to {} of the addresses, such as {first}",
                changes.blocked.len()
            );
            problems.push(Problem::warning(
                FIELD,
                what,
                "remove that route from the main table, if it is not needed",
            ));
        }
        if let Some((address, error)) = refused.first() {
            let what = format!(
                "the kernel refuses {} routes into the pair, such as to {address}: {error}",
                refused.len()
            );
            problems.push(Problem::warning(
                FIELD,
                what,
                "it is tried again with each change, and every ten seconds",
            ));
        }
        Ok(problems)
    }

    fn leave(&mut self, pins: &Pins) -> Result<Vec<Problem>, NodeClientsError> {
        if leave(pins)? {
            info!("the pair for clients on the node itself is removed");
        }
        (self.far, self.is_attached, self.is_left) = (None, false, true);
        Ok(Vec::new())
    }
}

/// Removes the pair with its routes, then what the pins have of it. Returns whether there was one. A pair that these pins know nothing
/// of is another instance's.
pub(crate) fn leave(pins: &Pins) -> Result<bool, NodeClientsError> {
    let known = device(pins);
    let mut is_removed = false;
    if let Some(pair) = ours(pins, known)? {
        pair::remove(pair)?;
        attach::detach(pins, pair.far)?;
        is_removed = true;
    }
    if known.is_some() {
        Table::<u32, u32>::open(pins.folder(), name::NODE_CLIENTS)?.put(&0, &0)?;
    }
    Ok(is_removed)
}

/// Returns the pair, if it is that of these pins: the program at its end is pinned there, or the maps name it.
fn ours(pins: &Pins, known: Option<u32>) -> Result<Option<Pair>, NodeClientsError> {
    let linked = pins.linked_devices()?;
    let found = match pair::find() {
        // Another program's device.
        Err(PairError::Taken(_)) => None,
        found => found?,
    };
    Ok(found.filter(|pair| known == Some(pair.far) || linked.contains(&pair.far)))
}

/// Returns the device that the maps name. A release before this one made none of it.
fn device(pins: &Pins) -> Option<u32> {
    let table = Table::<u32, u32>::open(pins.folder(), name::NODE_CLIENTS).ok()?;
    table.look_up(&0).ok().flatten().filter(|device| *device != 0)
}

/// Returns the addresses that routes lead into the pair, each with the source that the node's own sockets have by it. Left out are the
/// node's own addresses, which no route reaches, and those of which each node leads to its own backends, if it has none: they are
/// reached by the wire.
fn wanted(
    desired: &Desired,
    leading: &BTreeMap<IpAddr, Leading>,
    node: &Node,
) -> BTreeMap<IpAddr, Option<IpAddr>> {
    let vips = desired.listeners.iter().flat_map(|listener| &listener.addresses);
    let leads = |vip: &&IpAddr| leading.get(vip).is_none_or(|leading| leading.here);
    let vips: BTreeSet<IpAddr> = vips.filter(|vip| !node.own.contains(*vip)).filter(leads).copied().collect();
    let sources = [true, false].map(|is_v4| source(node, is_v4));
    let by_family = |vip: &IpAddr| if vip.is_ipv4() { sources[0] } else { sources[1] };
    vips.into_iter().map(|vip| (vip, by_family(&vip))).collect()
}

/// Returns the node's address of a family, the same each time: of a device with a default route, if there is one, and the lowest.
/// Others might be by chance an address that is only lent to the node.
fn source(node: &Node, is_v4: bool) -> Option<IpAddr> {
    let is_usable = |address: &IpAddr| match address {
        IpAddr::V4(address) => is_v4 && !address.is_link_local() && !address.is_loopback(),
        IpAddr::V6(address) => !is_v4 && !address.is_unicast_link_local() && !address.is_loopback(),
    };
    let usable = node.answered.iter().filter(|(_, address)| is_usable(address));
    usable
        .min_by_key(|(device, address)| (!node.defaults.contains(device), *device, *address))
        .map(|(_, address)| *address)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{DesiredListener, Protocol};

    fn address(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn routes_lead_to_vips_that_are_not_the_nodes_own_and_are_served_here() {
        let vips = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4", "2001:db8::1"].map(address);
        let listener = |addresses: &[IpAddr]| DesiredListener {
            name: "l".into(),
            addresses: addresses.to_vec(),
            port: 443,
            protocol: Protocol::Tls,
            route: None,
        };
        let desired =
            Desired { listeners: vec![listener(&vips), listener(&vips[..1])], ..Desired::default() };
        let here = |here| Leading { here, ..Leading::default() };
        let leading = [(vips[2], here(true)), (vips[3], here(false))].into();
        let node =
            Node { own: [vips[1]].into(), answered: [(2, address("192.0.2.7"))].into(), ..Node::default() };
        let v4 = Some(address("192.0.2.7"));
        assert_eq!(wanted(&desired, &leading, &node), [(vips[0], v4), (vips[2], v4), (vips[4], None)].into());
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
        let mut node = Node { answered: answered.into(), defaults: [3].into(), ..Node::default() };
        assert_eq!(
            [true, false].map(|v4| source(&node, v4)),
            ["10.0.0.8", "2001:db8::2"].map(|text| Some(address(text)))
        );
        node.defaults.clear();
        assert_eq!(source(&node, true), Some(address("10.1.0.1")));
        node.answered.clear();
        assert_eq!(source(&node, true), None);
    }
}
