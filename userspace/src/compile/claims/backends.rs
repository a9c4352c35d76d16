//! Resolves a claim's Services and addresses to backends with weights.

use super::Ground;
use super::shares::{self, Group};
use crate::model::claim::{ClaimBackend, ClaimTarget, ServicePortRef};
use crate::model::cluster::{Endpoint, EndpointState, ProbeSpec};
use crate::model::{BackendSpec, Elsewhere, ObjectName, TrafficPolicy};
use common::maps::address::Address;
use common::maps::route::MEMBERS_MAX;
use foldhash::{HashMap, HashMapExt, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

/// The result of resolving a claim's Services and addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Resolved {
    /// Sorted by address and port, each pair once.
    pub(super) backends: Vec<BackendSpec>,
    /// Endpoints that are addresses and ports we answer on: connections to them would loop.
    pub(super) circular: Vec<SocketAddr>,
    /// Ready endpoints that a table has no room for.
    pub(super) excess: usize,
    /// Endpoints to be probed.
    pub(super) probes: Vec<(SocketAddr, ProbeSpec)>,
    /// Which other nodes have some, if each leads only to its own.
    pub(super) elsewhere: Option<Arc<Elsewhere>>,
    /// There are some that take new connections, and none of them is ready.
    pub(super) is_draining: bool,
}

/// Endpoints by Service, for one lookup per reference.
pub(super) struct Endpoints<'a> {
    known: HashMap<&'a ObjectName, &'a [Endpoint]>,
    ground: Ground<'a>,
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

impl<'a> Endpoints<'a> {
    /// `bindings`: the addresses and ports that we answer on.
    pub(super) fn new(ground: Ground<'a>, bindings: impl Iterator<Item = SocketAddr>) -> Self {
        let mut known = HashMap::with_capacity(ground.endpoints.len());
        known.extend(ground.endpoints.iter().map(|(service, endpoints)| (service, &**endpoints)));
        Self { known, ground, bindings: bindings.collect() }
    }

    /// Knows only these Services.
    pub(super) fn some<'s>(
        ground: Ground<'a>,
        bindings: HashSet<SocketAddr>,
        services: impl Iterator<Item = &'s ObjectName>,
    ) -> Self {
        let found = |name: &ObjectName| {
            let (service, endpoints) = ground.endpoints.get_key_value(name)?;
            Some((service, &**endpoints))
        };
        Self { known: services.filter_map(found).collect(), ground, bindings }
    }

    /// Whether we answer on this address and port.
    pub(super) fn dials_us(&self, at: SocketAddr) -> bool {
        self.bindings.contains(&at)
    }

    /// Returns the backends of a claim.
    pub(super) fn of(&self, references: &[ClaimBackend], traffic: TrafficPolicy) -> Resolved {
        let mut resolved = Resolved::default();
        let mut shares: Vec<Share<'_>> = Vec::with_capacity(references.len());
        let mut addresses = Vec::new();
        let mut elsewhere = Elsewhere::default();
        for reference in references {
            if let Some(service) = reference.service().filter(|_| reference.weight > 0) {
                self.note_others(service, traffic, &mut elsewhere);
            }
            let picks = match &reference.to {
                Some(ClaimTarget::Service(service)) => self.picks(service, traffic, &mut resolved),
                // An address is on no node that is known.
                Some(ClaimTarget::Address(own)) if self.is_within(traffic, &own.endpoint) => {
                    let pick = self.pick(&own.endpoint, own.probe, &mut resolved);
                    addresses.extend(pick.map(|pick| (shares.len(), pick)));
                    Vec::new()
                }
                Some(ClaimTarget::Address(_)) | None => Vec::new(),
            };
            shares.push(Share { weight: reference.weight, picks });
        }
        resolved.elsewhere = (elsewhere != Elsewhere::default()).then(|| Arc::new(elsewhere));
        self.share_addresses(addresses, traffic, &mut shares);
        resolved.weigh(&shares);
        resolved
    }

    /// Adds the addresses to their shares, each by its index. All are one group: what one does not take goes to the others.
    fn share_addresses<'r>(
        &self,
        addresses: Vec<(usize, Pick<'r>)>,
        traffic: TrafficPolicy,
        shares: &mut [Share<'r>],
    ) {
        let (places, mut picks): (Vec<usize>, Vec<Pick<'r>>) = addresses.into_iter().unzip();
        for is_v4 in [true, false] {
            self.choose(&mut picks, is_v4, traffic);
        }
        for (place, pick) in places.into_iter().zip(picks) {
            let share = &mut shares[place];
            share.picks.push(pick);
            if !pick.takes {
                share.weight = 0;
            }
        }
    }

    /// Returns the endpoints of a Service's port.
    fn picks(
        &self,
        service: &ServicePortRef,
        traffic: TrafficPolicy,
        resolved: &mut Resolved,
    ) -> Vec<Pick<'a>> {
        let endpoints = self.known.get(&service.name).copied().unwrap_or_default();
        let mut picks = Vec::with_capacity(endpoints.len());
        let is_meant =
            |endpoint: &&Endpoint| endpoint.port_name == service.port && self.is_within(traffic, endpoint);
        let meant = endpoints.iter().filter(is_meant);
        picks.extend(meant.filter_map(|endpoint| self.pick(endpoint, service.probe, resolved)));
        for is_v4 in [true, false] {
            self.choose(&mut picks, is_v4, traffic);
        }
        picks
    }

    /// Returns an endpoint that takes nothing yet; `None`: it would lead back to us.
    fn pick<'r>(
        &self,
        endpoint: &'r Endpoint,
        probe: Option<ProbeSpec>,
        resolved: &mut Resolved,
    ) -> Option<Pick<'r>> {
        let at = SocketAddr::new(endpoint.address, endpoint.port);
        if self.bindings.contains(&at) {
            resolved.circular.push(at);
            return None;
        }
        if matches!(endpoint.state, EndpointState::Ready | EndpointState::Draining) {
            resolved.probes.extend(probe.map(|probe| (at, probe)));
        }
        Some(Pick { endpoint, failing: self.ground.node.failing.contains(&at), takes: false })
    }

    /// Whether this node leads to an endpoint.
    fn is_within(&self, traffic: TrafficPolicy, endpoint: &Endpoint) -> bool {
        match traffic {
            TrafficPolicy::Cluster => true,
            TrafficPolicy::Local => endpoint.node.is_some() && endpoint.node == self.ground.node.name,
        }
    }

    /// Notes which other nodes lead to endpoints of a Service's port: those with a ready one, or else with one that drains, as in
    /// [`Self::choose`]. What fails there is not known here.
    fn note_others(&self, service: &ServicePortRef, traffic: TrafficPolicy, elsewhere: &mut Elsewhere) {
        if traffic == TrafficPolicy::Cluster {
            return;
        }
        let endpoints = self.known.get(&service.name).copied().unwrap_or_default();
        let takes = |endpoint: &&Endpoint| {
            endpoint.port_name == service.port
                && !self.is_within(traffic, endpoint)
                && matches!(endpoint.state, EndpointState::Ready | EndpointState::Draining)
                && !self.dials_us(SocketAddr::new(endpoint.address, endpoint.port))
        };
        for endpoint in endpoints.iter().filter(takes) {
            if let Some(node) = &endpoint.node {
                elsewhere.add(endpoint.address.is_ipv4(), node);
            }
        }
    }

    /// Decides which endpoints of a family take new connections.
    fn choose(&self, picks: &mut [Pick<'_>], is_v4: bool, traffic: TrafficPolicy) {
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
        if failing > 0 && failing * 100 <= all * usize::from(self.ground.panic_percent) {
            picks
                .iter_mut()
                .filter(|pick| pick.failing && of_state(pick, state))
                .for_each(|pick| pick.takes = false);
        }
        // Of endpoints on one node, none is nearer.
        let zone = self.ground.node.zone.as_ref().filter(|_| traffic == TrafficPolicy::Cluster);
        let Some(zone) = zone else { return };
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
        let mut taking = shares.iter().flat_map(|share| &share.picks).filter(|pick| pick.takes).peekable();
        self.is_draining =
            taking.peek().is_some() && taking.all(|pick| pick.endpoint.state != EndpointState::Ready);
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
