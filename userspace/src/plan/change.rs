//! Map writes.

use common::decide::route_key;
use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::flow::ClientTuple;
use common::maps::listener::{AddressRole, Listener, ListenerKey};
use common::maps::policy::PolicyKey;
use common::maps::route::{Label, LabelKey, MemberKey, NameKey, NameRoute, Page, PageKey, Route, SuffixKey};
use common::maps::settings::{Ids, Settings};
use common::reason::Reason;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::model::{ServerName, SourceRanges};

/// One write to one map. A first plan of a million routes has about six million of them. Names and labels
/// have a large fixed width in their maps, so until they are written, the text is shared with
/// what is desired.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// `SETTINGS[0]`.
    PutSettings(Settings),
    /// `IDS[0]`; written before the first use of a new id.
    PutIds(Ids),
    /// `ADDRESSES`, insert or overwrite.
    PutAddress(Address, AddressRole),
    /// `ADDRESSES`.
    DeleteAddress(Address),
    /// `LISTENERS`, insert or overwrite.
    PutListener(ListenerKey, Listener),
    /// `LISTENERS`.
    DeleteListener(ListenerKey),
    /// `ROUTES_EXACT` or `ROUTES_LONG`, insert or overwrite. The key is the result of [`name_key`] for this
    /// listener id and name.
    PutName(u32, ServerName, NameRoute),
    /// The same for a pattern of one label before this suffix. The key is the result of [`one_label_key`].
    PutOneLabel(u32, ServerName, NameRoute),
    /// `ROUTES_EXACT` or `ROUTES_LONG`: a name, or a pattern of one label.
    DeleteName(Box<NameKey>),
    /// `ROUTES_WILDCARD`, insert or overwrite. The key is the result of [`suffix_key`] for this listener id
    /// and suffix.
    PutWildcard(u32, ServerName, NameRoute),
    /// `ROUTES_WILDCARD`.
    DeleteWildcard(Box<SuffixKey>),
    /// `POLICIES`: clients of this range are admitted.
    PutPolicy(PolicyKey),
    /// `POLICIES`.
    DeletePolicy(PolicyKey),
    /// `ROUTES`, insert or overwrite: the one write that switches a route's backends.
    PutRoute(u32, Route),
    /// `ROUTES`.
    DeleteRoute(u32),
    /// `LABELS`. The value is the result of [`label`] for this name.
    PutLabel(LabelKey, Arc<str>),
    /// `LABELS`.
    DeleteLabel(LabelKey),
    /// `MAGLEV`.
    PutPage(PageKey, Box<Page>),
    /// `MAGLEV`.
    DeletePage(PageKey),
    /// `MEMBERS`; the value is a backend id.
    PutMember(MemberKey, u32),
    /// `MEMBERS`.
    DeleteMember(MemberKey),
    /// `BACKENDS`, insert or overwrite; retiring is a put with `BACKEND_RETIRED`.
    PutBackend(u32, Backend),
    /// `BACKENDS`.
    DeleteBackend(u32),
    /// `ROUTE_COUNTERS`: inserts an entry of zeros if there is none.
    PutRouteCounters(u32),
    /// `ROUTE_COUNTERS`.
    DeleteRouteCounters(u32),
    /// Waits until every packet in flight at this point has been handled (an RCU grace period). The following
    /// writes remove entries that such a packet may be in the middle of looking up.
    Settle,
    /// Ends the flows, half-open connections and waiting hellos that the selector matches.
    Reset(Box<Selector>),
}

/// Returns the key of an exact name; `None` for a name that no client can request.
pub fn name_key(listener: u32, name: &ServerName) -> Option<NameKey> {
    let (bytes, length) = route_key::buffer(name.as_str().as_bytes())?;
    let mut key = NameKey::zeroed();
    route_key::exact(&mut key, listener, &bytes, length);
    Some(key)
}

/// Returns the key of a pattern of one label by its suffix; `None` for one that no name can match.
pub fn one_label_key(listener: u32, suffix: &ServerName) -> Option<NameKey> {
    route_key::one_label(listener, suffix.as_str().as_bytes())
}

/// Returns the key of a wildcard by its suffix; `None` for one that no name can match.
pub fn suffix_key(listener: u32, suffix: &ServerName) -> Option<SuffixKey> {
    route_key::wildcard(listener, suffix.as_str().as_bytes())
}

/// Returns the value in `LABELS` for a name.
pub fn label(name: &str) -> Label {
    let mut label = Label::zeroed();
    for (to, from) in label.text.iter_mut().zip(name.as_bytes()) {
        *to = *from;
    }
    label.length = name.len().min(label.text.len()) as u8;
    label
}

/// Selects the connections to be ended.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    /// Ids of backends that are gone.
    pub backends: BTreeSet<u32>,
    /// Ids of listeners that are gone.
    pub listeners: BTreeSet<u32>,
    /// (listener id, route id): the route is no longer on that listener.
    pub detached: BTreeSet<(u32, u32)>,
    /// (listener id, address and port that clients dialled): the listener no longer answers there.
    pub withdrawn: BTreeSet<(u32, ListenerKey)>,
    /// Route id to whose connections it admits from now on.
    pub ranges: BTreeMap<u32, Admission>,
    /// The generation of the first connection that was made when all this was in force, or of a later one: if it is of a route or an
    /// address that has come back, it stays. `None`: not known.
    pub since: Option<u32>,
}

/// Whose connections a route admits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Admission {
    /// `None`: anybody's.
    pub ranges: Option<SourceRanges>,
    /// The generation of the first connection that was admitted by these ranges, or later ones. `None`: not known yet.
    pub since: Option<u32>,
}

impl Selector {
    /// Whether it matches no connection at all.
    pub fn is_empty(&self) -> bool {
        self.backends.is_empty()
            && self.listeners.is_empty()
            && self.detached.is_empty()
            && self.withdrawn.is_empty()
            && self.ranges.is_empty()
    }

    /// Extends the selector to also match what `other` matches.
    pub fn join(&mut self, other: Self) {
        if self.is_empty() {
            self.since = other.since;
        } else if !other.is_empty() {
            // What the later one removed may have been there when the earlier one was in force.
            self.since = None;
        }
        self.backends.extend(other.backends);
        self.listeners.extend(other.listeners);
        self.detached.extend(other.detached);
        self.withdrawn.extend(other.withdrawn);
        self.ranges.extend(other.ranges);
    }

    /// Returns the ids of routes of which it matches connections whatever their backend.
    pub fn routes(&self) -> BTreeSet<u32> {
        let refusing = self.ranges.iter().filter(|(_, admission)| admission.ranges.is_some());
        self.detached.iter().map(|(_, route)| *route).chain(refusing.map(|(route, _)| *route)).collect()
    }

    /// Notes that connections of this generation and later ones were admitted by these ranges, or later ones.
    pub fn admit_since(&mut self, generation: u32) {
        self.ranges.values_mut().for_each(|admission| admission.since = Some(generation));
    }

    /// Whether it matches connections of what may come back with the same ids: routes on a listener, and addresses.
    pub fn may_come_back(&self) -> bool {
        !self.detached.is_empty() || !self.withdrawn.is_empty()
    }

    /// Forgets whose connections routes admit, where `newer` says that again: it may be more than before.
    pub fn yield_to(&mut self, newer: &Self) {
        self.ranges.retain(|route, _| !newer.ranges.contains_key(route));
    }

    /// Returns why a connection is to be ended: `ExpireRemoved` or `ExpireRefused`; `None`: it is not. A waiting hello without a
    /// route has `route` and `backend` 0.
    pub fn takes(&self, client: &ClientTuple, listener: u32, route: u32, backend: u32) -> Option<Reason> {
        let key = ListenerKey { address: client.vip, port: client.vip_port, reserved: [0; 2] };
        let is_removed = self.backends.contains(&backend)
            || self.listeners.contains(&listener)
            || self.detached.contains(&(listener, route))
            || self.withdrawn.contains(&(listener, key));
        let refuses = |admission: &Admission| {
            admission.ranges.as_ref().is_some_and(|ranges| !ranges.holds(client.client.into()))
        };
        if is_removed {
            return Some(Reason::ExpireRemoved);
        }
        self.ranges.get(&route).is_some_and(refuses).then_some(Reason::ExpireRefused)
    }
}
