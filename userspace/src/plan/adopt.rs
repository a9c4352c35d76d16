//! Derives what is applied from the content of the maps, so that a start on pinned maps is a reload.
//!
//! The daemon that wrote them may have died between any two writes. Anything incomplete is set aside as left
//! over, and the next plan removes it.

use super::applied::{Applied, AppliedListener, AppliedRoute, AppliedTable, Leftover, shared};
use super::change::Change;
use super::content::MapsContent;
use super::policies;
use super::tables::{page_count, pages};
use super::tally::Tally;
use crate::compile::maglev;
use crate::model::{Pattern, ServerName, SourceRanges};
use common::decide::route_key;
use common::maps::backend::{BACKEND_RETIRED, Backend};
use common::maps::listener::Listener;
use common::maps::policy::{POLICY_NOBODY, PolicyKey};
use common::maps::route::{
    LABEL_LISTENER, LABEL_ROUTE, Label, LabelKey, MemberKey, NameKey, Page, PageKey, Route, SuffixKey, Table,
};
use common::maps::settings::Ids;
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

impl Applied {
    /// Reads what the maps hold.
    pub fn from_maps(content: MapsContent) -> Self {
        let mut adoption = Adoption::new(&content);
        adoption.policies(&content);
        adoption.backends(&content);
        adoption.tables(&content);
        adoption.listeners(&content);
        adoption.names(&content);
        adoption.labels(&content);
        let addresses = content.addresses.iter().map(|(address, role)| (*address, role.flags)).collect();
        adoption.finish(content, addresses)
    }
}

struct Adoption {
    listener_names: HashMap<u32, Arc<str>>,
    route_names: HashMap<u32, Arc<str>>,
    /// Kept routes by id.
    routes: HashMap<u32, AppliedRoute>,
    /// Kept and left-over listeners by id.
    listeners: BTreeMap<u32, AppliedListener>,
    leftover: Leftover,
    next_policy: u16,
    leaving_policies: BTreeMap<u16, usize>,
}

impl Adoption {
    fn new(content: &MapsContent) -> Self {
        let named = |kind: u32| {
            content
                .labels
                .iter()
                .filter(move |(key, _)| key.kind == kind)
                .filter_map(|(key, label)| Some((key.id, text(label)?)))
                .collect::<HashMap<_, _>>()
        };
        let mut this = Self {
            listener_names: named(LABEL_LISTENER),
            route_names: named(LABEL_ROUTE),
            routes: HashMap::with_capacity(content.routes.len()),
            listeners: BTreeMap::new(),
            leftover: Leftover::default(),
            next_policy: 0,
            leaving_policies: BTreeMap::new(),
        };
        let mut newest: HashMap<&Arc<str>, u32> = HashMap::with_capacity(content.routes.len());
        for (id, _) in &content.routes {
            if let Some(name) = this.route_names.get(id) {
                let newest = newest.entry(name).or_default();
                *newest = (*newest).max(*id);
            }
        }
        for (id, value) in &content.routes {
            let name = this.route_names.get(id);
            if name.is_some_and(|name| newest.get(name) == Some(id)) {
                let table = |table: &Table| AppliedTable { table: *table, members: Box::default() };
                let (v4, v6) = (table(&value.v4), table(&value.v6));
                let name = name.cloned().unwrap_or_default();
                let route = AppliedRoute { name, id: *id, value: *value, v4, v6, ..AppliedRoute::default() };
                this.routes.insert(*id, route);
            } else {
                this.leftover.later.push(Change::DeleteRoute(*id));
            }
        }
        this
    }

    /// Assigns source ranges to their routes. Sets aside policies that nothing names, and those that we would not have written so,
    /// which their routes have until the next plan.
    fn policies(&mut self, content: &MapsContent) {
        let mut found: BTreeMap<u16, Vec<PolicyKey>> = BTreeMap::new();
        for key in &content.policies {
            found.entry(key.id()).or_default().push(*key);
        }
        let by_routes: BTreeSet<u16> = self.routes.values().map(|route| route.value.policy).collect();
        let others = content.routes.iter().map(|(_, route)| route.policy);
        let others = others.chain(content.listeners.iter().map(|(_, listener)| listener.policy));
        let mut named: BTreeSet<u16> = others.chain(by_routes.iter().copied()).collect();
        named.retain(|id| !matches!(*id, 0 | POLICY_NOBODY));
        let mut kept: BTreeMap<u16, SourceRanges> = BTreeMap::new();
        let mut ids: BTreeMap<SourceRanges, u16> = BTreeMap::new();
        for (id, own) in found.iter_mut().filter(|(id, _)| by_routes.contains(*id)) {
            own.sort_unstable();
            let ranges: Vec<IpNet> = own.iter().filter_map(policies::range).collect();
            let ranges = SourceRanges::new(&ranges);
            let mut written: Vec<PolicyKey> = policies::keys(*id, &ranges).collect();
            written.sort_unstable();
            if written == *own && *ids.entry(ranges.clone()).or_insert(*id) == *id {
                kept.insert(*id, ranges);
            }
        }
        for route in self.routes.values_mut() {
            route.source_ranges = match route.value.policy {
                POLICY_NOBODY => Some(SourceRanges::default()),
                policy => kept.get(&policy).cloned(),
            };
        }
        let last = found.keys().chain(&named).max();
        self.next_policy = last.map_or(0, |last| last.saturating_add(1));
        // Of one that is named but has no range, the id is not given out either.
        self.leaving_policies = named.iter().map(|id| (*id, 0)).collect();
        self.leaving_policies.extend(found.iter().map(|(id, own)| (*id, own.len())));
        self.leaving_policies.retain(|id, _| !kept.contains_key(id));
        for (id, own) in found.into_iter().filter(|(id, _)| !kept.contains_key(id)) {
            let list = if named.contains(&id) { &mut self.leftover.ranges } else { &mut self.leftover.later };
            list.extend(own.into_iter().map(Change::DeletePolicy));
        }
    }

    /// Assigns backends to their routes.
    fn backends(&mut self, content: &MapsContent) {
        for (id, value) in &content.backends {
            let route = self.routes.get_mut(&value.route).filter(|_| value.flags & BACKEND_RETIRED == 0);
            match route {
                Some(route) => route.backends.push((*id, *value)),
                None => self.leftover.backends.push((*id, *value)),
            }
        }
        for route in self.routes.values_mut() {
            // Of two with the same address and port, the newer is kept.
            route.backends.sort_by_key(|(id, value)| (value.address, value.port, u32::MAX - id));
            let leftover = &mut self.leftover.backends;
            route.backends.dedup_by(|later, first| {
                let same = (later.1.address, later.1.port) == (first.1.address, first.1.port);
                if same {
                    leftover.push(*later);
                }
                same
            });
        }
        self.leftover.backends.sort_by_key(|(id, _)| *id);
    }

    /// Assigns tables their members, if all of these exist.
    fn tables(&mut self, content: &MapsContent) {
        let members: HashMap<MemberKey, u32> = content.members.iter().copied().collect();
        let found: HashMap<PageKey, &Page> = content.pages.iter().map(|(key, page)| (*key, page)).collect();
        let mut used = HashSet::with_capacity(2 * self.routes.len());
        for route in self.routes.values_mut() {
            let backends: HashMap<u32, Backend> = route.backends.iter().copied().collect();
            for table in [&mut route.v4, &mut route.v6] {
                if !table.table.is_single() {
                    used.insert(table.table.id);
                }
                table.members = usable_members(&table.table, &members, &found, &backends).unwrap_or_default();
            }
        }
        let later = &mut self.leftover.later;
        let pages = content.pages.iter().filter(|(key, _)| !used.contains(&key.table));
        later.extend(pages.map(|(key, _)| Change::DeletePage(*key)));
        let members = content.members.iter().filter(|(key, _)| !used.contains(&key.table));
        later.extend(members.map(|(key, _)| Change::DeleteMember(*key)));
    }

    fn listeners(&mut self, content: &MapsContent) {
        for (key, value) in &content.listeners {
            let listener = self.listeners.entry(value.id).or_default();
            listener.id = value.id;
            listener.entries.push((*key, *value));
        }
        for listener in self.listeners.values_mut() {
            listener.entries.sort_by_key(|(key, _)| *key);
        }
    }

    fn names(&mut self, content: &MapsContent) {
        for (key, value) in &content.names {
            match pattern(key) {
                Some(pattern) => self.name(key.listener(), pattern, value.route),
                None => self.leftover.broken.push(Change::DeleteName(Box::new(*key))),
            }
        }
        for (key, value) in &content.wildcards {
            match wildcard(key) {
                Some(pattern) => self.name(u32::from(u16::from_be_bytes(key.listener)), pattern, value.route),
                None => self.leftover.broken.push(Change::DeleteWildcard(Box::new(*key))),
            }
        }
        let mut by_default: HashMap<u32, Vec<u32>> = HashMap::new();
        for (_, Listener { id, route, .. }) in self.listeners.values().flat_map(|listener| &listener.entries)
        {
            by_default.entry(*route).or_default().push(*id);
        }
        let mut before = Arc::default();
        for route in self.routes.values_mut() {
            route.names.sort();
            let mut attached = by_default.remove(&route.id).unwrap_or_default();
            attached.extend(route.names.iter().map(|(listener, _)| *listener));
            attached.sort_unstable();
            attached.dedup();
            route.attached = shared(&attached, &mut before);
        }
    }

    fn name(&mut self, listener: u32, pattern: Pattern, route: u32) {
        match self.routes.get_mut(&route).filter(|_| self.listeners.contains_key(&listener)) {
            Some(route) => route.names.push((listener, pattern)),
            None => self.leftover.names.push((listener, pattern)),
        }
    }

    /// Sets aside labels and counters of routes and listeners that do not exist.
    fn labels(&mut self, content: &MapsContent) {
        for (key, _) in &content.labels {
            let used = match key.kind {
                LABEL_ROUTE => self.routes.contains_key(&key.id),
                LABEL_LISTENER => self.listeners.contains_key(&key.id),
                _ => false,
            };
            if !used {
                self.leftover.later.push(Change::DeleteLabel(LabelKey { ..*key }));
            }
        }
        let counters = content.counters.iter().filter(|id| !self.routes.contains_key(*id));
        self.leftover.later.extend(counters.map(|id| Change::DeleteRouteCounters(*id)));
    }

    fn finish(
        mut self,
        content: MapsContent,
        addresses: BTreeMap<common::maps::address::Address, u32>,
    ) -> Applied {
        let mut listeners: BTreeMap<Arc<str>, Arc<AppliedListener>> = BTreeMap::new();
        let ids = next_ids(&content, &self.leftover);
        // The newest id of a name is kept: ids are in ascending order.
        for (id, listener) in self.listeners {
            match self.listener_names.get(&id) {
                Some(name) => {
                    let older = listeners.insert(Arc::clone(name), Arc::new(listener));
                    self.leftover.listeners.extend(older.map(Arc::unwrap_or_clone));
                }
                None => self.leftover.listeners.push(listener),
            }
        }
        let mut tally = Tally::default();
        let without_room = |mut route: AppliedRoute| {
            route.names.shrink_to_fit();
            route.backends.shrink_to_fit();
            Arc::new(route)
        };
        let mut routes: Vec<_> = self.routes.into_values().map(without_room).collect();
        routes.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        routes.iter().for_each(|route| tally.add(route));
        Applied {
            ids,
            free_listeners: Arc::default(),
            lacks_listener_ids: false,
            next_policy: self.next_policy,
            lacks_policies: false,
            leaving_policies: Arc::new(self.leaving_policies),
            settings: content.settings,
            addresses: Arc::new(addresses),
            listeners: Arc::new(listeners),
            routes: routes.into_iter().collect(),
            tally,
            leftover: self.leftover,
            basis: None,
        }
    }
}

/// Returns the members of a table that can be used; `None` if a member or page is missing. Their weights are
/// 0 if the table is not the one that we would build now, so that the next plan replaces it.
fn usable_members(
    table: &Table,
    members: &HashMap<MemberKey, u32>,
    found: &HashMap<PageKey, &Page>,
    backends: &HashMap<u32, Backend>,
) -> Option<Box<[(u32, u16)]>> {
    let member = |member| match table.is_single() {
        true => Some(table.id),
        false => members.get(&MemberKey { table: table.id, member }).copied(),
    };
    let ids: Vec<u32> = (0..table.members).map(member).collect::<Option<_>>()?;
    let values: Vec<Backend> = ids.iter().map(|id| backends.get(id).copied()).collect::<Option<_>>()?;
    let page_keys = (0..page_count(table.slots)).map(|page| PageKey { table: table.id, page });
    let found: Vec<&Page> = page_keys.map(|key| found.get(&key).copied()).collect::<Option<_>>()?;
    let ours = values.iter().all(|value| value.weight > 0)
        && maglev::slots(values.iter().map(|value| value.weight)) == table.slots
        && pages(&values, table.slots).iter().eq(found);
    let weight = |value: &Backend| if ours { value.weight } else { 0 };
    Some(ids.into_iter().zip(values.iter().map(weight)).collect())
}

/// Returns ids beyond every id in use, whatever `IDS` says.
fn next_ids(content: &MapsContent, leftover: &Leftover) -> Ids {
    let behind = |next: u32, ids: &mut dyn Iterator<Item = u32>| {
        ids.fold(next.max(1), |next, id| next.max(id.saturating_add(1)))
    };
    let labels = |kind: u32| content.labels.iter().filter(move |(k, _)| k.kind == kind).map(|(k, _)| k.id);
    let names = leftover.names.iter().map(|(listener, _)| *listener);
    let tables = |(_, Route { v4, v6, .. }): &(u32, Route)| {
        [v4, v6].map(|table| if table.is_single() { 0 } else { table.id })
    };
    let listeners = content.listeners.iter().map(|(_, value)| value.id);
    Ids {
        route: behind(
            content.ids.route,
            &mut content.routes.iter().map(|(id, _)| *id).chain(labels(LABEL_ROUTE)),
        ),
        backend: behind(content.ids.backend, &mut content.backends.iter().map(|(id, _)| *id)),
        table: behind(
            content.ids.table,
            &mut content
                .routes
                .iter()
                .flat_map(tables)
                .chain(content.members.iter().map(|(key, _)| key.table)),
        ),
        listener: behind(content.ids.listener, &mut listeners.chain(labels(LABEL_LISTENER)).chain(names)),
    }
}

fn text(label: &Label) -> Option<Arc<str>> {
    let bytes = label.text.get(..usize::from(label.length))?;
    std::str::from_utf8(bytes).ok().map(Arc::from)
}

fn pattern(key: &NameKey) -> Option<Pattern> {
    let (kind, name): (fn(ServerName) -> Pattern, _) = match route_key::suffix_of(key.name()) {
        Some(suffix) => (Pattern::OneLabel, suffix),
        None => (Pattern::Exact, key.name()),
    };
    ServerName::new(std::str::from_utf8(name).ok()?).ok().map(kind)
}

fn wildcard(key: &SuffixKey) -> Option<Pattern> {
    let bytes = key.prefix_bits.checked_sub(16)? / 8;
    let (dot, suffix) = key.reversed.get(..bytes as usize)?.split_last()?;
    let suffix: Vec<u8> = suffix.iter().rev().copied().collect();
    let suffix = ServerName::new(std::str::from_utf8(&suffix).ok()?).ok()?;
    (*dot == b'.').then_some(Pattern::Wildcard(suffix))
}
