//! What an agent writes to the API server: the Lease that shows that it is alive and what its node holds, and its node's `NodeState`
//! with what the node could not do. Both belong to the Node and go with it. Each write has the resourceVersion it is based on, so a
//! late write changes nothing.

use std::sync::{Arc, Once};
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
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{debug, warn};

use super::answer::{WriteError, answer};
use super::identity::Identity;
use super::renewals::Renewals;
use crate::sources::kubernetes::api::lease_name::name_lease;
use crate::sources::kubernetes::api::lease_report::{LeaseReport, come_back};
use crate::sources::kubernetes::api::node_state::{NodeProblem, NodeState, NodeStateSpec};
use crate::sources::kubernetes::chance;

/// How long a Lease is valid: so long after its last renewal the controller counts the node.
pub const LEASE: Duration = Duration::from_secs(40);
/// The minimum interval between writes of the NodeState.
const STATE_GAP: Duration = Duration::from_secs(1);
/// The longest delay between attempts of a write that fails.
const RETRY_MAX: Duration = Duration::from_secs(15);
/// A NodeState that cannot be written for so long may never be: others learn why.
const UNWRITTEN: Duration = Duration::from_secs(10);

/// What the node holds, and what it could not do: of the former, the latter may take something back.
#[derive(Clone, Debug, Default)]
struct Said {
    report: LeaseReport,
    state: Option<Arc<NodeStateSpec>>,
    /// How often the version of Claims went down, as it does when a backup is restored.
    epoch: u64,
}

impl Said {
    /// Returns what the Lease may say, where a NodeState was written last and the Lease has a version of Claims: before the NodeState takes
    /// back what the node does not hold, no higher one than it did so for. From before a version went down, it did so for none.
    fn sayable(&self, written: &Written, former: u64) -> LeaseReport {
        let mut report = self.report.clone();
        report.unwritten = written.unwritten.as_ref().map(|(_, why)| why.clone()).unwrap_or_default();
        let takes_back = |one: &&NodeProblem| one.missing;
        let is_written = |one: &NodeProblem| {
            let mut before = written.state.iter().flat_map(|state| &state.problems).filter(takes_back);
            before.any(|before| before.object.is_none() || before.object == one.object)
        };
        let problems = self.state.iter().flat_map(|state| &state.problems);
        if !problems.filter(takes_back).all(is_written) {
            let of_now = if written.epoch == self.epoch { written.claims_version } else { 0 };
            let floor = former.max(of_now);
            report.claims_version = if floor <= report.claims_version { floor } else { 0 };
        }
        report
    }
}

/// The NodeState as it was written last.
#[derive(Clone, Debug, Default)]
struct Written {
    /// `None`: it may be another one.
    state: Option<Arc<NodeStateSpec>>,
    /// Of every Claim up to this version it says what the node does not hold, and so does another one that was written since.
    claims_version: u64,
    /// [`Said::epoch`] of that version.
    epoch: u64,
    /// Since when another one cannot be written, and why.
    unwritten: Option<(std::time::Instant, String)>,
}

/// Writes until it is dropped: the Lease from the start, the state once there is one.
#[derive(Debug)]
pub struct Reporter {
    said: watch::Sender<Said>,
    written: watch::Receiver<Written>,
    tasks: JoinSet<()>,
}

impl Reporter {
    /// Starts to write. Needs a tokio runtime.
    pub fn start(client: &Client, identity: &Identity) -> Self {
        let refused = Arc::new(Once::new());
        let (said, heard) = watch::channel(Said::default());
        let (write, written) = watch::channel(Written::default());
        let owner = || Owner::new(client, &identity.node, &refused);
        let mut tasks = JoinSet::new();
        let leases =
            Known::new(Api::namespaced(client.clone(), &identity.namespace), identity.lease(), owner());
        tasks.spawn(renew(leases, identity.clone(), heard.clone(), written.clone()));
        let states_of = Known::new(Api::all(client.clone()), identity.node.clone(), owner());
        tasks.spawn(tell(states_of, heard, write));
        Self { said, written, tasks }
    }

    /// Sets what the node holds, and what it could not do.
    pub fn tell(&self, report: LeaseReport, state: NodeStateSpec) {
        self.said.send_if_modified(|before| {
            let is_same_state = before.state.as_deref() == Some(&state);
            let is_new = before.report != report || !is_same_state;
            before.epoch += u64::from(report.claims_version < before.report.claims_version);
            before.report = report;
            if !is_same_state {
                before.state = Some(Arc::new(state));
            }
            is_new
        });
    }

    /// Since when the NodeState cannot be written, and why.
    pub(super) fn unwritten(&self) -> Option<(std::time::Instant, String)> {
        self.written.borrow().unwritten.clone()
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
    /// It is said once that it may not be read.
    refused: Arc<Once>,
}

impl Owner {
    fn new(client: &Client, node: &str, refused: &Arc<Once>) -> Self {
        let (nodes, refused) = (Api::all(client.clone()), Arc::clone(refused));
        Self { nodes, node: node.to_owned(), reference: None, refused }
    }

    /// Returns the reference, and reads the Node if it is not known.
    async fn reference(&mut self) -> Option<OwnerReference> {
        if self.reference.is_none() {
            self.reference = match answer(self.nodes.get_metadata_opt(&self.node)).await {
                Ok(node) => Some(node.and_then(|node| owner(&self.node, node.metadata.uid))),
                Err(error) if error.is_forbidden() => {
                    self.refused.call_once(|| {
                        let (node, why) = (&self.node, error.why());
                        warn!(
                            node,
                            why,
                            "this node's Node cannot be read: its Lease and NodeState stay when the node goes; \
                             the agent's ClusterRole must allow `get` of nodes"
                        );
                    });
                    Some(None)
                }
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

async fn renew(
    mut known: Known<Lease>,
    identity: Identity,
    mut said: watch::Receiver<Said>,
    mut written: watch::Receiver<Written>,
) {
    let mut renewals = Renewals::new(Instant::now());
    // Of what the Lease says.
    let mut epoch = 0;
    let mut is_first = true;
    let former = |lease: Option<&Lease>, epoch: u64, said: &Said| {
        let report = lease.and_then(reported).filter(|_| epoch == said.epoch);
        report.map_or(0, |report| report.claims_version)
    };
    loop {
        let changed = tokio::select! {
            changed = said.changed() => changed,
            // Once NodeStates are written no more, the Lease is renewed all the same.
            Ok(()) = written.changed() => Ok(()),
            () = sleep_until(renewals.next) => {
                let (now, saying) = (Timestamp::now(), said.borrow_and_update().clone());
                let state = written.borrow_and_update().clone();
                let renewed = known.write(|before| {
                    let former = former(before, epoch, &saying);
                    let mut lease = lease(before, &identity, &saying.sayable(&state, former), now);
                    if is_first {
                        come_back(lease.metadata.annotations.get_or_insert_default());
                    }
                    lease
                });
                let renewed = renewed.await;
                match &renewed {
                    Ok(()) => (epoch, is_first) = (saying.epoch, false),
                    Err(error) => {
                        warn!(%error, lease = known.name, "the Lease is not renewed");
                        known.object = None;
                    }
                }
                renewals.written(Instant::now(), renewed.is_ok());
                continue;
            }
        };
        if changed.is_err() {
            return;
        }
        // Without a Lease, one is due anyway.
        let is_news = known.object.as_ref().and_then(reported).is_some_and(|before| {
            let said = said.borrow();
            said.sayable(&written.borrow(), former(known.object.as_ref(), epoch, &said)) != before
        });
        if is_news {
            renewals.changed(Instant::now(), chance());
        }
    }
}

/// Returns what a Lease says.
fn reported(lease: &Lease) -> Option<LeaseReport> {
    LeaseReport::read(lease.metadata.annotations.as_ref()?)
}

/// Returns the renewed Lease. Keeps what others wrote into it.
fn lease(before: Option<&Lease>, identity: &Identity, report: &LeaseReport, now: Timestamp) -> Lease {
    let mut lease = before.cloned().unwrap_or_default();
    name_lease(&mut lease, &identity.node);
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
    spec.lease_duration_seconds = Some(LEASE.as_secs() as i32);
    spec.renew_time = Some(MicroTime(now));
    lease
}

async fn tell(mut known: Known<NodeState>, mut said: watch::Receiver<Said>, written: watch::Sender<Written>) {
    let mut pause = STATE_GAP;
    let mut fails_since = None;
    loop {
        let Said { report, state, epoch } = said.borrow_and_update().clone();
        let is_new = |state: &Arc<NodeStateSpec>| written.borrow().state.as_ref() != Some(state);
        if let Some(state) = state.filter(is_new) {
            // While it is being written, and without an answer, it is not known what the API server has.
            let before = written.borrow().clone();
            written.send_replace(Written { state: None, ..before.clone() });
            match write_state(&mut known, &state).await {
                Ok(()) => {
                    (pause, fails_since) = (STATE_GAP, None);
                    let (state, claims_version) = (Some(state), report.claims_version);
                    written.send_replace(Written { state, claims_version, epoch, unwritten: None });
                }
                Err(error) => {
                    warn!(%error, "what this node could not do cannot be published");
                    let state = before.state.filter(|_| error.is_refused());
                    let since = *fails_since.get_or_insert_with(Instant::now);
                    let unwritten = (since.elapsed() >= UNWRITTEN).then(|| (since.into_std(), error.why()));
                    written.send_replace(Written { state, unwritten, ..before });
                    known.object = None;
                    sleep(pause).await;
                    pause = (2 * pause).min(RETRY_MAX);
                    continue;
                }
            }
            sleep(STATE_GAP).await;
        } else if fails_since.take().is_some() {
            // What could not be written is no longer so: the API server has what is so now.
            pause = STATE_GAP;
            written.send_modify(|written| written.unwritten = None);
        }
        if said.changed().await.is_err() {
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
    use std::collections::BTreeMap;
    use std::sync::Mutex;

    use axum::extract::State;
    use axum::http::StatusCode;
    use serde_json::{Value, json};

    use super::*;
    use crate::node::tests::log::Lines;

    fn identity(pod: &str) -> Identity {
        Identity { node: "node1".into(), pod: pod.into(), namespace: "vestibule-system".into() }
    }

    #[test]
    fn a_lease_names_its_holder_and_counts_who_had_it_before() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let report = |claims_version| LeaseReport { claims_version, ..LeaseReport::default() };
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

    fn unheld(objects: &[Option<&str>]) -> NodeStateSpec {
        let unheld = objects.iter().map(|object| NodeProblem {
            object: object.map(str::to_owned),
            missing: true,
            ..NodeProblem::default()
        });
        NodeStateSpec { problems: unheld.collect(), ..NodeStateSpec::default() }
    }

    #[test]
    fn a_lease_says_no_more_than_the_node_state_has_taken_back() {
        for (state, written, said) in [
            (Some(unheld(&[])), None, 9),
            (Some(unheld(&[Some("a")])), None, 5),
            (Some(unheld(&[Some("a")])), Some(unheld(&[])), 5),
            (Some(unheld(&[None])), Some(unheld(&[Some("a")])), 5),
            (Some(unheld(&[Some("a"), Some("b")])), Some(unheld(&[Some("a")])), 5),
            (Some(unheld(&[Some("a")])), Some(unheld(&[Some("b"), Some("a")])), 9),
            (Some(unheld(&[Some("a")])), Some(unheld(&[None])), 9),
            (None, None, 9),
        ] {
            let report = LeaseReport { claims_version: 9, config: "c".into(), ..LeaseReport::default() };
            let now = Said { report, state: state.clone().map(Arc::new), epoch: 0 };
            let written = Written { state: written.map(Arc::new), claims_version: 3, ..Written::default() };
            let sayable = now.sayable(&written, 5);
            assert_eq!((sayable.claims_version, &*sayable.config), (said, "c"), "{state:?} {written:?}");
            let less = if said == 9 { 9 } else { 0 };
            assert_eq!(now.sayable(&written, 12).claims_version, less, "versions went down");
            assert_eq!(now.sayable(&written, 9).claims_version, 9, "that was said already");
        }
        let mut problem = unheld(&[Some("a")]);
        problem.problems[0].missing = false;
        let report = LeaseReport { claims_version: 9, ..LeaseReport::default() };
        let now = Said { report: report.clone(), state: Some(Arc::new(problem.clone())), epoch: 0 };
        assert_eq!(now.sayable(&Written::default(), 5), report, "it takes nothing back");
        let mut now = Said { report, state: Some(Arc::new(unheld(&[Some("a")]))), epoch: 0 };
        let problem = of_version(problem, 3);
        assert_eq!(now.sayable(&problem, 5).claims_version, 5, "nothing was taken back before");
        let other = of_version(unheld(&[Some("b")]), 7);
        assert_eq!(now.sayable(&other, 5).claims_version, 7, "all of what it had by then");
        now.epoch = 1;
        assert_eq!(now.sayable(&other, 0).claims_version, 0, "by then it was another history");
    }

    fn of_version(state: NodeStateSpec, claims_version: u64) -> Written {
        Written { state: Some(state.into()), claims_version, ..Written::default() }
    }

    /// It seemed to be behind with all Claims, and with it all nodes that have no room for the same.
    #[tokio::test(start_paused = true)]
    async fn a_node_that_lacks_something_else_all_the_time_goes_on_to_say_what_it_holds() {
        let server = Server::default();
        let reporter = Reporter::start(&server.client(), &identity("a"));
        for claims_version in 1..=100 {
            let object = format!("x{claims_version}");
            reporter.tell(LeaseReport { claims_version, ..LeaseReport::default() }, unheld(&[Some(&object)]));
            sleep(Duration::from_millis(700)).await;
        }
        let written = server.written();
        let versions: Vec<u64> = written.iter().filter_map(|said| said.parse().ok()).collect();
        assert!(versions.last() > Some(&80), "{written:?}");
    }

    /// What was written to an API server: the version of each Lease, and the objects that NodeStates take back.
    #[derive(Clone, Default)]
    struct Server(Arc<Mutex<Kept>>);

    #[derive(Default)]
    struct Kept {
        written: Vec<String>,
        /// How NodeStates are refused.
        refusal: Option<StatusCode>,
        /// What the Lease says of the NodeState.
        unwritten: String,
        /// How often a NodeState was refused. Each refusal has another message.
        refusals: u32,
        /// The answer for the Node: its uid, or how it is refused; `None`: there is none.
        node: Option<Result<&'static str, StatusCode>>,
        /// Kinds of which the next write finds that the object is gone.
        gone: Vec<&'static str>,
        /// The owner of each object as it was written last, by its kind.
        owners: BTreeMap<&'static str, Value>,
    }

    impl Server {
        fn client(&self) -> Client {
            let router = axum::Router::new().fallback(answered).with_state(self.clone());
            Client::new(router, "default")
        }

        fn refuse_states(&self, code: Option<StatusCode>) {
            self.0.lock().unwrap().refusal = code;
        }

        /// What the Lease says of the NodeState.
        fn unwritten(&self) -> Option<String> {
            Some(self.0.lock().unwrap().unwritten.clone()).filter(|why| !why.is_empty())
        }

        fn refusals(&self) -> u32 {
            self.0.lock().unwrap().refusals
        }

        /// The Node has this uid from now on, or is refused. What belonged to the one before is gone.
        fn node(&self, answer: Result<&'static str, StatusCode>) {
            let mut kept = self.0.lock().unwrap();
            kept.node = Some(answer);
            kept.gone = kept.owners.keys().copied().collect();
            kept.owners.clear();
        }

        /// The owners of the Lease and of the NodeState.
        fn owners(&self) -> Vec<(&'static str, Value)> {
            self.0.lock().unwrap().owners.clone().into_iter().collect()
        }

        fn written(&self) -> Vec<String> {
            std::mem::take(&mut self.0.lock().unwrap().written)
        }
    }

    async fn answered(
        State(Server(server)): State<Server>,
        method: axum::http::Method,
        uri: axum::http::Uri,
        body: axum::body::Bytes,
    ) -> (StatusCode, String) {
        let refusal = |code: StatusCode, message: String| {
            let reason = match code {
                StatusCode::NOT_FOUND => "NotFound".to_owned(),
                // As one of a webhook may be.
                StatusCode::IM_A_TEAPOT => "é".repeat(300),
                _ => "InternalError".to_owned(),
            };
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code.as_u16(),
                                "message": message, "reason": reason});
            (code, status.to_string())
        };
        let mut server = server.lock().unwrap();
        if method == axum::http::Method::GET {
            return match server.node.filter(|_| uri.path() == "/api/v1/nodes/node1") {
                Some(Ok(uid)) => {
                    let node = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                                      "metadata": {"name": "node1", "uid": uid}});
                    (StatusCode::OK, node.to_string())
                }
                Some(Err(code)) => refusal(code, String::new()),
                None => refusal(StatusCode::NOT_FOUND, String::new()),
            };
        }
        let mut object: Value = serde_json::from_slice(&body).unwrap();
        let kind = if uri.path().contains("/nodestates") { "NodeState" } else { "Lease" };
        if let Some(at) = server.gone.iter().position(|gone| *gone == kind) {
            server.gone.swap_remove(at);
            return refusal(StatusCode::NOT_FOUND, String::new());
        }
        server.owners.insert(kind, object["metadata"]["ownerReferences"].clone());
        if kind == "NodeState" {
            if let Some(code) = server.refusal {
                server.refusals += 1;
                return refusal(code, format!("refused at attempt {}", server.refusals));
            }
            let state: NodeState = serde_json::from_value(object.clone()).unwrap();
            let unheld = state.spec.problems.into_iter().filter_map(|problem| problem.object);
            server.written.push(format!("without {}", unheld.collect::<Vec<_>>().join(" ")));
        } else {
            let lease: Lease = serde_json::from_value(object.clone()).unwrap();
            let report = reported(&lease).unwrap();
            server.written.push(report.claims_version.to_string());
            server.unwritten = report.unwritten;
        }
        object["metadata"]["resourceVersion"] = "1".into();
        (StatusCode::OK, object.to_string())
    }

    /// Without it, they would stay when the node goes; and with the uid of a Node of before, they would be deleted at once.
    #[tokio::test(start_paused = true)]
    async fn leases_and_node_states_have_the_node_as_owner() {
        let server = Server::default();
        let owner = |uid: &str| {
            let owner = json!([{"apiVersion": "v1", "kind": "Node", "name": "node1", "uid": uid}]);
            vec![("Lease", owner.clone()), ("NodeState", owner)]
        };
        server.node(Ok("u1"));
        let reporter = Reporter::start(&server.client(), &identity("a"));
        let tell = |claims_version, object| {
            let report = LeaseReport { claims_version, ..LeaseReport::default() };
            reporter.tell(report, unheld(&[Some(object)]));
        };
        tell(7, "x");
        sleep(Duration::from_secs(20)).await;
        assert_eq!(server.owners(), owner("u1"));
        server.node(Ok("u2"));
        tell(8, "y");
        sleep(Duration::from_secs(20)).await;
        assert_eq!(server.owners(), owner("u2"), "it is another node of the same name");
        // A NodeState that stays as it is waits for the next one.
        tell(9, "z");
        sleep(Duration::from_secs(20)).await;
        assert_eq!(server.owners(), owner("u2"));
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_may_not_be_read_is_named_once_and_all_is_written_without_it() {
        let (server, lines) = (Server::default(), Lines::default());
        let _guard = tracing::subscriber::set_default(lines.subscriber());
        server.node(Err(StatusCode::FORBIDDEN));
        let reporter = Reporter::start(&server.client(), &identity("a"));
        let report = |claims_version| LeaseReport { claims_version, ..LeaseReport::default() };
        reporter.tell(report(7), unheld(&[Some("x")]));
        sleep(Duration::from_secs(30)).await;
        server.node(Err(StatusCode::FORBIDDEN));
        reporter.tell(report(8), unheld(&[Some("y")]));
        sleep(Duration::from_secs(30)).await;
        assert_eq!(server.owners(), [("Lease", Value::Null), ("NodeState", Value::Null)]);
        let text = lines.text();
        assert_eq!(text.matches("Node cannot be read").count(), 1, "{text}");
        assert!(text.contains("403") && text.contains("node1"), "{text}");
    }

    /// An agent's Lease of 500 changes all the time. What others add to `metadata` is no report.
    #[test]
    fn a_lease_is_below_two_kib_whatever_it_says() {
        let longest = "n".repeat(63);
        let identity = Identity { node: longest.clone(), pod: longest.clone(), namespace: longest.clone() };
        // Each takes two bytes in JSON, or six if it is a control character.
        for unwritten in ["\"", "\u{1}", "\n", "\u{e9}"] {
            let report = LeaseReport {
                claims_version: u64::MAX,
                config: "f".repeat(64),
                unwritten: unwritten.repeat(1000),
                saved: unwritten.repeat(1000),
            };
            let mut lease = lease(None, &identity, &report, Timestamp::now());
            lease.metadata.owner_references = owner(&longest, Some("u".repeat(36))).map(|owner| vec![owner]);
            let bytes = serde_json::to_vec(&lease).unwrap().len();
            assert!((1200..2048).contains(&bytes), "{unwritten:?}: {bytes} bytes");
        }
    }

    /// Only its log said why it was behind.
    #[tokio::test(start_paused = true)]
    async fn a_lease_says_why_the_node_state_cannot_be_written_until_it_is() {
        let server = Server::default();
        let reporter = Reporter::start(&server.client(), &identity("a"));
        server.refuse_states(Some(StatusCode::FORBIDDEN));
        let report = LeaseReport { claims_version: 7, ..LeaseReport::default() };
        reporter.tell(report, unheld(&[Some("x")]));
        sleep(Duration::from_secs(5)).await;
        assert!(reporter.unwritten().is_none() && server.unwritten().is_none(), "a moment is none of others");
        sleep(Duration::from_secs(40)).await;
        assert!(
            reporter.unwritten().unwrap().1.starts_with("403 InternalError"),
            "{:?}",
            reporter.unwritten()
        );
        assert_eq!(server.unwritten(), reporter.unwritten().map(|(_, why)| why));
        server.refuse_states(None);
        sleep(Duration::from_secs(20)).await;
        assert!(reporter.unwritten().is_none() && server.unwritten().is_none());
        assert_eq!(server.written().last().unwrap(), "7");
        // What cannot be written may end before it ever was.
        server.refuse_states(Some(StatusCode::FORBIDDEN));
        let report = || LeaseReport { claims_version: 8, ..LeaseReport::default() };
        reporter.tell(report(), unheld(&[Some("y")]));
        sleep(Duration::from_secs(40)).await;
        assert!(server.unwritten().is_some());
        reporter.tell(report(), unheld(&[Some("x")]));
        sleep(Duration::from_secs(60)).await;
        assert!(reporter.unwritten().is_none() && server.unwritten().is_none());
        reporter.tell(report(), unheld(&[Some("y")]));
        sleep(Duration::from_secs(5)).await;
        assert!(reporter.unwritten().is_none(), "it is another failure, of a moment");
    }

    /// Each attempt to write the NodeState was news for the Lease: its message names versions and times, or is longer than the Lease takes.
    #[tokio::test(start_paused = true)]
    async fn a_lease_at_rest_says_why_and_is_renewed_no_more_often_for_that() {
        for code in [StatusCode::FORBIDDEN, StatusCode::IM_A_TEAPOT] {
            let server = Server::default();
            let reporter = Reporter::start(&server.client(), &identity("a"));
            server.refuse_states(Some(code));
            reporter.tell(LeaseReport { claims_version: 7, ..LeaseReport::default() }, unheld(&[Some("x")]));
            sleep(Duration::from_secs(60)).await;
            let (why, refusals) = (server.unwritten().unwrap(), server.refusals());
            assert!(why.starts_with(code.as_str()) && !why.contains("attempt"), "{why}");
            server.written();
            sleep(Duration::from_secs(600)).await;
            assert_eq!(server.unwritten(), Some(why));
            assert!(server.refusals() - refusals > 20, "it is tried again");
            let renewed = server.written().len();
            assert!((55..=70).contains(&renewed), "{renewed} renewals in 600 s");
        }
    }

    /// For a moment the Lease named a version of the restored backup, and the NodeState did not take back yet what the node lacked of it.
    #[tokio::test(start_paused = true)]
    async fn where_versions_go_down_a_lease_names_none_before_the_node_state_is_written() {
        let server = Server::default();
        let reporter = Reporter::start(&server.client(), &identity("a"));
        let tell = |claims_version, objects: &[Option<&str>]| {
            reporter.tell(LeaseReport { claims_version, ..LeaseReport::default() }, unheld(objects));
        };
        tell(700, &[Some("y")]);
        sleep(Duration::from_secs(5)).await;
        assert_eq!(server.written().last().unwrap(), "700");
        server.refuse_states(Some(StatusCode::INTERNAL_SERVER_ERROR));
        tell(20, &[Some("x")]);
        sleep(Duration::from_secs(5)).await;
        // Also once they are higher again than those of before.
        tell(800, &[Some("x")]);
        sleep(Duration::from_secs(25)).await;
        let meanwhile = server.written();
        assert!(meanwhile.len() >= 3 && meanwhile.iter().all(|said| said == "0"), "{meanwhile:?}");
        server.refuse_states(None);
        sleep(Duration::from_secs(20)).await;
        let after: Vec<_> = server.written().into_iter().skip_while(|said| said == "0").collect();
        assert_eq!(after[..2], ["without x", "800"], "{after:?}");
    }

    /// The controller said `Programmed` of what the node had just said, in the other object, that it does not hold.
    #[tokio::test(start_paused = true)]
    async fn a_lease_waits_for_the_node_state_and_is_renewed_meanwhile() {
        let server = Server::default();
        let reporter = Reporter::start(&server.client(), &identity("a"));
        let tell = |claims_version, objects: &[Option<&str>]| {
            reporter.tell(LeaseReport { claims_version, ..LeaseReport::default() }, unheld(objects));
        };
        let wait = |seconds| sleep(Duration::from_secs(seconds));
        tell(7, &[]);
        wait(5).await;
        let mut first = server.written();
        first.sort();
        assert_eq!(first, ["7", "without "]);
        server.refuse_states(Some(StatusCode::INTERNAL_SERVER_ERROR));
        tell(8, &[Some("x")]);
        // Not when a renewal and a retry are due at once.
        wait(61).await;
        let meanwhile = server.written();
        assert!(meanwhile.len() >= 5 && meanwhile.iter().all(|said| said == "7"), "{meanwhile:?}");
        server.refuse_states(None);
        wait(20).await;
        let after: Vec<_> = server.written().into_iter().skip_while(|said| said == "7").collect();
        assert_eq!(after[..2], ["without x", "8"], "{after:?}");
        tell(9, &[Some("x")]);
        wait(3).await;
        assert_eq!(server.written(), ["9"], "that is taken back already");
        tell(10, &[Some("x"), Some("y")]);
        wait(5).await;
        assert_eq!(server.written(), ["without x y", "10"]);
        // Without knowing whether that was written, it is not known what is taken back.
        server.refuse_states(Some(StatusCode::GATEWAY_TIMEOUT));
        tell(11, &[]);
        wait(4).await;
        assert_eq!(server.written(), ["11"]);
        tell(12, &[Some("x")]);
        wait(15).await;
        let meanwhile = server.written();
        assert!(!meanwhile.is_empty() && meanwhile.iter().all(|said| said == "11"), "{meanwhile:?}");
        server.refuse_states(None);
        wait(20).await;
        let after: Vec<_> = server.written().into_iter().skip_while(|said| said == "11").collect();
        assert_eq!(after[..2], ["without x", "12"], "{after:?}");
        // What was refused was not written.
        server.refuse_states(Some(StatusCode::FORBIDDEN));
        tell(13, &[]);
        wait(4).await;
        tell(14, &[Some("x")]);
        wait(4).await;
        assert_eq!(server.written().last().unwrap(), "14");
    }
}
