//! Ingress v1: names on TLS listeners of the chart. TLS is passed through: a host leads to one Service, and paths are not seen.

/// Objects as they come over the wire.
mod wire;
/// From an object to what decisions need of it.
mod fold;
/// What decisions need, and which Ingresses are served.
mod spec;
/// What Ingresses ask for, and what is wrong with them.
mod rules;
/// `status`.
mod status;
#[cfg(test)]
pub(super) mod tests;

pub use spec::{AdoptedClass, IngressPolicy};

use super::{Answer, AskView, Asking, Origin, WatchRow};
use crate::model::cluster::Policy;
use crate::model::kind::{KindRow, Says};
use crate::model::verdict::OriginVerdict;
use crate::model::{Cluster, Kind, ObjectName, Opaque, OriginObject, Problem, Resource};
use crate::sources::kubernetes::served::{Extent, Served};
use crate::status::progress::Progress;
use serde_json::Value;
use spec::{IngressSpec, served};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

/// Ingresses of our class, and of classes that the chart adopts.
pub(super) struct Ingress;

const GROUP: &str = "networking.k8s.io";
const INGRESSES: Resource = Resource { group: GROUP, plural: "ingresses" };
const CLASSES: Resource = Resource { group: GROUP, plural: "ingressclasses" };

const KIND: Kind = Kind::Origin(&KindRow {
    text: "Ingress",
    resource: INGRESSES,
    is_namespaced: true,
    programmed: Says::Addresses,
});

static WATCHED: [WatchRow; 2] = [
    // Without the classes it is not known which Ingresses are ours.
    WatchRow {
        of: KIND,
        resource: CLASSES,
        served: Served::Always("v1"),
        extent: Extent::Whole,
        fold: fold::class,
    },
    WatchRow {
        of: KIND,
        resource: INGRESSES,
        served: Served::Always("v1"),
        extent: Extent::Whole,
        fold: fold::fold,
    },
];

fn is_our_class(cluster: &Cluster, class: &Arc<str>) -> bool {
    cluster.origins.get(CLASSES, &ObjectName::new("", Arc::clone(class))).is_some()
}

impl Origin for Ingress {
    fn kind(&self) -> Kind {
        KIND
    }

    fn section(&self) -> &'static str {
        "ingress"
    }

    fn is_on(&self, policy: &Policy) -> bool {
        IngressPolicy::of(policy).is_some()
    }

    fn watched(&self) -> &'static [WatchRow] {
        &WATCHED
    }

    fn annotations(&self) -> &'static [&'static str] {
        &fold::ANNOTATIONS
    }

    fn asks<'a>(&self, view: &AskView<'_, 'a>) -> Vec<Asking<'a>> {
        rules::asks(view)
    }

    fn services(&self, object: &OriginObject) -> Vec<ObjectName> {
        let service = |service: &Arc<str>| ObjectName {
            namespace: Arc::clone(&object.meta.name.namespace),
            name: Arc::clone(service),
        };
        let rules = object.says.get().map_or(&[][..], |spec: &IngressSpec| &spec.rules);
        rules.iter().map(|rule| service(&rule.service)).collect()
    }

    fn judge(
        &self,
        cluster: &Cluster,
        object: &OriginObject,
        answers: &[Answer<'_, '_>],
        problems: &mut Vec<Problem>,
    ) -> Opaque {
        let served = object.says.get().and_then(|spec| served(cluster, spec));
        rules::problems(object, answers, problems);
        Opaque::new(status::Manner { is_written: served.is_some_and(|served| served.is_written) })
    }

    fn shows(&self, current: &Value, verdict: &OriginVerdict) -> bool {
        status::shows(current, verdict)
    }

    fn desired_status(
        &self,
        current: &Value,
        verdict: &OriginVerdict,
        progress: &Progress,
        ours: &BTreeSet<SocketAddr>,
        _now: &str,
    ) -> Option<Value> {
        status::desired_status(current, verdict, progress, ours)
    }

    fn left(&self, current: &Value, ours: &BTreeSet<SocketAddr>) -> Option<Value> {
        status::left(current, ours)
    }

    fn withdrawn(
        &self,
        _cluster: &Cluster,
        _object: &OriginObject,
        current: &Value,
        ours: &BTreeSet<SocketAddr>,
        _now: &str,
    ) -> Option<Value> {
        status::left(current, ours)
    }
}
