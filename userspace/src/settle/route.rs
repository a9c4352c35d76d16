//! Routes: what they attach to, what they request, and their conditions.

use super::attach::{self, Attachment};
use super::bindings::{self, Binding};
use super::isolation::Isolation;
use super::listener::Parents;
use super::own::{Candidate, Loss, NONE};
use super::pattern::intersection;
use super::precedence::Claimant;
use super::references::{References, Resolved};
use super::{OWNED, label, no, yes};
use crate::model::cluster::ClusterRoute;
use crate::model::verdict::{Condition, ParentVerdict, RouteVerdict};
use crate::model::{Cluster, Kind, ObjectRef, Pattern, Problem};
use std::fmt::Write;
use std::ops::Range;
use std::sync::Arc;

/// The number of losses that a message lists. For the rest it shows only the count.
const LOSSES_TOLD: usize = 4;

/// A route with at least one of our Gateways or ListenerSets as parent.
pub(super) struct Route<'a> {
    pub(super) kind: Kind,
    pub(super) spec: &'a ClusterRoute,
    pub(super) label: Arc<str>,
    pub(super) resolved: Resolved,
    /// Indices of its attachments.
    attachments: Range<usize>,
}

impl<'a> Route<'a> {
    pub(super) fn claimant(&self) -> Claimant<'a> {
        Claimant::object(self.kind, &self.spec.meta)
    }

    fn object(&self) -> ObjectRef {
        ObjectRef { kind: self.kind, name: self.spec.meta.name.clone() }
    }
}

/// All routes with a parent of ours.
#[derive(Default)]
pub(super) struct Routes<'a> {
    pub(super) all: Vec<Route<'a>>,
    pub(super) attachments: Vec<Attachment<'a>>,
}

impl<'a> Routes<'a> {
    pub(super) fn new(cluster: &'a Cluster, parents: &mut Parents<'a>, references: &References<'_>) -> Self {
        let mut this = Self::default();
        let mut buffer = String::new();
        let tls = cluster.tls_routes.values().map(|route| (Kind::TlsRoute, &**route));
        let tcp = cluster.tcp_routes.values().map(|route| (Kind::TcpRoute, &**route));
        for (kind, spec) in tls.chain(tcp) {
            let first = this.attachments.len();
            let serial = this.all.len() + 1;
            for reference in &spec.parents {
                this.attachments.extend(attach::attach(cluster, parents, kind, serial, spec, reference));
            }
            let attachments = first..this.attachments.len();
            if !attachments.is_empty() {
                let label = label::object(&mut buffer, kind, &spec.meta.name);
                let resolved = references.of(kind, spec);
                this.all.push(Route { kind, spec, label, resolved, attachments });
            }
        }
        this
    }

    /// Returns the listeners that a route attaches to.
    pub(super) fn listeners(&self, route: &Route<'_>) -> impl Iterator<Item = usize> {
        self.attachments[route.attachments.clone()].iter().flat_map(|own| &own.listeners).copied()
    }

    /// Returns what a route requested and does not have.
    pub(super) fn losses(&self, route: &Route<'_>) -> impl Iterator<Item = &Loss<'a>> {
        self.attachments[route.attachments.clone()].iter().flat_map(|own| &own.losses)
    }

    /// Returns the routes as claimants.
    pub(super) fn claimants(&self) -> impl Iterator<Item = Claimant<'a>> {
        self.all.iter().map(Route::claimant)
    }

    /// Adds what the routes request, and notes the bindings they cannot have because another object owns
    /// them. `first_target` is the target of the first route.
    pub(super) fn candidates(
        &mut self,
        parents: &Parents<'a>,
        bindings: &[Binding<'a>],
        isolation: &Isolation<'a>,
        first_target: usize,
        candidates: &mut Vec<Candidate<'a>>,
    ) {
        for (index, route) in self.all.iter().enumerate() {
            for place in route.attachments.clone() {
                let attachment = &mut self.attachments[place];
                for at in &attachment.listeners {
                    let listener = &parents.listeners[*at];
                    let lost = |binding: &usize| Loss {
                        binding: *binding,
                        written: None,
                        owner: Some(bindings[*binding].owner),
                    };
                    attachment.losses.extend(listener.lost.iter().map(lost));
                    attachment.tls_only.extend(&listener.tls_only);
                    for written in attach::wishes(route.spec) {
                        let own = listener.spec.hostname.as_ref();
                        let Some(pattern) = intersection(own, written) else { continue };
                        if !isolation.belongs(parents, pattern, *at) {
                            continue;
                        }
                        let target = first_target + index;
                        candidates.extend(listener.bindings.iter().map(|binding| Candidate {
                            binding: *binding,
                            pattern,
                            written,
                            target,
                            attachment: place,
                            listener: *at,
                        }));
                    }
                }
            }
        }
    }

    /// Returns the conditions of every route of a kind. Adds problems for those that do not have all they
    /// request.
    pub(super) fn verdicts(
        &self,
        kind: Kind,
        bindings: &[Binding<'_>],
        problems: &mut Vec<Problem>,
    ) -> impl Iterator<Item = (crate::model::ObjectName, RouteVerdict)> {
        let mut verdicts = Vec::new();
        for route in self.all.iter().filter(|route| route.kind == kind) {
            self.problems(route, bindings, problems);
            let attachments = self.attachments[route.attachments.clone()].iter();
            let parents = attachments
                .map(|attachment| ParentVerdict {
                    parent: attachment.reference.clone(),
                    conditions: conditions(route, attachment, bindings),
                })
                .collect();
            let verdict = RouteVerdict { generation: route.spec.meta.generation, parents };
            verdicts.push((route.spec.meta.name.clone(), verdict));
        }
        verdicts.into_iter()
    }

    fn problems(&self, route: &Route<'_>, bindings: &[Binding<'_>], problems: &mut Vec<Problem>) {
        let attachments = self.attachments[route.attachments.clone()].iter();
        // A binding that belongs to another object is a problem of the Gateway. The route shows it only in
        // its condition.
        let losses = attachments.flat_map(|attachment| &attachment.losses);
        let names: Vec<Loss<'_>> = losses
            .copied()
            .filter(|loss| loss.written.is_some() || loss.owner.is_some_and(is_route))
            .collect();
        if let Some(first) = names.first() {
            let problem = Problem::warning(
                if first.written.is_some() { "spec.hostnames" } else { "spec.parentRefs" },
                told(&names, bindings),
                "choose another name or listener, or remove it where it is",
            );
            let value = first.written.map(ToString::to_string).unwrap_or_default();
            problems.push(problem.value(value).object(route.object()));
        }
    }
}

fn is_route(claimant: Claimant<'_>) -> bool {
    matches!(claimant, Claimant::Object { kind: Kind::TlsRoute | Kind::TcpRoute, .. })
}

fn conditions(route: &Route<'_>, attachment: &Attachment<'_>, bindings: &[Binding<'_>]) -> Vec<Condition> {
    let lost = lost(attachment, bindings);
    let accepted = match (&attachment.refusal, &lost) {
        (Some(refusal), _) => no("Accepted", refusal.reason, &*refusal.message),
        (None, Some((reason, what))) if has_nothing(route.kind, attachment) => {
            no("Accepted", reason, format!("nothing is left of what it asks for: {what}"))
        }
        (None, _) => yes("Accepted", "Accepted", "accepted"),
    };
    let faults = &route.resolved.faults;
    let resolved = match faults.first() {
        None => yes("ResolvedRefs", "ResolvedRefs", "all references are resolved"),
        Some(first) => {
            let all: Vec<&str> = faults.iter().map(|fault| &*fault.what).collect();
            no(
                "ResolvedRefs",
                first.reason,
                format!("{}; their share of connections is refused", all.join("; ")),
            )
        }
    };
    let mut conditions = vec![accepted, resolved];
    if attachment.refusal.is_some() {
        return conditions;
    }
    if route.spec.rules.len() > 1 {
        let what = format!("Dropped Rule: only the first of {} rules is used", route.spec.rules.len());
        conditions.push(yes("PartiallyInvalid", "UnsupportedValue", what));
    }
    if let Some((reason, what)) = lost {
        conditions.push(no(OWNED, reason, what));
    }
    conditions
}

/// Returns what an attachment has not of what it asks for: the reason of conditions, and the message.
fn lost(attachment: &Attachment<'_>, bindings: &[Binding<'_>]) -> Option<(&'static str, String)> {
    let Attachment { losses, tls_only, .. } = attachment;
    if losses.is_empty() && tls_only.is_empty() {
        return None;
    }
    let is_reserved = losses.iter().all(|loss| loss.owner.is_none());
    let of_others = (!losses.is_empty()).then(|| told(losses, bindings));
    let mut ports = tls_only.clone();
    ports.sort_unstable();
    ports.dedup();
    let all: Vec<String> = of_others.into_iter().chain(ports.into_iter().map(bindings::tls_only)).collect();
    Some((if is_reserved { "Reserved" } else { "OwnedByOther" }, all.join("; ")))
}

/// Whether nothing is left to a route of what it asks for, so that its parent does not accept it. Of the TCPRoutes of one listener the
/// Gateway API lets one have it and accepts all.
fn has_nothing(kind: Kind, attachment: &Attachment<'_>) -> bool {
    let is_accepted =
        kind == Kind::TcpRoute && attachment.losses.iter().any(|loss| loss.owner.is_some_and(is_route));
    !attachment.has_some && !is_accepted
}

/// Describes losses for people: each name once, with all its bindings.
fn told(losses: &[Loss<'_>], bindings: &[Binding<'_>]) -> String {
    let mut text = String::new();
    let mut rest: Vec<&Loss<'_>> = losses.iter().collect();
    let mut count = 0;
    while let Some(first) = rest.first().copied() {
        let same = |loss: &&Loss<'_>| loss.written == first.written && loss.owner == first.owner;
        let mut at: Vec<_> =
            rest.iter().copied().filter(same).map(|loss| bindings[loss.binding].at).collect();
        rest.retain(|loss| !same(loss));
        count += 1;
        if count > LOSSES_TOLD {
            continue;
        }
        at.sort_unstable();
        at.dedup();
        let at: Vec<String> = at.iter().map(ToString::to_string).collect();
        let at = at.join(", ");
        let separator = if text.is_empty() { "" } else { "; " };
        // Writing to a String cannot fail.
        let _ = match (first.written, first.owner) {
            (Some(name), Some(owner)) => write!(text, "{separator}{name} on {at} belongs to {owner}"),
            (Some(name), None) => {
                write!(
                    text,
                    "{separator}{name} is a name of the cluster's own API server, which no tenant may have"
                )
            }
            (None, Some(owner)) => write!(text, "{separator}{at} belongs to {owner}"),
            (None, None) => write!(text, "{separator}{at} is nobody's"),
        };
    }
    if count > LOSSES_TOLD {
        let _ = write!(text, "; and {} more", count - LOSSES_TOLD);
    }
    text
}

/// Returns a candidate of the static file or of a Service.
pub(super) fn other<'a>(binding: usize, pattern: Option<&'a Pattern>, target: usize) -> Candidate<'a> {
    Candidate { binding, pattern, written: pattern, target, attachment: NONE, listener: NONE }
}
