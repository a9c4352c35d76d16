//! Services: ingress, condition, and the annotation with their pool.

use super::{Judged, Round};
use crate::controller::hold;
use crate::ipam::Assignment;
use crate::model::cluster::EndpointState;
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, TrafficPolicy, Verdicts};
use crate::sources::kubernetes::api::claim::ClaimOrigin;
use crate::status;
use foldhash::HashMap;
use serde_json::Value;
use std::collections::BTreeSet;
use std::sync::Arc;

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

/// Returns which nodes alone lead clients of Services to a pod: those with one that is ready, of each with `externalTrafficPolicy: Local`
/// of which all are known.
pub(super) fn leading(cluster: &Cluster) -> HashMap<ObjectRef, BTreeSet<Arc<str>>> {
    let local = cluster.services.iter().filter(|(_, service)| {
        service.load_balancer.as_ref().is_some_and(|own| own.traffic == TrafficPolicy::Local)
    });
    let nodes = local.filter_map(|(name, _)| {
        let endpoints = cluster.endpoints.get(name)?;
        let ready = endpoints.iter().filter(|endpoint| endpoint.state == EndpointState::Ready);
        let nodes: Option<BTreeSet<Arc<str>>> = ready.map(|endpoint| endpoint.node.clone()).collect();
        Some((object(name), nodes?))
    });
    nodes.collect()
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::cluster::{Endpoint, LoadBalancerSpec};
    use crate::settle::tests::Scene;

    #[test]
    fn nodes_with_a_ready_pod_alone_lead_to_a_service_that_is_local() {
        let endpoint = |node: Option<&str>, state| Endpoint {
            port_name: "".into(),
            address: [10, 0, 0, 1].into(),
            port: 443,
            state,
            zones: Arc::new([]),
            node: node.map(Into::into),
        };
        let led = |traffic, endpoints: Vec<Endpoint>| {
            let mut scene = Scene::new();
            let service = scene.service("a/s", &["10.0.0.1"]);
            service.load_balancer =
                Some(Arc::new(LoadBalancerSpec { traffic, ..LoadBalancerSpec::default() }));
            let name = ObjectName::new("a", "s");
            scene.cluster().endpoints.insert(name.clone(), endpoints.into());
            let found = leading(scene.cluster()).remove(&object(&name))?;
            Some(found.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        use EndpointState::{NotReady, Ready};
        let two = || vec![endpoint(Some("n1"), Ready), endpoint(Some("n2"), NotReady)];
        assert_eq!(led(TrafficPolicy::Local, two()), Some(vec!["n1".to_owned()]));
        assert_eq!(led(TrafficPolicy::Cluster, two()), None);
        let unknown = [two(), vec![endpoint(None, Ready)]].concat();
        assert_eq!(led(TrafficPolicy::Local, unknown), None, "nobody says where it is");
    }
}
