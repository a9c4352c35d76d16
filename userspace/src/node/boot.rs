//! A start without the API server: the state of the last boot, and how old it may be.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tracing::{error, info, warn};

use super::reconcile::Node;
use super::role::Stage;
use super::saving::Loaded;
use super::state::State;
use crate::model::{Change, DesiredRoute};

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
        self.state = Some(State::plain(desired));
        self.keys = self.keys.take().or(keys);
    }
}
