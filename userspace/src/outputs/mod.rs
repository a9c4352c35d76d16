//! Where what is desired goes. An output is handed what it shall hold, and says by itself what it holds: nobody waits for
//! it.

/// Why an output does not hold what it should.
mod error;
/// The kernel's maps, and the programs on the node's devices.
pub(crate) mod maps;
/// An image of the maps in memory.
#[cfg(test)]
pub(crate) mod memory;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::model::{Desired, NodeFacts, Problem};

pub(crate) use crate::dataplane::maps::{CookieKeys, give_back_memory};
pub(crate) use crate::dataplane::pin::{PinError, Pins, Writer};
pub(crate) use crate::dataplane::read::now_ns;
pub use error::StartError;

/// What an output shall hold.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Grows from order to order.
    pub number: u64,
    /// What clients shall find.
    pub desired: Arc<Desired>,
    /// The node on which they shall find it.
    pub node: NodeFacts,
    /// Keys that cookies are signed with; `None`: the output's own.
    pub keys: Option<CookieKeys>,
    /// When that happened which the order follows from.
    pub begun: Instant,
}

/// What was done for an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// Map writes.
    pub changes: usize,
    /// From the beginning until new connections went the new way.
    pub in_force: Duration,
    /// Elements written to each map or deleted from it.
    pub writes: BTreeMap<&'static str, u64>,
    /// How long it took, the look at the node's network included.
    pub took: Duration,
}

impl Done {
    /// Both.
    pub(crate) fn join(mut self, other: Self) -> Self {
        for (map, writes) in other.writes {
            *self.writes.entry(map).or_default() += writes;
        }
        Self {
            changes: self.changes + other.changes,
            in_force: self.in_force.max(other.in_force),
            writes: self.writes,
            took: self.took.max(other.took),
        }
    }
}

/// What an output holds since an order was carried out, or could not be.
#[derive(Debug)]
pub(crate) struct Held {
    /// The order. Those before it that were not answered are answered by this.
    pub number: u64,
    /// An error: what was held before still is, as far as can be known.
    pub outcome: Result<Done, StartError>,
    /// What the node cannot do of it, and why.
    pub problems: Vec<Problem>,
    /// Names of the devices on which it is served, joined by commas.
    pub devices: String,
}

/// What an output says.
#[derive(Debug)]
pub(crate) enum Word {
    /// The answer to [`Output::prepare`].
    Prepared(Result<(), StartError>),
    /// The answer to [`Output::apply`].
    Holds(Held),
    /// The answer to [`Output::release`]: it writes nothing any more.
    Released,
    /// The node takes no new connections any more, or again.
    Draining(bool),
    /// It is of no use any more.
    Gone(StartError),
}

/// Something that holds what is desired. None of its functions waits; what comes of them is told by [`Output::holds`].
pub(crate) trait Output {
    /// Does what needs no right to write, so that a node is without a writer for a moment only.
    fn prepare(&mut self, order: Order);

    /// Makes it hold this. Of orders that wait for it only the last one counts.
    fn apply(&mut self, right: &Writer, order: Order);

    /// Ends writing, for another process to go on. What is held goes on serving.
    fn release(&mut self);

    /// What it says next. Nothing is lost when the waiting is given up.
    fn holds(&mut self, context: &mut Context<'_>) -> Poll<Word>;
}
