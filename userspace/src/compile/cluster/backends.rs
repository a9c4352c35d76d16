//! Resolves a route's backend references to endpoints with weights.

use super::grant::Grants;
use super::shares::{self, Group};
use crate::model::cluster::{
    BackendRef, ClusterRoute, Endpoint, EndpointState, ProbeSpec, ServicePort, ServiceSpec,
};
use crate::model::{BackendSpec, Cluster, Kind, NodeFacts, ObjectName};
use common::maps::address::Address;
use common::maps::route::MEMBERS_MAX;
use foldhash::{HashMap, HashMapExt, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// Why a reference leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fault {
    /// The reason for `ResolvedRefs`.
    pub(super) reason: &'static str,
    /// Which reference, and what is wrong with it.
    pub(super) what: String,
}

/// The result of resolving a route's references.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Sorted by address and port, each pair once.
    pub(super) backends: Vec<BackendSpec>,
    /// In the order of the references.
    pub(super) faults: Vec<Fault>,
    /// Endpoints that are addresses and ports we answer on: connections to them would loop.
    pub(super) circular: Vec<SocketAddr>,
    /// Ready endpoints that a table has no room for.
    pub(super) excess: usize,
    /// Endpoints to be probed.
    pub(super) probes: Vec<(SocketAddr, ProbeSpec)>,
}

/// Services with their endpoints, for one lookup per reference.
pub(super) struct Services<'a> {
    known: HashMap<(&'a str, &'a str), (&'a ServiceSpec, &'a [Endpoint])>,
    cluster: &'a Cluster,
    node: &'a NodeFacts,
    /// The addresses and ports that we answer on.
    bindings: HashSet<SocketAddr>,
}

/// An endpoint, and whether it takes new connections.
#[derive(Clone, Copy)]
struct Pick<'a> {
    endpoint: &'a Endpoint,
    failing: bool,
    takes: bool,
}

/// A reference whose endpoints have no weights yet.
struct Share<'a> {
    weight: u32,
    picks: Vec<Pick<'a>>,
}

impl<'a> Services<'a> {
    pub(super) fn new(cluster: &'a Cluster, node: &'a NodeFacts, bindings: HashSet<SocketAddr>) -> Self {
        let mut known = HashMap::with_capacity(cluster.services.len());
        let mut endpoints = cluster.endpoints.iter().peekable();
        for (name, service) in &cluster.services {
            // Both maps are sorted by name.
            while endpoints.next_if(|(other, _)| *other < name).is_some() {}
            let own = endpoints.next_if(|(other, _)| *other == name);
            let own = own.map_or(&[][..], |(_, endpoints)| &**endpoints);
            known.insert((&*name.namespace, &*name.name), (&**service, own));
        }
        Self { known, cluster, node, bindings }
    }

    /// Returns only these Services, by namespace and name.
    pub(super) fn some(
        cluster: &'a Cluster,
        node: &'a NodeFacts,
        bindings: HashSet<SocketAddr>,
        names: &HashSet<(&str, &str)>,
    ) -> Self {
        let found = |(namespace, name): &(&str, &str)| {
            let (name, service) = cluster.services.get_key_value(&ObjectName::new(*namespace, *name))?;
            let endpoints = cluster.endpoints.get(name).map_or(&[][..], |endpoints| &**endpoints);
            Some(((&*name.namespace, &*name.name), (&**service, endpoints)))
        };
        Self { known: names.iter().filter_map(found).collect(), cluster, node, bindings }
    }

    /// Whether we answer on this address and port.
    pub(super) fn dials_us(&self, at: SocketAddr) -> bool {
        self.bindings.contains(&at)
    }

    /// Returns the backends of a route: those of its first rule.
    pub(super) fn of_route(&self, kind: Kind, route: &ClusterRoute, grants: &Grants<'_>) -> Resolved {
        let mut resolved = Resolved::default();
        let mut shares = Vec::new();
        for reference in route.rules.first().into_iter().flatten() {
            let found = self.find(kind, &route.meta.name.namespace, reference, grants);
            let picks = match found {
                Ok((service, port, endpoints)) => self.picks(service, port, endpoints, &mut resolved),
                Err(fault) => {
                    resolved.faults.push(fault);
                    Vec::new()
                }
            };
            shares.push(Share { weight: reference.weight, picks });
        }
        resolved.weigh(&shares);
        resolved
    }

    /// Returns the backends of a Service's own port.
    pub(super) fn of_service(&self, name: &ObjectName, port: &ServicePort) -> Resolved {
        let mut resolved = Resolved::default();
        if let Some((service, endpoints)) = self.known.get(&(&*name.namespace, &*name.name)) {
            let picks = self.picks(service, port, endpoints, &mut resolved);
            resolved.weigh(&[Share { weight: 1, picks }]);
        }
        resolved
    }

    /// Finds the Service and port that a reference means.
    fn find(
        &self,
        kind: Kind,
        from: &Arc<str>,
        reference: &BackendRef,
        grants: &Grants<'_>,
    ) -> Result<(&'a ServiceSpec, &'a ServicePort, &'a [Endpoint]), Fault> {
        let namespace = reference.namespace.as_ref().unwrap_or(from);
        let fault = |reason, what: String| Fault { reason, what };
        if !reference.group.is_empty() || &*reference.kind != "Service" {
            let group = if reference.group.is_empty() { "" } else { "/" };
            let what = format!(
                "{}{group}{} {}: only Services can be backends",
                reference.group, reference.kind, reference.name
            );
            return Err(fault("InvalidKind", what));
        }
        let name = ObjectName { namespace: Arc::clone(namespace), name: Arc::clone(&reference.name) };
        if !grants.allow(kind, from, &name) {
            let what = format!(
                "Service {name}: no ReferenceGrant in {namespace} lets a {kind} of {from} refer to it"
            );
            return Err(fault("RefNotPermitted", what));
        }
        let Some((service, endpoints)) = self.known.get(&(&*name.namespace, &*name.name)) else {
            return Err(fault("BackendNotFound", format!("Service {name} does not exist")));
        };
        let Some(number) = reference.port else {
            return Err(fault("UnsupportedValue", format!("Service {name}: the reference has no port")));
        };
        if service.is_external_name {
            let what = format!("Service {name} is of type ExternalName: it has no endpoints");
            return Err(fault("UnsupportedValue", what));
        }
        let mut ports = service.ports.iter().filter(|port| port.port == number).peekable();
        if ports.peek().is_none() {
            return Err(fault("BackendNotFound", format!("Service {name} has no port {number}")));
        }
        match ports.find(|port| port.is_tcp) {
            Some(port) => Ok((service, port, endpoints)),
            None => Err(fault("UnsupportedProtocol", format!("Service {name}: port {number} is not TCP"))),
        }
    }

    /// Returns the endpoints of a Service's port.
    fn picks(
        &self,
        service: &ServiceSpec,
        port: &ServicePort,
        endpoints: &'a [Endpoint],
        resolved: &mut Resolved,
    ) -> Vec<Pick<'a>> {
        let probe = service.probe.unwrap_or(self.cluster.policy.probe);
        let mut picks = Vec::with_capacity(endpoints.len());
        for endpoint in endpoints.iter().filter(|endpoint| endpoint.port_name == port.name) {
            let at = SocketAddr::new(endpoint.address, endpoint.port);
            if self.bindings.contains(&at) {
                resolved.circular.push(at);
                continue;
            }
            let failing = self.node.failing.contains(&at);
            picks.push(Pick { endpoint, failing, takes: false });
            if let (Some(probe), EndpointState::Ready | EndpointState::Draining) = (probe, endpoint.state) {
                resolved.probes.push((at, probe));
            }
        }
        for is_v4 in [true, false] {
            self.choose(&mut picks, is_v4);
        }
        picks
    }

    /// Decides which endpoints of a family take new connections.
    fn choose(&self, picks: &mut [Pick<'a>], is_v4: bool) {
        let of_state =
            |pick: &Pick<'_>, state| pick.endpoint.state == state && pick.endpoint.address.is_ipv4() == is_v4;
        let any_ready = picks.iter().any(|pick| of_state(pick, EndpointState::Ready));
        let state = if any_ready { EndpointState::Ready } else { EndpointState::Draining };
        let (mut all, mut failing) = (0_usize, 0);
        for pick in picks.iter_mut().filter(|pick| of_state(pick, state)) {
            pick.takes = true;
            all += 1;
            failing += usize::from(pick.failing);
        }
        // Probes that find more than the panic share down are more likely wrong themselves than the backends
        // are down.
        if failing > 0 && failing * 100 <= all * usize::from(self.cluster.policy.panic_percent) {
            picks
                .iter_mut()
                .filter(|pick| pick.failing && of_state(pick, state))
                .for_each(|pick| pick.takes = false);
        }
        let Some(zone) = &self.node.zone else { return };
        let of_family = |pick: &Pick<'_>| pick.takes && of_state(pick, state);
        let hinted = |pick: &Pick<'_>| pick.endpoint.zones.contains(zone);
        // As in kube-proxy: hints count only if every endpoint has some and at least one is for this zone.
        let complete =
            picks.iter().filter(|pick| of_family(pick)).all(|pick| !pick.endpoint.zones.is_empty());
        if complete && picks.iter().any(|pick| of_family(pick) && hinted(pick)) {
            picks
                .iter_mut()
                .filter(|pick| of_family(pick) && !hinted(pick))
                .for_each(|pick| pick.takes = false);
        }
    }
}

impl Resolved {
    /// Sets the weight of every endpoint, and adds the refused share of each family.
    fn weigh(&mut self, shares: &[Share<'_>]) {
        for share in shares {
            self.backends.extend(share.picks.iter().map(|pick| BackendSpec {
                address: pick.endpoint.address,
                port: pick.endpoint.port,
                weight: 0,
                failing: pick.failing,
            }));
        }
        self.backends.sort_unstable_by_key(place);
        self.backends.dedup_by_key(|backend| place(backend));
        let refusing = [true, false].map(|is_v4| self.weigh_family(shares, is_v4));
        if refusing.iter().any(Option::is_some) {
            self.backends.extend(refusing.into_iter().flatten());
            self.backends.sort_unstable_by_key(place);
        }
    }

    /// Sets the weights of a family's endpoints. Returns the backend that refuses the share of references
    /// that lead nowhere.
    fn weigh_family(&mut self, shares: &[Share<'_>], is_v4: bool) -> Option<BackendSpec> {
        let takers = |share: &Share<'_>| {
            share.picks.iter().filter(|p| p.takes && p.endpoint.address.is_ipv4() == is_v4).count() as u32
        };
        let mut groups = Vec::with_capacity(shares.len() + 1);
        let mut refused = 0_u32;
        for share in shares.iter().filter(|share| share.weight > 0) {
            match takers(share) {
                // The reference has endpoints of the other family only, so it has no share of this one.
                0 if share.picks.iter().any(|pick| pick.takes) => {}
                0 => refused = refused.saturating_add(share.weight),
                endpoints => groups.push(Group { weight: share.weight, endpoints }),
            }
        }
        if groups.is_empty() {
            // Without backends, all connections are refused anyway.
            return None;
        }
        if refused > 0 {
            groups.push(Group { weight: refused, endpoints: 1 });
        }
        let weights = shares::of(&groups);
        let mut next = weights.iter();
        for share in shares.iter().filter(|share| share.weight > 0 && takers(share) > 0) {
            let weight = next.next().copied().unwrap_or(1);
            for pick in share.picks.iter().filter(|p| p.takes && p.endpoint.address.is_ipv4() == is_v4) {
                let at = (Address::from(pick.endpoint.address), pick.endpoint.port);
                if let Ok(found) = self.backends.binary_search_by_key(&at, place) {
                    let backend = &mut self.backends[found];
                    backend.weight = backend.weight.saturating_add(weight);
                }
            }
        }
        let room = MEMBERS_MAX - usize::from(refused > 0);
        let taking = self.backends.iter_mut().filter(|b| b.address.is_ipv4() == is_v4 && b.weight > 0);
        for backend in taking.skip(room) {
            backend.weight = 0;
            self.excess += 1;
        }
        let family = if is_v4 { IpAddr::from([0; 4]) } else { IpAddr::from([0; 16]) };
        next.next().map(|weight| BackendSpec::refusing(family, *weight))
    }
}

fn place(backend: &BackendSpec) -> (Address, u16) {
    (Address::from(backend.address), backend.port)
}
