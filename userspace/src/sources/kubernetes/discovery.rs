//! Which kinds of the Gateway API the cluster has, and in which version: follows CustomResourceDefinitions.

use super::api::core::Definition;
use super::api::object::{InSpec, Object, Page};
use super::retry::{Retry, chance};
use super::source::Source;
use super::trouble::Trouble;
use super::watch::{Event, Sink, Watch};
use super::watch_event::{Message, WatchEvent};
use super::watches::{Options, Start};
use kube::api::ListParams;
use kube::core::Request;
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

/// The answer to a question about a CRD has come within this time.
const ANSWER: Duration = Duration::from_secs(10);

/// Annotation of the Gateway API's CRDs: which release they are of.
const BUNDLE: &str = "gateway.networking.k8s.io/bundle-version";

/// CRDs are watched by their metadata alone: their schemas are large, and most are not ours.
type Named = Object<super::api::object::Nothing, false>;

/// Which kinds there are, and their watches.
struct Discovery {
    start: Start,
    /// Kinds that a CRD brings, of those that are read.
    optional: Vec<Source>,
    watches: JoinSet<()>,
    running: BTreeMap<Source, (&'static str, AbortHandle)>,
    /// Kinds whose CRD changed: its versions are to be asked for.
    asked: BTreeSet<Source>,
    retry: Retry,
    /// Number of the next watch.
    epoch: u64,
    /// It was reported that versions are not known.
    is_told: bool,
}

/// What the watch of CRDs saw.
enum Sight {
    /// These are all there are, of those we ask for.
    All(BTreeSet<Source>),
    /// New or changed.
    Changed(Source),
    /// Gone.
    Gone(Source),
}

/// Starts all watches; those of kinds that a CRD brings as soon as it is there.
pub(super) fn spawn(watches: &mut JoinSet<()>, options: Options, outbox: mpsc::Sender<Message>) {
    let policy = options.policy.clone();
    let of_every_cluster = Source::of_controller(&policy)
        .filter(|source| *source != Source::Definitions)
        .filter_map(|source| Some((source, source.fixed_version()?)));
    let optional: Vec<Source> =
        Source::of_controller(&policy).filter(|source| !source.versions().is_empty()).collect();
    let start = Start::new(options, outbox);
    for (source, version) in of_every_cluster {
        start.watch(watches, source, version, 0);
    }
    watches.spawn(run(start, optional));
}

/// Follows CRDs and runs a watch for each kind that we read; for ever.
async fn run(start: Start, optional: Vec<Source>) {
    let (eyes, mut sights) = mpsc::channel(16);
    let sink =
        Eyes { out: eyes, outbox: start.outbox.clone(), optional: optional.clone(), listed: BTreeSet::new() };
    let mut watches = JoinSet::new();
    watches.spawn(Watch::<Named, _>::new(start.client.clone(), Source::Definitions.target("v1"), sink).run());
    let mut discovery = Discovery {
        start,
        optional,
        watches,
        running: BTreeMap::new(),
        asked: BTreeSet::new(),
        retry: Retry::default(),
        epoch: 0,
        is_told: false,
    };
    let mut next = Instant::now();
    loop {
        tokio::select! {
            sight = sights.recv() => match sight {
                Some(sight) => {
                    discovery.see(sight).await;
                    // Nothing is asked twice because of one that fails, and nothing new waits behind it.
                    next = Instant::now();
                }
                None => return,
            },
            () = sleep_until(next), if !discovery.asked.is_empty() => {}
        }
        if !discovery.asked.is_empty() && next <= Instant::now() {
            next = Instant::now() + discovery.ask().await;
        }
    }
}

impl Discovery {
    async fn see(&mut self, sight: Sight) {
        match sight {
            Sight::All(all) => {
                for source in self.optional.clone() {
                    if all.contains(&source) {
                        self.asked.insert(source);
                    } else {
                        self.absent(source).await;
                    }
                }
            }
            Sight::Changed(source) => {
                self.asked.insert(source);
            }
            Sight::Gone(source) => self.absent(source).await,
        }
    }

    /// Asks for the versions of the kinds whose CRD changed. How long to wait before the next question, if any is left.
    async fn ask(&mut self) -> Duration {
        for source in self.asked.clone() {
            match self.versions(source).await {
                Ok(None) => self.absent(source).await,
                Ok(Some(served)) => {
                    self.asked.remove(&source);
                    match best(source, &served) {
                        Some(version) => self.present(source, version).await,
                        None => {
                            tracing::warn!(
                                kind = source.text(),
                                ?served,
                                "no version that can be read is served"
                            );
                            self.absent(source).await;
                        }
                    }
                }
                Err(why) => {
                    self.is_told = true;
                    self.tell(Source::Definitions, 0, WatchEvent::Stale(why)).await;
                    return self.retry.after_failure(Duration::ZERO, chance());
                }
            }
        }
        self.retry.reset();
        if std::mem::take(&mut self.is_told) {
            self.tell(Source::Definitions, 0, WatchEvent::Fresh).await;
        }
        Duration::ZERO
    }

    /// Versions of a kind that are served; `None` before its CRD is established.
    async fn versions(&self, source: Source) -> Result<Option<Vec<String>>, String> {
        // A list of one, so that no right to get CRDs is needed.
        let only = ListParams::default().fields(&format!("metadata.name={}", source.definition()));
        let request =
            Request::new(Source::Definitions.path("v1")).list(&only).map_err(|error| error.to_string())?;
        let answer = self.start.client.request::<Page<Object<InSpec<Definition>, true>>>(request);
        let page = match timeout(ANSWER, answer).await {
            Ok(Ok(page)) => page,
            Ok(Err(error)) => return Err(Trouble::from(error).to_string()),
            Err(_) => return Err(format!("the API server did not answer within {} s", ANSWER.as_secs())),
        };
        let Some(Object(definition)) = page.items.into_iter().flatten().next() else { return Ok(None) };
        let status = Conditions::deserialize(&definition.status).unwrap_or_default();
        if !status.conditions.iter().flatten().any(Condition::is_established) {
            return Ok(None);
        }
        if source == Source::GatewayClasses {
            let bundle = definition.meta.annotations.get(BUNDLE).cloned();
            self.tell(source, self.epoch, WatchEvent::Bundle(bundle)).await;
        }
        let versions = definition.body?.spec.and_then(|spec| spec.versions).unwrap_or_default();
        let served = versions.into_iter().filter(|version| version.served == Some(true));
        Ok(Some(served.filter_map(|version| version.name).collect()))
    }

    /// The kind is served in this version: watches it, unless that is so already.
    async fn present(&mut self, source: Source, version: &'static str) {
        if self.running.get(&source).is_some_and(|(running, _)| *running == version) {
            return;
        }
        self.stop(source);
        // Those that were stopped before.
        while self.watches.try_join_next().is_some() {}
        self.tell(source, self.epoch, WatchEvent::Present(version)).await;
        let watch = self.start.watch(&mut self.watches, source, version, self.epoch);
        self.running.insert(source, (version, watch));
    }

    /// The kind is not there.
    async fn absent(&mut self, source: Source) {
        self.asked.remove(&source);
        self.stop(source);
        self.tell(source, self.epoch, WatchEvent::Absent).await;
    }

    fn stop(&mut self, source: Source) {
        if let Some((_, watch)) = self.running.remove(&source) {
            watch.abort();
        }
        self.epoch += 1;
    }

    async fn tell(&self, source: Source, epoch: u64, news: WatchEvent) {
        // Nobody listens any more only when the store is gone, and then this task ends too.
        let _ = self.start.outbox.send(Message { source, epoch, news }).await;
    }
}

/// `CustomResourceDefinition.status`
#[derive(Default, Deserialize)]
#[serde(default)]
struct Conditions {
    conditions: Option<Vec<Condition>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Condition {
    r#type: Option<String>,
    status: Option<String>,
}

impl Condition {
    fn is_established(&self) -> bool {
        self.r#type.as_deref() == Some("Established") && self.status.as_deref() == Some("True")
    }
}

/// The version to watch.
fn best(source: Source, served: &[String]) -> Option<&'static str> {
    source.versions().iter().copied().find(|version| served.iter().any(|of| of == version))
}

/// Picks the CRDs that we ask for.
struct Eyes {
    out: mpsc::Sender<Sight>,
    outbox: mpsc::Sender<Message>,
    optional: Vec<Source>,
    listed: BTreeSet<Source>,
}

impl Sink<Named> for Eyes {
    async fn take(&mut self, event: Event<Named>) {
        let optional = &self.optional;
        let of = |object: &Named| {
            let name = object.0.meta.name.as_deref()?;
            optional.iter().copied().find(|source| source.definition() == name)
        };
        let tell = |news| Message { source: Source::Definitions, epoch: 0, news };
        let sight = match event {
            Event::Begin => {
                self.listed.clear();
                return;
            }
            Event::Listed(object) => {
                self.listed.extend(of(&object));
                return;
            }
            Event::Unlisted(object) => {
                if let Some(source) = of(&object) {
                    self.listed.remove(&source);
                }
                return;
            }
            Event::Done(_) => {
                let _ = self.outbox.send(tell(WatchEvent::Listed(Vec::new()))).await;
                Some(Sight::All(std::mem::take(&mut self.listed)))
            }
            Event::Put(object) => of(&object).map(Sight::Changed),
            Event::Gone(object) => of(&object).map(Sight::Gone),
            Event::Stale(why) => {
                let _ = self.outbox.send(tell(WatchEvent::Stale(why))).await;
                None
            }
            Event::Fresh => {
                let _ = self.outbox.send(tell(WatchEvent::Fresh)).await;
                None
            }
        };
        if let Some(sight) = sight {
            let _ = self.out.send(sight).await;
        }
    }
}
