//! Compiles the static file by itself: listeners by name. Of two objects that contradict each other, the one
//! that is first in the file is kept, and a problem names both.

use crate::model::problem::closest;
use crate::model::{
    BackendSpec, DesiredListener, DesiredRoute, Facts, ListenerSpec, Pattern, Problem, Protocol, RouteSpec,
};
use common::maps::address::Address;
use common::maps::route::MEMBERS_MAX;
use foldhash::{HashMap, HashMapExt};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Resolves references and contradictions. Both returned lists are sorted by name.
pub(super) fn compile(facts: &Facts) -> (Vec<DesiredListener>, Vec<DesiredRoute>, Vec<Problem>) {
    let mut compiler = Compiler::new(facts);
    let listeners = compiler.listeners();
    let routes = compiler.routes();
    // The compiler's tables are not needed for sorting, and with a million routes they are large.
    let problems = std::mem::take(&mut compiler.problems);
    drop(compiler);
    let (listeners, routes) = sorted(listeners, routes);
    (listeners, routes, problems)
}

struct Compiler<'a> {
    problems: Vec<Problem>,
    /// Kept listeners by name. The value is the index in the list that [`Self::listeners`] returns.
    listener_of: HashMap<&'a str, usize>,
    /// Kept listeners, in order.
    kept: Vec<&'a ListenerSpec>,
    /// Kept routes by name. The value is the index in the list that [`Self::routes`] returns.
    route_of: HashMap<&'a str, usize>,
    /// Kept routes, in order.
    kept_routes: Vec<&'a RouteSpec>,
    /// The owner of each (address, port): an index into `kept`.
    dialled: HashMap<(IpAddr, u16), usize>,
    /// The owner of each (listener, pattern): an index into `kept_routes`.
    claimed: HashMap<(usize, &'a Pattern), usize>,
}

impl<'a> Compiler<'a> {
    fn new(facts: &'a Facts) -> Self {
        let names: usize =
            facts.routes.iter().map(|route| route.listeners.len() * route.patterns.len()).sum();
        let mut this = Self {
            problems: Vec::new(),
            listener_of: HashMap::with_capacity(facts.listeners.len()),
            kept: Vec::with_capacity(facts.listeners.len()),
            route_of: HashMap::with_capacity(facts.routes.len()),
            kept_routes: Vec::with_capacity(facts.routes.len()),
            dialled: HashMap::new(),
            claimed: HashMap::with_capacity(names.min(facts.settings.max_names as usize)),
        };
        for listener in &facts.listeners {
            if let Some(first) = this.listener_of.get(&*listener.name) {
                let first = this.kept[*first].place;
                this.repeated("listener", listener.place, first, &listener.name);
                continue;
            }
            this.listener_of.insert(&listener.name, this.kept.len());
            this.kept.push(listener);
        }
        for route in &facts.routes {
            if let Some(first) = this.route_of.get(&*route.name) {
                let first = this.kept_routes[*first].place;
                this.repeated("route", route.place, first, &route.name);
                continue;
            }
            this.route_of.insert(&route.name, this.kept_routes.len());
            this.kept_routes.push(route);
        }
        this
    }

    fn repeated(&mut self, kind: &str, place: usize, first: usize, name: &str) {
        self.problems.push(
            Problem::error(
                format!("{kind}s[{place}].name"),
                format!("another {kind}, {kind}s[{first}], has this name"),
                format!("give each {kind} a name of its own"),
            )
            .value(name),
        );
    }

    /// Returns listeners in the order of the source. `route` is an index in that order too.
    fn listeners(&mut self) -> Vec<DesiredListener> {
        let tcp_routes = self.tcp_routes();
        let mut listeners = Vec::with_capacity(self.kept.len());
        for (index, listener) in self.kept.clone().into_iter().enumerate() {
            let mut addresses = self.addresses(index, listener);
            addresses.sort();
            let route = match listener.protocol {
                Protocol::Tls => self.default_route(listener),
                Protocol::Tcp => self.tcp_route(listener, tcp_routes.get(&index).map_or(&[], Vec::as_slice)),
            };
            listeners.push(DesiredListener {
                name: Arc::clone(&listener.name),
                addresses,
                port: listener.port,
                protocol: listener.protocol,
                route,
            });
        }
        listeners
    }

    /// Returns the listener's addresses without those that another listener has on the same port.
    fn addresses(&mut self, index: usize, listener: &ListenerSpec) -> Vec<IpAddr> {
        let mut addresses = Vec::with_capacity(listener.addresses.len());
        for (i, address) in listener.addresses.iter().enumerate() {
            let key = (*address, listener.port);
            if let Some(other) = self.dialled.get(&key) {
                let other = &self.kept[*other].name;
                self.problems.push(
                    Problem::error(
                        format!("listeners[{}].addresses[{i}]", listener.place),
                        format!("listeners {other} and {} both have this address and port", listener.name),
                        "give one of them another address or port",
                    )
                    .value(SocketAddr::from(key)),
                );
                continue;
            }
            self.dialled.insert(key, index);
            addresses.push(*address);
        }
        addresses
    }

    fn default_route(&mut self, listener: &ListenerSpec) -> Option<usize> {
        let name = listener.default_route.as_deref()?;
        let found = self.route_of.get(name).copied();
        if found.is_none() {
            let names = self.kept_routes.iter().map(|route| &*route.name);
            let field = format!("listeners[{}].defaultRoute", listener.place);
            self.problems.push(unknown(field, "route", name, names));
        }
        found
    }

    fn tcp_route(&mut self, listener: &ListenerSpec, routes: &[usize]) -> Option<usize> {
        let at = format!("listeners[{}]", listener.place);
        if let Some(default) = &listener.default_route {
            self.problems.push(
                Problem::error(
                    format!("{at}.defaultRoute"),
                    format!("listener {} is a TCP listener: it has one route and no names", listener.name),
                    "remove defaultRoute and name the listener in that route's listeners",
                )
                .value(default),
            );
        }
        match routes {
            [route] => return Some(*route),
            [] => self.problems.push(Problem::error(
                at,
                format!("no route names TCP listener {}; it needs exactly one", listener.name),
                "name the listener in a route's listeners, or remove it",
            )),
            [first, rest @ ..] => {
                let names: Vec<_> = routes.iter().map(|route| &*self.kept_routes[*route].name).collect();
                let what = format!(
                    "routes {} all name TCP listener {}, which can have only one",
                    names.join(", "),
                    listener.name
                );
                let field = format!("routes[{}].listeners", self.kept_routes[rest[0]].place);
                let remedy = "give each of them a listener of its own, or make the listener's protocol TLS";
                self.problems.push(Problem::error(field, what, remedy).value(&listener.name));
                return Some(*first);
            }
        }
        None
    }

    /// Returns the routes that name each TCP listener.
    fn tcp_routes(&self) -> HashMap<usize, Vec<usize>> {
        let mut routes: HashMap<usize, Vec<usize>> = HashMap::new();
        for (index, route) in self.kept_routes.iter().enumerate() {
            for name in &route.listeners {
                if let Some(listener) = self.listener_of.get(&**name)
                    && self.kept[*listener].protocol == Protocol::Tcp
                {
                    routes.entry(*listener).or_default().push(index);
                }
            }
        }
        routes
    }

    /// Returns routes in the order of the source. Indices of listeners are in that order too.
    fn routes(&mut self) -> Vec<DesiredRoute> {
        let mut routes = Vec::with_capacity(self.kept_routes.len());
        for (index, route) in self.kept_routes.clone().into_iter().enumerate() {
            let tls = self.tls_listeners(route);
            self.need_names(route, &tls);
            let names = self.claim(index, route, &tls).into();
            let backends = self.backends(route).into();
            let name = Arc::clone(&route.name);
            let source_ranges = route.source_ranges.clone();
            routes.push(DesiredRoute {
                name,
                names,
                backends,
                tenant: None,
                source_ranges,
                affinity: route.affinity,
                traffic: route.traffic,
                elsewhere: None,
            });
        }
        routes
    }

    /// Returns the TLS listeners that the route names.
    fn tls_listeners(&mut self, route: &RouteSpec) -> Vec<usize> {
        let mut tls = Vec::with_capacity(route.listeners.len());
        for (i, name) in route.listeners.iter().enumerate() {
            match self.listener_of.get(&**name) {
                Some(listener) if self.kept[*listener].protocol == Protocol::Tls => tls.push(*listener),
                Some(_) => {}
                None => {
                    let names = self.kept.iter().map(|listener| &*listener.name);
                    let field = format!("routes[{}].listeners[{i}]", route.place);
                    self.problems.push(unknown(field, "listener", name, names));
                }
            }
        }
        tls
    }

    fn need_names(&mut self, route: &RouteSpec, tls: &[usize]) {
        if !route.patterns.is_empty() {
            return;
        }
        let is_default = |listener: &ListenerSpec| listener.default_route.as_ref() == Some(&route.name);
        if let Some(listener) = tls.iter().map(|index| self.kept[*index]).find(|l| !is_default(l)) {
            self.problems.push(Problem::error(
                format!("routes[{}].hostnames", route.place),
                format!("route {} has no names for TLS listener {}", route.name, listener.name),
                "write hostnames, or make it the listener's defaultRoute",
            ));
        }
    }

    fn claim(&mut self, index: usize, route: &'a RouteSpec, tls: &[usize]) -> Vec<(usize, Pattern)> {
        let mut names = Vec::with_capacity(tls.len() * route.patterns.len());
        for listener in tls {
            for (i, pattern) in route.patterns.iter().enumerate() {
                let other = *self.claimed.entry((*listener, pattern)).or_insert(index);
                if other == index {
                    names.push((*listener, pattern.clone()));
                    continue;
                }
                let (first, listener) = (&self.kept_routes[other].name, &self.kept[*listener].name);
                self.problems.push(
                    Problem::error(
                        format!("routes[{}].hostnames[{i}]", route.place),
                        format!(
                            "routes {first} and {} both have this name on listener {listener}",
                            route.name
                        ),
                        "remove it from one of them",
                    )
                    .value(pattern),
                );
            }
        }
        names
    }

    /// Returns the backends in order, without those that would lead back to us or exceed the size of a table.
    fn backends(&mut self, route: &RouteSpec) -> Vec<BackendSpec> {
        let mut backends = Vec::with_capacity(route.backends.len());
        let mut counts = [0; 2];
        for (i, backend) in route.backends.iter().enumerate() {
            let field = || format!("routes[{}].backends[{i}]", route.place);
            if let Some(listener) = self.dialled.get(&(backend.address, backend.port)) {
                let listener = &self.kept[*listener].name;
                self.problems.push(
                    Problem::error(
                        field(),
                        format!("the backend is listener {listener} itself: connections would go round"),
                        "write the tenant's own address and port",
                    )
                    .value(SocketAddr::new(backend.address, backend.port)),
                );
                continue;
            }
            let family = usize::from(backend.address.is_ipv6());
            counts[family] += 1;
            if counts[family] == MEMBERS_MAX + 1 {
                self.problems.push(
                    Problem::error(
                        field(),
                        format!("route {} has more than {MEMBERS_MAX} backends of this family", route.name),
                        "remove some",
                    )
                    .value(SocketAddr::new(backend.address, backend.port)),
                );
            }
            if counts[family] <= MEMBERS_MAX {
                backends.push(*backend);
            }
        }
        backends.sort_by_key(|backend| (Address::from(backend.address), backend.port));
        backends
    }
}

fn unknown<'n>(field: String, kind: &str, name: &str, names: impl Iterator<Item = &'n str>) -> Problem {
    let remedy = match closest(name, names) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("write the name of a {kind} of this file"),
    };
    Problem::error(field, format!("there is no {kind} of this name"), remedy).value(name)
}

/// Sorts both lists by name, and updates their references to each other.
pub(super) fn sorted(
    mut listeners: Vec<DesiredListener>,
    mut routes: Vec<DesiredRoute>,
) -> (Vec<DesiredListener>, Vec<DesiredRoute>) {
    let listener_ranks = ranks(listeners.iter().map(|listener| &*listener.name));
    let route_ranks = ranks(routes.iter().map(|route| &*route.name));
    for listener in &mut listeners {
        listener.route = listener.route.map(|route| route_ranks[route]);
    }
    for route in &mut routes {
        for (listener, _) in &mut route.names {
            *listener = listener_ranks[*listener];
        }
        route.names.sort();
    }
    arrange(&mut listeners, listener_ranks);
    arrange(&mut routes, route_ranks);
    (listeners, routes)
}

/// Returns the index of each name in sorted order.
fn ranks<'n>(names: impl Iterator<Item = &'n str>) -> Vec<usize> {
    let mut order: Vec<_> = names.enumerate().map(|(place, name)| (name, place)).collect();
    order.sort_unstable();
    let mut ranks = vec![0; order.len()];
    for (rank, (_, place)) in order.into_iter().enumerate() {
        ranks[place] = rank;
    }
    ranks
}

/// Moves each item to its rank, without a second list.
fn arrange<T>(items: &mut [T], mut ranks: Vec<usize>) {
    for place in 0..items.len() {
        while ranks[place] != place {
            let rank = ranks[place];
            items.swap(place, rank);
            ranks.swap(place, rank);
        }
    }
}
