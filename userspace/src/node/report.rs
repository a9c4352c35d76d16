//! What an agent writes to the API server: its node's `NodeState`, and the Lease that shows it is alive. Each
//! write has the resourceVersion it is based on, so a late write changes nothing.

use std::time::Duration;

use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use k8s_openapi::jiff::Timestamp;
use kube::api::{ObjectMeta, PostParams};
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tracing::{debug, warn};

use super::identity::Identity;
use crate::sources::kubernetes::api::node_state::{NodeState, NodeStateSpec};

/// The interval between renewals of the Lease.
const RENEW: Duration = Duration::from_secs(3);
/// How long a Lease is valid, in seconds.
const LEASE_SECS: i32 = 10;
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
pub(super) struct Reporter {
    states: watch::Sender<Option<NodeStateSpec>>,
    tasks: JoinSet<()>,
}

impl Reporter {
    /// Starts to write.
    pub(super) fn start(client: &Client, identity: &Identity) -> Self {
        let (states, received) = watch::channel(None);
        let mut tasks = JoinSet::new();
        let leases = Api::namespaced(client.clone(), &identity.namespace);
        tasks.spawn(renew(leases, identity.clone()));
        tasks.spawn(tell(Api::all(client.clone()), identity.node.clone(), received));
        Self { states, tasks }
    }

    /// Sets the state to write.
    pub(super) fn tell(&self, state: NodeStateSpec) {
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

/// One of our objects, as the API server last returned it.
struct Known<K> {
    api: Api<K>,
    name: String,
    object: Option<K>,
}

impl<K> Known<K>
where
    K: Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    fn new(api: Api<K>, name: String) -> Self {
        Self { api, name, object: None }
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
                self.write_once(&make).await
            }
            written => written,
        }
    }

    async fn write_once(&mut self, make: impl Fn(Option<&K>) -> K) -> Result<(), WriteError> {
        let (parameters, name) = (PostParams::default(), self.name.clone());
        let object = make(self.look().await?);
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

async fn renew(leases: Api<Lease>, identity: Identity) {
    let mut known = Known::new(leases, format!("vestibule-agent-{}", identity.node));
    let mut tick = interval(RENEW);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        let now = Timestamp::now();
        if let Err(error) = known.write(|before| lease(before, &identity, now)).await {
            warn!(%error, lease = known.name, "the Lease is not renewed");
            known.object = None;
        }
    }
}

/// Returns the renewed Lease. Keeps what others wrote into it.
fn lease(before: Option<&Lease>, identity: &Identity, now: Timestamp) -> Lease {
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

async fn tell(states: Api<NodeState>, node: String, mut wanted: watch::Receiver<Option<NodeStateSpec>>) {
    let mut known = Known::new(states, node);
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
                warn!(%error, "what this node holds cannot be published");
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
    debug!(claims_version = state.claims_version, "what this node holds is published");
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
        let first = lease(None, &identity("a"), at(100));
        assert_eq!(first.metadata.name.as_deref(), Some("vestibule-agent-node1"));
        assert_eq!(first.metadata.labels.as_ref().unwrap()["app.kubernetes.io/component"], "agent");
        let renewed = lease(Some(&first), &identity("a"), at(103));
        let spec = renewed.spec.as_ref().unwrap();
        assert_eq!((spec.lease_transitions, spec.lease_duration_seconds), (Some(0), Some(10)));
        assert_eq!(spec.acquire_time, Some(MicroTime(at(100))));
        assert_eq!(spec.renew_time, Some(MicroTime(at(103))));
        let next = lease(Some(&renewed), &identity("b"), at(104));
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
