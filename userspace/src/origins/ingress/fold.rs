//! Ingress and IngressClass. TLS is passed through: a host leads to one Service, and paths are not seen.

use super::super::Fetched;
use super::KIND;
use super::spec::{IngressPort, IngressRule, IngressSpec, OurClass, Passthrough};
use super::wire::{Backend, Ingress, IngressClass, Path, Rule};
use crate::model::{Opaque, Pattern, Problem};
use crate::sources::kubernetes::interner::Interner;
use crate::sources::kubernetes::value::{self, Findings, Wrong, wrong};
use foldhash::HashSet;
use std::collections::BTreeMap;
use std::sync::Arc;

/// By which an IngressClass says that it is ours.
const CONTROLLER: &str = "vestibule.dev/ingress-controller";
/// The older form of `spec.ingressClassName`.
const CLASS: &str = "kubernetes.io/ingress.class";
/// Beginnings of all annotations that are read.
pub(super) const ANNOTATIONS: [&str; 6] = [
    CLASS,
    "haproxy.org/",
    "haproxy-ingress.github.io/",
    "nginx.ingress.kubernetes.io/ssl-passthrough",
    "ingress.kubernetes.io/",
    "ingress.cilium.io/tls-passthrough",
];
/// Annotations of other controllers that ask for TLS passthrough.
const PASSTHROUGH: [&str; 5] = [
    "haproxy.org/ssl-passthrough",
    "haproxy-ingress.github.io/ssl-passthrough",
    "ingress.kubernetes.io/ssl-passthrough",
    "nginx.ingress.kubernetes.io/ssl-passthrough",
    "ingress.cilium.io/tls-passthrough",
];
/// Annotations of other controllers that ask for PROXY protocol towards the backend.
const PROXY_PROTOCOL: [&str; 3] = [
    "haproxy.org/send-proxy-protocol",
    "haproxy-ingress.github.io/proxy-protocol",
    "ingress.kubernetes.io/proxy-protocol",
];
/// Values of annotations that switch something off, for one controller or another.
const OFF: [&str; 8] = ["", "0", "disabled", "f", "false", "n", "no", "off"];
/// Values that switch something on.
const ON: [&str; 7] = ["1", "enabled", "on", "t", "true", "y", "yes"];

/// Folds an IngressClass.
pub(super) fn class(mut object: Fetched<'_>, _: &Interner) -> (Option<Opaque>, Vec<Problem>) {
    // One that has no such shape is not ours.
    let spec = object.spec::<IngressClass>(&mut Findings::of(None));
    let is_ours = spec.controller.as_deref() == Some(CONTROLLER);
    (is_ours.then(|| Opaque::new(OurClass)), Vec::new())
}

/// Folds an Ingress.
pub(super) fn fold(mut object: Fetched<'_>, interner: &Interner) -> (Option<Opaque>, Vec<Problem>) {
    let mut found = object.findings(KIND);
    let annotations = object.annotations;
    let spec = object.spec::<Ingress>(&mut found);
    let class = spec.ingress_class_name.as_ref().or_else(|| annotations.get(CLASS));
    let class = class.map(|class| interner.of(class));
    let passthrough = passthrough(annotations, &mut found);
    if spec.default_backend.is_some() {
        let what = "is not served: without a server name nothing says whose a connection is";
        found.tell("spec.defaultBackend", "", wrong(what, "write a rule for each host"));
    }
    let rules = match PROXY_PROTOCOL.iter().find(|name| is_on(annotations, name)) {
        Some(name) => {
            let what = "PROXY protocol is not spoken to backends: the Ingress is not served at all";
            let value = annotations.get(*name).map(String::as_str).unwrap_or_default();
            let remedy = "remove it, and let the backend read TLS";
            found.tell(format_args!("metadata.annotations[{name}]"), value, wrong(what, remedy));
            Vec::new()
        }
        None => rules(spec.rules.unwrap_or_default(), &mut found, interner),
    };
    (Some(Opaque::new(IngressSpec { class, passthrough, rules })), found.into_problems())
}

/// What annotations say about TLS passthrough. What a controller cannot read switches nothing on.
fn passthrough(annotations: &BTreeMap<String, String>, found: &mut Findings) -> Passthrough {
    let mut said = Passthrough::No;
    for name in PASSTHROUGH.iter().filter(|name| is_on(annotations, name)) {
        let value = annotations[*name].trim();
        if ON.contains(&value.to_ascii_lowercase().as_str()) {
            said = Passthrough::Yes;
            continue;
        }
        if said == Passthrough::No {
            said = Passthrough::Unclear;
        }
        let wrong = wrong("is neither true nor false, and asks for nothing", "write \"true\" or \"false\"");
        found.tell(format_args!("metadata.annotations[{name}]"), value, wrong);
    }
    said
}

fn is_on(annotations: &BTreeMap<String, String>, name: &str) -> bool {
    annotations.get(name).is_some_and(|value| !OFF.contains(&value.trim().to_ascii_lowercase().as_str()))
}

fn rules(raw: Vec<Rule>, found: &mut Findings, interner: &Interner) -> Vec<IngressRule> {
    let mut rules: Vec<IngressRule> = Vec::new();
    let mut hosts = HashSet::default();
    for (at, Rule { host, http }) in raw.into_iter().enumerate() {
        let field = format!("spec.rules[{at}]");
        let text = host.unwrap_or_default();
        let Some(host) = found.check(format_args!("{field}.host"), &text, self::host(&text)) else {
            continue;
        };
        if hosts.contains(&host) {
            let wrong = wrong("has a rule already", "write one rule for each host");
            found.tell(format_args!("{field}.host"), &text, wrong);
            continue;
        }
        let paths = http.and_then(|http| http.paths).unwrap_or_default();
        if let Some((service, port)) = root(paths, &field, found, interner) {
            hosts.insert(host.clone());
            rules.push(IngressRule { at, host, service, port });
        }
    }
    rules
}

/// A host as Ingress means it: a name, or exactly one label before a name.
fn host(text: &str) -> Result<Pattern, Wrong> {
    if text.is_empty() {
        let what = "has no host: without a server name nothing says whose a connection is";
        return Err(wrong(what, "write the name that clients ask for"));
    }
    Ok(match value::pattern(text)? {
        Pattern::Wildcard(suffix) => Pattern::OneLabel(suffix),
        other => other,
    })
}

/// Returns where path `/` leads, and reports the others.
fn root(
    paths: Vec<Path>,
    field: &str,
    found: &mut Findings,
    interner: &Interner,
) -> Option<(Arc<str>, IngressPort)> {
    let mut root = None;
    let is_empty = paths.is_empty();
    for (place, Path { path, backend }) in paths.into_iter().enumerate() {
        let field = format!("{field}.http.paths[{place}]");
        let path = path.unwrap_or_default();
        if !matches!(path.as_str(), "" | "/") {
            let what = "is not served: TLS is passed through, and paths are not seen";
            found.tell(format_args!("{field}.path"), path, wrong(what, "give it a host of its own"));
        } else if root.is_some() {
            let wrong = wrong("is the second one of /", "write one backend for each host");
            found.tell(format_args!("{field}.path"), path, wrong);
        } else {
            root = Some(self::backend(backend.unwrap_or_default(), &field, found, interner));
        }
    }
    if is_empty {
        let what = "has no path, and a default backend is not served";
        found.tell(format_args!("{field}.http"), "", wrong(what, "write path / with a Service"));
    }
    root.flatten()
}

fn backend(
    raw: Backend,
    field: &str,
    found: &mut Findings,
    interner: &Interner,
) -> Option<(Arc<str>, IngressPort)> {
    let Some(service) = raw.service else {
        let wrong = wrong("is no Service", "write backend.service with name and port");
        found.tell(format_args!("{field}.backend"), "", wrong);
        return None;
    };
    let port = service.port.unwrap_or_default();
    let port = match (port.number.filter(|number| *number != 0), port.name) {
        (Some(number), _) => {
            let field = format_args!("{field}.backend.service.port.number");
            IngressPort::Number(found.check(field, number, value::port(number))?)
        }
        (None, Some(name)) => IngressPort::Name(interner.of(&name)),
        (None, None) => {
            let wrong = wrong("has no port", "write its number or name");
            found.tell(format_args!("{field}.backend.service.port"), "", wrong);
            return None;
        }
    };
    Some((interner.of(service.name.as_deref().unwrap_or_default()), port))
}
