//! What the kernel holds: the map that the programs answer from, and memberships in the groups that solicitations are sent to.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::IpAddr;

use common::maps::announced::{Announced, AnnouncedKey};
use common::maps::name;
use common::maps::segment::Segment;
use common::wire::{arp, heartbeat, ndp};
use tracing::debug;

use super::wanted::{OnDevice, members};
use crate::dataplane::pin::Pins;
use crate::dataplane::table::{Table, TableError};
use crate::model::Node;
use crate::net::frames::FrameSocket;
use crate::net::groups::{Groups, Member, refuse};

/// The kernel side.
pub(super) struct Kernel {
    table: Table<AnnouncedKey, Announced>,
    announced: BTreeMap<OnDevice, Announced>,
    /// Goes up with each change of it.
    changes: u64,
    groups: Groups,
    joined: BTreeSet<Member>,
    /// Opened for the first frame: a process that announces nothing need not have the right to (`CAP_NET_RAW`).
    frames: Option<FrameSocket>,
}

impl Kernel {
    /// Opens the map, and reads what an earlier process left in it.
    pub(super) fn open(pins: &Pins) -> Result<Self, TableError> {
        let table = Table::open(pins.folder(), name::ANNOUNCED)?;
        let mut announced = BTreeMap::new();
        table.walk(|key: &AnnouncedKey, value: &Announced| {
            announced.insert((key.device, key.address.into()), *value);
        })?;
        let (groups, joined) = (Groups::default(), BTreeSet::new());
        Ok(Self { table, announced, changes: 0, groups, joined, frames: None })
    }

    /// A number that is another one once the map holds something else.
    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Returns what the map holds.
    pub(super) fn announced(&self) -> &BTreeMap<OnDevice, Announced> {
        &self.announced
    }

    /// Returns what this node announces of it.
    pub(super) fn here(&self) -> impl Iterator<Item = &OnDevice> + Clone {
        self.announced.iter().filter(|(_, value)| value.is_here()).map(|(on_device, _)| on_device)
    }

    /// Returns what is to be written to the map, and what is to be deleted from it.
    pub(super) fn differences(
        &self,
        wanted: &BTreeMap<OnDevice, Announced>,
    ) -> (Vec<(OnDevice, Announced)>, Vec<OnDevice>) {
        let is_new =
            |(on_device, value): &(&OnDevice, &Announced)| self.announced.get(*on_device) != Some(*value);
        let new = wanted.iter().filter(is_new).map(|(on_device, value)| (*on_device, *value)).collect();
        let gone =
            self.announced.keys().filter(|on_device| !wanted.contains_key(*on_device)).copied().collect();
        (new, gone)
    }

    /// Makes devices members of the groups of these addresses and of no others of ours. To be called before they are announced: a
    /// device would receive no solicitation for them. Returns what failed.
    pub(super) fn join(&mut self, wanted: &BTreeMap<OnDevice, Announced>, network: &Node) -> Option<String> {
        let members_wanted = members(wanted.keys(), network);
        // Those of an earlier process, too.
        let left = members(self.announced.keys(), network);
        let mut failed = None;
        self.joined.extend(left.into_iter().filter(|member| !members_wanted.contains(member)));
        let groups = &mut self.groups;
        self.joined.retain(|member| {
            if members_wanted.contains(member) {
                return true;
            }
            let Err(error) = groups.leave(member) else { return false };
            failed = Some(format!("device {} cannot leave group {}: {error}", member.name, member.group));
            true
        });
        for member in &members_wanted {
            if self.joined.contains(member) {
                continue;
            }
            match self.groups.join(member) {
                Ok(()) => _ = self.joined.insert(member.clone()),
                Err(error) => {
                    let Member { name, group, .. } = member;
                    failed = Some(format!(
                        "device {name} cannot join group {group}, so solicitations may not reach this node: {error}"
                    ));
                }
            }
        }
        failed
    }

    /// Has the programs answer for an address, or drop questions for it.
    pub(super) fn put(&mut self, on_device: OnDevice, value: Announced) -> Result<(), TableError> {
        self.table.put(&key(&on_device), &value)?;
        self.announced.insert(on_device, value);
        self.changes += 1;
        Ok(())
    }

    /// Changes who announces an address that the map holds. Returns whether it does.
    pub(super) fn give(&mut self, on_device: OnDevice, owner: u16) -> Result<bool, TableError> {
        let Some(value) = self.announced.get(&on_device).copied() else { return Ok(false) };
        self.put(on_device, Announced { owner, ..value })?;
        Ok(true)
    }

    /// Leaves an address to the kernel.
    pub(super) fn remove(&mut self, on_device: &OnDevice) -> Result<(), TableError> {
        self.table.remove(&key(on_device))?;
        self.announced.remove(on_device);
        self.changes += 1;
        Ok(())
    }

    /// Announces an address that the programs answer for to the device's segment.
    pub(super) fn send(&mut self, on_device: OnDevice) -> io::Result<()> {
        let here = self.announced.get(&on_device).filter(|value| value.is_here());
        let Some(Announced { link, .. }) = here.copied() else { return Ok(()) };
        let (device, address) = on_device;
        let frames = self.frames()?;
        match address {
            IpAddr::V4(address) => [arp::REQUEST, arp::REPLY]
                .iter()
                .try_for_each(|operation| frames.send(device, &arp::announcement(address, link, *operation))),
            IpAddr::V6(address) => frames.send(device, &ndp::announcement(address, link)),
        }
    }

    /// Sends a frame out of a device.
    pub(super) fn send_frame(&mut self, device: u32, frame: &[u8]) -> io::Result<()> {
        self.frames()?.send(device, frame)
    }

    fn frames(&mut self) -> io::Result<&FrameSocket> {
        let frames = match self.frames.take() {
            Some(frames) => frames,
            None => FrameSocket::open()?,
        };
        Ok(self.frames.insert(frames))
    }
}

pub(super) fn key((device, address): &OnDevice) -> AnnouncedKey {
    AnnouncedKey { device: *device, address: (*address).into() }
}

/// Ends the memberships that were made for what the pinned map holds. To be called before the pins are removed.
pub(crate) fn leave_groups(pins: &Pins, network: &Node) {
    // Where there is none of this form, nothing was announced.
    let Ok(kernel) = Kernel::open(pins) else { return };
    let mut groups = Groups::default();
    for member in members(kernel.announced.keys(), network) {
        if let Err(error) = groups.leave(&member) {
            debug!(%error, ?member, "still a member");
        }
    }
    let Ok(segments) = Table::<u32, Segment>::open(pins.folder(), name::SEGMENTS) else { return };
    let walked = segments.walk(|device: &u32, _: &Segment| {
        if let Some(link) = network.links.get(device) {
            drop(refuse(&link.name, heartbeat::GROUP));
        }
    });
    if let Err(error) = walked {
        debug!(%error, "devices still receive heartbeats");
    }
}
