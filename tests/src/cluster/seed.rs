//! etcd's data with what nearly every API server of the tests has: made once by a test process, and copied for each
//! server. Installing the definitions costs more than all else of a start.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result};

/// The unit in which files are read. etcd's are large and nearly empty: units of zeros are left out.
const UNIT: usize = 64 << 10;

/// All seeds of this process.
static SEEDS: Mutex<Vec<Seed>> = Mutex::new(Vec::new());

/// What a seed contains besides what each API server makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Content {
    /// The definitions of the Gateway API and ours.
    pub(super) definitions: bool,
    /// A manifest.
    pub(super) objects: String,
}

/// The data of a stopped etcd.
#[derive(Debug, Clone)]
pub(super) struct Seed {
    content: Content,
    /// The kinds that its definitions define, as `plural.group`.
    pub(super) kinds: Vec<String>,
    files: Vec<Kept>,
}

/// A file, by its path in etcd's folder.
#[derive(Debug, Clone)]
struct Kept {
    path: PathBuf,
    size: u64,
    /// What is not zero, with its offset.
    parts: Vec<(u64, Vec<u8>)>,
}

impl Seed {
    /// Reads the folder of an etcd that has ended.
    pub(super) fn read(content: Content, kinds: Vec<String>, folder: &Path) -> Result<Self> {
        let mut seed = Self { content, kinds, files: Vec::new() };
        let mut folders = vec![PathBuf::new()];
        while let Some(inner) = folders.pop() {
            let at = folder.join(&inner);
            for entry in fs::read_dir(&at).with_context(|| format!("reading {}", at.display()))? {
                let entry = entry?;
                let path = inner.join(entry.file_name());
                match entry.file_type()?.is_dir() {
                    true => folders.push(path),
                    false => {
                        let kept = Kept::read(path, &entry.path());
                        seed.files.push(kept.with_context(|| format!("reading {}", entry.path().display()))?);
                    }
                }
            }
        }
        Ok(seed)
    }

    /// Writes it for an etcd that has not started yet.
    pub(super) fn write(&self, folder: &Path) -> Result<()> {
        for file in &self.files {
            let path = folder.join(&file.path);
            file.write(&path).with_context(|| format!("writing {}", path.display()))?;
        }
        Ok(())
    }
}

impl Kept {
    fn read(path: PathBuf, from: &Path) -> std::io::Result<Self> {
        let bytes = fs::read(from)?;
        let units = bytes.chunks(UNIT).enumerate();
        let full = units.filter(|(_, unit)| unit.iter().any(|byte| *byte != 0));
        let parts = full.map(|(number, unit)| ((number * UNIT) as u64, unit.to_vec())).collect();
        Ok(Self { path, size: bytes.len() as u64, parts })
    }

    fn write(&self, to: &Path) -> std::io::Result<()> {
        if let Some(folder) = to.parent() {
            fs::create_dir_all(folder)?;
        }
        let file = File::create(to)?;
        file.set_len(self.size)?;
        self.parts.iter().try_for_each(|(offset, bytes)| file.write_all_at(bytes, *offset))
    }
}

/// Returns the seed with this content. The first test that needs it makes it; others wait.
pub(super) fn of(content: Content, make: impl FnOnce(Content) -> Result<Seed>) -> Result<Seed> {
    let mut seeds = SEEDS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(seed) = seeds.iter().find(|seed| seed.content == content) {
        return Ok(seed.clone());
    }
    let seed = make(content)?;
    seeds.push(seed.clone());
    Ok(seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::temp::TempDir;

    #[test]
    fn a_seed_is_written_as_it_was_read() {
        let (from, to) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        fs::create_dir_all(from.path().join("member/wal")).unwrap();
        // Zeros at the start, in the middle and at the end; nothing at all.
        let mut large = vec![0; 5 * UNIT + 7];
        large[UNIT + 1] = 1;
        large[3 * UNIT..4 * UNIT].fill(2);
        let files = [("member/wal/0.wal", large), ("member/db", b"db".to_vec()), ("lock", Vec::new())];
        for (path, bytes) in &files {
            fs::write(from.path().join(path), bytes).unwrap();
        }
        let content = Content { definitions: true, objects: String::new() };
        let seed = Seed::read(content, Vec::new(), from.path()).unwrap();
        assert_eq!(seed.files.iter().map(|file| file.parts.len()).max(), Some(2));
        seed.write(&to.path().join("etcd")).unwrap();
        for (path, bytes) in &files {
            assert!(fs::read(to.path().join("etcd").join(path)).unwrap() == *bytes, "{path}");
        }
    }

    #[test]
    fn each_content_is_made_once_and_again_after_a_failure() {
        let mut made = Vec::new();
        for (objects, works) in [("a", false), ("a", true), ("a", true), ("b", true), ("a", true)] {
            let content = Content { definitions: false, objects: objects.to_owned() };
            let seed = of(content, |content| {
                made.push(objects);
                anyhow::ensure!(works, "it does not start");
                Ok(Seed { content, kinds: Vec::new(), files: Vec::new() })
            });
            assert_eq!(seed.map(|seed| seed.content.objects).ok().as_deref(), works.then_some(objects));
        }
        assert_eq!(made, ["a", "a", "b"]);
    }
}
