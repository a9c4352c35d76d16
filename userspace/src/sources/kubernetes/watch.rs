//! Follows all objects of one kind, whatever the API server does.
//!
//! `kube::runtime::watcher` is not used: it does not show when a broken watch works again, which is what makes the
//! difference between stale and fresh, and waits without end for an answer to a request.

use super::api::object::{Object, Page, RawMeta};
use super::retry::{Retry, chance};
use super::source::Source;
use super::trouble::Trouble;
use futures_util::TryStreamExt as _;
use kube::Client;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use serde::de::DeserializeOwned;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// After this time the server ends a watch, in seconds.
const WATCH_SECS: u32 = 45;
/// A watch that the server has not ended by this much later is dead: its packets go nowhere.
const DEAD: Duration = Duration::from_secs(5);
/// The answer to a request begins within this time.
const ANSWER: Duration = Duration::from_secs(10);
/// Nothing new in a list given as a stream for this long: the server does not know of such lists (before 1.27) and will
/// never say that this was all.
const STREAM_SILENCE: Duration = Duration::from_secs(10);
/// A page of a list has come within this time.
const PAGE: Duration = Duration::from_secs(30);
/// Objects a page.
const PAGE_OBJECTS: u32 = 500;
/// A kind that the server does not know is stale after this time: its CRD may be coming or going just now.
const NOT_FOUND: Duration = Duration::from_secs(2);
/// A version that expires again so soon was too old from the beginning.
const EXPIRED_AGAIN: Duration = Duration::from_secs(60);
/// From one question to the next in that time.
const NOT_FOUND_RETRY: Duration = Duration::from_millis(100);

/// What a watch reports of its kind.
#[derive(Debug)]
pub(super) enum Event<T> {
    /// A full list begins.
    Begin,
    /// It holds this object.
    Listed(T),
    /// It is complete: there are no other objects.
    Done,
    /// A new or changed object.
    Put(T),
    /// An object is gone.
    Gone(T),
    /// The kind cannot be watched, and why. Reported again when the reason changes.
    Stale(String),
    /// It can be followed again.
    Fresh,
}

/// The receiver of the reports of a watch.
pub(super) trait Sink<T>: Send {
    /// Takes an event, in its own time: the watch waits.
    fn take(&mut self, event: Event<T>) -> impl Future<Output = ()> + Send;
}

/// What can be watched.
pub(super) trait Watched: Clone + DeserializeOwned + Send + 'static {
    /// Its metadata.
    fn meta(&self) -> &RawMeta;
}

impl<B: Clone + DeserializeOwned + Send + 'static, const STATUS: bool> Watched for Object<B, STATUS> {
    fn meta(&self) -> &RawMeta {
        &self.0.meta
    }
}

/// One watch.
pub(super) struct Watch<T, S> {
    client: Client,
    request: Request,
    labels: Option<String>,
    is_metadata_only: bool,
    sink: S,
    /// Where to go on; `None`: with a full list.
    resume: Option<String>,
    /// A full list is at least as new as this: it never takes us back.
    floor: String,
    /// Whether lists come as streams.
    is_streaming: bool,
    retry: Retry,
    /// The reason that was reported for being stale.
    told: Option<String>,
    /// Since when the server has not known the kind.
    not_found_since: Option<Instant>,
    /// When the version to go on from was found to be too old last.
    expired: Option<Instant>,
    _object: std::marker::PhantomData<fn() -> T>,
}

impl<T: Watched, S: Sink<T>> Watch<T, S> {
    /// A watch of all objects of the kind in this version.
    pub(super) fn new(client: Client, source: Source, version: &str, sink: S) -> Self {
        let labels = source.label_selector();
        Self {
            client,
            request: Request::new(source.path(version)),
            labels: (!labels.is_empty()).then(|| labels.to_owned()),
            is_metadata_only: source.is_metadata_only(),
            sink,
            resume: None,
            floor: String::new(),
            is_streaming: true,
            retry: Retry::default(),
            told: None,
            not_found_since: None,
            expired: None,
            _object: std::marker::PhantomData,
        }
    }

    /// Watches for ever.
    pub(super) async fn run(mut self) {
        loop {
            let started = Instant::now();
            let ended = if self.resume.is_none() && !self.is_streaming {
                self.list_pages().await
            } else {
                self.follow().await
            };
            if let Err(trouble) = ended {
                let wait = self.on_error(trouble, started.elapsed()).await;
                sleep(wait).await;
            }
        }
    }

    /// One request for a watch, to its end: from where we are, or from a list given as a stream.
    async fn follow(&mut self) -> Result<(), Trouble> {
        let started = Instant::now();
        let mut is_listing = self.resume.is_none();
        let params = WatchParams {
            label_selector: self.labels.clone(),
            timeout: Some(WATCH_SECS),
            bookmarks: true,
            send_initial_events: is_listing,
            ..WatchParams::default()
        };
        let from = self.resume.as_ref().unwrap_or(&self.floor);
        let request = if self.is_metadata_only {
            self.request.watch_metadata(&params, from)
        } else {
            self.request.watch(&params, from)
        };
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let answer = timeout(ANSWER, self.client.request_events::<T>(request));
        let mut events = std::pin::pin!(answer.await.map_err(|_| silent(ANSWER))??);
        if is_listing {
            self.sink.take(Event::Begin).await;
        } else {
            self.on_fresh().await;
        }
        let end = started + Duration::from_secs(WATCH_SECS.into()) + DEAD;
        let mut is_empty = true;
        loop {
            let until = if is_listing { Instant::now() + STREAM_SILENCE } else { end };
            let event = match timeout_at(until, events.try_next()).await {
                Err(_) if is_listing => return Err(Trouble::NoStreaming),
                // What comes next shows whether the server is there.
                Err(_) => return Ok(()),
                Ok(event) => event?,
            };
            match event {
                None if is_listing => {
                    return Err(Trouble::Failed("the connection ended within the list".into()));
                }
                None if is_empty && started.elapsed() < Duration::from_secs(1) => {
                    return Err(Trouble::Failed("the API server ends each watch at once".into()));
                }
                None => return Ok(()),
                Some(event) => is_listing = self.take(event, is_listing).await?,
            }
            is_empty = false;
        }
    }

    /// One event of a watch. Whether the list goes on.
    async fn take(&mut self, event: WatchEvent<T>, is_listing: bool) -> Result<bool, Trouble> {
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) if is_listing => {
                self.sink.take(Event::Listed(object)).await;
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.reached(object.meta().resource_version.clone());
                self.sink.take(Event::Put(object)).await;
            }
            WatchEvent::Deleted(object) => {
                self.reached(object.meta().resource_version.clone());
                self.sink.take(Event::Gone(object)).await;
            }
            WatchEvent::Bookmark(bookmark) => {
                if is_listing && bookmark.metadata.annotations.contains_key("k8s.io/initial-events-end") {
                    self.resume = Some(String::new());
                    self.reached(Some(bookmark.metadata.resource_version));
                    self.sink.take(Event::Done).await;
                    self.on_fresh().await;
                    return Ok(false);
                }
                self.reached(Some(bookmark.metadata.resource_version));
            }
            WatchEvent::Error(status) => return Err((*status).into()),
        }
        Ok(is_listing)
    }

    /// A full list in pages.
    async fn list_pages(&mut self) -> Result<(), Trouble> {
        let mut params = ListParams {
            label_selector: self.labels.clone(),
            limit: Some(PAGE_OBJECTS),
            ..ListParams::default()
        };
        self.sink.take(Event::Begin).await;
        loop {
            let request = if self.is_metadata_only {
                self.request.list_metadata(&params)
            } else {
                self.request.list(&params)
            };
            let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
            let answer = timeout(PAGE, self.client.request::<Page<T>>(request)).await;
            let page = answer.map_err(|_| silent(PAGE))??;
            for object in page.items.into_iter().flatten() {
                self.sink.take(Event::Listed(object)).await;
            }
            params.continue_token = page.metadata.r#continue.filter(|token| !token.is_empty());
            if params.continue_token.is_some() {
                continue;
            }
            let Some(version) = page.metadata.resource_version.filter(|version| !version.is_empty()) else {
                return Err(Trouble::Failed("the API server gave a list without resourceVersion".into()));
            };
            self.resume = Some(String::new());
            self.reached(Some(version));
            self.sink.take(Event::Done).await;
            self.on_fresh().await;
            return Ok(());
        }
    }

    /// We know all there was at this version.
    fn reached(&mut self, version: Option<String>) {
        // Within a list, the versions of its objects are in no order.
        if let (Some(resume), Some(version)) =
            (&mut self.resume, version.filter(|version| !version.is_empty()))
        {
            resume.clone_from(&version);
            self.floor = version;
        }
    }

    /// The server answers as it should. That it goes on doing so, and the next failure is a first one, only time shows.
    async fn on_fresh(&mut self) {
        self.not_found_since = None;
        if self.told.take().is_some() {
            self.sink.take(Event::Fresh).await;
        }
    }

    /// Reports a failure. Returns how long to wait.
    async fn on_error(&mut self, trouble: Trouble, lasted: Duration) -> Duration {
        let why = match trouble {
            Trouble::NoStreaming => {
                self.is_streaming = false;
                return Duration::ZERO;
            }
            Trouble::Expired => {
                self.resume = None;
                let before = self.expired.replace(Instant::now());
                if before.is_none_or(|at| at.elapsed() >= EXPIRED_AGAIN) {
                    // The server works and nothing was reported as stale: changes until then must not wait for a list
                    // as long as failures before, of a server that was away, would have it.
                    return Duration::ZERO;
                }
                Some(trouble.to_string())
            }
            Trouble::OtherHistory(why) => {
                self.resume = None;
                self.floor.clear();
                Some(why)
            }
            Trouble::NotFound(why) => {
                if self.not_found_since.get_or_insert_with(Instant::now).elapsed() < NOT_FOUND {
                    return NOT_FOUND_RETRY;
                }
                Some(why)
            }
            Trouble::Failed(why) => Some(why),
        };
        if let Some(why) = why
            && self.told.as_ref() != Some(&why)
        {
            self.told = Some(why.clone());
            self.sink.take(Event::Stale(why)).await;
        }
        self.retry.after_failure(lasted, chance())
    }
}

fn silent(waited: Duration) -> Trouble {
    Trouble::Failed(format!("the API server did not answer within {} s", waited.as_secs()))
}
