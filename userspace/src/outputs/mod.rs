//! The outputs: they apply the desired state. An output receives an order with what it should hold, and
//! reports on its own what it holds. No caller waits for it.

/// Why an output does not hold what it should.
mod error;
/// The kernel's maps, and the programs on the node's devices.
pub(crate) mod maps;
/// Answers to ARP and neighbour discovery, and announcements.
pub(crate) mod l2;
/// Ports at which the node says whether it leads to endpoints of a Service.
pub(crate) mod health;
/// An image of the maps in memory.
#[cfg(test)]
pub(crate) mod memory;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use crate::model::{Desired, NodeFacts, Problem};
use crate::plan::Part;

pub(crate) use crate::dataplane::maps::{CookieKeys, give_back_memory, share_one_heap};
pub(crate) use crate::dataplane::pin::{PinError, Pins, Writer};
pub(crate) use crate::dataplane::read::now_ns;
pub use error::StartError;

/// What an output should hold.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    /// Increases with every order.
    pub number: u64,
    /// The state that clients should find.
    pub desired: Arc<Desired>,
    /// The node where they should find it.
    pub node: NodeFacts,
    /// Keys for signing cookies; `None`: the output's own.
    pub keys: Option<CookieKeys>,
    /// New connections are refused: Vestibule is withdrawn from the cluster or from this node.
    pub is_withdrawn: bool,
    /// Time of the event that caused the order.
    pub begun: Instant,
}

/// The result of carrying out an order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done {
    /// The number of map writes.
    pub changes: usize,
    /// From the event until new connections use the new state.
    pub in_force: Duration,
    /// The number of elements written to each map or deleted from it.
    pub writes: BTreeMap<&'static str, u64>,
    /// The total time, including the queries of the node's network.
    pub took: Duration,
}

impl Done {
    /// Combines the results of two outputs.
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

/// Something that an output does not hold, although it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exception {
    /// What it does not hold.
    pub part: Part,
    /// Why, and what to do about it.
    pub problem: Problem,
}

/// What an output holds after an order was carried out or failed.
#[derive(Debug)]
pub(crate) struct Held {
    /// The order's number. This also answers all earlier orders without an answer.
    pub number: u64,
    /// `Err`: as far as is known, the output still holds what it held before.
    pub outcome: Result<Done, StartError>,
    /// What the node cannot do of the order, and why.
    pub problems: Vec<Problem>,
    /// What it does not hold of the order.
    pub exceptions: Vec<Exception>,
    /// Names of the devices that serve it, joined by commas.
    pub devices: String,
}

/// What an output found when it looked at what it should hold.
#[derive(Debug)]
pub(crate) struct Drifted {
    /// What the node cannot do of the order in effect, and why.
    pub problems: Vec<Problem>,
    /// What it does not hold, or did not until just now.
    pub exceptions: Vec<Exception>,
    /// The number of elements that were written again, and of programs that were attached again.
    pub repaired: usize,
}

/// What a node knows of the segment of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct OnSegment {
    /// The addresses that it answers for by ARP and neighbour discovery.
    pub addresses: BTreeSet<IpAddr>,
    /// Link addresses of foreign hosts that answer for addresses.
    pub conflicts: BTreeMap<IpAddr, [u8; 6]>,
    /// Names of nodes that may announce something there, and have been silent for a minute.
    pub unheard: BTreeSet<Arc<str>>,
}

/// The same by the name of the device.
pub(crate) type OnDevices = BTreeMap<Arc<str>, OnSegment>;

/// A message from an output.
#[derive(Debug)]
pub(crate) enum Word {
    /// The answer to [`Output::prepare`].
    Prepared(Result<(), StartError>),
    /// The answer to [`Output::apply`].
    Holds(Held),
    /// What the output found that it does not hold any more, or holds again.
    Drifted(Drifted),
    /// The answer to [`Output::release`]: the output no longer writes.
    Released,
    /// What the node knows of its segments, in a cluster: first before the answer to the first order, and then whenever it is
    /// something else.
    Announces(OnDevices),
    /// `vestibule drain` stopped the node from accepting new connections, or lets it accept them again.
    Draining(bool),
    /// The output ended and cannot be used any more.
    Gone(StartError),
}

/// Holds what is desired. None of its functions waits; [`Output::holds`] returns the results.
pub(crate) trait Output {
    /// Does everything that does not need the right to write, to shorten the time without a writer on the node.
    fn prepare(&mut self, order: Order);

    /// Applies this order. If several orders are waiting, only the last one is carried out.
    fn apply(&mut self, right: &Writer, order: Order);

    /// Stops writing, so that another process can take over. What is held keeps serving.
    fn release(&mut self);

    /// Returns its next message. Cancel safe: no message is lost.
    fn holds(&mut self, context: &mut Context<'_>) -> Poll<Word>;
}
