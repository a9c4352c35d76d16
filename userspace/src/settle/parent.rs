//! Conditions of GatewayClasses, Gateways, ListenerSets and their listeners, named exactly as in the Gateway
//! API.

use super::bindings::{Binding, tls_only};
use super::listener::{Listener, Parent, Parents, Refusal, invalid_listeners};
use super::{OWNED, no, no_room, yes};
use crate::ipam::{Allocation, Assignment};
use crate::model::cluster::GroupKind;
use crate::model::kind::GATEWAY_GROUP;
use crate::model::verdict::{
    ClassVerdict, Condition, GatewayVerdict, ListenerSetVerdict, ListenerVerdict, Programmable,
};
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Problem};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Returns the verdicts on GatewayClasses with our controller name.
pub(super) fn classes(cluster: &Cluster) -> BTreeMap<Arc<str>, ClassVerdict> {
    let verdict = |class: &crate::model::cluster::ClassSpec| {
        let accepted = if class.has_parameters {
            no("Accepted", "InvalidParameters", "spec.parametersRef is not supported: remove it")
        } else {
            yes("Accepted", "Accepted", "accepted")
        };
        ClassVerdict { generation: class.meta.generation, conditions: vec![accepted] }
    };
    cluster.classes.iter().map(|(name, class)| (Arc::clone(name), verdict(class))).collect()
}

/// What is needed to judge Gateways and ListenerSets.
pub(super) struct Judge<'a> {
    pub(super) parents: &'a Parents<'a>,
    pub(super) bindings: &'a [Binding<'a>],
    pub(super) assignment: &'a Assignment,
}

impl Judge<'_> {
    /// Returns the verdicts on all our Gateways. Adds problems for those that do not have all they request.
    pub(super) fn gateways(&self, problems: &mut Vec<Problem>) -> BTreeMap<ObjectName, GatewayVerdict> {
        let mut attached = vec![0_u32; self.parents.all.len()];
        for set in
            self.parents.all.iter().filter(|set| set.kind == Kind::ListenerSet && set.refusal.is_none())
        {
            attached[set.gateway] += 1;
        }
        let gateways = self.parents.all.iter().enumerate().filter(|(_, parent)| parent.kind == Kind::Gateway);
        gateways
            .map(|(at, parent)| {
                let own = &self.parents.listeners[parent.listeners.clone()];
                let allocation = self.assignment.gateways.get(parent.name);
                self.problems(parent, own, problems);
                // If a Gateway is not accepted, its conditions say why.
                let problem =
                    allocation.filter(|_| parent.refusal.is_none()).and_then(|own| own.problem.clone());
                problems.extend(problem);
                let resolved = if own.iter().all(|listener| listener.invalid_kinds.is_empty()) {
                    yes("ResolvedRefs", "ResolvedRefs", "all references are resolved")
                } else {
                    no(
                        "ResolvedRefs",
                        "ListenersNotResolved",
                        "a listener allows kinds of routes that it cannot have",
                    )
                };
                let verdict = GatewayVerdict {
                    generation: parent.generation,
                    addresses: allocation.map(|allocation| allocation.addresses.clone()).unwrap_or_default(),
                    conditions: vec![accepted(parent, own), resolved],
                    programmable: self.gateway_programmable(parent, own, allocation),
                    listeners: own.iter().map(|listener| self.listener(listener)).collect(),
                    attached_listener_sets: attached[at],
                };
                (parent.name.clone(), verdict)
            })
            .collect()
    }

    /// Returns the verdicts on all ListenerSets of our Gateways. Adds problems for those that do not have all
    /// they request.
    pub(super) fn listener_sets(
        &self,
        problems: &mut Vec<Problem>,
    ) -> BTreeMap<ObjectName, ListenerSetVerdict> {
        let sets = self.parents.all.iter().filter(|parent| parent.kind == Kind::ListenerSet);
        sets.map(|parent| {
            let own = &self.parents.listeners[parent.listeners.clone()];
            self.problems(parent, own, problems);
            let not_allowed = parent.refusal.as_ref().is_some_and(|refusal| refusal.reason == "NotAllowed");
            let verdict = ListenerSetVerdict {
                generation: parent.generation,
                conditions: vec![accepted(parent, own)],
                programmable: self.set_programmable(parent, own),
                // A ListenerSet that the Gateway does not allow adds no listeners to it.
                listeners: own
                    .iter()
                    .filter(|_| !not_allowed)
                    .map(|listener| self.listener(listener))
                    .collect(),
            };
            (parent.name.clone(), verdict)
        })
        .collect()
    }

    fn gateway_programmable(
        &self,
        parent: &Parent<'_>,
        own: &[Listener<'_>],
        allocation: Option<&Allocation>,
    ) -> Programmable {
        let lack = allocation.and_then(|allocation| Some((allocation.reason?, allocation.problem.as_ref()?)));
        let cannot = if let Some(refusal) = &parent.refusal {
            no("Programmed", "Invalid", &*refusal.message)
        } else if let Some((reason, problem)) = lack {
            no("Programmed", reason, format!("{}; {}", problem.what, problem.remedy))
        } else if parent.addresses.is_empty() {
            no("Programmed", "AddressNotAssigned", "its addresses are being assigned")
        } else if let Some(why) = no_resources(parent, own) {
            no("Programmed", "NoResources", why)
        } else if let Some(why) = unserved(own) {
            no("Programmed", "Invalid", why)
        } else {
            return Programmable::Yes;
        };
        Programmable::No(cannot)
    }

    fn set_programmable(&self, parent: &Parent<'_>, own: &[Listener<'_>]) -> Programmable {
        let gateway = &self.parents.all[parent.gateway];
        let cannot = match &parent.refusal {
            Some(Refusal { reason: "ParentNotAccepted", message }) => {
                no("Programmed", "ParentNotProgrammed", &**message)
            }
            Some(refusal) => no("Programmed", refusal.reason, &*refusal.message),
            None if gateway.addresses.is_empty() => {
                let what = format!("Gateway {} has no address", gateway.name);
                no("Programmed", "ParentNotProgrammed", what)
            }
            None => match (no_resources(parent, own), unserved(own)) {
                (Some(why), _) => no("Programmed", "NoResources", why),
                (None, Some(why)) => no("Programmed", "ListenersNotValid", why),
                (None, None) => return Programmable::Yes,
            },
        };
        Programmable::No(cannot)
    }

    fn listener(&self, listener: &Listener<'_>) -> ListenerVerdict {
        let kind =
            listener.kind.map(|kind| GroupKind { group: GATEWAY_GROUP.into(), kind: kind.text().into() });
        let refused = listener.refusal.as_ref().or(listener.conflict.as_ref());
        let accepted = match refused {
            Some(refusal) => no("Accepted", refusal.reason, &*refusal.message),
            None => yes("Accepted", "Accepted", "accepted"),
        };
        let conflicted = match &listener.conflict {
            Some(conflict) => yes("Conflicted", conflict.reason, &*conflict.message),
            None => no("Conflicted", "NoConflicts", "no other listener conflicts with it"),
        };
        let resolved = if listener.invalid_kinds.is_empty() {
            yes("ResolvedRefs", "ResolvedRefs", "all references are resolved")
        } else {
            let what = format!("allowedRoutes.kinds: it cannot have {}", listener.invalid_kinds.join(", "));
            no("ResolvedRefs", "InvalidRouteKinds", what)
        };
        let mut conditions = vec![accepted, conflicted, resolved];
        let lost = self.lost(listener);
        if let Some(what) = &lost {
            let reason = if listener.lost.is_empty() { "Reserved" } else { "OwnedByOther" };
            conditions.push(no(OWNED, reason, &**what));
        }
        let unprogrammable = match (refused, lost) {
            (Some(conflict), _) if listener.conflict.is_some() => {
                Some((conflict.reason, conflict.message.clone()))
            }
            (Some(refusal), _) => Some(("Invalid", refusal.message.clone())),
            (None, _) if listener.kind.is_none() => {
                Some(("Invalid", "no kind of route can attach to it".to_owned()))
            }
            (None, Some(what)) if listener.bindings.is_empty() => Some(("PortUnavailable", what)),
            (None, None) => no_room(&listener.full).map(|what| ("NoResources", what)),
            (None, Some(_)) => None,
        };
        ListenerVerdict {
            name: Arc::clone(&listener.spec.name),
            supported_kinds: kind.into_iter().collect(),
            attached_routes: listener.attached_routes,
            conditions,
            unprogrammable: unprogrammable.map(|(reason, what)| no("Programmed", reason, what)),
        }
    }

    /// Describes the bindings that belong to other objects, and those that take TLS only.
    fn lost(&self, listener: &Listener<'_>) -> Option<String> {
        let told = listener.lost.iter().map(|binding| {
            let binding = &self.bindings[*binding];
            format!("{} belongs to {}", binding.at, binding.owner)
        });
        let told: Vec<String> = told.chain(listener.tls_only.iter().copied().map(tls_only)).collect();
        (!told.is_empty()).then(|| told.join("; "))
    }

    fn problems(&self, parent: &Parent<'_>, own: &[Listener<'_>], problems: &mut Vec<Problem>) {
        for (at, listener) in own.iter().enumerate() {
            let lost = self.lost(listener).map(|what| (what, "choose another port or address"));
            let full = no_room(&listener.full).map(|what| (what, "delete what is not needed"));
            for (what, remedy) in lost.into_iter().chain(full) {
                let field = format!("spec.listeners[{at}].port");
                let problem = Problem::warning(field, what, remedy).value(listener.spec.port);
                problems.push(problem.object(ObjectRef { kind: parent.kind, name: parent.name.clone() }));
            }
        }
    }
}

/// Returns the condition `Accepted` of a Gateway or ListenerSet.
fn accepted(parent: &Parent<'_>, own: &[Listener<'_>]) -> Condition {
    match &parent.refusal {
        Some(refusal) => no("Accepted", refusal.reason, &*refusal.message),
        None if own.iter().all(Listener::is_accepted) => yes("Accepted", "Accepted", "accepted"),
        None => yes("Accepted", "ListenersNotValid", invalid_listeners(own)),
    }
}

/// Describes what the maps have no room for: a listener, or a route of the object.
fn no_resources(parent: &Parent<'_>, own: &[Listener<'_>]) -> Option<String> {
    own.iter().find_map(|listener| no_room(&listener.full)).or_else(|| parent.left_out.clone())
}

/// Returns why none of an object's listeners can be served; `None`: one can, or it has none.
fn unserved(own: &[Listener<'_>]) -> Option<&'static str> {
    if own.is_empty() || own.iter().any(|listener| listener.is_served() && !listener.bindings.is_empty()) {
        None
    } else if own.iter().any(|listener| !listener.lost.is_empty()) {
        Some("other objects have the addresses and ports of all its listeners")
    } else if own.iter().any(|listener| !listener.tls_only.is_empty()) {
        Some(
            "its listeners ask for TCP where addresses.tlsPorts of the chart's values lets shared addresses take TLS only",
        )
    } else {
        Some("no kind of route can attach to any of its listeners")
    }
}
