use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use super::Flaw;
use super::network::Packet;
use crate::outputs::l2::ownership::{Candidate, NodeId, Segment};

/// What a node wants: for each address its candidates.
pub(super) type Wanted = BTreeMap<IpAddr, Arc<[Candidate]>>;

/// The most frames that a socket keeps for its agent.
const SOCKET: usize = 256;

/// A node.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) link: [u8; 6],
    pub(super) is_on: bool,
    pub(super) kernel: Kernel,
    pub(super) wanted: Wanted,
    pub(super) agent: Option<Segment>,
    pub(super) paused: bool,
    /// When it was resumed, or came back after it had been off.
    pub(super) returned: Duration,
    /// When its agent was killed or paused, and when one started or was resumed.
    pub(super) stopped: Duration,
    pub(super) started: Duration,
    /// The next turn; the number makes an earlier appointment void.
    pub(super) wake: (Duration, u64),
    /// When something was received.
    pub(super) received: Duration,
}

/// What outlives the agent.
#[derive(Debug, Default)]
pub(super) struct Kernel {
    pub(super) entry: Option<Entry>,
    pub(super) received: Option<Duration>,
    pub(super) announced: BTreeMap<IpAddr, u64>,
    /// What the socket of the agent holds.
    pub(super) socket: Vec<(usize, Packet)>,
}

/// An entry of the map of segments.
#[derive(Clone, Copy, Debug)]
pub(super) struct Entry {
    pub(super) boot: u64,
    pub(super) digest: u64,
    pub(super) stamp: Duration,
}

impl Node {
    pub(super) fn new(number: usize, id: NodeId) -> Self {
        Self {
            id,
            link: [2, 0, 0, 0, 0, number as u8],
            is_on: true,
            kernel: Kernel::default(),
            wanted: Wanted::new(),
            agent: None,
            paused: false,
            returned: Duration::ZERO,
            stopped: Duration::ZERO,
            started: Duration::ZERO,
            wake: (Duration::ZERO, 0),
            received: Duration::ZERO,
        }
    }

    /// Whether an agent runs, and is not stopped.
    pub(super) fn has_running_agent(&self) -> bool {
        self.is_on && self.agent.is_some() && !self.paused
    }

    /// Whether its kernel answers for an address.
    pub(super) fn answers(
        &self,
        address: &IpAddr,
        grace: Duration,
        flaw: Option<Flaw>,
        now: Duration,
    ) -> bool {
        if !self.is_on || !self.kernel.announced.contains_key(address) {
            return false;
        }
        let Some(entry) = self.kernel.entry else { return true };
        let is_old = now.saturating_sub(entry.stamp) > grace;
        // It is received now, or was for so long after the stamp had grown old that it may have taken over.
        let (second, latched) = (Duration::from_secs(1), entry.stamp + grace + Duration::from_millis(400));
        let counts = |last: Duration| {
            now.saturating_sub(last) <= second || (last > latched && flaw != Some(Flaw::GateOpensAgain))
        };
        let is_with_others = self.kernel.received.is_some_and(counts);
        match flaw {
            Some(Flaw::NoGate) => true,
            Some(Flaw::GateClosesAlone) => !is_old,
            _ => !(is_old && is_with_others),
        }
    }

    /// Hands a frame on to the agent.
    pub(super) fn pass(&mut self, from: usize, packet: Packet) {
        if self.agent.is_some() && self.kernel.socket.len() < SOCKET {
            self.kernel.socket.push((from, packet));
        }
    }
}
