//! When the loop turns, and when it gives up waiting.

use std::time::Duration;

use tokio::time::{Instant, Interval, MissedTickBehavior, interval};

/// Time between two turns: what comes meanwhile is dealt with at once.
const GAP: Duration = Duration::from_millis(10);
/// How often it looks at what nobody tells it.
const TICK: Duration = Duration::from_millis(250);
/// Without a turn for this long, memory is given back.
const QUIET: Duration = Duration::from_secs(1);
/// Sources get this long to say everything before the state of the last boot is used, where no map is pinned.
const PATIENCE: Duration = Duration::from_secs(5);

/// When the loop turns.
pub(super) struct Pace {
    pub tick: Interval,
    /// Something came that no turn has seen.
    pub is_dirty: bool,
    /// Not before then.
    pub due: Instant,
    pub begun: Instant,
    /// When the state of the last boot is used; `None`: that was tried.
    pub hopeless: Option<Instant>,
    turned: Instant,
    /// Turns left memory that can be given back.
    is_full: bool,
}

impl Pace {
    /// A loop that begins now; it turns at once.
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
            turned: now,
            is_full: false,
        }
    }

    /// It turns.
    pub(super) fn turn(&mut self) {
        self.turned = Instant::now();
        self.due = self.turned + GAP;
        (self.is_dirty, self.is_full) = (false, true);
    }

    /// Whether it is quiet, for the first time since the last turn.
    pub(super) fn is_quiet(&mut self) -> bool {
        let is_quiet = self.is_full && self.turned.elapsed() > QUIET;
        self.is_full &= !is_quiet;
        is_quiet
    }
}
