//! Services of class `vestibule.dev/lb`, and those that are adopted: one TCP binding for each address and port.

use super::bindings::{Bid, Binding, Whose, tls_only};
use super::precedence::Claimant;
use super::{label, left_out, no, no_room};
use crate::ipam::Assignment;
use crate::model::cluster::{LoadBalancerSpec, ServicePort, ServiceSpec};
use crate::model::verdict::{Programmable, ServiceVerdict};
use crate::model::{
    Affinity, Cluster, Kind, ObjectName, ObjectRef, Problem, Protocol, SourceRanges, TrafficPolicy,
};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::num::NonZeroU16;
use std::ops::Range;
use std::sync::Arc;

/// A TCP port of a Service of our class.
pub(super) struct Port<'a> {
    pub(super) name: &'a ObjectName,
    pub(super) service: &'a ServiceSpec,
    pub(super) port: &'a ServicePort,
    pub(super) label: Arc<str>,
    /// Indices of the bindings that it has.
    pub(super) bindings: Vec<usize>,
    /// Indices of the bindings that belong to other objects.
    pub(super) lost: Vec<usize>,
    /// Bindings that the maps have no room for.
    pub(super) full: Vec<SocketAddr>,
    /// Bindings that take TLS only.
    pub(super) tls_only: Vec<SocketAddr>,
    /// The maps have no room for its route.
    pub(super) left_out: bool,
}

impl<'a> Port<'a> {
    /// Returns whose connections it admits.
    pub(super) fn source_ranges(&self) -> Option<&'a SourceRanges> {
        self.service.load_balancer.as_deref()?.source_ranges.as_ref()
    }

    /// Returns which connections reach the same endpoint.
    pub(super) fn affinity(&self) -> Affinity {
        self.service.load_balancer.as_deref().map_or(Affinity::None, |own| own.affinity)
    }

    /// Returns which endpoints a node leads to.
    pub(super) fn traffic(&self) -> TrafficPolicy {
        self.service.load_balancer.as_deref().map_or(TrafficPolicy::Cluster, |own| own.traffic)
    }

    /// Returns where nodes say whether they lead to any of its endpoints.
    pub(super) fn health_port(&self) -> Option<NonZeroU16> {
        self.service.load_balancer.as_deref()?.health_port
    }

    pub(super) fn claimant(&self) -> Claimant<'a> {
        Claimant::object(Kind::Service, &self.service.meta)
    }
}

/// A Service of our class.
pub(super) struct Balancer<'a> {
    name: &'a ObjectName,
    spec: &'a LoadBalancerSpec,
    pub(super) service: &'a ServiceSpec,
    pub(super) addresses: &'a [IpAddr],
    /// Why it has not all addresses that it asks for.
    pub(super) refusal: Option<String>,
    /// Indices of its ports.
    pub(super) ports: Range<usize>,
}

impl<'a> Balancer<'a> {
    /// Returns its ports that are not served.
    pub(super) fn unserved(&self) -> impl Iterator<Item = &'a ServicePort> + use<'a> {
        self.service.ports.iter().filter(|port| !port.is_tcp)
    }

    pub(super) fn claimant(&self) -> Claimant<'a> {
        Claimant::object(Kind::Service, &self.service.meta)
    }
}

/// Returns what is said of a port that is not served.
pub(super) fn only_tcp(port: &ServicePort) -> String {
    format!("port {} is {}: only TCP is served", port.port, port.protocol)
}

/// All Services of our class.
#[derive(Default)]
pub(super) struct Balancers<'a> {
    pub(super) all: Vec<Balancer<'a>>,
    pub(super) ports: Vec<Port<'a>>,
}

impl<'a> Balancers<'a> {
    pub(super) fn new(cluster: &'a Cluster, assignment: &'a Assignment) -> Self {
        let mut this = Self::default();
        let mut buffer = String::new();
        for (name, service) in &cluster.services {
            let Some(spec) = service.load_balancer.as_deref() else { continue };
            let allocation = assignment.services.get(name);
            if allocation.is_some_and(|own| own.is_held) {
                continue;
            }
            let addresses = allocation.map_or(&[][..], |own| &own.addresses);
            let first = this.ports.len();
            let ports = service.ports.iter().filter(|port| port.is_tcp);
            this.ports.extend(ports.map(|port| {
                let label = label::service(&mut buffer, name, port.port);
                Port {
                    name,
                    service,
                    port,
                    label,
                    bindings: Vec::new(),
                    lost: Vec::new(),
                    full: Vec::new(),
                    tls_only: Vec::new(),
                    left_out: false,
                }
            }));
            let ports = first..this.ports.len();
            let refused = allocation.filter(|own| own.reason.is_some());
            let what = refused.and_then(|own| own.problem.as_ref()).map(|problem| &*problem.what);
            // Claims do not change with what is known of MetalLB from one look to the next.
            let refusal = what.map(|what| match &cluster.pools_closed {
                Some(closed) => what.replace(&*closed.why, "MetalLB may run"),
                None => what.to_owned(),
            });
            this.all.push(Balancer { name, spec, service, addresses, refusal, ports });
        }
        this
    }

    /// Adds what these Services ask for of addresses and ports.
    pub(super) fn bids(&self, bids: &mut Vec<Bid<'a>>) {
        for balancer in &self.all {
            let claimant = balancer.claimant();
            for place in balancer.ports.clone() {
                let port = self.ports[place].port.port;
                let at = balancer.addresses.iter().map(|address| SocketAddr::new(*address, port));
                let whose = Whose::ServicePort(place);
                bids.extend(at.map(|at| Bid { claimant, at, protocol: Protocol::Tcp, whose }));
            }
        }
    }

    /// Returns the verdict on each Service. Adds problems for those that do not have all they request.
    pub(super) fn verdicts(
        &self,
        assignment: &Assignment,
        bindings: &[Binding<'_>],
        problems: &mut Vec<Problem>,
    ) -> BTreeMap<ObjectName, ServiceVerdict> {
        let mut verdicts = BTreeMap::new();
        for balancer in &self.all {
            let first = problems.len();
            balancer.problems(assignment, &self.ports[balancer.ports.clone()], bindings, problems);
            let verdict = balancer.verdict(&self.ports[balancer.ports.clone()], bindings, &problems[first..]);
            verdicts.insert(balancer.name.clone(), verdict);
        }
        verdicts
    }
}

impl Balancer<'_> {
    fn problems(
        &self,
        assignment: &Assignment,
        ports: &[Port<'_>],
        bindings: &[Binding<'_>],
        problems: &mut Vec<Problem>,
    ) {
        let mut tell = |problem: Problem| {
            problems.push(problem.object(ObjectRef { kind: Kind::Service, name: self.name.clone() }));
        };
        if let Some(problem) = assignment.services.get(self.name).and_then(|own| own.problem.clone()) {
            tell(problem);
        }
        for family in self.families_without_a_range() {
            let what = format!("has no {family} range: nobody may connect to its {family} address");
            let remedy = "add ranges of both families, such as 0.0.0.0/0 and ::/0";
            tell(Problem::warning("spec.loadBalancerSourceRanges", what, remedy));
        }
        for (at, port) in self.service.ports.iter().enumerate().filter(|(_, port)| !port.is_tcp) {
            let field = format!("spec.ports[{at}].protocol");
            let remedy = "remove the port, or serve it by other means";
            tell(Problem::warning(field, only_tcp(port), remedy).value(&port.protocol));
        }
        for port in ports.iter().filter(|port| !port.lost.is_empty()) {
            let told = port.lost.iter().map(|binding| {
                let binding = &bindings[*binding];
                format!("{} belongs to {}", binding.at, binding.owner)
            });
            let what = told.collect::<Vec<_>>().join("; ");
            let problem = Problem::warning("spec.ports", what, "choose another port or address");
            tell(problem.value(port.port.port));
        }
        for port in ports {
            if let Some(at) = port.tls_only.first() {
                let remedy = "choose another port or address, or take the port out of addresses.tlsPorts";
                tell(Problem::warning("spec.ports", tls_only(*at), remedy).value(port.port.port));
            }
            let Some(what) = no_room(&port.full) else { continue };
            tell(Problem::warning("spec.ports", what, "delete what is not needed").value(port.port.port));
        }
    }

    /// Returns the families of its addresses of which its source ranges have none, though they have some of the other.
    fn families_without_a_range(&self) -> impl Iterator<Item = &'static str> {
        let ranges = self.spec.source_ranges.as_ref().map_or(&[][..], |ranges| ranges.ranges());
        let has_none = |is_v4: bool| {
            let is_of = |range: &IpNet| matches!(range, IpNet::V4(_)) == is_v4;
            !ranges.is_empty()
                && !ranges.iter().any(is_of)
                && self.addresses.iter().any(|address| address.is_ipv4() == is_v4)
        };
        [(true, "IPv4"), (false, "IPv6")]
            .into_iter()
            .filter(move |(is_v4, _)| has_none(*is_v4))
            .map(|(_, name)| name)
    }

    fn verdict(&self, ports: &[Port<'_>], bindings: &[Binding<'_>], problems: &[Problem]) -> ServiceVerdict {
        let is_served = |address: &&IpAddr| {
            ports
                .iter()
                .any(|port| port.bindings.iter().any(|binding| bindings[*binding].at.ip() == **address))
        };
        let addresses: Vec<IpAddr> = self.addresses.iter().filter(is_served).copied().collect();
        let served = ports.iter().filter(|port| !port.bindings.is_empty());
        let programmable = if let Some(what) = ports.iter().find_map(|port| no_room(&port.full)) {
            Programmable::No(no("Programmed", "NoResources", what))
        } else if let Some(port) = ports.iter().find(|port| port.left_out) {
            Programmable::No(no("Programmed", "NoResources", left_out(&port.label)))
        } else if addresses.is_empty() {
            let is_any = |of: fn(&Port<'_>) -> bool| ports.iter().any(of);
            let reason = if is_any(|port| !port.lost.is_empty()) {
                "OwnedByOther"
            } else if is_any(|port| !port.tls_only.is_empty()) {
                "Reserved"
            } else {
                "Invalid"
            };
            let what = problems.first().map_or("the Service has no ports", |problem| &*problem.what);
            Programmable::No(no("Programmed", reason, what))
        } else {
            Programmable::Yes
        };
        ServiceVerdict { addresses, ports: served.map(|port| port.port.port).collect(), programmable }
    }
}
