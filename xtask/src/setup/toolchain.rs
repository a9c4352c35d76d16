//! Installs the pinned Rust with rustup.

use crate::failure::{Failure, Outcome};
use crate::process;
use std::path::Path;

/// A path below the toolchain that exists if a component is installed.
fn sign(component: &str) -> &'static str {
    match component {
        "rust-src" => "lib/rustlib/src/rust/library/core/Cargo.toml",
        "clippy" => "bin/cargo-clippy",
        "rustfmt" => "bin/rustfmt",
        _ => "bin/cargo",
    }
}

/// Installs toolchain `channel` with `components`, or those of them that are missing.
pub(crate) fn install(channel: &str, components: &[&str]) -> Outcome {
    let step = format!("installing Rust {channel}");
    if !process::found("rustup") {
        let reason =
            "rustup is not in PATH; this tree needs one exact Rust, which rustup installs beside others";
        return Err(Failure::new(step, reason, "install rustup (rustup.rs), then run the command again"));
    }
    let missing = missing(channel, components);
    if missing.is_empty() {
        return Ok(());
    }
    super::announce(
        &format!("Rust {channel} ({})", missing.join(", ")),
        "the one toolchain for the kernel's and the user's half; about 250 MB",
    );
    let mut command = process::command("rustup");
    if process::quiet() {
        command.arg("--quiet");
    }
    command.args(["toolchain", "install", channel, "--profile", "minimal", "--no-self-update"]);
    if !components.is_empty() {
        command.args(["--component", &components.join(",")]);
    }
    let remedy = format!(
        "check the network, then run the command again; if the toolchain is damaged: rustup toolchain uninstall {channel}"
    );
    process::run(&step, &mut command, &remedy)?;
    match self::missing(channel, components).first() {
        None => Ok(()),
        Some(part) => {
            Err(Failure::new(step, format!("rustup is done, but {part} is still not there"), remedy))
        }
    }
}

/// Returns the missing parts. After an interrupted installation, the compiler does not run.
fn missing<'a>(channel: &str, components: &[&'a str]) -> Vec<&'a str> {
    let sysroot = process::answer(process::tool_of(channel, "rustc").args(["--print", "sysroot"]));
    let Some(sysroot) = sysroot else {
        return std::iter::once("compiler").chain(components.iter().copied()).collect();
    };
    let cargo = std::iter::once("cargo");
    let parts = cargo.chain(components.iter().copied());
    parts.filter(|part| !Path::new(&sysroot).join(sign(part)).is_file()).collect()
}
