//! The difference of routes: backends, tables, names.

use super::Planner;
use super::applied::{AppliedRoute, AppliedTable, delete_name, put_label, put_name};
use super::change::Change;
use crate::compile::maglev;
use crate::model::{BackendSpec, Desired, DesiredRoute, Pattern, Problem};
use common::maps::address::{Address, Port};
use common::maps::backend::{
    BACKEND_FAILING, BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend,
};
use common::maps::route::{LABEL_ROUTE, LabelKey, MemberKey, PAGE_SLOTS, Page, PageKey, Route, Table};
use foldhash::{HashMap, HashMapExt, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

impl Planner<'_> {
    /// Plans every route; gives the route ids in the order of `desired.routes`. `listener_ids` are those of
    /// `desired.listeners`.
    pub(super) fn routes(&mut self, desired: &Desired, listener_ids: &[Option<u32>]) -> Vec<u32> {
        let mut by_default: HashMap<usize, Vec<u32>> = HashMap::new();
        for (listener, id) in desired.listeners.iter().zip(listener_ids) {
            if let (Some(route), Some(id)) = (listener.route, id) {
                by_default.entry(route).or_default().push(*id);
            }
        }
        self.after.routes.reserve(desired.routes.len());
        let mut ids = Vec::with_capacity(desired.routes.len());
        let mut changed = Vec::new();
        for (index, route) in desired.routes.iter().enumerate() {
            let defaults = by_default.get(&index).map_or(&[][..], Vec::as_slice);
            let (planned, is_new) = self.route(route, listener_ids, defaults);
            ids.push(planned.id);
            if is_new {
                changed.push(Arc::clone(&planned));
            }
            self.after.routes.insert(Arc::clone(&route.name), planned);
        }
        self.removed_routes();
        self.forget_names(&changed);
        ids
    }

    /// Takes away the names that no other route has taken over.
    fn forget_names(&mut self, changed: &[Arc<AppliedRoute>]) {
        let mut gone = std::mem::take(&mut self.gone);
        gone.extend(self.before.leftover.names.iter().cloned());
        if gone.is_empty() {
            return;
        }
        gone.sort();
        let mut taken: HashSet<&(u32, Pattern)> = HashSet::default();
        for name in changed.iter().flat_map(|route| &route.names) {
            if gone.binary_search(name).is_ok() {
                taken.insert(name);
            }
        }
        let forgotten = gone.iter().filter(|name| !taken.contains(name));
        self.steps.forget.extend(forgotten.filter_map(|(listener, pattern)| delete_name(*listener, pattern)));
    }

    /// Plans a route; also tells whether anything of it changed.
    fn route(
        &mut self,
        desired: &DesiredRoute,
        listener_ids: &[Option<u32>],
        defaults: &[u32],
    ) -> (Arc<AppliedRoute>, bool) {
        let before = self.before;
        let old = before.routes.get(&desired.name);
        if let Some(old) = old.filter(|old| self.stays(old, desired, listener_ids, defaults)) {
            self.lower_mtus(old);
            return (Arc::clone(old), false);
        }
        let id = old.map_or_else(|| self.next_id(|ids| &mut ids.route), |old| old.id);
        let backends = self.backends(id, desired, old.map(|old| &**old));
        let mut new = AppliedRoute {
            id,
            value: Route::zeroed(),
            v4: self.table(&backends, true, old.map(|old| &old.v4)),
            v6: self.table(&backends, false, old.map(|old| &old.v6)),
            names: Vec::with_capacity(desired.names.len()),
            backends,
            attached: defaults.to_vec(),
        };
        new.value = new.assembled();
        for (listener, pattern) in &desired.names {
            if let Some(listener) = listener_ids[*listener] {
                new.names.push((listener, pattern.clone()));
                new.attached.push(listener);
            }
        }
        new.names.sort();
        new.attached.sort_unstable();
        new.attached.dedup();
        self.lower_mtus(&new);
        match old {
            Some(old) if **old == new => return (Arc::clone(old), false),
            Some(old) => self.changed(old, &new),
            None => {
                self.steps.fill.push(put_label(LABEL_ROUTE, id, &desired.name));
                self.steps.fill.push(Change::PutRouteCounters(id));
                self.changed(&AppliedRoute::default(), &new);
            }
        }
        (Arc::new(new), true)
    }

    /// Whether a route is certainly as desired: the usual case, without building the desired state to compare it.
    fn stays(
        &self,
        old: &AppliedRoute,
        desired: &DesiredRoute,
        listener_ids: &[Option<u32>],
        defaults: &[u32],
    ) -> bool {
        let mut names = old.names.iter().zip(&desired.names);
        let mut backends = old.backends.iter().zip(&desired.backends);
        old.names.len() == desired.names.len()
            && old.backends.len() == desired.backends.len()
            && old.value == old.assembled()
            && old.attached.iter().all(|listener| old.names_on(*listener) || defaults.contains(listener))
            && defaults.iter().all(|listener| old.attached.contains(listener))
            && names.all(|((id, old), (listener, new))| listener_ids[*listener] == Some(*id) && old == new)
            && backends.all(|((_, old), new)| *old == self.way(old.route, new))
            && self.table_stays(&old.backends, true, &old.v4)
            && self.table_stays(&old.backends, false, &old.v6)
    }

    /// The writes from one state of a route to the next; a new route comes from an empty one.
    fn changed(&mut self, old: &AppliedRoute, new: &AppliedRoute) {
        for (id, value) in &new.backends {
            if old.backend(value.address, value.port).is_none_or(|(_, before)| before != value) {
                self.steps.fill.push(Change::PutBackend(*id, *value));
            }
        }
        self.switch(old, new);
        for (listener, pattern) in &new.names {
            if old
                .names
                .binary_search_by(|name| name.0.cmp(listener).then_with(|| name.1.cmp(pattern)))
                .is_err()
            {
                self.steps.names.extend(put_name(*listener, pattern, new.id));
            }
        }
        self.gone.extend(old.names.iter().filter(|name| new.names.binary_search(name).is_err()).cloned());
        for (id, value) in &old.backends {
            if new.backend(value.address, value.port).is_none() {
                self.retire(*id, value);
            }
        }
        for (old, new) in [(&old.v4, &new.v4), (&old.v6, &new.v6)] {
            if old.table.id != new.table.id {
                self.delete_table(&old.table);
            }
        }
        for listener in &old.attached {
            if new.attached.binary_search(listener).is_err() {
                self.steps.ended.detached.insert((*listener, new.id));
            }
        }
    }

    /// Switches the route's tables. A family that loses its last backend keeps the old ones until names have moved to
    /// routes that have some.
    fn switch(&mut self, old: &AppliedRoute, new: &AppliedRoute) {
        let last = new.value;
        let mut first = last;
        for (first, old) in [(&mut first.v4, &old.v4), (&mut first.v6, &old.v6)] {
            // A table without known members is one that was found incomplete.
            if first.id == 0 && !old.members.is_empty() {
                *first = old.table;
            }
        }
        if old.id == 0 || first != old.value {
            self.steps.switch.push(Change::PutRoute(new.id, first));
        }
        if last != first {
            self.steps.leave.push(Change::PutRoute(new.id, last));
        }
    }

    /// Takes a backend out of use and ends its flows.
    pub(super) fn retire(&mut self, id: u32, value: &Backend) {
        if value.flags & BACKEND_RETIRED == 0 {
            let value = Backend { flags: value.flags | BACKEND_RETIRED, ..*value };
            self.steps.retire.push(Change::PutBackend(id, value));
        }
        self.steps.ended.backends.insert(id);
        self.steps.later.push(Change::DeleteBackend(id));
    }

    fn removed_routes(&mut self) {
        let before = self.before;
        let gone = before.routes.iter().filter(|(name, _)| !self.after.routes.contains_key(*name));
        let mut gone: Vec<_> = gone.map(|(_, route)| route).collect();
        gone.sort_by_key(|route| route.id);
        for route in gone {
            self.gone.extend(route.names.iter().cloned());
            self.steps.later.push(Change::DeleteRoute(route.id));
            for (id, value) in &route.backends {
                self.retire(*id, value);
            }
            self.delete_table(&route.v4.table);
            self.delete_table(&route.v6.table);
            self.steps.later.push(Change::DeleteRouteCounters(route.id));
            self.steps.later.push(Change::DeleteLabel(LabelKey { kind: LABEL_ROUTE, id: route.id }));
        }
    }

    fn backends(
        &mut self,
        route: u32,
        desired: &DesiredRoute,
        old: Option<&AppliedRoute>,
    ) -> Vec<(u32, Backend)> {
        let mut backends = Vec::with_capacity(desired.backends.len());
        for spec in &desired.backends {
            let (address, port) = (Address::from(spec.address), Port::new(spec.port));
            let before = old.and_then(|old| old.backend(address, port));
            let id = before.map_or_else(|| self.next_id(|ids| &mut ids.backend), |(id, _)| *id);
            let value = self.way(route, spec);
            let news = before.is_none_or(|(_, before)| before.flags != value.flags);
            if news && value.flags & BACKEND_UNREACHABLE != 0 {
                self.problems.push(unreachable(&self.own, &desired.name, spec));
            }
            backends.push((id, value));
        }
        backends.sort_by_key(|(_, value)| (value.address, value.port));
        backends
    }

    /// A backend as it is to be written: with the way to it.
    fn way(&self, route: u32, spec: &BackendSpec) -> Backend {
        let (address, port) = (Address::from(spec.address), Port::new(spec.port));
        let flags = if spec.failing { BACKEND_FAILING } else { 0 };
        let backend = Backend { address, port, weight: spec.weight, flags, route, ..Backend::zeroed() };
        if spec.is_refusing() {
            return Backend { flags: BACKEND_REFUSING, ..backend };
        }
        let configured = self.sources.iter().find(|source| source.is_ipv4() == spec.address.is_ipv4());
        let hop = self.hops.towards.get(&spec.address).filter(|_| !self.own.contains(&spec.address));
        match hop {
            Some(hop) => Backend {
                source: Address::from(*configured.unwrap_or(&hop.source)),
                mtu: u16::try_from(hop.mtu).unwrap_or(u16::MAX),
                ifindex: hop.ifindex,
                ..backend
            },
            None => Backend {
                source: configured.map_or(Address::default(), |source| Address::from(*source)),
                flags: flags | BACKEND_UNREACHABLE,
                ..backend
            },
        }
    }

    /// Whether a table is over these backends, with their weights.
    fn table_stays(&self, backends: &[(u32, Backend)], is_v4: bool, old: &AppliedTable) -> bool {
        let members = of_family(backends, is_v4).map(|(id, backend)| (*id, backend.weight));
        old.members.len() == old.table.members as usize && old.members.iter().copied().eq(members)
    }

    /// One family's table: the old one while its members and weights stay, else one with a new id.
    fn table(
        &mut self,
        backends: &[(u32, Backend)],
        is_v4: bool,
        old: Option<&AppliedTable>,
    ) -> AppliedTable {
        if let Some(old) = old.filter(|old| self.table_stays(backends, is_v4, old)) {
            return old.clone();
        }
        let of_family = || of_family(backends, is_v4);
        let members: Vec<(u32, u16)> = of_family().map(|(id, backend)| (*id, backend.weight)).collect();
        if members.is_empty() {
            return AppliedTable::default();
        }
        let table = Table {
            id: self.next_id(|ids| &mut ids.table),
            slots: maglev::slots(members.iter().map(|(_, weight)| *weight)),
            members: members.len() as u32,
        };
        for (member, (id, _)) in (0..).zip(&members) {
            self.steps.fill.push(Change::PutMember(MemberKey { table: table.id, member }, *id));
        }
        let values: Vec<Backend> = of_family().map(|(_, backend)| *backend).collect();
        for (page, value) in (0..).zip(pages(&values, table.slots)) {
            self.steps.fill.push(Change::PutPage(PageKey { table: table.id, page }, Box::new(value)));
        }
        AppliedTable { table, members }
    }

    fn delete_table(&mut self, table: &Table) {
        let pages =
            (0..page_count(table.slots)).map(|page| Change::DeletePage(PageKey { table: table.id, page }));
        self.steps.later.extend(pages);
        let members =
            (0..table.members).map(|member| Change::DeleteMember(MemberKey { table: table.id, member }));
        self.steps.later.extend(members);
    }

    /// Takes the route's devices into account for what its listeners announce.
    fn lower_mtus(&mut self, route: &AppliedRoute) {
        for (_, backend) in &route.backends {
            if backend.mtu == 0 {
                continue;
            }
            for listener in &route.attached {
                let mtu = &mut self.mtus.entry(*listener).or_default()[usize::from(!backend.address.is_v4())];
                *mtu = if *mtu == 0 { backend.mtu } else { backend.mtu.min(*mtu) };
            }
        }
    }
}

/// The backends of a family that take new flows.
fn of_family(backends: &[(u32, Backend)], is_v4: bool) -> impl Iterator<Item = &(u32, Backend)> {
    backends.iter().filter(move |(_, backend)| backend.weight > 0 && backend.address.is_v4() == is_v4)
}

fn unreachable(own: &HashSet<IpAddr>, route: &str, spec: &BackendSpec) -> Problem {
    let backend = SocketAddr::new(spec.address, spec.port);
    if own.contains(&spec.address) {
        let what = format!("route {route}: backend {backend} is an address of this node itself");
        return Problem::error(
            "",
            what,
            "let the tenant listen on an address of its own; see Limits in README.md",
        );
    }
    let what = format!("route {route}: this node has no way to backend {backend}");
    let remedy = match spec.address {
        IpAddr::V4(_) => {
            "add a route to it (ip route) over a device of ours; it takes no connection until then"
        }
        IpAddr::V6(_) => {
            "add a route to it (ip -6 route) over a device of ours; it takes no connection until then"
        }
    };
    Problem::warning("", what, remedy)
}

/// Pages that a table of so many slots has.
pub(super) fn page_count(slots: u32) -> u32 {
    if slots > 1 { slots.div_ceil(PAGE_SLOTS as u32) } else { 0 }
}

/// The pages of the table over `members`, in order.
pub(super) fn pages(members: &[Backend], slots: u32) -> Vec<Page> {
    if slots < 2 {
        return Vec::new();
    }
    let members: Vec<_> = members
        .iter()
        .map(|b| maglev::Member { address: b.address, port: b.port, weight: b.weight })
        .collect();
    let table = maglev::table(&members, slots);
    table
        .chunks(PAGE_SLOTS)
        .map(|chunk| {
            let mut page = Page::zeroed();
            page.slots[..chunk.len()].copy_from_slice(chunk);
            page
        })
        .collect()
}
