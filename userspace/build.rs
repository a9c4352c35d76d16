//! Builds the eBPF programs for the kernel and leaves the object where `dataplane/load.rs` embeds it.

use std::env;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::{Command, exit};

/// Where `cargo xtask build` installs the linker, below the user's data folder.
const LINKER_FOLDER: &str = "vestibule/bpf-linker-0.13.0-1.98.0/bin";

const TARGET: &str = "bpfel-unknown-none";

fn main() {
    if let Err(problem) = build() {
        println!("cargo::error={problem}");
        exit(1);
    }
}

fn build() -> Result<(), String> {
    let workspace = folder("CARGO_MANIFEST_DIR")?.join("..");
    let out = folder("OUT_DIR")?;
    for path in ["xdp-ebpf/src", "xdp-ebpf/Cargo.toml", "xdp-ebpf/.cargo", "common/src", "Cargo.lock"] {
        println!("cargo::rerun-if-changed={}", workspace.join(path).display());
    }
    for name in ["PATH", "HOME", "XDG_DATA_HOME"] {
        println!("cargo::rerun-if-env-changed={name}");
    }
    let target = bpf_target(&out, &workspace)?;
    let status = Command::new(pinned_cargo()?)
        .args(["build", "--release", "--bins", "--quiet", "--target", TARGET, "--target-dir"])
        .arg(&target)
        .current_dir(workspace.join("xdp-ebpf"))
        .env("PATH", path_with_linker()?)
        // aya-ebpf and `core` for a BPF target need unstable features; only this child gets them.
        .env("RUSTC_BOOTSTRAP", "1")
        .env_remove("RUSTUP_TOOLCHAIN")
        .env_remove("RUSTC")
        .env_remove("RUSTC_WRAPPER")
        .env_remove("RUSTC_WORKSPACE_WRAPPER")
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env_remove("RUSTFLAGS")
        .status()
        .map_err(|e| format!("cannot run cargo for the eBPF programs: {e}"))?;
    if !status.success() {
        return Err("the eBPF programs do not build; see the reason above".into());
    }
    strip(&target.join(TARGET).join("release/vestibule-ebpf"), &out.join("programs.o"))
}

/// Copies the object without its DWARF, which is three quarters of it. From that the linker made the BTF, which stays; nothing else
/// reads it, but each agent would read it into its memory.
fn strip(object: &Path, to: &Path) -> Result<(), String> {
    let sysroot = sysroot()?;
    let host = env::var("HOST").map_err(|e| format!("HOST: {e}"))?;
    let objcopy = sysroot.join("lib/rustlib").join(host).join("bin/rust-objcopy");
    let mut command = Command::new(&objcopy);
    // Of the toolchain, as the tool is.
    command.arg("--strip-debug").arg(object).arg(to).env("LD_LIBRARY_PATH", sysroot.join("lib"));
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{} {}: {status}", objcopy.display(), object.display())),
        Err(e) => {
            Err(format!("{}: {e}; run `cargo xtask build`, which installs the toolchain", objcopy.display()))
        }
    }
}

fn folder(variable: &str) -> Result<PathBuf, String> {
    env::var_os(variable).map(PathBuf::from).ok_or_else(|| format!("{variable} is not set"))
}

/// A target folder of this checkout alone, beside the profile's: two checkouts that share `CARGO_TARGET_DIR` must not
/// hand each other their objects.
fn bpf_target(out: &Path, workspace: &Path) -> Result<PathBuf, String> {
    let checkout = workspace.canonicalize().map_err(|e| format!("{}: {e}", workspace.display()))?;
    let mut hasher = DefaultHasher::new();
    checkout.hash(&mut hasher);
    // OUT_DIR is <target>/<profile>/build/<package>/out.
    let target = out.ancestors().nth(4).ok_or("OUT_DIR is not below a target folder")?;
    Ok(target.join(format!("bpf-{:08x}", hasher.finish() as u32)))
}

/// The search path with the linker's folder in front. The one installed for this toolchain goes before any other: a
/// linker of an older LLVM cannot read what this rustc writes.
fn path_with_linker() -> Result<OsString, String> {
    let path = env::var_os("PATH").unwrap_or_default();
    let data = env::var_os("XDG_DATA_HOME").filter(|v| !v.is_empty()).map(PathBuf::from);
    let data = data.or_else(|| env::var_os("HOME").map(|home| PathBuf::from(home).join(".local/share")));
    let installed = data.map(|data| data.join(LINKER_FOLDER));
    let folders: Vec<PathBuf> = installed.into_iter().chain(env::split_paths(&path)).collect();
    if !folders.iter().any(|folder| folder.join("bpf-linker").is_file()) {
        return Err("bpf-linker is not installed; run `cargo xtask build`, which installs it".into());
    }
    env::join_paths(folders).map_err(|e| format!("PATH: {e}"))
}

/// The cargo beside the pinned compiler, which `build.rustc` in `.cargo/config.toml` chose; the one at work may be the
/// machine's own. `core` is compiled from source, because no toolchain ships it for BPF.
fn pinned_cargo() -> Result<PathBuf, String> {
    let sysroot = sysroot()?;
    if !sysroot.join("lib/rustlib/src/rust/library/core").is_dir() {
        return Err(
            "this toolchain has no rust-src; run `cargo xtask build`, which installs the right one".into()
        );
    }
    let cargo = sysroot.join("bin/cargo");
    if cargo.is_file() {
        Ok(cargo)
    } else {
        Err("this toolchain has no cargo; run `cargo xtask build`".into())
    }
}

/// The folder of the pinned toolchain.
fn sysroot() -> Result<PathBuf, String> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    // Fuzzing builds the host's side with a nightly; the programs stay those that are installed.
    let mut command = Command::new(rustc);
    command.env_remove("RUSTUP_TOOLCHAIN").args(["--print", "sysroot"]);
    let run = command.output().map_err(|e| format!("rustc: {e}"))?;
    Ok(PathBuf::from(String::from_utf8_lossy(&run.stdout).trim()))
}
