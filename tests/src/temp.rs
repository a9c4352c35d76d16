//! A temporary folder of one test, removed when dropped.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::net::unique;

/// A folder `vst-<pid>-<n>` below the system's temporary folder.
#[derive(Debug)]
pub struct TempDir {
    path: PathBuf,
}

impl TempDir {
    pub fn new() -> Result<Self> {
        let path = std::env::temp_dir().join(format!("vst-{}-{}", std::process::id(), unique()));
        fs::create_dir_all(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(Self { path })
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file in the folder; a reader sees the old or the new content, never a part of it.
    pub fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Result<PathBuf> {
        let path = self.path.join(name);
        let new = self.path.join(format!("{name}.new"));
        fs::write(&new, content).with_context(|| format!("writing {}", new.display()))?;
        fs::rename(&new, &path).with_context(|| format!("renaming to {}", path.display()))?;
        Ok(path)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            eprintln!("cannot remove {}: {error}", self.path.display());
        }
    }
}
