//! What statuses say that nodes hold.

use super::View;
use super::services::held;
use crate::ipam::Assignment;
use crate::model::kind::Says;
use crate::model::{Kind, ObjectName, ObjectRef, Verdicts};
use crate::status::{self, elements, text};
use serde_json::Value;
use std::net::IpAddr;

/// Returns the first object of ours whose status says that nodes hold it. What is not ours, or is left alone, has addresses of others,
/// which say nothing.
pub(super) fn first(view: &View<'_>, verdicts: &Verdicts, assignment: &Assignment) -> Option<ObjectRef> {
    let says = |kind: Kind, name: &ObjectName| {
        let object = ObjectRef { kind, name: name.clone() };
        let stored = (view.status)(&object)?;
        status::is_programmed(&stored.status, kind, 0).then_some((object, &stored.status))
    };
    let conditions = [(Kind::TlsRoute, &verdicts.tls_routes), (Kind::TcpRoute, &verdicts.tcp_routes)];
    let gateways = verdicts.gateways.keys().find_map(|name| says(Kind::Gateway, name));
    let listener_sets = || verdicts.listener_sets.keys().find_map(|name| says(Kind::ListenerSet, name));
    let routes = || conditions.iter().find_map(|(kind, all)| all.keys().find_map(|name| says(*kind, name)));
    let left_alone = held(assignment);
    let services = || {
        let mut ours = verdicts.services.keys().filter_map(|name| says(Kind::Service, name));
        ours.find(|(object, _)| !left_alone.contains(object))
    };
    let origins = || {
        verdicts.origins.iter().find_map(|(object, verdict)| {
            let found = says(object.kind, &object.name)?;
            let is_ours =
                object.kind.programmed() != Says::Addresses || shows_any(found.1, &verdict.addresses);
            is_ours.then_some(found)
        })
    };
    let found = gateways.or_else(listener_sets).or_else(routes).or_else(services).or_else(origins);
    found.map(|(object, _)| object)
}

/// Whether a status has any of these addresses.
fn shows_any(status: &Value, addresses: &[IpAddr]) -> bool {
    let entries = elements(status.pointer("/loadBalancer/ingress"));
    addresses.iter().any(|address| entries.iter().any(|entry| text(entry, "ip") == address.to_string()))
}

#[cfg(test)]
mod tests {
    use super::super::Judge;
    use super::super::tests::view;
    use super::*;
    use crate::controller::claims::Claims;
    use crate::model::cluster::LoadBalancerSpec;
    use crate::model::{Cluster, Facts, Protocol};
    use crate::origins::tests::{put, serve};
    use crate::settle::tests::{Scene, meta};
    use crate::sources::kubernetes::StoredStatus;
    use serde_json::json;
    use std::sync::Arc;

    /// What says that nodes hold something, where objects of these kinds have this status.
    fn said(facts: &Facts, cluster: &Cluster, is_it: fn(Kind) -> bool, status: Value) -> Option<String> {
        let stored = StoredStatus { resource_version: "1".to_owned(), uid: "u".to_owned(), status };
        let status = |object: &ObjectRef| is_it(object.kind).then_some(&stored);
        let mut claims = Claims::default();
        Judge::new(facts.clone()).judge(&view(cluster, &status), &mut claims);
        claims.in_statuses().map(str::to_owned)
    }

    /// What another controller serves, and a Service that was ours, held back what all others wait for.
    #[test]
    fn addresses_of_others_say_nothing_of_nodes() {
        let shows = |address: &str| json!({"loadBalancer": {"ingress": [{"ip": address}]}});
        let by_address = |kind: Kind| kind.programmed() == Says::Addresses;
        let mut scene = Scene::new();
        scene.file_listener("https", Protocol::Tls, &["192.0.2.200"], 443, None);
        scene.service("a/web", &["10.0.0.1"]);
        put(scene.cluster(), meta("a/i", 1), &["a.example web"]);
        let of_others = scene.cluster().clone();
        serve(scene.cluster(), &["https"]);
        let ours = scene.cluster().clone();
        let facts = Facts { cluster: None, ..scene.facts };
        let why = said(&facts, &ours, by_address, shows("192.0.2.200")).unwrap();
        assert!(why.contains(" a/i says"), "{why}");
        assert_eq!(said(&facts, &ours, by_address, shows("198.51.100.7")), None);
        assert_eq!(said(&facts, &of_others, by_address, shows("192.0.2.200")), None);
        let condition = || json!({"conditions": [{"type": "vestibule.dev/Programmed", "status": "True"}]});
        let balanced = |is_ours: bool| {
            let mut cluster = ours.clone();
            let service = Arc::make_mut(cluster.services.values_mut().next().unwrap());
            service.load_balancer = is_ours.then(|| Arc::new(LoadBalancerSpec::default()));
            said(&facts, &cluster, |kind| kind == Kind::Service, condition())
        };
        assert!(balanced(true).is_some_and(|why| why.contains("Service a/web")));
        assert_eq!(balanced(false), None);
    }
}
