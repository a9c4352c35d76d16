//! The agents: which of them are alive, and what their nodes hold.

use super::liveness::{AgentLease, Liveness, PERIOD};
use super::writes::short;
use crate::sources::kubernetes::api::node_state::{NodeState, NodeStateSpec};
use crate::status::{Complaint, Held, Nodes};
use futures_util::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::runtime::{WatchStreamExt, watcher};
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
/// Maximum duration of a watch, in seconds; it is then restarted, so that a silent one does not last.
const WATCH_SECS: u32 = 45;

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
    since: Instant,
    news: mpsc::Receiver<News>,
    /// Aborts the watches when dropped.
    _watches: JoinSet<()>,
}

enum News {
    Leases(Vec<AgentLease>, Instant),
    Listed(BTreeMap<String, Reported>),
    Put(String, Reported),
    Gone(String),
}

impl Agents {
    /// Starts the watches. Needs a tokio runtime.
    pub(super) fn start(client: &Client, namespace: &str) -> Self {
        let (outbox, news) = mpsc::channel(256);
        let mut watches = JoinSet::new();
        watches.spawn(look_at_leases(Api::namespaced(client.clone(), namespace), outbox.clone()));
        watches.spawn(watch_states(Api::all(client.clone()), outbox));
        Self {
            liveness: Liveness::default(),
            states: BTreeMap::new(),
            is_listed: false,
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
        match news {
            News::Leases(leases, at) => return self.liveness.looked(leases, at),
            News::Listed(states) => {
                self.states = states;
                self.is_listed = true;
            }
            News::Put(node, state) => {
                self.states.insert(node, state);
            }
            News::Gone(node) => {
                self.states.remove(&node);
            }
        }
        true
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

async fn watch_states(api: Api<NodeState>, outbox: mpsc::Sender<News>) {
    let config = watcher::Config::default().timeout(WATCH_SECS);
    let mut events = std::pin::pin!(watcher(api, config).default_backoff());
    let (mut next, mut trouble) = (BTreeMap::new(), None);
    while let Some(event) = events.next().await {
        let is_good = event.is_ok();
        let news = match event {
            Ok(watcher::Event::Init) => {
                next = BTreeMap::new();
                None
            }
            Ok(watcher::Event::InitApply(state)) => {
                next.insert(state.name_any(), reported(state));
                None
            }
            Ok(watcher::Event::InitDone) => Some(News::Listed(std::mem::take(&mut next))),
            Ok(watcher::Event::Apply(state)) => Some(News::Put(state.name_any(), reported(state))),
            Ok(watcher::Event::Delete(state)) => Some(News::Gone(state.name_any())),
            Err(error) => {
                let error = watching(&error);
                if trouble.as_ref() != Some(&error) {
                    warn!("NodeStates cannot be watched: {error}");
                }
                trouble = Some(error);
                None
            }
        };
        if is_good {
            trouble = None;
        }
        if let Some(news) = news
            && outbox.send(news).await.is_err()
        {
            return;
        }
    }
}

/// Returns an error of a watch as one line.
pub(super) fn watching(error: &watcher::Error) -> String {
    match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => short(error),
        watcher::Error::WatchError(status) => {
            format!("{} {}: {}", status.code, status.reason, status.message)
        }
        other => other.to_string(),
    }
}

fn reported(state: NodeState) -> Reported {
    let (uid, version) = (state.uid().unwrap_or_default(), state.resource_version().unwrap_or_default());
    Reported { spec: state.spec, uid, version }
}
