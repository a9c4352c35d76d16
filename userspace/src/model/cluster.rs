//! What Kubernetes objects say, folded to what decisions need. Values are checked by the source: what it could not read
//! is left out and reported as a [`Problem`].

use super::advertisement::{Announcing, AnnouncingPolicy};
use super::kind::Kind;
pub use super::labels::{LabelSelector, Labels, Operator, Requirement};
use super::name::Pattern;
use super::object::{Meta, ObjectName, ObjectRef};
use super::opaque::Opaques;
use super::origin_objects::OriginObjects;
pub use super::pool::{AddressRange, PoolPolicy, PoolScope, PoolSpec, PoolWish, PoolsClosed, Ranges};
use super::possession::Possession;
use super::problem::Problem;
pub use super::service::{
    ClassPolicy, Endpoint, EndpointState, FamilyWish, LoadBalancerSpec, PoolNote, ProbeKind, ProbeSpec,
    ServicePort, ServiceSpec,
};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// Everything that the under cluster says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cluster {
    /// What the chart allows and presets.
    pub policy: Policy,
    /// GatewayClasses of our controller name, by name.
    pub classes: BTreeMap<Arc<str>, Arc<ClassSpec>>,
    /// All Gateways, those of other classes too.
    pub gateways: BTreeMap<ObjectName, Arc<GatewaySpec>>,
    /// All ListenerSets.
    pub listener_sets: BTreeMap<ObjectName, Arc<ListenerSetSpec>>,
    /// All TLSRoutes.
    pub tls_routes: BTreeMap<ObjectName, Arc<ClusterRoute>>,
    /// All TCPRoutes.
    pub tcp_routes: BTreeMap<ObjectName, Arc<ClusterRoute>>,
    /// Objects that the origins of the table read.
    pub origins: OriginObjects,
    /// What is known of namespaces.
    pub namespaces: Namespaces,
    /// All Services.
    pub services: BTreeMap<ObjectName, Arc<ServiceSpec>>,
    /// Endpoints by Service, of all its slices together.
    pub endpoints: BTreeMap<ObjectName, Arc<[Endpoint]>>,
    /// What decides about announcing.
    pub announcing: Announcing,
    /// IPAddressPools of MetalLB.
    pub pools: BTreeMap<ObjectName, Arc<PoolSpec>>,
    /// Why nobody gets an address of those pools that he does not have; `None`: everybody may.
    pub pools_closed: Option<PoolsClosed>,
    /// Which addresses nobody gets for now.
    pub address_hold: AddressHold,
    /// What Claims granted before.
    pub possession: Possession,
    /// What could not be read, by object.
    pub problems: Vec<Problem>,
}

/// Which addresses nobody gets while it is not all known who has which. What Claims say that an object has, it keeps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressHold {
    /// None: all is known.
    #[default]
    Nothing,
    /// MetalLB's pools are not: all but those of the chart's ranges that are asked for by value.
    Pools,
    /// All.
    All,
}

impl Cluster {
    /// What every object of a kind has.
    pub fn metas(&self, kind: Kind) -> Box<dyn Iterator<Item = &Meta> + '_> {
        match kind {
            Kind::ConfigurationState => {
                Box::new(self.announcing.reports.configurations.values().map(|meta| &**meta))
            }
            Kind::Gateway => Box::new(self.gateways.values().map(|one| &one.meta)),
            Kind::GatewayClass => Box::new(self.classes.values().map(|one| &one.meta)),
            Kind::IpAddressPool => Box::new(self.pools.values().map(|one| &one.meta)),
            Kind::L2Advertisement => Box::new(self.announcing.advertisements.values().map(|one| &one.meta)),
            Kind::ListenerSet => Box::new(self.listener_sets.values().map(|one| &one.meta)),
            Kind::Service => Box::new(self.services.values().map(|one| &one.meta)),
            Kind::ServiceL2Status => {
                Box::new(self.announcing.reports.l2_statuses.values().map(|meta| &**meta))
            }
            Kind::TcpRoute => Box::new(self.tcp_routes.values().map(|one| &one.meta)),
            Kind::TlsRoute => Box::new(self.tls_routes.values().map(|one| &one.meta)),
            Kind::Origin(row) => Box::new(self.origins.of(row.resource).map(|(_, one)| &one.meta)),
        }
    }

    /// What an object has; `None`: it is not there.
    pub fn meta(&self, object: &ObjectRef) -> Option<&Meta> {
        let name = &object.name;
        Some(match object.kind {
            Kind::ConfigurationState => self.announcing.reports.configurations.get(name)?,
            Kind::Gateway => &self.gateways.get(name)?.meta,
            Kind::GatewayClass => &self.classes.get(&name.name)?.meta,
            Kind::IpAddressPool => &self.pools.get(name)?.meta,
            Kind::L2Advertisement => &self.announcing.advertisements.get(name)?.meta,
            Kind::ListenerSet => &self.listener_sets.get(name)?.meta,
            Kind::Service => &self.services.get(name)?.meta,
            Kind::ServiceL2Status => self.announcing.reports.l2_statuses.get(name)?,
            Kind::TcpRoute => &self.tcp_routes.get(name)?.meta,
            Kind::TlsRoute => &self.tls_routes.get(name)?.meta,
            Kind::Origin(row) => &self.origins.get(row.resource, name)?.meta,
        })
    }
}

/// What is known of namespaces.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Namespaces {
    /// Labels of each namespace, by its name.
    pub labels: BTreeMap<Arc<str>, Arc<Labels>>,
    /// All ReferenceGrants: what a namespace lets others refer to.
    pub grants: BTreeMap<ObjectName, Arc<GrantSpec>>,
}

/// What the chart allows and presets.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    /// Where addresses may come from, first to last, both ends included; one family a range.
    pub ranges: Vec<AddressRange>,
    /// Addresses that several namespaces may share.
    pub shared: BTreeSet<IpAddr>,
    /// Ports of those that take TLS only: one TCP listener would close them to everybody else.
    pub tls_ports: BTreeSet<u16>,
    /// Never usable: ranges of nodes, pods and Services.
    pub excluded: Vec<IpNet>,
    /// Probe of every backend Service without annotation.
    pub probe: Option<ProbeSpec>,
    /// What a Service's annotation does not say, whether or not Services without annotation are probed.
    pub probe_defaults: ProbeSpec,
    /// Percentage of a Service's backends that may be taken out of new picks; when more fail, none is.
    pub panic_percent: u8,
    /// What it says to the origins of the table; one that nothing is said to is not served.
    pub origins: Opaques,
    /// Which pools of MetalLB are read.
    pub pools: PoolPolicy,
    /// Which Services are ours besides those of our own class.
    pub load_balancers: ClassPolicy,
    /// What of it is announced.
    pub announcing: AnnouncingPolicy,
}

impl Policy {
    /// Whether anything may be announced.
    pub fn announces(&self) -> bool {
        self.announcing.own_ranges || self.pools.is_on()
    }
}

/// A GatewayClass of ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassSpec {
    /// Cluster-scoped.
    pub meta: Meta,
    /// Whether `spec.parametersRef` is set, which we refuse.
    pub has_parameters: bool,
    /// `metadata.finalizers`, in order.
    pub finalizers: Vec<Arc<str>>,
    /// Whether it is being deleted, and waits for its finalizers.
    pub is_terminating: bool,
}

/// A Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GatewaySpec {
    /// Name, age, generation.
    pub meta: Meta,
    /// `spec.gatewayClassName`.
    pub class: Arc<str>,
    /// `spec.listeners`, in order.
    pub listeners: Vec<GatewayListener>,
    /// `spec.addresses`, in order.
    pub addresses: Vec<AddressRequest>,
    /// Whether `spec.infrastructure.parametersRef` is set, which we refuse.
    pub has_parameters: bool,
    /// `spec.allowedListeners.namespaces`.
    pub allowed_listeners: NamespaceScope,
    /// `status.addresses` of type IPAddress: what the controller has given it.
    pub given: Vec<IpAddr>,
    /// Where its addresses come from.
    pub from: PoolWish,
}

/// An entry of a Gateway's `spec.addresses`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AddressRequest {
    /// `type`; `IPAddress` where it is not written.
    pub kind: Arc<str>,
    /// `value`; `None`: any address of this type.
    pub value: Option<Arc<str>>,
}

/// A ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ListenerSetSpec {
    /// Name, age, generation.
    pub meta: Meta,
    /// `spec.parentRef`.
    pub parent: ParentRef,
    /// `spec.listeners`, in order.
    pub listeners: Vec<GatewayListener>,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayListener {
    /// Unique in its object.
    pub name: Arc<str>,
    /// `hostname`; `None`: any name.
    pub hostname: Option<Pattern>,
    /// Not 0.
    pub port: u16,
    /// `protocol` as written: `TLS`, `TCP`, `HTTP` ...
    pub protocol: Arc<str>,
    /// `tls.mode` as written; `None`: no `tls` at all. `Terminate` where `tls` has no mode.
    pub tls_mode: Option<Arc<str>>,
    /// `allowedRoutes.namespaces`; Same where it is not written.
    pub namespaces: NamespaceScope,
    /// `allowedRoutes.kinds`; empty: the protocol's own.
    pub kinds: Vec<GroupKind>,
}

/// Which namespaces may attach.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NamespaceScope {
    /// Every namespace.
    All,
    /// The object's own.
    #[default]
    Same,
    /// Those whose labels match.
    Selector(LabelSelector),
    /// None.
    None,
}

impl NamespaceScope {
    /// Whether one that is written in namespace `own` takes objects of namespace `other`, which has these labels.
    pub fn allows(&self, own: &str, other: &str, labels: Option<&Arc<Labels>>) -> bool {
        match self {
            Self::All => true,
            Self::Same => own == other,
            Self::Selector(selector) => labels.is_some_and(|labels| selector.matches(labels)),
            Self::None => false,
        }
    }
}

/// API group and kind.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GroupKind {
    /// Empty: core.
    pub group: Arc<str>,
    /// As in `kind:`.
    pub kind: Arc<str>,
}

/// `parentRef` as written: what is `None` was not written and stays so in status.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ParentRef {
    /// Default `gateway.networking.k8s.io`.
    pub group: Option<Arc<str>>,
    /// Default `Gateway`.
    pub kind: Option<Arc<str>>,
    /// Default the object's own namespace.
    pub namespace: Option<Arc<str>>,
    /// Of the parent.
    pub name: Arc<str>,
    /// Name of one listener; `None`: all.
    pub section: Option<Arc<str>>,
    /// Listeners of this port; `None`: all.
    pub port: Option<u16>,
}

/// A TLSRoute or TCPRoute.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClusterRoute {
    /// Name, age, generation.
    pub meta: Meta,
    /// `spec.parentRefs`, in order.
    pub parents: Vec<ParentRef>,
    /// `spec.hostnames`, valid ones, in order; none on a TCPRoute.
    pub hostnames: Vec<Pattern>,
    /// `spec.hostnames` had entries (all of them may have been unreadable: such a route matches nothing).
    pub has_hostnames: bool,
    /// `spec.rules[].backendRefs`, in order.
    pub rules: Vec<Vec<BackendRef>>,
}

/// `backendRef` as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackendRef {
    /// Empty: core.
    pub group: Arc<str>,
    /// Default `Service`.
    pub kind: Arc<str>,
    /// Default the route's own namespace.
    pub namespace: Option<Arc<str>>,
    /// Of the Service.
    pub name: Arc<str>,
    /// Port of the Service; `None`: not written, which a Service needs.
    pub port: Option<u16>,
    /// Share of new connections; default 1.
    pub weight: u32,
}

/// A ReferenceGrant: objects of other namespaces may refer to objects of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GrantSpec {
    /// Who: kind and namespace.
    pub from: Vec<(GroupKind, Arc<str>)>,
    /// To what: kind and name; `None`: all of the kind.
    pub to: Vec<(GroupKind, Option<Arc<str>>)>,
}
