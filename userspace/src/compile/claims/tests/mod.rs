//! The results of compiling clusters.

/// Backends that are addresses.
mod addresses;
/// Claims that contradict each other.
mod contradicting;
/// Endpoints, weights, health.
mod backends;
/// Changes, one by one.
mod following;
/// Changes of endpoints alone.
mod refreshing;
/// What the maps have no room for.
mod room;
#[cfg(not(debug_assertions))]
mod speed;

use crate::settle::tests::*;
