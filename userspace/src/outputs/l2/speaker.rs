//! One device of this node among those of other nodes on the same segment: what it receives there, and what it sends.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use common::maps::announced::{OWNER_ELSEWHERE, OWNER_HERE, OWNER_ONLY};
use common::maps::segment::Segment as Entry;
use common::maps::settings::CookieKey;
use common::wire::heartbeat::{self, Bid, Heartbeat};
use common::wire::{arp, ndp};

use super::ownership::{Action, Answer, Candidate, Frame, Known, Member, Previous, Rules, Segment, Standing};
use super::parts::{Assembly, Part, cut};
use super::reception::{Cut, Reception};
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
    /// The routers of its default routes, each with an address of the device to ask it by.
    routers: Vec<(IpAddr, IpAddr)>,
    has_carrier: bool,
    /// The most bids of a frame.
    entries: usize,
    /// Who may announce what.
    wanted: BTreeMap<IpAddr, Arc<[Candidate]>>,
    /// The addresses that no other node may announce.
    only: BTreeSet<IpAddr>,
    /// Another device of this node announces on this segment.
    is_silent: bool,
    cut: Cut,
}

impl Speaker {
    /// One for a device, which begins with what the programs knew of it.
    pub(super) fn new(name: &str, entry: Entry, ownership: Segment, now: Instant) -> Self {
        let (assembly, reception) = (Assembly::default(), Reception::new(now));
        let (name, routers) = (name.to_owned(), Vec::new());
        let (wanted, only) = (BTreeMap::new(), BTreeSet::new());
        let entries = heartbeat::entries(u32::MAX);
        Self {
            name,
            ownership,
            entry,
            assembly,
            reception,
            routers,
            has_carrier: true,
            entries,
            wanted,
            only,
            is_silent: false,
            cut: Cut::default(),
        }
    }

    /// Follows the node: the device, whose link address this is, its routers, and the keys.
    pub(super) fn follow(
        &mut self,
        link: &Link,
        address: [u8; 6],
        routers: Vec<(IpAddr, IpAddr)>,
        keys: &Keys,
    ) {
        self.name.clone_from(&link.name);
        (self.routers, self.has_carrier) = (routers, link.has_carrier);
        self.entries = heartbeat::entries(link.mtu);
        (self.entry.link, self.entry.keys, self.entry.key) = (address, keys.keys, keys.signs);
    }

    /// Follows the cluster: who may announce what, and its rules.
    pub(super) fn allow(&mut self, wanted: BTreeMap<IpAddr, Arc<[Candidate]>>, rules: Rules, now: Instant) {
        self.entry.grace_ns = rules.grace.as_nanos() as u64;
        self.ownership.follow(rules);
        self.wanted = wanted;
        self.compete(now);
    }

    /// Whether another device of this node announces on this segment: then this one does not. Returns whether that is news.
    pub(super) fn silence(&mut self, is_silent: bool, now: Instant) -> bool {
        let is_news = self.is_silent != is_silent;
        if is_news {
            self.is_silent = is_silent;
            self.ownership.mute(is_silent);
            self.compete(now);
        }
        is_news
    }

    /// Hands over for what this node is a candidate here.
    fn compete(&mut self, now: Instant) {
        let (own, mut wanted) = (self.entry.node, self.wanted.clone());
        if self.is_silent {
            let others =
                |nodes: &Arc<[Candidate]>| nodes.iter().copied().filter(|other| other.node != own).collect();
            wanted.values_mut().for_each(|nodes| *nodes = others(nodes));
        }
        let only = wanted.iter().filter(|(_, nodes)| matches!(nodes[..], [only] if only.node == own));
        self.only = only.map(|(address, _)| *address).collect();
        self.ownership.candidates(wanted, now);
    }

    /// Gives everything up.
    pub(super) fn release(&mut self, now: Instant) {
        self.ownership.release(now);
    }

    /// Takes a heartbeat, with its Ethernet header. What no node of the cluster sent is passed over. Returns the number in it if another
    /// device of this node sent it.
    pub(super) fn received(&mut self, frame: &[u8], now: Instant) -> Option<u64> {
        let (header, bytes) = frame.split_first_chunk::<14>()?;
        let beat = bytes.first_chunk().and_then(Heartbeat::read)?;
        if beat.sender == self.entry.node {
            return None;
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
                if beat.sender == !self.entry.node {
                    return Some(beat.nonce);
                }
                self.ownership.resend(beat.sender, now);
            }
            heartbeat::BIDS => {
                let (beat, bids) = heartbeat::read_bids(bytes, &self.entry.keys)?;
                let (number, of) = ((beat.receiver >> 32) as u32, beat.receiver as u32);
                let (sender, boot, version) = (beat.sender, beat.boot, beat.nonce);
                let link = bids.first().map(|bid| bid.link).filter(|link| *link != [0; 6]);
                let bids = bids.iter().map(|bid| (bid.address.into(), bid.epoch)).collect();
                if let Some(bids) = self.assembly.take(Part { sender, boot, version, number, of, bids }) {
                    self.ownership.table(sender, boot, version, bids, now);
                }
                if let Some(link) = link {
                    self.ownership.says_link(sender, link);
                }
            }
            _ => return None,
        }
        self.reception.received(now);
        None
    }

    /// Takes what a host says: that it has an address, by this link address.
    pub(super) fn claimed(&mut self, address: IpAddr, link: [u8; 6], now: Instant) {
        self.reception.received(now);
        if self.routers.iter().any(|(router, _)| *router == address) {
            self.cut.answered();
        }
        if link != self.entry.link {
            self.ownership.claimed(address, link, now);
        }
    }

    /// What the programs are to know of the device.
    pub(super) fn entry(&self) -> Entry {
        self.entry
    }

    /// When [`Self::turn`] is to be called.
    pub(super) fn due(&self) -> Instant {
        self.ownership.due()
    }

    /// What is known of an address.
    pub(super) fn standing(&self, address: &IpAddr) -> Standing {
        self.ownership.standing(address)
    }

    /// What is known of an address, for people.
    pub(super) fn known(&self, address: &IpAddr) -> Known {
        self.ownership.known(address)
    }

    /// The link address of a foreign host that answers for an address.
    pub(super) fn foreign(&self, address: &IpAddr) -> Option<[u8; 6]> {
        self.ownership.foreign(address)
    }

    /// The other nodes that may announce something here.
    pub(super) fn others(&self, now: Instant) -> Vec<Member> {
        self.ownership.others(now).collect()
    }

    /// Who announced an address before.
    pub(super) fn previous(&self, address: &IpAddr, now: Instant) -> Option<Previous> {
        self.ownership.previous(address, now)
    }

    /// Returns `OWNER_*` of an address.
    pub(super) fn owner(&self, address: &IpAddr) -> u16 {
        match self.standing(address) {
            Standing::Here { .. } if self.only.contains(address) => OWNER_ONLY,
            Standing::Here { .. } => OWNER_HERE,
            _ => OWNER_ELSEWHERE,
        }
    }

    /// Does what is due. Returns what the programs are to know of the device, which comes first, and what is to be done, in this order.
    pub(super) fn turn(&mut self, now: Instant, now_ns: u64) -> (Entry, Vec<Step>) {
        let mut steps = Vec::new();
        if self.reception.is_to_be_read(now) {
            self.reception.read(received::frames(&self.name), now);
        }
        if self.reception.is_asking(now) {
            steps.extend(self.routers.iter().filter_map(|(router, own)| self.question(*router, *own)));
        }
        let is_cut = !self.has_carrier || self.reception.is_isolated(now);
        self.ownership.isolated(is_cut, now);
        // Without a router that answers otherwise, silence may be rest.
        if self.cut.turn(is_cut, self.has_carrier, now) && (!self.has_carrier || !self.routers.is_empty()) {
            self.ownership.withdraw(now);
        }
        let actions = self.ownership.turn(now);
        // An agent that was stopped says so, though it stamps again.
        let away_ms = now_ns.saturating_sub(self.entry.stamp_ns) / 1_000_000;
        if self.may_stamp() {
            self.entry.stamp_ns = now_ns;
        }
        self.entry.digest = self.ownership.digest();
        for action in actions {
            match action {
                Action::Open { address, epoch } => steps.push(Step::Open { address, epoch }),
                Action::Close(address) => steps.push(Step::Close(address)),
                Action::Probe(address) => steps.push(Step::Send(self.probe(address))),
                Action::Send(frame) => self.say(&frame, away_ms, &mut steps),
            }
        }
        (self.entry, steps)
    }

    /// Returns a frame with a number for the other devices of this node. To other nodes it is a request that is not for them; the programs of
    /// this one would drop it if it named this node as its sender.
    pub(super) fn echo(&self, number: u64) -> Step {
        let beat = Heartbeat {
            kind: heartbeat::RESEND,
            key: self.entry.key,
            entries: 0,
            sender: !self.entry.node,
            receiver: self.entry.node,
            nonce: number,
            boot: self.entry.boot,
            stamp_age_ms: 0,
            digest: 0,
        };
        let mut bytes = [0; heartbeat::BYTES];
        beat.write(&mut bytes);
        heartbeat::sign(&mut bytes, &self.entry.keys[usize::from(self.entry.key & 1)]);
        let ether_type = heartbeat::ETHER_TYPE.to_be_bytes();
        Step::Send([&heartbeat::GROUP, &self.entry.link, &ether_type[..], &bytes].concat())
    }

    /// Adds a frame to the steps, for an agent that stamped this many milliseconds ago.
    fn say(&self, frame: &Frame, away_ms: u64, steps: &mut Vec<Step>) {
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
            Frame::Ask { nonce } => {
                let asker = heartbeat::asker(self.entry.link, !self.ownership.is_candidate());
                let stamp_age_ms = u32::try_from(away_ms).unwrap_or(u32::MAX);
                push(&signed(&Heartbeat { stamp_age_ms, ..heartbeat(heartbeat::ASK, asker, *nonce) }));
            }
            Frame::Resend { to } => push(&signed(&heartbeat(heartbeat::RESEND, *to, 0))),
            Frame::Bids { version, bids } => {
                for (part, parts, bids) in cut(bids, self.entries) {
                    let beat = heartbeat(heartbeat::BIDS, heartbeat::part(part, parts), *version);
                    let link = self.entry.link;
                    let bid = |(address, epoch): &(IpAddr, u64)| Bid {
                        address: (*address).into(),
                        epoch: *epoch,
                        link,
                    };
                    push(&heartbeat::bids(&beat, &bids.iter().map(bid).collect::<Vec<_>>(), key));
                }
            }
        }
    }

    /// Asks a router for its link address as its neighbours do. A probe would make one that starts give up its address.
    fn question(&self, router: IpAddr, own: IpAddr) -> Option<Step> {
        let link = self.entry.link;
        Some(Step::Send(match (router, own) {
            (IpAddr::V4(router), IpAddr::V4(own)) => arp::request(router, own, link).to_vec(),
            (IpAddr::V6(router), IpAddr::V6(own)) => ndp::question(router, own, link).to_vec(),
            _ => return None,
        }))
    }

    /// Whether it is known what other nodes took over: only then the agent may stamp.
    pub(super) fn may_stamp(&self) -> bool {
        self.ownership.may_stamp()
    }

    /// Stamps once more, unless the agent was away for so long that others may have taken over. Returns what the programs are to know.
    pub(super) fn last_stamp(&mut self, now_ns: u64) -> Entry {
        if self.may_stamp() && !self.entry.gate().is_overdue(now_ns) {
            self.entry.stamp_ns = now_ns;
        }
        self.entry
    }

    fn probe(&self, address: IpAddr) -> Vec<u8> {
        match address {
            IpAddr::V4(address) => arp::probe(address, self.entry.link).to_vec(),
            IpAddr::V6(address) => ndp::probe(address, self.entry.link).to_vec(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::net::frames::claim;
    use crate::outputs::l2::ownership::NodeId;

    const OWN: NodeId = 1;
    const OTHER: NodeId = 2;
    const LINK: [u8; 6] = [2, 0, 0, 0, 0, 1];
    const OTHER_LINK: [u8; 6] = [2, 0, 0, 0, 0, 2];
    const VIP: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(192, 0, 2, 9));
    const GRACE: Duration = Duration::from_secs(15);
    const RULES: Rules = Rules { grace: GRACE, rebalance: None, withdraws: true };

    fn keys(k0: u64) -> Keys {
        Keys { keys: [CookieKey { k0, k1: 1 }, CookieKey { k0, k1: 2 }], signs: 1 }
    }

    /// The address, and who may announce it.
    fn of(nodes: &[NodeId]) -> BTreeMap<IpAddr, Arc<[Candidate]>> {
        [(VIP, nodes.iter().copied().map(Candidate::from).collect())].into()
    }

    fn speaker(own: NodeId, link: [u8; 6], k0: u64, now: Instant) -> Speaker {
        let entry = Entry { node: own, boot: own * 100, ..Entry::default() };
        let ownership = Segment::new(own, RULES, own, 1, now);
        // No device has this name, so nothing is received but what a test hands over.
        let mut this = Speaker::new("no device", entry, ownership, now);
        let device = Link { name: "no device".into(), mtu: 1500, has_carrier: true, ..Link::default() };
        this.follow(&device, link, Vec::new(), &keys(k0));
        this.allow(of(&[OWN, OTHER]), RULES, now);
        this
    }

    /// Returns the frames of a turn.
    fn sent(speaker: &mut Speaker, now: Instant) -> Vec<Vec<u8>> {
        let (_, steps) = speaker.turn(now, 7);
        let frame = |step| if let Step::Send(frame) = step { Some(frame) } else { None };
        steps.into_iter().filter_map(frame).collect()
    }

    /// What a kernel that knows this entry answers.
    fn answer(question: &[u8], entry: &Entry) -> Option<Vec<u8>> {
        let beat =
            Heartbeat::read(question[14..].first_chunk()?).filter(|beat| beat.kind == heartbeat::ASK)?;
        let mut bytes = [0; heartbeat::BYTES];
        beat.answer(entry, entry.stamp_ns).write(&mut bytes);
        heartbeat::sign(&mut bytes, &entry.keys[usize::from(entry.key)]);
        let ether_type = heartbeat::ETHER_TYPE.to_be_bytes();
        Some([&question[6..12], &entry.link, &ether_type[..], &bytes].concat())
    }

    /// Two speakers, whose kernels know the same keys if these numbers are equal, play for some time. Returns the steps "open" of both.
    fn play(k0: [u64; 2]) -> [Vec<IpAddr>; 2] {
        let start = Instant::now();
        let mut both = [speaker(OWN, LINK, k0[0], start), speaker(OTHER, OTHER_LINK, k0[1], start)];
        let mut opened = [Vec::new(), Vec::new()];
        for millis in (0..4_000).step_by(10) {
            let now = start + Duration::from_millis(millis);
            for this in 0..2 {
                let (_, steps) = both[this].turn(now, 7);
                for step in steps {
                    match step {
                        Step::Open { address, .. } => opened[this].push(address),
                        Step::Close(_) => {}
                        // A probe is a frame of no heartbeat; it keeps the segment from being taken for a dead one.
                        Step::Send(frame) => {
                            let entry = both[1 - this].entry;
                            both[1 - this].received(&frame, now);
                            both[1 - this].reception.received(now);
                            if let Some(answer) = answer(&frame, &entry).filter(|_| k0[0] == k0[1]) {
                                both[this].received(&answer, now);
                            }
                        }
                    }
                }
            }
        }
        opened
    }

    #[test]
    fn of_two_nodes_that_know_each_others_keys_one_announces_the_address() {
        let [first, second] = play([5, 5]);
        assert_eq!(first.len() + second.len(), 1, "{first:?} {second:?}");
    }

    /// So the test above shows that frames are read, and what is authentic.
    #[test]
    fn frames_that_other_keys_signed_are_passed_over() {
        let [first, second] = play([5, 6]);
        assert_eq!((first.len(), second.len()), (1, 1));
    }

    #[test]
    fn heartbeats_go_to_the_group_and_carry_what_the_programs_know() {
        let now = Instant::now();
        let mut this = speaker(OWN, LINK, 5, now);
        let frames = sent(&mut this, now);
        let frame = frames.iter().find(|frame| frame[12..14] == [0x88, 0xb5]).unwrap();
        assert_eq!((&frame[..6], &frame[6..12]), (&heartbeat::GROUP[..], &LINK[..]));
        let bytes = frame[14..].first_chunk().unwrap();
        let beat = Heartbeat::read(bytes).unwrap();
        assert!(
            heartbeat::is_authentic(bytes, &keys(5).keys) && !heartbeat::is_authentic(bytes, &keys(6).keys)
        );
        assert_eq!((beat.sender, beat.boot, beat.key), (OWN, 100, 1));
    }

    #[test]
    fn questions_and_tables_say_the_link_address_under_their_signature() {
        let now = Instant::now();
        let mut this = speaker(OWN, LINK, 5, now);
        let asker = |frames: &[Vec<u8>]| {
            let beats = frames.iter().filter_map(|frame| Heartbeat::read(frame[14..].first_chunk()?));
            beats.filter(|beat| beat.kind == heartbeat::ASK).map(|beat| beat.receiver).collect::<Vec<_>>()
        };
        assert_eq!(asker(&sent(&mut this, now)), [heartbeat::asker(LINK, false)]);
        // Its device has another one now, and it may announce nothing.
        let device = Link { mtu: 1500, has_carrier: true, ..Link::default() };
        this.follow(&device, OTHER_LINK, Vec::new(), &keys(5));
        this.allow(of(&[OTHER]), RULES, now);
        let later = now + Duration::from_millis(100);
        assert_eq!(asker(&sent(&mut this, later)), [heartbeat::asker(OTHER_LINK, true)]);
        let mut steps = Vec::new();
        this.say(&Frame::Bids { version: 9, bids: vec![(VIP, 7)] }, 0, &mut steps);
        let [Step::Send(frame)] = &steps[..] else { panic!("{steps:?}") };
        let (_, bids) = heartbeat::read_bids(&frame[14..], &keys(5).keys).unwrap();
        assert_eq!(bids[0].link, OTHER_LINK);
    }

    /// The header of a frame is not signed.
    #[test]
    fn a_node_that_leaves_an_address_has_the_link_address_of_its_table() {
        let start = Instant::now();
        let mut this = speaker(OWN, LINK, 5, start);
        let other = speaker(OTHER, OTHER_LINK, 5, start);
        let table = |version, bids| {
            let mut steps = Vec::new();
            other.say(&Frame::Bids { version, bids }, 0, &mut steps);
            let Some(Step::Send(mut frame)) = steps.pop() else { panic!("a table is a frame") };
            frame[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x66]);
            frame
        };
        let (held, left) = (table(5, vec![(VIP, 4)]), table(6, Vec::new()));
        let of_table = |bids| other_entry(&other, bids);
        let (holds, holds_nothing) = (of_table(true), of_table(false));
        for millis in (0..3_000).step_by(10) {
            let now = start + Duration::from_millis(millis);
            let has_left = millis >= 1_000;
            match millis {
                200 => _ = this.received(&held, now),
                1_000 => _ = this.received(&left, now),
                _ => {}
            }
            for question in sent(&mut this, now) {
                let entry = if has_left || millis < 200 { &holds_nothing } else { &holds };
                if let Some(mut answer) = answer(&question, entry) {
                    answer[6..12].copy_from_slice(&[2, 0, 0, 0, 0, 0x66]);
                    this.received(&answer, now);
                }
            }
        }
        let now = start + Duration::from_secs(3);
        let previous = this.previous(&VIP, now).map(|previous| (previous.node, previous.link));
        assert_eq!(previous, Some((OTHER, OTHER_LINK)), "{:?}", this.standing(&VIP));
    }

    /// What the programs of this speaker know while it announces the VIP, or nothing.
    fn other_entry(speaker: &Speaker, announces: bool) -> Entry {
        let mut ownership = Segment::new(OTHER, RULES, OTHER, 1, Instant::now());
        if announces {
            ownership.adopt(VIP, 4, Instant::now());
        }
        Entry { digest: ownership.digest(), ..speaker.entry() }
    }

    #[test]
    fn a_table_of_many_addresses_is_sent_in_parts() {
        let mut this = speaker(OWN, LINK, 5, Instant::now());
        let bids: Vec<(IpAddr, u64)> = (0..100u8).map(|number| ([192, 0, 2, number].into(), 7)).collect();
        let mut steps = Vec::new();
        this.say(&Frame::Bids { version: 9, bids: bids.clone() }, 0, &mut steps);
        let mut read = Vec::new();
        for (part, step) in (0..).zip(&steps) {
            let Step::Send(frame) = step else { panic!("{step:?}") };
            let (beat, bids) = heartbeat::read_bids(&frame[14..], &keys(5).keys).unwrap();
            assert_eq!((beat.sender, beat.boot, beat.nonce), (OWN, 100, 9));
            assert_eq!(beat.receiver, heartbeat::part(part, 3));
            read.extend(bids.iter().map(|bid| (IpAddr::from(bid.address), bid.epoch)));
        }
        assert_eq!((steps.len(), read), (3, bids.clone()));
        // No frame is larger than the device takes.
        for (mtu, count) in [(1344, 3), (1343, 3), (1280, 3), (576, 7), (96, 100), (68, 100)] {
            let device = Link { mtu, has_carrier: true, ..Link::default() };
            this.follow(&device, LINK, Vec::new(), &keys(5));
            let mut steps = Vec::new();
            this.say(&Frame::Bids { version: 9, bids: bids.clone() }, 0, &mut steps);
            let longest =
                steps.iter().map(|step| if let Step::Send(frame) = step { frame.len() - 14 } else { 0 });
            assert_eq!((steps.len(), longest.max() <= Some(mtu.max(96) as usize)), (count, true), "{mtu}");
        }
    }

    #[test]
    fn a_node_that_is_cut_off_withdraws_what_others_may_announce_unless_silence_may_be_rest() {
        let router: (IpAddr, IpAddr) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        for (has_carrier, routers, nodes, stays) in [
            (true, vec![router], vec![OWN, OTHER], false),
            (false, vec![], vec![OWN, OTHER], false),
            (true, vec![], vec![OWN, OTHER], true),
            (true, vec![router], vec![OWN], true),
        ] {
            let turn = |this: &mut Speaker, start: Instant| -> Vec<Step> {
                let turns =
                    (10..=22).map(|tenths| this.turn(start + Duration::from_millis(100 * tenths), 7).1);
                turns.flatten().collect()
            };
            let start = Instant::now();
            let mut this = speaker(OWN, LINK, 5, start);
            this.ownership.adopt(VIP, 3, start);
            this.allow(of(&nodes), RULES, start);
            let device = Link { name: "no device".into(), mtu: 1500, has_carrier, ..Link::default() };
            this.follow(&device, LINK, routers.clone(), &keys(5));
            this.claimed(router.0, [6; 6], start);
            let steps = turn(&mut this, start);
            let is_closed = steps.contains(&Step::Close(VIP));
            assert_eq!(!is_closed, stays, "{has_carrier} {routers:?} {nodes:?}");
            // Where the rules have it so, it goes on.
            let mut this = speaker(OWN, LINK, 5, start);
            this.ownership.adopt(VIP, 3, start);
            let holds = Rules { withdraws: false, ..RULES };
            this.allow(of(&nodes), holds, start);
            this.follow(&device, LINK, routers, &keys(5));
            this.claimed(router.0, [6; 6], start);
            let steps = turn(&mut this, start);
            assert!(!steps.contains(&Step::Close(VIP)));
        }
    }

    /// What it leads to may be of yesterday, and no answer shows that once it stamps again.
    #[test]
    fn an_agent_that_was_stopped_says_so_in_its_next_question() {
        let start = Instant::now();
        let mut this = speaker(OWN, LINK, 5, start);
        let second = 1_000_000_000;
        this.turn(start, 7 * second);
        let mut asked = |after: Duration| -> Vec<u32> {
            let now_ns = 7 * second + u64::try_from(after.as_nanos()).unwrap();
            let (_, steps) = this.turn(start + after, now_ns);
            let beats = steps.into_iter().filter_map(|step| match step {
                Step::Send(frame) => Heartbeat::read(frame[14..].first_chunk()?),
                _ => None,
            });
            beats.filter(|beat| beat.kind == heartbeat::ASK).map(|beat| beat.stamp_age_ms).collect()
        };
        assert_eq!(asked(Duration::from_millis(100)), [100]);
        assert_eq!(asked(Duration::from_millis(60_100)), [60_000]);
        assert_eq!(asked(Duration::from_millis(60_200)), [100]);
    }

    #[test]
    fn an_agent_that_was_away_for_long_does_not_stamp_for_the_one_that_follows() {
        let now = Instant::now();
        let second = 1_000_000_000;
        let mut this = speaker(OWN, LINK, 5, now);
        let (entry, _) = this.turn(now, 7 * second);
        assert_eq!(entry.stamp_ns, 7 * second, "it holds nothing");
        assert_eq!(this.last_stamp(8 * second).stamp_ns, 8 * second);
        assert_eq!(this.last_stamp((8 + GRACE.as_secs()) * second + 1).stamp_ns, 8 * second);
    }

    #[test]
    fn routers_are_asked_once_nothing_is_received_any_more() {
        let start = Instant::now();
        let mut this = speaker(OWN, LINK, 5, start);
        this.routers = vec![
            ([192, 0, 2, 1].into(), [192, 0, 2, 2].into()),
            ("fe80::1".parse().unwrap(), "fe80::2".parse().unwrap()),
        ];
        let mut asked = |millis| {
            let frames = sent(&mut this, start + Duration::from_millis(millis));
            let probes = frames.iter().filter(|frame| frame[12..14] != [0x88, 0xb5]);
            let target = |frame: &Vec<u8>| {
                if frame[12] == 8 { frame[38..42].to_vec() } else { frame[62..78].to_vec() }
            };
            assert!(frames.iter().all(|frame| claim(frame).is_none()), "a question claims nothing");
            // One by an unspecified address would make a router that starts give up its own.
            assert!(frames.iter().all(|frame| frame[12] != 8 || frame[28..32] == [192, 0, 2, 2]));
            probes.map(target).collect::<Vec<_>>()
        };
        assert_eq!(asked(0), Vec::<Vec<u8>>::new());
        let router = "fe80::1".parse::<std::net::Ipv6Addr>().unwrap().octets().to_vec();
        assert_eq!(asked(300), [vec![192, 0, 2, 1], router]);
    }

    #[test]
    fn what_a_host_says_of_an_address_by_our_own_link_address_is_no_conflict() {
        let start = Instant::now();
        for (link, is_conflict) in [(LINK, false), (OTHER_LINK, true)] {
            let mut this = speaker(OWN, LINK, 5, start);
            for millis in (0..3_000).step_by(10) {
                let now = start + Duration::from_millis(millis);
                for frame in sent(&mut this, now) {
                    if frame[12..14] == [8, 6] {
                        this.claimed(VIP, link, now);
                    }
                }
                this.reception.received(now);
            }
            assert_eq!(matches!(this.standing(&VIP), Standing::Conflict { .. }), is_conflict, "{link:x?}");
        }
    }

    #[test]
    fn a_device_whose_segment_another_one_of_the_node_announces_on_is_silent() {
        let start = Instant::now();
        let mut this = speaker(OWN, LINK, 5, start);
        let of = |own, k0| {
            let Step::Send(frame) = speaker(own, OTHER_LINK, k0, start).echo(77) else { panic!("no frame") };
            frame
        };
        assert_eq!(this.received(&of(OWN, 5), start), Some(77));
        assert_eq!(this.received(&of(OWN, 6), start), None, "other keys");
        assert_eq!(this.received(&of(OTHER, 5), start), None, "for another node");
        this.ownership.adopt(VIP, 3, start);
        this.turn(start, 7);
        assert!(this.silence(true, start) && !this.silence(true, start));
        let (_, steps) = this.turn(start, 7);
        assert!(steps.contains(&Step::Close(VIP)));
        let later = start + Duration::from_secs(5);
        let (_, steps) = this.turn(later, 7);
        assert_eq!((steps, this.owner(&VIP)), (vec![], OWNER_ELSEWHERE));
        assert!(this.silence(false, later));
        assert!(!sent(&mut this, later).is_empty(), "it asks again");
    }
}
