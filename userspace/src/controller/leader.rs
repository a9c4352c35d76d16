//! Who leads, for who asks once.

use super::ask::{AskError, ask};
use super::election::{NAME, UNMARKED};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::jiff::Timestamp;
use kube::Api;
use std::time::Duration;

/// What the leader's Lease says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Who holds it.
    pub holder: String,
    /// How long ago it was renewed, in seconds; by two clocks, so that it may be negative.
    pub renewed_secs: i64,
    /// Why not all Claims are written, and since when, as it says; `None`: they are.
    pub unmarked: Option<String>,
}

/// Reads the leader's Lease in the release's namespace. `None`: nobody holds it.
pub fn read(namespace: &str, limit: Duration) -> Result<Option<Leader>, AskError> {
    let lease =
        ask(limit, |client| async move { Api::<Lease>::namespaced(client, namespace).get_opt(NAME).await })?;
    Ok(lease.as_ref().and_then(|lease| leader(lease, Timestamp::now())))
}

fn leader(lease: &Lease, now: Timestamp) -> Option<Leader> {
    let spec = lease.spec.as_ref()?;
    let holder = spec.holder_identity.clone().filter(|holder| !holder.is_empty())?;
    let renewed_secs = now.as_second() - spec.renew_time.as_ref()?.0.as_second();
    let unmarked = lease.metadata.annotations.as_ref().and_then(|all| all.get(UNMARKED)).cloned();
    Some(Leader { holder, renewed_secs, unmarked })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::controller::election::unmarked;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;

    #[test]
    fn a_lease_that_was_given_back_has_no_leader() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let lease = |holder: &str| Lease {
            spec: Some(LeaseSpec {
                holder_identity: Some(holder.to_owned()),
                renew_time: Some(MicroTime(at(970))),
                ..LeaseSpec::default()
            }),
            ..Lease::default()
        };
        let found = leader(&lease("c_1"), at(1000));
        assert_eq!(found, Some(Leader { holder: "c_1".into(), renewed_secs: 30, unmarked: None }));
        let mut waits = lease("c_1");
        waits.metadata.annotations = unmarked(&"since then: x".repeat(200));
        let why = leader(&waits, at(1000)).unwrap().unmarked.unwrap();
        assert!(why.starts_with("since then: x") && why.len() <= 1024, "{why}");
        assert_eq!(unmarked(""), None);
        assert_eq!(leader(&lease(""), at(1000)), None);
        assert_eq!(leader(&Lease::default(), at(1000)), None);
    }
}
