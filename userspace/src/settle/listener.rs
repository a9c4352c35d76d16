//! Our Gateways and ListenerSets with their listeners: what may be served, what is refused, and why.

use super::precedence::Claimant;
use crate::ipam::{self, ADDRESS_TYPE, Assignment};
use crate::model::cluster::{GatewayListener, GatewaySpec, GroupKind, ListenerSetSpec, ParentRef};
use crate::model::kind::GATEWAY_GROUP;
use crate::model::{Cluster, Kind, Meta, ObjectName, Pattern, Protocol};
use foldhash::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;

/// Why something is not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refusal {
    /// The reason of the condition.
    pub(super) reason: &'static str,
    /// The message for people.
    pub(super) message: String,
}

impl Refusal {
    pub(super) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// One of our Gateways or ListenerSets.
pub(super) struct Parent<'a> {
    pub(super) claimant: Claimant<'a>,
    pub(super) kind: Kind,
    pub(super) name: &'a ObjectName,
    pub(super) generation: i64,
    pub(super) meta: &'a Meta,
    /// Index of the Gateway: its own index, or that of the ListenerSet's parent.
    pub(super) gateway: usize,
    /// Why nothing of it is served.
    pub(super) refusal: Option<Refusal>,
    /// Indices of its listeners.
    pub(super) listeners: Range<usize>,
    /// The Gateway's addresses that are in status and still belong to it.
    pub(super) addresses: Vec<IpAddr>,
    /// The message about a route of this object that the maps have no room for.
    pub(super) left_out: Option<String>,
}

/// A listener of a Gateway or ListenerSet.
pub(super) struct Listener<'a> {
    pub(super) spec: &'a GatewayListener,
    /// Index of the Gateway or ListenerSet that it belongs to.
    pub(super) parent: usize,
    /// `None`: a protocol or mode that we do not serve.
    pub(super) protocol: Option<Protocol>,
    /// The kind of route that may attach.
    pub(super) kind: Option<Kind>,
    /// Why it is not accepted, besides conflicts.
    pub(super) refusal: Option<Refusal>,
    /// The conflict with another listener of the same Gateway.
    pub(super) conflict: Option<Refusal>,
    /// The kinds in its `allowedRoutes` that it cannot have.
    pub(super) invalid_kinds: Vec<String>,
    /// Indices of the bindings that it has.
    pub(super) bindings: Vec<usize>,
    /// Indices of the bindings that belong to other objects.
    pub(super) lost: Vec<usize>,
    /// Bindings that the maps have no room for.
    pub(super) full: Vec<SocketAddr>,
    /// Bindings that take TLS only.
    pub(super) tls_only: Vec<SocketAddr>,
    pub(super) attached_routes: u32,
    /// The last route that was counted in `attached_routes`, plus one.
    pub(super) counted: usize,
}

impl Listener<'_> {
    pub(super) fn is_accepted(&self) -> bool {
        self.refusal.is_none() && self.conflict.is_none()
    }

    /// Whether it can serve routes of any kind.
    pub(super) fn is_served(&self) -> bool {
        self.is_accepted() && self.kind.is_some()
    }
}

/// All objects that routes may attach to.
pub(super) struct Parents<'a> {
    pub(super) all: Vec<Parent<'a>>,
    pub(super) listeners: Vec<Listener<'a>>,
    index: HashMap<(Kind, &'a str, &'a str), usize>,
}

/// The protocol and hostnames on one port that accepted listeners of a Gateway and its ListenerSets have
/// taken.
struct Taken<'a> {
    protocol: Protocol,
    hostnames: HashSet<Option<&'a Pattern>>,
}

impl Taken<'_> {
    fn conflict(&self, protocol: Protocol, spec: &GatewayListener) -> Option<Refusal> {
        if self.protocol != protocol {
            return Some(conflict("ProtocolConflict", spec));
        }
        self.hostnames.contains(&spec.hostname.as_ref()).then(|| conflict(same_reason(protocol), spec))
    }
}

type Ports<'a> = HashMap<(usize, u16), Taken<'a>>;

impl<'a> Parents<'a> {
    pub(super) fn new(cluster: &'a Cluster, assignment: &Assignment) -> Self {
        let mut this = Self { all: Vec::new(), listeners: Vec::new(), index: HashMap::default() };
        let mut ports = Ports::default();
        for (name, gateway) in &cluster.gateways {
            if cluster.classes.contains_key(&gateway.class) {
                this.gateway(cluster, assignment, name, gateway, &mut ports);
            }
        }
        let mut sets: Vec<_> = cluster.listener_sets.iter().collect();
        sets.sort_by_key(|(name, set)| (set.meta.created_secs, *name));
        for (name, set) in sets {
            this.listener_set(cluster, name, set, &mut ports);
        }
        this
    }

    /// Returns the index of a Gateway or ListenerSet.
    pub(super) fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<usize> {
        // The key type has its own lifetime, so a lookup with shorter lifetimes is fine.
        let index: &HashMap<(Kind, &str, &str), usize> = &self.index;
        index.get(&(kind, namespace, name)).copied()
    }

    /// Returns the index of the Gateway that a listener belongs to.
    pub(super) fn gateway_of(&self, listener: usize) -> usize {
        self.all[self.listeners[listener].parent].gateway
    }

    fn gateway(
        &mut self,
        cluster: &'a Cluster,
        assignment: &Assignment,
        name: &'a ObjectName,
        gateway: &'a GatewaySpec,
        ports: &mut Ports<'a>,
    ) {
        let place = self.all.len();
        let own = assignment.gateways.get(name).map_or(&[][..], |own| &own.addresses);
        let mut addresses: Vec<IpAddr> = Vec::with_capacity(own.len());
        addresses.extend(own.iter().filter(|address| gateway.given.contains(address)));
        let mut refusal = refusal(cluster, gateway);
        let listeners = self.judge(place, place, &gateway.listeners, ports);
        let own = &self.listeners[listeners.clone()];
        if refusal.is_none() && !own.is_empty() && !own.iter().any(Listener::is_accepted) {
            refusal = Some(Refusal::new("ListenersNotValid", invalid_listeners(own)));
        }
        self.index.insert((Kind::Gateway, &*name.namespace, &*name.name), place);
        self.all.push(Parent {
            claimant: Claimant::object(Kind::Gateway, &gateway.meta),
            kind: Kind::Gateway,
            name,
            generation: gateway.meta.generation,
            meta: &gateway.meta,
            gateway: place,
            refusal,
            listeners,
            addresses,
            left_out: None,
        });
    }

    /// Adds a ListenerSet. Skips it if its parent is not one of our Gateways: then it is not ours to judge.
    fn listener_set(
        &mut self,
        cluster: &'a Cluster,
        name: &'a ObjectName,
        set: &'a ListenerSetSpec,
        ports: &mut Ports<'a>,
    ) {
        if parent_kind(&set.parent) != Some(Kind::Gateway) {
            return;
        }
        let namespace = set.parent.namespace.as_ref().unwrap_or(&name.namespace);
        let Some(gateway) = self.find(Kind::Gateway, namespace, &set.parent.name) else { return };
        let parent = &self.all[gateway];
        let allowed = cluster.gateways.get(parent.name).is_some_and(|spec| {
            let labels = cluster.namespaces.labels.get(&name.namespace);
            spec.allowed_listeners.allows(&parent.name.namespace, &name.namespace, labels)
        });
        let mut refusal = if !allowed {
            let what = format!(
                "spec.allowedListeners of Gateway {} does not allow ListenerSets of namespace {}",
                parent.name, name.namespace
            );
            Some(Refusal::new("NotAllowed", what))
        } else {
            let accepted = parent.refusal.is_none();
            (!accepted).then(|| {
                Refusal::new("ParentNotAccepted", format!("Gateway {} is not accepted", parent.name))
            })
        };
        let place = self.all.len();
        // Listeners of a refused ListenerSet conflict with no listeners of other objects.
        let mut nobody = Ports::default();
        let ports = if refusal.is_none() { ports } else { &mut nobody };
        let listeners = self.judge(place, gateway, &set.listeners, ports);
        let own = &self.listeners[listeners.clone()];
        if refusal.is_none() && !own.iter().any(|l| l.is_accepted()) {
            refusal = Some(Refusal::new("ListenersNotValid", invalid_listeners(own)));
        }
        self.index.insert((Kind::ListenerSet, &*name.namespace, &*name.name), place);
        self.all.push(Parent {
            claimant: Claimant::object(Kind::ListenerSet, &set.meta),
            kind: Kind::ListenerSet,
            name,
            generation: set.meta.generation,
            meta: &set.meta,
            gateway,
            refusal,
            listeners,
            addresses: Vec::new(),
            left_out: None,
        });
    }

    /// Judges the listeners of one object, by themselves and against those that the Gateway already has.
    fn judge(
        &mut self,
        parent: usize,
        gateway: usize,
        specs: &'a [GatewayListener],
        ports: &mut Ports<'a>,
    ) -> Range<usize> {
        let first = self.listeners.len();
        self.listeners.extend(specs.iter().map(|spec| judged(parent, spec)));
        let own = &mut self.listeners[first..];
        // Of two objects, the earlier one wins. Of conflicting listeners of one object, none wins; but a
        // listener that already lost to another object does not conflict with the others.
        for listener in own.iter_mut() {
            let Some(protocol) = listener.protocol.filter(|_| listener.is_accepted()) else { continue };
            let taken = ports.get(&(gateway, listener.spec.port));
            listener.conflict = taken.and_then(|taken| taken.conflict(protocol, listener.spec));
        }
        let among: Vec<_> = (0..own.len()).map(|at| conflict_among(own, at)).collect();
        for (listener, among) in own.iter_mut().zip(among) {
            listener.conflict = listener.conflict.take().or(among);
            let Some(protocol) = listener.protocol.filter(|_| listener.is_accepted()) else { continue };
            let taken = ports.entry((gateway, listener.spec.port));
            let taken = taken.or_insert_with(|| Taken { protocol, hostnames: HashSet::default() });
            taken.hostnames.insert(listener.spec.hostname.as_ref());
        }
        first..self.listeners.len()
    }
}

/// Returns the kind of parent that a reference means; `None`: a kind that is not ours.
pub(super) fn parent_kind(reference: &ParentRef) -> Option<Kind> {
    if reference.group.as_deref().is_some_and(|group| group != GATEWAY_GROUP) {
        return None;
    }
    match reference.kind.as_deref() {
        None | Some("Gateway") => Some(Kind::Gateway),
        Some("ListenerSet") => Some(Kind::ListenerSet),
        Some(_) => None,
    }
}

/// Returns why a Gateway is not accepted, besides its listeners.
fn refusal(cluster: &Cluster, gateway: &GatewaySpec) -> Option<Refusal> {
    if cluster.classes.get(&gateway.class).is_some_and(|class| class.has_parameters) {
        let what =
            format!("GatewayClass {} is not accepted: spec.parametersRef is not supported", gateway.class);
        return Some(Refusal::new("InvalidParameters", what));
    }
    if gateway.has_parameters {
        let what = "spec.infrastructure.parametersRef is not supported: remove it";
        return Some(Refusal::new("InvalidParameters", what));
    }
    let other = gateway.addresses.iter().find(|request| &*request.kind != ADDRESS_TYPE)?;
    let what = format!("spec.addresses: type {} is not supported, only {ADDRESS_TYPE}", other.kind);
    debug_assert!(!ipam::is_eligible(cluster, gateway));
    Some(Refusal::new("UnsupportedAddress", what))
}

/// Judges a listener by itself.
fn judged(parent: usize, spec: &GatewayListener) -> Listener<'_> {
    let mode = spec.tls_mode.as_deref();
    let (protocol, refusal) = match (&*spec.protocol, mode) {
        ("TCP", _) => (Some(Protocol::Tcp), None),
        ("TLS", Some("Passthrough")) => (Some(Protocol::Tls), None),
        ("TLS", mode) => {
            let what = format!(
                "tls.mode {}: TLS is passed through and never ended here; set tls.mode to Passthrough",
                mode.unwrap_or("is missing")
            );
            (None, Some(Refusal::new("UnsupportedValue", what)))
        }
        (other, _) => {
            let what = format!("protocol {other} is not served: use TLS with mode Passthrough, or TCP");
            (None, Some(Refusal::new("UnsupportedProtocol", what)))
        }
    };
    let own = protocol.map(|protocol| match protocol {
        Protocol::Tls => Kind::TlsRoute,
        Protocol::Tcp => Kind::TcpRoute,
    });
    let is_own =
        |kind: &GroupKind| &*kind.group == GATEWAY_GROUP && own.is_some_and(|own| own.text() == &*kind.kind);
    let kind = own.filter(|_| spec.kinds.is_empty() || spec.kinds.iter().any(is_own));
    let invalid = spec.kinds.iter().filter(|kind| !is_own(kind));
    let invalid_kinds = invalid.map(|kind| kind.kind.to_string()).collect();
    Listener {
        spec,
        parent,
        protocol,
        kind,
        refusal,
        conflict: None,
        invalid_kinds,
        bindings: Vec::new(),
        lost: Vec::new(),
        full: Vec::new(),
        tls_only: Vec::new(),
        attached_routes: 0,
        counted: 0,
    }
}

/// Returns the conflict between a listener and the others of its object.
fn conflict_among(own: &[Listener<'_>], at: usize) -> Option<Refusal> {
    let listener = &own[at];
    let protocol = listener.protocol?;
    let others = own
        .iter()
        .enumerate()
        .filter(|(other, l)| *other != at && l.spec.port == listener.spec.port && l.conflict.is_none());
    let mut reason = None;
    for (_, other) in others {
        match other.protocol {
            None => {}
            Some(other) if other != protocol => return Some(conflict("ProtocolConflict", listener.spec)),
            Some(_) if other.spec.hostname == listener.spec.hostname || protocol == Protocol::Tcp => {
                reason = Some(same_reason(protocol));
            }
            Some(_) => {}
        }
    }
    reason.map(|reason| conflict(reason, listener.spec))
}

/// Returns the reason of the conflict between two listeners that clients cannot distinguish.
fn same_reason(protocol: Protocol) -> &'static str {
    match protocol {
        Protocol::Tls => "HostnameConflict",
        Protocol::Tcp => "ListenerConflict",
    }
}

/// Returns a conflict. The message does not name the other listener, which may be in another namespace.
fn conflict(reason: &'static str, spec: &GatewayListener) -> Refusal {
    let what = match (reason, &spec.hostname) {
        ("ProtocolConflict", _) => format!("port {} has a listener of another protocol", spec.port),
        (_, Some(hostname)) => format!("port {} has another listener of hostname {hostname}", spec.port),
        (_, None) => format!("port {} has another listener that is the same to clients", spec.port),
    };
    Refusal::new(reason, format!("{what}; give one of them another port or hostname"))
}

/// Lists the listeners that are not accepted, with the reasons.
pub(super) fn invalid_listeners(own: &[Listener<'_>]) -> String {
    let invalid = own.iter().filter_map(|l| Some((l, l.refusal.as_ref().or(l.conflict.as_ref())?.reason)));
    let named: Vec<String> = invalid.map(|(l, reason)| format!("{} ({reason})", l.spec.name)).collect();
    let valid: Vec<&str> = own.iter().filter(|l| l.is_accepted()).map(|l| &*l.spec.name).collect();
    let mut text = format!("listeners that are not accepted: {}", named.join(", "));
    if !valid.is_empty() {
        text.push_str("; accepted: ");
        text.push_str(&valid.join(", "));
    }
    text
}
