//! When nothing but endpoints changed: only the routes that use them are resolved again. Comes to the same as compiling
//! everything, at a fraction of the cost; what cannot be told from endpoints alone is left to that.

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

/// A route of the maps, and what its references come to now.
struct Again<'a> {
    name: Arc<str>,
    resolved: Resolved,
    /// What its backends' probes ask for.
    server: Option<&'a ServerName>,
}

/// What changed endpoints come to.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::compile) struct Refreshed {
    /// What the data plane shall do.
    pub(in crate::compile) desired: Desired,
    /// Backends that are to be probed in another way than before.
    pub(in crate::compile) probes: Vec<ProbeChange>,
}

/// What everything came to before a change.
#[derive(Clone, Copy)]
pub(in crate::compile) struct Before<'a> {
    /// What the data plane should do.
    pub(in crate::compile) desired: &'a Desired,
    /// Backends that were probed.
    pub(in crate::compile) probes: &'a Probes,
    /// What was wrong.
    pub(in crate::compile) problems: &'a [Problem],
}

/// What everything comes to after endpoints of these Services, or which of them fail, changed and nothing else did.
/// `file` is what the file comes to by itself. `None`: compile everything.
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
    // What is told of them may have changed, and what did not fit into the maps may fit now.
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

/// Routes that refer to one of these Services.
fn users<'a>(cluster: &'a Cluster, changed: &HashSet<(&str, &str)>) -> Vec<(Kind, &'a ClusterRoute)> {
    let tls = cluster.tls_routes.values().map(|route| (Kind::TlsRoute, &**route));
    let tcp = cluster.tcp_routes.values().map(|route| (Kind::TcpRoute, &**route));
    tls.chain(tcp).filter(|(_, route)| references(route).any(|name| changed.contains(&name))).collect()
}

/// Namespace and name of the Services that a route refers to.
fn references(route: &ClusterRoute) -> impl Iterator<Item = (&str, &str)> {
    let own = &route.meta.name.namespace;
    route
        .rules
        .first()
        .into_iter()
        .flatten()
        .map(move |reference| (&**reference.namespace.as_ref().unwrap_or(own), &*reference.name))
}

/// Those of these Services that are of our class.
fn balancers<'a>(cluster: &'a Cluster, changed: &HashSet<(&str, &str)>) -> Vec<&'a ObjectName> {
    let ours = |(namespace, name): &(&str, &str)| {
        let (name, service) = cluster.services.get_key_value(&ObjectName::new(*namespace, *name))?;
        service.load_balancer.is_some().then_some(name)
    };
    changed.iter().filter_map(ours).collect()
}

/// What was before, with other backends of these routes.
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

/// What everything comes to after these routes of the file got other backends and nothing else changed. `file` is what
/// the file comes to by itself now. `None`: compile everything.
pub(in crate::compile) fn refresh_file(
    before: &Desired,
    problems: &[Problem],
    file: &Desired,
    routes: &BTreeSet<Arc<str>>,
) -> Option<Desired> {
    // What is told of the file's backends may have changed, and what did not fit into the maps may fit now.
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

/// Addresses and ports that we answer on.
fn bindings(desired: &Desired) -> HashSet<SocketAddr> {
    let at = |port: u16| move |address: &_| SocketAddr::new(*address, port);
    desired.listeners.iter().flat_map(|listener| listener.addresses.iter().map(at(listener.port))).collect()
}

/// The same with other backends of routes that are there. `None`: the maps may have no room for it.
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
    // What takes no more room than before has it.
    (load.is_at_most(load_before) || fits(&desired)).then_some(desired)
}
