//! The speakers of all devices on which several nodes may announce addresses, and the maps that outlive the agent: what the programs
//! know of a segment, and the epochs of what the node announces.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::net::IpAddr;
use std::time::Instant;

use common::maps::announced::{AnnouncedKey, OWNER_ELSEWHERE};
use common::maps::name;
use common::maps::segment::{Bid, Segment as Entry};
use common::wire::heartbeat;
use tracing::{debug, warn};

use super::candidates::Candidates;
use super::kernel::key;
use super::ownership::{NodeId, Rules, Segment, Standing};
use super::speaker::{Keys, Speaker, Step};
use super::task::Received;
use super::twins::Twins;
use super::wanted::OnDevice;
use crate::dataplane::pin::Pins;
use crate::dataplane::table::{Table, TableError};
use crate::model::Node;
use crate::net::frames::claim;
use crate::net::groups;
use crate::outputs::now_ns;

/// What the cluster and the node say.
pub(super) struct Allowed<'a> {
    /// Who may announce what.
    pub candidates: Candidates,
    /// What the nodes agreed on.
    pub rules: Rules,
    /// The keys of heartbeats.
    pub keys: Keys,
    /// The node's network.
    pub network: &'a Node,
}

/// The epochs by which this node announces addresses, which outlive the agent.
pub(super) struct Bids(Table<AnnouncedKey, Bid>);

impl Bids {
    /// Opens the map.
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        Table::open(pins.folder(), name::BIDS).map(Self)
    }

    /// Forgets it.
    pub(super) fn forget(&self, on_device: &OnDevice) -> Result<(), TableError> {
        self.0.remove(&key(on_device)).map(drop)
    }

    /// Returns the epoch by which an address was announced; `None`: it was not, or by a node that was alone.
    pub(super) fn epoch(&self, on_device: &OnDevice) -> Result<Option<u64>, TableError> {
        Ok(self.0.look_up(&key(on_device))?.map(|bid| bid.epoch))
    }
}

/// What is to be done, each on a device, in this order.
pub(super) type Steps = Vec<(u32, Step)>;

/// The speakers, by device.
pub(super) struct Speakers {
    own: NodeId,
    segments: Table<u32, Entry>,
    bids: Bids,
    on: BTreeMap<u32, Speaker>,
    twins: Twins,
}

impl Speakers {
    /// Opens the maps.
    pub(super) fn open(pins: &Pins, own: NodeId) -> Result<Self, TableError> {
        let segments = Table::open(pins.folder(), name::SEGMENTS)?;
        let (bids, twins) = (Bids::open(pins)?, Twins::new(random()));
        Ok(Self { own, segments, bids, on: BTreeMap::new(), twins })
    }

    /// Follows what is allowed: each device where this node is a candidate for an address has a speaker. `held` are the addresses that
    /// the programs answer for. Returns what is to be done on devices that lost their speaker, and why some have none.
    pub(super) fn follow<'a>(
        &mut self,
        allowed: Allowed<'_>,
        held: impl Iterator<Item = &'a OnDevice> + Clone,
        now: Instant,
    ) -> Result<(Steps, Option<String>), TableError> {
        let Allowed { mut candidates, rules, keys, network } = allowed;
        candidates.retain(|_, addresses| addresses.values().any(|nodes| nodes.contains(&self.own)));
        let (mut steps, mut failed) = (Vec::new(), None);
        let gone: Vec<u32> =
            self.on.keys().filter(|device| !candidates.contains_key(device)).copied().collect();
        for device in gone {
            steps.extend(self.end(device, now));
        }
        for (device, addresses) in candidates {
            let Some(link) = network.links.get(&device) else { continue };
            let (Some(address), name) = (link.link_address, &link.name) else { continue };
            if let Err(error) = groups::admit(name, heartbeat::GROUP) {
                failed = Some(format!("device {name} cannot receive heartbeats: {error}"));
                continue;
            }
            if !self.on.contains_key(&device) {
                let held = held.clone().filter(|(other, _)| *other == device).map(|(_, address)| *address);
                let speaker = self.begin(device, name, held, rules, now)?;
                self.on.insert(device, speaker);
            }
            let Some(speaker) = self.on.get_mut(&device) else { continue };
            speaker.follow(link, address, routers(device, network), &keys);
            speaker.allow(addresses, rules, now);
        }
        Ok((steps, failed))
    }

    /// Makes a device's speaker. What an earlier agent announced there goes on.
    fn begin(
        &self,
        device: u32,
        name: &str,
        held: impl Iterator<Item = IpAddr>,
        rules: Rules,
        now: Instant,
    ) -> Result<Speaker, TableError> {
        let before = self.segments.look_up(&device)?.filter(|entry| entry.node == self.own);
        let boot = before.map_or_else(random, |entry| entry.boot);
        let entry = Entry { node: self.own, boot, ..before.unwrap_or_default() };
        let mut ownership = Segment::new(self.own, rules, random(), now_ns(), now);
        for address in held {
            if let Some(epoch) = self.bids.epoch(&(device, address))? {
                ownership.adopt(address, epoch, now);
            }
        }
        Ok(Speaker::new(name, entry, ownership, now))
    }

    /// Ends a device's speaker. Returns what is still to be done. What the programs know of the device stays until [`Self::clear`].
    fn end(&mut self, device: u32, now: Instant) -> Steps {
        let Some(mut speaker) = self.on.remove(&device) else { return Vec::new() };
        speaker.release();
        let (_, steps) = speaker.turn(now, now_ns());
        steps.into_iter().map(|step| (device, step)).collect()
    }

    /// Ends all that an agent began, for a process that is alone.
    pub(super) fn wipe(&self, network: &Node) -> Result<(), TableError> {
        self.clear(network)?;
        let mut left = Vec::new();
        self.bids.0.walk(|key: &AnnouncedKey, _: &Bid| left.push(*key))?;
        self.bids.0.remove_all(&left)
    }

    /// Stamps once more, for the agent that follows.
    pub(super) fn stamp(&mut self) {
        let silent = self.twins.shown();
        for (device, speaker) in self.on.iter_mut().filter(|(device, _)| !silent.contains_key(device)) {
            if let Err(error) = self.segments.put(device, &speaker.last_stamp(now_ns())) {
                debug!(%error, device, "not stamped");
            }
        }
    }

    /// Whether it is known on every segment what others took over while no agent was here.
    pub(super) fn may_stamp(&self) -> bool {
        self.on.values().all(Speaker::may_stamp)
    }

    /// Ends what an earlier process began on devices without a speaker.
    pub(super) fn clear(&self, network: &Node) -> Result<(), TableError> {
        let mut left = Vec::new();
        self.segments.walk(|device: &u32, _: &Entry| left.push(*device))?;
        for device in left.into_iter().filter(|device| !self.on.contains_key(device)) {
            self.segments.remove(&device)?;
            if let Some(link) = network.links.get(&device) {
                drop(groups::refuse(&link.name, heartbeat::GROUP));
            }
        }
        Ok(())
    }

    /// Takes a frame of another host.
    pub(super) fn received(&mut self, received: &Received) {
        let Some(speaker) = self.on.get_mut(&received.device) else { return };
        if received.is_heartbeat {
            if let Some(number) = speaker.received(&received.bytes, received.time) {
                self.twins.received(received.device, number, received.time);
            }
        } else if let Some((address, link)) = claim(&received.bytes) {
            speaker.claimed(address, link, received.time);
        }
    }

    /// When [`Self::turn`] is to be called; `None`: there are no speakers.
    pub(super) fn due(&self) -> Option<Instant> {
        self.on.values().map(Speaker::due).chain(self.twins.due()).min()
    }

    /// Does what is due at this time, which is `now_ns` by the clock of the programs. Returns what is to be done, and what failed.
    pub(super) fn turn(&mut self, now: Instant, now_ns: u64) -> (Steps, Option<TableError>) {
        let (mut steps, mut failed) = (Vec::new(), None);
        for (device, number) in self.twins.sends(self.on.keys().copied(), now) {
            steps.extend(self.on.get(&device).map(|speaker| (device, speaker.echo(number))));
        }
        let silent = self.twins.silent(now);
        for (device, speaker) in &mut self.on {
            let is_silent = silent.contains_key(device);
            if speaker.silence(is_silent, now) {
                warn!(
                    device,
                    is_silent,
                    "whether another device of this node announces on the same segment has changed"
                );
            } else if speaker.due() > now {
                continue;
            }
            let (entry, these) = speaker.turn(now, now_ns);
            // The programs answer no heartbeats on a silent device: to other nodes, both would be one that boots all the time.
            let stored = match is_silent {
                true => self.segments.remove(device).map(drop),
                false => self.segments.put(device, &entry),
            };
            failed = failed.or(stored.err());
            steps.extend(these.into_iter().map(|step| (*device, step)));
        }
        (steps, failed)
    }

    /// Returns the devices that are silent, each with the one of this node that announces on the same segment.
    pub(super) fn silent(&self) -> BTreeMap<u32, u32> {
        self.twins.shown()
    }

    /// Keeps the epoch by which an address is announced, for the next agent.
    pub(super) fn keep(&self, on_device: &OnDevice, epoch: u64) -> Result<(), TableError> {
        self.bids.0.put(&key(on_device), &Bid { epoch })
    }

    /// Forgets it.
    pub(super) fn forget(&self, on_device: &OnDevice) -> Result<(), TableError> {
        self.bids.forget(on_device)
    }

    /// What is known of an address on a device; `None`: there is no speaker.
    pub(super) fn standing(&self, (device, address): &OnDevice) -> Option<Standing> {
        Some(self.on.get(device)?.standing(address))
    }

    /// Returns `OWNER_*` of an address on a device.
    pub(super) fn owner(&self, (device, address): &OnDevice) -> u16 {
        self.on.get(device).map_or(OWNER_ELSEWHERE, |speaker| speaker.owner(address))
    }
}

/// Returns the routers of a device, each with an address of the device of the same family and scope.
fn routers(device: u32, network: &Node) -> Vec<(IpAddr, IpAddr)> {
    let is_local =
        |address: &IpAddr| matches!(address, IpAddr::V6(address) if address.is_unicast_link_local());
    let own = |router: &IpAddr| {
        let mut all = network.answered.iter().filter(|(on, _)| *on == device).map(|(_, address)| *address);
        all.find(|own| own.is_ipv4() == router.is_ipv4() && is_local(own) == is_local(router))
    };
    let on_device = network.routers.iter().filter(|(on, _)| *on == device);
    on_device.filter_map(|(_, router)| Some((*router, own(router)?))).collect()
}

/// Returns a random number. It is no secret: it only differs from one boot to the next.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}
