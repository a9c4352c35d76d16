//! What an agent writes to the API server: the Lease that shows that it is alive and what its node holds, and its node's `NodeState`
//! with what the node could not do. Both belong to the Node and go with it. Each write has the resourceVersion it is based on, so a
//! late write changes nothing.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, OwnerReference};
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tracing::{debug, warn};

use super::identity::Identity;
use super::renewals::Renewals;
use crate::sources::kubernetes::api::lease_report::LeaseReport;
use crate::sources::kubernetes::api::node_state::{NodeState, NodeStateSpec};
use crate::sources::kubernetes::chance;

/// How long a Lease is valid, in seconds: so long after its last renewal the controller counts the node.
const LEASE_SECS: i32 = 40;
/// The time limit for the answer to a write.
const ANSWER: Duration = Duration::from_secs(5);
/// The minimum interval between writes of the NodeState.
const STATE_GAP: Duration = Duration::from_secs(1);
/// The longest delay between attempts of a write that fails.
const RETRY_MAX: Duration = Duration::from_secs(15);

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
enum WriteError {
    #[error(transparent)]
    Refused(#[from] Box<kube::Error>),
    #[error("no answer within {ANSWER:?}")]
    Silent,
}

impl WriteError {
    /// Another client wrote, or our copy of the object is outdated: read it again.
    fn is_outdated(&self) -> bool {
        matches!(self, Self::Refused(error)
            if matches!(&**error, kube::Error::Api(status) if matches!(status.code, 404 | 409)))
    }
}

/// Writes until it is dropped: the Lease from the start, the state once there is one.
#[derive(Debug)]
pub struct Reporter {
    reports: watch::Sender<LeaseReport>,
    states: watch::Sender<Option<NodeStateSpec>>,
    tasks: JoinSet<()>,
}

impl Reporter {
    /// Starts to write. Needs a tokio runtime.
    pub fn start(client: &Client, identity: &Identity) -> Self {
        let (reports, reported) = watch::channel(LeaseReport::default());
        let (states, received) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let leases = Known::new(
            Api::namespaced(client.clone(), &identity.namespace),
            format!("vestibule-agent-{}", identity.node),
            Owner::new(client, &identity.node),
        );
        tasks.spawn(renew(leases, identity.clone(), reported));
        let states_of =
            Known::new(Api::all(client.clone()), identity.node.clone(), Owner::new(client, &identity.node));
        tasks.spawn(tell(states_of, received));
        Self { reports, states, tasks }
    }

    /// Sets what the node holds, and what it could not do.
    pub fn tell(&self, report: LeaseReport, state: NodeStateSpec) {
        self.reports.send_if_modified(|before| {
            let is_new = *before != report;
            *before = report;
            is_new
        });
        self.states.send_if_modified(|before| {
            let is_new = before.as_ref() != Some(&state);
            if is_new {
                *before = Some(state);
            }
            is_new
        });
    }

    /// Stops. Nothing is written after this.
    pub(super) async fn stop(mut self) {
        self.tasks.shutdown().await;
    }
}

/// The Node that our objects belong to, so that they go with it.
struct Owner {
    nodes: Api<PartialObjectMeta<v1::Node>>,
    node: String,
    /// `None`: not read yet. `Some(None)`: it may not be read, or is none.
    reference: Option<Option<OwnerReference>>,
}

impl Owner {
    fn new(client: &Client, node: &str) -> Self {
        Self { nodes: Api::all(client.clone()), node: node.to_owned(), reference: None }
    }

    /// Returns the reference, and reads the Node if it is not known.
    async fn reference(&mut self) -> Option<OwnerReference> {
        if self.reference.is_none() {
            self.reference = match answer(self.nodes.get_metadata_opt(&self.node)).await {
                Ok(node) => Some(node.and_then(|node| owner(&self.node, node.metadata.uid))),
                Err(WriteError::Refused(error)) if is_forbidden(&error) => Some(None),
                // Without it the object is written nevertheless, and has it later.
                Err(_) => None,
            };
        }
        self.reference.clone().flatten()
    }
}

fn owner(node: &str, uid: Option<String>) -> Option<OwnerReference> {
    let (api_version, kind) = ("v1".to_owned(), "Node".to_owned());
    Some(OwnerReference { api_version, kind, name: node.to_owned(), uid: uid?, ..OwnerReference::default() })
}

fn is_forbidden(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403)
}

/// One of our objects, as the API server last returned it.
struct Known<K> {
    api: Api<K>,
    name: String,
    owner: Owner,
    object: Option<K>,
}

impl<K> Known<K>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    fn new(api: Api<K>, name: String, owner: Owner) -> Self {
        Self { api, name, owner, object: None }
    }

    /// Reads the object if it is not known.
    async fn look(&mut self) -> Result<Option<&K>, WriteError> {
        if self.object.is_none() {
            self.object = answer(self.api.get_opt(&self.name)).await?;
        }
        Ok(self.object.as_ref())
    }

    /// Creates or replaces the object. If our copy is outdated, reads the object again and retries once.
    async fn write(&mut self, make: impl Fn(Option<&K>) -> K) -> Result<(), WriteError> {
        match self.write_once(&make).await {
            Err(error) if error.is_outdated() => {
                self.object = None;
                // It may have gone with its Node, of which there is another one now.
                self.owner.reference = None;
                self.write_once(&make).await
            }
            written => written,
        }
    }

    async fn write_once(&mut self, make: impl Fn(Option<&K>) -> K) -> Result<(), WriteError> {
        let (parameters, name) = (PostParams::default(), self.name.clone());
        let owner = self.owner.reference().await;
        let mut object = make(self.look().await?);
        if let Some(owner) = owner {
            object.meta_mut().owner_references = Some(vec![owner]);
        }
        self.object = Some(if object.meta().resource_version.is_some() {
            answer(self.api.replace(&name, &parameters, &object)).await?
        } else {
            answer(self.api.create(&parameters, &object)).await?
        });
        Ok(())
    }
}

async fn answer<T>(request: impl Future<Output = kube::Result<T>>) -> Result<T, WriteError> {
    timeout(ANSWER, request).await.map_err(|_| WriteError::Silent)?.map_err(|e| Box::new(e).into())
}

async fn renew(mut known: Known<Lease>, identity: Identity, mut reports: watch::Receiver<LeaseReport>) {
    let mut renewals = Renewals::new(Instant::now());
    loop {
        tokio::select! {
            changed = reports.changed() => match changed {
                Ok(()) => renewals.changed(Instant::now(), chance()),
                Err(_) => return,
            },
            () = sleep_until(renewals.next) => {
                let (report, now) = (reports.borrow_and_update().clone(), Timestamp::now());
                let written = known.write(|before| lease(before, &identity, &report, now)).await;
                if let Err(error) = &written {
                    warn!(%error, lease = known.name, "the Lease is not renewed");
                    known.object = None;
                }
                renewals.written(Instant::now(), written.is_ok());
            }
        }
    }
}

/// Returns the renewed Lease. Keeps what others wrote into it.
fn lease(before: Option<&Lease>, identity: &Identity, report: &LeaseReport, now: Timestamp) -> Lease {
    let mut lease = before.cloned().unwrap_or_default();
    lease.metadata.name = Some(format!("vestibule-agent-{}", identity.node));
    lease.metadata.namespace = Some(identity.namespace.clone());
    let labels = lease.metadata.labels.get_or_insert_default();
    for (label, value) in [
        ("app.kubernetes.io/component", "agent"),
        ("app.kubernetes.io/name", "vestibule"),
        ("app.kubernetes.io/part-of", "vestibule"),
    ] {
        labels.insert(label.into(), value.into());
    }
    report.write(lease.metadata.annotations.get_or_insert_default());
    let spec = lease.spec.get_or_insert_with(LeaseSpec::default);
    if spec.holder_identity.as_ref() != Some(&identity.pod) {
        let changed_hands = spec.holder_identity.is_some();
        spec.holder_identity = Some(identity.pod.clone());
        spec.acquire_time = Some(MicroTime(now));
        spec.lease_transitions = Some(spec.lease_transitions.unwrap_or(0) + i32::from(changed_hands));
    }
    spec.lease_duration_seconds = Some(LEASE_SECS);
    spec.renew_time = Some(MicroTime(now));
    lease
}

async fn tell(mut known: Known<NodeState>, mut wanted: watch::Receiver<Option<NodeStateSpec>>) {
    let mut pause = STATE_GAP;
    loop {
        let Some(state) = wanted.borrow_and_update().clone() else {
            if wanted.changed().await.is_err() {
                return;
            }
            continue;
        };
        match write_state(&mut known, &state).await {
            Ok(()) => pause = STATE_GAP,
            Err(error) => {
                warn!(%error, "what this node could not do cannot be published");
                known.object = None;
                sleep(pause).await;
                pause = (2 * pause).min(RETRY_MAX);
                continue;
            }
        }
        sleep(STATE_GAP).await;
        if wanted.changed().await.is_err() {
            return;
        }
    }
}

/// Writes the state if it differs from the API server's.
async fn write_state(known: &mut Known<NodeState>, state: &NodeStateSpec) -> Result<(), WriteError> {
    if known.look().await?.is_some_and(|before| before.spec == *state) {
        return Ok(());
    }
    debug!(problems = state.problems.len(), "what this node could not do is published");
    let name = known.name.clone();
    known.write(|before| node_state(before, &name, state)).await
}

fn node_state(before: Option<&NodeState>, node: &str, state: &NodeStateSpec) -> NodeState {
    let metadata = match before {
        Some(before) => before.metadata.clone(),
        None => ObjectMeta { name: Some(node.into()), ..ObjectMeta::default() },
    };
    NodeState { metadata, spec: state.clone() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(pod: &str) -> Identity {
        Identity { node: "node1".into(), pod: pod.into(), namespace: "vestibule-system".into() }
    }

    #[test]
    fn a_lease_names_its_holder_and_counts_who_had_it_before() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let report = |claims_version| LeaseReport { claims_version, config: String::new() };
        let first = lease(None, &identity("a"), &report(7), at(100));
        assert_eq!(first.metadata.name.as_deref(), Some("vestibule-agent-node1"));
        assert_eq!(first.metadata.labels.as_ref().unwrap()["app.kubernetes.io/component"], "agent");
        let renewed = lease(Some(&first), &identity("a"), &report(8), at(103));
        let spec = renewed.spec.as_ref().unwrap();
        assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(0), Some(40)));
        let annotations = renewed.metadata.annotations.as_ref().unwrap();
        assert_eq!(LeaseReport::read(annotations), Some(report(8)));
        assert_eq!(spec.acquire_time, Some(MicroTime(at(100))));
        assert_eq!(spec.renew_time, Some(MicroTime(at(103))));
        let next = lease(Some(&renewed), &identity("b"), &report(8), at(104));
        let spec = next.spec.as_ref().unwrap();
        assert_eq!((spec.holder_identity.as_deref(), spec.lease_transitions), (Some("b"), Some(1)));
        assert_eq!(spec.acquire_time, Some(MicroTime(at(104))));
    }

    #[test]
    fn a_state_keeps_the_metadata_it_was_based_on() {
        let state = NodeStateSpec { node: "node1".into(), ..NodeStateSpec::default() };
        let fresh = node_state(None, "node1", &state);
        let ObjectMeta { name, resource_version, .. } = fresh.metadata.clone();
        assert_eq!((name.as_deref(), resource_version), (Some("node1"), None));
        let mut before = NodeState { metadata: fresh.metadata, spec: NodeStateSpec::default() };
        before.metadata.resource_version = Some("7".into());
        let next = node_state(Some(&before), "node1", &state);
        assert_eq!((next.metadata.resource_version.as_deref(), &next.spec), (Some("7"), &state));
    }
}
