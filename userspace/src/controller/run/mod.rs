//! The controller's loop: collects what is known, judges it, and sends what follows.

/// Sends requests.
mod send;

use super::agents::Agents;
use super::claim_store::ClaimNews;
use super::claim_watch::ClaimWatch;
use super::claims::Claims;
use super::class_finalizers::ClassFinalizers;
use super::election::Election;
use super::files::{Content, Files};
use super::flights::{Done, Flights};
use super::health::Failing;
use super::history::History;
use super::hold::BASIS;
use super::judge::{Judge, View};
use super::kube_event::{Note, Teller};
use super::kube_events::Evidence;
use super::lag::Lag;
use super::queue::{Outcome, Queue};
use super::telemetry::Telemetry;
use super::writes::{Spare, Told};
use super::{ControllerError, Options};
use crate::admin;
use crate::http_server;
use crate::model::cluster::Policy;
use crate::model::{Kind, ObjectRef};
use crate::sources::kubernetes::{self, Store};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};

/// Minimum pause between two judgements, so that changes that arrive together are judged together.
const PAUSE: Duration = Duration::from_millis(50);
/// Maximum time between two rounds of the loop.
const TICK: Duration = Duration::from_secs(5);
/// After this time, kinds that have not been listed yet are not waited for: some may be refused.
const LISTS: Duration = Duration::from_secs(15);
/// After this time, an Event says that a source cannot be followed.
const STALE: Duration = Duration::from_secs(60);
/// Maximum time between two looks at the Secret.
const KEYS: Duration = Duration::from_secs(60);

/// Runs until SIGTERM or SIGINT, then releases the Lease.
pub fn run(options: &Options) -> Result<(), ControllerError> {
    let files = Files::read(options.config.clone(), options.file.clone())
        .map_err(|(file, problems)| ControllerError::Problems { file, problems })?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options, files))
}

async fn serve(options: &Options, files: Files) -> Result<(), ControllerError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let client = kubernetes::connect(kube::Config::infer().await?)
        .map_err(|error| ControllerError::Client(Box::new(error)))?;
    let telemetry = Arc::new(Telemetry::new(&files.content().policy.ranges));
    if options.metrics_port != 0 {
        let (port, access) = (options.metrics_port, options.metrics_access.clone());
        tokio::spawn(http_server::serve(port, access, admin::router(Arc::clone(&telemetry) as _)));
    }
    let identity = format!("{}_{}", options.pod, std::process::id());
    let (election, leads) = Election::new(client.clone(), &options.namespace, identity);
    let (stop, stopped) = oneshot::channel();
    let election = tokio::spawn(election.run(stopped));
    let mut controller = Controller {
        agents: Agents::start(&client, &options.namespace),
        store: follow(&client, &files.content().policy),
        claim_watch: ClaimWatch::start(&client),
        claims: Claims::default(),
        class_finalizers: ClassFinalizers::default(),
        judge: Judge::new(files.content().facts.clone()),
        history: History::default(),
        lag: Lag::default(),
        files,
        looked: Instant::now(),
        client,
        options: options.clone(),
        queue: Queue::new(),
        teller: Teller::new(),
        won: BTreeMap::new(),
        leads,
        was_leading: false,
        is_touched: true,
        rest_until: Instant::now(),
        began: Instant::now(),
        again: None,
        flights: Flights::default(),
        keys_due: Instant::now(),
        node_due: Instant::now(),
        spare: None,
        telemetry,
    };
    loop {
        let wake = controller.act();
        tokio::select! {
            () = controller.store.changed() => controller.is_touched = true,
            () = controller.agents.changed() => controller.is_touched = true,
            news = controller.claim_watch.next() => controller.take_claims(news),
            changed = controller.leads.changed() => if changed.is_err() { break },
            done = controller.flights.land() => controller.finish(done),
            () = tokio::time::sleep_until(wake.into()) => {}
            _ = terminate.recv() => break,
            _ = interrupt.recv() => break,
        }
    }
    // Requests in flight must end before another controller may lead.
    controller.flights.all_land().await;
    let _ = stop.send(());
    if let Err(error) = election.await {
        warn!("the leader's Lease was not given back: {error}");
    }
    info!("ends");
    Ok(())
}

/// Follows the origins.
fn follow(client: &Client, policy: &Policy) -> Store {
    let (client, policy) = (client.clone(), policy.clone());
    Store::start(kubernetes::Options { client, policy, reads: kubernetes::Reads::Origins })
}

struct Controller {
    client: Client,
    options: Options,
    store: Store,
    agents: Agents,
    claim_watch: ClaimWatch,
    claims: Claims,
    class_finalizers: ClassFinalizers,
    files: Files,
    /// When the files were last checked for changes.
    looked: Instant,
    judge: Judge,
    history: History,
    lag: Lag,
    queue: Queue<ObjectRef>,
    teller: Teller,
    /// What each route regains with its waiting write.
    won: BTreeMap<ObjectRef, String>,
    leads: watch::Receiver<Option<Instant>>,
    was_leading: bool,
    /// Whether something changed since the last judgement.
    is_touched: bool,
    rest_until: Instant,
    began: Instant,
    /// When to judge again even if nothing changes.
    again: Option<Instant>,
    flights: Flights,
    keys_due: Instant,
    node_due: Instant,
    spare: Spare,
    telemetry: Arc<Telemetry>,
}

impl Controller {
    /// Does what can be done now. Returns when to call it again if nothing happens before.
    fn act(&mut self) -> Instant {
        let now = Instant::now();
        let until = *self.leads.borrow();
        let is_leading = until.is_some_and(|until| now < until);
        if is_leading != self.was_leading {
            self.lead(is_leading, now);
        }
        if now >= self.looked + TICK {
            self.looked = now;
            if self.files.changed() {
                self.configure();
            }
        }
        let missing = self.missing();
        self.telemetry.beats(missing.clone(), self.stale(), self.queue.len());
        let mut wake = now + TICK;
        if !is_leading || !missing.is_empty() {
            return wake;
        }
        self.is_touched |= self.again.is_some_and(|again| again <= now);
        if self.is_touched && now >= self.rest_until {
            self.judge(now);
        }
        let next = if self.is_touched { Some(self.rest_until) } else { self.again };
        wake = wake.min(next.unwrap_or(wake));
        wake = wake.min(self.send(Instant::now()));
        wake.min(until.unwrap_or(wake))
    }

    /// Puts what the files say now into effect.
    fn configure(&mut self) {
        let Content { facts, policy } = self.files.content();
        self.telemetry.configure(&policy.ranges);
        self.judge.reads(facts.clone());
        if self.store.can_take(policy) {
            self.store.set_policy(policy.clone());
        } else {
            // Services are read with what it presets. Until all kinds are listed again, nothing is judged.
            self.store = follow(&self.client, policy);
            self.began = Instant::now();
        }
        self.is_touched = true;
    }

    fn lead(&mut self, leads: bool, now: Instant) {
        self.was_leading = leads;
        self.telemetry.leads(leads);
        self.judge.forget_all();
        self.queue.clear();
        self.claims.clear();
        self.won.clear();
        self.is_touched = true;
        self.keys_due = now;
        self.spare = None;
    }

    /// What cannot be followed at present, and why.
    fn stale(&self) -> BTreeMap<String, String> {
        let stored = self.store.stale().into_iter().map(|stale| (stale.source.to_owned(), stale.why));
        let claims = self.claim_watch.stale().map(|why| ("claims", why));
        let own = self.agents.stale().chain(claims);
        let own = own.map(|(source, why)| (source.to_owned(), why.to_owned()));
        stored.chain(own).chain(self.files.refused()).collect()
    }

    /// What is not known yet but needed for a judgement.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        let unlisted = self.store.unlisted();
        // One that cannot be listed is reported as stale, and holds back what needs it.
        let is_overdue = self.began.elapsed() > LISTS;
        if !unlisted.is_empty() && (!is_overdue || BASIS.iter().any(|source| unlisted.contains(source))) {
            let names: Vec<&str> = unlisted.iter().map(|source| source.text()).collect();
            missing.push(format!("not listed yet: {}", names.join(", ")));
        }
        // Their definition may be missing.
        if !self.claims.is_listed() && !is_overdue {
            missing.push("Claims have not been listed yet".to_owned());
        }
        if !self.agents.is_known() {
            missing.push("agents' Leases or NodeStates have not been listed yet".to_owned());
        }
        missing
    }

    fn judge(&mut self, begun: Instant) {
        self.is_touched = false;
        let mut nodes = self.agents.nodes();
        self.history.judge(&mut nodes);
        let (excluded, excludes_again) = self.lag.exclude(self.claims.newest(), &mut nodes, begun);
        self.telemetry.counts_nodes(nodes.live.len(), nodes.unknown.len(), excluded.len());
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let store = &self.store;
        let (mut failing, mut node_uids) = (Failing::new(), BTreeMap::new());
        for (node, report) in self.agents.reports() {
            node_uids.insert(node.to_owned(), report.uid.clone());
            for backend in report.spec.failing.iter().filter_map(|text| text.parse().ok()) {
                failing.entry(backend).or_default().push(node.to_owned());
            }
        }
        let view = View {
            cluster: store.cluster(),
            status: &|object| store.status(object),
            bundle: store.bundle(),
            nodes: &nodes,
            failing: &failing,
            now: &now,
            at: begun,
            unlisted: store.unlisted(),
        };
        let judged = self.judge.judge(&view, &mut self.claims);
        let version = |kind: Kind| store.version(kind);
        let ground = Evidence {
            cluster: store.cluster(),
            version: &version,
            nodes: &nodes,
            failing: &failing,
            node_uids: &node_uids,
        };
        let (stale, young): (Vec<_>, Vec<_>) =
            store.stale().into_iter().partition(|stale| stale.since + STALE <= begun);
        let mut notes = ground.notes(&judged.problems);
        notes.extend(ground.stale(&stale));
        notes.extend(ground.excluded(&excluded));
        self.teller.lasts(notes);
        for (object, write) in judged.writes {
            match judged.won.get(&object) {
                Some(lost) => self.won.insert(object.clone(), lost.clone()),
                None => self.won.remove(&object),
            };
            self.queue.want(&object, write);
        }
        self.class_finalizers.want(store);
        let said = young.iter().map(|stale| stale.since + STALE);
        self.again = said.chain(judged.again).chain(excludes_again).min();
        self.queue.forget(|object| !judged.objects.contains(object));
        self.won.retain(|object, _| judged.objects.contains(object));
        let took = begun.elapsed();
        self.telemetry.judged(&judged.problems, &judged.in_use, took);
        // However much changes, judging takes at most a third of the time.
        self.rest_until = Instant::now() + PAUSE.max(2 * took);
    }

    /// Takes what the watch of Claims reports.
    fn take_claims(&mut self, news: ClaimNews) {
        let mut next = Some(news);
        while let Some(news) = next {
            self.history.note(&news);
            self.is_touched |= self.claims.take(news);
            next = self.claim_watch.more();
        }
    }

    fn finish(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Status(object, write, outcome) => {
                self.flights.lanes.give_back(&object);
                let text = match outcome {
                    Outcome::Written | Outcome::NoEffect => "written",
                    Outcome::Conflict => "conflict",
                    Outcome::Failed => "failed",
                };
                self.telemetry.wrote(object.kind.text(), text);
                if outcome == Outcome::Written
                    && let Some(lost) = self.won.remove(&object)
                {
                    let note = self.won(&object, &lost);
                    self.teller.happened(note);
                }
                if outcome == Outcome::Conflict {
                    // The newer object may be reported later; the queue waits for it.
                    self.judge.forget(&object);
                    self.is_touched = true;
                }
                self.queue.done(&object, write, outcome, now);
            }
            Done::Claim(name, is_done) => {
                self.telemetry.wrote("Claim", if is_done { "written" } else { "failed" });
                self.claims.ended(&name, is_done, now);
            }
            Done::Event(note, told) => match told {
                Told::Yes => self.teller.told(&note),
                told => self.teller.failed(&note, told == Told::Failed, now),
            },
            Done::Keys(kept) => {
                self.flights.keys = false;
                match kept {
                    Ok(spare) => self.spare = spare,
                    Err(error) => {
                        warn!("keys cannot be kept: {error}");
                        self.keys_due = now + TICK;
                    }
                }
            }
            Done::Node => self.flights.node = false,
            Done::Class => self.flights.class = false,
        }
    }

    fn won(&self, object: &ObjectRef, lost: &str) -> Note {
        let version = |kind: Kind| self.store.version(kind);
        let ground = Evidence {
            cluster: self.store.cluster(),
            version: &version,
            nodes: &self.agents.nodes(),
            failing: &BTreeMap::new(),
            node_uids: &BTreeMap::new(),
        };
        ground.won(object, lost)
    }
}
