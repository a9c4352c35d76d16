//! Compiles claims, endpoints and facts of the node: what was granted to whom, and where it leads.

/// Resolves Services to endpoints with weights.
mod backends;
/// Builds what the data plane should do.
mod build;
/// Which backends are probed, and how.
mod probing;
/// The quick path if only endpoints changed.
mod refresh;
/// Weights of backends.
mod shares;
#[cfg(test)]
mod tests;

use super::Compiled;
use super::part::FilePart;
use crate::ipam;
use crate::model::claim::{Granted, Refusal, Why};
use crate::model::cluster::Endpoint;
use crate::model::{Claim, ClaimSet, Cluster, NodeFacts, ObjectName, StoredClaim};
use crate::settle::{self, Most};
use build::Built;
use foldhash::HashSet;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

pub(super) use refresh::{Before, Changed, Refreshed, refresh, refresh_file};

/// What claims are compiled with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground<'a> {
    /// Endpoints by Service, of all its slices together.
    pub(super) endpoints: &'a BTreeMap<ObjectName, Arc<[Endpoint]>>,
    /// Percentage of a Service's backends that may be taken out of new picks; when more fail, none is.
    pub(super) panic_percent: u8,
    /// The node.
    pub(super) node: &'a NodeFacts,
}

impl<'a> Ground<'a> {
    /// Returns the ground that a cluster gives.
    pub(super) fn of(cluster: &'a Cluster, node: &'a NodeFacts) -> Self {
        Self { endpoints: &cluster.endpoints, panic_percent: cluster.policy.panic_percent, node }
    }

    /// Returns the ground that stored claims come with.
    pub(super) fn of_set(set: ClaimSet<'a>, node: &'a NodeFacts) -> Self {
        Self { endpoints: set.endpoints, panic_percent: set.panic_percent, node }
    }
}

/// Settles and compiles the cluster together with the compiled file. Warnings about the file are not included.
pub(super) fn compile(file: &FilePart, cluster: &Cluster, node: &NodeFacts) -> Compiled {
    compile_at_most(file, cluster, node, Most::default())
}

/// Same as [`compile`], with this much room for bindings.
fn compile_at_most(part: &FilePart, cluster: &Cluster, node: &NodeFacts, most: Most) -> Compiled {
    let file = &part.desired;
    let assignment = ipam::assign(cluster);
    let mut settled = settle::settle(file, cluster, &assignment, most);
    let mut claims = std::mem::take(&mut settled.claims);
    let built = build::build(&claims, &file.settings, Ground::of(cluster, node));
    mark_left_out(&mut claims, &built.left_out);
    let mut problems = part.problems.clone();
    let verdicts = settled.verdicts(&built.left_out, &mut problems);
    problems.extend(built.problems);
    Compiled { desired: built.desired, problems, verdicts, probes: built.probes, claims }
}

/// Adds to claims that lead to these routes that the maps have no room for what they were granted. They keep it: nobody else gets it.
fn mark_left_out(claims: &mut [Claim], left_out: &[Arc<str>]) {
    if left_out.is_empty() {
        return;
    }
    let left_out: HashSet<&str> = left_out.iter().map(|route| &**route).collect();
    let leads_there =
        |claim: &&mut Claim| claim.route.as_deref().is_some_and(|route| left_out.contains(route));
    for claim in claims.iter_mut().filter(leads_there) {
        for grant in &claim.grants {
            let names = match &grant.what {
                Granted::Names(pattern) => Some(pattern.clone()),
                Granted::Binding | Granted::Rest => None,
            };
            let refusal = Refusal { names, ..Refusal::whole(grant.at(), Why::NoRoom) };
            let refusals = &mut claim.asked.get_or_insert_default().refusals;
            if !refusals.contains(&refusal) {
                refusals.push(refusal);
            }
        }
    }
}

/// Compiles stored claims together with the compiled file. Both may be of different moments: what the file has, it has; of claims
/// that contradict each other, the one that was written later is right. Warnings about the file are not included.
pub(super) fn compile_set(part: &FilePart, set: ClaimSet<'_>, node: &NodeFacts) -> Built {
    let mut problems = part.problems.clone();
    problems.extend_from_slice(set.problems);
    let own = settle::settle_file(&part.desired, &mut problems);
    let mut stored: Vec<&StoredClaim> = set.claims.values().collect();
    stored.sort_by_key(|stored| Reverse(stored.version));
    let claims = own.iter().chain(stored.iter().map(|stored| &*stored.claim));
    let mut built = build::build(claims, &part.desired.settings, Ground::of_set(set, node));
    problems.append(&mut built.problems);
    Built { problems, ..built }
}

/// Returns the claims of a set, in the order of their names.
pub(super) fn of_set(set: ClaimSet<'_>) -> impl Iterator<Item = &Claim> {
    set.claims.values().map(|stored| &*stored.claim)
}
