//! An earlier release, built from this repository's history: tests of upgrades start with it.

use super::tools::folder;
use crate::failure::{Failure, Outcome};
use crate::process;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The last commit of the former report version, whose agents read origins and not Claims. Its maps are those of today
/// (`common::maps::ABI_VERSION`): once they differ, it must be a later one.
const COMMIT: &str = "00a53fc975999de0ae38a8bc01e59b8c605b68b4";
const STEP: &str = "building the previous release";

/// Builds the previous release. Returns the folder of its binary `vestibule` and its chart `chart`; `None`: this checkout has no
/// history, as a copy without `.git` or a shallow clone.
pub(crate) fn release() -> Outcome<Option<PathBuf>> {
    let prefix = folder(&format!("release-{}", &COMMIT[..12]))?;
    let binary = prefix.join("vestibule");
    let runs = || process::answer(process::command(&binary).arg("--version")).is_some();
    if prefix.join("chart/Chart.yaml").is_file() && runs() {
        return Ok(Some(prefix));
    }
    if process::answer(git().args(["cat-file", "-e", &format!("{COMMIT}^{{commit}}")])).is_none() {
        println!("setup: no previous release: commit {COMMIT} is not in this checkout's history");
        return Ok(None);
    }
    super::announce("the previous release", "tests upgrade from it; compiled here, two to five minutes");
    let source = prefix.join("source");
    extract(&source)?;
    let mut build = process::cargo();
    build.args(["xtask", "build"]).current_dir(&source).env("CARGO_TARGET_DIR", source.join("target"));
    process::run(STEP, &mut build, "see its output above")?;
    keep(&source, &prefix, &binary).map_err(|error| {
        failure(format!("{}: {error}", prefix.display()), "check the folder's owner and free space")
    })?;
    match runs() {
        true => Ok(Some(prefix)),
        false => Err(failure(
            format!("{} does not run", binary.display()),
            "remove its folder, then run the command again",
        )),
    }
}

/// Moves the results out of the source, and removes the rest, which is large. The chart comes last: it shows that all is there.
fn keep(source: &Path, prefix: &Path, binary: &Path) -> std::io::Result<()> {
    fs::rename(source.join("target/release/vestibule"), binary)?;
    let chart = prefix.join("chart");
    if chart.exists() {
        fs::remove_dir_all(&chart)?;
    }
    fs::rename(source.join("deploy/charts/vestibule"), chart)?;
    fs::remove_dir_all(source)
}

fn extract(source: &Path) -> Outcome {
    let broken = |error: std::io::Error| {
        failure(format!("{}: {error}", source.display()), "check the folder's owner and free space")
    };
    if source.exists() {
        fs::remove_dir_all(source).map_err(broken)?;
    }
    fs::create_dir_all(source).map_err(broken)?;
    let mut archive = git();
    archive.args(["archive", "--format=tar", COMMIT]).stdout(Stdio::piped());
    let mut packing = archive.spawn().map_err(|error| process::not_run(STEP, &archive, &error))?;
    let mut unpack = process::command("tar");
    unpack.arg("-x").arg("-C").arg(source).stdin(packing.stdout.take().map_or_else(Stdio::null, Stdio::from));
    process::run(STEP, &mut unpack, "see its output above")?;
    match packing.wait() {
        Ok(status) if status.success() => Ok(()),
        _ => Err(failure(
            "git archive failed; see its output above".to_owned(),
            "check the repository with git fsck",
        )),
    }
}

/// Git in this tree, also where another user owns it.
fn git() -> Command {
    let mut git = process::command("git");
    git.args(["-c", "safe.directory=*"]);
    git
}

fn failure(reason: String, remedy: &str) -> Failure {
    Failure::new(STEP, reason, remedy)
}
