//! The difference of routes: backends, tables, names.

use super::Planner;
use super::applied::{AppliedRoute, Basis, delete_name, put_name, shared};
use super::change::{Admission, Change};
use super::hops::Hops;
use super::local;
use crate::model::{
    BackendSpec, Desired, DesiredRoute, Difference, Pattern, Problem, SharedList, TrafficPolicy,
};
use common::maps::address::{Address, Port};
use common::maps::backend::{
    BACKEND_FAILING, BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend,
};
use common::maps::route::{LABEL_ROUTE, LabelKey, Route};
use foldhash::{HashMap, HashMapExt, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Differing routes are planned individually if they are at most one in this many.
const SHARE: usize = 8;
/// Up to this many differing routes are always planned individually.
const FEW: usize = 64;

/// Ids of listeners, the same for all routes.
struct ListenerIds<'a> {
    /// Ids of the desired listeners, by index.
    listener_ids: &'a [Option<u32>],
    /// Ids of the listeners that lead to a route by default.
    by_default: HashMap<&'a str, Vec<u32>>,
}

impl<'p> Planner<'p> {
    /// Plans routes: all of them, or those that differ from `basis`. `listener_ids` are those of `desired.listeners`.
    pub(super) fn routes(&mut self, desired: &Desired, listener_ids: &[Option<u32>], basis: Option<&Basis>) {
        let mut by_default: HashMap<&str, Vec<u32>> = HashMap::new();
        for (listener, id) in desired.listeners.iter().zip(listener_ids) {
            if let (Some(route), Some(id)) = (listener.route.and_then(|place| desired.routes.get(place)), id)
            {
                by_default.entry(&route.name).or_default().push(*id);
            }
        }
        let listener_ids_of = ListenerIds { listener_ids, by_default };
        // With many differences, going through both lists is faster than looking up single routes.
        let few = FEW.max(self.before.routes.len() / SHARE);
        let differences = basis.map(|basis| basis.desired.routes.differences(&desired.routes));
        let (changed, gone) = match differences.filter(|differences| differences.len() <= few) {
            Some(differences) => self.some_routes(&differences, &listener_ids_of),
            None => self.all_routes(desired, &listener_ids_of),
        };
        self.removed_routes(gone);
        self.forget_names(&changed);
    }

    /// Plans every route. Returns those that changed, and those that are gone.
    fn all_routes(
        &mut self,
        desired: &Desired,
        listener_ids_of: &ListenerIds<'_>,
    ) -> (Vec<Arc<AppliedRoute>>, Vec<&'p AppliedRoute>) {
        let (mut changed, mut gone) = (Vec::new(), Vec::new());
        self.steps.reserve(desired.routes.len().saturating_sub(self.before.routes.len()));
        let mut planned = Vec::with_capacity(desired.routes.len());
        let mut old = self.before.routes.iter().peekable();
        for route in desired.routes.iter() {
            while let Some(old) = old.next_if(|old| old.name < route.name) {
                gone.push(&**old);
            }
            let old = old.next_if(|old| old.name == route.name);
            let (new, is_new) = self.route(route, old, listener_ids_of);
            self.after.tally.add(&new);
            if is_new {
                changed.push(Arc::clone(&new));
            }
            planned.push(new);
        }
        gone.extend(old.map(|old| &**old));
        self.after.routes = planned.into_iter().collect();
        (changed, gone)
    }

    /// Plans only these routes; the others are unchanged. Returns those that changed, and those that are
    /// gone.
    fn some_routes(
        &mut self,
        differences: &[Difference<'_, Arc<DesiredRoute>>],
        listener_ids_of: &ListenerIds<'_>,
    ) -> (Vec<Arc<AppliedRoute>>, Vec<&'p AppliedRoute>) {
        let before = self.before;
        let (mut changed, mut gone, mut edits) = (Vec::new(), Vec::new(), Vec::new());
        self.after.tally = before.tally.clone();
        for (was, is) in differences {
            let old = was.and_then(|was| before.routes.find(&was.name));
            let Some(is) = *is else {
                if let Some(old) = old {
                    self.after.tally.remove(old);
                    edits.push((Arc::clone(&old.name), None));
                    gone.push(&**old);
                }
                continue;
            };
            if old.is_none()
                && let Some(neighbour) = neighbour(&before.routes, &is.name)
            {
                self.attached = Arc::clone(&neighbour.attached);
            }
            let (new, is_new) = self.route(is, old, listener_ids_of);
            if is_new {
                if let Some(old) = old {
                    self.after.tally.remove(old);
                }
                self.after.tally.add(&new);
                edits.push((Arc::clone(&new.name), Some(Arc::clone(&new))));
                changed.push(new);
            }
        }
        self.after.routes = before.routes.edited(edits);
        (changed, gone)
    }

    /// Deletes the names that no other route has taken over.
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

    /// Plans a route. Also returns whether anything of it changed.
    fn route(
        &mut self,
        desired: &DesiredRoute,
        old: Option<&Arc<AppliedRoute>>,
        listener_ids_of: &ListenerIds<'_>,
    ) -> (Arc<AppliedRoute>, bool) {
        let ListenerIds { listener_ids, by_default } = listener_ids_of;
        let defaults = by_default.get(&*desired.name).map_or(&[][..], Vec::as_slice);
        if let Some(old) = old.filter(|old| self.stays(old, desired, listener_ids, defaults)) {
            return (Arc::clone(old), false);
        }
        let id = old.map_or_else(|| self.next_id(|ids| &mut ids.route), |old| old.id);
        let backends = self.backends(id, desired, old.map(|old| &**old));
        let policy = self.policy(desired.source_ranges.as_ref(), &desired.name);
        let mut new = AppliedRoute {
            name: Arc::clone(&desired.name),
            id,
            value: Route::zeroed(),
            v4: self.table(&backends, true, old.map(|old| &old.v4)),
            v6: self.table(&backends, false, old.map(|old| &old.v6)),
            names: Vec::with_capacity(desired.names.len()),
            backends,
            attached: Arc::default(),
            source_ranges: desired.source_ranges.clone(),
        };
        new.value = new.assembled(policy, desired.affinity);
        let mut attached = defaults.to_vec();
        for (listener, pattern) in &desired.names {
            if let Some(listener) = listener_ids[*listener] {
                new.names.push((listener, pattern.clone()));
                attached.push(listener);
            }
        }
        new.names.sort();
        attached.sort_unstable();
        attached.dedup();
        new.attached = match old {
            Some(old) if *old.attached == *attached => Arc::clone(&old.attached),
            _ => shared(&attached, &mut self.attached),
        };
        match old {
            Some(old) if **old == new => return (Arc::clone(old), false),
            Some(old) => self.changed(old, &new),
            None => {
                let label = LabelKey { kind: LABEL_ROUTE, id };
                self.steps.fill.push(Change::PutLabel(label, Arc::clone(&desired.name)));
                self.steps.fill.push(Change::PutRouteCounters(id));
                self.changed(&AppliedRoute::default(), &new);
            }
        }
        (Arc::new(new), true)
    }

    /// Whether a route is certainly as desired. This is the usual case, and avoids building the desired state
    /// to compare it.
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
            && old.value == old.assembled(old.value.policy, desired.affinity)
            && self
                .policy_stays((old.value.policy, old.source_ranges.as_ref()), desired.source_ranges.as_ref())
            && old.attached.iter().all(|listener| old.names_on(*listener) || defaults.contains(listener))
            && defaults.iter().all(|listener| old.attached.contains(listener))
            && names.all(|((id, old), (listener, new))| listener_ids[*listener] == Some(*id) && old == new)
            && backends.all(|((_, old), new)| *old == self.way(old.route, new, desired.traffic))
            && self.table_stays(&old.backends, true, &old.v4)
            && self.table_stays(&old.backends, false, &old.v6)
    }

    /// Adds the writes from one state of a route to the next. A new route starts from an empty state.
    fn changed(&mut self, old: &AppliedRoute, new: &AppliedRoute) {
        for (id, value) in &new.backends {
            if old.backend(value.address, value.port).is_none_or(|before| *before != (*id, *value)) {
                self.steps.fill.push(Change::PutBackend(*id, *value));
            }
        }
        self.new_policies.has_changed |= old.value.policy != new.value.policy;
        if old.id != 0 && old.source_ranges != new.source_ranges {
            let admission = Admission { ranges: new.source_ranges.clone(), since: None };
            self.steps.ended.ranges.insert(new.id, admission);
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
            if new.backend(value.address, value.port).is_none_or(|(now, _)| now != id) {
                self.retire(*id, value);
            }
        }
        for (old, new) in [(&old.v4, &new.v4), (&old.v6, &new.v6)] {
            if old.table != new.table {
                self.delete_table(&old.table);
            }
        }
        for listener in &*old.attached {
            if new.attached.binary_search(listener).is_err() {
                self.steps.ended.detached.insert((*listener, new.id));
            }
        }
    }

    /// Switches the route's tables. A family that loses its last backend keeps its old table until names have
    /// moved to routes that have backends.
    fn switch(&mut self, old: &AppliedRoute, new: &AppliedRoute) {
        let last = new.value;
        let mut first = last;
        for (first, old) in [(&mut first.v4, &old.v4), (&mut first.v6, &old.v6)] {
            // A table without known members was found incomplete in the maps.
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

    fn removed_routes(&mut self, mut gone: Vec<&AppliedRoute>) {
        gone.sort_by_key(|route| route.id);
        for route in gone {
            self.gone.extend(route.names.iter().cloned());
            self.new_policies.has_changed |= route.value.policy != 0;
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
            let value = self.way(route, spec, desired.traffic);
            // Open connections keep their delivery. One with another is another backend, or its replies would not be known.
            let is_same = |before: &&(u32, Backend)| before.1.delivery == value.delivery;
            let before = old.and_then(|old| old.backend(address, port)).filter(is_same);
            let id = before.map_or_else(|| self.next_id(|ids| &mut ids.backend), |(id, _)| *id);
            let news = before.is_none_or(|(_, before)| before.flags != value.flags);
            if news && value.flags & BACKEND_UNREACHABLE != 0 {
                self.problems.push(self.unreachable(&desired.name, spec));
            }
            backends.push((id, value));
        }
        backends.sort_by_key(|(_, value)| (value.address, value.port));
        backends
    }

    /// Returns a backend as it should be written, with its next hop.
    fn way(&self, route: u32, spec: &BackendSpec, traffic: TrafficPolicy) -> Backend {
        let (address, port) = (Address::from(spec.address), Port::new(spec.port));
        let flags = if spec.failing { BACKEND_FAILING } else { 0 };
        let (weight, delivery) = (spec.weight, local::delivery(traffic));
        let backend = Backend { address, port, weight, flags, delivery, route, ..Backend::zeroed() };
        if spec.is_refusing() {
            return Backend { flags: BACKEND_REFUSING, ..backend };
        }
        let configured = self.sources.iter().find(|source| source.is_ipv4() == spec.address.is_ipv4());
        let hop = self.hops.towards.get(&spec.address).filter(|_| !self.own.contains(&spec.address));
        match hop.filter(|hop| local::admits(delivery, hop)) {
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

    /// Returns why a backend takes no connection.
    fn unreachable(&self, route: &str, spec: &BackendSpec) -> Problem {
        match self.hops.towards.get(&spec.address).filter(|_| !self.own.contains(&spec.address)) {
            Some(_) => local::behind_router(route, spec),
            None => unreachable(self.own, route, spec),
        }
    }
}

/// Returns the route that is next to a name: often of the same origin, and so at the same listeners.
fn neighbour<'a>(routes: &'a SharedList<Arc<AppliedRoute>>, name: &str) -> Option<&'a Arc<AppliedRoute>> {
    let place = routes.place(name).unwrap_or_else(|place| place);
    routes.get(place.saturating_sub(1))
}

/// Returns what a node cannot do of `desired`, whatever its maps hold.
pub(super) fn impossible(desired: &Desired, hops: &Hops) -> Vec<Problem> {
    let mut problems = Vec::new();
    for route in &desired.routes {
        let own = |backend: &&BackendSpec| !backend.is_refusing() && hops.own.contains(&backend.address);
        let backends = route.backends.iter().filter(own);
        problems.extend(backends.map(|backend| unreachable(&hops.own, &route.name, backend)));
    }
    problems
}

fn unreachable(own: &std::collections::HashSet<IpAddr>, route: &str, spec: &BackendSpec) -> Problem {
    let backend = SocketAddr::new(spec.address, spec.port);
    if own.contains(&spec.address) {
        let what = format!("route {route}: backend {backend} is an address of this node itself");
        return Problem::error(
            "",
            what,
            "let the tenant listen on an address of its own; see Limits in README.md",
        );
    }
    let what = format!("route {route}: this node has no route to backend {backend}");
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
