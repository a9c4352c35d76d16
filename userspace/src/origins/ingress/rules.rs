//! What Ingresses ask for: each host, at all listeners that the chart names.

use super::super::{Answer, Ask, AskView, Asking};
use super::spec::{IngressPolicy, IngressPort, IngressRule, IngressSpec, Served, served};
use super::{INGRESSES, KIND};
use crate::model::claim::{ClaimBackend, ServicePortRef};
use crate::model::cluster::BackendRef;
use crate::model::{ObjectName, ObjectRef, OriginObject, Problem};
use crate::settle::references::Fault;
use std::sync::Arc;

/// Returns the Ingresses that are served, with their hosts.
pub(super) fn asks<'a>(view: &AskView<'_, 'a>) -> Vec<Asking<'a>> {
    let mut all = Vec::new();
    let Some(policy) = IngressPolicy::of(&view.cluster.policy) else { return all };
    let listeners = view.listeners(&policy.listeners);
    if listeners.is_empty() {
        return all;
    }
    for (name, object) in view.cluster.origins.of(INGRESSES) {
        let Some(spec) = object.says.get::<IngressSpec>() else { continue };
        let Some(Served { has_hosts, .. }) = served(view.cluster, spec) else { continue };
        let rules = if has_hosts { &spec.rules[..] } else { &[] };
        let asks = rules.iter().map(|rule| ask(view, name, rule)).collect();
        all.push(Asking { object, listeners: Arc::clone(&listeners), asks });
    }
    all
}

fn ask<'a>(view: &AskView<'_, 'a>, ingress: &ObjectName, rule: &'a IngressRule) -> Ask<'a> {
    let (service, fault) = match service(view, ingress, rule) {
        Ok(service) => (Some(service), None),
        Err(fault) => (None, Some(fault)),
    };
    let backend = ClaimBackend::of_service(1, service);
    Ask { part: rule.host.to_string(), pattern: &rule.host, backend, fault }
}

/// Returns the Service and port that a rule leads to.
fn service(
    view: &AskView<'_, '_>,
    ingress: &ObjectName,
    rule: &IngressRule,
) -> Result<ServicePortRef, Fault> {
    let port = match &rule.port {
        IngressPort::Number(number) => *number,
        IngressPort::Name(port) => {
            let name =
                ObjectName { namespace: Arc::clone(&ingress.namespace), name: Arc::clone(&rule.service) };
            let service = view.cluster.services.get(&name);
            let known = service.and_then(|service| service.ports.iter().find(|known| known.name == *port));
            match (service, known) {
                (Some(_), None) => {
                    let what = format!("Service {name} has no port {port}");
                    return Err(Fault { reason: "BackendNotFound", what });
                }
                (Some(_), Some(known)) if !known.is_tcp => {
                    let what = format!("Service {name}: port {port} is not TCP");
                    return Err(Fault { reason: "UnsupportedProtocol", what });
                }
                (_, known) => known.map_or(0, |known| known.port),
            }
        }
    };
    let reference = BackendRef {
        group: "".into(),
        kind: "Service".into(),
        namespace: None,
        name: Arc::clone(&rule.service),
        port: Some(port),
        weight: 1,
    };
    view.references.find(KIND, &ingress.namespace, &reference)
}

/// Adds what is wrong with an Ingress that is served, and what it has not of what it asks for. The answers are those to its rules.
pub(super) fn problems(object: &OriginObject, answers: &[Answer<'_, '_>], problems: &mut Vec<Problem>) {
    let Some(spec) = object.says.get::<IngressSpec>() else { return };
    let object = ObjectRef { kind: KIND, name: object.meta.name.clone() };
    for (rule, Answer { ask, lost }) in spec.rules.iter().zip(answers) {
        let field = format!("spec.rules[{}]", rule.at);
        if let Some(fault) = &ask.fault {
            let what = format!("{}; connections to {} are refused", fault.what, rule.host);
            let problem =
                Problem::warning(format!("{field}.http"), what, "write a Service and port that exist");
            problems.push(problem.object(object.clone()));
        }
        let Some(lost) = lost.first() else { continue };
        let what = match &lost.owner {
            Some(owner) => format!("{} on {} belongs to {owner}", rule.host, lost.at),
            None => {
                format!("{} is a name of the cluster's own API server, which no tenant may have", rule.host)
            }
        };
        let remedy = "choose another name, or remove it where it is";
        let problem = Problem::warning(format!("{field}.host"), what, remedy);
        problems.push(problem.value(&rule.host).object(object.clone()));
    }
}
