//! What a route's connections came to.

use crate::maps;

/// One reached its backend.
#[inline(always)]
pub(crate) fn connected(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        maps::advance(&mut counters.connected);
    }
}

/// One was refused although its route is known.
#[inline(always)]
pub(crate) fn refused(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        maps::advance(&mut counters.refused);
    }
}

/// Another backend is tried.
#[inline(always)]
pub(crate) fn retried(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        maps::advance(&mut counters.retried);
    }
}
