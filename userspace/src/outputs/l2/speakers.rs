//! The speakers of all devices on which several nodes may announce addresses, and the maps that outlive the agent: what the programs
//! know of a segment, and the epochs of what the node announces.

use std::collections::BTreeMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use common::maps::announced::{AnnouncedKey, OWNER_ELSEWHERE};
use common::maps::name;
use common::maps::segment::{Bid, Owned, Segment as Entry};
use common::wire::heartbeat;
use tracing::{debug, warn};

use super::candidates::Candidates;
use super::kernel::key;
use super::ownership::{Candidate, Known, Member, NodeId, Rules, Segment, Standing};
use super::previous::PreviousOwners;
use super::speaker::{Keys, Speaker, Step};
use super::stamps::Stamps;
use super::task::Received;
use super::twins::Twins;
use super::wanted::OnDevice;
use super::why::Why;
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

/// The maps that outlive the agent.
struct Maps {
    segments: Table<u32, Entry>,
    bids: Bids,
    owned: Table<AnnouncedKey, Owned>,
    previous: PreviousOwners,
}

impl Maps {
    /// Makes a device's speaker. What an earlier agent announced there goes on.
    fn begin(
        &self,
        own: NodeId,
        (device, name): (u32, &str),
        held: impl Iterator<Item = IpAddr>,
        rules: Rules,
        now: Instant,
    ) -> Result<Speaker, TableError> {
        let before = self.segments.look_up(&device)?.filter(|entry| entry.node == own);
        let boot = before.map_or_else(random, |entry| entry.boot);
        let entry = Entry { node: own, boot, ..before.unwrap_or_default() };
        let mut ownership = Segment::new(own, rules, random(), now_ns(), now);
        for address in held {
            if let Some(epoch) = self.bids.epoch(&(device, address))? {
                ownership.adopt(address, epoch, now);
            }
        }
        Ok(Speaker::new(name, entry, ownership, now))
    }
}

/// What it takes to begin on a device.
struct Means<'a> {
    /// Has it receive heartbeats.
    admit: &'a dyn Fn(&str) -> io::Result<()>,
    begin: &'a dyn Fn(u32, &str) -> Result<Speaker, TableError>,
    /// Has the programs answer heartbeats there.
    put: &'a dyn Fn(u32, &Entry) -> Result<(), TableError>,
}

/// Brings the speakers in step with what is allowed. What fails on one device keeps nothing from being done on the others. Where the programs
/// cannot be made to answer heartbeats, other nodes would take this one for dead: there is no speaker, which is tried again.
fn follow(
    own: NodeId,
    on: &mut BTreeMap<u32, Speaker>,
    allowed: Allowed<'_>,
    means: &Means<'_>,
    now: Instant,
) -> (Steps, Option<String>) {
    let Allowed { mut candidates, rules, keys, network } = allowed;
    // Who was a candidate goes on answering heartbeats: connections may be open here, which the new owners pass on to this node.
    let is_own = |addresses: &BTreeMap<IpAddr, Arc<[Candidate]>>| {
        addresses.values().any(|nodes| nodes.iter().any(|candidate| candidate.node == own))
    };
    candidates.retain(|device, addresses| on.contains_key(device) || is_own(addresses));
    let (mut steps, mut failed) = (Vec::new(), None);
    for (device, mut speaker) in on.extract_if(.., |device, _| !candidates.contains_key(device)) {
        // What the programs know of the device stays until [`Speakers::clear`].
        speaker.release(now);
        let (_, these) = speaker.turn(now, now_ns());
        steps.extend(these.into_iter().map(|step| (device, step)));
    }
    for (device, addresses) in candidates {
        let Some(link) = network.links.get(&device) else { continue };
        let (Some(address), name) = (link.link_address, &link.name) else { continue };
        if let Err(error) = (means.admit)(name) {
            failed = Some(format!("device {name} cannot receive heartbeats: {error}"));
            continue;
        }
        let known = on.remove(&device);
        let is_new = known.is_none();
        let mut speaker = match known.map_or_else(|| (means.begin)(device, name), Ok) {
            Ok(speaker) => speaker,
            Err(error) => {
                failed = Some(format!("addresses are not announced on device {name}: {error}"));
                continue;
            }
        };
        speaker.follow(link, address, routers(device, network), &keys);
        speaker.allow(addresses, rules, now);
        if is_new && let Err(error) = (means.put)(device, &speaker.entry()) {
            failed = Some(format!("the programs answer no heartbeats on device {name}: {error}"));
            continue;
        }
        on.insert(device, speaker);
    }
    (steps, failed)
}

/// The speakers, by device.
pub(super) struct Speakers {
    own: NodeId,
    maps: Maps,
    on: BTreeMap<u32, Speaker>,
    twins: Twins,
}

impl Speakers {
    /// Opens the maps.
    pub(super) fn open(pins: &Pins, own: NodeId) -> Result<Self, TableError> {
        let segments = Table::open(pins.folder(), name::SEGMENTS)?;
        let owned = Table::open(pins.folder(), name::OWNED)?;
        let maps = Maps { segments, bids: Bids::open(pins)?, owned, previous: PreviousOwners::open(pins)? };
        Ok(Self { own, maps, on: BTreeMap::new(), twins: Twins::new(random()) })
    }

    /// Follows what is allowed: each device where this node is a candidate for an address has a speaker. `held` are the addresses that
    /// the programs answer for. Returns what is to be done on devices that lost their speaker, and why some have none.
    pub(super) fn follow<'a>(
        &mut self,
        allowed: Allowed<'_>,
        held: impl Iterator<Item = &'a OnDevice> + Clone,
        now: Instant,
    ) -> (Steps, Option<String>) {
        let (maps, own, rules) = (&self.maps, self.own, allowed.rules);
        let means = Means {
            admit: &|device| groups::admit(device, heartbeat::GROUP),
            begin: &|device, name| {
                let held = held.clone().filter(|(other, _)| *other == device).map(|(_, address)| *address);
                maps.begin(own, (device, name), held, rules, now)
            },
            put: &|device, entry| maps.segments.put(&device, entry),
        };
        follow(own, &mut self.on, allowed, &means, now)
    }

    /// Ends all that an agent began, for a process that is alone.
    pub(super) fn wipe(&mut self, network: &Node) -> Result<(), TableError> {
        self.clear(network)?;
        self.maps.previous.wipe()?;
        let mut left = Vec::new();
        self.maps.bids.0.walk(|key: &AnnouncedKey, _: &Bid| left.push(*key))?;
        self.maps.owned.walk(|key: &AnnouncedKey, _: &Owned| left.push(*key))?;
        self.maps.bids.0.remove_all(&left).and(self.maps.owned.remove_all(&left))
    }

    /// Leaves all to the agent that follows, and stamps until that one does.
    pub(super) fn leave_all(mut self, now: Instant) -> Stamps {
        let (silent, now_ns) = (self.twins.shown(), now_ns());
        let mut last = BTreeMap::new();
        for (device, speaker) in self.on.iter_mut().filter(|(device, _)| !silent.contains_key(device)) {
            let entry = speaker.last_stamp(now_ns);
            match self.maps.segments.put(device, &entry) {
                Ok(()) if entry.stamp_ns == now_ns => drop(last.insert(*device, entry)),
                Ok(()) => {}
                Err(error) => debug!(%error, device, "not stamped"),
            }
        }
        Stamps::new(last, self.maps.segments, now)
    }

    /// Whether it is known on every segment what others took over while no agent was here.
    pub(super) fn may_stamp(&self) -> bool {
        self.on.values().all(Speaker::may_stamp)
    }

    /// Ends what an earlier process began on devices without a speaker.
    pub(super) fn clear(&self, network: &Node) -> Result<(), TableError> {
        let mut left = Vec::new();
        self.maps.segments.walk(|device: &u32, _: &Entry| left.push(*device))?;
        for device in left.into_iter().filter(|device| !self.on.contains_key(device)) {
            self.maps.segments.remove(&device)?;
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
        let (mut steps, mut failed) = (Vec::new(), self.maps.previous.sweep(now_ns).err());
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
                true => self.maps.segments.remove(device).map(drop),
                false => self.maps.segments.put(device, &entry),
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

    /// Keeps the epoch by which an address is announced, for the next agent, and who announced it before, for the programs.
    pub(super) fn keep(&mut self, on_device: &OnDevice, epoch: u64, now: Instant) -> Result<(), TableError> {
        let (device, address) = on_device;
        let previous = self.on.get(device).and_then(|speaker| speaker.previous(address, now));
        let kept = self.maps.previous.keep(on_device, epoch, previous, now_ns());
        let known = self.maps.bids.epoch(on_device)?;
        // It is announced once more, or was by an earlier agent.
        let is_same = known == Some(epoch);
        let noted = if is_same { Ok(()) } else { self.note_owned(on_device) };
        self.maps.bids.0.put(&key(on_device), &Bid { epoch }).and(kept).and(noted)
    }

    /// Keeps since when an address is announced here, and why, for people.
    fn note_owned(&self, (device, address): &OnDevice) -> Result<(), TableError> {
        let why = self.on.get(device).and_then(|speaker| speaker.known(address).since);
        let owned =
            Owned { since_ms: unix_ms(), why: why.map_or(0, |(_, why)| why.code()), reserved: [0; 7] };
        self.maps.owned.put(&key(&(*device, *address)), &owned)
    }

    /// Returns since when an address is announced here (milliseconds of Unix time), and why; `None`: not known.
    pub(super) fn owned(&self, on_device: &OnDevice) -> Option<(u64, Option<Why>)> {
        let owned = self.maps.owned.look_up(&key(on_device)).ok()??;
        Some((owned.since_ms, Why::of(owned.why)))
    }

    /// Another node announces the address from now on.
    pub(super) fn close(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        self.maps.previous.close(on_device, now_ns())
    }

    /// Forgets by which epoch, and since when, an address was announced here that another node announces.
    pub(super) fn leave(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        let forgotten = self.maps.owned.remove(&key(on_device)).map(drop);
        self.maps.bids.forget(on_device).and(forgotten)
    }

    /// Forgets that, and who announced it before.
    pub(super) fn forget(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        let forgotten = self.maps.previous.forget(on_device);
        self.leave(on_device).and(forgotten)
    }

    /// Returns what is known of an address on a device, for people; `None`: there is no speaker.
    pub(super) fn known(&self, (device, address): &OnDevice) -> Option<Known> {
        Some(self.on.get(device)?.known(address))
    }

    /// Returns who announces an address on a device, and the link address of a foreign host that answers for it; `None`: there is no speaker.
    pub(super) fn disputed(&self, (device, address): &OnDevice) -> Option<(Standing, Option<[u8; 6]>)> {
        let speaker = self.on.get(device)?;
        Some((speaker.standing(address), speaker.foreign(address)))
    }

    /// The number of this node.
    pub(super) fn own(&self) -> NodeId {
        self.own
    }

    /// Returns, of each device with a speaker that is not silent, the other nodes that may announce something there.
    pub(super) fn others(&self, now: Instant) -> impl Iterator<Item = (u32, Vec<Member>)> {
        let silent = self.silent();
        let speaking = self.on.iter().filter(move |(device, _)| !silent.contains_key(device));
        speaking.map(move |(device, speaker)| (*device, speaker.others(now)))
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

/// Returns milliseconds of Unix time.
pub(super) fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

/// Returns a random number. It is no secret: it only differs from one boot to the next.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;
    use std::cell::RefCell;
    use std::time::Duration;

    const OWN: NodeId = 1;
    const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));
    const RULES: Rules = Rules { grace: Duration::from_secs(15), rebalance: None, withdraws: false };

    /// Follows that the node may announce the address on these devices, with a kernel that refuses what is named. Returns what is to be done,
    /// and what failed.
    fn play(on: &mut BTreeMap<u32, Speaker>, devices: &[u32], refuses: &str) -> (Steps, Option<String>) {
        play_of(on, devices, &[OWN, 7], refuses)
    }

    /// The same where these nodes may announce it.
    fn play_of(
        on: &mut BTreeMap<u32, Speaker>,
        devices: &[u32],
        nodes: &[NodeId],
        refuses: &str,
    ) -> (Steps, Option<String>) {
        let now = Instant::now();
        let link = |device: &u32| {
            let (name, link_address) = (format!("eth{device}"), Some([2, 0, 0, 0, 0, *device as u8]));
            (*device, Link { name, link_address, has_carrier: true, ..Link::default() })
        };
        let network = Node { links: [2, 3, 4].iter().map(link).collect(), ..Node::default() };
        let nodes: Arc<[Candidate]> = nodes.iter().copied().map(Candidate::from).collect();
        let candidate = |device: &u32| (*device, [(VIP, Arc::clone(&nodes))].into());
        let candidates = devices.iter().map(candidate).collect();
        let keys = Keys { keys: Default::default(), signs: 0 };
        let refused = |what: &'static str| match refuses == what {
            true => Err(TableError::Failed { name: "SEGMENTS", what, source: io::Error::other("no") }),
            false => Ok(()),
        };
        let stored = RefCell::new(Vec::new());
        let means = Means {
            admit: &|_| if refuses == "admit" { Err(io::Error::other("no")) } else { Ok(()) },
            begin: &|device, name| {
                refused("begin")?;
                let mut ownership = Segment::new(OWN, RULES, 9, 1, now);
                ownership.adopt(VIP, 5, now);
                let entry = Entry { node: OWN, boot: device.into(), ..Entry::default() };
                Ok(Speaker::new(name, entry, ownership, now))
            },
            put: &|device, entry| {
                assert_eq!(entry.link[5], device as u8);
                stored.borrow_mut().push(device);
                refused("put")
            },
        };
        let allowed = Allowed { candidates, rules: RULES, keys, network: &network };
        let before: Vec<u32> = on.keys().copied().collect();
        let outcome = follow(OWN, on, allowed, &means, now);
        assert!(stored.borrow().iter().all(|device| !before.contains(device)), "each once");
        outcome
    }

    /// Connections are open at it that others pass on while it answers.
    #[test]
    fn who_is_no_candidate_any_more_closes_and_goes_on_answering_heartbeats() {
        let mut on = BTreeMap::new();
        assert!(play(&mut on, &[2], "nothing").1.is_none());
        let (mut steps, failed) = play_of(&mut on, &[2, 3], &[7], "nothing");
        assert!(failed.is_none() && on.keys().eq([&2]), "only where it was one: {on:?}");
        for speaker in on.values_mut() {
            let (entry, these) = speaker.turn(Instant::now(), 5);
            assert_eq!(
                (entry.node, entry.digest, entry.stamp_ns),
                (OWN, 0, 5),
                "its agent lives, and holds nothing"
            );
            steps.extend(these.into_iter().map(|step| (2, step)));
        }
        assert!(steps.contains(&(2, Step::Close(VIP))), "{steps:?}");
        // It is withdrawn from the cluster.
        play_of(&mut on, &[], &[7], "nothing");
        assert!(on.is_empty());
    }

    #[test]
    fn what_ended_is_closed_also_where_another_device_fails() {
        for refuses in ["admit", "begin", "put"] {
            let mut on = BTreeMap::new();
            assert!(play(&mut on, &[2, 4], "nothing").1.is_none());
            let (steps, failed) = play(&mut on, &[3, 4], refuses);
            assert!(steps.contains(&(2, Step::Close(VIP))), "{refuses}: {steps:?}");
            assert!(failed.is_some_and(|why| why.contains("device eth")), "{refuses}");
            assert!(
                on.keys().eq([&4]),
                "{refuses}: without answers to heartbeats others take this node for dead"
            );
            // It is tried again.
            assert!(play(&mut on, &[3, 4], "nothing").1.is_none());
            assert!(on.keys().eq([&3, &4]), "{refuses}");
        }
    }
}
