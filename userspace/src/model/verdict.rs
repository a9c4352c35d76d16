//! The verdict on each Kubernetes object: the content of its status.

use super::cluster::{GroupKind, ParentRef};
use super::kind::Kind;
use super::object::{ObjectName, ObjectRef};
use super::opaque::Opaque;
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// One condition; `observedGeneration` is the verdict's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// `type`.
    pub kind: &'static str,
    /// `status`.
    pub status: Status,
    /// `reason`, of the Gateway API where it has one.
    pub reason: &'static str,
    /// `message`: for people; names the object, the field and the remedy where it is bad news.
    pub message: String,
}

/// A condition's status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Status {
    /// `True`
    True,
    /// `False`
    False,
    /// `Unknown`
    Unknown,
}

/// Whether an object must be in the maps of all nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Programmable {
    /// Yes: `Programmed` is True once every node holds its claims.
    Yes,
    /// No, and why: `Programmed` is this False condition.
    No(Condition),
}

/// What becomes of every object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdicts {
    /// GatewayClasses of our controller name.
    pub classes: BTreeMap<Arc<str>, ClassVerdict>,
    /// Gateways of our classes.
    pub gateways: BTreeMap<ObjectName, GatewayVerdict>,
    /// ListenerSets whose parent is a Gateway of ours.
    pub listener_sets: BTreeMap<ObjectName, ListenerSetVerdict>,
    /// Routes with at least one parent of ours.
    pub tls_routes: BTreeMap<ObjectName, RouteVerdict>,
    /// Routes with at least one parent of ours.
    pub tcp_routes: BTreeMap<ObjectName, RouteVerdict>,
    /// Services of our class.
    pub services: BTreeMap<ObjectName, ServiceVerdict>,
    /// Objects that the origins of the table serve.
    pub origins: BTreeMap<ObjectRef, OriginVerdict>,
}

impl Verdicts {
    /// Whether there is a verdict on an object: whether it is ours.
    pub fn contains(&self, object: &ObjectRef) -> bool {
        let name = &object.name;
        match object.kind {
            Kind::Gateway => self.gateways.contains_key(name),
            Kind::GatewayClass => self.classes.contains_key(&name.name),
            // Whose they are, the chart says.
            Kind::IpAddressPool | Kind::L2Advertisement => false,
            Kind::ConfigurationState | Kind::ServiceL2Status => false,
            Kind::ListenerSet => self.listener_sets.contains_key(name),
            Kind::Service => self.services.contains_key(name),
            Kind::TcpRoute => self.tcp_routes.contains_key(name),
            Kind::TlsRoute => self.tls_routes.contains_key(name),
            Kind::Origin(_) => self.origins.contains_key(object),
        }
    }
}

/// A GatewayClass.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClassVerdict {
    /// `metadata.generation` that was judged.
    pub generation: i64,
    /// Accepted, SupportedVersion.
    pub conditions: Vec<Condition>,
}

/// A Gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayVerdict {
    /// `metadata.generation` that was judged.
    pub generation: i64,
    /// The addresses for its status, in order.
    pub addresses: Vec<IpAddr>,
    /// Accepted, ResolvedRefs and whatever else is not Programmed.
    pub conditions: Vec<Condition>,
    /// Programmed.
    pub programmable: Programmable,
    /// By listener, in order.
    pub listeners: Vec<ListenerVerdict>,
    /// `status.attachedListenerSets`.
    pub attached_listener_sets: u32,
}

/// A ListenerSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerSetVerdict {
    /// `metadata.generation` that was judged.
    pub generation: i64,
    /// Accepted and whatever else is not Programmed.
    pub conditions: Vec<Condition>,
    /// Programmed.
    pub programmable: Programmable,
    /// By listener, in order.
    pub listeners: Vec<ListenerVerdict>,
}

/// A listener of a Gateway or ListenerSet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ListenerVerdict {
    /// As in the object.
    pub name: Arc<str>,
    /// `supportedKinds`.
    pub supported_kinds: Vec<GroupKind>,
    /// `attachedRoutes`.
    pub attached_routes: u32,
    /// Accepted, Conflicted, ResolvedRefs.
    pub conditions: Vec<Condition>,
    /// Programmed: `None` = as its object; a False condition = never.
    pub unprogrammable: Option<Condition>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteVerdict {
    /// `metadata.generation` that was judged.
    pub generation: i64,
    /// One for each parentRef to an object of ours, in order.
    pub parents: Vec<ParentVerdict>,
}

impl RouteVerdict {
    /// Whether one of its parents accepts it.
    pub fn is_accepted(&self) -> bool {
        self.parents.iter().any(ParentVerdict::is_accepted)
    }
}

impl ParentVerdict {
    /// Whether the parent accepts the route.
    pub fn is_accepted(&self) -> bool {
        self.conditions.iter().any(|one| one.kind == "Accepted" && one.status == Status::True)
    }
}

/// What a route is to one of its parents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParentVerdict {
    /// As written.
    pub parent: ParentRef,
    /// Accepted, ResolvedRefs, `vestibule.dev/Owned` where something is not owned, PartiallyInvalid.
    pub conditions: Vec<Condition>,
}

/// A Service of our class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceVerdict {
    /// The addresses for `status.loadBalancer.ingress` once programmed, in order.
    pub addresses: Vec<IpAddr>,
    /// Served ports, for `ingress[].ports`.
    pub ports: Vec<u16>,
    /// Ingress appears once every node holds its claims; never with `No`.
    pub programmable: Programmable,
}

/// An object that an origin of the table serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginVerdict {
    /// `metadata.generation` that was judged; 0: its status names none.
    pub generation: i64,
    /// The addresses where it has something, in order.
    pub addresses: Vec<IpAddr>,
    /// The ports, in order.
    pub ports: Vec<u16>,
    /// Whether all nodes must hold it.
    pub programmable: Programmable,
    /// The rest, of a type of its origin.
    pub says: Opaque,
}
