//! What this node reports to the API server, to probes and to scrapers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use kube::Client;
use tokio::net::UnixListener;
use tokio::task::JoinSet;
use tracing::warn;

use super::facts::Sources;
use super::identity::Identity;
use super::orders::{Orders, Outcome};
use super::report::Reporter;
use super::state::{Saying, State, by_kind};
use super::told::{Told, View};
use crate::admin;
use crate::http_server::{self, Access};
use crate::metrics::{AgentMetrics, observe, set_all};
use crate::model::{ObjectRef, Problem};
use crate::outputs::Done;
use crate::outputs::l2::Asker;
use crate::plan::Part;
use crate::sources::kubernetes::Stale;
use crate::sources::kubernetes::api::lease_report::LeaseReport;
use crate::sources::kubernetes::api::node_state::{HELD_BACK, NodeStateSpec};

/// The most exceptions that `/readyz` lists.
const EXCEPTIONS_MAX: usize = 20;

/// What is stale where the NodeState cannot be written: what others know of this node.
pub(crate) const NODE_STATE: &str = "nodestate";

/// Why a node serves what it saved.
const UNREAD: &str = "all Claims have not been read yet, and what is new or changed waits";

/// Reports to the API server, probes and scrapers.
pub(super) struct Telemetry {
    told: Arc<Told>,
    metrics: AgentMetrics,
    /// The labels that gauges had, to remove those that are gone.
    gauges: Gauges,
    /// The API server's client, and the identity for the reports.
    api: Option<(Client, Identity)>,
    /// Reports to the API server. Starts with the first complete state, or once a saved one is served.
    reporter: Option<Reporter>,
    /// The port of `/metrics` (0: none), for whom it is, and the task that serves it or waits until it is free.
    port: (u16, Access, JoinSet<()>),
    /// The tasks that answer probes.
    tasks: JoinSet<()>,
}

#[derive(Default)]
struct Gauges {
    stale: Vec<String>,
    failing: Vec<String>,
    problems: Vec<String>,
}

/// All that can be reported.
#[derive(Clone, Copy)]
pub(super) struct Known<'a> {
    pub sources: &'a Sources,
    pub state: Option<&'a State>,
    pub orders: &'a Orders,
    /// What the maps hold, which nobody writes; `None`: this process does.
    pub kept: Option<&'a str>,
}

impl<'a> Known<'a> {
    /// Returns what the node serves though no Claims are known.
    fn saved(&self) -> Option<&'a str> {
        self.kept.or_else(|| self.state?.saved.as_deref())
    }
}

impl Telemetry {
    /// Reports only on request, by `told`.
    pub(super) fn new(told: Told, metrics: AgentMetrics) -> Self {
        Self {
            told: Arc::new(told),
            metrics,
            gauges: Gauges::default(),
            api: None,
            reporter: None,
            port: (0, Access::default(), JoinSet::new()),
            tasks: JoinSet::new(),
        }
    }

    /// Reports to the API server while it writes the maps.
    pub(super) fn tell_api(&mut self, client: &Client, identity: &Identity) {
        self.api = Some((client.clone(), identity.clone()));
    }

    /// Serves `/metrics` on this port, as soon as it is free; 0: not at all. A process that waits for the maps serves it,
    /// too, if no other process of the node does: what nobody serves can raise no alert.
    pub(super) fn serve_port(&mut self, port: u16, access: Access) {
        (self.port.0, self.port.1) = (port, access);
        self.serve();
    }

    fn serve(&mut self) {
        let (port, access, tasks) = &mut self.port;
        if *port != 0 && tasks.is_empty() {
            tasks.spawn(http_server::serve(
                *port,
                access.clone(),
                self.metrics.refused_scrapes.clone(),
                admin::router(Arc::clone(&self.told) as _),
            ));
        }
    }

    /// Answers probes on this socket.
    pub(super) fn answer(&mut self, socket: UnixListener) {
        let asked = Arc::clone(&self.told);
        self.tasks.spawn(async move {
            if let Err(error) = admin::serve_socket(socket, asked).await {
                warn!(%error, "probes are not answered");
            }
        });
    }

    /// Answers who announces what by asking the thread that announces.
    pub(super) fn show_vips(&self, asker: Asker) {
        self.told.show_vips(asker);
    }

    /// What answers probes for the loop.
    #[cfg(test)]
    pub(super) fn told(&self) -> Arc<Told> {
        Arc::clone(&self.told)
    }

    /// Notes that the loop is alive.
    pub(super) fn turned(&self) {
        self.view(|view| view.turned = Instant::now());
    }

    /// Changes the answers to probes.
    pub(super) fn view(&self, change: impl FnOnce(&mut View)) {
        self.told.update(change);
    }

    /// Measures the time of a compilation.
    pub(super) fn compiled(&self, begun: Instant) {
        observe(&self.metrics.compile_seconds, begun.elapsed());
    }

    /// Counts what the outputs did for an order.
    pub(super) fn applied(&self, outcome: &Outcome) {
        let Ok(Done { changes, writes, .. }) = &outcome.result else { return };
        if *changes > 0 {
            observe(&self.metrics.apply_seconds, outcome.ordered.elapsed());
        }
        for (map, writes) in writes {
            self.metrics.map_writes.get_or_create(&[("map", (*map).to_owned())]).inc_by(*writes);
        }
    }

    /// Counts what an output put back that other programs had taken away.
    pub(super) fn repaired(&self, count: usize) {
        self.metrics.repaired.inc_by(count as u64);
    }

    /// Reports to probes and metrics that the NodeState cannot be written, or can again, which brings no turn.
    pub(super) fn note_unwritten(&mut self, sources: &Sources) {
        let is_unwritten = self.reporter.as_ref().and_then(Reporter::unwritten).is_some();
        let label = [("source", NODE_STATE.to_owned())];
        let was_unwritten = self.gauges.stale.iter().any(|source| source == NODE_STATE)
            && self.metrics.stale.get_or_create_owned(&label).get() != 0;
        if is_unwritten != was_unwritten {
            self.note_sources(sources);
        }
    }

    /// Reports to probes and metrics which sources cannot be followed.
    pub(super) fn note_sources(&mut self, sources: &Sources) {
        let mut stale = sources.stale();
        let unwritten = self.reporter.as_ref().and_then(Reporter::unwritten);
        stale.extend(unwritten.map(|(since, why)| Stale { source: NODE_STATE, since, why }));
        for stale in &stale {
            if !self.gauges.stale.iter().any(|source| source == stale.source) {
                self.gauges.stale.push(stale.source.to_owned());
            }
        }
        for source in &self.gauges.stale {
            let label = [("source", source.clone())];
            let is_stale = stale.iter().any(|stale| stale.source == source);
            let before = self.metrics.stale.get_or_create_owned(&label).set(i64::from(is_stale));
            if is_stale && before == 0 {
                self.metrics.watch_errors.get_or_create(&[("source", source.clone())]).inc();
            }
        }
        let is_synced = sources.is_complete();
        self.view(|view| {
            view.stale = lines(&stale);
            view.is_synced |= is_synced;
        });
    }

    /// Starts to report as the writer.
    pub(super) fn begin(&mut self) {
        self.metrics.writer.set(1);
        self.view(|view| view.could_write = true);
        self.serve();
    }

    /// Stops to report as the writer: sends nothing to the API server after this, and leaves the port to the next one.
    pub(super) async fn end(&mut self) {
        if let Some(reporter) = self.reporter.take() {
            reporter.stop().await;
        }
        self.port.2.shutdown().await;
        self.metrics.writer.set(0);
    }

    /// Updates the metric of failing backends. Also for a process that does not write.
    pub(super) fn note_failing(&mut self, known: Known<'_>) {
        let is_none = known.sources.failing().is_none_or(|failing| failing.is_empty());
        if let Some(state) = known.state {
            self.metrics.own.note(state.desired.routes.len());
        }
        let state = known.state.filter(|_| !is_none);
        let failing = self.metrics.own.some(state.map(State::failing_by_route).unwrap_or_default());
        set_all(&self.metrics.failing, "route", &failing, &mut self.gauges.failing);
    }

    /// Reports the state in effect. For the writer only.
    pub(super) fn tell(&mut self, known: Known<'_>) {
        let Known { sources, orders, .. } = known;
        if let Some(in_force) = orders.in_force() {
            self.metrics.served.set(&in_force.desired);
        }
        set_all(&self.metrics.problems, "kind", &counts(known), &mut self.gauges.problems);
        let unheld = orders.exceptions().map(|exception| &exception.problem).chain(left_out(orders));
        let unread = sources.unread().map(|(_, problem)| problem);
        let unheld: Vec<String> = unheld.chain(unread).take(EXCEPTIONS_MAX).map(line).collect();
        self.view(|view| {
            view.trouble = orders.trouble().cloned();
            view.exceptions = unheld;
        });
        self.tell_cluster(known);
    }

    fn tell_cluster(&mut self, known: Known<'_>) {
        self.view(|view| view.saved = known.saved().map(str::to_owned));
        let Some((client, identity)) = &self.api else { return };
        if !known.sources.is_complete() && self.reporter.is_none() && known.saved().is_none() {
            return;
        }
        let Some((report, said)) = report(known, identity) else { return };
        self.reporter.get_or_insert_with(|| Reporter::start(client, identity)).tell(report, said);
    }

    /// Reports that maps serve on which nobody writes, and what they hold; `None`: another process writes them, and reports.
    pub(super) fn tell_kept(&mut self, sources: &Sources, orders: &Orders, kept: Option<&str>) {
        if kept.is_none() {
            self.reporter = None;
            self.view(|view| view.saved = None);
            return;
        }
        self.tell_cluster(Known { sources, state: None, orders, kept });
    }
}

/// Returns the number of problems by kind of object.
pub(super) fn counts(known: Known<'_>) -> BTreeMap<String, i64> {
    let Known { sources, state, orders, .. } = known;
    let failed = failed(orders);
    let unheld = orders.exceptions().map(|exception| &exception.problem);
    let taken = left_out(orders).filter(|problem| !lacks_room(problem));
    let of_node = sources.problems().chain(orders.problems()).chain(&failed).chain(unheld).chain(taken);
    by_kind(of_node.chain(state.into_iter().flat_map(|state| &state.problems)))
}

/// Returns what is reported of the state in effect to the API server; `None`: there is no cluster.
pub(super) fn report(known: Known<'_>, identity: &Identity) -> Option<(LeaseReport, NodeStateSpec)> {
    let Known { sources, state, orders, .. } = known;
    let failing = sources.failing()?;
    let failed = failed(orders);
    let saved =
        known.saved().map(|saved| Problem::error("", format!("it serves {saved}: {UNREAD}"), HELD_BACK));
    // The controller itself detects problems of objects, but not those of the file.
    let of_file = state.into_iter().flat_map(|state| &state.problems);
    let of_file = of_file.filter(|problem| problem.object.is_none());
    let own: Vec<&Problem> =
        sources.problems().chain(orders.problems()).chain(&failed).chain(&saved).chain(of_file).collect();
    let exceptions = exceptions(sources, orders);
    let left_out = left_out_objects(orders, &exceptions);
    let stale = lines(&sources.stale());
    let claims_version = orders.in_force().map_or(0, |in_force| in_force.claims_version);
    let config = sources.chart_hash().to_owned();
    let saved = known.saved().unwrap_or_default().to_owned();
    let report = LeaseReport { claims_version, config, saved, ..LeaseReport::default() };
    let saying = Saying {
        identity,
        stale,
        failing,
        exceptions: &exceptions,
        left_out: &left_out,
        problems: &own,
        announced: orders.announced(),
    };
    Some((report, saying.spec()))
}

/// Returns why the outputs do not hold what they should.
fn failed(orders: &Orders) -> Option<Problem> {
    orders.trouble().map(|what| Problem::error("", what.clone(), HELD_BACK))
}

/// Returns what of the Claims in effect is not served.
fn left_out(orders: &Orders) -> impl Iterator<Item = &Problem> + Clone {
    orders.in_force().into_iter().flat_map(|in_force| &*in_force.left_out)
}

/// Whether something is left out because the maps have no room for it: that names what to change, and is among the problems of objects,
/// too. What another source has is not.
fn lacks_room(left_out: &Problem) -> bool {
    !left_out.field.is_empty()
}

/// Returns what the maps have no room for, by object as NodeStates name it, but for objects that exceptions name.
fn left_out_objects<'a>(
    orders: &'a Orders,
    exceptions: &[(Option<String>, &Problem)],
) -> Vec<(String, &'a Problem)> {
    let named: HashSet<&str> = exceptions.iter().filter_map(|(object, _)| object.as_deref()).collect();
    let mut of_objects = BTreeMap::new();
    for problem in left_out(orders).filter(|problem| lacks_room(problem)) {
        if let Some(object) = problem.object.as_ref().map(ObjectRef::key)
            && !named.contains(&*object)
        {
            of_objects.entry(object).or_insert(problem);
        }
    }
    of_objects.into_iter().collect()
}

/// Returns what the outputs refused, what another source has and what cannot be read, with the objects concerned, as NodeStates name them; without one: the node
/// holds nothing.
fn exceptions<'a>(sources: &'a Sources, orders: &'a Orders) -> Vec<(Option<String>, &'a Problem)> {
    let (mut all, mut of_objects) = (Vec::new(), BTreeMap::new());
    let (mut listeners, mut routes) = (HashMap::new(), HashMap::new());
    for exception in orders.exceptions() {
        match &exception.part {
            Part::Node => all.push((None, &exception.problem)),
            // In a cluster it is named after its address and port.
            Part::Listener(name) => {
                if let Ok(at) = name.parse::<SocketAddr>() {
                    listeners.insert(at, &exception.problem);
                }
            }
            Part::Route(name) => {
                routes.insert(&**name, &exception.problem);
            }
        }
    }
    if !listeners.is_empty() || !routes.is_empty() {
        let objects = sources.objects_of(&listeners, &routes);
        of_objects.extend(objects.into_iter().map(|(object, problem)| (object.key(), problem)));
    }
    let taken = left_out(orders).filter(|problem| !lacks_room(problem));
    let taken = taken.filter_map(|problem| Some((problem.object.as_ref()?.key(), problem)));
    // Of one object, one is enough.
    for (object, problem) in taken.chain(sources.unread().map(|(key, problem)| (key.into_owned(), problem))) {
        of_objects.entry(object).or_insert(problem);
    }
    all.extend(of_objects.into_iter().map(|(object, problem)| (Some(object), problem)));
    all
}

fn line(problem: &Problem) -> String {
    let object = problem.object.as_ref().map_or(String::new(), |object| format!("{object}: "));
    let field = if problem.field.is_empty() { String::new() } else { format!("{}: ", problem.field) };
    format!("{object}{field}{}; {}", problem.what, problem.remedy)
}

fn lines(stale: &[Stale]) -> Vec<String> {
    stale.iter().map(|stale| format!("{}: {}", stale.source, stale.why)).collect()
}
