//! Ingresses, folded to what decisions need, and which of them are served.

use super::name::Pattern;
use super::object::{Meta, ObjectName};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Ingresses and their classes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressObjects {
    /// IngressClasses of our controller name.
    pub classes: BTreeSet<Arc<str>>,
    /// All Ingresses, those of other classes too.
    pub all: BTreeMap<ObjectName, Arc<IngressSpec>>,
}

/// Which Ingresses are served, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressPolicy {
    /// The TLS listeners of the chart that Ingresses attach to, by name; empty: Ingresses are not served.
    pub listeners: Vec<Arc<str>>,
    /// Classes of other controllers whose Ingresses are served.
    pub adopt: Vec<AdoptedClass>,
}

impl IngressPolicy {
    /// Whether Ingresses are served.
    pub fn is_on(&self) -> bool {
        !self.listeners.is_empty()
    }
}

/// A class of another controller whose Ingresses are served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdoptedClass {
    /// Its name.
    pub class: Arc<str>,
    /// Only Ingresses with an annotation that asks for TLS passthrough.
    pub is_annotated_only: bool,
    /// Whether we write `status.loadBalancer.ingress`.
    pub writes_status: bool,
}

/// An Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressSpec {
    /// Name, age, generation.
    pub meta: Meta,
    /// `spec.ingressClassName`, or else annotation `kubernetes.io/ingress.class`; `None`: neither is written.
    pub class: Option<Arc<str>>,
    /// Whether an annotation asks for TLS passthrough.
    pub is_passthrough: bool,
    /// What can be served of `spec.rules`, in order; each host once.
    pub rules: Vec<IngressRule>,
}

/// Where connections to a host of an Ingress go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IngressRule {
    /// Which of `spec.rules` it is.
    pub at: usize,
    /// `host`: a name, or one label before a name.
    pub host: Pattern,
    /// The Service, in the Ingress's own namespace.
    pub service: Arc<str>,
    /// Its port.
    pub port: IngressPort,
}

/// A port of a Service as an Ingress writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum IngressPort {
    /// `number`
    Number(u16),
    /// `name`
    Name(Arc<str>),
}
