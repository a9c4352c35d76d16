//! Claims from settled ownership.

use super::asks::{Asks, Wanted};
use super::bindings::Binding;
use super::listener::{Listener, Parents};
use super::own::{Entry, Lead, Loss, Names};
use super::references::port_of;
use super::route::{Route, Routes};
use super::service::{Balancer, Balancers, Port};
use super::{attach, label, service, tenant, wish};
use crate::model::claim::{
    AddressWish, AskedProtocol, ClaimBackend, ClaimBackends, Grant, Granted, Refusal, Why, Wishes,
};
use crate::model::cluster::{ClusterRoute, ServicePort};
use crate::model::{
    Affinity, Claim, Cluster, Desired, Kind, Meta, Origin, Pattern, Protocol, ServerName, TrafficPolicy,
};
use crate::origins::Ask;
use foldhash::{HashMap, HashMapExt};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Settled ownership.
pub(super) struct Emitter<'e, 'a> {
    pub(super) file: &'a Desired,
    /// By listener of the static file: the bindings that lead to its routes.
    pub(super) file_doors: &'e [Vec<usize>],
    pub(super) bindings: &'e [Binding<'a>],
    pub(super) names: &'e Names<'a>,
    pub(super) parents: &'e Parents<'a>,
    pub(super) routes: &'e Routes<'a>,
    pub(super) balancers: &'e Balancers<'a>,
    pub(super) asks: &'e Asks<'a>,
    pub(super) cluster: &'e Cluster,
}

/// What is granted, by who has it.
struct Owners {
    /// By route of the static file.
    file_routes: Vec<Vec<Grant>>,
    /// By route and listener.
    routes: HashMap<(usize, usize), Vec<Grant>>,
    /// By port of a Service.
    ports: Vec<Vec<Grant>>,
    /// By listener: names that it has and no route.
    listeners: Vec<Vec<Grant>>,
}

impl Emitter<'_, '_> {
    /// Returns the claims of the static file, then those of objects.
    pub(super) fn claims(&self) -> Vec<Claim> {
        let mut owners = self.owners();
        let mut claims = Vec::with_capacity(self.file.routes.len() + 2 * self.routes.all.len());
        self.file_claims(&mut owners, &mut claims);
        for at in 0..self.parents.listeners.len() {
            claims.extend(self.listener(at, std::mem::take(&mut owners.listeners[at])));
        }
        for (at, route) in self.routes.all.iter().enumerate() {
            self.route(at, route, &mut owners.routes, &mut claims);
        }
        for balancer in &self.balancers.all {
            for at in balancer.ports.clone() {
                let grants = std::mem::take(&mut owners.ports[at]);
                claims.push(self.port(balancer, &self.balancers.ports[at], grants));
            }
            claims.extend(balancer.unserved().filter_map(|port| self.unserved_port(balancer, port)));
        }
        for wanted in &self.asks.all {
            claims.extend(wanted.listeners.iter().map(|listener| self.ask(wanted, *listener)));
        }
        claims
    }

    fn owners(&self) -> Owners {
        let (first_route, first_port) = self.firsts();
        let first_ask = first_port + self.balancers.ports.len();
        let mut owners = Owners {
            file_routes: vec![Vec::new(); first_route],
            routes: HashMap::with_capacity(self.routes.all.len()),
            ports: vec![Vec::new(); self.balancers.ports.len()],
            listeners: vec![Vec::new(); self.parents.listeners.len()],
        };
        for Entry { binding, pattern, lead } in self.names.entries() {
            let what = pattern.map_or(Granted::Rest, |pattern: &Pattern| Granted::Names(pattern.clone()));
            let grant = self.grant(binding, what);
            match lead {
                Lead::Refused { listener } => owners.listeners[listener].push(grant),
                Lead::To { target, .. } if target < first_route => owners.file_routes[target].push(grant),
                // An ask knows its bindings.
                Lead::To { target, .. } if target >= first_ask => {}
                Lead::To { target, .. } if target >= first_port => {
                    owners.ports[target - first_port].push(grant);
                }
                Lead::To { target, candidate } => {
                    let listener = self.names.candidates[candidate].listener;
                    owners.routes.entry((target - first_route, listener)).or_default().push(grant);
                }
            }
        }
        owners
    }

    fn grant(&self, binding: usize, what: Granted) -> Grant {
        let Binding { at, protocol, .. } = self.bindings[binding];
        Grant::new(at, protocol, what)
    }

    fn file_claims(&self, owners: &mut Owners, claims: &mut Vec<Claim>) {
        for (listener, own) in self.file.listeners.iter().zip(self.file_doors) {
            let name = Arc::clone(&listener.name);
            claims.push(Claim {
                origin: Origin::File { what: "listener", name },
                port: listener.port,
                protocol: listener.protocol.into(),
                grants: own.iter().map(|binding| self.grant(*binding, Granted::Binding)).collect(),
                ..Self::of_file()
            });
        }
        for (route, grants) in self.file.routes.iter().zip(&mut owners.file_routes) {
            claims.push(Claim {
                origin: Origin::File { what: "route", name: Arc::clone(&route.name) },
                route: Some(Arc::clone(&route.name)),
                grants: std::mem::take(grants),
                backends: ClaimBackends::Addresses(route.backends.iter().copied().collect()),
                source_ranges: route.source_ranges.clone(),
                affinity: route.affinity,
                traffic: route.traffic,
                ..Self::of_file()
            });
        }
    }

    /// Returns an empty claim of the static file. Claims of objects take from it what only Services say.
    fn of_file() -> Claim {
        Claim {
            origin: Origin::File { what: "", name: "".into() },
            part: "".into(),
            tenant: None,
            port: 0,
            protocol: Protocol::Tls.into(),
            route: None,
            grants: Vec::new(),
            asked: None,
            backends: ClaimBackends::None,
            source_ranges: None,
            affinity: Affinity::None,
            traffic: TrafficPolicy::Cluster,
            health_port: None,
        }
    }

    /// Returns the claim of a listener itself; `None`: it asks for nothing that could be served, and for no protocol that only is not.
    fn listener(&self, at: usize, names: Vec<Grant>) -> Option<Claim> {
        let listener = &self.parents.listeners[at];
        let parent = &self.parents.all[listener.parent];
        let gateway = &self.parents.all[self.parents.gateway_of(at)];
        let (protocol, refusals) = match listener.protocol {
            Some(protocol) => {
                (protocol.into(), self.refusals(&listener.lost, &listener.full, &listener.tls_only))
            }
            None => {
                let protocol = unserved(&listener.spec.protocol)?;
                let refusal = listener.refusal.as_ref()?;
                (protocol, refused(&gateway.addresses, listener.spec.port, &refusal.message))
            }
        };
        if listener.bindings.is_empty() && refusals.is_empty() {
            return None;
        }
        let own = listener.bindings.iter().map(|binding| self.grant(*binding, Granted::Binding));
        let route = || self.unique(label::object(&mut String::new(), Kind::Gateway, gateway.name));
        let asked = Wishes {
            uid: Arc::clone(&parent.meta.uid),
            address: match parent.kind {
                Kind::Gateway => wish::gateway(self.cluster.gateways.get(parent.name).map(|spec| &**spec)),
                _ => AddressWish::OfGateway(gateway.name.clone()),
            },
            matches: listener.spec.hostname.iter().cloned().collect(),
            refusals,
        };
        Some(Claim {
            origin: parent.claimant.origin(),
            part: Arc::clone(&listener.spec.name),
            tenant: self.tenant(parent.meta),
            port: listener.spec.port,
            protocol,
            route: listener.protocol.map(|_| route()),
            grants: own.chain(names).collect(),
            asked: Some(Box::new(asked)),
            backends: ClaimBackends::None,
            ..Self::of_file()
        })
    }

    /// Adds the claims of a route: one at each listener that it attaches to.
    fn route(
        &self,
        at: usize,
        route: &Route<'_>,
        owners: &mut HashMap<(usize, usize), Vec<Grant>>,
        claims: &mut Vec<Claim>,
    ) {
        let mut listeners: Vec<usize> = self.routes.listeners(route).collect();
        listeners.sort_unstable();
        listeners.dedup();
        let label = self.unique(Arc::clone(&route.label));
        let server_name = server_name(route.spec).cloned();
        for place in listeners {
            let grants = owners.remove(&(at, place)).unwrap_or_default();
            let listener = &self.parents.listeners[place];
            let Some(protocol) = listener.protocol else { continue };
            let references = Arc::clone(&route.resolved.backends);
            let asked = Wishes {
                uid: Arc::clone(&route.spec.meta.uid),
                address: AddressWish::OfGateway(
                    self.parents.all[self.parents.gateway_of(place)].name.clone(),
                ),
                matches: attach::wishes(route.spec).flatten().cloned().collect(),
                refusals: self.losses(route, listener),
            };
            claims.push(Claim {
                origin: route.claimant().origin(),
                part: self.part(listener),
                tenant: self.tenant(&route.spec.meta),
                port: listener.spec.port,
                protocol: protocol.into(),
                route: Some(Arc::clone(&label)),
                grants,
                asked: Some(Box::new(asked)),
                backends: ClaimBackends::Services { references, server_name: server_name.clone() },
                ..Self::of_file()
            });
        }
    }

    /// Names a claim of a route by the listener: `0/Gateway/NAMESPACE/NAME/LISTENER`, 0 being the rule.
    fn part(&self, listener: &Listener<'_>) -> Arc<str> {
        let parent = &self.parents.all[listener.parent];
        format!("0/{}/{}/{}", parent.kind, parent.name, listener.spec.name).into()
    }

    /// Returns what a route has lost at a listener.
    fn losses(&self, route: &Route<'_>, listener: &Listener<'_>) -> Vec<Refusal> {
        let is_here = |loss: &&Loss<'_>| {
            listener.bindings.contains(&loss.binding) || listener.lost.contains(&loss.binding)
        };
        let losses = self.routes.losses(route).filter(is_here).map(|loss| self.refusal(loss));
        let mut refusals: Vec<Refusal> = losses.chain(listener.tls_only.iter().map(reserved)).collect();
        // A route may attach to a listener by several references.
        refusals.sort();
        refusals.dedup();
        refusals
    }

    fn refusal(&self, loss: &Loss<'_>) -> Refusal {
        let why = loss.owner.map_or(Why::Reserved, |owner| Why::Lost(owner.origin()));
        Refusal { names: loss.written.cloned(), ..Refusal::whole(self.bindings[loss.binding].at, why) }
    }

    /// Returns bindings that others have, those that there is no room for, and those that take TLS only.
    fn refusals(&self, lost: &[usize], full: &[SocketAddr], tls_only: &[SocketAddr]) -> Vec<Refusal> {
        let of_others = lost.iter().map(|binding| {
            let Binding { at, owner, .. } = &self.bindings[*binding];
            Refusal::whole(*at, Why::Lost(owner.origin()))
        });
        let without_room = full.iter().map(|at| Refusal::whole(*at, Why::NoRoom));
        of_others.chain(without_room).chain(tls_only.iter().map(reserved)).collect()
    }

    fn port(&self, balancer: &Balancer<'_>, port: &Port<'_>, grants: Vec<Grant>) -> Claim {
        let service = port_of(port.name.clone(), port.service, port.port, &self.cluster.policy);
        let backend = ClaimBackend::of_service(1, Some(service));
        let binding = |grant: &Grant| Grant { what: Granted::Binding, ..grant.clone() };
        let mut refusals = self.refusals(&port.lost, &port.full, &port.tls_only);
        refusals.extend(
            balancer.refusal.as_deref().into_iter().flat_map(|why| refused(&[], port.port.port, why)),
        );
        Claim {
            origin: port.claimant().origin(),
            part: port.port.port.to_string().into(),
            tenant: self.tenant(&port.service.meta),
            port: port.port.port,
            protocol: Protocol::Tcp.into(),
            asked: Some(Box::new(wish::of_service(port.service, refusals))),
            route: Some(self.unique(Arc::clone(&port.label))),
            grants: grants.iter().map(binding).chain(grants.iter().cloned()).collect(),
            backends: ClaimBackends::Services { references: [backend].into(), server_name: None },
            source_ranges: port.source_ranges().cloned(),
            affinity: port.affinity(),
            traffic: port.traffic(),
            health_port: port.health_port(),
        }
    }

    /// Returns the claim of a port that is not served: part `443/UDP`. It says that the Service has its addresses, too.
    fn unserved_port(&self, balancer: &Balancer<'_>, port: &ServicePort) -> Option<Claim> {
        let protocol = unserved(&port.protocol)?;
        let mut refusals = refused(balancer.addresses, port.port, &service::only_tcp(port));
        refusals.extend(balancer.refusal.as_deref().into_iter().flat_map(|why| refused(&[], port.port, why)));
        Some(Claim {
            origin: balancer.claimant().origin(),
            part: format!("{}/{}", port.port, protocol.text()).into(),
            tenant: self.tenant(&balancer.service.meta),
            port: port.port,
            protocol,
            asked: Some(Box::new(wish::of_service(balancer.service, refusals))),
            route: None,
            grants: Vec::new(),
            backends: ClaimBackends::None,
            ..Self::of_file()
        })
    }

    /// Returns the claim of an ask at a listener of the chart: part `PART/LISTENER`.
    fn ask(&self, wanted: &Wanted<'_>, at: usize) -> Claim {
        let (listener, doors) = (&self.file.listeners[at], &self.file_doors[at]);
        let Ask { part, pattern, backend, .. } = &wanted.ask;
        let grants = wanted.bindings.iter().filter(|binding| doors.contains(binding));
        let losses = wanted.losses.iter().filter(|loss| doors.contains(&loss.binding));
        let refusals = losses.map(|loss| self.refusal(loss));
        let server_name = match pattern {
            Pattern::Exact(name) => Some(name.clone()),
            Pattern::OneLabel(_) | Pattern::Wildcard(_) => None,
        };
        let asked = Wishes {
            uid: Arc::clone(&wanted.object.meta.uid),
            address: wish::listener(&listener.addresses),
            matches: vec![Pattern::clone(pattern)],
            refusals: refusals.collect(),
        };
        Claim {
            origin: wanted.claimant().origin(),
            part: format!("{part}/{}", listener.name).into(),
            tenant: self.tenant(&wanted.object.meta),
            port: listener.port,
            protocol: listener.protocol.into(),
            route: Some(self.unique(Arc::clone(&wanted.label))),
            grants: grants
                .map(|binding| self.grant(*binding, Granted::Names(Pattern::clone(pattern))))
                .collect(),
            asked: Some(Box::new(asked)),
            backends: ClaimBackends::Services { references: [backend.clone()].into(), server_name },
            ..Self::of_file()
        }
    }

    /// Returns the target of the first route of the cluster, and that of the first port of a Service.
    fn firsts(&self) -> (usize, usize) {
        let first_route = self.file.routes.len();
        (first_route, first_route + self.routes.all.len())
    }

    fn tenant(&self, meta: &Meta) -> Option<Arc<str>> {
        Some(tenant::of(self.cluster, meta))
    }

    /// Returns a name that no route of the file has.
    fn unique(&self, name: Arc<str>) -> Arc<str> {
        label::unique(self.file, name)
    }
}

/// Returns the refusal of a binding that takes TLS only.
fn reserved(at: &SocketAddr) -> Refusal {
    Refusal::whole(*at, Why::Reserved)
}

/// Returns a protocol that is not served, which claims may ask for all the same.
fn unserved(text: &str) -> Option<AskedProtocol> {
    AskedProtocol::of_text(text).filter(|wanted| wanted.served().is_none())
}

/// Returns the refusals of a port at these addresses, or, without any, of the port.
fn refused(addresses: &[IpAddr], port: u16, why: &str) -> Vec<Refusal> {
    let why = || Why::Refused(why.into());
    if addresses.is_empty() {
        return vec![Refusal { address: None, port, names: None, why: why() }];
    }
    addresses.iter().map(|address| Refusal::whole(SocketAddr::new(*address, port), why())).collect()
}

/// Returns the server name in a probe's TLS hello: the first in order of the route's exact names.
fn server_name(route: &ClusterRoute) -> Option<&ServerName> {
    let exact = route.hostnames.iter().filter_map(|pattern| match pattern {
        Pattern::Exact(name) => Some(name),
        Pattern::OneLabel(_) | Pattern::Wildcard(_) => None,
    });
    exact.min()
}
