//! On which devices XDP runs in front of TCX: where the operator wants it, and nothing speaks against it. Without it, all is the
//! same but slower, so that what speaks against it is a warning.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tracing::info;

use crate::dataplane::front::{self, FrontError};
use crate::dataplane::hooks::Attached;
use crate::dataplane::load::Programs;
use crate::dataplane::pin::{PinError, Pins};
use crate::model::{Node, Problem};

const FIELD: &str = "settings.xdpDevices";

/// What was refused is tried again after this, though nothing has changed: another program may be gone.
const AGAIN: Duration = Duration::from_secs(60);

/// Where our programs are.
#[derive(Debug, Default)]
pub(super) struct Hooks {
    /// Devices that have the TCX program, and lead to what is served.
    pub(super) tcx: BTreeSet<u32>,
    /// XDP.
    pub(super) fronts: Fronts,
}

/// What was done last. To attach to a device may interrupt it for a moment, so it is not tried with each change of what is served.
#[derive(Debug, Default)]
pub(super) struct Fronts {
    last: Option<Done>,
}

/// For which names, network and devices with TCX, when, and why a device has none.
#[derive(Debug)]
struct Done {
    names: Vec<Arc<str>>,
    node: Arc<Node>,
    served: BTreeSet<u32>,
    at: Instant,
    /// Devices that have XDP.
    attached: BTreeSet<u32>,
    problems: Vec<Problem>,
}

impl Done {
    fn is_for(&self, names: &[Arc<str>], node: &Arc<Node>, served: &BTreeSet<u32>, now: Instant) -> bool {
        self.names == names
            && Arc::ptr_eq(&self.node, node)
            && self.served == *served
            && (self.problems.is_empty() || now.duration_since(self.at) < AGAIN)
    }
}

impl Fronts {
    /// Attaches XDP to the devices of these names that have TCX, too, and detaches it from all others. Returns what there is to say of
    /// each.
    pub(super) fn follow(
        &mut self,
        names: &[Arc<str>],
        node: &Arc<Node>,
        served: &BTreeSet<u32>,
        programs: &mut Programs,
        pins: &Pins,
    ) -> Vec<Problem> {
        let now = Instant::now();
        if let Some(last) = self.last.as_ref().filter(|last| last.is_for(names, node, served, now)) {
            return last.problems.clone();
        }
        let (attached, problems) = follow(names, node, served, programs, pins);
        self.last = Some(Done {
            names: names.to_vec(),
            node: Arc::clone(node),
            served: served.clone(),
            at: now,
            attached,
            problems: problems.clone(),
        });
        problems
    }

    /// Forgets what was done last if a device has lost XDP since, or it is time to try again what was refused. Returns whether it did.
    pub(super) fn is_to_be_repeated(&mut self, pins: &Pins) -> bool {
        let is_lost = |index: &u32| !matches!(front::program(pins, *index), Ok(Some(_)));
        let is_due = |last: &Done| !last.problems.is_empty() && last.at.elapsed() >= AGAIN;
        let last = self.last.take_if(|last| is_due(last) || last.attached.iter().any(is_lost));
        last.is_some()
    }
}

/// Returns the devices that have XDP, and what there is to say.
fn follow(
    names: &[Arc<str>],
    node: &Node,
    served: &BTreeSet<u32>,
    programs: &mut Programs,
    pins: &Pins,
) -> (BTreeSet<u32>, Vec<Problem>) {
    let mut problems = Vec::new();
    let mut keep = BTreeSet::new();
    for name in names {
        let refused = match node.index(name) {
            None => Err(("there is no device of this name here".to_owned(), REMOVE)),
            Some(index) => has_front(index, node, served, programs, pins).map(|()| keep.insert(index)),
        };
        if let Err((why, remedy)) = refused {
            let what = format!("XDP is not used on it: {why}");
            problems.push(Problem::warning(FIELD, what, remedy).value(name));
        }
    }
    let on_veth = |index: &&u32| node.links.get(index).is_some_and(|link| link.is_veth);
    for index in keep.iter().filter(on_veth) {
        let what = "on veth the driver loses or delays what XDP answers, unless the other end has an XDP program, too";
        problems.push(
            Problem::warning(FIELD, what, "attach one at the other end, or remove the device from the list")
                .value(node.name(*index)),
        );
    }
    if let Err(error) = leave(&keep, node, pins) {
        problems.push(Problem::warning(FIELD, format!("XDP stays where it is not wanted: {error}"), LOOK));
    }
    (keep, problems)
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
const LOOK: &str = "see the kernel's log; without XDP all is served, too";

/// Attaches XDP to a device, or returns why not, and the remedy.
fn has_front(
    index: u32,
    node: &Node,
    served: &BTreeSet<u32>,
    programs: &mut Programs,
    pins: &Pins,
) -> Result<(), (String, &'static str)> {
    let other = |error: FrontError| (error.to_string(), LOOK);
    let ours = front::program(pins, index).map_err(other)?;
    if !served.contains(&index) {
        return Err(("the programs that go on with what XDP answers are not on it".into(), REMOVE));
    }
    if let Some(why) = kept_by(index, node) {
        return Err((why, "name a device that is part of no other and carries none"));
    }
    match front::attach(programs, pins, index) {
        Ok(()) if ours.is_none() => info!(device = node.name(index), "XDP attached"),
        Ok(()) => {}
        Err(FrontError::Taken) => {
            return Err((
                format!("{} is attached to it", taken_by(index)),
                "detach that program, if it is not needed",
            ));
        }
        Err(error) => return Err(other(error)),
    }
    Ok(())
}

/// Names the XDP program that is on the device at this moment.
fn taken_by(index: u32) -> String {
    let there = Node::look().ok().and_then(|node| node.links.get(&index)?.xdp).map(Attached::of);
    match there {
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
    let above = |(_, link): &(&u32, &crate::model::Link)| link.lower == Some(index);
    node.links.iter().find(above).map(|(_, link)| format!("{} is above it", link.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;

    #[test]
    fn what_is_the_same_is_not_done_again_but_for_what_was_refused_a_minute_ago() {
        let (names, node, served) = ([Arc::from("eth0")], Arc::new(Node::default()), BTreeSet::from([2]));
        let at = Instant::now();
        let done = |problems| Done {
            names: names.to_vec(),
            node: Arc::clone(&node),
            served: served.clone(),
            at,
            attached: BTreeSet::new(),
            problems,
        };
        let late = at + AGAIN;
        let is_for = |done: Done, now| done.is_for(&names, &node, &served, now);
        assert!(is_for(done(Vec::new()), late));
        let refused = || done(vec![Problem::warning(FIELD, "", "")]);
        assert!(is_for(refused(), at));
        assert!(!is_for(refused(), late));
        assert!(!done(Vec::new()).is_for(&[], &node, &served, at));
        assert!(!done(Vec::new()).is_for(&names, &Arc::new(Node::default()), &served, at));
        assert!(!done(Vec::new()).is_for(&names, &node, &BTreeSet::new(), at));
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
