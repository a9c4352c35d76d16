//! Builds what the data plane should do from settled ownership.

use super::super::capacity::Room;
use super::backends::Services;
use super::bindings::Binding;
use super::digest::{self, Part};
use super::listener::Parents;
use super::own::{Entry, Lead, NONE, Names};
use super::precedence::Claimant;
use super::route::Routes;
use super::service::Balancers;
use super::{label, probing};
use crate::model::{
    BackendSpec, Desired, DesiredListener, DesiredRoute, Kind, Pattern, Probes, Problem, Protocol,
};
use foldhash::HashSet;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

/// The settled ownership, with what is needed to build from it.
pub(super) struct Builder<'a> {
    /// What the static file results in by itself.
    pub(super) file: &'a Desired,
    pub(super) bindings: &'a [Binding<'a>],
    pub(super) routes: &'a Routes<'a>,
    pub(super) balancers: &'a Balancers<'a>,
    pub(super) services: &'a Services<'a>,
    /// `settings.maxNames`.
    pub(super) names_max: u32,
}

/// What the data plane and the probes should do. Listeners and routes are in any order.
#[derive(Default)]
pub(super) struct Built {
    pub(super) listeners: Vec<DesiredListener>,
    pub(super) routes: Vec<DesiredRoute>,
    pub(super) probes: Probes,
    /// Targets that the maps have no room for.
    pub(super) left_out: Vec<usize>,
}

/// Which targets names and bindings lead to.
struct Leads {
    /// By target: binding and pattern.
    names: Vec<Vec<(usize, Pattern)>>,
    /// By binding: the target of all names without an entry, or of the TCP connection.
    defaults: Vec<Option<usize>>,
    /// By Gateway: what it refuses.
    refused: BTreeMap<usize, Refused>,
}

/// What a Gateway refuses. It is led to a route without backends, so that it is counted.
#[derive(Default)]
struct Refused {
    /// Names of listeners that no route has.
    names: Vec<(usize, Pattern)>,
    /// TCP bindings without a route.
    bindings: Vec<usize>,
}

impl Builder<'_> {
    /// Builds what the data plane should do, and adds to the digests of Gateways and ListenerSets.
    pub(super) fn build(
        &self,
        names: &Names<'_>,
        parents: &mut Parents<'_>,
        problems: &mut Vec<Problem>,
    ) -> Built {
        self.digests(names, parents);
        let leads = self.leads(names, parents);
        let mut built = Built::default();
        let mut place_of: Vec<Option<usize>> = vec![None; leads.names.len()];
        let routes = self.routes(leads.names, &leads.defaults, problems);
        let (fitting, left_out) = self.fitting(routes, problems);
        for (target, route) in fitting {
            place_of[target] = Some(built.routes.len());
            built.routes.push(route);
        }
        self.note_left_out(&left_out, names, parents);
        built.left_out = left_out;
        let mut of_door: Vec<Option<usize>> =
            leads.defaults.iter().map(|target| target.and_then(|target| place_of[target])).collect();
        let mut buffer = String::new();
        for (gateway, refused) in leads.refused {
            for binding in refused.bindings {
                of_door[binding] = Some(built.routes.len());
            }
            let name = self.unique(label::object(&mut buffer, Kind::Gateway, parents.all[gateway].name));
            built.routes.push(DesiredRoute { name, names: refused.names.into(), ..DesiredRoute::default() });
        }
        built.listeners.extend(self.bindings.iter().zip(of_door).map(|(binding, route)| DesiredListener {
            name: binding.at.to_string().into(),
            addresses: vec![binding.at.ip()],
            port: binding.at.port(),
            protocol: binding.protocol,
            route,
        }));
        self.probes(&place_of, &mut built);
        built
    }

    /// Adds bindings, names and routes to the digest of each Gateway and ListenerSet.
    fn digests(&self, names: &Names<'_>, parents: &mut Parents<'_>) {
        let routes: Vec<u64> =
            self.routes.all.iter().map(|route| digest::route(&route.label, route.spec)).collect();
        let first_route = self.file.routes.len();
        for Entry { binding, pattern, lead } in names.entries() {
            let part = Part::new("name").at(self.bindings[binding].at);
            let part = match pattern {
                Some(Pattern::Exact(name)) => part.text("exact").text(name.as_str()),
                Some(Pattern::Wildcard(suffix)) => part.text("wildcard").text(suffix.as_str()),
                None => part.text("any"),
            };
            let (parent, number) = match lead {
                Lead::Refused { gateway } => (gateway, 0),
                Lead::To { target, candidate } => match names.candidates[candidate].listener {
                    NONE => continue,
                    listener => (parents.listeners[listener].parent, routes[target - first_route]),
                },
            };
            let digest = &mut parents.all[parent].digest;
            *digest = digest.wrapping_add(part.number(number).done());
        }
        for listener in &parents.listeners {
            for binding in &listener.bindings {
                let binding = &self.bindings[*binding];
                let part =
                    Part::new("binding").at(binding.at).number(u64::from(binding.protocol == Protocol::Tls));
                let digest = &mut parents.all[listener.parent].digest;
                *digest = digest.wrapping_add(part.done());
            }
        }
    }

    fn leads(&self, names: &Names<'_>, parents: &Parents<'_>) -> Leads {
        let targets = self.file.routes.len() + self.routes.all.len() + self.balancers.ports.len();
        let mut leads = Leads {
            names: vec![Vec::new(); targets],
            defaults: vec![None; self.bindings.len()],
            refused: BTreeMap::new(),
        };
        for Entry { binding, pattern, lead } in names.entries() {
            match (lead, pattern) {
                (Lead::To { target, .. }, Some(pattern)) => {
                    leads.names[target].push((binding, pattern.clone()))
                }
                (Lead::To { target, .. }, None) => leads.defaults[binding] = Some(target),
                (Lead::Refused { gateway }, Some(pattern)) => {
                    leads.refused.entry(gateway).or_default().names.push((binding, pattern.clone()));
                }
                (Lead::Refused { .. }, None) => {}
            }
        }
        for (at, listener) in parents.listeners.iter().enumerate() {
            let closed = |binding: &&usize| {
                self.bindings[**binding].protocol == Protocol::Tcp && leads.defaults[**binding].is_none()
            };
            let closed: Vec<usize> = listener.bindings.iter().filter(closed).copied().collect();
            if !closed.is_empty() {
                leads.refused.entry(parents.gateway_of(at)).or_default().bindings.extend(closed);
            }
        }
        leads
    }

    /// Returns the routes that something leads to, with their targets, and all routes of the file.
    fn routes(
        &self,
        names: Vec<Vec<(usize, Pattern)>>,
        defaults: &[Option<usize>],
        problems: &mut Vec<Problem>,
    ) -> Vec<(usize, DesiredRoute)> {
        let used: HashSet<usize> = defaults.iter().flatten().copied().collect();
        let (first_route, first_port) = self.firsts();
        let mut routes = Vec::with_capacity(names.len());
        for (target, names) in names.into_iter().enumerate() {
            if target >= first_route && names.is_empty() && !used.contains(&target) {
                continue;
            }
            let (name, backends) = if target < first_route {
                let route = &self.file.routes[target];
                (Arc::clone(&route.name), self.file_backends(route, problems))
            } else if target < first_port {
                let route = &self.routes.all[target - first_route];
                (self.unique(Arc::clone(&route.label)), route.resolved.backends.clone())
            } else {
                let port = &self.balancers.ports[target - first_port];
                let resolved = self.services.of_service(port.name, port.port);
                (self.unique(Arc::clone(&port.label)), resolved.backends)
            };
            let (names, backends) = (names.into(), backends.into());
            routes.push((target, DesiredRoute { name, names, backends, tenant: None, policy: None }));
        }
        routes
    }

    /// Returns the routes that the maps have room for (those of the file, then the oldest), and the targets
    /// left out.
    fn fitting(
        &self,
        routes: Vec<(usize, DesiredRoute)>,
        problems: &mut Vec<Problem>,
    ) -> (Vec<(usize, DesiredRoute)>, Vec<usize>) {
        let mut room = Room::new(self.names_max);
        // The usual case: everything fits, whatever the order.
        if routes.iter().all(|(_, route)| room.take(route)) {
            return (routes, Vec::new());
        }
        let mut ranked: Vec<_> = routes.into_iter().map(|route| (self.claimant(route.0), route)).collect();
        ranked.sort_by_key(|(claimant, (target, _))| (*claimant, *target));
        let mut room = Room::new(self.names_max);
        let (mut fitting, mut left_out) = (Vec::with_capacity(ranked.len()), Vec::new());
        for (claimant, (target, route)) in ranked {
            if room.take(&route) {
                fitting.push((target, route));
                continue;
            }
            left_out.push(target);
            let what = super::left_out(&route.name);
            let problem = Problem::warning("settings.maxNames", what, "raise it").value(self.names_max);
            problems.push(match claimant.reference() {
                Some(object) => problem.object(object),
                None => problem,
            });
        }
        (fitting, left_out)
    }

    /// Notes on Gateways and ListenerSets each route of theirs that is left out: the maps do not hold them
    /// completely.
    fn note_left_out(&self, targets: &[usize], names: &Names<'_>, parents: &mut Parents<'_>) {
        if targets.is_empty() {
            return;
        }
        let targets: HashSet<usize> = targets.iter().copied().collect();
        let (first_route, first_port) = self.firsts();
        for entry in names.entries() {
            let Lead::To { target, candidate } = entry.lead else { continue };
            let listener = names.candidates[candidate].listener;
            if listener == NONE || !(first_route..first_port).contains(&target) || !targets.contains(&target)
            {
                continue;
            }
            let parent = &mut parents.all[parents.listeners[listener].parent];
            let label = &self.routes.all[target - first_route].label;
            parent.left_out.get_or_insert_with(|| super::left_out(label));
        }
    }

    fn claimant(&self, target: usize) -> Claimant<'_> {
        let (first_route, first_port) = self.firsts();
        if target < first_route {
            Claimant::File { what: "route", name: &self.file.routes[target].name }
        } else if target < first_port {
            self.routes.all[target - first_route].claimant()
        } else {
            let port = &self.balancers.ports[target - first_port];
            Claimant::object(Kind::Service, &port.service.meta)
        }
    }

    /// Returns the target of the first route of the cluster, and that of the first port of a Service.
    fn firsts(&self) -> (usize, usize) {
        let first_route = self.file.routes.len();
        (first_route, first_route + self.routes.all.len())
    }

    /// Returns the route's backends without those that would lead back to us.
    fn file_backends(&self, route: &DesiredRoute, problems: &mut Vec<Problem>) -> Vec<BackendSpec> {
        let mut backends = route.backends.to_vec();
        backends.retain(|backend| {
            let at = SocketAddr::new(backend.address, backend.port);
            let binding = self
                .services
                .dials_us(at)
                .then(|| self.bindings.iter().find(|binding| binding.at == at))
                .flatten();
            if let Some(binding) = binding {
                let what = format!(
                    "route {}: backend {at} is a binding of {}: connections would go round",
                    route.name, binding.owner
                );
                problems.push(
                    Problem::warning("routes", what, "write the tenant's own address and port").value(at),
                );
            }
            binding.is_none()
        });
        backends
    }

    /// Returns a name that no route of the file has.
    fn unique(&self, name: Arc<str>) -> Arc<str> {
        match self.file.routes.find(&name) {
            Some(_) => label::hashed(&name),
            None => name,
        }
    }

    /// Adds the endpoints to be probed: those of routes that something leads to.
    fn probes(&self, place_of: &[Option<usize>], built: &mut Built) {
        let (first_route, first_port) = self.firsts();
        let is_used = |target: usize| place_of[target].is_some();
        for (_, route) in self.routes.all.iter().enumerate().filter(|(at, _)| is_used(first_route + at)) {
            probing::add(&mut built.probes, &route.resolved, probing::server_name(route.spec));
        }
        for (_, port) in self.balancers.ports.iter().enumerate().filter(|(at, _)| is_used(first_port + at)) {
            probing::add(&mut built.probes, &self.services.of_service(port.name, port.port), None);
        }
    }
}
