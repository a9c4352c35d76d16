//! From what is applied to what is desired: the fewest map writes, in an order that never leaves a gap. Pure.

/// One map write each.
pub mod change;
/// What the maps hold, compactly.
pub mod applied;
/// The way to each backend.
pub mod hops;

pub use applied::{Applied, MapsContent};
pub use change::{Change, Selector};
pub use hops::{Hop, Hops};

use crate::model::Problem;

/// What to do to the maps, and what they hold afterwards.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// To be written in this order. At most one [`Change::Reset`], the last; it is to be repeated about a second
    /// later, for flows that were being opened the first time.
    pub changes: Vec<Change>,
    /// Deletions of what nothing leads to any more; to be written after the repeated reset. A daemon that dies before
    /// finds them again in [`Applied::from_maps`].
    pub later: Vec<Change>,
    /// What the maps hold once `changes` and `later` are written.
    pub applied: Applied,
    /// What cannot be done, and backends without a way.
    pub problems: Vec<Problem>,
}
