//! The nodes that announced addresses before this one, to which the programs pass what belongs to connections that are open there. What is
//! known of them outlives the agent.

use std::collections::BTreeMap;

use common::decide::previous::CLOSED_NS;
use common::maps::announced::AnnouncedKey;
use common::maps::name;
use common::maps::previous::{Peer, PeerKey, Previous as Entry};
use tracing::warn;

use super::kernel::key;
use super::ownership::{NodeId, Previous};
use super::wanted::OnDevice;
use crate::dataplane::pin::Pins;
use crate::dataplane::table::{Table, TableError};
use crate::outputs::now_ns;

/// Which node announced what before: those that are named by nothing are forgotten.
#[derive(Debug, Default)]
struct Index {
    nodes: BTreeMap<OnDevice, NodeId>,
    /// How many addresses name a node on a device.
    named: BTreeMap<(u32, NodeId), usize>,
}

impl Index {
    fn insert(&mut self, on_device: OnDevice, node: NodeId) {
        self.nodes.insert(on_device, node);
        *self.named.entry((on_device.0, node)).or_default() += 1;
    }

    /// Removes it. Returns the node if nothing else on the device names it.
    fn remove(&mut self, on_device: &OnDevice) -> Option<NodeId> {
        let node = self.nodes.remove(on_device)?;
        let named = self.named.get_mut(&(on_device.0, node))?;
        *named -= 1;
        if *named > 0 {
            return None;
        }
        self.named.remove(&(on_device.0, node));
        Some(node)
    }
}

/// The maps from which the programs know them.
pub(super) struct PreviousOwners {
    owners: Table<AnnouncedKey, Entry>,
    peers: Table<PeerKey, Peer>,
    index: Index,
    /// When this node left addresses to others that it still knows.
    closed: BTreeMap<OnDevice, u64>,
}

impl PreviousOwners {
    /// Opens the maps, and reads what an earlier agent left in them.
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        let owners = Table::open(pins.folder(), name::PREVIOUS)?;
        let (mut index, mut closed) = (Index::default(), BTreeMap::new());
        owners.walk(|key: &AnnouncedKey, entry: &Entry| {
            let on_device = (key.device, key.address.into());
            index.insert(on_device, entry.node);
            if entry.closed_ns != 0 {
                closed.insert(on_device, entry.closed_ns);
            }
        })?;
        Ok(Self { owners, peers: Table::open(pins.folder(), name::PEERS)?, index, closed })
    }

    /// This node announces an address by this epoch, and another one did by the epoch before. What is known of the same epoch stays: the
    /// address is announced once more, or was by an earlier agent. Where there is no room, connections that are open there are reset.
    pub(super) fn keep(
        &mut self,
        on_device: &OnDevice,
        epoch: u64,
        previous: Option<Previous>,
    ) -> Result<(), TableError> {
        match self.owners.look_up(&key(on_device))?.filter(|entry| entry.epoch == epoch) {
            Some(entry) if entry.closed_ns == 0 => return Ok(()),
            Some(entry) => {
                self.closed.remove(on_device);
                return self.owners.put(&key(on_device), &Entry { closed_ns: 0, ..entry });
            }
            None => {}
        }
        self.forget(on_device)?;
        let Some(Previous { node, link, is_alive }) = previous else { return Ok(()) };
        let (device, address) = *on_device;
        let now_ns = now_ns();
        let peer = Peer::new(if is_alive { now_ns } else { 0 }, link);
        let stored = self.peers.put(&PeerKey::new(node, device), &peer);
        let entry = Entry { epoch, since_ns: now_ns, node, closed_ns: 0 };
        if let Err(error) = stored.and_then(|()| self.owners.put(&key(on_device), &entry)) {
            warn!(%error, device, %address, "connections that are open at the node that announced the address before are reset");
            return Ok(());
        }
        self.index.insert(*on_device, node);
        Ok(())
    }

    /// Another node announces the address from now on. Until clients know its link address, the programs go on passing on what they send
    /// here: they judge the time, so that nothing is left of an agent that dies.
    pub(super) fn close(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        let Some(entry) = self.owners.look_up(&key(on_device))? else { return Ok(()) };
        let closed_ns = now_ns();
        self.owners.put(&key(on_device), &Entry { closed_ns, ..entry })?;
        self.closed.insert(*on_device, closed_ns);
        Ok(())
    }

    /// Forgets what the programs do not pass on any more.
    pub(super) fn sweep(&mut self, now_ns: u64) -> Result<(), TableError> {
        let is_over = |closed_ns: u64| now_ns.saturating_sub(closed_ns) >= CLOSED_NS;
        let over: Vec<OnDevice> =
            self.closed.iter().filter(|(_, closed_ns)| is_over(**closed_ns)).map(|(key, _)| *key).collect();
        over.iter().try_for_each(|on_device| self.forget(on_device))
    }

    /// This node does not announce the address any more.
    pub(super) fn forget(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        self.closed.remove(on_device);
        self.owners.remove(&key(on_device))?;
        if let Some(node) = self.index.remove(on_device) {
            self.peers.remove(&PeerKey::new(node, on_device.0))?;
        }
        Ok(())
    }

    /// Forgets all of them.
    pub(super) fn wipe(&mut self) -> Result<(), TableError> {
        let all: Vec<OnDevice> = self.index.nodes.keys().copied().collect();
        all.iter().try_for_each(|on_device| self.forget(on_device))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::IpAddr;

    #[test]
    fn a_node_is_forgotten_with_the_last_address_that_names_it_on_the_device() {
        let at = |device, last| (device, IpAddr::from([192, 0, 2, last]));
        let mut index = Index::default();
        for (on_device, node) in [(at(2, 1), 7), (at(2, 2), 7), (at(3, 1), 7), (at(2, 3), 8)] {
            index.insert(on_device, node);
        }
        assert_eq!(index.remove(&at(2, 9)), None, "never known");
        assert_eq!(index.remove(&at(2, 1)), None);
        assert_eq!(index.remove(&at(2, 1)), None, "once");
        assert_eq!(index.remove(&at(2, 2)), Some(7));
        assert_eq!(index.remove(&at(2, 3)), Some(8));
        assert_eq!(index.remove(&at(3, 1)), Some(7));
        assert!(index.nodes.is_empty() && index.named.is_empty());
    }
}
