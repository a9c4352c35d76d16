//! On which devices XDP runs in front of TCX: where the operator wants it, and nothing speaks against it. Without it, all is the
//! same but slower, so that what speaks against it is a warning.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use super::answers::Answers;
use crate::dataplane::front::{self, FrontError};
use crate::dataplane::hooks::Attached;
use crate::dataplane::load::Programs;
use crate::dataplane::pin::{PinError, Pins};
use crate::model::{Link, Node, Problem};
use crate::net::{NetError, ethtool};

const FIELD: &str = "settings.xdpDevices";

/// What the kernel refused is tried again after this, though nothing has changed: another program may be gone. Each refusal in a row
/// doubles it, up to [`AGAIN_MOST`]: to attach may interrupt a device for a moment, also where it fails.
const AGAIN: Duration = Duration::from_secs(60);
const AGAIN_MOST: Duration = Duration::from_secs(16 * 60);

/// Returns how long to wait after this many refusals in a row.
fn patience(refusals: u32) -> Duration {
    AGAIN.saturating_mul(1 << refusals.saturating_sub(1).min(16)).min(AGAIN_MOST)
}

/// What was done last. To attach to a device may interrupt it for a moment, so it is not tried with each change of what is served, or
/// of the network elsewhere.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    last: Option<Done>,
    /// Where other ends take nothing of what XDP answers.
    answers: Answers,
}

/// For which devices, when, and why one of them has none.
#[derive(Debug)]
struct Done {
    candidates: Vec<Candidate>,
    at: Instant,
    /// Devices that have XDP.
    attached: BTreeSet<u32>,
    /// How often in a row the kernel refused something of it.
    refusals: u32,
    problems: Vec<Problem>,
}

/// A device where XDP is wanted, and what of the network decides whether it can be there.
#[derive(Debug, PartialEq, Eq)]
struct Candidate {
    name: Arc<str>,
    /// `None`: there is no such device.
    index: Option<u32>,
    /// Whether it has the programs that go on with what XDP answers.
    is_served: bool,
    /// Why it must not have XDP, see [`kept_by`].
    kept_by: Option<String>,
    mtu: u32,
    /// Another device may have the name and the index of one that is gone.
    link_address: Option<[u8; 6]>,
    is_veth: bool,
    /// Another's XDP program there.
    other: Option<u32>,
}

impl Candidate {
    /// Of a device that is in `attached`, the program is ours.
    fn of(name: &Arc<str>, node: &Node, served: &BTreeSet<u32>, attached: &BTreeSet<u32>) -> Self {
        let index = node.index(name);
        let link = index.and_then(|index| node.links.get(&index));
        let has = |indices: &BTreeSet<u32>| index.is_some_and(|index| indices.contains(&index));
        Self {
            name: Arc::clone(name),
            index,
            is_served: has(served),
            kept_by: index.and_then(|index| kept_by(index, node)),
            mtu: link.map_or(0, |link| link.mtu),
            link_address: link.and_then(|link| link.link_address),
            is_veth: link.is_some_and(|link| link.is_veth),
            other: link.and_then(|link| link.xdp).filter(|_| !has(attached)),
        }
    }

    fn all(names: &[Arc<str>], node: &Node, served: &BTreeSet<u32>, attached: &BTreeSet<u32>) -> Vec<Self> {
        names.iter().map(|name| Self::of(name, node, served, attached)).collect()
    }
}

impl Done {
    /// Whether nothing has changed since, and it is not time yet to try again what was refused.
    fn is_for(&self, names: &[Arc<str>], node: &Node, served: &BTreeSet<u32>, now: Instant) -> bool {
        !self.is_due(now) && self.candidates == Candidate::all(names, node, served, &self.attached)
    }

    /// Whether those of its devices have TCX that are among `served`, and no others.
    fn is_served_by(&self, served: &BTreeSet<u32>) -> bool {
        self.candidates
            .iter()
            .all(|one| one.is_served == one.index.is_some_and(|index| served.contains(&index)))
    }

    fn is_due(&self, now: Instant) -> bool {
        self.refusals > 0 && now.duration_since(self.at) >= patience(self.refusals)
    }
}

impl Fronts {
    /// Attaches XDP to the devices of these names that are among `served`, and detaches it from all others. Returns what there is to say
    /// of each.
    pub(super) fn follow(
        &mut self,
        names: &[Arc<str>],
        node: &Node,
        served: &BTreeSet<u32>,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Vec<Problem> {
        let now = Instant::now();
        self.answers.keep(names, node);
        if let Some(last) = self.last.as_ref().filter(|last| last.is_for(names, node, served, now)) {
            return last.problems.clone();
        }
        let Followed { attached, is_refused, problems } =
            follow((names, &self.answers), node, pins, |index| {
                has_front(index, node, served, programs, pins)
            });
        let candidates = Candidate::all(names, node, served, &attached);
        let before =
            self.last.take().filter(|last| last.candidates == candidates).map_or(0, |last| last.refusals);
        let refusals = if is_refused { before + 1 } else { 0 };
        self.last = Some(Done { candidates, at: now, attached, refusals, problems: problems.clone() });
        problems
    }

    /// Whether it was last decided for exactly these devices, among those it is wanted on, that they have TCX; or nothing was decided.
    pub(super) fn are_for(&self, served: &BTreeSet<u32>) -> bool {
        self.last.as_ref().is_none_or(|last| last.is_served_by(served))
    }

    /// Whether the device has XDP.
    pub(super) fn are_on(&self, index: u32) -> bool {
        self.last.as_ref().is_some_and(|last| last.attached.contains(&index))
    }

    /// Whether it is time to try again what was refused.
    pub(super) fn is_due(&self) -> bool {
        self.last.as_ref().is_some_and(|last| last.is_due(Instant::now()))
    }

    /// Whether another device is found whose other end takes nothing of what XDP answers; [`Self::follow`] then detaches it there.
    pub(super) fn finds_unanswered(&mut self, names: &[Arc<str>], node: &Node) -> bool {
        let Some(last) = &self.last else { return false };
        // Of one that cannot be asked nothing is known.
        let is_found = self.answers.look(names, node, &last.attached, |name| ethtool::sent_back(name).ok());
        if is_found {
            self.last = None;
        }
        is_found
    }

    /// Returns which devices have lost XDP since, because another program detached it, or put its own in our link in place of `own`, the
    /// id of ours; [`Self::follow`] then attaches it again.
    pub(super) fn take_lost(&mut self, pins: &Pins, own: Option<u32>) -> BTreeSet<u32> {
        let Some(last) = &self.last else { return BTreeSet::new() };
        // What the kernel refused may have left the program of an earlier start there.
        let is_known = own.is_some() && last.refusals == 0;
        // Of one that cannot be looked at nothing is known.
        let is_lost = |index: &&u32| {
            ours(pins, **index).is_ok_and(|there| there.is_none() || (is_known && there != own))
        };
        let lost: BTreeSet<u32> = last.attached.iter().filter(is_lost).copied().collect();
        if !lost.is_empty() {
            self.last = None;
        }
        lost
    }
}

/// Returns the XDP program that rtnetlink shows on the device at this moment.
fn shown(index: u32) -> Result<Option<u32>, NetError> {
    Ok(Link::look(index)?.and_then(|link| link.xdp))
}

/// Returns the program in our link on the device; `None`: we have none there.
fn ours(pins: &Pins, index: u32) -> Result<Option<u32>, Why> {
    Ok(front::program(pins, index, shown(index)?)?)
}

/// What was done for a configuration.
struct Followed {
    /// Devices that have XDP, as far as it is known.
    attached: BTreeSet<u32>,
    /// Whether the kernel refused something, which may be possible later.
    is_refused: bool,
    /// What there is to say.
    problems: Vec<Problem>,
}

/// Why a device has no XDP.
#[derive(Debug, thiserror::Error)]
enum Why {
    /// What the network is like, and the remedy.
    #[error("{0}")]
    Network(String, &'static str),
    /// Another's program is there.
    #[error("{0} is attached to it")]
    Taken(String),
    #[error(transparent)]
    Front(#[from] FrontError),
    #[error(transparent)]
    Net(#[from] NetError),
}

impl Why {
    fn remedy(&self) -> &'static str {
        match self {
            Self::Network(_, remedy) => remedy,
            Self::Taken(_) => "detach that program, if it is not needed",
            Self::Front(_) | Self::Net(_) => LOOK,
        }
    }

    /// Whether it may be over in a moment, and says nothing against the program in a link that is there.
    fn is_passing(&self) -> bool {
        let Self::Front(FrontError::Refused(error)) = self else { return matches!(self, Self::Net(_)) };
        let passing = [libc::EINTR, libc::EAGAIN, libc::ENOMEM, libc::ENOBUFS, libc::EBUSY];
        error.raw_os_error().is_some_and(|error| passing.contains(&error))
    }
}

/// `attach` attaches XDP to a device, or returns why not.
fn follow(
    (names, answers): (&[Arc<str>], &Answers),
    node: &Node,
    pins: &Pins,
    mut attach: impl FnMut(u32) -> Result<(), Why>,
) -> Followed {
    let (mut attached, mut is_refused, mut problems) = (BTreeSet::new(), false, Vec::new());
    for name in names {
        let had = match node.index(name) {
            None => Err(Why::Network("there is no device of this name here".to_owned(), REMOVE)),
            Some(_) if answers.are_lost(name, node) => {
                Err(Why::Network("its other end takes nothing of what XDP answers".to_owned(), TAKE))
            }
            Some(index) => attach(index).map(|()| attached.insert(index)),
        };
        if let Err(why) = had {
            is_refused |= !matches!(why, Why::Network(..));
            // What `attach` has found not to be ours, or not there any more, has no pin now.
            let is_there = |index: &u32| pins.front_devices().is_ok_and(|devices| devices.contains(index));
            let kept = node.index(name).filter(|index| why.is_passing() && is_there(index));
            attached.extend(kept);
            let what = match kept {
                Some(_) => format!("XDP is left on it as it was: {why}"),
                None => format!("XDP is not used on it: {why}"),
            };
            problems.push(Problem::warning(FIELD, what, why.remedy()).value(name));
        }
    }
    let on_veth = |index: &&u32| node.links.get(index).is_some_and(|link| link.is_veth);
    for index in attached.iter().filter(on_veth) {
        let what = "on veth the driver loses or delays what XDP answers, unless the other end has an XDP program, too";
        problems.push(
            Problem::warning(FIELD, what, "attach one at the other end, or remove the device from the list")
                .value(node.name(*index)),
        );
    }
    if let Err(error) = leave(&attached, node, pins) {
        is_refused = true;
        problems.push(Problem::warning(FIELD, format!("XDP stays where it is not wanted: {error}"), LOOK));
    }
    Followed { attached, is_refused, problems }
}

/// Detaches XDP from all other devices.
fn leave(keep: &BTreeSet<u32>, node: &Node, pins: &Pins) -> Result<(), PinError> {
    for index in pins.front_devices()?.into_iter().filter(|index| !keep.contains(index)) {
        front::detach(pins, index)?;
        info!(device = node.name(index), "XDP detached");
    }
    Ok(())
}

const REMOVE: &str = "remove it from the list, or correct it";
const TAKE: &str = "attach an XDP program at the other end, then take the device from the list and add it again, or start again";
const LOOK: &str = "see the kernel's log; without XDP all is served, too";

/// Attaches XDP to a device, or returns why not.
fn has_front(
    index: u32,
    node: &Node,
    served: &BTreeSet<u32>,
    programs: &mut Programs,
    pins: &Pins,
) -> Result<(), Why> {
    if !served.contains(&index) {
        return Err(Why::Network(
            "the programs that go on with what XDP answers are not on it".into(),
            REMOVE,
        ));
    }
    if let Some(why) = kept_by(index, node) {
        return Err(Why::Network(why, "name a device that is part of no other and carries none"));
    }
    match front::attach(programs, pins, index, shown(index)?) {
        Ok(true) => info!(device = node.name(index), "XDP attached"),
        Ok(false) => {}
        Err(FrontError::Taken) => return Err(Why::Taken(taken_by(index))),
        Err(error) => return Err(error.into()),
    }
    Ok(())
}

/// Names the XDP program that is on the device at this moment.
fn taken_by(index: u32) -> String {
    match shown(index).ok().flatten().map(Attached::of) {
        Some(Attached { id, name: Some(name) }) => format!("the XDP program {name} (#{id})"),
        Some(Attached { id, name: None }) => format!("the XDP program #{id}"),
        None => "another XDP program".into(),
    }
}

/// Returns which device keeps XDP from this one. Frames of a device above it may have lost their VLAN tag, and then look as
/// if they were of this one; those of a part belong to the whole.
fn kept_by(index: u32, node: &Node) -> Option<String> {
    if let Some(master) = node.links.get(&index).and_then(|link| link.master) {
        return Some(format!("it is a part of {}", node.name(master)));
    }
    // A whole hands the program on to its parts, where frames do not lead back to it.
    if let Some((_, part)) = node.links.iter().find(|(_, link)| link.master == Some(index)) {
        return Some(format!("{} is a part of it", part.name));
    }
    let above = |(_, link): &(&u32, &Link)| link.lower == Some(index);
    node.links.iter().find(above).map(|(_, link)| format!("{} is above it", link.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;

    fn eth0(link: Link) -> Node {
        Node { links: [(2, Link { name: "eth0".into(), ..link })].into(), ..Node::default() }
    }

    #[test]
    fn only_what_is_about_a_device_of_the_list_has_it_attached_again() {
        let (names, served) = ([Arc::from("eth0")], BTreeSet::from([2]));
        let plain = Link { mtu: 1500, link_address: Some([2; 6]), ..Link::default() };
        let with = |change: fn(&mut Link)| {
            let mut link = plain.clone();
            change(&mut link);
            eth0(link)
        };
        for attached in [BTreeSet::new(), served.clone()] {
            let at = Instant::now();
            let candidates = Candidate::all(&names, &eth0(plain.clone()), &served, &attached);
            let is_on = !attached.is_empty();
            let done = Done { candidates, at, attached, refusals: 0, problems: Vec::new() };
            let is_for = |node: &Node| done.is_for(&names, node, &served, at + AGAIN_MOST);
            assert!(is_for(&with(|_| {})));
            let mut elsewhere = with(|_| {});
            elsewhere.links.insert(3, Link { name: "veth1".into(), ..Link::default() });
            elsewhere.own.insert([192, 0, 2, 1].into());
            assert!(is_for(&elsewhere), "a change elsewhere");
            assert!(is_for(&with(|link| link.has_carrier = true)), "to attach may interrupt the carrier");
            for change in [
                |link: &mut Link| link.mtu = 9000,
                |link: &mut Link| link.master = Some(5),
                |link: &mut Link| link.link_address = None,
            ] {
                assert!(!is_for(&with(change)));
            }
            elsewhere.links.insert(3, Link { name: "eth0.7".into(), lower: Some(2), ..Link::default() });
            assert!(!is_for(&elsewhere), "a device above it");
            // Ours, or another's that came or went.
            assert_eq!(is_for(&with(|link| link.xdp = Some(7))), is_on);
            assert!(!done.is_for(&names, &Node::default(), &served, at));
            assert!(!done.is_for(&[], &with(|_| {}), &served, at));
            assert!(!done.is_for(&names, &with(|_| {}), &BTreeSet::new(), at));
        }
    }

    #[test]
    fn what_was_refused_is_tried_again_ever_later() {
        let (names, node, served) = ([Arc::from("eth0")], eth0(Link::default()), BTreeSet::from([2]));
        let at = Instant::now();
        let done = |refusals| Done {
            candidates: Candidate::all(&names, &node, &served, &BTreeSet::new()),
            at,
            attached: BTreeSet::new(),
            refusals,
            problems: Vec::new(),
        };
        let second = Duration::from_secs(1);
        for (refusals, wait) in [(1, 60), (2, 120), (3, 240), (5, 960), (6, 960), (u32::MAX, 960)] {
            let due = at + second * wait;
            assert!(done(refusals).is_for(&names, &node, &served, due - second), "{refusals}");
            assert!(!done(refusals).is_for(&names, &node, &served, due), "{refusals}");
        }
        assert!(done(0).is_for(&names, &node, &served, at + AGAIN_MOST), "it is attached");
    }

    #[test]
    fn what_may_be_over_in_a_moment_takes_xdp_from_no_device() {
        let folder = std::env::temp_dir().join(format!("vestibule-fronts-{}", std::process::id()));
        let pins = Pins::new(&folder);
        std::fs::create_dir_all(pins.links()).unwrap();
        let (names, node) = ([Arc::from("eth0")], eth0(Link::default()));
        let io = std::io::Error::from_raw_os_error;
        let refused = |error| Why::Front(FrontError::Refused(io(error)));
        let net = || Why::Net(NetError::Answer("cut short".into()));
        for (is_pinned, why, is_kept) in [
            (true, net(), true),
            (true, refused(libc::ENOMEM), true),
            // A program that the kernel never takes into the link; the next try makes another link.
            (true, refused(libc::EINVAL), false),
            (true, Why::Front(FrontError::Driver(io(libc::EOPNOTSUPP))), false),
            (true, Why::Taken("another".into()), false),
            (true, Why::Network("it is a part of br0".into(), REMOVE), false),
            (false, net(), false),
        ] {
            let (what, pin, mut why) = (why.to_string(), pins.front(2), Some(why));
            if is_pinned {
                std::fs::write(&pin, "").unwrap();
            }
            let done = follow((&names, &Answers::default()), &node, &pins, |_| Err(why.take().unwrap()));
            assert_eq!((pin.exists(), done.attached.contains(&2)), (is_kept, is_kept), "{what}");
            let [problem] = &done.problems[..] else { panic!("{:?}", done.problems) };
            let says = if is_kept { "is left on it as it was" } else { "is not used on it" };
            assert!(problem.what.contains(says) && problem.what.contains(&what), "{problem}");
            assert_eq!(done.is_refused, !what.contains("br0"), "{what}: it is tried again");
            drop(std::fs::remove_file(&pin));
        }
        // One that is not on the device any more is unpinned before another link is tried.
        std::fs::write(pins.front(2), "").unwrap();
        let done = follow((&names, &Answers::default()), &node, &pins, |index| {
            std::fs::remove_file(pins.front(index)).unwrap();
            Err(refused(libc::ENOMEM))
        });
        assert!(done.attached.is_empty() && done.problems[0].what.contains("is not used on it"));
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn parts_and_devices_with_others_above_are_not_for_xdp() {
        let link = |name: &str, master, lower| Link { name: name.into(), master, lower, ..Link::default() };
        let links = [
            (2, link("eth0", None, None)),
            (3, link("eth1", Some(5), None)),
            (4, link("eth2", None, None)),
            (5, link("br0", None, None)),
            (6, link("eth2.7", None, Some(4))),
        ];
        let node = Node { links: links.into(), ..Node::default() };
        let why = [2, 3, 4, 5, 6].map(|index| kept_by(index, &node));
        let why = why.each_ref().map(Option::as_deref);
        let part = Some("eth1 is a part of it");
        assert_eq!(why, [None, Some("it is a part of br0"), Some("eth2.7 is above it"), part, None]);
    }
}
