//! Ingresses in a short notation.

/// Objects in, facts and problems out.
mod fold;
/// Ingresses on listeners of the chart.
mod settle;

use super::spec::{IngressPolicy, IngressPort, IngressRule, IngressSpec, OurClass, Passthrough};
use super::{CLASSES, INGRESSES};
use crate::model::{Cluster, Meta, ObjectName, Opaque, OriginObject};
use crate::settle::tests::pattern;

/// Serves Ingresses of class `ours` at these listeners.
pub(crate) fn serve(cluster: &mut Cluster, listeners: &[&str]) {
    let listeners = listeners.iter().map(|listener| (*listener).into()).collect();
    cluster.policy.origins.set(IngressPolicy { listeners, adopt: Vec::new() });
    let meta = Meta { name: ObjectName::new("", "ours"), ..Meta::default() };
    cluster.origins.put(CLASSES, OriginObject { meta, says: Opaque::new(OurClass) });
}

/// Puts in an Ingress of class `ours` with these `host service[:port]`.
pub(crate) fn put(cluster: &mut Cluster, meta: Meta, rules: &[&str]) {
    cluster.origins.put(INGRESSES, OriginObject { meta, says: Opaque::new(spec("ours", rules)) });
}

fn spec(class: &str, rules: &[&str]) -> IngressSpec {
    let rule = |(at, text): (usize, &&str)| {
        let (host, backend) = text.split_once(' ').unwrap();
        let (service, port) = backend.split_once(':').unwrap_or((backend, "443"));
        let number = port.parse().map(IngressPort::Number);
        let port = number.unwrap_or_else(|_| IngressPort::Name(port.into()));
        IngressRule { at, host: pattern(host), service: service.into(), port }
    };
    let rules = rules.iter().enumerate().map(rule).collect();
    IngressSpec { class: Some(class.into()), passthrough: Passthrough::No, rules }
}
