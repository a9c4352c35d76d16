//! On which devices XDP runs in front of TCX: where the operator wants it, and nothing speaks against it. Without it, all is the
//! same but slower, so that what speaks against it is a warning.

use std::collections::BTreeSet;
use std::sync::Arc;

use tracing::info;

use crate::dataplane::front::{self, FrontError};
use crate::dataplane::hooks::Attached;
use crate::dataplane::load::Programs;
use crate::dataplane::pin::{PinError, Pins};
use crate::model::{Node, Problem};

const FIELD: &str = "settings.xdpDevices";

/// Attaches XDP to the devices of these names that have TCX, too, and detaches it from all others. Returns why a device has none.
pub(super) fn follow(
    names: &[Arc<str>],
    node: &Node,
    served: &BTreeSet<u32>,
    programs: &mut Programs,
    pins: &Pins,
) -> Result<Vec<Problem>, PinError> {
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
    for index in pins.front_devices()? {
        if !keep.contains(&index) {
            front::detach(pins, index)?;
            info!(device = node.name(index), "XDP detached");
        }
    }
    Ok(problems)
}

const REMOVE: &str = "remove it from the list, or correct it";

/// Attaches XDP to a device, or returns why not, and the remedy.
fn has_front(
    index: u32,
    node: &Node,
    served: &BTreeSet<u32>,
    programs: &mut Programs,
    pins: &Pins,
) -> Result<(), (String, &'static str)> {
    let other =
        |error: FrontError| (error.to_string(), "see the kernel's log; without XDP all is served, too");
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
    let above = |(_, link): &(&u32, &crate::model::Link)| link.lower == Some(index);
    node.links.iter().find(above).map(|(_, link)| format!("{} is above it", link.name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Link;

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
        assert_eq!(why, [None, Some("it is a part of br0"), Some("eth2.7 is above it"), None, None]);
    }
}
