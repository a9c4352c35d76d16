//! Builds `target/release/vestibule`: one static file that includes the eBPF programs. The image contains no
//! libraries, and the tests use the same file that is shipped.

use crate::failure::{Failure, Outcome};
use crate::{process, setup};
use std::fs;
use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::thread::{self, JoinHandle};
use std::time::Instant;

/// The result of a build.
pub(crate) struct Built {
    /// The one file that is installed.
    pub(crate) binary: PathBuf,
    /// The eBPF programs that the binary includes, for tests that load them themselves.
    pub(crate) object: PathBuf,
}

const STEP: &str = "building vestibule";

/// A build that may still run.
pub(crate) enum Building {
    Running(JoinHandle<Outcome<Built>>),
    Ended(Built),
}

impl Building {
    /// Starts the build. In CI it runs beside what comes next: for most of the time the compiler uses one core. At a
    /// terminal, where people see its progress, it ends first.
    pub(crate) fn start() -> Outcome<Self> {
        match process::quiet() {
            true => Ok(Self::Running(thread::spawn(run))),
            false => run().map(Self::Ended),
        }
    }

    /// Waits until it has ended.
    pub(crate) fn end(self) -> Outcome<Built> {
        match self {
            Self::Running(thread) => thread.join().unwrap_or_else(|panic| resume_unwind(panic)),
            Self::Ended(built) => Ok(built),
        }
    }
}

/// Installs what is missing and builds the binary.
pub(crate) fn run() -> Outcome<Built> {
    setup::for_build()?;
    let begun = Instant::now();
    let mut command = process::cargo();
    command.args(["rustc", "--release", "--package", "userspace", "--bin", "vestibule"]);
    // cargo writes its messages as JSON to stdout, and the output for people to stderr.
    command.arg("--message-format=json-render-diagnostics").stderr(Stdio::inherit());
    if process::quiet() {
        command.arg("--quiet");
    }
    // Only for the final link, so that dependencies are compiled once, for this and for the tests.
    command.args(["--", "-C", "target-feature=+crt-static"]);
    // 0.7 MB of relocations, which every process would read at its start and have in memory, become 10 kB. glibc knows
    // this form from 2.36 on, which Debian 12 has.
    command.args(["-C", "link-arg=-Wl,-z,pack-relative-relocs"]);
    let output = command.output().map_err(|error| process::not_run(STEP, &command, &error))?;
    if !output.status.success() {
        let reason = format!("{} ended with {}", process::shown(&command), output.status);
        return Err(Failure::new(STEP, reason, "see the compiler's message above"));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let (Some(built), Some(out)) = (executable(&messages), out_folder(&messages)) else {
        return Err(Failure::new(
            STEP,
            "cargo does not report what it built",
            "cargo xtask build, after `cargo clean`",
        ));
    };
    let binary = in_place(&built)?;
    if process::answer(process::command(&binary).arg("--version")).is_none() {
        let remedy = "glibc 2.36 or newer where it is built: an older one does not know packed relocations";
        return Err(Failure::new(STEP, "the program that was built does not start", remedy));
    }
    let bytes = fs::metadata(&binary).map(|file| file.len()).unwrap_or_default();
    println!("build: target/release/vestibule, {:.1} MB, in {:.0?}", bytes as f64 / 1e6, begun.elapsed());
    Ok(Built { binary, object: out.join("programs.o") })
}

/// Copies the binary to its documented path below the tree, wherever cargo built it.
fn in_place(built: &Path) -> Outcome<PathBuf> {
    let promised = process::root().join("target/release/vestibule");
    if built != promised {
        let copied = promised.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            // Renamed over the old one in one step: a running binary cannot be written to.
            let beside = promised.with_extension("new");
            fs::copy(built, &beside).and_then(|_| fs::rename(&beside, &promised))
        });
        copied.map_err(|error| {
            let reason = format!("{}: {error}", promised.display());
            Failure::new(
                "copying vestibule to target/release",
                reason,
                "check the folder's owner and free space",
            )
        })?;
    }
    Ok(promised)
}

/// Where cargo put the binary.
fn executable(messages: &str) -> Option<PathBuf> {
    let executables = messages.lines().filter_map(|line| text(line, "executable"));
    executables.map(PathBuf::from).find(|path| path.ends_with("vestibule"))
}

/// Where the build script of `userspace` put the eBPF object.
fn out_folder(messages: &str) -> Option<PathBuf> {
    let of_userspace = |line: &&str| text(line, "package_id").is_some_and(|id| id.contains("/userspace#"));
    messages.lines().filter(of_userspace).find_map(|line| text(line, "out_dir")).map(PathBuf::from)
}

/// Returns a text member of a message of cargo, which is one line of JSON. Quotes and backslashes in paths
/// are not decoded.
fn text<'a>(message: &'a str, member: &str) -> Option<&'a str> {
    let value = message.split_once(&format!("\"{member}\":\""))?.1;
    value.split_once('"').map(|(value, _)| value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_tells_what_it_built() {
        let messages = concat!(
            r#"{"reason":"build-script-executed","package_id":"path+file:///t/libx#0.1.0","out_dir":"/t/a/out"}"#,
            "\n",
            r#"{"reason":"build-script-executed","package_id":"path+file:///t/userspace#0.1.0","out_dir":"/t/b/out"}"#,
            "\n",
            r#"{"reason":"compiler-artifact","executable":"/t/release/vestibule","fresh":true}"#,
        );
        assert_eq!(executable(messages), Some("/t/release/vestibule".into()));
        assert_eq!(out_folder(messages), Some("/t/b/out".into()));
    }
}
