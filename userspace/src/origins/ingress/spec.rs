//! Ingresses, folded to what decisions need, and which of them are served.

use crate::model::cluster::Policy;
use crate::model::{Cluster, Pattern};
use std::sync::Arc;

/// Which Ingresses are served, and where.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IngressPolicy {
    /// The TLS listeners of the chart that Ingresses attach to, by name; empty: none is served, and what we wrote into their status is
    /// taken out.
    pub listeners: Vec<Arc<str>>,
    /// Classes of other controllers whose Ingresses are served.
    pub adopt: Vec<AdoptedClass>,
}

impl IngressPolicy {
    /// Returns it if Ingresses are read.
    pub fn of(policy: &Policy) -> Option<&Self> {
        policy.origins.get()
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

/// An IngressClass of our controller name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OurClass;

/// An Ingress.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct IngressSpec {
    /// `spec.ingressClassName`, or else annotation `kubernetes.io/ingress.class`; `None`: neither is written.
    pub(super) class: Option<Arc<str>>,
    /// Whether an annotation asks for TLS passthrough.
    pub(super) passthrough: Passthrough,
    /// What can be served of `spec.rules`, in order; each host once.
    pub(super) rules: Vec<IngressRule>,
}

/// What annotations of other controllers say about TLS passthrough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Passthrough {
    /// Nothing, or no.
    #[default]
    No,
    /// One says yes.
    Yes,
    /// One says what is neither yes nor no.
    Unclear,
}

/// Where connections to a host of an Ingress go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct IngressRule {
    /// Which of `spec.rules` it is.
    pub(super) at: usize,
    /// `host`: a name, or one label before a name.
    pub(super) host: Pattern,
    /// The Service, in the Ingress's own namespace.
    pub(super) service: Arc<str>,
    /// Its port.
    pub(super) port: IngressPort,
}

/// A port of a Service as an Ingress writes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum IngressPort {
    /// `number`
    Number(u16),
    /// `name`
    Name(Arc<str>),
}

/// How an Ingress is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Served {
    /// Whether its hosts lead somewhere; if not, only what is wrong with it is reported.
    pub(super) has_hosts: bool,
    /// Whether we write its status.
    pub(super) is_written: bool,
}

/// Whether an Ingress is served, and how.
pub(super) fn served(cluster: &Cluster, spec: &IngressSpec) -> Option<Served> {
    let class = spec.class.as_ref()?;
    if super::is_our_class(cluster, class) {
        return Some(Served { has_hosts: true, is_written: true });
    }
    let adopt = &cluster.policy.origins.get::<IngressPolicy>()?.adopt;
    let adopted = adopt.iter().find(|adopted| adopted.class == *class)?;
    let has_hosts = match (adopted.is_annotated_only, spec.passthrough) {
        (false, _) | (true, Passthrough::Yes) => true,
        (true, Passthrough::Unclear) => false,
        (true, Passthrough::No) => return None,
    };
    Some(Served { has_hosts, is_written: has_hosts && adopted.writes_status })
}
