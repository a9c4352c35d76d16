//! Which watches run, and what each folds.

use super::api::claim::{ClaimSpec, SETTLED, WITHDRAWN};
use super::api::object::{InSpec, Nothing, Object, Raw, RawMeta};
use super::fold;
use super::interner::Interner;
use super::source::Source;
use super::watch::{Event, Sink, Watch, Watched};
use super::watch_event::{Body, Entry, Mark, Message, StoredStatus, WatchEvent};
use crate::model::cluster::Policy;
use crate::model::{Kind, ObjectName, OriginObject, Problem};
use crate::origins::{Fetched, WatchRow};
use futures_util::FutureExt as _;
use kube::Client;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::{AbortHandle, JoinSet};

/// What a store needs.
#[expect(missing_debug_implementations, reason = "kube's Client has none")]
pub struct Options {
    /// The API server; made by [`super::connect`], so that it does not retry by itself.
    pub client: Client,
    /// What the chart allows and presets.
    pub policy: Policy,
    /// What is read.
    pub reads: Reads,
}

/// What a store reads of the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reads {
    /// All that claims can be made of, with the status of objects that have one of ours: the controller's part.
    Origins,
    /// Claims and EndpointSlices: an agent's part.
    Claims,
}

/// What every watch needs.
#[derive(Clone)]
pub(super) struct Start {
    pub(super) client: Client,
    pub(super) outbox: mpsc::Sender<Message>,
    /// With what Services are read.
    reading: fold::Reading,
    interner: Interner,
}

impl Start {
    /// What watches need that report to `outbox`.
    pub(super) fn new(options: Options, outbox: mpsc::Sender<Message>) -> Self {
        let Options { client, policy, .. } = options;
        let reading = fold::Reading { probe: policy.probe_defaults, classes: policy.load_balancers };
        Self { client, outbox, reading, interner: Interner::default() }
    }

    /// Starts the watch of a kind.
    pub(super) fn watch(
        &self,
        watches: &mut JoinSet<()>,
        source: Source,
        version: &str,
        epoch: u64,
    ) -> AbortHandle {
        match source {
            Source::Definitions | Source::Namespaces => {
                self.one::<_, false, _>(watches, source, version, epoch, |raw, interner| {
                    told(fold::namespace(raw, interner), Body::Namespace)
                })
            }
            Source::Services => {
                let reading = self.reading.clone();
                self.one::<_, true, _>(watches, source, version, epoch, move |raw, interner| {
                    told(fold::service(raw, &reading, interner), Body::Service)
                })
            }
            Source::EndpointSlices => {
                self.one::<_, false, _>(watches, source, version, epoch, |raw, interner| {
                    let (slice, problems) = fold::endpoint_slice(raw, interner);
                    (Body::Slice(slice), problems)
                })
            }
            Source::GatewayClasses => {
                self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                    let (class, problems) = fold::class(raw, interner);
                    (Body::Class(class.map(Arc::new)), problems)
                })
            }
            // Their addresses are in their status.
            Source::Gateways => self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                told(fold::gateway(raw, interner), Body::Gateway)
            }),
            Source::ListenerSets => {
                self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                    told(fold::listener_set(raw, interner), Body::ListenerSet)
                })
            }
            Source::TlsRoutes => self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                told(fold::route(Kind::TlsRoute, raw, interner), Body::TlsRoute)
            }),
            Source::TcpRoutes => self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                told(fold::route(Kind::TcpRoute, raw, interner), Body::TcpRoute)
            }),
            Source::ReferenceGrants => {
                self.one::<_, false, _>(watches, source, version, epoch, |raw, interner| {
                    told(fold::grant(raw, interner), Body::Grant)
                })
            }
            Source::Origin(watched) => {
                let fold = |raw: Raw<Value>, interner: &Interner| origin(watched, raw, interner);
                match watched.asks() {
                    true => self.one::<_, true, _>(watches, source, version, epoch, fold),
                    false => self.one::<_, false, _>(watches, source, version, epoch, fold),
                }
            }
            Source::Pools => self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                told(fold::pool(raw, interner), Body::Pool)
            }),
            Source::Advertisements => {
                self.one::<_, false, _>(watches, source, version, epoch, |raw, interner| {
                    told(fold::advertisement(raw, interner), Body::Advertisement)
                })
            }
            Source::L2Statuses | Source::Configurations => {
                self.one::<Nothing, true, _>(watches, source, version, epoch, report)
            }
            // Their conditions are in their status.
            Source::Nodes => self.one::<_, true, _>(watches, source, version, epoch, |raw, interner| {
                told(fold::node(raw, interner), Body::Node)
            }),
            Source::Claims => self.one::<_, false, _>(watches, source, version, epoch, claim),
            Source::Announcements => self.one::<_, false, _>(watches, source, version, epoch, |raw, _| {
                let (announcement, problems) = fold::announcement(raw);
                (Body::Announcement(announcement), problems)
            }),
        }
    }

    fn one<B, const STATUS: bool, F>(
        &self,
        watches: &mut JoinSet<()>,
        source: Source,
        version: &str,
        epoch: u64,
        fold: F,
    ) -> AbortHandle
    where
        B: Clone + DeserializeOwned + Send + 'static,
        F: Fn(Raw<B>, &Interner) -> (Body, Vec<Problem>) + Send + 'static,
    {
        let sink = self.folding(source, epoch, fold);
        self.keep(
            watches,
            source,
            epoch,
            Watch::<Object<B, STATUS>, _>::new(self.client.clone(), source.target(version), sink),
        )
    }

    /// Runs a watch. One that ends by a fault of ours is not missed silently.
    fn keep<T, S>(
        &self,
        watches: &mut JoinSet<()>,
        source: Source,
        epoch: u64,
        watch: Watch<T, S>,
    ) -> AbortHandle
    where
        T: Watched,
        S: Sink<T> + 'static,
    {
        let outbox = self.outbox.clone();
        watches.spawn(async move {
            let _ = AssertUnwindSafe(watch.run()).catch_unwind().await;
            let news = WatchEvent::Stale("the watch ended by a fault of this program; restart it".to_owned());
            let _ = outbox.send(Message { source, epoch, news }).await;
        })
    }

    fn folding<F>(&self, source: Source, epoch: u64, fold: F) -> Folding<F> {
        Folding {
            source,
            epoch,
            fold,
            interner: self.interner.clone(),
            outbox: self.outbox.clone(),
            listed: BTreeMap::new(),
        }
    }
}

fn told<T>((spec, problems): (T, Vec<Problem>), body: impl Fn(Arc<T>) -> Body) -> (Body, Vec<Problem>) {
    (body(Arc::new(spec)), problems)
}

/// Folds an object that a controller of ours wrote, of which it wants to know only that it is there.
fn report(raw: Raw<Nothing>, interner: &Interner) -> (Body, Vec<Problem>) {
    (Body::Report(Arc::new(fold::meta(&raw.meta, interner))), Vec::new())
}

/// Folds a Claim, or the one that marks that all are written.
fn claim(raw: Raw<InSpec<ClaimSpec>>, interner: &Interner) -> (Body, Vec<Problem>) {
    if raw.meta.name.as_deref() == Some(SETTLED) {
        let version = raw.meta.resource_version.as_deref().unwrap_or_default();
        let version = version.parse().unwrap_or_default();
        let is_withdrawn = raw.meta.annotations.contains_key(WITHDRAWN);
        return (Body::Mark(Mark { version, is_withdrawn }), Vec::new());
    }
    let (claim, problems) = fold::claim(raw, interner);
    (Body::Claim(claim), problems)
}

/// Folds an object of an origin.
pub(super) fn origin(watched: &WatchRow, raw: Raw<Value>, interner: &Interner) -> (Body, Vec<Problem>) {
    let meta = fold::meta(&raw.meta, interner);
    let (annotations, body) = (&raw.meta.annotations, raw.body.unwrap_or_default());
    let (says, problems) = (watched.fold)(Fetched { meta: &meta, annotations, body }, interner);
    (Body::Origin(says.map(|says| OriginObject { meta, says })), problems)
}

/// How the types of the conditions begin that only we write.
const OUR_PREFIX: &str = "vestibule.dev/";

fn has_our_condition(status: &Value) -> bool {
    let conditions = status.get("conditions").and_then(Value::as_array);
    let is_ours = |condition: &Value| {
        condition.get("type").and_then(Value::as_str).is_some_and(|kind| kind.starts_with(OUR_PREFIX))
    };
    conditions.into_iter().flatten().any(is_ours)
}

/// Folds what a watch reports and passes it to the store. A full list is passed as a whole.
struct Folding<F> {
    source: Source,
    epoch: u64,
    fold: F,
    interner: Interner,
    outbox: mpsc::Sender<Message>,
    listed: BTreeMap<ObjectName, Entry>,
}

impl<F> Folding<F> {
    fn entry<B>(&self, raw: Raw<B>) -> Entry
    where
        F: Fn(Raw<B>, &Interner) -> (Body, Vec<Problem>),
    {
        let (meta, status) = (raw.meta.clone(), raw.status.clone());
        let folded = (self.fold)(raw, &self.interner);
        entry(self.source, self.name(&meta), meta, status, folded)
    }

    fn name(&self, meta: &RawMeta) -> ObjectName {
        match self.source {
            // Nothing else contains its name.
            Source::Claims => ObjectName::new("", meta.name.as_deref().unwrap_or_default()),
            _ => fold::name(meta, &self.interner),
        }
    }
}

/// Returns an object with its status, where it is one of ours.
pub(super) fn entry(
    source: Source,
    name: ObjectName,
    meta: RawMeta,
    status: Value,
    (body, problems): (Body, Vec<Problem>),
) -> Entry {
    let is_ours = match &body {
        Body::Class(class) => class.is_some(),
        // One that was ours keeps our condition until it is taken away.
        Body::Service(service) => service.load_balancer.is_some() || has_our_condition(&status),
        Body::Slice(_) | Body::Namespace(_) | Body::Grant(_) | Body::Claim(_) | Body::Mark(_) => false,
        Body::Announcement(_) | Body::Advertisement(_) | Body::Node(_) => false,
        Body::Origin(object) => object.is_some() && source.kind().is_some(),
        Body::Pool(_) | Body::Gateway(_) | Body::ListenerSet(_) | Body::TlsRoute(_) | Body::TcpRoute(_) => {
            true
        }
        Body::Report(_) => true,
    };
    let status = is_ours.then(|| StoredStatus {
        resource_version: meta.resource_version.unwrap_or_default(),
        uid: meta.uid.unwrap_or_default(),
        status,
    });
    Entry { name, body, problems, status }
}

impl<B, F, const STATUS: bool> Sink<Object<B, STATUS>> for Folding<F>
where
    B: Send,
    F: Fn(Raw<B>, &Interner) -> (Body, Vec<Problem>) + Send,
{
    async fn take(&mut self, event: Event<Object<B, STATUS>>) {
        let news = match event {
            Event::Begin => {
                self.listed.clear();
                return;
            }
            Event::Listed(Object(raw)) => {
                let entry = self.entry(raw);
                self.listed.insert(entry.name.clone(), entry);
                return;
            }
            Event::Unlisted(Object(raw)) => {
                self.listed.remove(&self.name(&raw.meta));
                return;
            }
            Event::Done(_) => WatchEvent::Listed(std::mem::take(&mut self.listed).into_values().collect()),
            Event::Put(Object(raw)) => WatchEvent::Put(Box::new(self.entry(raw))),
            Event::Gone(Object(raw)) => WatchEvent::Gone(self.name(&raw.meta)),
            Event::Stale(why) => {
                tracing::warn!(
                    source = self.source.text(),
                    why,
                    "cannot be followed; what it said last serves on"
                );
                WatchEvent::Stale(why)
            }
            Event::Fresh => {
                tracing::info!(source = self.source.text(), "can be followed again");
                WatchEvent::Fresh
            }
        };
        // Nobody listens any more only when the store is gone, and then this task ends too.
        let _ = self.outbox.send(Message { source: self.source, epoch: self.epoch, news }).await;
    }
}
