//! The stamps of an agent that has left the maps to the next one. It goes on stamping until that one does, which may take long for its first
//! order: the node's addresses would move, or its agent be taken for dead.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::maps::segment::Segment as Entry;
use tracing::debug;

use crate::dataplane::table::Table;

/// Interval between two stamps.
const EVERY: Duration = Duration::from_millis(100);
/// By then the next agent has taken the maps, or this one has taken them back. Where neither could, nobody follows the cluster: other nodes
/// are to take the addresses over.
const LONGEST: Duration = Duration::from_secs(60);

/// What the programs know of segments, by device.
pub(super) trait Segments {
    /// Returns what is known of a device; `None`: nothing, or that cannot be read.
    fn read(&self, device: u32) -> Option<Entry>;
    /// Writes it. Returns whether that succeeded.
    fn write(&self, device: u32, entry: &Entry) -> bool;
}

/// What this agent wrote last of each device that it stamps.
#[derive(Debug)]
pub(super) struct Left {
    last: BTreeMap<u32, Entry>,
    due: Instant,
    ends: Instant,
}

impl Left {
    /// These were just written.
    pub(super) fn new(last: BTreeMap<u32, Entry>, now: Instant) -> Self {
        Self { last, due: now + EVERY, ends: now + LONGEST }
    }

    /// When [`Self::turn`] is to be called; `None`: nothing is left to do.
    pub(super) fn due(&self) -> Option<Instant> {
        (!self.last.is_empty()).then_some(self.due)
    }

    /// Stamps if it is time. It ends for a device that another agent has stamped, and where this one was away for so long that other nodes may
    /// have taken over. What the next agent writes between reading and writing is lost, and it writes it again 100 ms later.
    pub(super) fn turn(&mut self, now: Instant, now_ns: u64, segments: &impl Segments) {
        if now < self.due {
            return;
        }
        self.due = now + EVERY;
        if now >= self.ends {
            self.last.clear();
        }
        self.last.retain(|device, entry| {
            let Some(there) = segments.read(*device) else { return false };
            // The next agent writes before it stamps: it looks first what other nodes took over.
            let is_of_the_next = there.stamp_ns > entry.stamp_ns || there.boot != entry.boot;
            if is_of_the_next || entry.gate().is_overdue(now_ns) {
                return false;
            }
            *entry = Entry { stamp_ns: now_ns, ..there };
            segments.write(*device, entry)
        });
    }
}

/// [`Left`], and the map where it stamps.
pub(super) struct Stamps {
    left: Left,
    segments: Table<u32, Entry>,
}

impl Stamps {
    /// These were just written there.
    pub(super) fn new(last: BTreeMap<u32, Entry>, segments: Table<u32, Entry>, now: Instant) -> Self {
        Self { left: Left::new(last, now), segments }
    }

    /// When [`Self::turn`] is to be called; `None`: nothing is left to do.
    pub(super) fn due(&self) -> Option<Instant> {
        self.left.due()
    }

    /// Stamps if it is time, which is `now_ns` by the clock of the programs.
    pub(super) fn turn(&mut self, now: Instant, now_ns: u64) {
        self.left.turn(now, now_ns, &self.segments);
    }
}

impl Segments for Table<u32, Entry> {
    fn read(&self, device: u32) -> Option<Entry> {
        self.look_up(&device).ok().flatten()
    }

    fn write(&self, device: u32, entry: &Entry) -> bool {
        let outcome = self.put(&device, entry);
        outcome.inspect_err(|error| debug!(%error, device, "not stamped")).is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    const SECOND: u64 = 1_000_000_000;

    fn ours() -> Entry {
        Entry { node: 7, boot: 3, digest: 5, stamp_ns: SECOND, grace_ns: 2 * SECOND, ..Entry::default() }
    }

    impl Segments for RefCell<BTreeMap<u32, Entry>> {
        fn read(&self, device: u32) -> Option<Entry> {
            self.borrow().get(&device).copied()
        }

        fn write(&self, device: u32, entry: &Entry) -> bool {
            self.borrow_mut().insert(device, *entry);
            true
        }
    }

    fn begin(now: Instant) -> (Left, RefCell<BTreeMap<u32, Entry>>) {
        let all: BTreeMap<u32, Entry> = [(2, ours()), (3, ours())].into();
        (Left::new(all.clone(), now), RefCell::new(all))
    }

    #[test]
    fn it_stamps_each_device_every_100_ms_until_the_next_agent_does() {
        let begun = Instant::now();
        let (mut left, map) = begin(begun);
        for step in 1..=30 {
            assert_eq!(left.due(), Some(begun + step * EVERY));
            let now_ns = SECOND + u64::from(step) * SECOND / 10;
            left.turn(begun + step * EVERY - EVERY / 2, now_ns - 1, &map);
            left.turn(begun + step * EVERY, now_ns, &map);
            // Longer than the grace.
            assert!(map.borrow().values().all(|entry| *entry == Entry { stamp_ns: now_ns, ..ours() }));
        }
        // The next one has written, with the stamp that it found, and does not stamp yet.
        let theirs = Entry { digest: 6, ..ours() };
        map.borrow_mut().insert(2, Entry { stamp_ns: 39 * SECOND / 10, ..theirs });
        left.turn(begun + 31 * EVERY, 41 * SECOND / 10, &map);
        assert_eq!(map.borrow()[&2], Entry { stamp_ns: 41 * SECOND / 10, ..theirs });
        // It stamps on one device; on the other one an agent began that found nothing.
        let theirs = [
            (2, Entry { stamp_ns: 42 * SECOND / 10, ..theirs }),
            (3, Entry { boot: 4, stamp_ns: 0, ..ours() }),
        ];
        *map.borrow_mut() = theirs.into();
        left.turn(begun + 32 * EVERY, 43 * SECOND / 10, &map);
        assert_eq!((map.into_inner(), left.due()), (theirs.into(), None));
    }

    #[test]
    fn it_stamps_no_longer_than_a_handover_may_take() {
        let begun = Instant::now();
        let (mut left, map) = begin(begun);
        for step in 1..700 {
            left.turn(begun + step * EVERY, SECOND + u64::from(step) * SECOND / 10, &map);
        }
        assert_eq!(left.due(), None);
        assert_eq!(map.borrow()[&2].stamp_ns, SECOND + LONGEST.as_nanos() as u64 - SECOND / 10);
    }

    #[test]
    fn it_stamps_neither_after_it_was_away_for_longer_than_the_grace_nor_what_is_gone() {
        let begun = Instant::now();
        let (mut left, map) = begin(begun);
        left.turn(begun + EVERY, 3 * SECOND + 1, &map);
        assert_eq!(map.borrow()[&2], ours(), "another node may have its addresses");
        assert_eq!(left.due(), None);
        let (mut left, map) = begin(begun);
        map.borrow_mut().remove(&2);
        left.turn(begun + EVERY, 3 * SECOND, &map);
        assert_eq!(map.into_inner(), [(3, Entry { stamp_ns: 3 * SECOND, ..ours() })].into());
    }
}
