//! The nodes that announced addresses before this one, to which the programs pass what belongs to connections that are open there. What is
//! known of them outlives the agent.

use std::collections::BTreeMap;

use common::decide::previous::CLOSED_NS;
use common::maps::announced::AnnouncedKey;
use common::maps::name;
use common::maps::previous::{Peer, PeerKey, Previous as Entry};
use common::maps::segment::PRESENT_NS;
use tracing::warn;

use super::kernel::key;
use super::ownership::{NodeId, Previous};
use super::wanted::OnDevice;
use crate::dataplane::pin::Pins;
use crate::dataplane::table::{Table, TableError};

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
pub(super) trait Known {
    fn owner(&self, on_device: &OnDevice) -> Result<Option<Entry>, TableError>;
    fn put_owner(&mut self, on_device: &OnDevice, entry: &Entry) -> Result<(), TableError>;
    fn remove_owner(&mut self, on_device: &OnDevice) -> Result<(), TableError>;
    fn owners(&self) -> Result<Vec<(OnDevice, Entry)>, TableError>;
    fn peer(&self, key: &PeerKey) -> Result<Option<Peer>, TableError>;
    fn put_peer(&mut self, key: &PeerKey, peer: &Peer) -> Result<(), TableError>;
    fn remove_peer(&mut self, key: &PeerKey) -> Result<(), TableError>;
    fn peers(&self) -> Result<Vec<PeerKey>, TableError>;
}

/// Those of the kernel.
pub(super) struct Pinned {
    owners: Table<AnnouncedKey, Entry>,
    peers: Table<PeerKey, Peer>,
}

impl Known for Pinned {
    fn owner(&self, on_device: &OnDevice) -> Result<Option<Entry>, TableError> {
        self.owners.look_up(&key(on_device))
    }

    fn put_owner(&mut self, on_device: &OnDevice, entry: &Entry) -> Result<(), TableError> {
        self.owners.put(&key(on_device), entry)
    }

    fn remove_owner(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        self.owners.remove(&key(on_device)).map(drop)
    }

    fn owners(&self) -> Result<Vec<(OnDevice, Entry)>, TableError> {
        let mut all = Vec::new();
        self.owners.walk(|key: &AnnouncedKey, entry: &Entry| {
            all.push(((key.device, key.address.into()), *entry));
        })?;
        Ok(all)
    }

    fn peer(&self, key: &PeerKey) -> Result<Option<Peer>, TableError> {
        self.peers.look_up(key)
    }

    fn put_peer(&mut self, key: &PeerKey, peer: &Peer) -> Result<(), TableError> {
        self.peers.put(key, peer)
    }

    fn remove_peer(&mut self, key: &PeerKey) -> Result<(), TableError> {
        self.peers.remove(key).map(drop)
    }

    fn peers(&self) -> Result<Vec<PeerKey>, TableError> {
        let mut all = Vec::new();
        self.peers.walk(|key: &PeerKey, _: &Peer| all.push(*key))?;
        Ok(all)
    }
}

/// Whether an entry that the programs have says already what `peer` would. To put it all the same would bring back that the node is attended,
/// just as a program finds its agent dead.
fn stays(was: &Peer, peer: &Peer, now_ns: u64) -> bool {
    let is_present = was.last_ns() != 0 && now_ns.saturating_sub(was.last_ns()) <= PRESENT_NS;
    peer.is_attended() && was.is_attended() && was.link == peer.link && is_present
}

/// Who announced what before.
pub(super) struct PreviousOwners<K = Pinned> {
    known: K,
    index: Index,
    /// When this node left addresses to others that it still knows.
    closed: BTreeMap<OnDevice, u64>,
}

impl PreviousOwners {
    /// Opens the maps, and reads what an earlier agent left in them.
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        let owners = Table::open(pins.folder(), name::PREVIOUS)?;
        Self::of(Pinned { owners, peers: Table::open(pins.folder(), name::PEERS)? })
    }
}

impl<K: Known> PreviousOwners<K> {
    /// Reads the maps. Nodes that no address names are forgotten: an earlier agent ended between two writes.
    fn of(mut known: K) -> Result<Self, TableError> {
        let (mut index, mut closed) = (Index::default(), BTreeMap::new());
        for (on_device, entry) in known.owners()? {
            index.insert(on_device, entry.node);
            if entry.closed_ns != 0 {
                closed.insert(on_device, entry.closed_ns);
            }
        }
        for peer in known.peers()? {
            if !index.named.contains_key(&(peer.device, peer.node)) {
                known.remove_peer(&peer)?;
            }
        }
        Ok(Self { known, index, closed })
    }

    /// This node announces an address by this epoch, and another one did by the epoch before. What is known of the same epoch stays: the
    /// address is announced once more, or was by an earlier agent. It also stays where nobody is known to have announced the address since
    /// this node did. Where there is no room, connections that are open there are reset.
    pub(super) fn keep(
        &mut self,
        on_device: &OnDevice,
        epoch: u64,
        previous: Option<Previous>,
        now_ns: u64,
    ) -> Result<(), TableError> {
        let known = self.known.owner(on_device)?;
        if let Some(entry) = known.filter(|entry| entry.epoch == epoch || previous.is_none()) {
            self.closed.remove(on_device);
            let kept = Entry { epoch, closed_ns: 0, ..entry };
            return if kept == entry { Ok(()) } else { self.known.put_owner(on_device, &kept) };
        }
        let Some(Previous { node, link, is_alive, is_attended }) = previous else { return Ok(()) };
        let (device, address) = *on_device;
        let key = PeerKey::new(node, device);
        // Where another address names the node, its agent may have been dead since that one moved.
        let others = self
            .index
            .named
            .get(&(device, node))
            .map_or(0, |named| named - usize::from(self.index.nodes.get(on_device) == Some(&node)));
        let was = self.known.peer(&key)?;
        let was_attended = others == 0 || was.is_none_or(|peer| peer.is_attended());
        let peer =
            Peer::new(if is_alive { now_ns } else { 0 }, is_alive && is_attended && was_attended, link);
        let stored = match was.is_some_and(|was| stays(&was, &peer, now_ns)) {
            true => Ok(()),
            false => self.known.put_peer(&key, &peer),
        };
        let entry = Entry { epoch, since_ns: now_ns, node, closed_ns: 0 };
        if let Err(error) = stored.and_then(|()| self.known.put_owner(on_device, &entry)) {
            warn!(%error, device, %address, "connections that are open at the node that announced the address before are reset");
            if !self.index.named.contains_key(&(device, node)) {
                self.known.remove_peer(&key)?;
            }
            // What it says is of an earlier epoch.
            return self.forget(on_device);
        }
        self.closed.remove(on_device);
        // First, or a node that is named again would be forgotten.
        let before = self.index.nodes.get(on_device).copied();
        if before == Some(node) {
            return Ok(());
        }
        let unnamed = self.index.remove(on_device);
        self.index.insert(*on_device, node);
        unnamed.map_or(Ok(()), |node| self.known.remove_peer(&PeerKey::new(node, device)))
    }

    /// Another node announces the address from now on. Until clients know its link address, the programs go on passing on what they send
    /// here: they judge the time, so that nothing is left of an agent that dies.
    pub(super) fn close(&mut self, on_device: &OnDevice, now_ns: u64) -> Result<(), TableError> {
        let open = self.known.owner(on_device)?.filter(|entry| entry.closed_ns == 0);
        let Some(entry) = open else { return Ok(()) };
        self.known.put_owner(on_device, &Entry { closed_ns: now_ns, ..entry })?;
        self.closed.insert(*on_device, now_ns);
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
        self.known.remove_owner(on_device)?;
        if let Some(node) = self.index.remove(on_device) {
            self.known.remove_peer(&PeerKey::new(node, on_device.0))?;
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
    use std::cell::RefCell;
    use std::collections::BTreeSet;
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

    /// Maps in memory.
    #[derive(Default)]
    struct Fake {
        owners: BTreeMap<OnDevice, Entry>,
        peers: BTreeMap<PeerKey, Peer>,
        /// The map of owners takes nothing.
        is_full: bool,
        /// A program finds the agent of a node dead whenever it was looked up here.
        finds_dead: bool,
        /// The nodes that were found so since they were put.
        found_dead: RefCell<BTreeSet<PeerKey>>,
    }

    impl Fake {
        /// What the programs read.
        fn is_attended(&self, key: &PeerKey) -> bool {
            self.peers[key].is_attended() && !self.found_dead.borrow().contains(key)
        }
    }

    impl Known for Fake {
        fn owner(&self, on_device: &OnDevice) -> Result<Option<Entry>, TableError> {
            Ok(self.owners.get(on_device).copied())
        }

        fn put_owner(&mut self, on_device: &OnDevice, entry: &Entry) -> Result<(), TableError> {
            if self.is_full {
                let source = std::io::Error::other("full");
                return Err(TableError::Failed { name: name::PREVIOUS, what: "put", source });
            }
            self.owners.insert(*on_device, *entry);
            Ok(())
        }

        fn remove_owner(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
            self.owners.remove(on_device);
            Ok(())
        }

        fn owners(&self) -> Result<Vec<(OnDevice, Entry)>, TableError> {
            Ok(self.owners.iter().map(|(key, entry)| (*key, *entry)).collect())
        }

        fn peer(&self, key: &PeerKey) -> Result<Option<Peer>, TableError> {
            if self.finds_dead {
                self.found_dead.borrow_mut().insert(*key);
            }
            Ok(self.peers.get(key).copied())
        }

        fn put_peer(&mut self, key: &PeerKey, peer: &Peer) -> Result<(), TableError> {
            self.found_dead.borrow_mut().remove(key);
            self.peers.insert(*key, *peer);
            Ok(())
        }

        fn remove_peer(&mut self, key: &PeerKey) -> Result<(), TableError> {
            self.peers.remove(key);
            Ok(())
        }

        fn peers(&self) -> Result<Vec<PeerKey>, TableError> {
            Ok(self.peers.keys().copied().collect())
        }
    }

    const SECOND: u64 = 1_000_000_000;
    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 9];

    fn at(last: u8) -> OnDevice {
        (2, IpAddr::from([192, 0, 2, last]))
    }

    fn owned_before(node: NodeId) -> Option<Previous> {
        Some(Previous { node, link: LINK, is_alive: true, is_attended: true })
    }

    fn none() -> PreviousOwners<Fake> {
        PreviousOwners::of(Fake::default()).unwrap()
    }

    fn entry(owners: &PreviousOwners<Fake>, on_device: &OnDevice) -> Option<Entry> {
        owners.known.owners.get(on_device).copied()
    }

    fn nodes(owners: &PreviousOwners<Fake>) -> Vec<NodeId> {
        owners.known.peers.keys().map(|key| key.node).collect()
    }

    #[test]
    fn who_announced_an_address_before_is_known_with_what_is_known_of_its_agent() {
        for (is_alive, is_attended, expected) in
            [(true, true, (SECOND, true)), (true, false, (SECOND, false)), (false, true, (0, false))]
        {
            let mut owners = none();
            let previous = Previous { is_alive, is_attended, ..owned_before(7).unwrap() };
            owners.keep(&at(1), 5, Some(previous), SECOND).unwrap();
            assert_eq!(
                entry(&owners, &at(1)),
                Some(Entry { epoch: 5, since_ns: SECOND, node: 7, closed_ns: 0 })
            );
            let peer = owners.known.peers[&PeerKey::new(7, 2)];
            assert_eq!((peer.last_ns(), peer.is_attended()), expected);
        }
    }

    /// One address was taken from a node whose agent was dead, and that node, alive again, left another one.
    #[test]
    fn a_node_without_an_agent_at_one_move_is_passed_no_cookies_after_another_either() {
        let mut owners = none();
        let is_attended =
            |owners: &PreviousOwners<Fake>| owners.known.peers[&PeerKey::new(7, 2)].is_attended();
        let dead = Previous { is_attended: false, ..owned_before(7).unwrap() };
        owners.keep(&at(1), 5, Some(dead), SECOND).unwrap();
        owners.keep(&at(2), 5, owned_before(7), 2 * SECOND).unwrap();
        assert!(!is_attended(&owners));
        owners.forget(&at(2)).unwrap();
        // The same address alone begins by itself.
        owners.keep(&at(1), 7, owned_before(7), 3 * SECOND).unwrap();
        assert!(is_attended(&owners));
        // One more does not take it away.
        owners.keep(&at(2), 6, owned_before(7), 4 * SECOND).unwrap();
        assert!(is_attended(&owners));
    }

    /// A second address moves from it at this moment.
    #[test]
    fn a_node_whose_agent_a_program_finds_dead_meanwhile_stays_unattended() {
        let key = PeerKey::new(7, 2);
        let mut owners = none();
        owners.keep(&at(1), 5, owned_before(7), SECOND).unwrap();
        owners.known.finds_dead = true;
        owners.keep(&at(2), 5, owned_before(7), SECOND + PRESENT_NS).unwrap();
        assert!(!owners.known.is_attended(&key));
        assert_eq!(entry(&owners, &at(2)).unwrap().node, 7);
        owners.known.finds_dead = false;
        // What is not as before is put: another link address, or one that was away, or is.
        for (link, is_alive, now_ns) in
            [([2, 0, 0, 0, 0, 8], true, 2 * SECOND), (LINK, true, 9 * SECOND), (LINK, false, 9 * SECOND)]
        {
            let mut owners = none();
            owners.keep(&at(1), 5, owned_before(7), SECOND).unwrap();
            let again = Previous { link, is_alive, ..owned_before(7).unwrap() };
            owners.keep(&at(2), 5, Some(again), now_ns).unwrap();
            let expected = Peer::new(if is_alive { now_ns } else { 0 }, is_alive, link);
            assert_eq!(owners.known.peers[&key], expected);
        }
    }

    #[test]
    fn what_is_kept_again_by_the_same_epoch_stays_as_it_is() {
        let mut owners = none();
        owners.keep(&at(1), 5, owned_before(7), SECOND).unwrap();
        let before = (entry(&owners, &at(1)), owners.known.peers.clone());
        owners.keep(&at(1), 5, owned_before(7), 2 * SECOND).unwrap();
        owners.keep(&at(1), 5, owned_before(8), 2 * SECOND).unwrap();
        assert_eq!((entry(&owners, &at(1)), owners.known.peers.clone()), before);
        owners.keep(&at(1), 6, owned_before(8), 2 * SECOND).unwrap();
        assert_eq!(entry(&owners, &at(1)).unwrap().node, 8);
        assert_eq!(nodes(&owners), [8], "nothing names the other one");
    }

    /// The one that it was offered to does not take it, or was none of those who may.
    #[test]
    fn a_node_that_takes_an_address_back_still_knows_who_had_it_before_its_own_turn() {
        let mut owners = none();
        owners.keep(&at(1), 5, owned_before(7), SECOND).unwrap();
        owners.close(&at(1), 2 * SECOND).unwrap();
        owners.keep(&at(1), 6, None, 3 * SECOND).unwrap();
        assert_eq!(entry(&owners, &at(1)), Some(Entry { epoch: 6, since_ns: SECOND, node: 7, closed_ns: 0 }));
        owners.sweep(3_600 * SECOND).unwrap();
        assert_eq!(nodes(&owners), [7]);
        // There and back: what the other one opened meanwhile is there.
        owners.close(&at(1), 4 * SECOND).unwrap();
        owners.keep(&at(1), 8, owned_before(7), 5 * SECOND).unwrap();
        owners.sweep(3_600 * SECOND).unwrap();
        assert_eq!(
            entry(&owners, &at(1)),
            Some(Entry { epoch: 8, since_ns: 5 * SECOND, node: 7, closed_ns: 0 })
        );
        assert_eq!(nodes(&owners), [7]);
        // Nobody had this one before.
        owners.keep(&at(2), 1, None, SECOND).unwrap();
        assert_eq!(entry(&owners, &at(2)), None);
    }

    #[test]
    fn what_was_left_to_another_node_is_known_until_the_programs_pass_nothing_on() {
        let mut owners = none();
        for last in [1, 2] {
            owners.keep(&at(last), 5, owned_before(7), SECOND).unwrap();
        }
        owners.close(&at(1), 2 * SECOND).unwrap();
        assert_eq!(entry(&owners, &at(1)).unwrap().closed_ns, 2 * SECOND);
        // It was left once.
        owners.close(&at(1), 9 * SECOND).unwrap();
        assert_eq!(entry(&owners, &at(1)).unwrap().closed_ns, 2 * SECOND);
        owners.sweep(2 * SECOND + CLOSED_NS - 1).unwrap();
        assert!(entry(&owners, &at(1)).is_some());
        // Another agent knows it, too.
        let mut owners = PreviousOwners::of(owners.known).unwrap();
        owners.sweep(2 * SECOND + CLOSED_NS).unwrap();
        assert_eq!((entry(&owners, &at(1)), nodes(&owners)), (None, vec![7]), "another address names it");
        owners.close(&at(2), 3 * SECOND).unwrap();
        owners.sweep(3 * SECOND + CLOSED_NS).unwrap();
        assert!(owners.known.owners.is_empty() && owners.known.peers.is_empty());
        owners.close(&at(9), 3 * SECOND).unwrap();
        assert!(owners.closed.is_empty() && owners.known.owners.is_empty(), "nobody had it before");
    }

    #[test]
    fn a_node_that_no_address_names_is_not_kept() {
        let mut known = Fake::default();
        let key = PeerKey::new(7, 2);
        known.put_peer(&key, &Peer::new(1, true, LINK)).unwrap();
        let mut owners = PreviousOwners::of(known).unwrap();
        assert_eq!(nodes(&owners), [0; 0], "an agent died between two writes");
        owners.keep(&at(1), 5, owned_before(7), SECOND).unwrap();
        owners.known.is_full = true;
        owners.keep(&at(1), 6, owned_before(8), SECOND).unwrap();
        assert!(owners.known.owners.is_empty() && owners.known.peers.is_empty(), "there is no room");
        owners.known.is_full = false;
        owners.keep(&at(1), 7, owned_before(8), SECOND).unwrap();
        let mut owners = PreviousOwners::of(owners.known).unwrap();
        assert_eq!(nodes(&owners), [8]);
        owners.wipe().unwrap();
        assert!(owners.known.owners.is_empty() && owners.known.peers.is_empty());
    }
}
