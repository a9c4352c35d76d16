//! Backend references: which Services they lead to, and what is wrong with them.

use super::grant::Grants;
use crate::model::claim::{ClaimBackend, ServicePortRef};
use crate::model::cluster::{BackendRef, ClusterRoute, Policy, ServicePort, ServiceSpec};
use crate::model::{Cluster, Kind, ObjectName};
use std::sync::Arc;

/// Why a reference leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    /// The reason for `ResolvedRefs`.
    pub(crate) reason: &'static str,
    /// Which reference, and what is wrong with it.
    pub(crate) what: String,
}

/// The result of resolving a route's references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Of the first rule, in the order of the references.
    pub(super) backends: Arc<[ClaimBackend]>,
    /// In the same order.
    pub(super) faults: Vec<Fault>,
}

/// Everything that references are resolved by.
pub(crate) struct References<'a> {
    cluster: &'a Cluster,
    grants: Grants<'a>,
}

impl<'a> References<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        Self { cluster, grants: Grants::new(cluster) }
    }

    /// Resolves a route's references: those of its first rule.
    pub(super) fn of(&self, kind: Kind, route: &ClusterRoute) -> Resolved {
        let mut faults = Vec::new();
        let resolve = |reference: &BackendRef| {
            let found = self.find(kind, &route.meta.name.namespace, reference);
            let service = found.map_err(|fault| faults.push(fault)).ok();
            ClaimBackend::of_service(reference.weight, service)
        };
        let backends = route.rules.first().into_iter().flatten().map(resolve).collect();
        Resolved { backends, faults }
    }

    /// Finds the Service and port that a reference means.
    pub(crate) fn find(
        &self,
        kind: Kind,
        from: &Arc<str>,
        reference: &BackendRef,
    ) -> Result<ServicePortRef, Fault> {
        let namespace = reference.namespace.as_ref().unwrap_or(from);
        let fault = |reason, what: String| Fault { reason, what };
        if !reference.group.is_empty() || &*reference.kind != "Service" {
            let group = if reference.group.is_empty() { "" } else { "/" };
            let what = format!(
                "{}{group}{} {}: only Services can be backends",
                reference.group, reference.kind, reference.name
            );
            return Err(fault("InvalidKind", what));
        }
        let name = ObjectName { namespace: Arc::clone(namespace), name: Arc::clone(&reference.name) };
        if !self.grants.allow(kind, from, &name) {
            let what = format!(
                "Service {name}: no ReferenceGrant in {namespace} lets a {kind} of {from} refer to it"
            );
            return Err(fault("RefNotPermitted", what));
        }
        let Some(service) = self.cluster.services.get(&name) else {
            return Err(fault("BackendNotFound", format!("Service {name} does not exist")));
        };
        let Some(number) = reference.port else {
            return Err(fault("UnsupportedValue", format!("Service {name}: the reference has no port")));
        };
        if service.is_external_name {
            let what = format!("Service {name} is of type ExternalName: it has no endpoints");
            return Err(fault("UnsupportedValue", what));
        }
        let mut ports = service.ports.iter().filter(|port| port.port == number).peekable();
        if ports.peek().is_none() {
            return Err(fault("BackendNotFound", format!("Service {name} has no port {number}")));
        }
        match ports.find(|port| port.is_tcp) {
            Some(port) => Ok(port_of(name, service, port, &self.cluster.policy)),
            None => Err(fault("UnsupportedProtocol", format!("Service {name}: port {number} is not TCP"))),
        }
    }
}

/// Returns a Service's port as a claim names it.
pub(super) fn port_of(
    name: ObjectName,
    service: &ServiceSpec,
    port: &ServicePort,
    policy: &Policy,
) -> ServicePortRef {
    ServicePortRef { name, port: Arc::clone(&port.name), probe: service.probe.unwrap_or(policy.probe) }
}
