//! Origins: kinds of objects that ask for names at TLS listeners of the chart's file. Each is one module and one line of [`TABLE`]; what
//! is watched, kept, settled, judged, written and withdrawn of it follows from there.
//!
//! ```text
//! watch ──► fold ──► OriginObject ──► asks ──► settle ──► Claims
//!                                                  └────► judge ──► OriginVerdict ──► desired_status
//! ```
//! Gateways, ListenerSets, routes and Services are no origins in this sense: they share listeners and addresses with each other.

/// An object as an origin gets it.
mod fetched;
/// What objects ask for, and what became of it.
mod ask;
/// Ingress v1.
pub(crate) mod ingress;
#[cfg(test)]
pub(crate) mod tests;

pub(crate) use ask::{Answer, Ask, AskView, Asking, Lost};
pub(crate) use fetched::Fetched;

use crate::model::cluster::Policy;
use crate::model::verdict::OriginVerdict;
use crate::model::{Cluster, Kind, ObjectName, Opaque, OriginObject, Problem, Resource};
use crate::sources::kubernetes::interner::Interner;
use crate::sources::kubernetes::served::{Extent, Served};
use crate::status::progress::Progress;
use serde_json::Value;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;

/// All origins: one line each.
pub(crate) static TABLE: &[&dyn Origin] = &[&ingress::Ingress];

/// A kind of object that asks for something, with all that is particular to it.
pub(crate) trait Origin: Sync {
    /// The kind of its objects.
    fn kind(&self) -> Kind;

    /// Its name in the chart's values, and among the rights that the chart grants for it.
    fn section(&self) -> &'static str;

    /// Whether the chart says that it is served. If not, nothing of it is read.
    fn is_on(&self, policy: &Policy) -> bool;

    /// What is read for it: its own kind, with the status of its objects, and others. While one of them cannot be listed, status,
    /// Events and Claims of its objects wait.
    fn watched(&self) -> &'static [WatchRow];

    /// Beginnings of the annotations that it reads, besides ours.
    fn annotations(&self) -> &'static [&'static str] {
        &[]
    }

    /// Returns the objects that are served, each with what it asks for.
    fn asks<'a>(&self, view: &AskView<'_, 'a>) -> Vec<Asking<'a>>;

    /// Returns the Services that an object leads to: what is wrong with them is reported.
    fn services(&self, object: &OriginObject) -> Vec<ObjectName>;

    /// Judges an object by what became of its asks: adds problems, which become Events on it, and returns what its status needs besides
    /// the rest of the verdict.
    fn judge(
        &self,
        cluster: &Cluster,
        object: &OriginObject,
        answers: &[Answer<'_, '_>],
        problems: &mut Vec<Problem>,
    ) -> Opaque;

    /// Whether a status says of all that the verdict is about that nodes hold it.
    fn shows(&self, current: &Value, verdict: &OriginVerdict) -> bool;

    /// Returns what to write to the status of an object that is served. `ours`: where the chart's listeners take connections, by which a
    /// status that we wrote is known; `now` is RFC 3339, UTC.
    fn desired_status(
        &self,
        current: &Value,
        verdict: &OriginVerdict,
        progress: &Progress,
        ours: &BTreeSet<SocketAddr>,
        now: &str,
    ) -> Option<Value>;

    /// Returns what to write to the status of an object that is not served.
    fn left(&self, current: &Value, ours: &BTreeSet<SocketAddr>) -> Option<Value>;

    /// The same when Vestibule leaves the cluster.
    fn withdrawn(
        &self,
        cluster: &Cluster,
        object: &OriginObject,
        current: &Value,
        ours: &BTreeSet<SocketAddr>,
        now: &str,
    ) -> Option<Value>;
}

/// How an object is folded. `None`: it is none of ours.
pub(crate) type Fold = fn(Fetched<'_>, &Interner) -> (Option<Opaque>, Vec<Problem>);

/// A kind of object that is read for an origin.
pub(crate) struct WatchRow {
    /// The kind that waits for it.
    pub(crate) of: Kind,
    /// What the API calls it.
    pub(crate) resource: Resource,
    /// How it comes into the cluster.
    pub(crate) served: Served,
    /// What is watched of it.
    pub(crate) extent: Extent,
    /// From an object to what decisions need of it.
    pub(crate) fold: Fold,
}

impl WatchRow {
    /// Whether these are the objects that ask.
    pub(crate) fn asks(&self) -> bool {
        self.of.resource() == self.resource
    }
}

impl PartialEq for WatchRow {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for WatchRow {}

impl Ord for WatchRow {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.of, self.resource).cmp(&(other.of, other.resource))
    }
}

impl PartialOrd for WatchRow {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl std::hash::Hash for WatchRow {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        (self.of, self.resource).hash(state);
    }
}

impl fmt::Debug for WatchRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {}", self.resource.plural, self.of)
    }
}

/// Returns all origins; in unit tests, that of `tests` too.
pub(crate) fn all() -> impl Iterator<Item = &'static dyn Origin> {
    #[cfg(test)]
    let more = tests::TABLE;
    #[cfg(not(test))]
    let more: &[&dyn Origin] = &[];
    TABLE.iter().chain(more).copied()
}

/// Returns all kinds of objects that ask for something.
pub(crate) fn kinds() -> impl Iterator<Item = Kind> {
    Kind::own().chain(all().map(Origin::kind))
}

/// Returns the kind that Claims and NodeStates call by this name.
pub(crate) fn kind(text: &str) -> Option<Kind> {
    kinds().find(|kind| kind.text() == text)
}

/// Whether this annotation is read by an origin.
pub(crate) fn reads_annotation(name: &str) -> bool {
    all().any(|origin| origin.annotations().iter().any(|prefix| name.starts_with(prefix)))
}
