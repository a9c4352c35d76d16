//! One device of this node among those of other nodes on the same segment: what it hears there, and what it says.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::maps::segment::Segment as Entry;
use common::maps::settings::CookieKey;
use common::wire::heartbeat::{self, Bid, Heartbeat};
use common::wire::{arp, ndp};

use super::ownership::{Action, Answer, Frame, NodeId, Rules, Segment, Standing};
use super::parts::{Assembly, Part, cut};
use super::reception::Reception;
use crate::model::Link;
use crate::net::received;

/// Keys that sign heartbeats: both verify.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Keys {
    /// By index.
    pub keys: [CookieKey; 2],
    /// The index of the one that signs.
    pub signs: u8,
}

/// Something to be done, in this order.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The node announces an address from now on.
    Open { address: IpAddr, epoch: u64 },
    /// It does not any more.
    Close(IpAddr),
    /// A frame is to be sent.
    Send(Vec<u8>),
}

/// The speaker of a device.
#[derive(Debug)]
pub(super) struct Speaker {
    /// The device's name.
    name: String,
    ownership: Segment,
    /// What the programs know of it.
    entry: Entry,
    assembly: Assembly,
    reception: Reception,
    /// The routers of its default routes.
    routers: Vec<IpAddr>,
    has_carrier: bool,
}

impl Speaker {
    /// One for a device, which begins with what the programs knew of it.
    pub(super) fn new(name: &str, entry: Entry, ownership: Segment, now: Instant) -> Self {
        let (assembly, reception) = (Assembly::default(), Reception::new(now));
        let (name, routers) = (name.to_owned(), Vec::new());
        Self { name, ownership, entry, assembly, reception, routers, has_carrier: true }
    }

    /// Follows the node: the device, whose link address this is, its routers, and the keys.
    pub(super) fn follow(&mut self, link: &Link, address: [u8; 6], routers: Vec<IpAddr>, keys: &Keys) {
        self.name.clone_from(&link.name);
        (self.routers, self.has_carrier) = (routers, link.has_carrier);
        (self.entry.link, self.entry.keys, self.entry.key) = (address, keys.keys, keys.signs);
    }

    /// Follows the cluster: who may announce what, and for how long the node goes on without its agent.
    pub(super) fn allow(&mut self, wanted: BTreeMap<IpAddr, Arc<[NodeId]>>, grace: Duration, now: Instant) {
        self.entry.grace_ns = grace.as_nanos() as u64;
        self.ownership.follow(Rules { grace });
        self.ownership.candidates(wanted, now);
    }

    /// Gives everything up.
    pub(super) fn release(&mut self) {
        self.ownership.release();
    }

    /// Takes a heartbeat, with its Ethernet header. What no node of the cluster sent is passed over.
    pub(super) fn heard(&mut self, frame: &[u8], now: Instant) {
        let Some((header, bytes)) = frame.split_first_chunk::<14>() else { return };
        let Some(beat) = bytes.first_chunk().and_then(Heartbeat::read) else { return };
        if beat.sender == self.entry.node {
            return;
        }
        let is_authentic = match <&[u8; heartbeat::BYTES]>::try_from(bytes) {
            Ok(bytes) => heartbeat::is_authentic(bytes, &self.entry.keys),
            Err(_) => false,
        };
        match beat.kind {
            heartbeat::ANSWER if is_authentic && beat.receiver == self.entry.node => {
                let answer = Answer {
                    from: beat.sender,
                    link: [header[6], header[7], header[8], header[9], header[10], header[11]],
                    nonce: beat.nonce,
                    boot: beat.boot,
                    stamp_age: Duration::from_millis(beat.stamp_age_ms.into()),
                    digest: beat.digest,
                };
                self.ownership.answered(&answer, now);
            }
            heartbeat::RESEND if is_authentic && beat.receiver == self.entry.node => {
                self.ownership.resend(beat.sender, now);
            }
            heartbeat::BIDS => {
                let Some((beat, bids)) = heartbeat::read_bids(bytes, &self.entry.keys) else { return };
                let (number, of) = ((beat.receiver >> 32) as u32, beat.receiver as u32);
                let (sender, boot, version) = (beat.sender, beat.boot, beat.nonce);
                let bids = bids.iter().map(|bid| (bid.address.into(), bid.epoch)).collect();
                if let Some(bids) = self.assembly.take(Part { sender, boot, version, number, of, bids }) {
                    self.ownership.table(sender, boot, version, bids, now);
                }
            }
            _ => return,
        }
        self.reception.heard(now);
    }

    /// Takes what a host says: that it has an address, by this link address.
    pub(super) fn claimed(&mut self, address: IpAddr, link: [u8; 6], now: Instant) {
        self.reception.heard(now);
        if link != self.entry.link {
            self.ownership.claimed(address, link, now);
        }
    }

    /// When [`Self::turn`] is to be called.
    pub(super) fn due(&self) -> Instant {
        self.ownership.due()
    }

    /// What is known of an address.
    pub(super) fn standing(&self, address: &IpAddr) -> Standing {
        self.ownership.standing(address)
    }

    /// Does what is due. Returns what the programs are to know of the device, which comes first, and what is to be done, in this order.
    pub(super) fn turn(&mut self, now: Instant, now_ns: u64) -> (Entry, Vec<Step>) {
        let mut steps = Vec::new();
        if self.reception.is_to_be_read(now) {
            self.reception.read(received::frames(&self.name), now);
        }
        if self.reception.is_asking(now) {
            steps.extend(self.routers.iter().map(|router| Step::Send(self.probe(*router))));
        }
        self.ownership.isolated(!self.has_carrier || self.reception.is_isolated(now), now);
        let actions = self.ownership.turn(now);
        if self.ownership.may_stamp() {
            self.entry.stamp_ns = now_ns;
        }
        self.entry.digest = self.ownership.digest();
        for action in actions {
            match action {
                Action::Open { address, epoch } => steps.push(Step::Open { address, epoch }),
                Action::Close(address) => steps.push(Step::Close(address)),
                Action::Probe(address) => steps.push(Step::Send(self.probe(address))),
                Action::Send(frame) => self.say(&frame, &mut steps),
            }
        }
        (self.entry, steps)
    }

    fn say(&self, frame: &Frame, steps: &mut Vec<Step>) {
        let heartbeat = |kind, receiver, nonce| Heartbeat {
            kind,
            key: self.entry.key,
            entries: 0,
            sender: self.entry.node,
            receiver,
            nonce,
            boot: self.entry.boot,
            stamp_age_ms: 0,
            digest: self.entry.digest,
        };
        let key = &self.entry.keys[usize::from(self.entry.key & 1)];
        let mut push = |bytes: &[u8]| {
            let ether_type = heartbeat::ETHER_TYPE.to_be_bytes();
            steps.push(Step::Send([&heartbeat::GROUP, &self.entry.link, &ether_type[..], bytes].concat()));
        };
        let signed = |beat: &Heartbeat| {
            let mut bytes = [0; heartbeat::BYTES];
            beat.write(&mut bytes);
            heartbeat::sign(&mut bytes, key);
            bytes
        };
        match frame {
            Frame::Ask { nonce } => push(&signed(&heartbeat(heartbeat::ASK, 0, *nonce))),
            Frame::Resend { to } => push(&signed(&heartbeat(heartbeat::RESEND, *to, 0))),
            Frame::Bids { version, bids } => {
                for (part, parts, bids) in cut(bids) {
                    let beat = heartbeat(heartbeat::BIDS, heartbeat::part(part, parts), *version);
                    let bid = |(address, epoch): &(IpAddr, u64)| Bid { address: (*address).into(), epoch: *epoch };
                    push(&heartbeat::bids(&beat, &bids.iter().map(bid).collect::<Vec<_>>(), key));
                }
            }
        }
    }

    fn probe(&self, address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => arp::probe(address, self.entry.link).to_vec(),
            IpAddr::V6(address) => ndp::probe(address, self.entry.link).to_vec(),
        }
    }
}
