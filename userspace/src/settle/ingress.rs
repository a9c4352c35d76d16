//! Ingresses that are served: names on TLS listeners of the chart.

use super::bindings::Binding;
use super::own::{Candidate, Loss, NONE};
use super::precedence::Claimant;
use super::references::{Fault, References};
use super::{label, left_out, no};
use crate::model::claim::ClaimBackend;
use crate::model::cluster::{BackendRef, IngressPort, IngressRule, IngressSpec, Policy};
use crate::model::verdict::{IngressVerdict, Programmable};
use crate::model::{Cluster, Desired, Kind, ObjectName, ObjectRef, Problem, Protocol};
use foldhash::HashSet;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::sync::Arc;

/// A host of an Ingress that is served.
pub(super) struct Rule<'a> {
    pub(super) ingress: &'a IngressSpec,
    pub(super) spec: &'a IngressRule,
    pub(super) label: Arc<str>,
    pub(super) backend: ClaimBackend,
    fault: Option<Fault>,
    /// Indices of the bindings where it has its host.
    pub(super) bindings: Vec<usize>,
    /// What it requested and does not have.
    pub(super) losses: Vec<Loss<'a>>,
    /// The maps have no room for its route.
    left_out: bool,
}

impl<'a> Rule<'a> {
    pub(super) fn claimant(&self) -> Claimant<'a> {
        Claimant::object(Kind::Ingress, &self.ingress.meta)
    }
}

/// An Ingress that is served.
struct Served<'a> {
    spec: &'a IngressSpec,
    writes_status: bool,
    /// Indices of its rules.
    rules: Range<usize>,
}

/// All Ingresses that are served.
#[derive(Default)]
pub(super) struct Ingresses<'a> {
    /// Indices of the file's listeners that they attach to.
    pub(super) listeners: Vec<usize>,
    all: Vec<Served<'a>>,
    pub(super) rules: Vec<Rule<'a>>,
}

impl<'a> Ingresses<'a> {
    pub(super) fn new(cluster: &'a Cluster, file: &Desired, references: &References<'_>) -> Self {
        let mut this = Self::default();
        let named = |name: &Arc<str>| {
            let is_it = |listener: &crate::model::DesiredListener| {
                listener.name == *name && listener.protocol == Protocol::Tls
            };
            file.listeners.iter().position(is_it)
        };
        this.listeners = cluster.policy.ingress.listeners.iter().filter_map(named).collect();
        if this.listeners.is_empty() {
            return this;
        }
        let mut buffer = String::new();
        for (name, spec) in &cluster.ingress.all {
            let Some(writes_status) = served(cluster, spec) else { continue };
            let first = this.rules.len();
            for rule in &spec.rules {
                let found = service(cluster, references, name, rule);
                let (service, fault) = match found {
                    Ok(service) => (Some(service), None),
                    Err(fault) => (None, Some(fault)),
                };
                this.rules.push(Rule {
                    ingress: spec,
                    spec: rule,
                    label: label::ingress(&mut buffer, name, &rule.host),
                    backend: ClaimBackend { weight: 1, service },
                    fault,
                    bindings: Vec::new(),
                    losses: Vec::new(),
                    left_out: false,
                });
            }
            this.all.push(Served { spec, writes_status, rules: first..this.rules.len() });
        }
        this
    }

    /// Adds what they request. `first_target` and `first_attachment`: those of the first rule.
    pub(super) fn candidates(
        &self,
        file_doors: &[Vec<usize>],
        first_target: usize,
        first_attachment: usize,
        candidates: &mut Vec<Candidate<'a>>,
    ) {
        for (at, rule) in self.rules.iter().enumerate() {
            let host = Some(&rule.spec.host);
            let bindings = self.listeners.iter().flat_map(|listener| &file_doors[*listener]);
            candidates.extend(bindings.map(|binding| Candidate {
                binding: *binding,
                pattern: host,
                written: host,
                target: first_target + at,
                attachment: first_attachment + at,
                listener: NONE,
            }));
        }
    }

    /// Notes which of these routes the maps have no room for.
    pub(super) fn note_left_out(&mut self, routes: &HashSet<&str>) {
        self.rules.iter_mut().for_each(|rule| rule.left_out = routes.contains(&*rule.label));
    }

    /// Returns the verdict on each Ingress that is served. Adds problems for those that do not have all they request.
    pub(super) fn verdicts(
        &self,
        bindings: &[Binding<'_>],
        problems: &mut Vec<Problem>,
    ) -> BTreeMap<ObjectName, IngressVerdict> {
        let mut verdicts = BTreeMap::new();
        for served in &self.all {
            let (first, rules) = (problems.len(), &self.rules[served.rules.clone()]);
            served.problems(rules, bindings, problems);
            let verdict = served.verdict(rules, bindings, &problems[first..]);
            verdicts.insert(served.spec.meta.name.clone(), verdict);
        }
        verdicts
    }
}

impl Served<'_> {
    fn problems(&self, rules: &[Rule<'_>], bindings: &[Binding<'_>], problems: &mut Vec<Problem>) {
        let object = ObjectRef { kind: Kind::Ingress, name: self.spec.meta.name.clone() };
        for rule in rules {
            let field = format!("spec.rules[{}]", rule.spec.at);
            if let Some(fault) = &rule.fault {
                let what = format!("{}; connections to {} are refused", fault.what, rule.spec.host);
                let problem =
                    Problem::warning(format!("{field}.http"), what, "write a Service and port that exist");
                problems.push(problem.object(object.clone()));
            }
            let Some(loss) = rule.losses.first() else { continue };
            let what = match loss.owner {
                Some(owner) => {
                    format!("{} on {} belongs to {owner}", rule.spec.host, bindings[loss.binding].at)
                }
                None => format!(
                    "{} is a name of the cluster's own API server, which no tenant may have",
                    rule.spec.host
                ),
            };
            let remedy = "choose another name, or remove it where it is";
            let problem = Problem::warning(format!("{field}.host"), what, remedy);
            problems.push(problem.value(&rule.spec.host).object(object.clone()));
        }
    }

    fn verdict(&self, rules: &[Rule<'_>], bindings: &[Binding<'_>], problems: &[Problem]) -> IngressVerdict {
        let (mut addresses, mut ports): (Vec<IpAddr>, Vec<u16>) = (Vec::new(), Vec::new());
        for binding in rules.iter().flat_map(|rule| &rule.bindings) {
            let at = bindings[*binding].at;
            addresses.push(at.ip());
            ports.push(at.port());
        }
        addresses.sort_unstable();
        addresses.dedup();
        ports.sort_unstable();
        ports.dedup();
        let programmable = if let Some(rule) = rules.iter().find(|rule| rule.left_out) {
            Programmable::No(no("Programmed", "NoResources", left_out(&rule.label)))
        } else if addresses.is_empty() {
            let what = problems.first().map_or("no rule can be served", |problem| &*problem.what);
            Programmable::No(no("Programmed", "Invalid", what))
        } else {
            Programmable::Yes
        };
        IngressVerdict { addresses, ports, programmable, writes_status: self.writes_status }
    }
}

/// Whether an Ingress is served, and if so, whether we write its status.
pub(crate) fn served(cluster: &Cluster, spec: &IngressSpec) -> Option<bool> {
    let class = spec.class.as_ref()?;
    if cluster.ingress.classes.contains(class) {
        return Some(true);
    }
    let Policy { ingress, .. } = &cluster.policy;
    let adopted = ingress.adopt.iter().find(|adopted| adopted.class == *class)?;
    (spec.is_passthrough || !adopted.is_annotated_only).then_some(adopted.writes_status)
}

/// Returns the Service and port that a rule leads to.
fn service(
    cluster: &Cluster,
    references: &References<'_>,
    ingress: &ObjectName,
    rule: &IngressRule,
) -> Result<crate::model::claim::ServicePortRef, Fault> {
    let port = match &rule.port {
        IngressPort::Number(number) => *number,
        IngressPort::Name(port) => {
            let name =
                ObjectName { namespace: Arc::clone(&ingress.namespace), name: Arc::clone(&rule.service) };
            let service = cluster.services.get(&name);
            let known = service.and_then(|service| service.ports.iter().find(|known| known.name == *port));
            match (service, known) {
                (Some(_), None) => {
                    let what = format!("Service {name} has no port {port}");
                    return Err(Fault { reason: "BackendNotFound", what });
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
    references.find(Kind::Ingress, &ingress.namespace, &reference)
}
