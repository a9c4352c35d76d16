//! What is pinned where, and who may write it.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::maps::name;

/// Where the BPF file system is mounted.
pub const BPFFS: &str = "/sys/fs/bpf";

/// Magic number of bpffs (linux/magic.h).
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// The programs, by the name of their entry point and of their pin.
pub mod program {
    /// Attached to every device concerned.
    pub const INGRESS: &str = "ingress";
    /// Run by the daemon for what no packet triggers.
    pub const EXPIRE: &str = "expire";
}

/// Why the pin folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The path is not below a bpffs.
    #[error("{} is not on a BPF file system; `mount -t bpf bpf {BPFFS}` and use a folder below it", .0.display())]
    NotBpffs(PathBuf),
    /// bpffs is not mounted and we may not mount it.
    #[error(
        "no BPF file system at {BPFFS}, and mounting one failed ({0}); run as root, or `mount -t bpf bpf {BPFFS}`"
    )]
    Mount(io::Error),
    /// bpffs refuses dots.
    #[error("{}: names on a BPF file system hold no dot", .0.display())]
    Dot(PathBuf),
    /// Another process is the writer.
    #[error("another vestibule runs with the pins in {}; stop it, or choose another folder with --pins", .0.display())]
    Locked(PathBuf),
    /// Nothing is pinned.
    #[error("nothing is pinned in {}, or only root may look; is vestibule running with these pins?", .0.display())]
    Nothing(PathBuf),
    /// Anything else.
    #[error("{}: {}: {source}", path.display(), what)]
    Io {
        /// What it was about.
        path: PathBuf,
        /// What was being done.
        what: &'static str,
        /// What the system said.
        source: io::Error,
    },
}

impl PinError {
    pub(super) fn io(path: &Path, what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { path: path.into(), what, source }
    }
}

/// The folder that holds one instance's pins.
#[derive(Clone, Debug)]
pub struct Pins {
    folder: PathBuf,
}

/// The right to write: one process has it, until it ends.
#[derive(Debug)]
pub struct Writer {
    /// Holds the lock.
    _folder: File,
}

impl Pins {
    /// The pins in `folder`, whether they exist or not.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    /// Where the maps are.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a map is pinned.
    pub fn map(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where the programs are.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("programs")
    }

    /// Where the links are, one a device, named by its index.
    pub fn links(&self) -> PathBuf {
        self.folder.join("links")
    }

    /// Makes the folders, mounting bpffs when it is missing.
    pub fn prepare(&self) -> Result<(), PinError> {
        if !on_bpffs(&self.folder) && self.folder.starts_with(BPFFS) {
            mount().map_err(PinError::Mount)?;
        }
        if !on_bpffs(&self.folder) {
            return Err(PinError::NotBpffs(self.folder.clone()));
        }
        let below = self.folder.strip_prefix(BPFFS).unwrap_or(&self.folder);
        if below.as_os_str().as_bytes().contains(&b'.') {
            return Err(PinError::Dot(self.folder.clone()));
        }
        for folder in [self.programs(), self.links()] {
            fs::create_dir_all(&folder).map_err(PinError::io(&folder, "create"))?;
        }
        Ok(())
    }

    /// Becomes the one writer; refused while another process is.
    pub fn lock(&self) -> Result<Writer, PinError> {
        let folder = File::open(&self.folder).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => PinError::Nothing(self.folder.clone()),
            _ => PinError::Io { path: self.folder.clone(), what: "open", source: e },
        })?;
        // SAFETY: flock takes no pointer, and the descriptor is open.
        if unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(Writer { _folder: folder });
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            return Err(PinError::Locked(self.folder.clone()));
        }
        Err(PinError::Io { path: self.folder.clone(), what: "lock", source: error })
    }

    /// Whether any map is pinned.
    pub fn holds_maps(&self) -> bool {
        name::ALL.iter().any(|map| self.map(map).exists())
    }

    /// Indices of the devices that have a pinned link.
    pub fn linked_devices(&self) -> Result<Vec<u32>, PinError> {
        let folder = self.links();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(PinError::io(&folder, "list")(e)),
        };
        let names = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        Ok(names.collect())
    }

    /// Removes links first (traffic is the kernel's again at once), then programs, maps and the folder itself.
    pub fn remove(&self) -> Result<(), PinError> {
        for folder in [self.links(), self.programs(), self.folder.clone()] {
            let entries = match fs::read_dir(&folder) {
                Ok(entries) => entries,
                Err(e) if e.kind() == io::ErrorKind::NotFound => continue,
                Err(e) => return Err(PinError::io(&folder, "list")(e)),
            };
            for entry in entries {
                let path = entry.map_err(PinError::io(&folder, "list"))?.path();
                fs::remove_file(&path).map_err(PinError::io(&path, "remove"))?;
            }
            fs::remove_dir(&folder).map_err(PinError::io(&folder, "remove"))?;
        }
        Ok(())
    }
}

/// Whether a BPF file system is mounted where it belongs.
pub fn has_bpffs() -> bool {
    on_bpffs(Path::new(BPFFS))
}

/// Whether the nearest folder of `path` that exists is on bpffs.
fn on_bpffs(path: &Path) -> bool {
    let Some(existing) = path.ancestors().find(|p| p.exists()) else { return false };
    let Ok(existing) = CString::new(existing.as_os_str().as_bytes()) else { return false };
    // SAFETY: `statfs` is plain numbers, for which zero is a valid value.
    let mut found: libc::statfs = unsafe { std::mem::zeroed() };
    // SAFETY: the path ends with a zero byte and `found` lives through the call.
    let result = unsafe { libc::statfs(existing.as_ptr(), &mut found) };
    result == 0 && found.f_type as u32 == BPF_FS_MAGIC
}

fn mount() -> io::Result<()> {
    let target = CString::new(BPFFS)?;
    // SAFETY: all strings end with a zero byte and live through the call; bpffs needs no data.
    let result =
        unsafe { libc::mount(c"bpf".as_ptr(), target.as_ptr(), c"bpf".as_ptr(), 0, std::ptr::null()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_elsewhere_is_refused_with_the_remedy() {
        let error = Pins::new(Path::new("/tmp/vestibule-pins")).prepare().unwrap_err();
        assert!(matches!(error, PinError::NotBpffs(_)));
        assert!(error.to_string().contains("mount -t bpf"), "{error}");
    }

    #[test]
    fn a_second_writer_is_refused() {
        let folder = std::env::temp_dir().join(format!("vestibule-lock-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let pins = Pins::new(&folder);
        let first = pins.lock().unwrap();
        assert!(matches!(pins.lock(), Err(PinError::Locked(_))));
        drop(first);
        pins.lock().unwrap();
        fs::remove_dir(&folder).unwrap();
    }
}
