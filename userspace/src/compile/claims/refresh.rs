//! The quick path if only endpoints changed: resolves again only the routes that use them. The result is the
//! same as compiling everything, at a fraction of the cost. Changes whose result does not follow from
//! endpoints alone are left to a full compile.

use super::backends::{Endpoints, Resolved};
use super::{Ground, probing};
use crate::compile::capacity::{Load, fits};
use crate::model::claim::{ClaimBackend, ClaimBackends, ClaimTarget};
use crate::model::{
    BackendSpec, Claim, Desired, DesiredRoute, HealthCheck, ObjectName, ObjectRef, ProbeChange, Probes,
    Problem, ServerName,
};
use foldhash::{HashMap, HashSet};
use std::collections::BTreeSet;
use std::mem::take;
use std::net::SocketAddr;
use std::sync::Arc;

/// A route in the maps, and the current result of resolving its Services.
struct Again<'a> {
    name: &'a Arc<str>,
    resolved: Resolved,
    /// The server name that its probes request.
    server: Option<&'a ServerName>,
}

/// The result of changed endpoints.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::compile) struct Refreshed {
    /// What the data plane should do.
    pub(in crate::compile) desired: Desired,
    /// Backends whose probes change.
    pub(in crate::compile) probes: Vec<ProbeChange>,
}

/// The result of compiling before a change.
#[derive(Clone, Copy)]
pub(in crate::compile) struct Before<'a> {
    /// What the data plane should do.
    pub(in crate::compile) desired: &'a Desired,
    /// Backends that were probed.
    pub(in crate::compile) probes: &'a Probes,
    /// The problems that were found.
    pub(in crate::compile) problems: &'a [Problem],
}

/// What changed besides claims.
#[derive(Clone, Copy)]
pub(in crate::compile) struct Changed<'a> {
    /// Services whose endpoints are others, or some of whose endpoints began or ceased to fail.
    pub(in crate::compile) services: &'a BTreeSet<ObjectName>,
    /// Backends that began or ceased to fail.
    pub(in crate::compile) failing: &'a BTreeSet<SocketAddr>,
}

/// Returns the new result after a change of only the endpoints of these Services, or of which backends fail. `None`: compile
/// everything.
pub(in crate::compile) fn refresh<'c>(
    before: Before<'_>,
    claims: impl IntoIterator<Item = &'c Claim>,
    ground: Ground<'_>,
    changed: Changed<'_>,
) -> Option<Refreshed> {
    let users = users(claims, changed);
    let concerned: HashSet<ObjectRef> = users.iter().filter_map(|user| user.claim.origin.object()).collect();
    // Problems of these objects may have changed, and what did not fit into the maps may fit now.
    let is_told = |problem: &Problem| {
        problem.field == "settings.maxNames"
            || problem.object.as_ref().is_some_and(|object| concerned.contains(object))
    };
    if before.problems.iter().any(is_told) {
        return None;
    }
    let used = users.iter().flat_map(|user| user.references).filter_map(service);
    let services = Endpoints::some(ground, bindings(before.desired), used);
    let again = users.iter().filter_map(|user| {
        let resolved = services.of(user.references, user.claim.traffic);
        Some(Again { name: user.claim.route.as_ref()?, resolved, server: user.server })
    });
    put(before.desired, before.probes, again.collect())
}

/// A claim that leads to Services or addresses.
struct User<'a> {
    claim: &'a Claim,
    references: &'a [ClaimBackend],
    server: Option<&'a ServerName>,
}

/// Returns the claims that lead to one of these Services or backends, one for each route.
fn users<'a>(claims: impl IntoIterator<Item = &'a Claim>, changed: Changed<'_>) -> Vec<User<'a>> {
    let is_changed = |reference: &ClaimBackend| match &reference.to {
        Some(ClaimTarget::Service(service)) => changed.services.contains(&service.name),
        Some(ClaimTarget::Address(own)) => changed.failing.contains(&own.at()),
        None => false,
    };
    let user = |claim: &'a Claim| match &claim.backends {
        ClaimBackends::Services { references, server_name } => {
            let is_concerned = references.iter().any(is_changed);
            is_concerned.then_some(User { claim, references, server: server_name.as_ref() })
        }
        ClaimBackends::None | ClaimBackends::Addresses(_) => None,
    };
    let mut users: Vec<User<'a>> = claims.into_iter().filter_map(user).collect();
    // Claims of one route are next to each other, or nearly always: those of a route that is met again lead to the same.
    users.dedup_by(|a, b| a.claim.route == b.claim.route);
    users
}

fn service(reference: &ClaimBackend) -> Option<&ObjectName> {
    reference.service().map(|service| &service.name)
}

/// Returns the previous result with the new backends of these routes.
fn put(before: &Desired, probes: &Probes, again: Vec<Again<'_>>) -> Option<Refreshed> {
    let mut other: HashMap<usize, Resolved> = HashMap::default();
    let mut draining: HashMap<&str, bool> = HashMap::default();
    let mut probed = Probes::new();
    for Again { name, resolved, server } in again {
        if !resolved.circular.is_empty() || resolved.excess > 0 {
            return None;
        }
        // A route that nothing leads to is not in the maps.
        if let Ok(place) = before.routes.place(name) {
            probing::add(&mut probed, &resolved, server);
            draining.insert(name, resolved.is_draining);
            other.insert(place, resolved);
        }
    }
    let places: HashSet<usize> = other.keys().copied().collect();
    let probes = probing::changes(probes, &before.routes, &places, &probed)?;
    let with_others = |(place, resolved): (usize, Resolved)| {
        let route = &before.routes[place];
        DesiredRoute {
            name: Arc::clone(&route.name),
            names: route.names.clone(),
            backends: resolved.backends.into(),
            tenant: route.tenant.clone(),
            source_ranges: route.source_ranges.clone(),
            affinity: route.affinity,
            traffic: route.traffic,
            elsewhere: resolved.elsewhere,
        }
    };
    let mut desired = edited(before, other.into_iter().map(with_others))?;
    let is_other = |check: &HealthCheck| {
        draining.get(&*check.route).is_some_and(|is_draining| *is_draining != check.is_draining)
    };
    if before.health_checks.iter().any(is_other) {
        for check in Arc::make_mut(&mut desired.health_checks).iter_mut().filter(|check| is_other(check)) {
            check.is_draining = !check.is_draining;
        }
    }
    Some(Refreshed { desired, probes })
}

/// Returns the new result after a change of only the backends of these routes of the file. `file` is what the
/// static file now results in by itself. `None`: compile everything.
pub(in crate::compile) fn refresh_file(
    before: &Desired,
    problems: &[Problem],
    file: &Desired,
    routes: &BTreeSet<Arc<str>>,
) -> Option<Desired> {
    // Problems of the file's backends may have changed, and what did not fit into the maps may fit now.
    let is_told = |problem: &Problem| problem.field == "settings.maxNames" || problem.field == "routes";
    if problems.iter().any(is_told) {
        return None;
    }
    let bindings = bindings(before);
    let with_own = |name: &Arc<str>| {
        let (route, own) = (before.routes.find(name)?, file.routes.find(name)?);
        let is_circular =
            |backend: &BackendSpec| bindings.contains(&SocketAddr::new(backend.address, backend.port));
        let backends = own.backends.clone();
        (!backends.iter().any(is_circular)).then(|| DesiredRoute {
            name: Arc::clone(name),
            names: route.names.clone(),
            backends,
            tenant: route.tenant.clone(),
            source_ranges: route.source_ranges.clone(),
            affinity: route.affinity,
            traffic: route.traffic,
            elsewhere: route.elsewhere.clone(),
        })
    };
    let routes: Vec<DesiredRoute> = routes.iter().map(with_own).collect::<Option<_>>()?;
    edited(before, routes.into_iter())
}

/// Returns the addresses and ports that we answer on.
fn bindings(desired: &Desired) -> HashSet<SocketAddr> {
    let at = |port: u16| move |address: &_| SocketAddr::new(*address, port);
    desired.listeners.iter().flat_map(|listener| listener.addresses.iter().map(at(listener.port))).collect()
}

/// Returns the same with new backends of existing routes. `None`: the maps may have no room for it.
fn edited(before: &Desired, routes: impl Iterator<Item = DesiredRoute>) -> Option<Desired> {
    let (mut load, mut load_before) = (Load::default(), Load::default());
    let edit = |new: DesiredRoute| {
        load = take(&mut load).with(&new);
        if let Some(old) = before.routes.find(&new.name) {
            load_before = take(&mut load_before).with(old);
        }
        (Arc::clone(&new.name), Some(Arc::new(new)))
    };
    let mut edits: Vec<_> = routes.map(edit).collect();
    edits.sort_by(|a, b| a.0.cmp(&b.0));
    let routes = before.routes.edited(edits);
    let desired = Desired { routes, ..before.clone() };
    // Routes that need no more room than before fit.
    (load.is_at_most(&load_before) || fits(&desired)).then_some(desired)
}
