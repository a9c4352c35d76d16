//! When nothing but endpoints changed: only the routes that use them are resolved again. Comes to the same as compiling
//! everything, at a fraction of the cost; what cannot be told from endpoints alone is left to that.

use super::backends::{Resolved, Services};
use super::grant::Grants;
use super::{label, probing};
use crate::compile::Surroundings;
use crate::compile::capacity::{Load, fits};
use crate::model::cluster::ClusterRoute;
use crate::model::{
    Cluster, Desired, DesiredRoute, Facts, Kind, ObjectName, ObjectRef, ProbeChange, Probes, Problem,
    ServerName,
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
pub struct Refreshed {
    /// What the data plane shall do.
    pub desired: Desired,
    /// Backends that are to be probed in another way than before.
    pub probes: Vec<ProbeChange>,
}

/// What facts came to after endpoints of these Services, or which of them fail, changed and nothing else did. `before`,
/// `probes` and `problems` are what the facts came to before that. `None`: compile everything.
pub fn refresh(
    before: &Desired,
    probes: &Probes,
    problems: &[Problem],
    facts: &Facts,
    around: &Surroundings,
    changed: &BTreeSet<ObjectName>,
) -> Option<Refreshed> {
    let cluster = facts.cluster.as_ref()?;
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
    if problems.iter().any(is_told) {
        return None;
    }
    let doors: HashSet<SocketAddr> = before
        .listeners
        .iter()
        .flat_map(|listener| {
            listener.addresses.iter().map(|address| SocketAddr::new(*address, listener.port))
        })
        .collect();
    let used: HashSet<(&str, &str)> =
        routes.iter().flat_map(|(_, route)| references(route)).chain(changed.iter().copied()).collect();
    let services = Services::some(cluster, around.zone.as_ref(), doors, &used);
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
    put(before, probes, again, facts)
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
fn put(before: &Desired, probes: &Probes, again: Vec<Again<'_>>, facts: &Facts) -> Option<Refreshed> {
    let of_file: HashSet<&str> = facts.routes.iter().map(|route| &*route.name).collect();
    let mut other: HashMap<usize, Resolved> = HashMap::default();
    let mut probed = Probes::new();
    for Again { name, resolved, server } in again {
        let is_simple = resolved.circular.is_empty() && resolved.excess == 0;
        if !is_simple || of_file.contains(&*name) {
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
    let (mut load, mut load_before) = (Load::default(), Load::default());
    let edit = |(place, resolved): (usize, Resolved)| {
        let route = &before.routes[place];
        let (name, names) = (Arc::clone(&route.name), route.names.clone());
        let new = DesiredRoute { name: Arc::clone(&name), names, backends: resolved.backends };
        (load, load_before) = (load.with(&new), load_before.with(route));
        (name, Some(Arc::new(new)))
    };
    let mut edits: Vec<_> = other.into_iter().map(edit).collect();
    edits.sort_by(|a, b| a.0.cmp(&b.0));
    let routes = before.routes.edited(edits);
    let desired = Desired { settings: before.settings.clone(), listeners: before.listeners.clone(), routes };
    // What takes no more room than before has it.
    (load.is_at_most(load_before) || fits(&desired)).then_some(Refreshed { desired, probes })
}
