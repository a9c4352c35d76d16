//! What the maps hold, compactly, with the ids that were given out.

use crate::model::Pattern;
use common::maps::address::{Address, Port};
use common::maps::backend::Backend;
use common::maps::flow::ClientTuple;
use common::maps::listener::{Listener, ListenerKey};
use common::maps::route::{Label, LabelKey, NameKey, NameRoute, Route, SuffixKey, Table};
use common::maps::settings::{Ids, Settings};
use foldhash::{HashMap, HashSet};
use std::collections::BTreeMap;
use std::sync::Arc;

use super::change::Change;

/// What the maps hold. Cheap to clone; the default value is that of empty maps.
#[derive(Clone, Debug, Default)]
pub struct Applied {
    pub(super) ids: Ids,
    pub(super) settings: Settings,
    /// `ROLE_*` bits.
    pub(super) addresses: BTreeMap<Address, u32>,
    pub(super) listeners: BTreeMap<Arc<str>, Arc<AppliedListener>>,
    pub(super) routes: HashMap<Arc<str>, Arc<AppliedRoute>>,
    /// What a daemon that died left half done; empty after the next plan.
    pub(super) leftover: Leftover,
}

/// A listener as the maps hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedListener {
    pub(super) id: u32,
    /// By key.
    pub(super) entries: Vec<(ListenerKey, Listener)>,
}

/// A route as the maps hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedRoute {
    pub(super) id: u32,
    /// As `ROUTES` holds it.
    pub(super) value: Route,
    pub(super) v4: AppliedTable,
    pub(super) v6: AppliedTable,
    /// (listener id, pattern), sorted.
    pub(super) names: Vec<(u32, Pattern)>,
    /// (backend id, value), by address and port.
    pub(super) backends: Vec<(u32, Backend)>,
    /// Ids of the listeners that lead here, by name or by default; sorted.
    pub(super) attached: Vec<u32>,
}

/// One family's backends of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedTable {
    pub(super) table: Table,
    /// (backend id, weight) of each member.
    pub(super) members: Vec<(u32, u16)>,
}

/// What belongs to nothing that is kept.
#[derive(Clone, Debug, Default)]
pub(super) struct Leftover {
    pub(super) listeners: Vec<AppliedListener>,
    pub(super) names: Vec<(u32, Pattern)>,
    pub(super) backends: Vec<(u32, Backend)>,
    /// Keys that nobody can have written with sense.
    pub(super) broken: Vec<Change>,
    /// Pages, members, labels, routes, counters to delete.
    pub(super) later: Vec<Change>,
}

impl AppliedRoute {
    /// As `ROUTES` should hold it.
    pub(super) fn assembled(&self) -> Route {
        Route { v4: self.v4.table, v6: self.v6.table, backends: self.backends.len() as u32 }
    }

    /// Whether it has a name on this listener.
    pub(super) fn names_on(&self, listener: u32) -> bool {
        self.names.iter().any(|(other, _)| *other == listener)
    }

    /// The backend with this address and port, if the route has it.
    pub(super) fn backend(&self, address: Address, port: Port) -> Option<&(u32, Backend)> {
        let found =
            self.backends.binary_search_by_key(&(address, port), |(_, b)| (b.address, b.port)).ok()?;
        self.backends.get(found)
    }
}

impl Applied {
    /// The settings with another key for new cookies; to be written by the caller.
    pub fn sign_with(&mut self, cookie_key: u32) -> Settings {
        self.settings.cookie_key = cookie_key;
        self.settings
    }

    /// For judging every flow at once, as is due when a daemon adopts maps that another one left.
    pub fn census(&self) -> Census {
        let entries = self.listeners.values().flat_map(|listener| &listener.entries);
        let routes = || self.routes.values();
        Census {
            listeners: entries.map(|(key, value)| (*key, value.id)).collect(),
            attached: routes().flat_map(|r| r.attached.iter().map(|id| (*id, r.id))).collect(),
            backends: routes().flat_map(|r| r.backends.iter().map(|(id, _)| (*id, r.id))).collect(),
        }
    }
}

/// Which connections belong to what the maps hold.
#[derive(Clone, Debug, Default)]
pub struct Census {
    listeners: HashMap<ListenerKey, u32>,
    /// (listener id, route id).
    attached: HashSet<(u32, u32)>,
    /// Backend id to route id.
    backends: HashMap<u32, u32>,
}

impl Census {
    /// Whether a connection's listener, route and backend are still there and belong together. A waiting hello that
    /// has no route yet has `route` and `backend` 0.
    pub fn knows(&self, client: &ClientTuple, listener: u32, route: u32, backend: u32) -> bool {
        let key = ListenerKey { address: client.vip, port: client.vip_port, reserved: [0; 2] };
        self.listeners.get(&key) == Some(&listener)
            && (route == 0 || self.attached.contains(&(listener, route)))
            && (backend == 0 || self.backends.get(&backend) == Some(&route))
    }
}

/// The write that makes a name lead to a route; `None` for a pattern that no name can match.
pub(super) fn put_name(listener: u32, pattern: &Pattern, route: u32) -> Option<Change> {
    Some(match pattern {
        Pattern::Exact(name) => Change::PutName(name_key(listener, name.as_str())?, NameRoute { route }),
        Pattern::Wildcard(suffix) => {
            Change::PutWildcard(suffix_key(listener, suffix.as_str())?, NameRoute { route })
        }
    })
}

/// The write that takes a name away.
pub(super) fn delete_name(listener: u32, pattern: &Pattern) -> Option<Change> {
    Some(match pattern {
        Pattern::Exact(name) => Change::DeleteName(name_key(listener, name.as_str())?),
        Pattern::Wildcard(suffix) => Change::DeleteWildcard(suffix_key(listener, suffix.as_str())?),
    })
}

fn name_key(listener: u32, name: &str) -> Option<Box<NameKey>> {
    let (bytes, length) = common::decide::route_key::buffer(name.as_bytes())?;
    let mut key = Box::new(NameKey::zeroed());
    common::decide::route_key::exact(&mut key, listener, &bytes, length);
    Some(key)
}

fn suffix_key(listener: u32, suffix: &str) -> Option<Box<SuffixKey>> {
    common::decide::route_key::wildcard(listener, suffix.as_bytes()).map(Box::new)
}

/// The write that names an id.
pub(super) fn put_label(kind: u32, id: u32, name: &str) -> Change {
    let mut label = Box::new(Label::zeroed());
    for (to, from) in label.text.iter_mut().zip(name.as_bytes()) {
        *to = *from;
    }
    label.length = name.len().min(label.text.len()) as u8;
    Change::PutLabel(LabelKey { kind, id }, label)
}
