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
    /// What the node cannot do of what is desired, apart from XDP.
    pub problems: Vec<Problem>,
    /// What there is to say of XDP.
    fronts: Vec<Problem>,
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

    /// Notes what there is to say of XDP, and logs what was not said before. Returns whether anything is different.
    pub(super) fn note_fronts(&mut self, found: Vec<Problem>) -> bool {
        for problem in found.iter().filter(|problem| !self.fronts.contains(problem)) {
            warn!("{problem}");
        }
        let is_news = found != self.fronts;
        self.fronts = found;
        is_news
    }

    /// What the node cannot do of what is desired.
    pub(super) fn problems(&self) -> Vec<Problem> {
        self.problems.iter().chain(&self.fronts).cloned().collect()
    }

    /// What is not held.
    pub(super) fn exceptions(&self) -> Vec<Exception> {
        self.exceptions.iter().cloned().chain(self.drift.exceptions()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_xdp_is_among_the_problems_until_it_is_over() {
        let refused =
            |device: &str| Problem::warning("settings.xdpDevices", "not used", "look").value(device);
        let plain = Problem::warning("devices", "unused", "name another");
        let mut complaints = Complaints { problems: vec![plain.clone()], ..Complaints::default() };
        assert!(!complaints.note_fronts(Vec::new()));
        for device in ["eth0", "eth1"] {
            assert!(complaints.note_fronts(vec![refused(device)]));
            assert!(!complaints.note_fronts(vec![refused(device)]), "it is said once");
            assert_eq!(complaints.problems(), [plain.clone(), refused(device)]);
        }
        assert!(complaints.note_fronts(Vec::new()));
        assert_eq!(complaints.problems(), [plain]);
    }
}
