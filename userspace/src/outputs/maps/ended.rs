//! What is done after a removal, and all else that the thread which ends connections is asked for.

use std::collections::BTreeSet;
use std::sync::mpsc;

use common::maps::address::Address;
use tokio::time::Instant;

use crate::plan::{Applied, Census, Change, Selector};

/// A request to the thread.
#[derive(Debug)]
pub(super) enum Order {
    /// End what was removed.
    End(Ended),
    /// End every connection that does not belong to the census, and has an older generation than this. A daemon that
    /// died between its writes and its resets leaves such connections. What is newer may belong to a later change.
    Audit(Census, u32),
    /// Use this device for runs of the program.
    Device(u32),
    /// Forgets all deletions that are still to be done. It is dropped when that and all earlier requests have been done.
    Forget(mpsc::Sender<()>),
}

/// The work after a removal. No caller waits for it.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// To be written once every packet in flight has been handled: backends that accept no more flows.
    pub retire: Vec<Change>,
    /// Connections to be ended now, and again a little later.
    pub selector: Selector,
    /// To be written after that: deletions of what is no longer used.
    pub later: Vec<Change>,
    /// Addresses of backends that are gone: replies are known by them until then.
    pub senders: BTreeSet<Address>,
    /// What may be given out again after that, by removal.
    pub freed: Vec<Freed>,
    /// Flows of the selector that were ended already.
    pub flows: u32,
}

/// Ids that nothing has any more.
#[derive(Debug, Default)]
pub(super) struct Freed {
    /// Ids of removed listeners that no connection has.
    pub listeners: BTreeSet<u32>,
    /// Ids of policies that have no range in the map.
    pub policies: BTreeSet<u32>,
    /// Addresses of backends that are gone, and that no connection has.
    pub senders: BTreeSet<Address>,
}

/// The second part of a removal, or of an audit.
#[derive(Default)]
pub(super) struct Again {
    pub due: Option<Instant>,
    pub selector: Selector,
    /// A census, and the generation that connections of it are older than.
    pub audit: Option<(Census, u32)>,
    pub later: Vec<Change>,
    pub freed: Vec<Freed>,
    /// The last reset looked at all connections. Two in succession must.
    pub is_complete: bool,
}

impl Ended {
    /// Returns what a daemon that died, or a failed write, left. Without it a map that is full for a moment would stay full: nothing is
    /// deleted by a plan before all that it adds is written.
    pub(super) fn left(applied: &Applied) -> Self {
        let selector = Selector { listeners: applied.unused_listeners(), ..Selector::default() };
        Self { selector, later: applied.left().to_vec(), senders: applied.gone_senders(), ..Self::default() }
    }

    /// Combines two removals: all requests that have queued up need only one wait for packets and one walk
    /// through flows.
    pub(super) fn join(&mut self, other: Self) {
        self.retire.extend(other.retire);
        self.selector.join(other.selector);
        self.later.extend(other.later);
        self.senders.extend(other.senders);
        self.freed.extend(other.freed);
        self.flows += other.flows;
    }

    /// Returns the ids of the policies of which a range is to be deleted.
    pub(super) fn policies(&self) -> BTreeSet<u32> {
        let policy = |change: &Change| match change {
            Change::DeletePolicy(key) => Some(key.id().into()),
            _ => None,
        };
        self.later.iter().filter_map(policy).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        let is_nothing_to_do = self.retire.is_empty() && self.selector.is_empty() && self.later.is_empty();
        is_nothing_to_do && self.senders.is_empty() && self.flows == 0
    }
}
