//! The controller's loop: collects what is known, judges it, and sends what follows.

/// When it competes for the Lease.
mod turns;
/// Sends requests.
mod send;
/// Says why not all Claims are written.
mod unmarked;

use super::agents::Agents;
use super::announcement::watch::AnnouncementWatch;
use super::claim_store::ClaimNews;
use super::claim_store::ClaimOutcome;
use super::claim_watch::ClaimWatch;
use super::class_finalizers::ClassFinalizers;
use super::core::{self, Core, Known, Summary};
use super::election::Election;
use super::files::{Content, Files};
use super::flights::{Done, Flights};
use super::health::Failing;
use super::hold::is_basis;
use super::keys::KEYS;
use super::kube_event::Note;
use super::kube_events::Evidence;
use super::metallb::{MetalLb, Realm};
use super::queue::Outcome;
use super::reports::Reporting;
use super::since::Since;
use super::telemetry::Telemetry;
use super::{ControllerError, Options};
use crate::admin;
use crate::http_server;
use crate::model::cluster::Policy;
use crate::model::{Kind, ObjectRef};
use crate::sources::kubernetes::{self, Stale, Store};
use k8s_openapi::jiff::Timestamp;
use kube::Client;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{oneshot, watch};
use tracing::{info, warn};
use unmarked::Unmarked;

/// Maximum time between two rounds of the loop.
const TICK: Duration = Duration::from_secs(5);
/// After this time, kinds that have not been listed yet are not waited for: some may be refused.
const LISTS: Duration = Duration::from_secs(15);

/// Runs until SIGTERM or SIGINT, then releases the Lease.
pub fn run(options: &Options) -> Result<(), ControllerError> {
    let files = Files::read(options.config.clone(), options.file.clone());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(serve(options, files))
}

async fn serve(options: &Options, files: Files) -> Result<(), ControllerError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let client = kubernetes::connect(kube::Config::infer().await?, &format!("controller ({})", options.pod))
        .map_err(|error| ControllerError::Client(Box::new(error)))?;
    let telemetry = Arc::new(Telemetry::new(&files.content().policy.ranges));
    if options.metrics_port != 0 {
        let (port, access) = (options.metrics_port, options.metrics_access.clone());
        let (refused, router) = (telemetry.refused.clone(), admin::router(Arc::clone(&telemetry) as _));
        tokio::spawn(http_server::serve(port, access, refused, router));
    }
    let identity = format!("{}_{}", options.pod, std::process::id());
    let (unmarked, why) = Unmarked::new();
    let (election, leads) = Election::new(client.clone(), &options.namespace, identity, why);
    let (stop, stopped) = oneshot::channel();
    let (configured, is_known) = watch::channel(files.is_known());
    let election = tokio::spawn(turns::campaign(election, stopped, is_known));
    let mut controller = Controller {
        agents: Agents::start(&client, &options.namespace),
        store: follow(&client, &files.content().policy),
        claim_watch: ClaimWatch::start(&client),
        announcement_watch: AnnouncementWatch::start(&client),
        class_finalizers: ClassFinalizers::default(),
        core: Core::new(files.content().facts.clone(), options.keys, Instant::now()),
        files,
        looked: Instant::now(),
        client,
        options: options.clone(),
        leads,
        was_leading: false,
        began: Instant::now(),
        flights: Flights::default(),
        node_due: Instant::now(),
        forgotten: String::new(),
        configured,
        metallb: (MetalLb::new(Instant::now()), Instant::now()),
        stale: Since::default(),
        telemetry,
        unmarked,
    };
    loop {
        let wake = controller.act();
        tokio::select! {
            () = controller.store.changed() => controller.core.touch(),
            () = controller.agents.changed() => controller.core.touch(),
            news = controller.claim_watch.next() => controller.take_claims(news),
            news = controller.announcement_watch.next() => controller.core.take_announcement(news),
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
    announcement_watch: AnnouncementWatch,
    class_finalizers: ClassFinalizers,
    core: Core,
    files: Files,
    /// When the files were last checked for changes.
    looked: Instant,
    leads: watch::Receiver<Option<Instant>>,
    was_leading: bool,
    began: Instant,
    flights: Flights,
    node_due: Instant,
    /// The node whose NodeState was removed last.
    forgotten: String,
    /// Whether the files were right once.
    configured: watch::Sender<bool>,
    /// Whether MetalLB runs, and when to look again.
    metallb: (MetalLb, Instant),
    /// What besides objects cannot be followed.
    stale: Since<&'static str>,
    telemetry: Arc<Telemetry>,
    unmarked: Unmarked,
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
        if self.stale.note(self.own_stale(), now) {
            self.core.touch();
        }
        let missing = self.missing();
        self.telemetry.beats(missing.clone(), self.stale(), self.core.waiting());
        let mut wake = now + TICK;
        if !is_leading {
            self.core.follow(|| self.agents.nodes());
            return wake;
        }
        wake = wake.min(self.send_keys(now));
        if !missing.is_empty() {
            return wake;
        }
        if self.core.is_due(now) {
            self.judge(now);
        }
        wake = wake.min(self.core.next_due().unwrap_or(wake));
        wake = wake.min(self.send(Instant::now()));
        wake.min(until.unwrap_or(wake))
    }

    /// Puts what the files say now into effect.
    fn configure(&mut self) {
        self.configured.send_replace(true);
        let Content { facts, policy } = self.files.content();
        self.telemetry.configure(&policy.ranges);
        self.core.reads(facts.clone());
        if Realm::of(&self.store.cluster().policy) != Realm::of(policy) {
            // MetalLB may have run there until now.
            self.metallb = (MetalLb::new(Instant::now()), Instant::now());
        }
        if self.store.can_take(policy) {
            self.store.set_policy(policy.clone());
        } else {
            // Services are read with what it presets. Until all kinds are listed again, nothing is judged.
            self.store = follow(&self.client, policy);
            self.began = Instant::now();
        }
    }

    fn lead(&mut self, leads: bool, now: Instant) {
        self.was_leading = leads;
        self.telemetry.leads(leads);
        self.unmarked.clear();
        self.core.lead(leads);
        // Until they are listed again, what the former leader wrote is not known.
        if leads {
            self.claim_watch = ClaimWatch::start(&self.client);
        }
        self.announcement_watch = AnnouncementWatch::start(&self.client);
        self.metallb = (MetalLb::new(now), now);
    }

    /// What cannot be followed at present, and why.
    fn stale(&self) -> BTreeMap<String, String> {
        let stored = self.store.stale().into_iter().map(|stale| (stale.source.to_owned(), stale.why));
        let own = self.stale.all().map(|(source, _, why)| ((*source).to_owned(), why.to_owned()));
        stored.chain(own).collect()
    }

    /// The same besides objects: agents, Claims, keys and files.
    fn own_stale(&self) -> Vec<(&'static str, String)> {
        let claims = self.claim_watch.stale().or(self.core.claims.pruned()).map(|why| ("claims", why));
        let announcements = self.announcement_watch.stale().or(self.core.announcements.trouble());
        let announcements = announcements.map(|why| ("announcements", why));
        // Only the leader keeps them.
        let keys = self.core.keys_trouble().filter(|_| self.was_leading).map(|why| (KEYS, why));
        let watched = self
            .agents
            .stale()
            .chain(claims)
            .chain(announcements)
            .chain(keys)
            .map(|(source, why)| (source, why.to_owned()));
        watched.chain(self.files.refused()).collect()
    }

    /// What is not known yet but needed for a judgement.
    fn missing(&self) -> Vec<String> {
        let mut missing = Vec::new();
        if !self.files.is_known() {
            missing.extend(
                self.files.refused().map(|(_, why)| format!("nothing is written before it is right: {why}")),
            );
        }
        let unlisted = self.store.unlisted();
        // One that cannot be listed is reported as stale, and holds back what needs it.
        let is_overdue = self.began.elapsed() > LISTS;
        if !unlisted.is_empty() && (!is_overdue || unlisted.iter().any(|source| is_basis(*source))) {
            let names: Vec<&str> = unlisted.iter().map(|source| source.text()).collect();
            missing.push(format!("not listed yet: {}", names.join(", ")));
        }
        // Their definition may be missing.
        if !self.core.claims.is_listed() && self.claim_watch.may_be_listed() {
            missing.push("Claims have not been listed yet".to_owned());
        }
        if !self.agents.is_known() {
            missing.push("agents' Leases or NodeStates have not been listed yet".to_owned());
        }
        missing
    }

    fn judge(&mut self, begun: Instant) {
        let now = Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
        let store = &self.store;
        let (mut failing, mut node_uids, mut stale_nodes) = (Failing::new(), BTreeMap::new(), Vec::new());
        for (node, report) in self.agents.reports() {
            stale_nodes.extend(report.spec.stale.iter().map(|line| (node.to_owned(), line.clone())));
            node_uids.insert(node.to_owned(), report.uid.clone());
            for backend in report.spec.failing.iter().filter_map(|text| text.parse().ok()) {
                failing.entry(backend).or_default().push(node.to_owned());
            }
        }
        let own = self.stale.all().map(|(source, since, why)| Stale { source, since, why: why.to_owned() });
        let known = Known {
            cluster: store.cluster(),
            status: &|object| store.status(object),
            version: &|kind| store.version(kind),
            bundle: store.bundle(),
            unlisted: store.unlisted(),
            stale: store.stale().into_iter().chain(own).collect(),
            nodes: self.agents.nodes(),
            failing,
            stale_nodes,
            node_uids,
            metallb: self.metallb.0.closed(begun),
            reporting: Reporting {
                announced: self.agents.announced(),
                has_l2_statuses: store.version(Kind::ServiceL2Status).is_some(),
                has_configurations: store.version(Kind::ConfigurationState).is_some(),
            },
            now: &now,
        };
        let Summary { problems, in_use, nodes, waits } = self.core.judge(known, begun);
        self.telemetry.lacks_mark(self.unmarked.note(waits, begun));
        let [counted, unknown, excluded, unheard] = nodes;
        self.telemetry.counts_nodes(counted, unknown, excluded);
        self.telemetry.counts_unheard(unheard);
        self.class_finalizers.want(store);
        let took = begun.elapsed();
        self.telemetry.judged(&problems, &in_use, took);
        self.core.rest(took, Instant::now());
    }

    /// Takes what the watch of Claims reports.
    fn take_claims(&mut self, news: ClaimNews) {
        let mut next = Some(news);
        while let Some(news) = next {
            self.core.take_claims(news);
            next = self.claim_watch.more();
        }
    }

    fn finish(&mut self, done: Done) {
        let now = Instant::now();
        match done {
            Done::Core(done) => {
                match &done {
                    core::Done::Status(object, _, outcome) => {
                        let text = match outcome {
                            Outcome::Written | Outcome::NoEffect | Outcome::Made => "written",
                            Outcome::Conflict => "conflict",
                            Outcome::Failed => "failed",
                        };
                        self.telemetry.wrote(object.kind.text(), text);
                    }
                    core::Done::Claim(_, outcome) => self.telemetry.wrote("Claim", text(outcome)),
                    core::Done::Announcement(outcome) => self.telemetry.wrote("Announcement", text(outcome)),
                    core::Done::Keys(Err(error)) => warn!("keys cannot be kept: {error}"),
                    core::Done::Keys(Ok(_)) | core::Done::Event(..) => {}
                }
                if let Some((object, lost)) = self.core.done(done, now) {
                    let note = self.won(&object, &lost);
                    self.core.happened(note);
                }
            }
            Done::Node => self.flights.node = false,
            Done::Class => self.flights.class = false,
            Done::MetalLb(found) => {
                self.flights.metallb = false;
                self.metallb.0.looked(found, now);
                self.core.touch();
            }
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

/// Returns how a write has ended, as metrics say it.
fn text<E>(outcome: &Result<ClaimOutcome, E>) -> &'static str {
    match outcome.as_ref().copied().unwrap_or(ClaimOutcome::Failed) {
        ClaimOutcome::Written => "written",
        ClaimOutcome::Failed => "failed",
        ClaimOutcome::Pruned => "pruned",
    }
}
