//! The timing of the loop: when it takes a turn, and when it stops waiting for sources.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// The minimum time between two turns. All changes that arrive within it are handled together.
const GAP: Duration = Duration::from_millis(10);
/// The interval for checks that no event triggers.
const TICK: Duration = Duration::from_millis(250);
/// Free memory is returned to the kernel after this time without a turn.
const QUIET: Duration = Duration::from_secs(1);
/// How long sources may take to report everything if no map is pinned. Then the state of the last boot is used.
const PATIENCE: Duration = Duration::from_secs(5);

/// The timing of the loop.
pub(super) struct Pace {
    pub tick: Interval,
    /// Something changed since the last turn.
    pub is_dirty: bool,
    /// The earliest time of the next turn.
    pub due: Instant,
    pub begun: Instant,
    /// When the state of the last boot is to be used; `None`: this was tried.
    pub hopeless: Option<Instant>,
    /// When to look again whether maps serve on that nobody writes.
    pub kept_due: Instant,
    turned: Instant,
    /// There was a turn since memory was last returned.
    is_full: bool,
}

impl Pace {
    /// For a loop that starts now. The first turn is immediate.
    pub(super) fn new() -> Self {
        let now = Instant::now();
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        Self {
            tick,
            is_dirty: true,
            due: now,
            begun: now,
            hopeless: Some(now + PATIENCE),
            kept_due: now,
            turned: now,
            is_full: false,
        }
    }

    /// Notes that a turn starts.
    pub(super) fn turn(&mut self) {
        self.turned = Instant::now();
        self.due = self.turned + GAP;
        (self.is_dirty, self.is_full) = (false, true);
    }

    /// Returns whether the loop is idle, once after each turn.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_quiet = self.is_full && self.turned.elapsed() > QUIET;
        self.is_full &= !is_quiet;
        is_quiet
    }
}
