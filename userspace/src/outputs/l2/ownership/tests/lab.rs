use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::outputs::l2::ownership::precedence::{digest, weight};
use crate::outputs::l2::ownership::{
    Action, Answer, Candidate, Frame, NodeId, Rules, STOPPED, Segment, Standing,
};

pub(super) const OWN: NodeId = 1;
pub(super) const OTHER: NodeId = 2;
pub(super) const THIRD: NodeId = 3;
pub(super) const GRACE: Duration = Duration::from_secs(2);

pub(super) fn milliseconds(number: u64) -> Duration {
    Duration::from_millis(number)
}

pub(super) fn link(node: NodeId) -> [u8; 6] {
    [2, 0, 0, 0, 0, node as u8]
}

/// Returns addresses for which one node comes before another.
pub(super) fn addresses(first: NodeId, second: NodeId) -> impl Iterator<Item = IpAddr> {
    let all = (1..=255).map(|number| IpAddr::from([192, 0, 2, number]));
    all.filter(move |address| weight(address, first) > weight(address, second))
}

/// Another node, of which only what it sends matters.
#[derive(Clone, Debug)]
pub(super) struct Other {
    pub(super) boot: u64,
    pub(super) version: u64,
    pub(super) bids: Vec<(IpAddr, u64)>,
    pub(super) stamp_age: Duration,
    /// Its kernel answers heartbeats, and for its addresses.
    pub(super) answers: bool,
    pub(super) replies: bool,
    /// They answer for addresses however old the agent's stamp is.
    pub(super) is_ungated: bool,
}

impl Other {
    pub(super) fn digest(&self) -> u64 {
        self.bids.iter().fold(0, |sum, (address, epoch)| digest(address, *epoch).wrapping_add(sum))
    }
}

/// One segment, and what it is made to see.
#[derive(Debug)]
pub(super) struct Lab {
    pub(super) segment: Segment,
    pub(super) start: Instant,
    pub(super) now: Instant,
    pub(super) others: BTreeMap<NodeId, Other>,
    /// What was done, and when.
    pub(super) done: Vec<(Duration, Action)>,
}

impl Lab {
    pub(super) fn new() -> Self {
        let start = Instant::now();
        let segment =
            Segment::new(OWN, Rules { grace: GRACE, rebalance: None, withdraws: false }, 7, 100, start);
        Self { segment, start, now: start, others: BTreeMap::new(), done: Vec::new() }
    }

    pub(super) fn with(mut self, node: NodeId, bids: &[(IpAddr, u64)]) -> Self {
        let (boot, version, bids) = (10 * node, 1, bids.to_vec());
        self.others.insert(
            node,
            Other {
                boot,
                version,
                bids,
                stamp_age: Duration::ZERO,
                answers: true,
                replies: true,
                is_ungated: false,
            },
        );
        self
    }

    pub(super) fn want(&mut self, addresses: &[IpAddr], nodes: &[NodeId]) {
        self.prefer(addresses, &nodes.iter().map(|node| (*node, 0)).collect::<Vec<_>>());
    }

    /// The same with a preference for each node.
    pub(super) fn prefer(&mut self, addresses: &[IpAddr], nodes: &[(NodeId, u32)]) {
        let candidate =
            |(node, preference): &(NodeId, u32)| Candidate { node: *node, preference: *preference };
        let nodes: Arc<[Candidate]> = nodes.iter().map(candidate).collect();
        let wanted = addresses.iter().map(|address| (*address, Arc::clone(&nodes))).collect();
        self.segment.candidates(wanted, self.now);
    }

    pub(super) fn other(&mut self, node: NodeId) -> &mut Other {
        self.others.get_mut(&node).unwrap()
    }

    /// Another node sends a new table.
    pub(super) fn send(&mut self, node: NodeId, bids: &[(IpAddr, u64)]) {
        let other = self.others.get_mut(&node).unwrap();
        (other.version, other.bids) = (other.version + 1, bids.to_vec());
        self.segment.table(node, other.boot, other.version, bids.to_vec(), self.now);
    }

    pub(super) fn turn(&mut self) -> Vec<Action> {
        let actions = self.segment.turn(self.now);
        self.done.extend(actions.iter().map(|action| (self.now - self.start, action.clone())));
        actions
    }

    /// Lets time pass; others answer at once.
    pub(super) fn pass(&mut self, time: u64) {
        let end = self.now + milliseconds(time);
        let mut turns = 0;
        loop {
            let due = self.segment.due().max(self.now);
            if due > end {
                break;
            }
            self.now = due;
            let actions = self.turn();
            self.answer(actions);
            turns += 1;
            assert!(turns < 100 + time, "something is due all the time");
        }
        self.now = end;
    }

    pub(super) fn answer(&mut self, actions: Vec<Action>) {
        let (segment, now) = (&mut self.segment, self.now);
        for action in actions {
            for (node, other) in &self.others {
                match &action {
                    Action::Send(Frame::Ask { nonce }) if other.answers => {
                        let (from, link, nonce, boot) = (*node, link(*node), *nonce, other.boot);
                        let (stamp_age, digest) = (other.stamp_age, other.digest());
                        segment.answered(&Answer { from, link, nonce, boot, stamp_age, digest }, now);
                    }
                    Action::Send(Frame::Resend { to })
                        if to == node && other.answers && other.stamp_age < STOPPED =>
                    {
                        segment.table(*node, other.boot, other.version, other.bids.clone(), now);
                    }
                    Action::Probe(address)
                        if other.replies
                            && (other.is_ungated || other.stamp_age <= GRACE)
                            && other.bids.iter().any(|(its, _)| its == address) =>
                    {
                        segment.claimed(*address, link(*node), now);
                    }
                    _ => {}
                }
            }
        }
    }

    /// What was done since the last call, but for heartbeats, with milliseconds since the start.
    pub(super) fn done(&mut self) -> Vec<(u64, Action)> {
        let done = std::mem::take(&mut self.done).into_iter();
        let done = done.filter(|(_, action)| !matches!(action, Action::Send(Frame::Ask { .. })));
        done.map(|(time, action)| (time.as_millis() as u64, action)).collect()
    }

    pub(super) fn opened(&mut self) -> Vec<(u64, IpAddr, u64)> {
        let opened = self.done().into_iter().filter_map(|(time, action)| match action {
            Action::Open { address, epoch } => Some((time, address, epoch)),
            _ => None,
        });
        opened.collect()
    }

    /// A segment on which another node has held these addresses for a while.
    pub(super) fn held_by_other(held: &[IpAddr]) -> Self {
        let bids: Vec<(IpAddr, u64)> = held.iter().map(|address| (*address, 4)).collect();
        let mut lab = Self::new().with(OTHER, &bids);
        lab.want(held, &[OWN, OTHER]);
        lab.pass(3000);
        assert!(lab.opened().is_empty(), "it is held");
        assert_eq!(lab.segment.standing(&held[0]), Standing::Elsewhere { node: OTHER, epoch: 4 });
        lab
    }
}

pub(super) fn bids(version: u64, bids: &[(IpAddr, u64)]) -> Action {
    Action::Send(Frame::Bids { version, bids: bids.to_vec() })
}
