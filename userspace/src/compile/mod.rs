//! From facts to what the data plane shall do, and what becomes of each object. Pure; cannot fail: of two objects that
//! contradict each other one stays, always the same one, and a problem names both.

/// Maglev tables.
pub mod maglev;
/// The static file by itself.
mod file;
/// Some routes of the static file.
mod kept;
/// What the static file came to, and how it changes.
mod part;
/// What was compiled last, and how it follows what changed.
mod compiler;
/// File and cluster together.
pub mod cluster;
/// What may surprise its author.
mod warn;
/// Whether it all fits into the maps.
mod capacity;

pub use compiler::{Compiler, Step};

use crate::model::{Desired, Facts, Probes, Problem, Verdicts};
use part::FilePart;

/// What facts come to.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Compiled {
    /// What the data plane shall do.
    pub desired: Desired,
    /// What is wrong, in the order of the source.
    pub problems: Vec<Problem>,
    /// What becomes of each Kubernetes object; empty where Kubernetes is not asked.
    pub verdicts: Verdicts,
    /// Backends to be probed.
    pub probes: Probes,
}

/// Resolves references and contradictions, of everything at once.
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
