//! Compiles facts to what the data plane should do. Pure; cannot fail. The static file by itself is compiled here; in a
//! cluster, ownership is settled first ([`crate::settle`]), and claims are compiled.

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
/// Claims, of the file and the cluster together.
mod claims;
/// Warnings about the static file.
mod warn;
/// Whether everything fits into the maps.
mod capacity;

pub use compiler::{Compiler, Step};

use crate::model::{Claim, Desired, Facts, Probes, Problem, Verdicts};
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
    /// What was settled; empty without a cluster.
    pub claims: Vec<Claim>,
}

/// Resolves references and contradictions of all facts at once.
pub fn compile(facts: &Facts) -> Compiled {
    let file = FilePart::new(facts);
    if let Some(cluster) = &facts.cluster {
        let mut compiled = claims::compile(&file, cluster, &facts.node);
        file.warn(&facts.node, false, &mut compiled.problems);
        return compiled;
    }
    let mut problems = file.errors();
    file.warn(&facts.node, true, &mut problems);
    Compiled { desired: file.desired, problems, ..Compiled::default() }
}
