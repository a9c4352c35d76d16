//! The maps in memory, for `explain` and for tests.

use super::change::{Change, label};
use super::content::MapsContent;
use super::policies;
use crate::model::SourceRanges;
use common::decide::tables::Tables;
use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::listener::{AddressRole, Listener, ListenerKey};
use common::maps::policy::{POLICY_NOBODY, PolicyKey};
use common::maps::route::{
    Label, LabelKey, MemberKey, NameKey, PAGE_SLOTS, Page, PageKey, Route, SuffixKey, Table,
};
use common::maps::settings::{Ids, Settings};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// The maps that user space writes, in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapsImage {
    /// `SETTINGS[0]`.
    pub settings: Settings,
    /// `IDS[0]`.
    pub ids: Ids,
    /// `ADDRESSES`: `ROLE_*` bits.
    pub addresses: BTreeMap<Address, u32>,
    /// `LISTENERS`.
    pub listeners: BTreeMap<ListenerKey, Listener>,
    /// `ROUTES_EXACT` and `ROUTES_LONG`: (listener id, name) to route id. A pattern of one label is stored like a
    /// name, with its `*.`.
    pub(super) names: HashMap<(u32, Box<[u8]>), u32>,
    /// `ROUTES_WILDCARD`: (listener id, name without `*.`) to route id.
    pub(super) wildcards: HashMap<(u32, Box<[u8]>), u32>,
    /// Keys of `POLICIES`.
    pub(super) policies: BTreeSet<PolicyKey>,
    /// `ROUTES`.
    pub routes: HashMap<u32, Route>,
    /// `MAGLEV`.
    pub pages: HashMap<PageKey, Page>,
    /// `MEMBERS`.
    pub members: HashMap<MemberKey, u32>,
    /// `BACKENDS`.
    pub backends: HashMap<u32, Backend>,
    /// `LABELS`.
    pub labels: HashMap<LabelKey, Label>,
    /// Keys of `ROUTE_COUNTERS`.
    pub counters: BTreeSet<u32>,
}

impl MapsImage {
    /// Carries out one write. Waits and resets do not change these maps.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::PutSettings(value) => self.settings = *value,
            Change::PutIds(value) => self.ids = *value,
            Change::PutAddress(key, role) => drop(self.addresses.insert(*key, role.flags)),
            Change::DeleteAddress(key) => drop(self.addresses.remove(key)),
            Change::PutListener(key, value) => drop(self.listeners.insert(*key, *value)),
            Change::DeleteListener(key) => drop(self.listeners.remove(key)),
            Change::PutName(listener, name, value) => {
                self.names.insert((*listener, name.as_str().as_bytes().into()), value.route);
            }
            Change::PutOneLabel(listener, suffix, value) => {
                self.names.insert((*listener, format!("*.{suffix}").into_bytes().into()), value.route);
            }
            Change::DeleteName(key) => drop(self.names.remove(&name(key))),
            Change::PutWildcard(listener, suffix, value) => {
                self.wildcards.insert((*listener, suffix.as_str().as_bytes().into()), value.route);
            }
            Change::DeleteWildcard(key) => drop(self.wildcards.remove(&suffix(key))),
            Change::PutPolicy(key) => drop(self.policies.insert(*key)),
            Change::DeletePolicy(key) => drop(self.policies.remove(key)),
            Change::PutRoute(id, value) => drop(self.routes.insert(*id, *value)),
            Change::DeleteRoute(id) => drop(self.routes.remove(id)),
            Change::PutLabel(key, name) => drop(self.labels.insert(*key, label(name))),
            Change::DeleteLabel(key) => drop(self.labels.remove(key)),
            Change::PutPage(key, value) => drop(self.pages.insert(*key, **value)),
            Change::DeletePage(key) => drop(self.pages.remove(key)),
            Change::PutMember(key, value) => drop(self.members.insert(*key, *value)),
            Change::DeleteMember(key) => drop(self.members.remove(key)),
            Change::PutBackend(id, value) => drop(self.backends.insert(*id, *value)),
            Change::DeleteBackend(id) => drop(self.backends.remove(id)),
            Change::PutRouteCounters(id) => drop(self.counters.insert(*id)),
            Change::DeleteRouteCounters(id) => drop(self.counters.remove(id)),
            Change::Settle | Change::Reset(_) => {}
        }
    }

    /// Returns the route of exactly this name.
    pub fn exact(&self, listener: u32, name: &str) -> Option<u32> {
        self.names.get(&(listener, name.as_bytes().into())).copied()
    }

    /// Returns the route of the pattern of one label that matches this name.
    pub fn one_label(&self, listener: u32, name: &str) -> Option<u32> {
        let (_, suffix) = name.split_once('.')?;
        self.exact(listener, &format!("*.{suffix}"))
    }

    /// Returns the longest wildcard that matches this name: its suffix and its route.
    pub fn wildcard<'n>(&self, listener: u32, name: &'n str) -> Option<(&'n str, u32)> {
        // The dot before the suffix is at offset 1 or later: a wildcard stands for at least one label.
        let dots = name.bytes().enumerate().skip(1).filter(|(_, byte)| *byte == b'.');
        dots.filter_map(|(dot, _)| name.get(dot + 1..)).find_map(|suffix| {
            let route = self.wildcards.get(&(listener, suffix.as_bytes().into()))?;
            Some((suffix, *route))
        })
    }

    /// Returns the id of the backend of a table's member.
    pub fn member(&self, table: &Table, member: u32) -> Option<u32> {
        match table.is_single() {
            true => Some(table.id),
            false => self.members.get(&MemberKey { table: table.id, member }).copied(),
        }
    }

    /// Returns the ranges that a policy admits; `None`: all.
    pub fn ranges(&self, policy: u16) -> Option<SourceRanges> {
        let own = self.policies.iter().filter(|key| key.id() == policy && policy != POLICY_NOBODY);
        (policy != 0).then(|| SourceRanges::new(&own.filter_map(policies::range).collect::<Vec<_>>()))
    }

    /// Returns the name of an id.
    pub fn label(&self, kind: u32, id: u32) -> Option<&str> {
        let label = self.labels.get(&LabelKey { kind, id })?;
        std::str::from_utf8(label.text.get(..usize::from(label.length))?).ok()
    }

    /// Whether there is no listener and no route.
    pub fn is_empty(&self) -> bool {
        self.listeners.is_empty() && self.routes.is_empty()
    }
}

impl Tables for MapsImage {
    #[inline(always)]
    fn listener(&self, key: &ListenerKey, to: &mut Listener) -> bool {
        copy(self.listeners.get(key), to)
    }

    #[inline(always)]
    fn name(&self, key: &NameKey) -> u32 {
        self.names.get(&name(key)).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn wildcard(&self, key: &SuffixKey) -> u32 {
        let (listener, name) = asked(key);
        let name = str::from_utf8(&name).unwrap_or_default();
        self.wildcard(listener, name).map_or(0, |(_, route)| route)
    }

    #[inline(always)]
    fn route(&self, id: u32, to: &mut Route) -> bool {
        copy(self.routes.get(&id), to)
    }

    #[inline(always)]
    fn is_within(&self, key: &PolicyKey) -> bool {
        self.policies.iter().any(|range| range.holds(key))
    }

    #[inline(always)]
    fn slot(&self, table: u32, slot: u32) -> u32 {
        let page = self.pages.get(&PageKey { table, page: slot / PAGE_SLOTS as u32 });
        let member = page.and_then(|page| page.slots.get(slot as usize % PAGE_SLOTS));
        member.map_or(0, |member| u32::from(*member) + 1)
    }

    #[inline(always)]
    fn member(&self, key: &MemberKey) -> u32 {
        self.members.get(key).copied().unwrap_or_default()
    }

    #[inline(always)]
    fn backend(&self, id: u32, to: &mut Backend) -> bool {
        copy(self.backends.get(&id), to)
    }
}

fn copy<R: Copy>(from: Option<&R>, to: &mut R) -> bool {
    if let Some(from) = from {
        *to = *from;
    }
    from.is_some()
}

impl From<MapsContent> for MapsImage {
    fn from(content: MapsContent) -> Self {
        let roles = |(address, AddressRole { flags }): (Address, AddressRole)| (address, flags);
        Self {
            settings: content.settings,
            ids: content.ids,
            addresses: content.addresses.into_iter().map(roles).collect(),
            listeners: content.listeners.into_iter().collect(),
            names: content.names.iter().map(|(key, value)| (name(key), value.route)).collect(),
            wildcards: content.wildcards.iter().map(|(key, value)| (suffix(key), value.route)).collect(),
            policies: content.policies.into_iter().collect(),
            routes: content.routes.into_iter().collect(),
            pages: content.pages.into_iter().collect(),
            members: content.members.into_iter().collect(),
            backends: content.backends.into_iter().collect(),
            labels: content.labels.into_iter().collect(),
            counters: content.counters.into_iter().collect(),
        }
    }
}

fn name(key: &NameKey) -> (u32, Box<[u8]>) {
    (key.listener(), key.name().into())
}

fn suffix(key: &SuffixKey) -> (u32, Box<[u8]>) {
    let (listener, name) = asked(key);
    // The first byte is the wildcard's dot.
    (listener, name.get(1..).unwrap_or_default().into())
}

/// Returns the listener id and the text of a key. Keys store the text reversed.
fn asked(key: &SuffixKey) -> (u32, Vec<u8>) {
    let bytes = (key.prefix_bits.saturating_sub(16) / 8) as usize;
    let reversed = key.reversed.get(..bytes).unwrap_or(&key.reversed);
    (u32::from(u16::from_be_bytes(key.listener)), reversed.iter().rev().copied().collect())
}
