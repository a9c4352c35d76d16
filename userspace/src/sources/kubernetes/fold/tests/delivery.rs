//! What Services ask of the delivery of connections.

use super::super::service;
use super::endpoints::load_balancer;
use super::{defaults, interner, lines, raw};
use crate::model::{Affinity, TrafficPolicy};
use std::num::NonZeroU16;

#[test]
fn the_affinity_of_a_service_is_read() {
    let read = |spec: &str| {
        service(raw(&load_balancer(spec, "")), &defaults(), &interner()).0.load_balancer.unwrap()
    };
    assert_eq!(read("sessionAffinity: ClientIP").affinity, Affinity::ClientIp);
    assert_eq!([read("").affinity, read("sessionAffinity: None").affinity], [Affinity::None; 2]);
}

#[test]
fn the_traffic_policy_of_a_service_is_read() {
    let read = |spec: &str| {
        let (service, problems) = service(raw(&load_balancer(spec, "")), &defaults(), &interner());
        assert_eq!(lines(&problems), [""; 0]);
        service.load_balancer.unwrap().traffic
    };
    assert_eq!(read("externalTrafficPolicy: Local"), TrafficPolicy::Local);
    for spec in ["", "externalTrafficPolicy: Cluster", "externalTrafficPolicy: null"] {
        assert_eq!(read(spec), TrafficPolicy::Cluster, "{spec}");
    }
}

#[test]
fn the_port_for_health_checks_of_a_service_is_read_where_pods_of_a_node_matter() {
    let read = |spec: &str| {
        let (service, problems) = service(raw(&load_balancer(spec, "")), &defaults(), &interner());
        (service.load_balancer.unwrap().health_port.map_or(0, NonZeroU16::get), lines(&problems))
    };
    assert_eq!(read("externalTrafficPolicy: Local, healthCheckNodePort: 32100"), (32_100, vec![]));
    for spec in [
        "externalTrafficPolicy: Local",
        "healthCheckNodePort: 32100",
        "externalTrafficPolicy: Local, healthCheckNodePort: 0",
    ] {
        assert_eq!(read(spec), (0, vec![]), "{spec}");
    }
    let (none, told) = read("externalTrafficPolicy: Local, healthCheckNodePort: 70000");
    assert!(none == 0 && told[0].contains("spec.healthCheckNodePort"), "{told:?}");
}

/// It is served all the same, as without them.
#[test]
fn what_a_service_asks_of_the_delivery_and_is_not_kept_is_named() {
    let read = |spec: &str| {
        let (service, problems) = service(raw(&load_balancer(spec, "")), &defaults(), &interner());
        assert!(service.load_balancer.is_some());
        lines(&problems)
    };
    let timeout = |seconds: &str| {
        read(&format!(
            "sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}"
        ))
    };
    assert_eq!(
        timeout("60"),
        [
            "warning: Service ns/api: spec.sessionAffinityConfig.clientIP.timeoutSeconds: is not kept: affinity lasts as \
             long as the set of backends (value \"60\"); remove it, or serve the Service by other means"
        ]
    );
    // The API server writes these where nobody says anything.
    assert_eq!(timeout("10800"), [""; 0]);
    assert_eq!(read("sessionAffinityConfig: null"), [""; 0]);
    // Of Services that are not ours nothing is said.
    let asked = "sessionAffinityConfig: {clientIP: {timeoutSeconds: 60}}";
    let others = load_balancer(asked, "").replace("vestibule.dev/lb", "example.com/lb");
    assert_eq!(service(raw(&others), &defaults(), &interner()).1, []);
}
