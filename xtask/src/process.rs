//! Runs other programs: rustup, cargo of the pinned toolchain, apt-get.

use crate::failure::{Failure, Outcome};
use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The pinned Rust version. The compiler wrapper reads the same file; nothing else names the version.
pub(crate) const CHANNEL: &str = include_str!("../toolchain/channel").trim_ascii_end();

/// The tree that this xtask was built from.
pub(crate) fn root() -> PathBuf {
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().unwrap_or(manifest).to_path_buf()
}

/// Where cargo puts what it builds.
pub(crate) fn target() -> PathBuf {
    match env::var_os("CARGO_TARGET_DIR") {
        // Relative to where cargo runs, which is always the root here.
        Some(folder) if !folder.is_empty() => root().join(folder),
        _ => root().join("target"),
    }
}

/// Whether to reduce output to the outcome, as in CI.
pub(crate) fn quiet() -> bool {
    env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false")
}

/// A command for a program, without the variables that `cargo run` set in the environment for xtask alone.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    for (name, _) in env::vars_os() {
        let name = name.to_string_lossy();
        let of_xtask = name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
        if of_xtask || name == "CARGO" || name == "RUSTUP_TOOLCHAIN" || name == "RUST_RECURSION_COUNT" {
            command.env_remove(name.as_ref());
        }
    }
    // The machine's own toolchain put its libraries first; the pinned one must find its own.
    if let Some(path) = env::var_os("LD_LIBRARY_PATH") {
        let ours = |folder: &PathBuf| {
            let text = folder.to_string_lossy();
            !text.contains("/toolchains/") && !folder.starts_with(target())
        };
        match env::join_paths(env::split_paths(&path).filter(ours)) {
            Ok(rest) if !rest.is_empty() => command.env("LD_LIBRARY_PATH", rest),
            _ => command.env_remove("LD_LIBRARY_PATH"),
        };
    }
    command.current_dir(root());
    command
}

/// A program of toolchain `channel`, through rustup.
pub(crate) fn tool_of(channel: &str, program: &str) -> Command {
    let mut command = command("rustup");
    command.args(["run", channel, program]);
    command
}

/// Cargo of the pinned toolchain.
pub(crate) fn cargo() -> Command {
    tool_of(CHANNEL, "cargo")
}

/// Runs a command to its end and shows its output; a status other than zero is a failure of `step`.
pub(crate) fn run(step: &str, command: &mut Command, remedy: &str) -> Outcome {
    let status = command.status().map_err(|error| not_run(step, command, &error))?;
    if status.success() {
        return Ok(());
    }
    let reason = format!("{} ended with {status}; see its output above", shown(command));
    Err(Failure::new(step, reason, remedy))
}

/// Returns what a program printed; `None` if it cannot be run or fails.
pub(crate) fn answer(command: &mut Command) -> Option<String> {
    let output = command.stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Tables of results, which runs append to.
const RECORDS: [&str; 4] =
    ["tests/slow/SOAK.md", "tests/slow/LOADS.md", "tests/slow/GUARDS.md", "tests/fuzz/FUZZ.md"];

/// Returns the commit of the tree that is measured; with a `+` if the tree is different from it, `changing` files aside, which measuring writes,
/// and tables of results.
pub(crate) fn commit(changing: &[&str]) -> String {
    let commit =
        answer(command("git").args(["rev-parse", "--short", "HEAD"])).unwrap_or_else(|| "-".to_owned());
    let others = changing.iter().chain(&RECORDS).map(|path| format!(":!{path}"));
    let mut status = command("git");
    status.args(["status", "--porcelain", "--untracked-files=no", "--", "."]).args(others);
    if answer(&mut status).is_some_and(|changed| !changed.is_empty()) { commit + "+" } else { commit }
}

/// The failure of a program that could not be started.
pub(crate) fn not_run(step: &str, command: &Command, error: &std::io::Error) -> Failure {
    let program = command.get_program().to_string_lossy();
    Failure::new(
        step,
        format!("cannot run {program}: {error}"),
        format!("install {program}, or put it in PATH"),
    )
}

/// The command as it would be typed.
pub(crate) fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    format!("`{}`", words.join(" "))
}

/// Whether a program is in PATH, or in one of Debian's folders for administrators' programs.
pub(crate) fn found(program: &str) -> bool {
    located(program).is_some()
}

/// Where [`found`] finds it.
pub(crate) fn located(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let administrator = ["/usr/sbin", "/sbin"].map(PathBuf::from);
    let mut folders = env::split_paths(&path).chain(administrator);
    folders.find_map(|folder| Some(folder.join(program)).filter(|path| path.is_file()))
}

/// Whether we run as root.
pub(crate) fn is_root() -> bool {
    answer(command("id").arg("-u")).is_some_and(|id| id == "0")
}
