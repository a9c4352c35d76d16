//! The quick path if only some routes of the file changed: only these are compiled. The result is the same as
//! compiling everything. Changes whose result does not follow from these routes alone are left to a full
//! compile.

use super::capacity::Load;
use crate::model::{BackendSpec, Desired, DesiredRoute, Pattern, Protocol, RouteSpec};
use common::maps::address::Address;
use common::maps::route::MEMBERS_MAX;
use foldhash::fast::RandomState;
use foldhash::{HashMap, HashSet, HashSetExt};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;

/// What is needed, besides the compiled file, to change some routes of a file without errors.
#[derive(Clone, Debug)]
pub(super) struct Kept {
    load: Load,
    /// The addresses and ports that clients dial.
    dialled: HashSet<SocketAddr>,
    /// For each name on each listener, a hash that no other has.
    claimed: HashSet<u64>,
    numbers: RandomState,
}

/// Which routes were changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edited {
    /// By name, in order.
    pub(super) routes: Vec<Arc<str>>,
    /// All of them existed before, and match and admit the same; only their backends differ.
    pub(super) is_of_backends: bool,
}

/// By name: the route before the change, and the route after it.
type Edits<'a> = BTreeMap<&'a str, (Option<&'a Arc<DesiredRoute>>, Option<Arc<DesiredRoute>>)>;

impl Kept {
    /// Creates it for a file that compiled without errors. `None`: two of its names have the same hash, which
    /// is rare.
    pub(super) fn new(desired: &Desired) -> Option<Self> {
        let numbers = RandomState::default();
        let names = desired.routes.iter().map(|route| route.names.len()).sum();
        let mut claimed = HashSet::with_capacity(names);
        for name in desired.routes.iter().flat_map(|route| &route.names) {
            if !claimed.insert(numbers.hash_one(name)) {
                return None;
            }
        }
        let at = |port: u16| move |address: &_| SocketAddr::new(*address, port);
        let bindings = desired.listeners.iter().flat_map(|l| l.addresses.iter().map(at(l.port)));
        Some(Self { load: Load::of(desired), dialled: bindings.collect(), claimed, numbers })
    }

    /// Removes the routes `gone`, by name, from the compiled file, and adds the routes `new`. `None`: compile
    /// everything; nothing is changed.
    pub(super) fn change(
        &mut self,
        desired: &mut Desired,
        gone: &[Arc<str>],
        new: &[RouteSpec],
    ) -> Option<Edited> {
        let edits = self.edits(desired, gone, new)?;
        if !leads_as_before(desired, &edits, new) {
            return None;
        }
        let (mut load, mut given_up, mut taken) = (self.load.clone(), HashSet::new(), HashSet::new());
        let mut is_of_backends = true;
        for (old, new) in edits.values() {
            if let Some(old) = old {
                load = load.without(old);
                given_up.extend(old.names.iter().map(|name| self.numbers.hash_one(name)));
            }
            if let Some(new) = new {
                load = load.with(new);
                let mut numbers = new.names.iter().map(|name| self.numbers.hash_one(name));
                if !numbers.all(|number| taken.insert(number)) {
                    return None;
                }
            }
            let alike = |(old, new): (&Arc<DesiredRoute>, &Arc<DesiredRoute>)| {
                (&old.names, &old.source_ranges, old.affinity, old.traffic)
                    == (&new.names, &new.source_ranges, new.affinity, new.traffic)
            };
            is_of_backends &= old.zip(new.as_ref()).is_some_and(alike);
        }
        let is_free = |number: &u64| given_up.contains(number) || !self.claimed.contains(number);
        if !load.fits(desired.settings.max_names) || !taken.iter().all(is_free) {
            return None;
        }
        let changed: Vec<_> = edits.into_iter().map(|(name, (_, new))| (Arc::from(name), new)).collect();
        let names = changed.iter().map(|(name, _)| Arc::clone(name)).collect();
        let routes = desired.routes.edited(changed);
        for listener in &mut desired.listeners {
            let name = listener.route.map(|place| &desired.routes[place].name);
            listener.route = name.and_then(|name| routes.place(name).ok());
        }
        desired.routes = routes;
        self.load = load;
        for number in given_up {
            self.claimed.remove(&number);
        }
        self.claimed.extend(taken);
        Some(Edited { routes: names, is_of_backends })
    }

    /// Returns the edit of each affected name. `None`: a route occurs twice, does not exist, or has an error.
    fn edits<'a>(
        &self,
        desired: &'a Desired,
        gone: &'a [Arc<str>],
        new: &'a [RouteSpec],
    ) -> Option<Edits<'a>> {
        let mut edits = Edits::new();
        for name in gone {
            edits.insert(name, (Some(desired.routes.find(name)?), None));
        }
        for spec in new {
            let edit = edits.entry(&spec.name).or_default();
            if edit.1.is_some() || (edit.0.is_none() && desired.routes.find(&spec.name).is_some()) {
                return None;
            }
            edit.1 = Some(Arc::new(self.route(desired, spec)?));
        }
        Some(edits)
    }

    /// Compiles a route; `None`: it has an error.
    fn route(&self, desired: &Desired, spec: &RouteSpec) -> Option<DesiredRoute> {
        let listeners = &desired.listeners;
        let mut names: Vec<(usize, Pattern)> = Vec::new();
        for name in &spec.listeners {
            let place = listeners.binary_search_by(|listener| listener.name.cmp(name)).ok()?;
            if listeners[place].protocol == Protocol::Tls {
                let is_default = || {
                    let default = listeners[place].route.and_then(|route| desired.routes.get(route));
                    default.is_some_and(|route| route.name == spec.name)
                };
                if spec.patterns.is_empty() && !is_default() {
                    return None;
                }
                names.extend(spec.patterns.iter().map(|pattern| (place, pattern.clone())));
            }
        }
        names.sort();
        let at = |backend: &BackendSpec| SocketAddr::new(backend.address, backend.port);
        let v4 = spec.backends.iter().filter(|backend| backend.address.is_ipv4()).count();
        let most = v4.max(spec.backends.len() - v4);
        if most > MEMBERS_MAX || spec.backends.iter().any(|backend| self.dialled.contains(&at(backend))) {
            return None;
        }
        let mut backends = spec.backends.clone();
        backends.sort_by_key(|backend| (Address::from(backend.address), backend.port));
        let (name, names, backends) = (Arc::clone(&spec.name), names.into(), backends.into());
        Some(DesiredRoute {
            name,
            names,
            backends,
            tenant: None,
            source_ranges: spec.source_ranges.clone(),
            affinity: spec.affinity,
            traffic: spec.traffic,
            elsewhere: None,
        })
    }
}

/// Whether each listener still leads to the same route after the edits, by default or (TCP) by address alone.
fn leads_as_before(desired: &Desired, edits: &Edits<'_>, new: &[RouteSpec]) -> bool {
    let specs: HashMap<&str, &RouteSpec> = new.iter().map(|spec| (&*spec.name, spec)).collect();
    let names = |route: &str, listener: &Arc<str>| {
        specs.get(route).is_some_and(|spec| spec.listeners.contains(listener))
    };
    desired.listeners.iter().all(|listener| {
        let route = listener.route.and_then(|place| desired.routes.get(place));
        let is_tcp = listener.protocol == Protocol::Tcp;
        let stays = route.is_none_or(|route| {
            let is_edited = edits.contains_key(&*route.name);
            let is_there = specs.contains_key(&*route.name);
            !is_edited || (is_there && (!is_tcp || names(&route.name, &listener.name)))
        });
        let is_own = |spec: &RouteSpec| route.is_some_and(|route| route.name == spec.name);
        stays && (!is_tcp || new.iter().all(|spec| is_own(spec) || !spec.listeners.contains(&listener.name)))
    })
}
