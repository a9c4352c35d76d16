//! When nothing but some routes of the file changed: only these are compiled. Comes to the same as compiling everything;
//! what cannot be told from them alone is left to that.

use super::Surroundings;
use super::capacity::Load;
use super::warn::Attachments;
use crate::model::{
    BackendSpec, Desired, DesiredRoute, ListenerSpec, Pattern, Problem, Protocol, RouteSpec, Settings,
};
use common::maps::address::Address;
use common::maps::route::MEMBERS_MAX;
use foldhash::fast::RandomState;
use foldhash::{HashMap, HashSet, HashSetExt};
use std::collections::BTreeMap;
use std::hash::BuildHasher;
use std::net::SocketAddr;
use std::sync::Arc;

/// What a file without an error came to, and what is needed to change some of its routes.
#[derive(Clone, Debug)]
pub struct Kept {
    settings: Settings,
    listeners: Vec<ListenerSpec>,
    around: Surroundings,
    desired: Desired,
    load: Load,
    /// Where clients dial.
    dialled: HashSet<SocketAddr>,
    /// Of each name on each listener a number that no other has.
    claimed: HashSet<u64>,
    numbers: RandomState,
}

/// What becomes of the route of a name, if it was there, and if it is.
type Edits<'a> = BTreeMap<&'a str, (Option<&'a Arc<DesiredRoute>>, Option<Arc<DesiredRoute>>)>;

impl Kept {
    /// Of the settings and listeners of a file, and of what it came to without an error. `None`: two of its names have
    /// the same number, for once.
    pub fn new(
        settings: Settings,
        listeners: Vec<ListenerSpec>,
        around: &Surroundings,
        desired: Desired,
    ) -> Option<Self> {
        let numbers = RandomState::default();
        let names = desired.routes.iter().map(|route| route.names.len()).sum();
        let mut claimed = HashSet::with_capacity(names);
        for name in desired.routes.iter().flat_map(|route| &route.names) {
            if !claimed.insert(numbers.hash_one(name)) {
                return None;
            }
        }
        let at = |port: u16| move |address: &_| SocketAddr::new(*address, port);
        let doors = desired.listeners.iter().flat_map(|l| l.addresses.iter().map(at(l.port)));
        let (load, dialled) = (Load::of(&desired), doors.collect());
        Some(Self { settings, listeners, around: around.clone(), desired, load, dialled, claimed, numbers })
    }

    /// What the data plane shall do.
    pub fn desired(&self) -> &Desired {
        &self.desired
    }

    /// Whether a file with these settings and listeners differs in routes alone.
    pub fn is_of(&self, settings: &Settings, listeners: &[ListenerSpec], around: &Surroundings) -> bool {
        self.settings == *settings && self.listeners == listeners && self.around == *around
    }

    /// Takes the routes `gone` out, by name, and these in; gives what may surprise their author. `None`: compile
    /// everything, nothing is changed here.
    pub fn change(&mut self, gone: &[Arc<str>], new: &[RouteSpec]) -> Option<Vec<Problem>> {
        let edits = self.edits(gone, new)?;
        if !self.leads_as_before(&edits, new) {
            return None;
        }
        let (mut load, mut given_up, mut taken) = (self.load, HashSet::new(), HashSet::new());
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
        }
        let is_free = |number: &u64| given_up.contains(number) || !self.claimed.contains(number);
        if !load.fits(self.settings.max_names) || !taken.iter().all(is_free) {
            return None;
        }
        let mut problems = Vec::new();
        let attachments = Attachments::new(&self.listeners);
        new.iter().for_each(|route| attachments.check(route, &mut problems));
        let changed = edits.into_iter().map(|(name, (_, new))| (Arc::from(name), new));
        let routes = self.desired.routes.edited(changed.collect::<Vec<_>>());
        for listener in &mut self.desired.listeners {
            let name = listener.route.map(|place| &self.desired.routes[place].name);
            listener.route = name.and_then(|name| routes.place(name).ok());
        }
        self.desired.routes = routes;
        self.load = load;
        for number in given_up {
            self.claimed.remove(&number);
        }
        self.claimed.extend(taken);
        Some(problems)
    }

    /// What becomes of each name that is concerned; `None`: a route is there twice, is not there, or has an error.
    fn edits<'a>(&'a self, gone: &'a [Arc<str>], new: &'a [RouteSpec]) -> Option<Edits<'a>> {
        let mut edits = Edits::new();
        for name in gone {
            edits.insert(name, (Some(self.desired.routes.find(name)?), None));
        }
        for spec in new {
            let edit = edits.entry(&spec.name).or_default();
            if edit.1.is_some() || (edit.0.is_none() && self.desired.routes.find(&spec.name).is_some()) {
                return None;
            }
            edit.1 = Some(Arc::new(self.route(spec)?));
        }
        Some(edits)
    }

    /// Compiles a route; `None`: it has an error.
    fn route(&self, spec: &RouteSpec) -> Option<DesiredRoute> {
        let listeners = &self.desired.listeners;
        let mut names: Vec<(usize, Pattern)> = Vec::new();
        for name in &spec.listeners {
            let place = listeners.binary_search_by(|listener| listener.name.cmp(name)).ok()?;
            if listeners[place].protocol == Protocol::Tls {
                let is_default = || {
                    let default = listeners[place].route.and_then(|route| self.desired.routes.get(route));
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
        Some(DesiredRoute { name: Arc::clone(&spec.name), names, backends })
    }

    /// Whether each listener leads by default, or by address alone, to the same route after the edits.
    fn leads_as_before(&self, edits: &Edits<'_>, new: &[RouteSpec]) -> bool {
        let specs: HashMap<&str, &RouteSpec> = new.iter().map(|spec| (&*spec.name, spec)).collect();
        let names = |route: &str, listener: &Arc<str>| {
            specs.get(route).is_some_and(|spec| spec.listeners.contains(listener))
        };
        self.desired.listeners.iter().all(|listener| {
            let route = listener.route.and_then(|place| self.desired.routes.get(place));
            let is_tcp = listener.protocol == Protocol::Tcp;
            let stays = route.is_none_or(|route| {
                let is_edited = edits.contains_key(&*route.name);
                let is_there = specs.contains_key(&*route.name);
                !is_edited || (is_there && (!is_tcp || names(&route.name, &listener.name)))
            });
            let is_own = |spec: &RouteSpec| route.is_some_and(|route| route.name == spec.name);
            stays
                && (!is_tcp
                    || new.iter().all(|spec| is_own(spec) || !spec.listeners.contains(&listener.name)))
        })
    }
}
