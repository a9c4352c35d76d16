//! Finds what other programs changed in the kernel behind our back: elements of maps that were deleted or overwritten, programs that
//! were detached. Looks at a little each second, so that a walk over everything delays no reload.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use tracing::{debug, warn};

use crate::dataplane::apply::apply;
use crate::dataplane::attach;
use crate::dataplane::load::Programs;
use crate::dataplane::maps::Maps;
use crate::dataplane::pin::Pins;
use crate::dataplane::read;
use crate::dataplane::table::TableError;
use crate::model::{Node, Problem};
use crate::outputs::Exception;
use crate::plan::{Applied, Change, Part};

/// The longest time that one look takes from reloads.
const LOOK: Duration = Duration::from_millis(5);
/// The most parts that one look logs.
const LOGGED: usize = 20;
/// The interval between walks.
const GAP: Duration = Duration::from_secs(10);

/// A walk over what the kernel should hold.
#[derive(Debug, Default)]
pub(super) struct Drift {
    /// The part that was looked at last; `None`: the next one is the first.
    last: Option<Part>,
    /// When the next walk begins.
    rests_until: Option<Instant>,
    /// What the last walk found, and repaired.
    parts: BTreeMap<Part, Problem>,
    /// The same of devices, by index.
    devices: BTreeMap<u32, Problem>,
}

impl Drift {
    /// Looks at the next parts of the maps, and writes again what is not as it was written. Returns the number of those writes, and
    /// whether the walk is at its end. After an error, which it logs, it rests, too, and goes on behind what could not be written.
    pub(super) fn look(&mut self, applied: &Applied, maps: &Maps) -> (usize, bool) {
        let begun = Instant::now();
        if self.rests_until.is_some_and(|until| begun < until) {
            return (0, false);
        }
        self.walk(begun, applied, maps).unwrap_or_else(|error| {
            warn!(%error, "what the maps hold is not as it should be, or not known");
            self.rests_until = Some(Instant::now() + GAP);
            (0, false)
        })
    }

    /// In place of [`Self::look`] while it is not known what the maps should hold. Returns whether it is time for what follows a walk:
    /// as often as walks begin.
    pub(super) fn skip(&mut self) -> bool {
        let now = Instant::now();
        let is_due = self.rests_until.is_none_or(|until| now >= until);
        if is_due {
            self.rests_until = Some(now + GAP);
        }
        is_due
    }

    fn walk(&mut self, begun: Instant, applied: &Applied, maps: &Maps) -> Result<(usize, bool), TableError> {
        let (mut repaired, mut drifted) = (0, 0);
        while begun.elapsed() < LOOK {
            let Some(part) = applied.next_part(self.last.as_ref()) else {
                self.parts.retain(|part, _| applied.has(part));
                (self.last, self.rests_until) = (None, Some(Instant::now() + GAP));
                return Ok((repaired, true));
            };
            self.last = Some(part.clone());
            let mut lost: Vec<Change> = Vec::new();
            for write in applied.writes(&part) {
                if !read::holds(maps, &write)? {
                    lost.push(write);
                }
            }
            if lost.is_empty() {
                self.parts.remove(&part);
            } else {
                let problem = problem(&part, lost.len());
                drifted += 1;
                match drifted {
                    ..=LOGGED => warn!("{problem}"),
                    _ => debug!("{problem}"),
                }
                self.parts.insert(part, problem);
                apply(maps, &lost)?;
                repaired += lost.len();
            }
        }
        Ok((repaired, false))
    }

    /// Attaches the program again to devices where it is not attached any more. Returns to how many. `bare` are then those where it could not.
    pub(super) fn look_at_devices(
        &mut self,
        devices: &BTreeSet<u32>,
        bare: &mut BTreeSet<u32>,
        programs: &mut Programs,
        pins: &Pins,
        node: &Node,
    ) -> usize {
        self.devices.retain(|index, _| devices.contains(index));
        bare.retain(|index| devices.contains(index));
        let mut attached = 0;
        for index in devices {
            let name = node.name(*index);
            match attach::is_attached(programs, *index) {
                Ok(true) => {
                    bare.remove(index);
                    self.devices.remove(index);
                }
                // The device is just going: a change of the network follows.
                Err(error) => warn!(%error, device = name, "whether the program is attached is not known"),
                Ok(false) => {
                    let mut problem = Problem::error(
                        "",
                        format!("the program was detached from device {name} by another program"),
                        "find out which: until it was attached again, tenants were not reached over this device",
                    );
                    match attach::attach(programs, pins, *index) {
                        Ok(()) => {
                            bare.remove(index);
                            attached += 1;
                        }
                        Err(error) => {
                            bare.insert(*index);
                            problem.what.push_str(&format!(", and cannot be attached again: {error}"))
                        }
                    }
                    warn!("{problem}");
                    self.devices.insert(*index, problem);
                }
            }
        }
        attached
    }

    /// What the last walk found. What was repaired stays until the next walk finds it as it should be.
    pub(super) fn exceptions(&self) -> impl Iterator<Item = Exception> {
        let parts = self.parts.iter().map(|(part, problem)| (part.clone(), problem));
        let devices = self.devices.values().map(|problem| (Part::Node, problem));
        parts.chain(devices).map(|(part, problem)| Exception { part, problem: problem.clone() })
    }
}

fn problem(part: &Part, lost: usize) -> Problem {
    let what = match part {
        Part::Node => "the settings in the maps".to_owned(),
        Part::Listener(name) => format!("listener {name}"),
        Part::Route(name) => format!("route {name}"),
    };
    let elements = if lost == 1 { "element of its maps was" } else { "elements of its maps were" };
    Problem::error(
        "",
        format!("{what}: {lost} {elements} deleted or changed by another program, and written again"),
        "find out which: until then its clients may have been refused",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_follows_a_walk_is_due_as_often_without_one() {
        let mut drift = Drift::default();
        assert_eq!([(); 2].map(|()| drift.skip()), [true, false]);
        drift.rests_until = drift.rests_until.map(|until| until - GAP);
        assert_eq!([(); 2].map(|()| drift.skip()), [true, false]);
    }

    #[test]
    fn what_drifted_is_named() {
        let one = problem(&Part::Route("a/b".into()), 1);
        assert!(one.is_error() && one.what.starts_with("route a/b: 1 element of"), "{one}");
        assert!(problem(&Part::Node, 2).what.contains("2 elements"));
    }
}
