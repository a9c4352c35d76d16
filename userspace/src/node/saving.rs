//! Saves the state in effect, so that it survives a reboot. Limits how often, and does not wait for the disk.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use tokio::task::JoinSet;
use tracing::warn;

use super::{api_servers, keys, saved, saved_announcement};
use crate::model::{Announcement, Desired, Settings};
use crate::outputs::{CookieKeys, give_back_memory};

use super::disk::DiskError;

/// The state is saved at most this often.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// A state that does not change is saved again this often while the API server confirms it.
const CONFIRM_EVERY: Duration = Duration::from_secs(3600);

/// Saves to a folder, or does nothing if there is no folder.
#[derive(Debug)]
pub(super) struct Saving {
    folder: Option<PathBuf>,
    /// The state in effect, if it is to be saved at all.
    in_force: Option<Arc<Desired>>,
    is_unsaved: bool,
    /// What is announced, as it was saved last.
    announcement: Option<Arc<Announcement>>,
    /// Addresses of API servers, as they were saved last.
    api_servers: BTreeSet<IpAddr>,
    /// When the API server last confirmed what is known of it.
    confirmed: Option<SystemTime>,
    /// The same, as it was last saved.
    saved_confirmed: Option<SystemTime>,
    saved: Instant,
    tasks: JoinSet<()>,
}

impl Saving {
    /// Saves to this folder.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self {
            folder,
            in_force: None,
            is_unsaved: false,
            announcement: None,
            api_servers: BTreeSet::new(),
            confirmed: None,
            saved_confirmed: None,
            saved: Instant::now(),
            tasks: JoinSet::new(),
        }
    }

    /// Returns whether something from the last boot may exist.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Sets the state in effect, which is to be saved.
    pub(super) fn put(&mut self, desired: &Arc<Desired>) {
        self.in_force = self.folder.is_some().then(|| Arc::clone(desired));
        self.is_unsaved = self.in_force.is_some();
    }

    /// The API server confirms what is known of it, at this time.
    pub(super) fn confirm(&mut self, now: SystemTime) {
        self.confirmed = Some(now);
        // `Err`: the clock was set back, and the time on disk is in the future.
        let is_old = |saved: SystemTime| now.duration_since(saved).map_or(true, |age| age >= CONFIRM_EVERY);
        if self.in_force.is_some() && self.saved_confirmed.is_none_or(is_old) {
            self.is_unsaved = true;
        }
    }

    /// Forgets the state: another process takes over, and saves what it puts into effect.
    pub(super) fn forget(&mut self) {
        self.in_force = None;
        self.is_unsaved = false;
    }

    /// Saves the unsaved state, at a limited rate and without blocking the loop.
    pub(super) fn save_some_time(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if self.saved.elapsed() < SAVE_EVERY {
            return;
        }
        if let Some((folder, desired, confirmed)) = self.unsaved() {
            self.saved = Instant::now();
            self.tasks.spawn_blocking(move || save(&folder, &desired, confirmed));
        }
    }

    /// Saves the unsaved state immediately.
    pub(super) fn save_now(&mut self) {
        if let Some((folder, desired, confirmed)) = self.unsaved() {
            save(&folder, &desired, confirmed);
        }
    }

    /// Returns what is to be saved, once.
    fn unsaved(&mut self) -> Option<(PathBuf, Arc<Desired>, Option<SystemTime>)> {
        let (folder, desired) = (self.folder.as_ref()?, self.in_force.as_ref()?);
        if !std::mem::take(&mut self.is_unsaved) {
            return None;
        }
        self.saved_confirmed = self.confirmed;
        Some((folder.clone(), Arc::clone(desired), self.confirmed))
    }

    /// Saves a copy of the keys.
    pub(super) fn save_keys(&self, keys: &CookieKeys) {
        if let Some(folder) = &self.folder
            && let Err(error) = keys::save(folder, keys)
        {
            warn!(%error, "the cookie keys are not kept for the next boot");
        }
    }

    /// Saves a copy of what is announced, if it is another one: it changes with the nodes of the cluster.
    pub(super) fn save_announcement(&mut self, said: Option<&Arc<Announcement>>) {
        let Some((folder, said)) = self.folder.as_ref().zip(said) else { return };
        if self.announcement.as_ref() == Some(said) {
            return;
        }
        // One that cannot be saved is not tried again before it is another one.
        self.announcement = Some(Arc::clone(said));
        if let Err(error) = saved_announcement::write(folder, said) {
            warn!(%error, "what is announced is not kept for the next start");
        }
    }

    /// Loads what was announced when it was saved last.
    pub(super) fn load_announcement(&mut self) -> Option<Arc<Announcement>> {
        match saved_announcement::read(self.folder.as_deref()?) {
            Ok(said) => self.announcement = Some(Arc::new(said)),
            Err(DiskError::Missing) => {}
            Err(error) => warn!(%error, "what was announced before is not known"),
        }
        self.announcement.clone()
    }

    /// Saves a copy of the addresses of API servers, if they are others.
    pub(super) fn save_api_servers(&mut self, known: &BTreeSet<IpAddr>) {
        let Some(folder) = self.folder.as_ref().filter(|_| self.api_servers != *known) else { return };
        self.api_servers.clone_from(known);
        if let Err(error) = api_servers::write(folder, known) {
            warn!(%error, "the addresses of API servers are not kept for the next start");
        }
    }

    /// Loads the addresses of API servers that were saved last; none: there are none that can be read.
    pub(super) fn load_api_servers(&mut self) -> BTreeSet<IpAddr> {
        match self.folder.as_deref().map(api_servers::read) {
            Some(Ok(known)) => self.api_servers = known,
            None | Some(Err(DiskError::Missing)) => {}
            Some(Err(error)) => warn!(%error, "the addresses of API servers before are not known"),
        }
        self.api_servers.clone()
    }

    /// Loads the state that was in effect when the node went down, with these settings.
    pub(super) fn load(&self, settings: &Settings) -> Result<Loaded, DiskError> {
        let folder = self.folder.as_deref().ok_or(DiskError::Missing)?;
        let (desired, confirmed) = saved::read(folder, settings)?;
        Ok(Loaded { desired, keys: keys::load(folder).ok(), confirmed })
    }
}

/// What was in effect when the node went down.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) desired: Desired,
    pub(super) keys: Option<CookieKeys>,
    /// When the API server last confirmed the state; `None`: not known.
    pub(super) confirmed: Option<SystemTime>,
}

fn save(folder: &Path, desired: &Desired, confirmed: Option<SystemTime>) {
    if let Err(error) = saved::write(folder, desired, confirmed) {
        warn!(%error, "the state is not kept for the next boot");
    }
    // The whole state was one text for a moment. The loop may have given memory back before, and would not do so again while it rests.
    give_back_memory();
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Otherwise a cluster in which nothing changes for a day would not be served after a power cut.
    #[test]
    fn what_is_confirmed_is_saved_again_every_hour_and_not_more_often() {
        let mut saving = Saving::new(Some(PathBuf::from("unused")));
        let start = SystemTime::now();
        saving.confirm(start);
        assert!(saving.unsaved().is_none(), "nothing is in force");
        let hour = |hours: f64| start + Duration::from_secs_f64(3600.0 * hours);
        saving.put(&Arc::default());
        assert_eq!(saving.unsaved().map(|(.., confirmed)| confirmed), Some(Some(start)));
        saving.confirm(hour(0.9));
        assert!(saving.unsaved().is_none());
        saving.confirm(hour(1.0));
        assert_eq!(saving.unsaved().map(|(.., confirmed)| confirmed), Some(Some(hour(1.0))));
        // A change meanwhile is saved with the last confirmation, not with the time of saving.
        saving.confirm(hour(1.5));
        saving.put(&Arc::default());
        assert_eq!(saving.unsaved().map(|(.., confirmed)| confirmed), Some(Some(hour(1.5))));
        // The clock is set back.
        saving.confirm(hour(1.2));
        assert_eq!(saving.unsaved().map(|(.., confirmed)| confirmed), Some(Some(hour(1.2))));
        saving.forget();
        saving.confirm(hour(9.0));
        assert!(saving.unsaved().is_none(), "another process saves");
    }
}
