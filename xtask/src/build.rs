//! Leaves `target/release/vestibule`: one file, the eBPF programs inside.

use crate::failure::{Failure, Outcome};
use crate::{process, setup};
use std::fs;
use std::path::PathBuf;
use std::time::Instant;

/// Installs what is missing, builds, and tells where the binary is.
pub(crate) fn run() -> Outcome<PathBuf> {
    setup::for_build()?;
    let begun = Instant::now();
    let mut command = process::cargo();
    command.args(["build", "--release", "--package", "userspace", "--bin", "vestibule"]);
    if process::quiet() {
        command.arg("--quiet");
    }
    process::run("building vestibule", &mut command, "the compiler's message stands above")?;
    let binary = in_place()?;
    let bytes = fs::metadata(&binary).map(|file| file.len()).unwrap_or_default();
    println!("build: target/release/vestibule, {:.1} MB, in {:.0?}", bytes as f64 / 1e6, begun.elapsed());
    Ok(binary)
}

/// The promised place is below the tree, wherever cargo was told to build.
fn in_place() -> Outcome<PathBuf> {
    let promised = process::root().join("target/release/vestibule");
    let built = process::target().join("release/vestibule");
    if built != promised {
        let copied = promised.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| {
            // Moved over the old one in one step: a running binary cannot be written to.
            let beside = promised.with_extension("new");
            fs::copy(&built, &beside).and_then(|_| fs::rename(&beside, &promised))
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
