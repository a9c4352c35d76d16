//! Formatting, lints, licences.

use crate::failure::Outcome;
use crate::process;
use crate::setup::{self, tools};
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;

/// Runs formatting and lints, for the host and for the eBPF target; all of them, even if the first ones fail.
pub(crate) fn run() -> Outcome {
    setup::for_lint()?;
    let mut format = process::cargo();
    format.args(["fmt", "--all", "--check", "--", "-l"]);
    let by_hand = format!("cargo +{} fmt --all; the files are listed above", process::CHANNEL);
    let remedy = "fix what is listed above; `expect(lint, reason = ...)` where the lint is wrong";
    let mut host = clippy();
    host.args(["--workspace", "--all-targets", "--", "-D", "warnings"]);
    let mut kernel = clippy();
    kernel.args([
        "--release",
        "--bins",
        "--target",
        "bpfel-unknown-none",
        "-Zbuild-std=core",
        "--target-dir",
    ]);
    kernel.arg(process::target().join("bpf-lint")).args(["--", "-D", "warnings"]);
    // This folder has its own settings for the target. `core` is compiled from source.
    kernel.current_dir(process::root().join("xdp-ebpf")).env("RUSTC_BOOTSTRAP", "1");
    // They build in folders of their own. While the compiler is at our largest package, it uses one core.
    let checks = thread::scope(|scope| {
        let kernel = scope.spawn(move || process::run("lints for the eBPF target", &mut kernel, remedy));
        [
            process::run("checking the formatting", &mut format, &by_hand),
            process::run("lints for the host", &mut host, remedy),
            kernel.join().unwrap_or_else(|panic| resume_unwind(panic)),
        ]
    });
    let mut failures = checks.into_iter().filter_map(Result::err).peekable();
    while let Some(mut failure) = failures.next() {
        if failures.peek().is_none() {
            return Err(failure);
        }
        failure.tell();
    }
    Ok(())
}

fn clippy() -> Command {
    let mut command = process::cargo();
    command.arg("clippy");
    if process::quiet() {
        command.arg("--quiet");
    }
    command
}

/// Checks licences, bans and sources of the dependencies, as in `deny.toml`.
pub(crate) fn licences() -> Outcome {
    setup::for_build()?;
    let deny = tools::cargo_deny()?;
    let mut command = process::tool_of(process::CHANNEL, &deny.to_string_lossy());
    command.args(["--log-level", if process::quiet() { "error" } else { "warn" }, "--workspace"]);
    command.args(["check", "licenses", "bans", "sources"]);
    process::run(
        "checking licences, bans and sources",
        &mut command,
        "deny.toml says what is allowed and why",
    )
}
