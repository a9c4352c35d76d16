//! Which listeners a route attaches to: by sectionName and port, kinds, namespaces and host names.

use super::listener::{Listener, Parents, Refusal, parent_kind};
use super::pattern::intersection;
use crate::model::cluster::{ClusterRoute, NamespaceScope, ParentRef};
use crate::model::{Cluster, Kind, Pattern};
use std::net::SocketAddr;

/// A route's relation to one of its parents.
pub(super) struct Attachment<'a> {
    pub(super) reference: &'a ParentRef,
    /// Indices of the listeners that serve it; empty if it is refused.
    pub(super) listeners: Vec<usize>,
    /// Why it is not accepted.
    pub(super) refusal: Option<Refusal>,
    /// Names, or addresses and ports, that belong to other objects, with their owners.
    pub(super) losses: Vec<super::own::Loss<'a>>,
    /// Addresses and ports that take TLS only.
    pub(super) tls_only: Vec<SocketAddr>,
    /// Whether it has anything of what it asks for.
    pub(super) has_some: bool,
}

/// Returns the patterns that a route requests; a single `None` if it has no hostnames and takes every name.
pub(super) fn wishes(route: &ClusterRoute) -> impl Iterator<Item = Option<&Pattern>> {
    let all = (!route.has_hostnames).then_some(None);
    route.hostnames.iter().map(Some).chain(all)
}

/// Attaches a route by one reference. `None`: the parent is not ours. `serial` identifies the route; not 0.
pub(super) fn attach<'a>(
    cluster: &'a Cluster,
    parents: &mut Parents<'a>,
    kind: Kind,
    serial: usize,
    route: &'a ClusterRoute,
    reference: &'a ParentRef,
) -> Option<Attachment<'a>> {
    let namespace = &route.meta.name.namespace;
    let parent_namespace = reference.namespace.as_ref().unwrap_or(namespace);
    let at = parents.find(parent_kind(reference)?, parent_namespace, &reference.name)?;
    let parent = &parents.all[at];
    let range = parent.listeners.clone();
    let candidates = Candidates { cluster, kind, route, own: &parent.name.namespace };
    let (found, mut refusal) = match candidates.among(&parents.listeners[range.clone()], reference) {
        Ok(found) => (found, None),
        Err(refusal) => (Vec::new(), Some(refusal)),
    };
    let mut listeners = Vec::with_capacity(found.len());
    for place in found.into_iter().map(|offset| range.start + offset) {
        let listener = &mut parents.listeners[place];
        if listener.counted != serial {
            listener.counted = serial;
            listener.attached_routes += 1;
        }
        if listener.is_accepted() {
            listeners.push(place);
        }
    }
    let parent = &parents.all[at];
    if let (None, Some(why)) = (&refusal, &parent.refusal) {
        let what = format!("{} {} is not accepted: {}", parent.kind, parent.name, why.message);
        refusal = Some(Refusal::new("NoMatchingParent", what));
        listeners.clear();
    } else if refusal.is_none() && listeners.is_empty() {
        let what = format!("no listener of {} {} that would take it is accepted", parent.kind, parent.name);
        refusal = Some(Refusal::new("NotAllowedByListeners", what));
    }
    Some(Attachment {
        reference,
        listeners,
        refusal,
        losses: Vec::new(),
        tls_only: Vec::new(),
        has_some: false,
    })
}

/// A route for which listeners are searched.
struct Candidates<'a> {
    cluster: &'a Cluster,
    kind: Kind,
    route: &'a ClusterRoute,
    /// The parent's namespace.
    own: &'a str,
}

impl Candidates<'_> {
    /// Returns the offsets of the listeners that the route attaches to, whether or not they are accepted
    /// themselves.
    fn among(&self, listeners: &[Listener<'_>], reference: &ParentRef) -> Result<Vec<usize>, Refusal> {
        let named = |listener: &Listener<'_>| {
            reference.section.as_ref().is_none_or(|section| *section == listener.spec.name)
                && reference.port.is_none_or(|port| port == listener.spec.port)
        };
        let mut any_named = false;
        let mut any_allowed = false;
        let mut found = Vec::new();
        for (offset, listener) in listeners.iter().enumerate() {
            if !named(listener) {
                continue;
            }
            any_named = true;
            if !self.is_allowed(listener) {
                continue;
            }
            any_allowed = true;
            if self.matches(listener) {
                found.push(offset);
            }
        }
        let refused = |reason, what: &str| Err(Refusal::new(reason, what));
        match (any_named, any_allowed, found.is_empty()) {
            (false, ..) => {
                refused("NoMatchingParent", "the parent has no listener of this sectionName and port")
            }
            (_, false, _) => refused(
                "NotAllowedByListeners",
                "no listener allows routes of this kind and namespace (allowedRoutes)",
            ),
            (.., true) => {
                refused("NoMatchingListenerHostname", "no listener's hostname matches spec.hostnames")
            }
            _ => Ok(found),
        }
    }

    fn is_allowed(&self, listener: &Listener<'_>) -> bool {
        let namespace = &self.route.meta.name.namespace;
        let labels = || self.cluster.namespaces.labels.get(namespace);
        let scope = &listener.spec.namespaces;
        listener.kind == Some(self.kind)
            && match scope {
                NamespaceScope::Selector(_) => scope.allows(self.own, namespace, labels()),
                _ => scope.allows(self.own, namespace, None),
            }
    }

    fn matches(&self, listener: &Listener<'_>) -> bool {
        let own = listener.spec.hostname.as_ref();
        self.kind == Kind::TcpRoute || wishes(self.route).any(|wish| intersection(own, wish).is_some())
    }
}
