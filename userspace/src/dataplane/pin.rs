//! The pin folder and the right to write there.

use std::ffi::CString;
use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use common::maps::name;

/// Where the BPF file system is mounted.
pub const BPFFS: &str = "/sys/fs/bpf";

/// What the name of a pinned XDP link begins with. Releases that have no XDP leave such a pin alone until they remove all.
const FRONT_LINK: &str = "xdp-";

/// Magic number of bpffs (linux/magic.h).
const BPF_FS_MAGIC: u32 = 0xcafe_4a11;

/// The programs. Each has the same name as its entry point and, if it is pinned, its pin.
pub mod program {
    /// Attached to every selected device.
    pub const INGRESS: &str = "ingress";
    /// Run by the daemon to end connections where no packet triggers it.
    pub const EXPIRE: &str = "expire";
    /// Attached to the devices on which the operator wants XDP; it has no pin of its own.
    pub const FRONT: &str = "front";
}

/// Why the pin folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    /// The path is not below a bpffs.
    #[error("{} is not on a BPF file system; `mount -t bpf bpf {BPFFS}` and use a folder below it", .0.display())]
    NotBpffs(PathBuf),
    /// bpffs is not mounted and could not be mounted.
    #[error(
        "no BPF file system at {BPFFS}, and mounting one failed ({0}); run as root, or `mount -t bpf bpf {BPFFS}`"
    )]
    Mount(io::Error),
    /// The path contains a dot, which bpffs refuses.
    #[error("{}: names on a BPF file system hold no dot; name a folder without one by --pins", .0.display())]
    Dot(PathBuf),
    /// Another process has the right to write.
    #[error("another vestibule runs with the pins in {}; stop it, or choose another folder with --pins", .0.display())]
    Locked(PathBuf),
    /// Another process traces.
    #[error("another `vestibule trace` runs with the pins in {}; end it first", .0.display())]
    Traced(PathBuf),
    /// Nothing is pinned there.
    #[error("nothing is pinned in {}, or only root may look; is vestibule running with these pins?", .0.display())]
    Nothing(PathBuf),
    /// Any other I/O error.
    #[error("{}: {}: {source}", path.display(), what)]
    Io {
        /// The path concerned.
        path: PathBuf,
        /// The operation that failed.
        what: &'static str,
        /// The system's error.
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

/// The right to write. One process at a time has it, until it ends.
#[derive(Debug)]
pub struct Writer {
    /// Holds the lock.
    _folder: File,
}

impl Pins {
    /// The pins in `folder`, which need not exist.
    pub fn new(folder: &Path) -> Self {
        Self { folder: folder.into() }
    }

    /// The folder of the maps.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The path of a map's pin.
    pub fn map(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of the programs.
    pub fn programs(&self) -> PathBuf {
        self.folder.join("programs")
    }

    /// The folder of the links: one per device, named by the device's index.
    pub fn links(&self) -> PathBuf {
        self.folder.join("links")
    }

    /// The pin of a device's XDP link, beside those that [`Self::linked_devices`] lists.
    pub fn front(&self, ifindex: u32) -> PathBuf {
        self.links().join(format!("{FRONT_LINK}{ifindex}"))
    }

    /// Returns the indices of devices with a pinned XDP link.
    pub fn front_devices(&self) -> Result<Vec<u32>, PinError> {
        Ok(self.link_names()?.iter().filter_map(|name| name.strip_prefix(FRONT_LINK)?.parse().ok()).collect())
    }

    /// Creates the folders. Mounts bpffs if it is missing.
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

    /// Acquires the right to write. Fails while another process has it.
    pub fn lock(&self) -> Result<Writer, PinError> {
        self.lock_folder(&self.folder, PinError::Locked).map(|folder| Writer { _folder: folder })
    }

    /// Becomes the one `vestibule trace`, until the file is closed; refused while another process is.
    pub fn lock_trace(&self) -> Result<File, PinError> {
        self.lock_folder(&self.programs(), PinError::Traced)
    }

    /// Locks a folder for this process; `locked` when another one has it.
    fn lock_folder(&self, path: &Path, locked: fn(PathBuf) -> PinError) -> Result<File, PinError> {
        let folder = File::open(path).map_err(|e| match e.kind() {
            io::ErrorKind::NotFound => PinError::Nothing(self.folder.clone()),
            _ => PinError::io(path, "open")(e),
        })?;
        // SAFETY: flock takes no pointer, and the descriptor is open.
        if unsafe { libc::flock(folder.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) } == 0 {
            return Ok(folder);
        }
        let error = io::Error::last_os_error();
        if error.kind() == io::ErrorKind::WouldBlock {
            return Err(locked(self.folder.clone()));
        }
        Err(PinError::io(path, "lock")(error))
    }

    /// Returns whether any map is pinned.
    pub fn holds_maps(&self) -> bool {
        name::ALL.iter().any(|map| self.map(map).exists())
    }

    /// Returns the indices of devices with a pinned link.
    pub fn linked_devices(&self) -> Result<Vec<u32>, PinError> {
        Ok(self.link_names()?.iter().filter_map(|name| name.parse().ok()).collect())
    }

    fn link_names(&self) -> Result<Vec<String>, PinError> {
        let folder = self.links();
        let entries = match fs::read_dir(&folder) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(PinError::io(&folder, "list")(e)),
        };
        Ok(entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok()).collect())
    }

    /// Removes links first (the kernel handles all traffic from then on), then programs, maps and the folder.
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

/// Returns whether a BPF file system is mounted at its usual path.
pub fn has_bpffs() -> bool {
    on_bpffs(Path::new(BPFFS))
}

/// Returns whether the nearest existing ancestor of `path` is on bpffs.
fn on_bpffs(path: &Path) -> bool {
    let Some(existing) = path.ancestors().find(|p| p.exists()) else { return false };
    let Ok(existing) = CString::new(existing.as_os_str().as_bytes()) else { return false };
    // SAFETY: `statfs` contains only numbers, for which zero is a valid value.
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
