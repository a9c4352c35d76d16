//! Formatting, lints, licences.

use crate::failure::Outcome;
use crate::process;
use crate::setup::{self, tools};
use std::process::Command;

/// Formatting and lints, for the host and for the eBPF target.
pub(crate) fn run() -> Outcome {
    setup::for_build()?;
    let mut format = process::cargo();
    process::run(
        "checking the formatting",
        format.args(["fmt", "--all", "--check"]),
        "rustup run 1.98.0 cargo fmt",
    )?;
    let remedy = "mend what is listed above; `expect(lint, reason = ...)` where the lint is wrong";
    let mut host = clippy();
    host.args(["--workspace", "--all-targets", "--", "-D", "warnings"]);
    process::run("lints for the host", &mut host, remedy)?;
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
    // Its own settings for the target stand in this folder. `core` is compiled from source.
    kernel.current_dir(process::root().join("xdp-ebpf")).env("RUSTC_BOOTSTRAP", "1");
    process::run("lints for the eBPF target", &mut kernel, remedy)
}

fn clippy() -> Command {
    let mut command = process::cargo();
    command.arg("clippy");
    if process::quiet() {
        command.arg("--quiet");
    }
    command
}

/// Licences, bans and sources of the dependencies, as in `deny.toml`.
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
