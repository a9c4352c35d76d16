//! What outlives a boot: the state in force, saved not too often and without waiting for the disk.

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

/// Saves to a folder; to none where none is given.
#[derive(Debug)]
pub(super) struct Saving {
    folder: Option<PathBuf>,
    /// What is in force and not on disk yet.
    unsaved: Option<Arc<Desired>>,
    saved: Instant,
    tasks: JoinSet<()>,
}

impl Saving {
    /// Saves to this folder.
    pub(super) fn new(folder: Option<PathBuf>) -> Self {
        Self { folder, unsaved: None, saved: Instant::now(), tasks: JoinSet::new() }
    }

    /// Whether there may be something of the last boot.
    pub(super) fn has_folder(&self) -> bool {
        self.folder.is_some()
    }

    /// This is in force.
    pub(super) fn put(&mut self, desired: &Arc<Desired>) {
        self.unsaved = self.folder.is_some().then(|| Arc::clone(desired));
    }

    /// Another process puts into force, and saves, what comes next.
    pub(super) fn forget(&mut self) {
        self.unsaved = None;
    }

    /// Saves what is not saved, not too often, beside the loop.
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

    /// Saves it at once.
    pub(super) fn save_now(&mut self) {
        if let (Some(folder), Some(desired)) = (&self.folder, self.unsaved.take()) {
            save(folder, &desired);
        }
    }

    /// Keeps a copy of the keys.
    pub(super) fn save_keys(&self, keys: &CookieKeys) {
        if let Some(folder) = &self.folder
            && let Err(error) = keys::save(folder, keys)
        {
            warn!(%error, "the cookie keys are not kept for the next boot");
        }
    }

    /// What was in force when the node went down, with these settings.
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
