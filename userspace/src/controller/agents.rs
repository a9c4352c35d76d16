//! The agents: which of them are alive, and what their nodes hold.

use super::liveness::{AgentLease, Liveness, PERIOD};
use super::writes::short;
use crate::sources::kubernetes::api::node_state::{NodeState, NodeStateSpec};
use crate::sources::kubernetes::{Named, follow};
use crate::status::{Complaint, Held, Nodes};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::warn;

/// Label selector of the agents' Leases.
const LABEL: &str = "app.kubernetes.io/component=agent";
/// Prefix of these Leases' names; the node's name follows.
const PREFIX: &str = "vestibule-agent-";
/// Time limit of one request for the Leases.
const LOOK: Duration = Duration::from_secs(5);
/// After this time without a list of NodeStates, judging starts without them.
const PATIENCE: Duration = Duration::from_secs(15);

/// What an agent reports about its node.
#[derive(Clone, Debug)]
pub(super) struct Reported {
    pub(super) spec: NodeStateSpec,
    pub(super) uid: String,
    pub(super) version: String,
}

/// Everything known about the agents.
pub(super) struct Agents {
    liveness: Liveness,
    states: BTreeMap<String, Reported>,
    is_listed: bool,
    /// Why NodeStates cannot be followed at present.
    stale: Option<String>,
    since: Instant,
    news: mpsc::Receiver<News>,
    /// Aborts the watches when dropped.
    _watches: JoinSet<()>,
}

enum News {
    Leases(Vec<AgentLease>, Instant),
    States(Named<Reported>),
}

impl From<Named<Reported>> for News {
    fn from(states: Named<Reported>) -> Self {
        Self::States(states)
    }
}

impl Agents {
    /// Starts the watches. Needs a tokio runtime.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let (outbox, news) = mpsc::channel(256);
        let mut watches = JoinSet::new();
        watches.spawn(look_at_leases(Api::namespaced(client.clone(), namespace), outbox.clone()));
        watches.spawn(follow::<NodeState, _, _>(client.clone(), reported, outbox));
        Self {
            liveness: Liveness::default(),
            states: BTreeMap::new(),
            is_listed: false,
            stale: None,
            since: Instant::now(),
            news,
            _watches: watches,
        }
    }

    /// Returns when the set of live agents changed, or an agent reported something. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        loop {
            let Some(news) = self.news.recv().await else { return std::future::pending().await };
            let mut is_touched = self.take(news);
            while let Ok(news) = self.news.try_recv() {
                is_touched |= self.take(news);
            }
            if is_touched {
                return;
            }
        }
    }

    fn take(&mut self, news: News) -> bool {
        let states = match news {
            News::Leases(leases, at) => return self.liveness.looked(leases, at),
            News::States(states) => states,
        };
        match states {
            Named::Listed(states) => {
                self.states = states;
                self.is_listed = true;
            }
            Named::Put(node, state) => {
                self.states.insert(node, state);
            }
            Named::Gone(node) => {
                self.states.remove(&node);
            }
            Named::Stale(why) => {
                self.stale = Some(why);
                return false;
            }
            Named::Fresh => {
                self.stale = None;
                return false;
            }
        }
        true
    }

    /// Why NodeStates cannot be followed at present.
    pub(super) fn stale(&self) -> Option<&str> {
        self.stale.as_deref()
    }

    /// Whether enough is known for a judgement.
    pub(super) fn is_known(&self) -> bool {
        self.liveness.is_known() && (self.is_listed || self.since.elapsed() > PATIENCE)
    }

    /// What the nodes with live agents hold.
    pub(super) fn nodes(&self) -> Nodes {
        let held = |node: &str| (node.to_owned(), self.states.get(node).map(|state| held(&state.spec)));
        Nodes { live: self.liveness.live().map(held).collect() }
    }

    /// The reports of live agents, by node.
    pub(super) fn reports(&self) -> impl Iterator<Item = (&str, &Reported)> {
        self.liveness.live().filter_map(|node| Some((node, self.states.get(node)?)))
    }

    /// Returns a node whose agent has been silent for this long but whose NodeState still exists.
    pub(super) fn gone(&self, silence: Duration) -> Option<(&str, &Reported)> {
        let is_gone = |node: &str| self.liveness.is_silent_for(node, silence);
        self.states.iter().find(|(node, _)| is_gone(node)).map(|(node, state)| (node.as_str(), state))
    }
}

fn held(spec: &NodeStateSpec) -> Held {
    let complaints = spec.problems.iter().map(|problem| {
        let place = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
        let text = format!("{place}{}; {}", problem.message, problem.remedy);
        Complaint { object: problem.object.clone(), text }
    });
    Held {
        claims_version: spec.claims_version.try_into().unwrap_or_default(),
        complaints: complaints.collect(),
    }
}

/// Polls instead of watching: Leases change all the time, and an answer also proves that the API server is
/// reachable, which a silent watch does not show.
async fn look_at_leases(api: Api<Lease>, outbox: mpsc::Sender<News>) {
    let params = ListParams::default().labels(LABEL);
    let mut trouble = None;
    loop {
        let begun = Instant::now();
        let now = match tokio::time::timeout(LOOK, api.list(&params)).await {
            Ok(Ok(leases)) => {
                let leases = leases.items.iter().filter_map(agent_lease).collect();
                if outbox.send(News::Leases(leases, Instant::now())).await.is_err() {
                    return;
                }
                None
            }
            Ok(Err(error)) => Some(short(&error)),
            Err(_) => Some("the API server does not answer".to_owned()),
        };
        if let Some(now) = now.as_ref().filter(|now| Some(*now) != trouble.as_ref()) {
            warn!("Leases of agents cannot be read: {now}");
        }
        trouble = now;
        tokio::time::sleep(PERIOD.saturating_sub(begun.elapsed())).await;
    }
}

fn agent_lease(lease: &Lease) -> Option<AgentLease> {
    let node = lease.metadata.name.as_deref()?.strip_prefix(PREFIX)?.to_owned();
    let spec = lease.spec.clone().unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    Some(AgentLease {
        node,
        holder: spec.holder_identity.unwrap_or_default(),
        renewed: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
    })
}

fn reported(state: NodeState) -> Reported {
    let (uid, version) = (state.uid().unwrap_or_default(), state.resource_version().unwrap_or_default());
    Reported { spec: state.spec, uid, version }
}
