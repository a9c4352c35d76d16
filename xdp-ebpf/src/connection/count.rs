//! Counts the outcomes of a route's connections.

use crate::atomic;
use crate::maps;

/// Counts a connection that reached its backend.
#[inline(always)]
pub(crate) fn connected(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        atomic::advance(&mut counters.connected);
    }
}

/// Counts a connection that was refused although its route is known.
#[inline(always)]
pub(crate) fn refused(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        atomic::advance(&mut counters.refused);
    }
}

/// Counts a try of another backend.
#[inline(always)]
pub(crate) fn retried(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        atomic::advance(&mut counters.retried);
    }
}
