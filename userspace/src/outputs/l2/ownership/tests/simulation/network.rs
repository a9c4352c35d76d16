use std::net::IpAddr;
use std::time::Duration;

use crate::outputs::l2::ownership::{Answer, NodeId};

/// A frame on the segment.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Packet {
    Ask {
        nonce: u64,
    },
    Answer(AnswerPacket),
    Table {
        boot: u64,
        version: u64,
        bids: Vec<(IpAddr, u64)>,
    },
    Resend {
        to: NodeId,
    },
    /// ARP or neighbour discovery.
    Query(IpAddr),
    Reply(IpAddr),
}

/// An answer, comparable.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct AnswerPacket {
    pub(super) nonce: u64,
    pub(super) boot: u64,
    pub(super) stamp_age: Duration,
    pub(super) digest: u64,
}

impl AnswerPacket {
    pub(super) fn from(&self, from: NodeId, link: [u8; 6]) -> Answer {
        let Self { nonce, boot, stamp_age, digest } = *self;
        Answer { from, link, nonce, boot, stamp_age, digest }
    }
}

impl Packet {
    pub(super) fn is_heartbeat(&self) -> bool {
        !matches!(self, Self::Query(_) | Self::Reply(_))
    }

    /// Frames that it takes, each of which may be lost.
    pub(super) fn frames(&self) -> usize {
        if let Self::Table { bids, .. } = self { bids.len().div_ceil(40).max(1) } else { 1 }
    }
}

/// What the segment lets pass.
#[derive(Clone, Debug)]
pub(super) struct Network {
    /// From, to: nothing passes; heartbeats do not pass.
    pub(super) cut: Vec<Vec<bool>>,
    pub(super) deaf: Vec<Vec<bool>>,
    /// Parts of a thousand frames that are lost.
    pub(super) loss: usize,
    pub(super) delay: (Duration, Duration),
    /// Whether other hosts send something from time to time, to all who are not cut off from the first node.
    pub(super) has_chatter: bool,
}

impl Network {
    pub(super) fn new(nodes: usize) -> Self {
        let none = vec![vec![false; nodes]; nodes];
        let delay = (Duration::from_micros(50), Duration::from_millis(2));
        Self { cut: none.clone(), deaf: none, loss: 0, delay, has_chatter: true }
    }

    pub(super) fn passes(&self, from: usize, to: usize, packet: &Packet) -> bool {
        !self.cut[from][to] && !(packet.is_heartbeat() && self.deaf[from][to])
    }

    /// Whether two nodes receive everything from each other.
    pub(super) fn is_whole(&self, a: usize, b: usize) -> bool {
        !(self.cut[a][b] || self.cut[b][a] || self.deaf[a][b] || self.deaf[b][a])
    }

    pub(super) fn heal(&mut self) {
        self.cut.iter_mut().chain(&mut self.deaf).flatten().for_each(|cut| *cut = false);
    }

    /// Divides the segment.
    pub(super) fn divide(&mut self, group: impl Fn(usize) -> usize) {
        for from in 0..self.cut.len() {
            for to in 0..self.cut.len() {
                self.cut[from][to] = group(from) != group(to);
            }
        }
    }
}
