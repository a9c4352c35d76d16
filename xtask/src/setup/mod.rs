//! Installs what is missing, and prints what and why. Leaves alone what is already there.

/// Programs and headers from the distribution.
mod packages;
/// The pinned Rust toolchain.
mod toolchain;
/// Programs from Go modules.
pub(crate) mod go;
/// Programs built by cargo and kept outside the tree.
pub(crate) mod tools;
/// An earlier release of ours.
pub(crate) mod previous;

use crate::failure::Outcome;
use crate::process::CHANNEL;

pub(crate) use toolchain::install as toolchain;

/// Installs what building needs.
pub(crate) fn for_build() -> Outcome {
    packages::install(packages::BUILD)?;
    toolchain::install(CHANNEL, &["rust-src"])?;
    tools::bpf_linker().map(|_| ())
}

/// Installs what formatting and lints need, including building.
pub(crate) fn for_lint() -> Outcome {
    toolchain::install(CHANNEL, &["rust-src", "clippy", "rustfmt"])?;
    for_build()
}

/// Installs what the lab needs, besides building.
pub(crate) fn for_lab() -> Outcome {
    packages::install(packages::LAB)
}

/// Installs what tests in the lab need, besides building.
pub(crate) fn for_tests() -> Outcome {
    for_lab()?;
    packages::install(packages::TESTS)
}

/// Installs what the benchmark compares with.
pub(crate) fn for_bench() -> Outcome {
    packages::install(packages::PEERS)
}

/// Installs what the nodes of a cluster need in addition.
pub(crate) fn for_cluster() -> Outcome {
    packages::install(packages::CLUSTER)
}

/// Installs what a fuzzer's runtime needs in addition.
pub(crate) fn for_fuzzing() -> Outcome {
    packages::install(packages::FUZZ)
}

/// Installs what any command needs, except for what only licence checks and fuzzing use.
pub(crate) fn everything() -> Outcome {
    for_lint()?;
    for_tests()?;
    match go::missing() {
        // Before anything else is compiled: two big builds at the same time take longer than one after the other.
        None => {
            for_cluster()?;
            go::everything()?;
            tools::promtool()?;
            previous::release()?;
            println!("setup: all that building, testing, the lab and the cluster need is there");
        }
        Some(reason) => {
            println!("setup: all that building, testing and the lab need is there; no cluster: {reason}")
        }
    }
    Ok(())
}

/// Prints what is about to be installed and why.
fn announce(what: &str, why: &str) {
    println!("setup: installing {what}: {why}");
}
