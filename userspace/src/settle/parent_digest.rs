//! The digests of Gateways and ListenerSets: what every node must hold of them.

use super::bindings::Binding;
use super::digest::Part;
use super::listener::Parents;
use super::own::{Entry, Lead, NONE, Names};
use super::route::Routes;
use crate::model::cluster::{BackendRef, ClusterRoute};
use crate::model::{Pattern, Protocol};

/// Adds bindings, names and routes to the digest of each Gateway and ListenerSet. `first_route` is the target of the first
/// route.
pub(super) fn add(
    names: &Names<'_>,
    bindings: &[Binding<'_>],
    routes: &Routes<'_>,
    first_route: usize,
    parents: &mut Parents<'_>,
) {
    let of_routes: Vec<u64> = routes.all.iter().map(|each| route(&each.label, each.spec)).collect();
    for Entry { binding, pattern, lead } in names.entries() {
        let part = Part::new("name").at(bindings[binding].at);
        let part = match pattern {
            Some(Pattern::Exact(name)) => part.text("exact").text(name.as_str()),
            Some(Pattern::Wildcard(suffix)) => part.text("wildcard").text(suffix.as_str()),
            None => part.text("any"),
        };
        let (parent, number) = match lead {
            Lead::Refused { listener } => (parents.gateway_of(listener), 0),
            Lead::To { target, candidate } => match names.candidates[candidate].listener {
                NONE => continue,
                listener => (parents.listeners[listener].parent, of_routes[target - first_route]),
            },
        };
        let digest = &mut parents.all[parent].digest;
        *digest = digest.wrapping_add(part.number(number).done());
    }
    for listener in &parents.listeners {
        for binding in &listener.bindings {
            let binding = &bindings[*binding];
            let part =
                Part::new("binding").at(binding.at).number(u64::from(binding.protocol == Protocol::Tls));
            let digest = &mut parents.all[listener.parent].digest;
            *digest = digest.wrapping_add(part.done());
        }
    }
}

/// Returns the digest of a route's name and backend references as written. Besides Services and endpoints,
/// these determine its backends.
pub(super) fn route(label: &str, route: &ClusterRoute) -> u64 {
    let reference = |part: Part, backend: &BackendRef| {
        let namespace = backend.namespace.as_ref().unwrap_or(&route.meta.name.namespace);
        part.text(&backend.group)
            .text(&backend.kind)
            .text(namespace)
            .text(&backend.name)
            .number(u64::from(backend.port.unwrap_or_default()))
            .number(u64::from(backend.weight))
    };
    let backends = route.rules.first().map_or(&[][..], Vec::as_slice);
    backends.iter().fold(Part::new("route").text(label), reference).done()
}
