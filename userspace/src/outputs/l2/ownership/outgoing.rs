use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use super::NodeId;

/// A request that comes this soon after the table was sent has crossed it.
const CROSSED: Duration = Duration::from_millis(10);

/// What the next turn carries out.
#[derive(Debug)]
pub(super) struct Outgoing {
    pub(super) closes: BTreeSet<IpAddr>,
    /// What is open and is announced again.
    pub(super) opens: BTreeSet<IpAddr>,
    /// The version of the table that was sent last.
    version: u64,
    pub(super) is_changed: bool,
    /// When the unchanged table is sent again.
    repeat: Option<Instant>,
    repeated: Option<Instant>,
    sent: Option<Instant>,
    /// When it was, or is, sent again for each node that requested it.
    requested: BTreeMap<NodeId, Instant>,
}

impl Outgoing {
    /// The table is sent at once: the node may have sent others before.
    pub(super) fn new(version: u64) -> Self {
        Self {
            closes: BTreeSet::new(),
            opens: BTreeSet::new(),
            version,
            is_changed: true,
            repeat: None,
            repeated: None,
            sent: None,
            requested: BTreeMap::new(),
        }
    }

    /// Whether something is to be done at once.
    pub(super) fn is_due(&self) -> bool {
        self.is_changed || !self.closes.is_empty() || !self.opens.is_empty()
    }

    pub(super) fn next_repeat(&self) -> Option<Instant> {
        self.repeat
    }

    /// Whether a request that comes now was sent before the table arrived.
    pub(super) fn has_crossed(&self, now: Instant) -> bool {
        self.sent.is_some_and(|sent| now < sent + CROSSED)
    }

    /// Sends the unchanged table again, unless that was done within this time.
    pub(super) fn repeat(&mut self, least: Duration, now: Instant) {
        let earliest = self.repeated.map_or(now, |last| now.max(last + least));
        self.repeat = Some(self.repeat.map_or(earliest, |time| time.min(earliest)));
    }

    /// Sends the unchanged table again, unless that was done for this node within this time. What was sent for others, or unasked, does
    /// not count: the node may have been cut off.
    pub(super) fn requested(&mut self, by: NodeId, least: Duration, now: Instant) {
        self.requested.retain(|_, time| now < *time + least);
        let last = self.requested.get(&by).copied();
        let time = last.map_or(now, |last| if last > now { last } else { last + least });
        self.requested.insert(by, time);
        self.repeat = Some(self.repeat.map_or(time, |other| other.min(time)));
    }

    /// Returns the version of the table if it is to be sent now: it changed, or is repeated.
    pub(super) fn publishes(&mut self, now: Instant) -> Option<u64> {
        let is_repeated = self.repeat.is_some_and(|time| time <= now);
        if !self.is_changed && !is_repeated {
            return None;
        }
        if self.is_changed {
            self.version += 1;
        }
        if is_repeated {
            (self.repeat, self.repeated) = (None, Some(now));
        }
        (self.is_changed, self.sent) = (false, Some(now));
        Some(self.version)
    }
}
