//! Services: ingress, condition, and the annotation with their pool.

use super::{Judged, Round};
use crate::ipam::Assignment;
use crate::model::{Kind, ObjectName, ObjectRef, Verdicts};
use crate::status;
use serde_json::Value;
use std::collections::BTreeSet;

/// Returns the Services that are left alone.
pub(super) fn held(assignment: &Assignment) -> BTreeSet<ObjectRef> {
    let held = assignment.services.iter().filter(|(_, allocation)| allocation.is_held);
    held.map(|(name, _)| ObjectRef { kind: Kind::Service, name: name.clone() }).collect()
}

impl Round<'_, '_> {
    pub(super) fn services(&mut self, verdicts: &Verdicts, assignment: &Assignment) {
        let cluster = self.view.cluster;
        let annotations = |name: &ObjectName, pool: Option<&str>| {
            status::service::annotations(&cluster.services.get(name)?.noted, pool)
        };
        for (name, verdict) in &verdicts.services {
            let object = ObjectRef { kind: Kind::Service, name: name.clone() };
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
            let object = ObjectRef { kind: Kind::Service, name: name.clone() };
            if service.load_balancer.is_none() && (self.view.status)(&object).is_some() {
                let is_same = !self.judge.last.services.contains_key(name);
                let annotations = annotations(name, None);
                self.one_with(object, is_same, Judged::default(), annotations, status::service::left);
            }
        }
    }
}
