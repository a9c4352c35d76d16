//! Services: ingress, condition, and the annotation with their pool.

use super::{Judged, Round};
use crate::controller::hold;
use crate::ipam::Assignment;
use crate::model::{Kind, ObjectName, ObjectRef, Verdicts};
use crate::sources::kubernetes::api::claim::ClaimOrigin;
use crate::status;
use serde_json::Value;
use std::collections::BTreeSet;

/// Returns the Gateways and Services that are left alone.
pub(super) fn held(assignment: &Assignment) -> BTreeSet<ObjectRef> {
    let Assignment { gateways, services, .. } = assignment;
    let all = [(Kind::Gateway, gateways), (Kind::Service, services)];
    let held = all.into_iter().flat_map(|(kind, all)| {
        let held = all.iter().filter(|(_, allocation)| allocation.is_held);
        held.map(move |(name, _)| ObjectRef { kind, name: name.clone() })
    });
    held.collect()
}

/// Returns whether a Claim is of a Service that is left alone, but keeps no Claim.
pub(super) fn moved(assignment: &Assignment) -> impl Fn(&ClaimOrigin) -> bool + use<> {
    let moved = assignment.services.iter().filter(|(_, allocation)| allocation.has_moved);
    let moved: BTreeSet<ObjectRef> = moved.map(|(name, _)| object(name)).collect();
    move |origin| !moved.is_empty() && hold::object(origin).is_some_and(|object| moved.contains(&object))
}

fn object(name: &ObjectName) -> ObjectRef {
    ObjectRef { kind: Kind::Service, name: name.clone() }
}

impl Round<'_, '_> {
    pub(super) fn services(&mut self, verdicts: &Verdicts, assignment: &Assignment) {
        let cluster = self.view.cluster;
        let annotations = |name: &ObjectName, pool: Option<&str>| {
            status::service::annotations(&cluster.services.get(name)?.noted, pool)
        };
        for (name, verdict) in &verdicts.services {
            let object = object(name);
            let is_same = self.judge.last.services.get(name) == Some(verdict);
            let shows = |status: &Value| status::service::shows(status, verdict);
            let progress = self.progress_since(&object, &verdict.programmable, 0, shows);
            let now = self.view.now;
            let pool = assignment.services.get(name).and_then(|own| own.pool.clone());
            let annotations = annotations(name, pool.as_deref());
            let judged = Judged { progress: Some(progress.clone()), pool, ..Judged::default() };
            self.one_with(object, is_same, judged, annotations, |current| {
                status::service::desired_status(current, verdict, &progress, now)
            });
        }
        for (name, service) in &cluster.services {
            let object = object(name);
            if service.load_balancer.is_none() && (self.view.status)(&object).is_some() {
                let is_same = !self.judge.last.services.contains_key(name);
                let annotations = annotations(name, None);
                self.one_with(object, is_same, Judged::default(), annotations, status::service::left);
            }
        }
    }
}
