//! etcd as a process, and its data.

use std::fs;
use std::path::Path;
use std::process::Child;

use anyhow::{Context, Result};

use super::api_server::spawn;
use super::places;
use crate::temp::TempDir;

/// The folder of its data, in the API server's.
pub(super) const DATA: &str = "etcd";

/// Starts it with its data in the folder, or on what is there.
pub(super) fn start(
    programs: &Path,
    netns: Option<&Path>,
    folder: &TempDir,
    clients: u16,
    peers: u16,
) -> Result<Child> {
    let (clients, peers) = (format!("http://127.0.0.1:{clients}"), format!("http://127.0.0.1:{peers}"));
    let mut command = places::command(netns, &programs.join("etcd"));
    command.arg("--data-dir").arg(folder.path().join(DATA));
    command.args(["--unsafe-no-fsync", "--log-level", "error"]);
    command.args(["--listen-client-urls", &clients, "--advertise-client-urls", &clients]);
    command.args(["--listen-peer-urls", &peers, "--initial-advertise-peer-urls", &peers]);
    command.args(["--initial-cluster", &format!("default={peers}")]);
    spawn(command, folder, "etcd")
}

/// Copies the data of one that does not run.
pub(super) fn copy(from: &Path, to: &Path) -> Result<()> {
    fs::create_dir(to).with_context(|| format!("creating {}", to.display()))?;
    for entry in fs::read_dir(from).with_context(|| format!("reading {}", from.display()))? {
        let entry = entry?;
        let to = to.join(entry.file_name());
        match entry.file_type()?.is_dir() {
            true => copy(&entry.path(), &to)?,
            false => drop(fs::copy(entry.path(), &to).with_context(|| format!("writing {}", to.display()))?),
        }
    }
    Ok(())
}
