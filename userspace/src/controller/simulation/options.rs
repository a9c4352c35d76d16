//! What is played, and what is seen of it.

use std::time::Duration;

/// How large the cluster is, and what happens in it.
#[derive(Clone, Debug)]
pub(super) struct Options {
    pub(super) seed: u64,
    pub(super) nodes: usize,
    pub(super) namespaces: usize,
    pub(super) routes: usize,
    /// Changes a second, after all routes were programmed for the first time.
    pub(super) changes: f64,
    /// For how long.
    pub(super) lasts: Duration,
    /// How long a judgement takes.
    pub(super) judging: Duration,
    /// Whose writes hang.
    pub(super) hangs: Hangs,
    /// Nodes die after these times, one after each.
    pub(super) dies: Vec<Duration>,
    /// Other controllers begin to lead after each such time.
    pub(super) restarts: Option<Duration>,
    /// A node joins after each such time.
    pub(super) joins: Option<Duration>,
    /// Nodes report that they lack something.
    pub(super) misses: Option<Misses>,
}

/// Objects whose writes hang.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hangs {
    Nothing,
    /// Status writes of this many namespaces, the first ones.
    Namespaces(usize),
    /// Writes of Claims of this many namespaces, the first ones, once all routes were programmed.
    Claims(usize),
    /// Status writes of all.
    Everything,
}

/// What nodes lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lacks {
    /// Some routes.
    Routes,
    /// All Claims: their agents were restarted, and serve what they saved.
    Claims,
}

/// Nodes that lack something, for some time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Misses {
    pub(super) what: Lacks,
    pub(super) nodes: usize,
    pub(super) after: Duration,
    pub(super) lasts: Duration,
}

/// What was seen.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// Until all routes were programmed for the first time.
    pub(super) first: Duration,
    /// From a change until the route says that this generation is programmed, in order; without those of hanging namespaces.
    pub(super) delays: Vec<Duration>,
    /// The same while a dead node's Lease lived, or a node had joined and did not hold everything yet.
    pub(super) delays_with_absent: Vec<Duration>,
    /// Routes that were changed and never said so, of namespaces that do not hang.
    pub(super) open: usize,
    /// Status writes and Claim writes for each change.
    pub(super) writes: (f64, f64),
    /// Routes of which nodes reported that they do not hold them.
    pub(super) missed: usize,
    /// Of these, how long after the first report their status said so.
    pub(super) fell: Vec<Duration>,
    /// Of these, how many said that they are programmed when nodes had held them again for some seconds.
    pub(super) regained: usize,
    /// From one change of the current key to the next.
    pub(super) rotations: Vec<Duration>,
    pub(super) judgements: usize,
    /// Of judging, in real time.
    pub(super) judged: Duration,
}

/// The delay that this share of all does not exceed.
pub(super) fn percentile(sorted: &[Duration], share: f64) -> Duration {
    let at = ((sorted.len() as f64 * share).ceil() as usize).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}
