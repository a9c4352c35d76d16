//! Addresses that other hosts of a segment have, as the maps' output sees them: its clients on the node are not led away from those.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};

/// The link address of the host that has each of these addresses, shared by both outputs.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreign(Arc<Mutex<BTreeMap<IpAddr, [u8; 6]>>>);

impl Foreign {
    /// Replaces them.
    pub(super) fn set(&self, found: BTreeMap<IpAddr, [u8; 6]>) {
        // Nobody panics with it in hand.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = found;
    }

    /// Returns those of now.
    pub(crate) fn get(&self) -> BTreeMap<IpAddr, [u8; 6]> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
