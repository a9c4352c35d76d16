//! Files that survive a reboot: written aside and renamed, accessible only by root, with a checksum.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use sha2::{Digest, Sha256};

/// The largest file that is read. 100,000 routes take about 40 MB.
const BYTES_MAX: u64 = 256 << 20;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum DiskError {
    /// There is no file.
    #[error("there is none")]
    Missing,
    /// Another version or another program wrote it.
    #[error("it begins with {found:?}, this version writes {wanted:?}")]
    Version {
        /// Its first line.
        found: String,
        /// The first line that this version writes.
        wanted: &'static str,
    },
    /// Its content is not what was written.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// An error of the operating system.
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Replaces a file by a heading, `content`, and their checksum. A reader always finds the complete old or new
/// file, even after a power loss.
pub(super) fn write(path: &Path, heading: &'static str, content: &[u8]) -> io::Result<()> {
    let mut aside = path.as_os_str().to_owned();
    aside.push(".next");
    let aside = Path::new(&aside);
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(aside)?;
    // A file left over here may have other permissions.
    file.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    let mut hash = Sha256::new();
    for part in [heading.as_bytes(), b"\n", content, b"\n"] {
        hash.update(part);
        file.write_all(part)?;
    }
    writeln!(file, "{}", hex(&hash.finalize()))?;
    file.sync_all()?;
    fs::rename(aside, path)?;
    match path.parent() {
        Some(folder) => File::open(folder)?.sync_all(),
        None => Ok(()),
    }
}

/// Returns the content of a file that [`write`] wrote with this heading.
pub(super) fn read(path: &Path, heading: &'static str) -> Result<Vec<u8>, DiskError> {
    let file = match File::open(path) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Err(DiskError::Missing),
        file => file?,
    };
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes)?;
    let first = bytes.iter().position(|byte| *byte == b'\n').unwrap_or(bytes.len());
    if bytes.get(..first) != Some(heading.as_bytes()) {
        let found = String::from_utf8_lossy(bytes.get(..first.min(80)).unwrap_or_default()).into_owned();
        return Err(DiskError::Version { found, wanted: heading });
    }
    // The checksum is the last line: 64 digits and a newline.
    let Some(end) = bytes.len().checked_sub(65).filter(|end| *end > first) else {
        return Err(DiskError::Damaged("it is too short"));
    };
    let (checked, sum) = bytes.split_at(end);
    if sum.strip_suffix(b"\n") != Some(hex(&Sha256::digest(checked)).as_bytes()) {
        return Err(DiskError::Damaged("its checksum is wrong"));
    }
    let content = checked.get(first + 1..).and_then(|rest| rest.strip_suffix(b"\n"));
    content.map(<[u8]>::to_vec).ok_or(DiskError::Damaged("it is too short"))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use std::path::PathBuf;

    const HEADING: &str = "test 1";

    fn path(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("vestibule-disk-{}-{name}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder.join("file")
    }

    #[test]
    fn what_is_written_is_read_and_only_root_may() {
        let path = path("whole");
        assert!(matches!(read(&path, HEADING), Err(DiskError::Missing)));
        for content in [&b"one\ntwo"[..], b"", b"three"] {
            write(&path, HEADING, content).unwrap();
            assert_eq!(read(&path, HEADING).unwrap(), content);
        }
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "nothing is left beside it");
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn no_changed_byte_and_no_cut_goes_unnoticed() {
        let path = path("damaged");
        write(&path, HEADING, b"content").unwrap();
        let whole = fs::read(&path).unwrap();
        for place in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[place] ^= 1;
            fs::write(&path, &bytes).unwrap();
            assert!(read(&path, HEADING).is_err(), "byte {place}");
            fs::write(&path, &whole[..place]).unwrap();
            assert!(read(&path, HEADING).is_err(), "cut at {place}");
        }
        fs::write(&path, [&whole[..], b"x"].concat()).unwrap();
        assert!(read(&path, HEADING).is_err());
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }

    #[test]
    fn another_version_is_named() {
        let path = path("version");
        write(&path, "test 2", b"content").unwrap();
        let error = read(&path, HEADING).unwrap_err();
        assert!(
            error.to_string().contains("\"test 2\"") && error.to_string().contains("\"test 1\""),
            "{error}"
        );
        fs::remove_dir_all(path.parent().unwrap()).unwrap();
    }
}
