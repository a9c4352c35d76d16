//! What is announced on the node's segments, and how: the kernel, the schedule and, in a cluster, the speakers that settle with
//! other nodes who announces what.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use common::maps::announced::{Announced, OWNER_ELSEWHERE};
use common::maps::settings::CookieKey;
use sha2::{Digest, Sha256};
use tracing::{debug, info};

use super::candidates::{Candidates, candidates, limit, node_id, spare};
use super::kernel::Kernel;
use super::ownership::{Rules, Standing};
use super::picture::Page;
use super::readers::Readers;
use super::schedule::Schedule;
use super::shown::{Scene, Survey};
use super::speaker::{Keys, Step};
use super::speakers::{Allowed, Bids, Speakers, Steps};
use super::stamps::Stamps;
use super::task::{Received, Task};
use super::wanted::{OnDevice, alone, announced, dialled};
use crate::dataplane::pin::Pins;
use crate::dataplane::table::TableError;
use crate::model::{Announcement, Desired, Node, Problem};
use crate::outputs::{CookieKeys, OnDevices};
use crate::plan::Leading;

/// What could not be sent is sent again after this time.
const AGAIN: Duration = Duration::from_secs(1);

/// What is to be announced, as far as it is served.
#[derive(Debug, Default)]
pub(super) struct Target {
    pub desired: Arc<Desired>,
    pub network: Arc<Node>,
    /// Indices of the devices with the program.
    pub devices: BTreeSet<u32>,
    /// What the cluster decided; `None`: nothing.
    pub announcement: Option<Arc<Announcement>>,
    pub keys: Option<CookieKeys>,
    /// The node leaves the cluster.
    pub is_withdrawn: bool,
    /// It refuses new connections.
    pub is_draining: bool,
    /// Which nodes lead to a backend, of the addresses where each leads only to its own: these announce them.
    pub leading: BTreeMap<IpAddr, Leading>,
}

/// The announcements of all devices.
pub(super) struct Announcements {
    pins: Pins,
    /// The node's name in its cluster; `None`: it is alone, and announces all that it serves.
    node: Option<Arc<str>>,
    /// Where frames of other hosts go.
    tasks: Sender<Task>,
    schedule: Schedule,
    kernel: Option<Kernel>,
    speakers: Option<(Speakers, Readers)>,
    /// Of a process that has left everything to another one.
    stamps: Option<Stamps>,
    /// Devices whose segments have more candidates than they may.
    crowded: BTreeSet<u32>,
}

/// What was brought in step.
#[derive(Debug, Default)]
pub(super) struct Brought {
    /// The number of map writes.
    pub changes: usize,
    /// What failed, and is to be tried again.
    pub failed: Option<String>,
}

impl Announcements {
    /// Those of a process that has not looked at the kernel yet.
    pub(super) fn new(pins: Pins, node: Option<Arc<str>>, tasks: Sender<Task>) -> Self {
        let (schedule, crowded) = (Schedule::default(), BTreeSet::new());
        Self { pins, node, tasks, schedule, kernel: None, speakers: None, stamps: None, crowded }
    }

    /// Leaves everything as it is to another process, and stamps until that one does.
    pub(super) fn leave(&mut self, now: Instant) {
        if let Some((speakers, _)) = self.speakers.take() {
            self.stamps = Some(speakers.leave_all(now));
        }
        (self.kernel, self.schedule) = (None, Schedule::default());
        self.crowded.clear();
    }

    /// When [`Self::turn`] is to be called.
    pub(super) fn due(&self) -> Option<Instant> {
        let speakers = self.speakers.as_ref().and_then(|(speakers, _)| speakers.due());
        let schedule = if self.may_announce() { self.schedule.due() } else { None };
        let stamps = self.stamps.as_ref().and_then(Stamps::due);
        [schedule, speakers, stamps].into_iter().flatten().min()
    }

    /// Whether it is known that no other node has taken what this one announces: before its agent was there, another one may have.
    fn may_announce(&self) -> bool {
        self.node.is_none() || self.speakers.as_ref().is_some_and(|(speakers, _)| speakers.may_stamp())
    }

    /// Takes a frame of another host.
    pub(super) fn received(&mut self, received: &Received) {
        if let Some((speakers, _)) = &mut self.speakers {
            speakers.received(received);
        }
    }

    /// Brings the kernel in step with the target.
    pub(super) fn bring(&mut self, target: &Target, now: Instant) -> Result<Brought, TableError> {
        self.schedule.limit(target.desired.settings.l2.unwrap_or_default());
        if self.kernel.is_none() {
            if self.node.is_none() {
                Speakers::open(&self.pins, 0)?.wipe(&target.network)?;
            }
            let kernel = Kernel::open(&self.pins)?;
            kernel.here().for_each(|on_device| self.schedule.adopt(*on_device, now));
            self.kernel = Some(kernel);
        }
        let (wanted, failed) = match self.node.clone() {
            None => (alone(&target.desired, &target.network, &target.devices), None),
            Some(node) => match self.in_cluster(&node, target, now)? {
                Settled::Wanted(wanted, failed) => (wanted, failed),
                Settled::Unknown(why) => return Ok(Brought { failed: Some(why), changes: 0 }),
            },
        };
        let Some(kernel) = &mut self.kernel else { return Ok(Brought::default()) };
        let mut failed = kernel.join(&wanted, &target.network).or(failed);
        let (begun, ended) = kernel.differences(&wanted);
        for on_device in &ended {
            kernel.remove(on_device)?;
            self.schedule.end(*on_device);
            match (&mut self.speakers, &self.node) {
                (Some((speakers, _)), _) => speakers.forget(on_device)?,
                (None, Some(node)) => Speakers::open(&self.pins, node_id(node))?.forget(on_device)?,
                (None, None) => {}
            }
        }
        let mut written = 0;
        for (on_device, value) in &begun {
            // First, or what comes in between would be reset.
            if let Some((speakers, _)) = self.speakers.as_mut().filter(|_| !value.is_here())
                && let Err(error) = speakers.close(on_device)
            {
                // The address is left all the same: two nodes would answer for it.
                failed = Some(format!("what is open at the owner before is reset: {error}"));
            }
            if let Err(error) = kernel.put(*on_device, *value) {
                failed = Some(format!("{} addresses are not announced: {error}", begun.len() - written));
                break;
            }
            match value.is_here() {
                true => self.schedule.begin(*on_device, now),
                false => self.schedule.end(*on_device),
            }
            if let Some((speakers, _)) = &mut self.speakers
                && let Some(Standing::Here { epoch, .. }) = speakers.standing(on_device)
            {
                speakers.keep(on_device, epoch, now)?;
            }
            written += 1;
        }
        // What the programs know of a segment goes last: until then it silences what others may announce.
        if let Some(node) = self.node.as_deref().filter(|_| target.announcement.is_some()) {
            match &self.speakers {
                Some((speakers, _)) => speakers.clear(&target.network)?,
                None => Speakers::open(&self.pins, node_id(node))?.clear(&target.network)?,
            }
        }
        if written + ended.len() > 0 {
            info!(begun = written, ended = ended.len(), "addresses announced by ARP and neighbour discovery");
        }
        Ok(Brought { changes: written + ended.len(), failed })
    }

    /// Follows what the cluster decided. Returns what the programs are to know.
    fn in_cluster(&mut self, node: &str, target: &Target, now: Instant) -> Result<Settled, TableError> {
        let Some(announcement) = target.announcement.as_deref() else { return self.unknown() };
        let (addresses, devices) = (dialled(&target.desired), &target.devices);
        let (mut all, crowded) = candidates(announcement, &addresses, devices, &target.network);
        // The programs still drop questions for what another node announces.
        limit(&mut all, &target.leading, node_id(node));
        if let Some(kernel) = self.kernel.as_ref().filter(|_| target.is_draining) {
            let here: BTreeSet<_> = kernel.here().copied().collect();
            spare(&mut all, &here, node_id(node));
        }
        self.crowded = crowded;
        let keys = match target.keys.as_ref().map(heartbeat_keys) {
            Some(keys) => keys,
            None if all.is_empty() => Keys { keys: Default::default(), signs: 0 },
            None => {
                let why = "heartbeats cannot be signed before the cookie keys are known";
                return Ok(Settled::Unknown(why.into()));
            }
        };
        if self.speakers.is_none() {
            if all.is_empty() {
                return Ok(Settled::Wanted(BTreeMap::new(), None));
            }
            let opened = Speakers::open(&self.pins, node_id(node))?;
            match Readers::start(&self.tasks) {
                Ok(readers) => (self.speakers, self.stamps) = (Some((opened, readers)), None),
                Err(error) => {
                    let why = format!("frames of other nodes cannot be received (CAP_NET_RAW): {error}");
                    return Ok(Settled::Unknown(why));
                }
            }
        }
        let pairs =
            all.iter().flat_map(|(device, addresses)| addresses.keys().map(|address| (*device, *address)));
        let elsewhere = announced(pairs.clone(), &target.network, |_| OWNER_ELSEWHERE);
        let Some(((speakers, _), kernel)) = self.speakers.as_mut().zip(self.kernel.as_mut()) else {
            return Ok(Settled::Wanted(BTreeMap::new(), None));
        };
        // The node takes only what its programs can answer for: not what its own kernel has, nor what finds no room in the map.
        let mut failed = None;
        for (on_device, value) in &elsewhere {
            if !kernel.announced().contains_key(on_device) && failed.is_none() {
                failed = kernel.put(*on_device, *value).err().map(|error| error.to_string());
            }
        }
        let mut candidates = if target.is_withdrawn { Candidates::new() } else { all.clone() };
        for (device, addresses) in &mut candidates {
            addresses.retain(|address, _| kernel.announced().contains_key(&(*device, *address)));
        }
        let Announcement { grace, rebalance, withdraws, .. } = *announcement;
        let rules = Rules { grace, rebalance, withdraws };
        let allowed = Allowed { candidates, rules, keys, network: &target.network };
        let (steps, why) = speakers.follow(allowed, kernel.here(), now);
        self.carry_out(steps, now)?;
        let Some((speakers, _)) = &self.speakers else { return Ok(Settled::Wanted(BTreeMap::new(), failed)) };
        let wanted = announced(pairs, &target.network, |on_device| speakers.owner(on_device));
        Ok(Settled::Wanted(wanted, failed.or(why)))
    }

    /// Returns what the programs are to know while it is not known what the cluster decided: what an earlier agent settled with other
    /// nodes, and nothing that a node announced which was alone.
    fn unknown(&self) -> Result<Settled, TableError> {
        let Some(kernel) = &self.kernel else { return Ok(Settled::Wanted(BTreeMap::new(), None)) };
        let bids = Bids::open(&self.pins)?;
        let mut wanted = BTreeMap::new();
        for (on_device, value) in kernel.announced() {
            if !value.is_here() || bids.epoch(on_device)?.is_some() {
                wanted.insert(*on_device, *value);
            }
        }
        Ok(Settled::Wanted(wanted, None))
    }

    /// Returns a number that is another one once the programs answer for something else; `None`: that is not known, or of a node that is alone.
    pub(super) fn changes(&self) -> Option<u64> {
        self.kernel.as_ref().filter(|_| self.node.is_some()).map(Kernel::changes)
    }

    /// Returns what the programs answer for, and what else is known of it.
    pub(super) fn on_devices(&self, survey: &Survey, network: &Node) -> OnDevices {
        survey.on_devices(self.kernel.iter().flat_map(Kernel::here), network)
    }

    /// Returns what there is to look at; `None`: nothing is settled with other nodes.
    fn scene<'a>(&'a self, target: &'a Target, now: Instant) -> Option<Scene<'a>> {
        let ((speakers, _), kernel) = self.speakers.as_ref().zip(self.kernel.as_ref())?;
        let announcement = target.announcement.as_deref();
        Some(Scene { speakers, kernel, network: &target.network, announcement, now })
    }

    /// Returns what is known of some addresses, from this one on, for people.
    pub(super) fn page(&self, from: OnDevice, target: &Target, now: Instant) -> Page {
        self.scene(target, now).map(|scene| scene.page(from)).unwrap_or_default()
    }

    /// Looks at everything.
    pub(super) fn survey(&self, target: &Target, now: Instant) -> Survey {
        self.scene(target, now).map(|scene| scene.survey()).unwrap_or_default()
    }

    /// Announces what the programs answer for on these devices, as if it were new.
    pub(super) fn again(&mut self, devices: &BTreeSet<u32>, now: Instant) {
        let Some(kernel) = &self.kernel else { return };
        let here = kernel.here().filter(|(device, _)| devices.contains(device));
        here.for_each(|on_device| self.schedule.begin(*on_device, now));
    }

    /// Does what is due at this time, which is `now_ns` by the clock of the programs.
    pub(super) fn turn(&mut self, now: Instant, now_ns: u64) -> Result<(), TableError> {
        let mut outcome = Ok(());
        self.stamps.iter_mut().for_each(|stamps| stamps.turn(now, now_ns));
        if let Some((speakers, _)) = &mut self.speakers {
            let (steps, failed) = speakers.turn(now, now_ns);
            outcome = failed.map_or(Ok(()), Err).and(self.carry_out(steps, now));
        }
        if !self.may_announce() {
            return outcome;
        }
        while let Some(on_device) = self.schedule.take(now) {
            let Some(kernel) = &mut self.kernel else { return outcome };
            if let Err(error) = kernel.send(on_device) {
                let (device, address) = on_device;
                debug!(%error, device, %address, "not announced");
                self.schedule.begin(on_device, now + AGAIN);
            }
        }
        outcome
    }

    /// Carries all steps out. Returns the first error.
    fn carry_out(&mut self, steps: Steps, now: Instant) -> Result<(), TableError> {
        let mut outcome = Ok(());
        for (device, step) in steps {
            outcome = outcome.and(self.step(device, step, now));
        }
        outcome
    }

    fn step(&mut self, device: u32, step: Step, now: Instant) -> Result<(), TableError> {
        let Some(((speakers, _), kernel)) = self.speakers.as_mut().zip(self.kernel.as_mut()) else {
            return Ok(());
        };
        match step {
            Step::Open { address, epoch } => {
                let on_device = (device, address);
                let kept = speakers.keep(&on_device, epoch, now);
                if kernel.give(on_device, speakers.owner(&on_device))? {
                    info!(%address, device, epoch, "this node announces the address from now on");
                    self.schedule.begin(on_device, now);
                }
                kept
            }
            Step::Close(address) => {
                let on_device = (device, address);
                self.schedule.end(on_device);
                // First, or what comes in between would be reset.
                let closed = speakers.close(&on_device);
                if kernel.give(on_device, OWNER_ELSEWHERE)? {
                    info!(%address, device, "this node does not announce the address any more");
                }
                speakers.leave(&on_device).and(closed)
            }
            Step::Send(frame) => {
                if let Err(error) = kernel.send_frame(device, &frame) {
                    debug!(%error, device, "a heartbeat is not sent");
                }
                Ok(())
            }
        }
    }

    /// Returns what keeps addresses from being announced that no further try changes: other hosts that have them, and too many candidates.
    pub(super) fn problems(&self, survey: &Survey, network: &Node) -> Vec<Problem> {
        let Some((speakers, _)) = &self.speakers else { return Vec::new() };
        let crowded = self.crowded.iter().map(|device| {
            Problem::warning(
                format!("addresses on {}", network.name(*device)),
                "more than 32 nodes may announce them; only the first 32 by name do",
                "name fewer by nodeSelectors of L2Advertisements, or label nodes \
                 node.kubernetes.io/exclude-from-external-load-balancers",
            )
        });
        let twin = |(silent, first): (u32, u32)| {
            let (silent, first) = (network.name(silent), network.name(first));
            Problem::warning(
                format!("addresses on {silent}"),
                format!("{silent} and {first} are on one segment; only {first} announces addresses there"),
                "take one of both devices off the segment, or name the other one alone in `devices`",
            )
        };
        let twins = speakers.silent().into_iter().map(twin);
        survey.problems(network).chain(crowded).chain(twins).collect()
    }
}

/// What is to be announced in a cluster.
enum Settled {
    /// What the programs are to know, and what failed.
    Wanted(BTreeMap<OnDevice, Announced>, Option<String>),
    /// It is not known; what the programs know stays. With the reason.
    Unknown(String),
}

/// Derives the keys of heartbeats from the cookies'.
fn heartbeat_keys(keys: &CookieKeys) -> Keys {
    let derived = |key: &CookieKey| {
        let hash = Sha256::new().chain_update("vestibule heartbeat").chain_update(key.k0.to_le_bytes());
        let hash = hash.chain_update(key.k1.to_le_bytes()).finalize();
        let word = |at: usize| hash[at..at + 8].iter().fold(0, |word, byte| word << 8 | u64::from(*byte));
        CookieKey { k0: word(0), k1: word(8) }
    };
    Keys { keys: [derived(&keys.keys[0]), derived(&keys.keys[1])], signs: (keys.current & 1) as u8 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_heartbeats_are_none_of_the_cookies() {
        let cookies =
            CookieKeys { keys: [CookieKey { k0: 1, k1: 2 }, CookieKey { k0: 3, k1: 4 }], current: 1 };
        let derived = heartbeat_keys(&cookies);
        assert_eq!(derived.signs, 1);
        assert_ne!(derived.keys[0], derived.keys[1]);
        assert!(derived.keys.iter().all(|key| !cookies.keys.contains(key)));
        let other = CookieKeys { keys: [CookieKey { k0: 1, k1: 5 }, cookies.keys[1]], current: 0 };
        let other = heartbeat_keys(&other);
        assert!(other.keys[0] != derived.keys[0] && other.keys[1] == derived.keys[1]);
    }
}
