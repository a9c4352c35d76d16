//! The quick path if only endpoints changed: resolves again only the routes that use them. The result is the
//! same as compiling everything, at a fraction of the cost. Changes whose result does not follow from
//! endpoints alone are left to a full compile.

use super::backends::{Resolved, Services};
use super::grant::Grants;
use super::{label, probing};
use crate::compile::capacity::{Load, fits};
use crate::model::cluster::ClusterRoute;
use crate::model::{
    BackendSpec, Cluster, Desired, DesiredRoute, Kind, NodeFacts, ObjectName, ObjectRef, ProbeChange, Probes,
    Problem, ServerName,
};
use foldhash::{HashMap, HashSet};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// A route in the maps, and the current result of resolving its references.
struct Again<'a> {
    name: Arc<str>,
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

/// Returns the new result after a change of only the endpoints of these Services, or of which endpoints fail.
/// `file` is what the static file results in by itself. `None`: compile everything.
pub(in crate::compile) fn refresh(
    before: Before<'_>,
    file: &Desired,
    cluster: &Cluster,
    node: &NodeFacts,
    changed: &BTreeSet<ObjectName>,
) -> Option<Refreshed> {
    let changed: HashSet<(&str, &str)> = changed.iter().map(|name| (&*name.namespace, &*name.name)).collect();
    let routes = users(cluster, &changed);
    let ports: Vec<&ObjectName> = balancers(cluster, &changed);
    let of_routes = routes.iter().map(|(kind, route)| (*kind, &route.meta.name));
    let concerned: HashSet<(Kind, &ObjectName)> =
        of_routes.chain(ports.iter().map(|name| (Kind::Service, *name))).collect();
    // Problems of these objects may have changed, and what did not fit into the maps may fit now.
    let is_told = |problem: &Problem| {
        let of = |object: &ObjectRef| concerned.contains(&(object.kind, &object.name));
        problem.field == "settings.maxNames" || problem.object.as_ref().is_some_and(of)
    };
    if before.problems.iter().any(is_told) {
        return None;
    }
    let bindings = bindings(before.desired);
    let used: HashSet<(&str, &str)> =
        routes.iter().flat_map(|(_, route)| references(route)).chain(changed.iter().copied()).collect();
    let services = Services::some(cluster, node, bindings, &used);
    let grants = Grants::new(cluster);
    let mut buffer = String::new();
    let mut again: Vec<Again<'_>> = Vec::with_capacity(routes.len() + ports.len());
    for (kind, route) in routes {
        let name = label::object(&mut buffer, kind, &route.meta.name);
        let resolved = services.of_route(kind, route, &grants);
        again.push(Again { name, resolved, server: probing::server_name(route) });
    }
    for name in ports {
        for port in &cluster.services.get(name)?.ports {
            let label = label::service(&mut buffer, name, port.port);
            again.push(Again { name: label, resolved: services.of_service(name, port), server: None });
        }
    }
    put(before.desired, before.probes, again, file)
}

/// Returns the routes that refer to one of these Services.
fn users<'a>(cluster: &'a Cluster, changed: &HashSet<(&str, &str)>) -> Vec<(Kind, &'a ClusterRoute)> {
    let tls = cluster.tls_routes.values().map(|route| (Kind::TlsRoute, &**route));
    let tcp = cluster.tcp_routes.values().map(|route| (Kind::TcpRoute, &**route));
    tls.chain(tcp).filter(|(_, route)| references(route).any(|name| changed.contains(&name))).collect()
}

/// Returns namespace and name of the Services that a route refers to.
fn references(route: &ClusterRoute) -> impl Iterator<Item = (&str, &str)> {
    let own = &route.meta.name.namespace;
    route
        .rules
        .first()
        .into_iter()
        .flatten()
        .map(move |reference| (&**reference.namespace.as_ref().unwrap_or(own), &*reference.name))
}

/// Returns those of these Services that are of our class.
fn balancers<'a>(cluster: &'a Cluster, changed: &HashSet<(&str, &str)>) -> Vec<&'a ObjectName> {
    let ours = |(namespace, name): &(&str, &str)| {
        let (name, service) = cluster.services.get_key_value(&ObjectName::new(*namespace, *name))?;
        service.load_balancer.is_some().then_some(name)
    };
    changed.iter().filter_map(ours).collect()
}

/// Returns the previous result with the new backends of these routes.
fn put(before: &Desired, probes: &Probes, again: Vec<Again<'_>>, file: &Desired) -> Option<Refreshed> {
    let mut other: HashMap<usize, Resolved> = HashMap::default();
    let mut probed = Probes::new();
    for Again { name, resolved, server } in again {
        let is_simple = resolved.circular.is_empty() && resolved.excess == 0;
        if !is_simple || file.routes.find(&name).is_some() {
            return None;
        }
        // A route that nothing leads to is not in the maps.
        if let Ok(place) = before.routes.place(&name) {
            probing::add(&mut probed, &resolved, server);
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
            policy: route.policy,
        }
    };
    let desired = edited(before, other.into_iter().map(with_others))?;
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
            policy: route.policy,
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
        load = load.with(&new);
        if let Some(old) = before.routes.find(&new.name) {
            load_before = load_before.with(old);
        }
        (Arc::clone(&new.name), Some(Arc::new(new)))
    };
    let mut edits: Vec<_> = routes.map(edit).collect();
    edits.sort_by(|a, b| a.0.cmp(&b.0));
    let routes = before.routes.edited(edits);
    let desired = Desired { settings: before.settings.clone(), listeners: before.listeners.clone(), routes };
    // Routes that need no more room than before fit.
    (load.is_at_most(load_before) || fits(&desired)).then_some(desired)
}
