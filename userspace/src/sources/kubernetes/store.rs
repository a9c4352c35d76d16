//! What the under cluster says, kept up to date.

use super::api::claim::SETTLED;
use super::discovery;
use super::source::Source;
use super::tables::Tables;
use super::watch_event::{Message, StoredStatus, WatchEvent};
use super::watches::{Options, Reads, Start};
use crate::model::cluster::Policy;
use crate::model::{
    Announcement, Change, ClaimSet, Cluster, Delta, Kind, ObjectName, ObjectRef, Places, Problem,
};
use crate::origins;
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// Most messages that wait for the store; the watches wait behind them.
const INBOX: usize = 1024;
/// Most messages that one [`Store::changed`] takes: under a stream of changes without end the caller still gets to act.
const BATCH: usize = 8 * INBOX;

/// What the under cluster says.
#[derive(Debug)]
pub struct Store {
    tables: Tables,
    sources: BTreeMap<Source, State>,
    inbox: mpsc::Receiver<Message>,
    /// The release that the Gateway API's CRDs are of.
    bundle: Option<String>,
    /// Something was taken from the inbox and not reported yet.
    is_touched: bool,
    /// More than endpoints and versions of Claims changed since [`Store::changes`].
    is_other: bool,
    /// Ends the watches with the store.
    watches: JoinSet<()>,
}

/// How far a source is.
#[derive(Debug, Default)]
struct State {
    progress: Progress,
    /// Since when, and why, it cannot be followed.
    stale: Option<(Instant, String)>,
    /// Which of its watches counts.
    epoch: u64,
    /// Served version of a kind that a CRD brings.
    version: Option<&'static str>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Progress {
    /// Not asked yet, or not answered.
    #[default]
    Unknown,
    /// Its CRD is known not to be there.
    Absent,
    /// There was a full list.
    Listed,
}

/// What changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Changes {
    /// Anything.
    All,
    /// Nothing else than this.
    Some {
        /// Services whose endpoints changed.
        endpoints: BTreeSet<ObjectName>,
        /// Whether Claims have other versions that say the same as before.
        are_renumbered: bool,
    },
}

impl From<Changes> for Delta {
    fn from(changes: Changes) -> Self {
        let changes = match changes {
            Changes::All => vec![Change::Objects],
            Changes::Some { endpoints, are_renumbered } => {
                let versions = are_renumbered.then_some(Change::Versions);
                endpoints.into_iter().map(Change::Endpoints).chain(versions).collect()
            }
        };
        Self { changes, places: Places::default() }
    }
}

/// A source that cannot be followed: what it said last is what is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stale {
    /// What is watched, as the API calls it: `services`.
    pub source: &'static str,
    /// Since when.
    pub since: Instant,
    /// Why: what the API server or the connection said.
    pub why: String,
}

impl Store {
    /// Begins to watch. Needs a tokio runtime.
    pub fn start(options: Options) -> Self {
        let (outbox, inbox) = mpsc::channel(INBOX);
        let mut store = Self::new(inbox, options.policy.clone(), options.reads);
        match options.reads {
            Reads::Origins => discovery::spawn(&mut store.watches, options, outbox),
            Reads::Claims => {
                let start = Start::new(options, outbox);
                for source in Source::of_agents() {
                    start.watch(&mut store.watches, source, "v1", 0);
                }
            }
        }
        store
    }

    /// Whether [`Store::set_policy`] can put this into effect: not if Services would have to be read again, or other kinds.
    pub fn can_take(&self, policy: &Policy) -> bool {
        let own = &self.tables.cluster.policy;
        own.probe_defaults == policy.probe_defaults
            && own.load_balancers == policy.load_balancers
            && origins::all().all(|origin| origin.is_on(own) == origin.is_on(policy))
            && own.pools.is_on() == policy.pools.is_on()
            && own.announces() == policy.announces()
    }

    /// Replaces what the chart allows and presets, except for that with which Services were read.
    pub fn set_policy(&mut self, policy: Policy) {
        let Policy { probe_defaults, load_balancers, .. } = self.tables.cluster.policy.clone();
        let policy = Policy { probe_defaults, load_balancers, ..policy };
        let is_other = self.tables.cluster.policy != policy;
        self.tables.cluster.policy = policy;
        self.is_touched |= is_other;
        self.is_other |= is_other;
    }

    /// Without watches.
    pub(super) fn new(inbox: mpsc::Receiver<Message>, policy: Policy, reads: Reads) -> Self {
        let mut tables = Tables::default();
        tables.cluster.policy = policy;
        let all: Vec<Source> = match reads {
            Reads::Origins => Source::of_controller(&tables.cluster.policy).collect(),
            Reads::Claims => Source::of_agents().collect(),
        };
        let sources = all.into_iter().map(|source| (source, State::default())).collect();
        Self {
            tables,
            sources,
            inbox,
            bundle: None,
            is_touched: false,
            is_other: true,
            watches: JoinSet::new(),
        }
    }

    /// Returns when something changed: an object, whether a source can be followed, or the end of a departed endpoint's
    /// grace. Takes everything that has come meanwhile. May be dropped at any time: nothing is lost.
    pub async fn changed(&mut self) {
        loop {
            if !self.is_touched {
                let expiry = self.tables.next_expiry();
                tokio::select! {
                    message = self.inbox.recv() => match message {
                        Some(message) => self.take(message),
                        // No watch is left; only time can change something.
                        None => match expiry {
                            Some(expiry) => tokio::time::sleep_until(expiry).await,
                            None => std::future::pending().await,
                        },
                    },
                    () = sleep_until(expiry) => {}
                }
                // What changes together often comes by several watches: they get their turn first.
                tokio::task::yield_now().await;
            }
            for _ in 0..BATCH {
                let Ok(message) = self.inbox.try_recv() else { break };
                self.take(message);
            }
            let settled = self.tables.settle(tokio::time::Instant::now());
            if std::mem::take(&mut self.is_touched) || settled {
                return;
            }
        }
    }

    /// What is known.
    pub fn cluster(&self) -> &Cluster {
        &self.tables.cluster
    }

    /// What a node serves: of no use before [`Store::is_complete`].
    pub fn claim_set(&self) -> ClaimSet<'_> {
        self.tables.claim_set()
    }

    /// Every Claim up to this version of the API server is in [`Store::claim_set`]; 0: none is known.
    pub fn claims_version(&self) -> u64 {
        self.tables.claims.version()
    }

    /// Returns whose Claims are not served as they were written, because something of them cannot be read, and what: `TLSRoute/ns/name`,
    /// or `Claim/name` where nothing is known of the origin.
    pub fn unread(&self) -> impl Iterator<Item = (Cow<'_, str>, &Problem)> {
        self.tables.claims.unread()
    }

    /// Whether Vestibule is withdrawn from the cluster.
    pub fn is_withdrawn(&self) -> bool {
        self.tables.claims.is_withdrawn()
    }

    /// What the cluster announces, as far as it is known.
    pub fn announcement(&self) -> Option<&Arc<Announcement>> {
        self.tables.announcement.as_ref()
    }

    /// What changed since this was last asked.
    pub fn changes(&mut self) -> Changes {
        let endpoints = self.tables.take_changed_endpoints();
        let are_renumbered = self.tables.claims.take_renumbered();
        match std::mem::take(&mut self.is_other) {
            true => Changes::All,
            false => Changes::Some { endpoints, are_renumbered },
        }
    }

    /// Takes the room out of what grew much, object by object, since the last time. To be called when idle.
    pub fn pack(&mut self) {
        self.tables.pack();
    }

    /// Whether every source had its first full list, or its CRD is known to be absent; and whether the controller had written all
    /// Claims. Until then nobody removes anything.
    pub fn is_complete(&self) -> bool {
        self.sources.iter().all(|(source, state)| {
            let is_known = state.progress != Progress::Unknown;
            (is_known || !source.is_needed() && state.stale.is_some())
                && (*source != Source::Claims || self.tables.claims.is_known())
        })
    }

    /// Sources of which there was no full list yet, and whose CRD is not known to be absent.
    pub(crate) fn unlisted(&self) -> BTreeSet<Source> {
        let unlisted = self.sources.iter().filter(|(_, state)| state.progress == Progress::Unknown);
        unlisted.map(|(source, _)| *source).collect()
    }

    /// Whether all that is served is known and followed at present.
    pub fn is_confirmed(&self) -> bool {
        let is_stale = |(source, state): (&Source, &State)| source.is_needed() && state.stale.is_some();
        self.is_complete()
            && self.tables.claims.unmarked_since().is_none()
            && !self.sources.iter().any(is_stale)
    }

    /// Sources that cannot be followed at present.
    pub fn stale(&self) -> Vec<Stale> {
        let stale = |(source, state): (&Source, &State)| {
            let (since, why) = state.stale.clone()?;
            Some(Stale { source: source.text(), since, why })
        };
        let is_listed = |state: &State| state.progress == Progress::Listed;
        let unmarked =
            self.sources.get(&Source::Claims).filter(|state| is_listed(state) && state.stale.is_none());
        let unmarked = unmarked.and_then(|_| self.tables.claims.unmarked_since()).map(|since| Stale {
            source: Source::Claims.text(),
            since,
            why: format!("there is no Claim {SETTLED}: the controller has not written all of them; see whether it leads"),
        });
        self.sources.iter().filter_map(stale).chain(unmarked).collect()
    }

    /// The status of an object; only with [`Options::statuses`], and of Services only those of our class, or with a condition of ours.
    pub fn status(&self, object: &ObjectRef) -> Option<&StoredStatus> {
        self.tables.status(object)
    }

    /// The served version of a kind; `None`: not served, or not known yet.
    pub fn version(&self, of: Kind) -> Option<&'static str> {
        let source = Source::of(of)?;
        source.fixed_version().or_else(|| self.sources.get(&source)?.version)
    }

    /// The release that the Gateway API's CRDs are of, such as `v1.6.3`; `None`: there are none, or they do not say it.
    pub fn bundle(&self) -> Option<&str> {
        self.bundle.as_deref()
    }

    fn take(&mut self, message: Message) {
        let Message { source, epoch, news } = message;
        let state = self.sources.entry(source).or_default();
        if epoch < state.epoch {
            return;
        }
        let is_other = match news {
            WatchEvent::Listed(entries) => {
                let first = state.progress != Progress::Listed;
                state.progress = Progress::Listed;
                self.tables.replace(source, entries) | first
            }
            WatchEvent::Put(entry) => self.tables.put(source, *entry),
            WatchEvent::Gone(name) => self.tables.remove(source, &name),
            WatchEvent::Stale(why) if state.stale.as_ref().is_some_and(|(_, told)| *told == why) => false,
            WatchEvent::Stale(why) => {
                let since = state.stale.take().map_or_else(Instant::now, |(since, _)| since);
                state.stale = Some((since, why));
                true
            }
            WatchEvent::Fresh => state.stale.take().is_some(),
            WatchEvent::Bundle(bundle) => std::mem::replace(&mut self.bundle, bundle.clone()) != bundle,
            WatchEvent::Present(version) => {
                state.epoch = epoch;
                state.version = Some(version);
                // A kind that appears holds up removals until its objects are known; one that changes its version does not.
                if state.progress == Progress::Absent {
                    state.progress = Progress::Unknown;
                }
                true
            }
            WatchEvent::Absent => {
                state.epoch = epoch;
                // Its objects may have gone one by one before: that the kind is gone is news nevertheless.
                let was_served = state.version.take().is_some();
                let was_stale = state.stale.take().is_some();
                let is_first = state.progress == Progress::Unknown;
                state.progress = Progress::Absent;
                if source == Source::GatewayClasses {
                    self.bundle = None;
                }
                self.tables.replace(source, Vec::new()) | was_served | was_stale | is_first
            }
        };
        self.is_touched |= is_other || self.tables.claims.is_renumbered();
        // Nothing is compiled with what is announced.
        self.is_other |= is_other && (source.is_needed() || self.tables.problems_changed());
    }
}

async fn sleep_until(expiry: Option<tokio::time::Instant>) {
    match expiry {
        Some(expiry) => tokio::time::sleep_until(expiry).await,
        None => std::future::pending().await,
    }
}
