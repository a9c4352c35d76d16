//! What a node counts on its segments, for metrics.

use std::sync::{Arc, Mutex, PoisonError};

/// What is counted on the segment of one device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SegmentCounts {
    /// Name of the device.
    pub device: Arc<str>,
    /// Addresses that this node announces.
    pub here: u64,
    /// Those that another node announces.
    pub elsewhere: u64,
    /// Those that nobody announces, though nodes may.
    pub nobody: u64,
    /// Those that a foreign host answers for, whether this node announces them or not.
    pub foreign: u64,
    /// Other nodes that may announce something, and are alive.
    pub alive: u64,
    /// Those of which nothing is received.
    pub unheard: u64,
    /// Those that are alive, but whose kernels are silent about their addresses, for their agents are dead.
    pub closed: u64,
}

/// The counts as of a second ago, shared with scrapes.
#[derive(Clone, Debug, Default)]
pub struct Segments(Arc<Mutex<Arc<[SegmentCounts]>>>);

impl Segments {
    /// Replaces them.
    pub fn set(&self, counts: Vec<SegmentCounts>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = counts.into();
    }

    /// Returns them.
    pub fn get(&self) -> Arc<[SegmentCounts]> {
        Arc::clone(&self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
