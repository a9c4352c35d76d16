//! Follows all objects of one kind, whatever the API server does.
//!
//! `kube::runtime::watcher` is not used: it does not show when a broken watch works again, which is what makes the
//! difference between stale and fresh, and waits without end for an answer to a request.

use super::api::object::{Object, Page};
use super::retry::{Chance, Retry, before_list, chance, watch_secs, while_not_found};
use super::target::Target;
use super::trouble::Trouble;
use futures_util::TryStreamExt as _;
use kube::api::{ListParams, WatchParams};
use kube::core::{Request, WatchEvent};
use kube::{Client, Resource};
use serde::de::{DeserializeOwned, IgnoredAny};
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// A watch without a byte for this long is asked for again: its packets may go nowhere. The server sends a bookmark about
/// every minute.
const SILENCE: Duration = Duration::from_secs(90);
/// A watch that the server has not ended by this much later is ended.
const LATE: Duration = Duration::from_secs(5);
/// A watch that ends or is refused within this time never worked.
const WORKS: Duration = Duration::from_secs(1);
/// The answer to a request begins within this time.
const ANSWER: Duration = Duration::from_secs(10);
/// A list given as a stream without a byte for this long has failed. If nothing at all came, the server may ignore that it is asked for
/// streams; objects that came say that it is slow.
const STREAM_SILENCE: Duration = Duration::from_secs(10);
/// A server that refused to give a list as a stream is not asked for one for this long: it may be replaced by a newer one.
const NO_STREAMS: Duration = Duration::from_secs(600);
/// A page of a list has come within this time.
const PAGE: Duration = Duration::from_secs(30);
/// Objects a page.
const PAGE_OBJECTS: u32 = 500;
/// A kind that the server does not know is stale after this time: its CRD may be coming or going just now.
const NOT_FOUND: Duration = Duration::from_secs(2);
/// A version that expires again so soon was too old from the beginning.
const EXPIRED_AGAIN: Duration = Duration::from_secs(60);

/// What a watch reports of its kind.
#[derive(Debug)]
pub(crate) enum Event<T> {
    /// A full list begins.
    Begin,
    /// It holds this object.
    Listed(T),
    /// It does not hold this object any more, which was deleted meanwhile.
    Unlisted(T),
    /// It is complete, at this version: there are no other objects.
    Done(String),
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
pub(crate) trait Sink<T>: Send {
    /// Takes an event, in its own time: the watch waits.
    fn take(&mut self, event: Event<T>) -> impl Future<Output = ()> + Send;
}

/// What can be watched.
pub(crate) trait Watched: Clone + DeserializeOwned + Send + 'static {
    /// `metadata.resourceVersion`.
    fn version(&self) -> Option<&str>;
}

impl<B: Clone + DeserializeOwned + Send + 'static, const STATUS: bool> Watched for Object<B, STATUS> {
    fn version(&self) -> Option<&str> {
        self.0.meta.resource_version.as_deref()
    }
}

impl<K: Resource + Clone + DeserializeOwned + Send + 'static> Watched for K {
    fn version(&self) -> Option<&str> {
        self.meta().resource_version.as_deref()
    }
}

/// One watch.
pub(crate) struct Watch<T, S> {
    client: Client,
    request: Request,
    target: Target,
    sink: S,
    /// Where to go on; `None`: with a full list.
    resume: Option<String>,
    /// A full list is at least as new as this: it never takes us back.
    floor: String,
    /// There was a full list, so that another one can wait.
    was_listed: bool,
    /// From when on lists are asked for as streams.
    streams_from: Instant,
    retry: Retry,
    chance: Chance,
    /// The reason that was reported for being stale.
    told: Option<String>,
    /// The last watch ended as one of a server that is started again may, without a failure: in silence, or before its time.
    is_doubtful: bool,
    /// Since when the server has not known the kind.
    not_found_since: Option<Instant>,
    /// When the version to go on from was found to be too old last.
    expired: Option<Instant>,
    _object: std::marker::PhantomData<fn() -> T>,
}

impl<T: Watched, S: Sink<T>> Watch<T, S> {
    /// A watch that reports to `sink`.
    pub(crate) fn new(client: Client, target: Target, sink: S) -> Self {
        Self {
            client,
            request: Request::new(target.path.clone()),
            target,
            sink,
            resume: None,
            floor: String::new(),
            was_listed: false,
            streams_from: Instant::now(),
            retry: Retry::default(),
            chance,
            told: None,
            is_doubtful: false,
            not_found_since: None,
            expired: None,
            _object: std::marker::PhantomData,
        }
    }

    /// The same, with another source of chance.
    #[cfg(test)]
    pub(super) fn by_chance(self, chance: Chance) -> Self {
        Self { chance, ..self }
    }

    /// Watches for ever.
    pub(crate) async fn run(mut self) {
        loop {
            let started = Instant::now();
            let ended = if self.resume.is_none() && started < self.streams_from {
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
        if let Some(known) = self.resume.clone().filter(|_| self.has_failed()) {
            self.check_history(known).await?;
        }
        let mut is_listing = self.resume.is_none();
        let seconds = watch_secs((self.chance)());
        let params = WatchParams {
            label_selector: self.target.labels.clone(),
            field_selector: self.target.fields.clone(),
            timeout: Some(seconds),
            bookmarks: true,
            send_initial_events: is_listing,
        };
        let from = self.resume.as_ref().unwrap_or(&self.floor);
        let request = if self.target.is_metadata_only {
            self.request.watch_metadata(&params, from)
        } else {
            self.request.watch(&params, from)
        };
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let answer = timeout(ANSWER, self.client.request_events::<T>(request));
        let mut events = std::pin::pin!(answer.await.map_err(|_| Trouble::Silent(ANSWER))??);
        self.not_found_since = None;
        if is_listing {
            self.sink.take(Event::Begin).await;
        }
        let end = started + Duration::from_secs(seconds.into()) + LATE;
        let mut is_empty = true;
        loop {
            let patience = match &self.told {
                _ if is_listing => STREAM_SILENCE,
                Some(_) => WORKS,
                None => SILENCE,
            };
            let event = match timeout_at(end.min(Instant::now() + patience), events.try_next()).await {
                Err(_) if is_listing && is_empty => return Err(Trouble::NoStreaming),
                // Pages from all nodes, and at once, would be more load on a server that has too much.
                Err(_) if is_listing => return Err(Trouble::Silent(STREAM_SILENCE)),
                // A version that is too old is said at once: this one is not.
                Err(_) if self.told.is_some() => {
                    self.on_fresh().await;
                    continue;
                }
                // What comes next shows whether the server is there.
                Err(_) => {
                    self.is_doubtful = true;
                    return Ok(());
                }
                Ok(event) => event?,
            };
            match event {
                None if is_listing => {
                    return Err(Trouble::Failed("the connection ended within the list".into()));
                }
                None if is_empty && started.elapsed() < WORKS => {
                    return Err(Trouble::Failed("the API server ends each watch at once".into()));
                }
                None => {
                    self.is_doubtful = started.elapsed() + WORKS < Duration::from_secs(seconds.into());
                    return Ok(());
                }
                Some(event) => is_listing = self.take(event, is_listing).await?,
            }
            is_empty = false;
        }
    }

    /// Whether the server has, or may have, failed since it was followed last: it may have been started from a backup.
    fn has_failed(&self) -> bool {
        self.told.is_some() || self.not_found_since.is_some() || self.is_doubtful
    }

    /// Compares the version that we know with the server's. A server that has not reached the former follows from it all the same, and
    /// leaves out what it writes until then.
    async fn check_history(&mut self, known: String) -> Result<(), Trouble> {
        let params = ListParams {
            label_selector: self.target.labels.clone(),
            field_selector: self.target.fields.clone(),
            limit: Some(1),
            ..ListParams::default()
        };
        let request = self.request.list_metadata(&params);
        let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
        let answer = timeout(ANSWER, self.client.request::<Page<IgnoredAny>>(request)).await;
        let now = answer.map_err(|_| Trouble::Silent(ANSWER))??.metadata.resource_version.unwrap_or_default();
        let number = |version: &str| version.parse::<u64>().ok();
        self.is_doubtful = false;
        match number(&now) < number(&known) && !now.is_empty() {
            true => Err(Trouble::OtherHistory(format!(
                "the API server is at version {now} and was at {known}: a backup was restored, and everything is read again"
            ))),
            false => Ok(()),
        }
    }

    /// One event of a watch. Whether the list goes on.
    async fn take(&mut self, event: WatchEvent<T>, is_listing: bool) -> Result<bool, Trouble> {
        if !is_listing && !matches!(event, WatchEvent::Error(_)) {
            self.on_fresh().await;
        }
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) if is_listing => {
                self.sink.take(Event::Listed(object)).await;
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.reached(object.version());
                self.sink.take(Event::Put(object)).await;
            }
            WatchEvent::Deleted(object) if is_listing => self.sink.take(Event::Unlisted(object)).await,
            WatchEvent::Deleted(object) => {
                self.reached(object.version());
                self.sink.take(Event::Gone(object)).await;
            }
            WatchEvent::Bookmark(bookmark) => {
                if is_listing && bookmark.metadata.annotations.contains_key("k8s.io/initial-events-end") {
                    self.listed(&bookmark.metadata.resource_version).await;
                    return Ok(false);
                }
                self.reached(Some(&bookmark.metadata.resource_version));
            }
            WatchEvent::Error(status) => return Err((*status).into()),
        }
        Ok(is_listing)
    }

    /// A full list in pages.
    async fn list_pages(&mut self) -> Result<(), Trouble> {
        let mut params = ListParams {
            label_selector: self.target.labels.clone(),
            field_selector: self.target.fields.clone(),
            limit: Some(PAGE_OBJECTS),
            ..ListParams::default()
        };
        self.sink.take(Event::Begin).await;
        loop {
            let request = if self.target.is_metadata_only {
                self.request.list_metadata(&params)
            } else {
                self.request.list(&params)
            };
            let request = request.map_err(|error| Trouble::Failed(error.to_string()))?;
            let answer = timeout(PAGE, self.client.request::<Page<T>>(request)).await;
            let page = answer.map_err(|_| Trouble::Silent(PAGE))??;
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
            self.listed(&version).await;
            return Ok(());
        }
    }

    /// A full list is complete, at this version.
    async fn listed(&mut self, version: &str) {
        self.was_listed = true;
        self.resume = Some(String::new());
        self.reached(Some(version));
        self.sink.take(Event::Done(version.to_owned())).await;
        self.on_fresh().await;
    }

    /// We know all there was at this version.
    fn reached(&mut self, version: Option<&str>) {
        // Within a list, the versions of its objects are in no order.
        if let (Some(resume), Some(version)) =
            (&mut self.resume, version.filter(|version| !version.is_empty()))
        {
            version.clone_into(resume);
            version.clone_into(&mut self.floor);
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
        // Pages follow a stream at once: it is the same list.
        let is_same_list = trouble == Trouble::NoStreaming;
        let wait = self.after(trouble, lasted).await;
        // What makes one node list again often makes all of them do so. A first list does not wait: nothing is served before.
        let is_relist = self.resume.is_none() && self.was_listed && !is_same_list;
        if is_relist { wait.max(before_list((self.chance)())) } else { wait }
    }

    /// Reports a failure. Returns how long to wait for the server's sake, after all that failed before.
    async fn after(&mut self, trouble: Trouble, mut lasted: Duration) -> Duration {
        let why = match trouble {
            Trouble::NoStreaming => {
                self.streams_from = Instant::now() + NO_STREAMS;
                return Duration::ZERO;
            }
            Trouble::Expired => {
                self.resume = None;
                let before = self.expired.replace(Instant::now());
                if before.is_none_or(|at| at.elapsed() >= EXPIRED_AGAIN) {
                    // The server works: the wait does not grow by the failures before, of a server that was away. What was
                    // not stale then is not stale now.
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
                    return while_not_found((self.chance)());
                }
                Some(why)
            }
            // To wait in vain was no good time: the next wait grows.
            Trouble::Silent(_) => {
                lasted = Duration::ZERO;
                Some(trouble.to_string())
            }
            Trouble::Failed(why) => Some(why),
        };
        if let Some(why) = why
            && self.told.as_ref() != Some(&why)
        {
            self.told = Some(why.clone());
            self.sink.take(Event::Stale(why)).await;
        }
        self.retry.after_failure(lasted, (self.chance)())
    }
}
