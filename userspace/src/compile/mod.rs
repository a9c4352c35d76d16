//! Compiles facts to what the data plane should do, and to verdicts on each object. Pure; cannot fail: of two
//! objects that contradict each other one is kept, always the same one, and a problem names both.

/// Maglev tables.
pub mod maglev;
/// The static file by itself.
mod file;
/// Changes of some routes of the static file.
mod kept;
/// The compiled static file, and how it changes.
mod part;
/// The last result, updated with changes.
mod compiler;
/// File and cluster together.
pub mod cluster;
/// Warnings about the static file.
mod warn;
/// Whether everything fits into the maps.
mod capacity;

pub use compiler::{Compiler, Step};

use crate::model::{Desired, Facts, Probes, Problem, Verdicts};
use part::FilePart;

/// The result of compiling facts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compiled {
    /// What the data plane should do.
    pub desired: Desired,
    /// Errors and warnings, in the order of the source.
    pub problems: Vec<Problem>,
    /// The verdict on each Kubernetes object; empty without a cluster.
    pub verdicts: Verdicts,
    /// Backends to be probed.
    pub probes: Probes,
}

/// Resolves references and contradictions of all facts at once.
pub fn compile(facts: &Facts) -> Compiled {
    let file = FilePart::new(facts);
    if let Some(cluster) = &facts.cluster {
        let mut compiled = cluster::compile(&file, cluster, &facts.node);
        file.warn(&facts.node, false, &mut compiled.problems);
        return compiled;
    }
    let mut problems = file.errors();
    file.warn(&facts.node, true, &mut problems);
    Compiled { desired: file.desired, problems, ..Compiled::default() }
}
