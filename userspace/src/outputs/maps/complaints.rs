//! What cannot be done, and what is not held.

use std::collections::BTreeSet;

use tracing::warn;

use super::devices::Chosen;
use super::drift::Drift;
use crate::model::Problem;
use crate::outputs::Exception;

/// The most problems logged at once.
const LOGGED: usize = 20;

/// What cannot be done, and what is not held.
#[derive(Debug, Default)]
pub(super) struct Complaints {
    /// What the node cannot do of what is desired.
    pub problems: Vec<Problem>,
    /// What it does not hold of it, apart from what drifted.
    pub exceptions: Vec<Exception>,
    /// What drifted.
    pub drift: Drift,
    /// Problems already logged, so that each is logged once.
    logged: BTreeSet<String>,
}

impl Complaints {
    /// Logs problems that were not logged before.
    pub(super) fn log(&mut self, problems: &[Problem], chosen: &Chosen) {
        let devices = chosen.unusable.iter().chain(&chosen.beyond).cloned();
        let now: BTreeSet<String> = problems.iter().map(ToString::to_string).chain(devices).collect();
        let news: Vec<&String> = now.difference(&self.logged).collect();
        for problem in news.iter().take(LOGGED) {
            warn!("{problem}");
        }
        if news.len() > LOGGED {
            warn!("and {} more like these", news.len() - LOGGED);
        }
        self.logged = now;
    }

    /// What is not held.
    pub(super) fn exceptions(&self) -> Vec<Exception> {
        self.exceptions.iter().cloned().chain(self.drift.exceptions()).collect()
    }
}
