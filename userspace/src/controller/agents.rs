//! The agents: which of them are alive, and what their nodes hold.

use super::liveness::{AgentLease, Life, Liveness, SILENCE};
use super::reports::Announced;
use super::writes::short;
use crate::sources::kubernetes::api::claim::SETTLED;
use crate::sources::kubernetes::api::lease_name::{lease_name, node_of, said_node};
use crate::sources::kubernetes::api::lease_report::{LeaseReport, has_left};
use crate::sources::kubernetes::api::node_state::{HELD_BACK, NodeState, NodeStateSpec};
use crate::sources::kubernetes::{Named, Target, follow, follow_some};
use crate::status::{Complaint, Held, Nodes, Unknown};
use k8s_openapi::api::coordination::v1::Lease;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tracing::warn;

/// Label selector of the agents' Leases.
pub(super) const LABEL: &str = "app.kubernetes.io/component=agent";
/// Time limit of one request for the Leases.
const LOOK: Duration = Duration::from_secs(5);
/// After this time without a list of Leases or NodeStates, judging starts without them.
const PATIENCE: Duration = Duration::from_secs(15);

/// Why it is not known what a node holds.
const NOT_RENEWED: &str = "its agent has not renewed its Lease since this process began to look";

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
    /// Nodes whose agent has a Lease, and did not leave: others take over from a node only if it is one of those.
    members: BTreeSet<String>,
    states: BTreeMap<String, Reported>,
    is_listed: bool,
    /// What cannot be followed at present, and why: Leases, NodeStates.
    stale: [Option<String>; 2],
    since: Instant,
    news: mpsc::Receiver<News>,
    /// When Leases were last reported.
    latest: watch::Sender<Instant>,
    /// Aborts the watches when dropped.
    _watches: JoinSet<()>,
}

enum News {
    Leases(Named<AgentLease>),
    States(Named<Reported>),
}

impl From<Named<AgentLease>> for News {
    fn from(leases: Named<AgentLease>) -> Self {
        Self::Leases(leases)
    }
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
        let (latest, reported_at) = watch::channel(Instant::now());
        watches.spawn(follow_some::<Lease, _, _>(
            client.clone(),
            Target::all::<Lease>(Some(namespace)).labelled(LABEL),
            agent_lease,
            outbox.clone(),
        ));
        let leases = Api::namespaced(client.clone(), namespace);
        watches.spawn(list_leases_in_silence(leases, reported_at, outbox.clone()));
        watches.spawn(follow::<NodeState, _, _>(client.clone(), reported, outbox));
        Self {
            liveness: Liveness::default(),
            members: BTreeSet::new(),
            states: BTreeMap::new(),
            is_listed: false,
            stale: [None, None],
            since: Instant::now(),
            news,
            latest,
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
            News::Leases(leases) => self.take_leases(leases),
            News::States(states) => self.take_states(states),
        }
    }

    fn take_leases(&mut self, leases: Named<AgentLease>) -> bool {
        let now = Instant::now();
        let is_touched = match leases {
            Named::Listed(leases, _) => {
                let whose = |name: &str, lease: &AgentLease| node_of(name, lease.node.as_deref());
                let leases =
                    leases.into_iter().filter_map(|(name, lease)| Some((whose(&name, &lease)?, lease)));
                let leases: BTreeMap<String, AgentLease> = leases.collect();
                let stays = leases.iter().filter(|(_, lease)| !lease.has_left);
                let members = stays.map(|(node, _)| node.clone()).collect();
                let is_joined = std::mem::replace(&mut self.members, members) != self.members;
                self.liveness.listed(leases, now) | is_joined
            }
            Named::Put(name, lease) => {
                let Some(node) = node_of(&name, lease.node.as_deref()) else { return false };
                let is_other = match lease.has_left {
                    true => self.members.remove(&node),
                    false => !self.members.contains(&node) && self.members.insert(node.clone()),
                };
                self.liveness.put(node, lease, now) | is_other
            }
            Named::Gone(name) => {
                let known = self.liveness.node(|node| lease_name(node) == name);
                let Some(node) = known.or_else(|| node_of(&name, None)) else { return false };
                let is_left = self.members.remove(&node);
                self.liveness.gone(&node, now) | is_left
            }
            Named::Stale(why) => {
                self.stale[0] = Some(why);
                return false;
            }
            Named::Fresh => {
                self.stale[0] = None;
                return false;
            }
        };
        self.latest.send_replace(now);
        is_touched
    }

    fn take_states(&mut self, states: Named<Reported>) -> bool {
        match states {
            Named::Listed(states, _) => {
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
                self.stale[1] = Some(why);
                return false;
            }
            Named::Fresh => {
                self.stale[1] = None;
                return false;
            }
        }
        true
    }

    /// What cannot be followed at present, and why.
    pub(super) fn stale(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let all = ["leases", "nodestates"].into_iter().zip(&self.stale);
        all.filter_map(|(source, why)| Some((source, why.as_deref()?)))
    }

    /// Whether enough is known for a judgement.
    pub(super) fn is_known(&self) -> bool {
        self.since.elapsed() > PATIENCE || self.liveness.is_known() && self.is_listed
    }

    /// What the nodes with live agents hold.
    pub(super) fn nodes(&self) -> Nodes {
        let (are_unlisted, members) = (!self.liveness.is_known(), self.members.clone());
        let awaited = self.liveness.awaited(members.len());
        let silent = awaited.filter(|(node, lease)| members.contains(*node) && may_serve(lease));
        let silent = silent.map(|(node, _)| node.to_owned()).collect();
        Nodes { are_unlisted, members, silent, ..nodes(&self.liveness, &self.states) }
    }

    /// The reports of live agents, by node; of all agents while it is not known which of them are alive.
    pub(super) fn reports(&self) -> impl Iterator<Item = (&str, &Reported)> {
        let alive: BTreeSet<&str> = self.liveness.agents().map(|(node, ..)| node).collect();
        let are_unlisted = !self.liveness.is_known();
        let states = self.states.iter().map(|(node, state)| (node.as_str(), state));
        states.filter(move |(node, _)| are_unlisted || alive.contains(node))
    }

    /// What the nodes with live agents announce; `None`: not known, for not all of them may be listed, or one has just started, and did not
    /// look yet.
    pub(super) fn announced(&self) -> Option<Announced> {
        let is_starting =
            |lease: &AgentLease| lease.report.as_ref().is_some_and(|report| !report.saved.is_empty());
        let has_looked = !self.liveness.agents().any(|(_, _, lease)| is_starting(lease));
        (self.is_listed && self.liveness.is_known() && has_looked).then(|| {
            Announced::of(self.reports().map(|(node, state)| (node, &*state.uid, &*state.spec.announced)))
        })
    }

    /// Returns the next node, in the order of names, after this one, whose agent has been silent for this long but whose NodeState still
    /// exists: one that cannot be removed keeps no other.
    pub(super) fn gone(&self, silence: Duration, after: &str) -> Option<(&str, &Reported)> {
        let later = self.states.range::<str, _>((Bound::Excluded(after), Bound::Unbounded));
        let mut all = later.chain(self.states.range::<str, _>((Bound::Unbounded, Bound::Included(after))));
        let found = all.find(|(node, _)| self.liveness.is_silent_for(node, silence));
        found.map(|(node, state)| (node.as_str(), state))
    }
}

/// What the nodes with live agents hold.
pub(super) fn nodes(liveness: &Liveness, states: &BTreeMap<String, Reported>) -> Nodes {
    let mut nodes = Nodes::default();
    for (node, life, lease) in liveness.agents() {
        let unknown = match (life, &lease.report) {
            (Life::Alive, Some(report)) => {
                let complaints = states.get(node).map(|state| complaints(&state.spec)).unwrap_or_default();
                nodes.live.insert(node.to_owned(), held(report, complaints));
                continue;
            }
            (Life::Alive, None) => unread(lease.unread.as_deref()),
            _ => NOT_RENEWED.into(),
        };
        nodes.unknown.insert(node.to_owned(), unknown);
    }
    nodes
}

/// The same of what was read once; `is_alive`: whether a Lease has not ended.
pub(super) fn reported_nodes(
    leases: Vec<Lease>,
    states: Vec<NodeState>,
    is_alive: impl Fn(&Lease) -> bool,
) -> Nodes {
    let mut complaints_of: BTreeMap<String, Vec<Complaint>> =
        states.into_iter().map(|state| (state.name_any(), complaints(&state.spec))).collect();
    let mut nodes = Nodes::default();
    for lease in leases.into_iter().filter(is_alive) {
        let Some(node) = node_of(&lease.name_any(), said_node(&lease)) else { continue };
        let lease = agent_lease(lease);
        match lease.report {
            Some(report) => {
                let complaints = complaints_of.remove(&node).unwrap_or_default();
                nodes.live.insert(node, held(&report, complaints));
            }
            None => {
                let unknown = unread(lease.unread.as_deref());
                nodes.unknown.insert(node, unknown);
            }
        }
    }
    nodes
}

/// Of a node whose agent reports in this version, or in none, it is not known what it holds.
fn unread(version: Option<&str>) -> Unknown {
    let (_, own) = LeaseReport::version(&BTreeMap::new());
    let number = |version: &str| version.parse::<u32>().ok();
    let is_newer = version.is_some_and(|version| number(version) > number(own));
    let what = match version {
        Some(version) if version == own => "a report that cannot be read".to_owned(),
        // A Lease may say anything, in any length.
        Some(version) if number(version).is_none() => "a report whose version is no number".to_owned(),
        Some(version) => format!("a report of version {version:?}, where version {own} is known"),
        None => format!("no report, where version {own} is known"),
    };
    let remedy = match is_newer {
        true => "upgrade the controllers",
        false => "upgrade this agent, or take it from the node",
    };
    let why = format!(
        "its agent's Lease has {what}, and while it is renewed conditions stay as they are; {remedy}"
    );
    Unknown { why: why.into(), lasts: true }
}

fn held(report: &LeaseReport, mut complaints: Vec<Complaint>) -> Held {
    if !report.unwritten.is_empty() {
        let text = format!(
            "its NodeState cannot be written, so that its Lease does not say that it holds newer Claims: {}; see whether its agent may \
             create and update NodeStates, and which webhook or quota refuses it",
            report.unwritten
        );
        complaints.push(Complaint { holds_back: true, text, ..Complaint::default() });
    }
    let saved = Some(report.saved.clone()).filter(|saved| !saved.is_empty());
    if let Some(saved) = &saved {
        let text = format!(
            "it serves {saved}, for its agent has not read all Claims yet, and what is new or changed waits: see whether the agent may \
             list and watch Claims, and whether there is one with the name {SETTLED}"
        );
        complaints.insert(0, Complaint { holds_back: true, text, ..Complaint::default() });
    }
    Held { claims_version: report.claims_version, saved, complaints }
}

fn complaints(spec: &NodeStateSpec) -> Vec<Complaint> {
    let complaints = spec.problems.iter().map(|problem| {
        let place = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
        let mut text = format!("{place}{}", problem.message);
        if !problem.remedy.is_empty() {
            text.push_str(&format!("; {}", problem.remedy));
        }
        let holds_back = problem.object.is_none() && problem.remedy == HELD_BACK;
        Complaint { object: problem.object.clone(), missing: problem.missing, holds_back, text }
    });
    complaints.collect()
}

/// Lists Leases when none was reported for a while, as when no agent is alive: an answer proves that the API server is
/// reachable, which a silent watch does not show.
async fn list_leases_in_silence(
    api: Api<Lease>,
    reported_at: watch::Receiver<Instant>,
    outbox: mpsc::Sender<News>,
) {
    let params = ListParams::default().labels(LABEL);
    let mut trouble = None;
    loop {
        let due = *reported_at.borrow() + SILENCE;
        if Instant::now() < due {
            tokio::time::sleep_until(due.into()).await;
            continue;
        }
        let now = match tokio::time::timeout(LOOK, api.list(&params)).await {
            Ok(Ok(leases)) => {
                let leases = leases.items.into_iter().map(|lease| (lease.name_any(), agent_lease(lease)));
                if outbox.send(News::Leases(Named::Listed(leases.collect(), String::new()))).await.is_err() {
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
        tokio::time::sleep(LOOK).await;
    }
}

/// Whether a node whose Lease this is serves Claims, as far as it says.
fn may_serve(lease: &AgentLease) -> bool {
    lease.report.as_ref().is_none_or(|report| report.claims_version > 0 || !report.saved.is_empty())
}

fn agent_lease(lease: Lease) -> AgentLease {
    let node = said_node(&lease).map(str::to_owned);
    let spec = lease.spec.unwrap_or_default();
    let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
    let holder = spec.holder_identity.unwrap_or_default();
    let annotations = lease.metadata.annotations.as_ref();
    let report = annotations.and_then(LeaseReport::read);
    let version = annotations.and_then(|annotations| LeaseReport::version(annotations).0);
    AgentLease {
        node,
        has_left: annotations.is_some_and(|annotations| has_left(annotations, &holder)),
        holder,
        renewed: spec.renew_time.map(|time| time.0.to_string()).unwrap_or_default(),
        duration: Duration::from_secs(seconds.unwrap_or_default()),
        unread: version.filter(|_| report.is_none()).map(Arc::from),
        report,
    }
}

fn reported(state: NodeState) -> Reported {
    let (uid, version) = (state.uid().unwrap_or_default(), state.resource_version().unwrap_or_default());
    Reported { spec: state.spec, uid, version }
}

#[cfg(test)]
mod tests {
    use super::super::liveness::SILENT_MAX;
    use super::*;
    use crate::sources::kubernetes::api::lease_name::name_lease;
    use crate::sources::kubernetes::api::lease_report::leave;
    use crate::sources::kubernetes::api::node_state::NodeProblem;
    use k8s_openapi::api::coordination::v1::LeaseSpec;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::{MicroTime, ObjectMeta};
    use k8s_openapi::jiff::Timestamp;

    const PREFIX: &str = "vestibule-agent-";

    /// Of agents whose Leases cannot be listed, for this long by now.
    fn agents(for_now: Duration) -> Agents {
        let (latest, _) = watch::channel(Instant::now());
        let spec = NodeStateSpec { failing: vec!["10.0.0.1:6443".to_owned()], ..NodeStateSpec::default() };
        let state = Reported { spec, uid: "u".to_owned(), version: "1".to_owned() };
        Agents {
            liveness: Liveness::default(),
            members: BTreeSet::new(),
            states: BTreeMap::from([("n1".to_owned(), state)]),
            is_listed: true,
            stale: [None, None],
            since: Instant::now().checked_sub(for_now).unwrap(),
            news: mpsc::channel(1).1,
            latest,
            _watches: JoinSet::new(),
        }
    }

    /// A finalizer or a webhook may keep one for ever.
    #[test]
    fn nodes_that_are_gone_are_removed_in_turn() {
        let mut this = agents(Duration::ZERO);
        let state = this.states["n1"].clone();
        this.states.extend(["n2", "n3"].map(|node| (node.to_owned(), state.clone())));
        let silence = Duration::from_secs(10);
        let begun = Instant::now();
        this.liveness.listed(BTreeMap::new(), begun);
        assert!(this.gone(silence, "").is_none(), "they were not looked for as long");
        this.liveness.listed(BTreeMap::new(), begun + silence);
        let mut asked = vec![String::new()];
        for _ in 0..4 {
            let node = this.gone(silence, &asked[asked.len() - 1]).unwrap().0.to_owned();
            asked.push(node);
        }
        assert_eq!(asked[1..], ["n1", "n2", "n3", "n1"]);
        this.states.retain(|node, _| node == "n2");
        assert_eq!(this.gone(silence, "n2").unwrap().0, "n2");
        let alive = AgentLease { holder: "x".to_owned(), ..AgentLease::default() };
        this.liveness.put("n2".to_owned(), alive, begun + silence);
        assert!(this.gone(silence, "").is_none());
    }

    #[test]
    fn an_agent_whose_report_is_of_another_version_is_named_with_it_and_what_to_do() {
        let mut this = agents(Duration::ZERO);
        let lease = |version: Option<&str>, renewed: i64| {
            let mut annotations = BTreeMap::new();
            LeaseReport { claims_version: 7, ..LeaseReport::default() }.write(&mut annotations);
            let (key, own) = annotations.iter().find(|(key, _)| key.ends_with("/report-version")).unwrap();
            let (key, own) = (key.clone(), own.clone());
            annotations.remove(&key);
            annotations.extend(version.map(|version| (key, version.replace("own", &own))));
            if version == Some("own") {
                annotations.retain(|key, _| !key.ends_with("/claims-version"));
            }
            let renew_time = Some(MicroTime(Timestamp::from_second(renewed).unwrap()));
            let (holder_identity, lease_duration_seconds) = (Some("x".to_owned()), Some(40));
            let spec =
                LeaseSpec { holder_identity, renew_time, lease_duration_seconds, ..LeaseSpec::default() };
            Lease {
                metadata: ObjectMeta {
                    name: Some(format!("{PREFIX}a")),
                    annotations: Some(annotations),
                    ..ObjectMeta::default()
                },
                spec: Some(spec),
            }
        };
        this.take_leases(Named::Listed(BTreeMap::new(), String::new()));
        let table = [
            (
                Some("1"),
                "has a report of version \"1\", where version 2 is known, ",
                "; upgrade this agent, or",
            ),
            (
                Some("3"),
                "has a report of version \"3\", where version 2 is known, ",
                "; upgrade the controllers",
            ),
            (Some("?"), "has a report whose version is no number, ", "; upgrade this agent, or"),
            (None, "has no report, where version 2 is known, ", "; upgrade this agent, or"),
            (Some("own"), "has a report that cannot be read, ", "; upgrade this agent, or"),
        ];
        for (renewed, (version, what, remedy)) in (1..).zip(table) {
            let name = format!("{PREFIX}a");
            let is_news =
                this.take_leases(Named::Put(name.clone(), agent_lease(lease(version, 2 * renewed))));
            assert!(is_news, "{version:?}");
            this.take_leases(Named::Put(name, agent_lease(lease(version, 2 * renewed + 1))));
            let nodes = this.nodes();
            let Unknown { why, lasts } = &nodes.unknown["a"];
            assert!(why.contains(what) && why.contains(remedy) && *lasts, "{why}");
            let read_once = reported_nodes(vec![lease(version, 1)], Vec::new(), |_| true);
            assert_eq!(read_once.unknown["a"].why, *why);
        }
    }

    /// A node is to be taken over from when it is silent, and not because the API server or the agent is away.
    #[test]
    fn a_node_is_a_member_from_its_lease_on_until_that_is_deleted_and_not_until_it_ends() {
        let mut this = agents(Duration::ZERO);
        let lease = |holder: &str| AgentLease { holder: holder.to_owned(), ..AgentLease::default() };
        let name = |node: &str| format!("{PREFIX}{node}");
        let members = |this: &Agents| this.nodes().members.into_iter().collect::<Vec<_>>();
        let all = BTreeMap::from([(name("a"), lease("x")), ("other".to_owned(), lease("y"))]);
        assert!(this.take_leases(Named::Listed(all, String::new())));
        assert_eq!(members(&this), ["a"]);
        assert!(this.take_leases(Named::Put(name("b"), lease(""))), "its agent has released it");
        assert_eq!(members(&this), ["a", "b"]);
        // They end.
        for _ in 0..20 {
            let begun = Instant::now() + Duration::from_secs(600);
            this.liveness.put("c".to_owned(), lease("z"), begun);
        }
        this.take_leases(Named::Put(name("a"), lease("")));
        assert_eq!(members(&this), ["a", "b"]);
        assert!(this.nodes().live.is_empty());
        assert!(this.take_leases(Named::Gone(name("a"))), "it is news though its agent is dead");
        assert_eq!(members(&this), ["b"]);
        assert!(this.take_leases(Named::Listed(BTreeMap::new(), String::new())));
        assert_eq!(members(&this), [""; 0]);
    }

    /// The prefix and such a name are longer than a name may be.
    #[test]
    fn a_node_with_a_long_name_is_known_by_its_lease() {
        let mut this = agents(Duration::ZERO);
        let node = "n".repeat(250);
        let mut lease = Lease::default();
        name_lease(&mut lease, &node);
        let members = |this: &Agents| this.nodes().members.into_iter().collect::<Vec<_>>();
        this.take_leases(Named::Listed(BTreeMap::new(), String::new()));
        let name = lease.name_any();
        this.take_leases(Named::Put(name.clone(), agent_lease(lease.clone())));
        assert_eq!(members(&this), [&*node]);
        assert!(this.take_leases(Named::Gone(name.clone())));
        assert_eq!(members(&this), [""; 0]);
        let all = BTreeMap::from([(name, agent_lease(lease.clone()))]);
        this.take_leases(Named::Listed(all, String::new()));
        assert_eq!(members(&this), [&*node]);
        assert!(reported_nodes(vec![lease], Vec::new(), |_| true).unknown.contains_key(&node));
    }

    /// One broken node kept what all others wait for from being written, for as long as its Node was there.
    #[test]
    fn a_node_whose_agent_is_dead_may_serve_for_a_while_what_its_lease_said_last() {
        let lease = |report: Option<LeaseReport>| AgentLease { report, ..AgentLease::default() };
        let report = |claims_version, saved: &str| {
            Some(LeaseReport { claims_version, saved: saved.to_owned(), ..LeaseReport::default() })
        };
        for (said, may_hold) in [
            (report(7, ""), true),
            (report(0, "a saved state"), true),
            (report(0, ""), false),
            // Of a former release, or it cannot be read.
            (None, true),
        ] {
            let mut this = agents(Duration::ZERO);
            let all = BTreeMap::from([(format!("{PREFIX}a"), lease(said.clone()))]);
            this.take_leases(Named::Listed(all, String::new()));
            assert_eq!(this.nodes().may_hold().is_some(), may_hold, "{said:?}");
            // Reports of others pass the time.
            let begun = Instant::now();
            for seconds in (0..SILENT_MAX.as_secs() + 60).step_by(10) {
                let (renewed, holder) = (seconds.to_string(), "agent".to_owned());
                let alive = AgentLease { renewed, holder, ..lease(report(0, "")) };
                this.liveness.put("b".to_owned(), alive, begun + Duration::from_secs(seconds));
            }
            assert_eq!(this.nodes().may_hold(), None, "{said:?}");
            assert!(this.nodes().members.contains("a"), "it is to be taken over from all the same");
        }
        // What ails most agents will be over, and their nodes serve meanwhile.
        let mut this = agents(Duration::ZERO);
        let all = ["a", "c"].map(|node| (format!("{PREFIX}{node}"), lease(report(7, ""))));
        this.take_leases(Named::Listed(all.into(), String::new()));
        let begun = Instant::now();
        for seconds in (0..2 * SILENT_MAX.as_secs()).step_by(10) {
            let (renewed, holder) = (seconds.to_string(), "agent".to_owned());
            let alive = AgentLease { renewed, holder, ..lease(report(0, "")) };
            this.take_leases(Named::Put(format!("{PREFIX}b"), alive.clone()));
            this.liveness.put("b".to_owned(), alive, begun + Duration::from_secs(seconds));
        }
        assert_eq!(this.nodes().members.len(), 3);
        assert!(this.nodes().may_hold().is_some(), "two of three are silent");
        // One that left is waited for by nobody.
        let mut this = agents(Duration::ZERO);
        let left = AgentLease { has_left: true, ..lease(report(7, "")) };
        this.take_leases(Named::Listed(BTreeMap::from([(format!("{PREFIX}a"), left)]), String::new()));
        assert_eq!(this.nodes().may_hold(), None);
    }

    /// "Not programmed" meant both.
    #[test]
    fn a_node_that_serves_what_it_saved_is_no_node_that_serves_nothing() {
        let report = LeaseReport { saved: "a saved state of 2026".to_owned(), ..LeaseReport::default() };
        let Held { claims_version, saved, complaints } = held(&report, vec![Complaint::default()]);
        assert_eq!((claims_version, saved.as_deref()), (0, Some("a saved state of 2026")));
        assert!(complaints[0].text.starts_with("it serves a saved state of 2026, for "), "{complaints:?}");
        assert!(complaints[0].holds_back && !complaints[0].missing);
        assert_eq!(held(&LeaseReport::default(), Vec::new()).saved, None);
    }

    /// It was a member for ever, from which others thought they had to take over.
    #[test]
    fn a_node_that_its_daemon_set_left_is_no_member_until_another_agent_is_there() {
        let mut this = agents(Duration::ZERO);
        let name = format!("{PREFIX}a");
        let lease = |holder: &str, left: &str| {
            let mut annotations = BTreeMap::new();
            leave(&mut annotations, left);
            let spec = LeaseSpec { holder_identity: Some(holder.to_owned()), ..LeaseSpec::default() };
            let metadata = ObjectMeta { annotations: Some(annotations), ..ObjectMeta::default() };
            agent_lease(Lease { metadata, spec: Some(spec) })
        };
        let members = |this: &Agents| this.nodes().members.into_iter().collect::<Vec<_>>();
        assert!(this.take_leases(Named::Listed(BTreeMap::new(), String::new())));
        let mut tell = |holder: &str, left: &str| {
            this.take_leases(Named::Put(name.clone(), lease(holder, left)));
            members(&this)
        };
        assert_eq!(tell("x", ""), ["a"]);
        assert_eq!(tell("x", "x"), [""; 0]);
        // The node is selected again.
        assert_eq!(tell("y", "x"), ["a"]);
        assert_eq!(tell("y", "y"), [""; 0]);
        let listed =
            |holder: &str| Named::Listed(BTreeMap::from([(name.clone(), lease(holder, "y"))]), String::new());
        this.take_leases(listed("y"));
        assert_eq!(members(&this), [""; 0]);
        this.take_leases(listed("z"));
        assert_eq!(members(&this), ["a"]);
    }

    #[test]
    fn a_node_whose_state_cannot_be_written_says_why_and_a_problem_without_remedy_ends_without_one() {
        let problem = |remedy: &str| NodeProblem {
            message: "it is gone".to_owned(),
            remedy: remedy.to_owned(),
            ..NodeProblem::default()
        };
        let spec = NodeStateSpec { problems: vec![problem(""), problem("look")], ..NodeStateSpec::default() };
        let report = LeaseReport { unwritten: "403 Forbidden".to_owned(), ..LeaseReport::default() };
        let held = held(&report, complaints(&spec));
        assert_eq!(held.complaints.iter().filter(|complaint| complaint.holds_back).count(), 1);
        let trouble =
            NodeProblem { message: "no room".into(), remedy: HELD_BACK.into(), ..NodeProblem::default() };
        let of = |problem| NodeStateSpec { problems: vec![problem], ..NodeStateSpec::default() };
        assert!(complaints(&of(trouble.clone()))[0].holds_back);
        let of_object = NodeProblem { object: Some("Gateway/ns/gw".into()), ..trouble };
        assert!(!complaints(&of(of_object))[0].holds_back);
        let texts: Vec<&str> = held.complaints.iter().map(|complaint| complaint.text.as_str()).collect();
        assert_eq!(texts[..2], ["it is gone", "it is gone; look"]);
        assert!(
            texts[2].contains("cannot be written") && texts[2].contains(": 403 Forbidden; "),
            "{texts:?}"
        );
    }

    #[test]
    fn leases_that_cannot_be_listed_are_waited_for_as_long_as_other_kinds_and_say_nothing() {
        assert!(!agents(PATIENCE / 2).is_known());
        let mut this = agents(2 * PATIENCE);
        assert!(this.is_known());
        let nodes = this.nodes();
        assert!(nodes.are_unlisted && nodes.live.is_empty());
        let object = crate::model::ObjectRef {
            kind: crate::model::Kind::Gateway,
            name: crate::model::ObjectName::new("ns", "g"),
        };
        assert_eq!(nodes.counted().progress(&object, 1), crate::status::Progress::Unknown);
        // What they reported of backends is all that is known.
        assert_eq!(this.reports().map(|(node, _)| node).collect::<Vec<_>>(), ["n1"]);
        this.take_leases(Named::Listed(BTreeMap::new(), String::new()));
        assert!(!this.nodes().are_unlisted && this.reports().next().is_none());
    }
}
