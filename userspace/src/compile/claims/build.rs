//! Builds what the data plane should do from claims.

use super::super::capacity::Room;
use super::super::file::sorted;
use super::Ground;
use super::backends::{Endpoints, Resolved};
use super::probing;
use crate::model::claim::{ClaimBackends, Grant, Granted};
use crate::model::{
    Affinity, BackendSpec, Claim, Desired, DesiredListener, DesiredRoute, HealthCheck, Origin, Pattern,
    Probes, Problem, Protocol, ServerName, Settings, SourceRanges, TrafficPolicy,
};
use crate::settle;
use foldhash::{HashMap, HashMapExt, HashSet};
use std::collections::hash_map::Entry;
use std::mem::take;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

/// What the data plane and the probes should do.
#[derive(Default)]
pub(in crate::compile) struct Built {
    pub(in crate::compile) desired: Desired,
    pub(in crate::compile) probes: Probes,
    /// Routes that the maps have no room for.
    pub(super) left_out: Vec<Arc<str>>,
    /// What was granted to objects and is not in `desired`, each with its object.
    pub(in crate::compile) unserved: Vec<Problem>,
    /// What is wrong with backends, and what the maps have no room for.
    pub(in crate::compile) problems: Vec<Problem>,
    /// In another order of the same claims of objects, others would have something.
    pub(in crate::compile) is_of_order: bool,
}

/// An address and port that we answer on.
struct Binding<'c> {
    at: SocketAddr,
    protocol: Protocol,
    /// Who answers there first.
    origin: &'c Origin,
    /// The route of every connection that no name takes; by index.
    rest: Option<usize>,
    /// The route, by index, that refuses what nobody else takes.
    refusing: Option<usize>,
}

/// Claims that lead to the same backends.
struct Lead<'c> {
    name: &'c Arc<str>,
    origin: &'c Origin,
    tenant: Option<&'c Arc<str>>,
    backends: &'c ClaimBackends,
    source_ranges: Option<&'c SourceRanges>,
    affinity: Affinity,
    traffic: TrafficPolicy,
    health_port: Option<NonZeroU16>,
    names: Vec<(usize, Pattern)>,
    /// Whether something leads to it.
    is_used: bool,
}

/// The route, by index, that each name leads to, by binding.
type Names<'c> = HashMap<(usize, &'c Pattern), usize>;

/// What leads where, by binding and route.
#[derive(Default)]
struct Leads<'c> {
    bindings: Vec<Binding<'c>>,
    routes: Vec<Lead<'c>>,
    /// Claims of objects contradict each other, and the first has it.
    is_of_order: bool,
}

/// Builds what the data plane should do. Of claims that were granted the same, the first has it.
pub(super) fn build<'c>(
    claims: impl IntoIterator<Item = &'c Claim>,
    settings: &Settings,
    ground: Ground<'_>,
) -> Built {
    let mut built = Built::default();
    let leads = Leads::new(claims, &mut built.unserved);
    built.is_of_order = leads.is_of_order;
    let services = Endpoints::new(ground, leads.bindings.iter().map(|binding| binding.at));
    let mut routes = Vec::with_capacity(leads.routes.len());
    for (index, lead) in leads.routes.iter().enumerate().filter(|(_, lead)| lead.is_used) {
        let (mut resolved, server_name) = leads.resolve(lead, &services, &mut built.problems);
        let (name, names) = (Arc::clone(lead.name), lead.names.clone().into());
        let backends = take(&mut resolved.backends).into();
        let source_ranges = lead.source_ranges.cloned();
        let (tenant, affinity, traffic) = (lead.tenant.cloned(), lead.affinity, lead.traffic);
        let elsewhere = resolved.elsewhere.clone();
        let route =
            DesiredRoute { name, names, backends, tenant, source_ranges, affinity, traffic, elsewhere };
        routes.push((index, route, resolved, server_name));
    }
    let draining = routes.iter().filter(|(_, _, resolved, _)| resolved.is_draining);
    let draining: HashSet<usize> = draining.map(|(index, ..)| *index).collect();
    let health_checks = match settings.serves_health_checks {
        true => leads.health_checks(&draining),
        false => Arc::default(),
    };
    let fits = fitting(&leads, &routes, settings.max_names, &mut built);
    let mut place_of: Vec<Option<usize>> = vec![None; leads.routes.len()];
    let mut placed = Vec::with_capacity(routes.len());
    for ((index, route, resolved, server_name), fits) in routes.into_iter().zip(fits) {
        if !fits {
            continue;
        }
        probing::add(&mut built.probes, &resolved, server_name);
        place_of[index] = Some(placed.len());
        placed.push(route);
    }
    let listener = |binding: &Binding<'_>| DesiredListener {
        name: binding.at.to_string().into(),
        addresses: vec![binding.at.ip()],
        port: binding.at.port(),
        protocol: binding.protocol,
        route: binding.route().and_then(|index| place_of[index]),
    };
    let listeners = leads.bindings.iter().map(listener).collect();
    let (listeners, routes) = sorted(listeners, placed);
    let routes = routes.into_iter().map(Arc::new).collect();
    built.desired = Desired { settings: settings.clone(), listeners, routes, health_checks };
    built
}

impl Lead<'_> {
    /// Whether a claim that leads to it would have made the same of it, had it come first.
    fn is_of(&self, claim: &Claim) -> bool {
        let Self { origin, tenant, backends, source_ranges, affinity, traffic, health_port, .. } = self;
        (*origin, *tenant, *backends, *source_ranges)
            == (&claim.origin, claim.tenant.as_ref(), &claim.backends, claim.source_ranges.as_ref())
            && (*affinity, *traffic, *health_port) == (claim.affinity, claim.traffic, claim.health_port)
    }
}

impl Binding<'_> {
    /// Returns the route of what no name takes. On TLS nothing has to be refused there: no name is found.
    fn route(&self) -> Option<usize> {
        self.rest.or(self.refusing.filter(|_| self.protocol == Protocol::Tcp))
    }
}

impl<'c> Leads<'c> {
    fn new(claims: impl IntoIterator<Item = &'c Claim>, unserved: &mut Vec<Problem>) -> Self {
        let mut this = Self::default();
        let mut bindings: HashMap<SocketAddr, usize> = HashMap::new();
        let mut routes: HashMap<&str, usize> = HashMap::new();
        let mut names = Names::new();
        for claim in claims {
            let route = claim.route.as_ref().map(|name| {
                *routes.entry(&**name).or_insert_with(|| {
                    this.routes.push(Lead {
                        name,
                        origin: &claim.origin,
                        tenant: claim.tenant.as_ref(),
                        backends: &claim.backends,
                        source_ranges: claim.source_ranges.as_ref(),
                        affinity: claim.affinity,
                        traffic: claim.traffic,
                        health_port: claim.health_port,
                        names: Vec::new(),
                        is_used: matches!(claim.backends, ClaimBackends::Addresses(_)),
                    });
                    this.routes.len() - 1
                })
            });
            // A route of the file has a name that the controller took for free. It will give the object's another.
            if let Some(first) = route.filter(|route| this.is_of_another_source(*route, claim)) {
                let Lead { name, origin, .. } = &this.routes[first];
                unserved.extend(unserved_of(claim, &format!("the route name {name}"), origin));
                continue;
            }
            this.is_of_order |= route.is_some_and(|route| !this.routes[route].is_of(claim));
            let mut lost = None;
            for grant in &claim.grants {
                let binding = *bindings.entry(grant.at()).or_insert_with(|| {
                    let (at, protocol, origin) = (grant.at(), grant.protocol, &claim.origin);
                    this.bindings.push(Binding { at, protocol, origin, rest: None, refusing: None });
                    this.bindings.len() - 1
                });
                let holder = this.grant(binding, grant, route, &mut names);
                lost = lost.or(holder.map(|holder| (grant, holder)));
            }
            // One for each claim is enough: of its object, only one is reported.
            unserved.extend(lost.and_then(|(grant, holder)| unserved_of(claim, &text(grant), holder)));
        }
        let to: Vec<usize> = this.bindings.iter().filter_map(Binding::route).collect();
        to.into_iter().for_each(|route| this.routes[route].is_used = true);
        this.routes.iter_mut().for_each(|route| route.is_used |= !route.names.is_empty());
        this
    }

    /// Returns where the node says whether it leads to endpoints: also of what has no address or no room, which it does not lead to. By
    /// index, the routes whose endpoints drain.
    fn health_checks(&self, draining: &HashSet<usize>) -> Arc<[HealthCheck]> {
        let check = |(index, lead): (usize, &Lead<'_>)| {
            let (port, object) = (lead.health_port?, lead.origin.object()?);
            let (route, is_draining) = (Arc::clone(lead.name), draining.contains(&index));
            Some(HealthCheck { port, service: object.name, route, is_draining })
        };
        let mut checks: Vec<HealthCheck> = self.routes.iter().enumerate().filter_map(check).collect();
        checks.sort_unstable();
        checks.into()
    }

    /// Whether one of a route, by index, and a claim is of the static file, and the other an object's.
    fn is_of_another_source(&self, route: usize, claim: &Claim) -> bool {
        is_of_another_source(self.routes[route].origin, &claim.origin)
    }

    /// Notes what was granted at a binding to a claim that leads to a route. Returns who has it, if the claim has not: on this node alone,
    /// for the controller knows nothing of the static file.
    fn grant(
        &mut self,
        binding: usize,
        grant: &'c Grant,
        route: Option<usize>,
        names: &mut Names<'c>,
    ) -> Option<&'c Origin> {
        let at = &mut self.bindings[binding];
        if at.protocol != grant.protocol {
            self.is_of_order = true;
            return Some(at.origin);
        }
        let route = route?;
        let holder = match &grant.what {
            Granted::Binding => {
                let first = *at.refusing.get_or_insert(route);
                // On TLS nothing is refused there.
                self.is_of_order |= first != route && at.protocol == Protocol::Tcp;
                return None;
            }
            Granted::Rest => *at.rest.get_or_insert(route),
            Granted::Names(pattern) => match names.entry((binding, pattern)) {
                Entry::Occupied(held) => *held.get(),
                Entry::Vacant(free) => {
                    self.routes[route].names.push((binding, pattern.clone()));
                    *free.insert(route)
                }
            },
        };
        let is_lost = holder != route;
        let (own, holder) = (&self.routes[route], &self.routes[holder]);
        let is_of_file = is_of_another_source(own.origin, holder.origin);
        self.is_of_order |= is_lost && !is_of_file;
        // What only refuses connections loses nothing where others take them.
        let leads = !matches!(own.backends, ClaimBackends::None);
        (leads && is_of_file).then_some(holder.origin)
    }

    /// Returns the backends of a route, and the server name of their probes.
    fn resolve(
        &self,
        lead: &Lead<'c>,
        services: &Endpoints<'_>,
        problems: &mut Vec<Problem>,
    ) -> (Resolved, Option<&'c ServerName>) {
        match lead.backends {
            ClaimBackends::None => (Resolved::default(), None),
            ClaimBackends::Addresses(backends) => {
                let backends = self.without_circles(lead, backends, services, problems);
                (Resolved { backends, ..Resolved::default() }, None)
            }
            ClaimBackends::Services { references, server_name } => {
                let resolved = services.of(references, lead.traffic);
                report_unused(&resolved, lead.origin, problems);
                (resolved, server_name.as_ref())
            }
        }
    }

    /// Returns a static route's backends without those that would lead back to us.
    fn without_circles(
        &self,
        lead: &Lead<'_>,
        backends: &[BackendSpec],
        services: &Endpoints<'_>,
        problems: &mut Vec<Problem>,
    ) -> Vec<BackendSpec> {
        let mut backends = backends.to_vec();
        backends.retain(|backend| {
            let at = SocketAddr::new(backend.address, backend.port);
            let binding = services
                .dials_us(at)
                .then(|| self.bindings.iter().find(|binding| binding.at == at))
                .flatten();
            if let Some(binding) = binding {
                let what = format!(
                    "route {}: backend {at} is a binding of {}: connections would go round",
                    lead.name, binding.origin
                );
                problems.push(
                    Problem::warning("routes", what, "write the tenant's own address and port").value(at),
                );
            }
            binding.is_none()
        });
        backends
    }
}

/// Returns what was granted, for people.
fn text(grant: &Grant) -> String {
    match &grant.what {
        Granted::Names(pattern) => format!("{pattern} at {}", grant.at()),
        Granted::Binding | Granted::Rest => grant.at().to_string(),
    }
}

/// Returns what is wrong with a claim of an object that has not what it was granted, because of `holder`.
fn unserved_of(claim: &Claim, what: &str, holder: &Origin) -> Option<Problem> {
    let remedy = match holder {
        Origin::File { .. } => "change the static file of this node, or the object",
        Origin::Object { .. } => "see who has it in `kubectl get claims`; the controller settles that",
    };
    let what = format!("is not served on this node: {holder} has {what}");
    Some(Problem::warning("", what, remedy).object(claim.origin.object()?))
}

/// Whether one is of the static file, and the other an object.
fn is_of_another_source(a: &Origin, b: &Origin) -> bool {
    matches!(a, Origin::File { .. }) != matches!(b, Origin::File { .. })
}

/// Reports endpoints that are not used, on the origin.
fn report_unused(resolved: &Resolved, origin: &Origin, problems: &mut Vec<Problem>) {
    let mut report = |problem: Problem| {
        problems.push(match origin.object() {
            Some(object) => problem.object(object),
            None => problem,
        });
    };
    if let Some(first) = resolved.circular.first() {
        let what = format!(
            "{first} and {} more endpoints are addresses and ports we answer on: connections would go round",
            resolved.circular.len() - 1
        );
        let remedy = "let the Service lead to the tenant's own pods";
        report(Problem::warning("spec.rules", what, remedy).value(first));
    }
    if resolved.excess > 0 {
        let what = format!(
            "{} ready endpoints are more than a route can use; they get no connection",
            resolved.excess
        );
        report(Problem::warning("spec.rules", what, "use 254 endpoints of a family at most"));
    }
}

/// Returns by route whether the maps have room for it: those of the file, then the oldest. What refuses takes no room.
fn fitting<T, U>(
    leads: &Leads<'_>,
    routes: &[(usize, DesiredRoute, T, U)],
    names_max: u32,
    built: &mut Built,
) -> Vec<bool> {
    let mut fits = vec![true; routes.len()];
    let lead_of = |place: usize| &leads.routes[routes[place].0];
    let mut ranked: Vec<usize> = (0..routes.len()).collect();
    ranked.retain(|place| !matches!(lead_of(*place).backends, ClaimBackends::None));
    let mut room = Room::new(names_max);
    // The usual case: everything fits, whatever the order.
    if ranked.iter().all(|place| room.take(&routes[*place].1)) {
        return fits;
    }
    built.is_of_order = true;
    ranked.sort_by_key(|place| (lead_of(*place).origin, *place));
    let mut room = Room::new(names_max);
    for place in ranked {
        let route = &routes[place].1;
        if room.take(route) {
            continue;
        }
        fits[place] = false;
        built.left_out.push(Arc::clone(&route.name));
        let what = settle::left_out(&route.name);
        let problem = match room.lacks_ranges(route) {
            true => Problem::warning(
                "routes",
                what,
                "use fewer source ranges: those of all routes are counted together",
            ),
            false => Problem::warning("settings.maxNames", what, "raise it").value(names_max),
        };
        built.problems.push(match lead_of(place).origin.object() {
            Some(object) => {
                let problem = problem.object(object);
                built.unserved.push(problem.clone());
                problem
            }
            None => problem,
        });
    }
    fits
}
