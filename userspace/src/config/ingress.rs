//! `ingress` of the chart's file: which Ingresses are served, and where.

use super::checked::Check;
use super::raw::Text;
use super::shape::Shape;
use crate::model::{ListenerSpec, Problem, Protocol};
use crate::origins::ingress::{AdoptedClass, IngressPolicy};
use serde::Deserialize;
use std::sync::Arc;

/// `ingress`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
pub(super) struct RawIngress<'a> {
    listeners: Option<Vec<Text<'a>>>,
    adopt: Option<Vec<RawAdopted<'a>>>,
}

/// `ingress.adopt[]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", bound(deserialize = "'de: 'a"))]
struct RawAdopted<'a> {
    class: Option<Text<'a>>,
    passthrough: Option<Text<'a>>,
    write_status: Option<bool>,
}

/// The shape of `ingress`.
pub(super) const INGRESS: &[(&str, Shape)] =
    &[("listeners", Shape::List(&Shape::Text)), ("adopt", Shape::List(&Shape::Table(ADOPTED)))];

const ADOPTED: &[(&str, Shape)] =
    &[("class", Shape::Text), ("passthrough", Shape::Text), ("writeStatus", Shape::Bool)];

impl Check<'_> {
    /// Checks which Ingresses are served. `known`: the listeners of the file.
    pub(super) fn ingress(&mut self, raw: RawIngress<'_>, known: &[ListenerSpec]) -> IngressPolicy {
        let mut listeners: Vec<Arc<str>> = Vec::new();
        for (i, text) in raw.listeners.unwrap_or_default().iter().enumerate() {
            let field = || format!("ingress.listeners[{i}]");
            let is_known = |listener: &&ListenerSpec| *listener.name == **text;
            let wrong = match known.iter().find(is_known) {
                None => Some("is no listener of this file"),
                Some(listener) if listener.protocol != Protocol::Tls => Some("is not of protocol TLS"),
                Some(_) if listeners.iter().any(|other| **other == **text) => Some("is there twice"),
                Some(_) => None,
            };
            match wrong {
                Some(what) => {
                    let remedy = "write the name of an entry of `listeners` with protocol TLS, once";
                    self.problems.push(Problem::error(field(), what, remedy).value(text));
                }
                None => listeners.push(Arc::from(&**text)),
            }
        }
        let mut adopt: Vec<AdoptedClass> = Vec::new();
        for (i, raw) in raw.adopt.unwrap_or_default().into_iter().enumerate() {
            let field = |name: &str| format!("ingress.adopt[{i}].{name}");
            let class = raw.class.as_deref().unwrap_or_default();
            if class.is_empty() || adopt.iter().any(|other| *other.class == *class) {
                let what = if class.is_empty() { "is missing" } else { "is there twice" };
                self.problems
                    .push(Problem::error(field("class"), what, "name each IngressClass once").value(class));
                continue;
            }
            let is_annotated_only = match raw.passthrough.as_deref() {
                Some("All") => false,
                None | Some("Annotated") => true,
                Some(other) => {
                    let remedy = "write All, or Annotated (only Ingresses with an annotation that asks for passthrough)";
                    let problem = Problem::error(field("passthrough"), "is unknown", remedy);
                    self.problems.push(problem.value(other));
                    continue;
                }
            };
            let writes_status = raw.write_status.unwrap_or(false);
            adopt.push(AdoptedClass { class: class.into(), is_annotated_only, writes_status });
        }
        IngressPolicy { listeners, adopt }
    }
}

#[cfg(test)]
mod tests {
    use super::super::parse_chart;
    use super::IngressPolicy;

    #[test]
    fn ingresses_are_served_on_tls_listeners_of_the_file() {
        let listeners = "listeners:\n  - {name: a, addresses: [192.0.2.1], port: 443, protocol: TLS}\n  - {name: t, addresses: [192.0.2.1], port: 80, protocol: TCP}\n";
        let text = format!(
            "{listeners}ingress:\n  listeners: [a]\n  adopt: [{{class: nginx}}, {{class: haproxy, passthrough: All, writeStatus: true}}]\n"
        );
        let (file, problems) = parse_chart(&text);
        assert_eq!(problems, []);
        let ingress = IngressPolicy::of(&file.policy).unwrap();
        assert_eq!(*ingress.listeners[0], *"a");
        let adopted = |at: usize| (ingress.adopt[at].is_annotated_only, ingress.adopt[at].writes_status);
        assert_eq!((adopted(0), adopted(1)), ((true, false), (false, true)));
        assert!(IngressPolicy::of(&parse_chart(listeners).0.policy).is_none());
        let (file, problems) = parse_chart(&format!("{listeners}ingress: {{listeners: [], adopt: []}}\n"));
        assert_eq!((problems, IngressPolicy::of(&file.policy).is_some()), (Vec::new(), true));
        let wrong = format!(
            "{listeners}ingress:\n  listeners: [t, gone, a, a]\n  adopt: [{{class: x, passthrough: Some}}, {{passthrough: All}}, {{class: y}}, {{class: y}}]\n"
        );
        let fields: Vec<String> = parse_chart(&wrong).1.into_iter().map(|problem| problem.field).collect();
        assert_eq!(
            fields,
            [
                "ingress.listeners[0]",
                "ingress.listeners[1]",
                "ingress.listeners[3]",
                "ingress.adopt[0].passthrough",
                "ingress.adopt[1].class",
                "ingress.adopt[3].class"
            ]
        );
    }
}
