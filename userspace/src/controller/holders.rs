//! Which nodes hold each Claim, for who asks once.

use super::agents;
use super::ask::{AskError, ask};
use crate::sources::kubernetes::api::claim::{Claim, SETTLED};
use crate::sources::kubernetes::api::node_state::NodeState;
use crate::status::Nodes;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::time::Duration;

/// Two clocks may differ by so much: a Lease counts as renewed for as long after its end.
const SKEW_SECS: i64 = 60;

/// A Claim, and the nodes that hold it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders {
    /// `TLSRoute namespace/name`.
    pub origin: String,
    /// Which of the origin's claims it is.
    pub part: String,
    /// Whose it is.
    pub tenant: String,
    /// The number of things that it has.
    pub granted: i64,
    /// The number of things that it asked for and has not.
    pub refused: i64,
    /// The number of nodes that should hold it.
    pub nodes: usize,
    /// Those of them that do not, each with the reason if it reported one.
    pub missing: Vec<(String, Option<String>)>,
}

/// Reads all Claims, and what the nodes of the release in this namespace report. Sorted by origin and part.
pub fn read(namespace: &str, limit: Duration) -> Result<Vec<Holders>, AskError> {
    let (claims, leases, states) = ask(limit, |client: Client| async move {
        let of_agents = ListParams::default().labels(agents::LABEL);
        let leases = Api::<Lease>::namespaced(client.clone(), namespace);
        let (claims, states) = (Api::<Claim>::all(client.clone()), Api::<NodeState>::all(client));
        let all = ListParams::default();
        // Claims first: a node that reports meanwhile holds them, and is not said to lack a later one.
        Ok((claims.list(&all).await?, leases.list(&of_agents).await?, states.list(&all).await?))
    })?;
    let nodes = agents::reported_nodes(leases.items, states.items, |lease| is_alive(lease, Timestamp::now()));
    Ok(held(claims.items, &nodes))
}

fn held(claims: Vec<Claim>, nodes: &Nodes) -> Vec<Holders> {
    let mut all: Vec<Holders> = claims
        .into_iter()
        .filter(|claim| claim.name_any() != SETTLED)
        .map(|claim| {
            let version =
                claim.resource_version().and_then(|version| version.parse().ok()).unwrap_or_default();
            let spec = claim.spec;
            let (kind, namespace, name) = (&spec.origin.kind, &spec.origin.namespace, &spec.origin.name);
            let origin = format!("{kind} {namespace}/{name}");
            let missing = nodes.missing(format!("{kind}/{namespace}/{name}"), version);
            let missing = missing.map(|(node, why)| (node.to_owned(), why.map(str::to_owned))).collect();
            Holders {
                origin,
                part: spec.origin.part,
                tenant: spec.tenant,
                granted: spec.granted,
                refused: spec.refused,
                nodes: nodes.live.len() + nodes.unknown.len(),
                missing,
            }
        })
        .collect();
    all.sort_by(|a, b| (&a.origin, &a.part).cmp(&(&b.origin, &b.part)));
    all
}

/// Whether a Lease has not ended.
fn is_alive(lease: &Lease, now: Timestamp) -> bool {
    let Some(spec) = &lease.spec else { return false };
    let lasts = i64::from(spec.lease_duration_seconds.unwrap_or_default()) + SKEW_SECS;
    let is_held = spec.holder_identity.as_ref().is_some_and(|holder| !holder.is_empty());
    is_held
        && spec.renew_time.as_ref().is_some_and(|renewed| now.as_second() - renewed.0.as_second() <= lasts)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sources::kubernetes::api::claim::{ClaimOrigin, ClaimSpec};
    use crate::sources::kubernetes::api::lease_report::LeaseReport;
    use crate::sources::kubernetes::api::node_state::{NodeProblem, NodeStateSpec};
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    fn lease(node: &str, renewed: i64, claims_version: u64) -> Lease {
        let mut lease = Lease::default();
        lease.metadata.name = Some(format!("vestibule-agent-{node}"));
        let report = LeaseReport { claims_version, ..LeaseReport::default() };
        report.write(lease.metadata.annotations.get_or_insert_default());
        lease.spec = Some(LeaseSpec {
            holder_identity: Some("pod".to_owned()),
            lease_duration_seconds: Some(40),
            renew_time: Some(MicroTime(at(renewed))),
            ..LeaseSpec::default()
        });
        lease
    }

    fn claim(name: &str, version: &str) -> Claim {
        let origin = ClaimOrigin {
            kind: "TLSRoute".to_owned(),
            namespace: "a".to_owned(),
            name: name.to_owned(),
            ..ClaimOrigin::default()
        };
        let mut claim = Claim::new(name, ClaimSpec { origin, ..ClaimSpec::default() });
        claim.metadata.resource_version = Some(version.to_owned());
        claim
    }

    #[test]
    fn a_claim_is_held_by_nodes_that_report_its_version_without_an_exception() {
        let lost = NodeProblem {
            object: Some("TLSRoute/a/x".to_owned()),
            missing: true,
            message: "it was deleted".to_owned(),
            remedy: "look".to_owned(),
            ..NodeProblem::default()
        };
        let spec = NodeStateSpec { problems: vec![lost], ..NodeStateSpec::default() };
        let leases = vec![lease("n1", 1000, 9), lease("n2", 1000, 5), lease("dead", 100, 9)];
        let states = vec![NodeState::new("n1", spec)];
        let nodes = agents::reported_nodes(leases, states, |lease| is_alive(lease, at(1030)));
        let mut settled = claim("m", "3");
        settled.metadata.name = Some(SETTLED.to_owned());
        let found = held(vec![claim("y", "7"), claim("x", "3"), claim("w", "4"), settled], &nodes);
        let said: Vec<_> =
            found.iter().map(|one| (one.origin.as_str(), one.nodes, one.missing.clone())).collect();
        let exception = ("n1".to_owned(), Some("it was deleted; look".to_owned()));
        assert_eq!(
            said,
            [
                ("TLSRoute a/w", 2, vec![]),
                ("TLSRoute a/x", 2, vec![exception]),
                ("TLSRoute a/y", 2, vec![("n2".to_owned(), None)]),
            ]
        );
    }
}
