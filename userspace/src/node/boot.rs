//! A start without the API server: the state of the last boot, and how old it may be.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use k8s_openapi::jiff::Timestamp;
use tracing::{error, info, warn};

use super::reconcile::Node;
use super::role::{Lock, Stage};
use super::saving::Loaded;
use super::state::State;
use crate::model::{Change, DesiredRoute};

/// How long what is in the cluster may be unknown before it is reported that maps serve on which nobody writes, and how often that is
/// looked at.
const KEPT: Duration = Duration::from_secs(5);
/// What is reported of them.
const KEPT_TEXT: &str = "what its maps held when its agent began";

impl Node {
    /// Begins with what was announced when it was saved last: the first order may come before the API server's answer, or without it.
    pub(super) fn recall_announcement(&mut self) {
        if let Some(said) = self.saving.load_announcement() {
            info!(rules = said.rules.len(), "announces what was saved, until the API server says more");
            self.sources.change(Change::Announcement(Some(said)));
        }
    }

    /// Notes that the API server confirms what is known, if it does.
    pub(super) fn confirm_saved(&mut self) {
        if self.saving.has_folder() && self.sources.is_confirmed() {
            self.saving.confirm(SystemTime::now());
        }
    }

    /// Uses the state of the last boot if a source does not answer and no maps are pinned.
    pub(super) fn use_saved(&mut self) {
        let is_over = self.pace.hopeless.is_some_and(|since| since.elapsed() > Duration::ZERO);
        if self.state.is_some() || !is_over || self.sources.is_complete() || !self.saving.has_folder() {
            return;
        }
        if !matches!(self.role.stage, Stage::Reading) || self.role.pins.holds_maps() {
            return;
        }
        self.pace.hopeless = None;
        match self.saving.load(self.sources.settings()) {
            Ok(loaded) => self.use_loaded(loaded, SystemTime::now()),
            Err(error) => {
                warn!(%error, "the API server does not answer, and there is no state of the last boot to use");
            }
        }
    }

    /// Uses a state that was loaded. The addresses of pods in an old one may belong to pods of others by now.
    pub(super) fn use_loaded(&mut self, loaded: Loaded, now: SystemTime) {
        let Loaded { mut desired, keys, confirmed } = loaded;
        let (routes, max_age) = (desired.routes.len(), self.sources.saved_max_age());
        let age = confirmed.and_then(|confirmed| now.duration_since(confirmed).ok());
        let what = what_is_saved(confirmed.filter(|_| age.is_some()), age.is_some_and(|age| age > max_age));
        match age {
            Some(age) if age > max_age => {
                let hours = age.as_secs() / 3600;
                error!(
                    routes,
                    hours,
                    "the API server does not answer, and the state of the last boot is older than savedState.maxAge: new connections are refused"
                );
                let without = |route: &Arc<DesiredRoute>| match self.sources.is_of_file(&route.name) {
                    true => Arc::clone(route),
                    false => Arc::new(DesiredRoute { backends: Box::default(), ..(**route).clone() }),
                };
                desired.routes = desired.routes.iter().map(without).collect();
            }
            Some(age) => {
                let minutes = age.as_secs() / 60;
                info!(routes, minutes, "the API server does not answer; the state of the last boot is used");
            }
            None => {
                warn!(
                    routes,
                    "the API server does not answer; the state of the last boot is used, and its age is not known: the clock is before the time when it was saved, or an older version saved it"
                );
            }
        }
        self.state = Some(State::saved(desired, what.into()));
        self.keys = self.keys.take().or(keys);
    }

    /// Reports that the node serves what its maps held when this agent began, while nobody writes them: what is in the cluster is not known
    /// yet. Otherwise such a node would look like one that serves nothing.
    pub(super) fn tell_kept(&mut self) {
        let is_over = self.pace.begun.elapsed() > KEPT && self.pace.kept_due.elapsed() > Duration::ZERO;
        let waits =
            matches!(self.role.stage, Stage::Reading) && self.state.is_none() && !self.sources.is_complete();
        if !is_over || !waits || !self.role.pins.holds_maps() {
            return;
        }
        self.pace.kept_due = tokio::time::Instant::now() + KEPT;
        // Another process that writes them reports.
        let is_ours = matches!(self.role.lock(), Ok(Lock::Ours(_)));
        self.telemetry.tell_kept(&self.sources, &self.orders, is_ours.then_some(KEPT_TEXT));
    }
}

/// Says what a saved state is, which the API server confirmed last at this time; `None`: that is not known.
fn what_is_saved(confirmed: Option<SystemTime>, is_too_old: bool) -> String {
    let at = confirmed.and_then(|at| Timestamp::try_from(at).ok());
    let mut what = match at {
        Some(at) => format!("a saved state of {}", at.strftime("%Y-%m-%dT%H:%M:%SZ")),
        None => "a saved state of unknown age".to_owned(),
    };
    if is_too_old {
        what.push_str(", too old for its endpoints to take new connections");
    }
    what
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_saved_state_is_named_by_the_time_when_it_was_confirmed_last() {
        let at = Some(SystemTime::UNIX_EPOCH + Duration::from_millis(1_000_000_000_500));
        let named = "a saved state of 2001-09-09T01:46:40Z";
        assert_eq!(what_is_saved(at, false), named);
        assert_eq!(
            what_is_saved(at, true),
            format!("{named}, too old for its endpoints to take new connections")
        );
        assert_eq!(what_is_saved(None, false), "a saved state of unknown age");
    }
}
