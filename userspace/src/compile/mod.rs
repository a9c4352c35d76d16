//! From facts to what the data plane shall do, and what becomes of each object. Pure; cannot fail: of two objects that
//! contradict each other one stays, always the same one, and a problem names both.

/// Maglev tables.
pub mod maglev;
/// The static file by itself.
mod file;
/// Some routes of the static file.
mod kept;
/// File and cluster together.
pub mod cluster;
/// What may surprise its author.
mod warn;
/// Whether it all fits into the maps.
mod capacity;

pub use kept::Kept;

use crate::model::{Desired, Facts, Probes, Problem, Verdicts};
use std::sync::Arc;

/// What lies outside the source and is compared with it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// First and last port that the node's kernel hands out (`net.ipv4.ip_local_port_range`); `None` = not known.
    pub local_ports: Option<(u16, u16)>,
    /// The node's zone (label `topology.kubernetes.io/zone`); `None`: endpoints' hints are not looked at.
    pub zone: Option<Arc<str>>,
}

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

/// Resolves references and contradictions.
pub fn compile(facts: &Facts, around: &Surroundings) -> Compiled {
    if let Some(cluster) = &facts.cluster {
        let mut compiled = cluster::compile(facts, cluster, around);
        warn::check(facts, around, &mut compiled.problems);
        return compiled;
    }
    let (listeners, routes, mut problems) = file::compile(facts);
    let desired = Desired {
        settings: facts.settings.clone(),
        listeners,
        routes: routes.into_iter().map(Arc::new).collect(),
    };
    capacity::check(&desired, &mut problems);
    warn::check(facts, around, &mut problems);
    Compiled { desired, problems, ..Compiled::default() }
}
