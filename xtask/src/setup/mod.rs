//! Installs what is missing, says what and why, and leaves alone what is there.

/// Programs and headers of the distribution.
mod packages;
/// The pinned Rust.
mod toolchain;
/// Programs of Go modules.
pub(crate) mod go;
/// Programs built by cargo and kept outside the tree.
pub(crate) mod tools;

use crate::failure::Outcome;
use crate::process::CHANNEL;

pub(crate) use toolchain::install as toolchain;

/// For building.
pub(crate) fn for_build() -> Outcome {
    packages::install(packages::BUILD)?;
    toolchain::install(CHANNEL, &["rust-src"])?;
    tools::bpf_linker().map(|_| ())
}

/// For formatting and lints, building included.
pub(crate) fn for_lint() -> Outcome {
    toolchain::install(CHANNEL, &["rust-src", "clippy", "rustfmt"])?;
    for_build()
}

/// For the lab, besides building.
pub(crate) fn for_lab() -> Outcome {
    packages::install(packages::LAB)
}

/// For tests in the lab, besides building.
pub(crate) fn for_tests() -> Outcome {
    for_lab()?;
    packages::install(packages::TESTS)
}

/// What the benchmark compares with.
pub(crate) fn for_bench() -> Outcome {
    packages::install(packages::PEERS)
}

/// What the nodes of a cluster take on top.
pub(crate) fn for_cluster() -> Outcome {
    packages::install(packages::CLUSTER)
}

/// What a fuzzer's runtime takes on top.
pub(crate) fn for_fuzzing() -> Outcome {
    packages::install(packages::FUZZ)
}

/// What any command needs, but for what only licence checks and fuzzing use.
pub(crate) fn everything() -> Outcome {
    for_lint()?;
    for_tests()?;
    match go::missing() {
        // Before anything else is compiled: two big builds beside each other take longer than one after the other.
        None => {
            for_cluster()?;
            go::everything()?;
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
