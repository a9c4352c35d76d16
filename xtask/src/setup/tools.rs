//! Programs built by cargo and kept outside the tree, one folder per version: built once and shared by every checkout.

use crate::failure::{Failure, Outcome};
use crate::process::{self, CHANNEL};
use std::env;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const BPF_LINKER: &str = "0.13.0";
const CARGO_DENY: &str = "0.20.2";
const CARGO_FUZZ: &str = "0.13.2";

/// Installs the linker for the eBPF object. It is linked to the LLVM of the pinned rustc, so that both always
/// have the same version. `userspace/build.rs` looks for it in the same folder.
pub(crate) fn bpf_linker() -> Outcome<PathBuf> {
    let step = format!("installing bpf-linker {BPF_LINKER}");
    let prefix = folder(&format!("bpf-linker-{BPF_LINKER}-{CHANNEL}"))?;
    let program = prefix.join("bin/bpf-linker");
    if answers(&program, BPF_LINKER) {
        return Ok(program);
    }
    super::announce(
        &format!("bpf-linker {BPF_LINKER}"),
        "links the eBPF object; compiled here, one to three minutes",
    );
    let (library, major) = llvm(&step)?;
    link_llvm(&prefix, &library).map_err(|error| {
        Failure::new(&step, format!("{}: {error}", prefix.display()), "check the folder's owner")
    })?;
    let feature = format!("llvm-{major}");
    let mut command = cargo_install("bpf-linker", BPF_LINKER, &prefix);
    command.env("LLVM_PREFIX", &prefix).args(["--no-default-features", "--features", &feature]);
    // LLVM, which does the work, is always optimised.
    finish(&step, command.arg("--debug"), program, BPF_LINKER)
}

/// Installs the tool that checks licences and sources of the dependencies.
pub(crate) fn cargo_deny() -> Outcome<PathBuf> {
    by_cargo("cargo-deny", CARGO_DENY, "checks the licences of the dependencies; compiled here, some minutes")
}

/// Installs the driver of libFuzzer.
pub(crate) fn cargo_fuzz() -> Outcome<PathBuf> {
    by_cargo("cargo-fuzz", CARGO_FUZZ, "builds and runs the fuzz targets; compiled here, one minute")
}

/// Installs the program that evaluates the chart's alerts: the one in PATH, or Debian's.
pub(crate) fn promtool() -> Outcome<PathBuf> {
    if let Some(program) = process::located("promtool") {
        return Ok(program);
    }
    let prefix = folder("promtool")?;
    let program = prefix.join("usr/bin/promtool");
    let runs = || process::answer(process::command(&program).arg("--version")).is_some();
    if !runs() {
        let remedy = "check the network, or put promtool of Prometheus in PATH";
        super::packages::unpack("prometheus", "promtool evaluates the alerts", &prefix, remedy)?;
        if !runs() {
            let reason = format!("{} does not run", program.display());
            return Err(Failure::new("installing promtool", reason, remedy));
        }
    }
    Ok(program)
}

fn by_cargo(name: &str, version: &str, why: &str) -> Outcome<PathBuf> {
    let prefix = folder(&format!("{name}-{version}"))?;
    let program = prefix.join("bin").join(name);
    if answers(&program, version) {
        return Ok(program);
    }
    super::announce(&format!("{name} {version}"), why);
    let mut command = cargo_install(name, version, &prefix);
    // These tools run for seconds, so an unoptimised build, ready in half the time, is faster overall.
    finish(&format!("installing {name} {version}"), command.arg("--debug"), program, version)
}

/// Returns `cargo install`, which moves a program to its folder in one step, at the very end. It runs outside
/// the tree, whose settings must not apply to it.
fn cargo_install(name: &str, version: &str, prefix: &Path) -> Command {
    let mut command = process::cargo();
    command.args(["install", name, "--version", version, "--locked", "--force", "--root"]).arg(prefix);
    command.current_dir("/").env_remove("CARGO_TARGET_DIR").env_remove("RUSTFLAGS");
    // If the folder is in PATH, cargo does not advise adding it.
    let path = env::var_os("PATH").unwrap_or_default();
    if let Ok(path) = env::join_paths(env::split_paths(&path).chain([prefix.join("bin")])) {
        command.env("PATH", path);
    }
    if process::quiet() {
        command.arg("--quiet");
    }
    command
}

fn finish(step: &str, command: &mut Command, program: PathBuf, version: &str) -> Outcome<PathBuf> {
    process::run(step, command, "check the network and the free space, then run the command again")?;
    if answers(&program, version) {
        return Ok(program);
    }
    let reason = format!("{} does not run, or is not version {version}", program.display());
    Err(Failure::new(step, reason, "remove its folder, then run the command again"))
}

/// Whether the program runs and prints its version, which is the only proof of a finished installation.
fn answers(program: &Path, version: &str) -> bool {
    let told = process::answer(process::command(program).arg("--version"));
    told.is_some_and(|text| text.split_whitespace().any(|word| word == version))
}

/// A folder of xtask below the user's data folder.
pub(super) fn folder(name: &str) -> Outcome<PathBuf> {
    let set = |variable| env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let data = set("XDG_DATA_HOME").or_else(|| set("HOME").map(|home| home.join(".local/share")));
    data.map(|data| data.join("vestibule").join(name)).ok_or_else(|| {
        let reason = "neither XDG_DATA_HOME nor HOME is set";
        Failure::new("finding a folder for programs we need", reason, "set HOME, then run the command again")
    })
}

/// The libLLVM of the pinned rustc, and LLVM's major version.
fn llvm(step: &str) -> Outcome<(PathBuf, String)> {
    let failure = |reason: &str| {
        Failure::new(step, reason, format!("rustup toolchain uninstall {CHANNEL}, then again"))
    };
    let rustc = || process::tool_of(CHANNEL, "rustc");
    let sysroot = process::answer(rustc().args(["--print", "sysroot"]));
    let about = process::answer(rustc().arg("-vV"));
    let (Some(sysroot), Some(about)) = (sysroot, about) else {
        return Err(failure("the pinned rustc does not run"));
    };
    let version = about.lines().find_map(|line| line.strip_prefix("LLVM version: "));
    let major = version.and_then(|version| version.split('.').next());
    let libraries = fs::read_dir(Path::new(&sysroot).join("lib"));
    let library = libraries.into_iter().flatten().flatten().map(|entry| entry.path()).find(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libLLVM.so.") && name.contains("-rust-")
    });
    match (library, major) {
        (Some(library), Some(major)) => Ok((library, major.to_owned())),
        _ => Err(failure("the pinned rustc brings no libLLVM of its own")),
    }
}

/// Makes two links to rustc's LLVM: one found by `-lLLVM`, one by the run-time path that `bpf-linker` keeps.
fn link_llvm(prefix: &Path, library: &Path) -> std::io::Result<()> {
    let folder = prefix.join("lib");
    fs::create_dir_all(&folder)?;
    let own = library.file_name().unwrap_or_default();
    for name in ["libLLVM.so".as_ref(), own] {
        let link = folder.join(name);
        match fs::remove_file(&link) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
            _ => symlink(library, link)?,
        }
    }
    Ok(())
}
