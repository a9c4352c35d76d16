//! What sweeps ended, and what the last ones found, for scrapes: these walk through no map that grows with connections.

use std::sync::{Arc, Mutex, PoisonError};

/// What sweeps found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Found {
    /// Flows, those that are over included.
    pub flows: u64,
    /// Connections whose ClientHello is held.
    pub hellos: u64,
    /// Routes that refuse connections; `None`: not known yet.
    pub refusing: Option<u64>,
}

/// The numbers of connections that were ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// Established flows; both ends are reset.
    pub flows: u32,
    /// Closed flows; their entries are removed.
    pub closed: u32,
    /// Waiting hellos; their clients are reset.
    pub hellos: u32,
    /// Half-open connections; their entries are removed.
    pub half_opens: u32,
}

/// What the thread that sweeps found last, shared with scrapes.
#[derive(Clone, Debug, Default)]
pub struct Swept(Arc<Mutex<Option<Found>>>);

impl Swept {
    /// Sets what was found; `None`: this process does not sweep any more.
    pub fn set(&self, found: Option<Found>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Returns what was found last; `None`: this process does not sweep.
    pub fn get(&self) -> Option<Found> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
