//! The loop: what happened last, and what follows from it.

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, ResourceExt};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinSet;
use tokio::time::{Instant, Interval, MissedTickBehavior, interval, sleep, sleep_until};
use tracing::{info, warn};

use super::handover::{HandoverError, Wish};
use super::keys::{self, KeyWatch};
use super::role::{Reader, Role};
use super::state::State;
use super::told::Told;
use super::{AgentError, Options, saved};
use crate::admin::{self, bind_socket};
use crate::compile::Surroundings;
use crate::daemon::{Choice, StartError};
use crate::dataplane::load;
use crate::dataplane::maps::{CookieKeys, give_back_memory};
use crate::dataplane::pin::Pins;
use crate::health::Prober;
use crate::metrics::{self, AgentMetrics};
use crate::model::{Facts, Problem};
use crate::net::watch::Watch;
use crate::net::{NetError, sysctl};
use crate::sources::{chart, file, kubernetes};

/// Time between two turns: what comes meanwhile is dealt with at once.
const GAP: Duration = Duration::from_millis(10);
/// How often it looks at what nobody tells it.
const TICK: Duration = Duration::from_millis(250);
/// Without a turn for this long, memory is given back.
const QUIET: Duration = Duration::from_secs(1);
/// The API server gets this long to answer before the state of the last boot is used, where no map is pinned.
const PATIENCE: Duration = Duration::from_secs(5);
/// The label of a node's zone.
const ZONE: &str = "topology.kubernetes.io/zone";
/// From one try to learn the zone to the next.
const ZONE_AGAIN: Duration = Duration::from_secs(10);

/// Serves until SIGTERM or SIGINT; what is in the kernel goes on serving after that.
pub fn run(options: &Options) -> Result<(), AgentError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(async {
        let mut agent = Agent::start(options).await?;
        let outcome = agent.serve().await;
        agent.end();
        outcome
    });
    // Threads that wait for the kernel or a disk do not hold up the end.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

/// What happened.
enum Event {
    /// Something changed, or a turn is due.
    Turn,
    Changed,
    Failing(BTreeSet<SocketAddr>),
    Keys(CookieKeys),
    Network(Result<(), NetError>),
    Wish(Wish),
    Given(Result<(), HandoverError>),
    Zone(Option<Arc<str>>),
    Tick,
    End,
}

/// All that an agent has.
pub(super) struct Agent<'a> {
    pub(super) options: &'a Options,
    pub(super) pins: Pins,
    pub(super) choice: Choice,
    pub(super) client: Client,
    /// Of the chart's file and the static one; the cluster's are added for each turn.
    pub(super) facts: Facts,
    /// What is wrong with the node's own files.
    pub(super) own_problems: Vec<Problem>,
    chart_facts: Facts,
    file_seen: Option<(u64, i64, i64, u64)>,
    pub(super) around: Surroundings,
    pub(super) store: kubernetes::Store,
    pub(super) prober: Prober,
    key_watch: KeyWatch,
    pub(super) keys: Option<CookieKeys>,
    network: Watch,
    pub(super) told: Arc<Told>,
    pub(super) metrics: AgentMetrics,
    /// What families of gauges held before, to take away what is gone.
    pub(super) gauges: [Vec<String>; 3],
    pub(super) state: Option<State>,
    pub(super) role: Role,
    /// Waits until the next agent has what it was given.
    given: JoinSet<Result<(), HandoverError>>,
    zone: JoinSet<Option<Arc<str>>>,
    /// Answers probes; saves states.
    pub(super) chores: JoinSet<()>,
    /// Something came that no turn has seen.
    pub(super) is_dirty: bool,
    /// The state is of the facts of today, but for what the store says has changed.
    pub(super) is_partial: bool,
    /// The state in force is not on disk yet.
    pub(super) is_unsaved: bool,
    pub(super) saved: Instant,
    turned: Instant,
    /// Turns left memory that can be given back.
    is_full: bool,
    begun: Instant,
    tick: Interval,
    signals: [Signal; 2],
}

impl<'a> Agent<'a> {
    async fn start(options: &'a Options) -> Result<Self, AgentError> {
        let signals = [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        let refused = |problems| AgentError::File { file: options.config.clone(), problems };
        let chart = chart::load(&options.config).map_err(refused)?;
        for folder in [&options.state, &options.run] {
            fs::create_dir_all(folder).map_err(|source| AgentError::Path { path: folder.clone(), source })?;
        }
        let pins = Pins::new(&options.pins);
        pins.prepare().map_err(StartError::from)?;
        let mut registry = metrics::registry();
        let metrics = AgentMetrics::register(&mut registry, &pins, options.metrics_per_route);
        let told = Arc::new(Told::new(registry));
        let mut chores = JoinSet::new();
        answer_probes(&mut chores, &options.admin, &told)?;
        // Before the first look, so that no change falls in between.
        let network = Watch::open()?;
        let client = kubernetes::connect(kube::Config::infer().await?)?;
        let store = kubernetes::Store::start(kubernetes::Options {
            client: client.clone(),
            policy: chart.policy,
            statuses: false,
        });
        let devices: Vec<String> = chart.devices.iter().map(ToString::to_string).collect();
        let mut zone = JoinSet::new();
        zone.spawn(own_zone(client.clone(), options.identity.node.clone()));
        let mut tick = interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut agent = Self {
            options,
            choice: if devices.is_empty() { Choice::Routed } else { Choice::Named(devices) },
            facts: Facts::default(),
            own_problems: Vec::new(),
            chart_facts: chart.facts,
            file_seen: None,
            around: Surroundings { local_ports: sysctl::local_port_range(), zone: None },
            store,
            prober: Prober::start(),
            key_watch: KeyWatch::start(&client, &options.identity.namespace),
            keys: None,
            client,
            network,
            told,
            metrics,
            gauges: Default::default(),
            state: None,
            role: Role::Reader(Reader::new()),
            given: JoinSet::new(),
            zone,
            chores,
            is_dirty: false,
            is_partial: false,
            is_unsaved: false,
            saved: Instant::now(),
            turned: Instant::now(),
            is_full: false,
            begun: Instant::now(),
            tick,
            signals,
            pins,
        };
        agent.adopt_sizes().map_err(StartError::from)?;
        agent.read_file();
        info!(node = options.identity.node, pod = options.identity.pod, "begins");
        Ok(agent)
    }

    /// Pinned maps keep their sizes, whatever the file says now.
    fn adopt_sizes(&mut self) -> Result<(), load::LoadError> {
        let settings = &mut self.chart_facts.settings;
        let Some(pinned) = load::pinned_sizes(&self.pins)? else { return Ok(()) };
        for (setting, wanted, pinned) in [
            ("maxFlows", &mut settings.max_flows, pinned.flows),
            ("maxNames", &mut settings.max_names, pinned.names),
            ("maxHellos", &mut settings.max_hellos, pinned.hellos),
        ] {
            if *wanted != pinned {
                let problem = Problem::error(
                    format!("settings.{setting}"),
                    format!("cannot change while maps are pinned: they were made for {pinned}, which stays"),
                    "put it back, or empty the node and run `vestibule detach` on it (which ends all connections)",
                )
                .value(*wanted);
                warn!("{problem}");
                self.own_problems.push(problem);
                *wanted = pinned;
            }
        }
        Ok(())
    }

    async fn serve(&mut self) -> Result<(), AgentError> {
        loop {
            match self.next().await {
                Event::Turn => {
                    self.is_dirty = false;
                    self.turn()?;
                    self.turned = Instant::now();
                    self.is_full = true;
                    self.take_over().await;
                }
                Event::Changed => self.is_dirty = true,
                Event::Failing(failing) => {
                    self.store.set_failing(failing);
                    self.is_dirty = true;
                }
                Event::Keys(keys) => self.new_keys(keys),
                Event::Network(changed) => {
                    changed?;
                    self.network_changed()?;
                }
                Event::Wish(wish) => self.give(wish).await,
                Event::Given(outcome) => self.given(outcome),
                Event::Zone(zone) => {
                    self.around.zone = zone;
                    (self.is_dirty, self.is_partial) = (true, false);
                }
                Event::Tick => self.look_around().await?,
                Event::End => return Ok(()),
            }
        }
    }

    async fn next(&mut self) -> Event {
        let [terminate, interrupt] = &mut self.signals;
        // What is first here goes first: a stream of changes starves nobody.
        tokio::select! {
            biased;
            _ = terminate.recv() => Event::End,
            _ = interrupt.recv() => Event::End,
            wish = self.role.wish() => Event::Wish(wish),
            Some(Ok(outcome)) = self.given.join_next() => Event::Given(outcome),
            () = sleep_until(self.turned + GAP), if self.is_dirty => Event::Turn,
            _ = self.tick.tick() => Event::Tick,
            changed = self.network.changed() => Event::Network(changed),
            keys = self.key_watch.changed() => Event::Keys(keys),
            failing = self.prober.changed() => Event::Failing(failing),
            Some(Ok(zone)) = self.zone.join_next() => Event::Zone(zone),
            () = self.store.changed() => Event::Changed,
        }
    }

    /// Waits, beside the loop, for what becomes of a gift.
    pub(super) fn wait_for(&mut self, wish: Wish) {
        self.given.spawn(wish.given());
    }

    /// What nobody tells.
    async fn look_around(&mut self) -> Result<(), AgentError> {
        self.told.update(|view| view.turned = std::time::Instant::now());
        while self.chores.try_join_next().is_some() {}
        if self.file_changed() {
            self.read_file();
            (self.is_dirty, self.is_partial) = (true, false);
        }
        self.retry()?;
        self.use_saved();
        self.take_over().await;
        self.save_some_time();
        if self.is_full && self.turned.elapsed() > QUIET {
            // A turn's working memory is some ten times what stays.
            self.is_full = false;
            give_back_memory();
        }
        Ok(())
    }

    fn file_changed(&self) -> bool {
        let Some(path) = &self.options.file else { return false };
        let now = stamp(path);
        // A file that is away for a moment is being replaced.
        now.is_some() && now != self.file_seen
    }

    /// Reads the static file. One that is refused leaves what it said before in force.
    fn read_file(&mut self) {
        self.own_problems.retain(|problem| problem.field.starts_with("settings."));
        let mut facts = self.chart_facts.clone();
        if let Some(path) = &self.options.file {
            self.file_seen = stamp(path);
            match file::facts(path) {
                Ok(more) => {
                    facts.listeners.extend(more.listeners);
                    facts.routes.extend(more.routes);
                }
                Err(problems) => {
                    let name = path.display().to_string();
                    problems.iter().take(20).for_each(|problem| warn!("{}", problem.in_file(&name)));
                    warn!(file = name, "is refused; what it said before stays");
                    self.own_problems.extend(problems);
                    let before = std::mem::take(&mut self.facts);
                    (facts.listeners, facts.routes) = (before.listeners, before.routes);
                }
            }
        }
        self.facts = facts;
    }

    /// Without the API server and without pinned maps, the state of the last boot is better than none.
    fn use_saved(&mut self) {
        let hopeless = self.state.is_none()
            && self.begun.elapsed() > PATIENCE
            && !self.store.is_complete()
            && matches!(self.role, Role::Reader(_))
            && !self.pins.holds_maps();
        if !hopeless {
            return;
        }
        match saved::read(&self.options.state, &self.facts.settings) {
            Ok(desired) => {
                info!(
                    routes = desired.routes.len(),
                    "the API server does not answer; the state of the last boot is used"
                );
                self.state = Some(State::saved(desired));
                if self.keys.is_none() {
                    self.keys = keys::load(&self.options.state).ok();
                }
            }
            Err(error) => {
                // Told once: the clock starts anew.
                self.begun = Instant::now() + Duration::from_secs(600);
                warn!(%error, "the API server does not answer, and there is no state of the last boot to use");
            }
        }
    }

    fn end(&mut self) {
        self.save_now();
        // Another agent may have its own there by now; each pod's has a name of its own.
        let _ = fs::remove_file(&self.options.admin);
        info!("ends; programs and connections stay, `vestibule detach` removes them");
    }
}

/// Begins to answer on the socket.
fn answer_probes(chores: &mut JoinSet<()>, path: &Path, told: &Arc<Told>) -> Result<(), AgentError> {
    let socket = bind_socket(path).map_err(|source| AgentError::Path { path: path.into(), source })?;
    let asked = Arc::clone(told);
    chores.spawn(async move {
        if let Err(error) = admin::serve_socket(socket, asked).await {
            warn!(%error, "probes are not answered");
        }
    });
    Ok(())
}

/// What tells one state of a file from another: length, time of change, and which file it is.
fn stamp(path: &Path) -> Option<(u64, i64, i64, u64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.len(), metadata.mtime(), metadata.mtime_nsec(), metadata.ino()))
}

/// The zone of a node; `None`: it has none, or we may not know.
async fn own_zone(client: Client, node: String) -> Option<Arc<str>> {
    let nodes: Api<PartialObjectMeta<Node>> = Api::all(client);
    loop {
        match nodes.get_metadata(&node).await {
            Ok(found) => return found.labels().get(ZONE).map(|zone| Arc::from(zone.as_str())),
            Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => {
                warn!(
                    error = status.message,
                    "the node's zone is not known; hints of endpoints are not looked at"
                );
                return None;
            }
            Err(_) => sleep(ZONE_AGAIN).await,
        }
    }
}
