//! What the thread that announces is sent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;
use std::time::Instant;

use super::picture::Page;
use super::wanted::OnDevice;
use crate::outputs::Order;
use crate::plan::Leading;

/// A task for the thread.
#[derive(Debug)]
pub(super) enum Task {
    Prepare,
    Apply(Box<Order>),
    Served(Served),
    Received(Received),
    /// Answers with what is known of addresses, from this one on.
    Show {
        from: OnDevice,
        answer: Sender<Page>,
    },
    Release,
    End,
}

/// The answer of the maps' output to an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Served {
    /// The order's number.
    pub number: u64,
    /// Whether the order was carried out. Otherwise what was served before still is.
    pub is_whole: bool,
    /// Indices of the devices with the program; `None`: not known.
    pub devices: Option<BTreeSet<u32>>,
    /// Which nodes lead to a backend, of the addresses where each leads only to its own.
    pub leading: BTreeMap<IpAddr, Leading>,
}

/// A frame of another host.
#[derive(Debug)]
pub(super) struct Received {
    /// Index of the device that received it.
    pub device: u32,
    /// It is a heartbeat; otherwise it says who has an address.
    pub is_heartbeat: bool,
    /// With its Ethernet header.
    pub bytes: Vec<u8>,
    /// When it was read.
    pub time: Instant,
    /// Until it is dropped, it waits.
    pub _waiting: Waiting,
}

/// One of the frames that wait.
#[derive(Debug)]
pub(super) struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    /// Counts one more, unless `most` wait already.
    pub(super) fn one_more(count: &Arc<AtomicUsize>, most: usize) -> Option<Self> {
        let this = Self(Arc::clone(count));
        (count.fetch_add(1, Ordering::Relaxed) < most).then_some(this)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_frames_wait_than_may() {
        let count = Arc::default();
        let first = Waiting::one_more(&count, 2);
        let second = Waiting::one_more(&count, 2);
        assert!(first.is_some() && second.is_some() && Waiting::one_more(&count, 2).is_none());
        drop(first);
        assert!(Waiting::one_more(&count, 2).is_some());
    }
}
