//! Saves the state in effect, so that it survives a reboot. Limits how often, and does not wait for the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::task::JoinSet;
use tracing::warn;

use super::{keys, saved};
use crate::model::{Desired, Settings};
use crate::outputs::CookieKeys;

use super::disk::DiskError;

/// The state is saved at most this often.
const SAVE_EVERY: Duration = Duration::from_secs(5);

/// Saves to a folder, or does nothing if there is no folder.
#[derive(Debug)]
pub(super) struct Saving {
    folder: Option<PathBuf>,
    /// The state in effect, while it is not saved yet.
    unsaved: Option<Arc<Desired>>,
    saved: Instant,
    tasks: JoinSet<()>,
}

impl Saving {
    /// Saves to this folder.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, unsaved: None, saved: Instant::now(), tasks: JoinSet::new() }
    }

    /// Returns whether something from the last boot may exist.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// Sets the state in effect, which is to be saved.
    pub(super) fn put(&mut self, desired: &Arc<Desired>) {
        self.unsaved = self.folder.is_some().then(|| Arc::clone(desired));
    }

    /// Discards the unsaved state: another process takes over, and saves what it puts into effect.
    pub(super) fn forget(&mut self) {
        self.unsaved = None;
    }

    /// Saves the unsaved state, at a limited rate and without blocking the loop.
    pub(super) fn save_some_time(&mut self) {
        while self.tasks.try_join_next().is_some() {}
        if self.saved.elapsed() < SAVE_EVERY {
            return;
        }
        if let (Some(folder), Some(desired)) = (&self.folder, self.unsaved.take()) {
            self.saved = Instant::now();
            let folder = folder.clone();
            self.tasks.spawn_blocking(move || save(&folder, &desired));
        }
    }

    /// Saves the unsaved state immediately.
    pub(super) fn save_now(&mut self) {
        if let (Some(folder), Some(desired)) = (&self.folder, self.unsaved.take()) {
            save(folder, &desired);
        }
    }

    /// Saves a copy of the keys.
    pub(super) fn save_keys(&self, keys: &CookieKeys) {
        if let Some(folder) = &self.folder
            && let Err(error) = keys::save(folder, keys)
        {
            warn!(%error, "the cookie keys are not kept for the next boot");
        }
    }

    /// Loads the state that was in effect when the node went down, with these settings.
    pub(super) fn load(&self, settings: &Settings) -> Result<(Desired, Option<CookieKeys>), DiskError> {
        let folder = self.folder.as_deref().ok_or(DiskError::Missing)?;
        Ok((saved::read(folder, settings)?, keys::load(folder).ok()))
    }
}

fn save(folder: &Path, desired: &Desired) {
    if let Err(error) = saved::write(folder, desired) {
        warn!(%error, "the state is not kept for the next boot");
    }
}
