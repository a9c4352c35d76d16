//! Services, as far as they matter: ports, addresses, endpoints.

use super::object::Meta;
use super::pool::PoolWish;
use super::source_ranges::SourceRanges;
use std::net::IpAddr;
use std::num::NonZeroU16;
use std::sync::Arc;

/// A Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceSpec {
    /// Name and age.
    pub meta: Meta,
    /// `spec.ports`, in order.
    pub ports: Vec<ServicePort>,
    /// `spec.type` is ExternalName: it has no endpoints.
    pub is_external_name: bool,
    /// What its annotations say of the pool of its addresses.
    pub noted: PoolNote,
    /// What makes it one of ours; `None`: another's or no load balancer.
    pub load_balancer: Option<Arc<LoadBalancerSpec>>,
    /// Annotation `vestibule.dev/probe`, read: `Some(None)` switches probes off; `None`: the chart's probe.
    pub probe: Option<Option<ProbeSpec>>,
}

/// The pool that a Service's addresses are of, as its annotations say. MetalLB writes them, and so do we.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolNote {
    /// `metallb.io/ip-allocated-from-pool`.
    pub pool: Option<Arc<str>>,
    /// Whether there is one with MetalLB's old prefix.
    pub has_old: bool,
}

impl PoolNote {
    /// The annotation.
    pub const KEY: &str = "metallb.io/ip-allocated-from-pool";
    /// That of MetalLB's first releases, which it removes.
    pub const OLD_KEY: &str = "metallb.universe.tf/ip-allocated-from-pool";
}

/// A port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServicePort {
    /// Name, empty where there is one port without name; what slices call it.
    pub name: Arc<str>,
    /// Where clients of the Service dial.
    pub port: u16,
    /// Whether it is TCP.
    pub is_tcp: bool,
    /// `protocol` as written.
    pub protocol: Arc<str>,
}

/// `spec.loadBalancerClass` of Services that are ours, and nobody else's.
pub const OWN_CLASS: &str = "vestibule.dev/lb";

/// Which Services of type LoadBalancer are ours besides those of [`OWN_CLASS`]. MetalLB may serve them, too.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassPolicy {
    /// Those of these classes.
    pub others: Vec<Arc<str>>,
    /// Those without a class.
    pub is_default: bool,
}

impl ClassPolicy {
    /// Whether any is.
    pub fn adopts_any(&self) -> bool {
        self.is_default || !self.others.is_empty()
    }

    /// Whether those of a class are, `None` being without one.
    pub fn adopts(&self, class: Option<&str>) -> bool {
        class.map_or(self.is_default, |class| self.others.iter().any(|other| **other == *class))
    }
}

/// A Service of type LoadBalancer that is ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancerSpec {
    /// Addresses asked for, as far as readable, in order.
    pub addresses: Vec<IpAddr>,
    /// Where they are asked for: `metadata.annotations[...]` or `spec.loadBalancerIP`; empty: nowhere.
    pub field: Arc<str>,
    /// What it asks for there and cannot be read, as written.
    pub unreadable: Vec<Arc<str>>,
    /// Addresses in `status.loadBalancer.ingress`: a copy of what it was granted.
    pub given: Vec<IpAddr>,
    /// Those of them whose entry we did not write.
    pub given_by_others: Vec<IpAddr>,
    /// Whether its class is another one that is ours, too, or none: what its status has may be of MetalLB.
    pub is_adopted: bool,
    /// A host name in its status: we write none.
    pub foreign: Option<Arc<str>>,
    /// Its annotations of MetalLB's old prefix, in order.
    pub deprecated: Vec<Arc<str>>,
    /// Families of which it wants an address each where it asks for none, the primary first; empty: any one.
    pub families: Vec<FamilyWish>,
    /// Where its addresses come from.
    pub from: PoolWish,
    /// Annotation `metallb.io/allow-shared-ip`: Services of its namespace that say the same may have the same address.
    pub sharing_key: Option<Arc<str>>,
    /// `spec.selector` as text if `externalTrafficPolicy` is `Local`; else empty.
    pub local_pods: Arc<str>,
    /// `spec.loadBalancerIP`, if an annotation asks for addresses, too.
    pub also_asked: Option<Arc<str>>,
    /// `spec.loadBalancerSourceRanges`, or else its annotation: whose connections are admitted; `None`: anybody's.
    pub source_ranges: Option<SourceRanges>,
    /// `spec.sessionAffinity`: which connections reach the same endpoint.
    pub affinity: Affinity,
    /// `spec.externalTrafficPolicy`: which endpoints a node leads to.
    pub traffic: TrafficPolicy,
    /// `spec.healthCheckNodePort`, if `externalTrafficPolicy` is `Local`: where nodes say whether they lead to any.
    pub health_port: Option<NonZeroU16>,
}

/// Which backends a node leads connections to, and whose address these see.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TrafficPolicy {
    /// All of them. They see an address of the node.
    #[default]
    Cluster,
    /// Those on the node itself. They see the client's address.
    Local,
}

impl LoadBalancerSpec {
    /// Returns by what it may share its addresses: the key, and its pods where connections reach only those of a node. `None`: it may
    /// not.
    pub fn shares_by(&self) -> Option<(&str, &str)> {
        Some((self.sharing_key.as_deref()?, &self.local_pods))
    }
}

/// Which connections reach the same backend, while the backends stay the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Affinity {
    /// Those of one address and port.
    #[default]
    None,
    /// All of one address.
    ClientIp,
}

/// An address of a family that a Service wants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FamilyWish {
    /// IPv4, or else IPv6.
    pub is_v4: bool,
    /// Whether it is incomplete without.
    pub is_required: bool,
}

/// One endpoint of a Service at one of its ports.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Endpoint {
    /// Name of the Service's port.
    pub port_name: Arc<str>,
    /// Unicast, not loopback.
    pub address: IpAddr,
    /// Not 0.
    pub port: u16,
    /// What new connections may do with it.
    pub state: EndpointState,
    /// `hints.forZones`; empty: no hint.
    pub zones: Arc<[Arc<str>]>,
    /// `nodeName`: the node that it is on; `None`: it is on none, or nobody says on which.
    pub node: Option<Arc<str>>,
}

/// What new connections may do with an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum EndpointState {
    /// Ready: it takes new connections.
    Ready,
    /// Serving and terminating: it takes new connections only where no other is ready.
    Draining,
    /// In a slice but not serving: no new connection; those it has go on.
    NotReady,
    /// In no slice any more, for less than a second: as `NotReady`.
    Departed,
}

/// How a backend is asked whether it lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ProbeSpec {
    /// What is asked.
    pub kind: ProbeKind,
    /// From one probe to the next.
    pub interval_ms: u32,
    /// No answer within this is a failure.
    pub timeout_ms: u32,
    /// Failures in a row that make a backend failing.
    pub failures: u8,
    /// Successes in a row that make it good again.
    pub successes: u8,
}

impl Default for ProbeSpec {
    fn default() -> Self {
        Self { kind: ProbeKind::Tcp, interval_ms: 5000, timeout_ms: 1000, failures: 3, successes: 2 }
    }
}

/// What a probe asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ProbeKind {
    /// A TCP connection is accepted.
    Tcp,
    /// A ClientHello gets a TLS record.
    Tls,
}
