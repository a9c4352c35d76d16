//! Gateways and Services that want addresses, and what each of them wants.

use super::adopt::{self, Adoption, Hold};
use super::pool::{PoolIndex, Pools};
use super::share::Share;
use super::{Allocation, Ledger, POOL_FIELD, is_eligible};
use crate::model::cluster::{FamilyWish, GatewaySpec, LoadBalancerSpec, PoolWish};
use crate::model::{Cluster, EventReason, Kind, ObjectName, ObjectRef, Possession, Problem};
use std::net::IpAddr;
use std::sync::Arc;

/// A Gateway or Service that wants addresses.
pub(super) struct Claimant<'a> {
    pub(super) created_secs: i64,
    pub(super) kind: Kind,
    pub(super) name: &'a ObjectName,
    /// Field of the request, for problems.
    field: &'a str,
    /// Addresses that it has: by Claims, then by its status.
    pub(super) given: Vec<IpAddr>,
    pub(super) slots: Vec<Slot>,
    /// Requested values that it cannot have, with the reasons.
    pub(super) refused: Vec<(String, String)>,
    /// With whom it shares them.
    pub(super) share: Share<'a>,
    /// Where its addresses come from.
    pub(super) from: &'a PoolWish,
    /// Pools of which it may get what it does not ask for by value, in order.
    pub(super) pools: Vec<PoolIndex>,
    /// Why it gets nothing of the pool that it asks for.
    pub(super) no_pool: Option<String>,
    /// What of its status stays its own.
    pub(super) adoption: Adoption,
}

/// One address that is wanted.
pub(super) struct Slot {
    pub(super) wish: Wish,
    pub(super) got: Option<IpAddr>,
}

impl Slot {
    /// Returns the family of which any address is wanted and none was given yet: IPv4, or else IPv6.
    pub(super) fn open(&self) -> Option<bool> {
        match self.wish {
            Wish::Any { is_v4 } | Wish::Spare { is_v4 } if self.got.is_none() => Some(is_v4),
            _ => None,
        }
    }

    /// Whether the object is incomplete without.
    pub(super) fn is_needed(&self) -> bool {
        !matches!(self.wish, Wish::Spare { .. })
    }
}

#[derive(Clone, Copy)]
pub(super) enum Wish {
    /// This address.
    Exactly(IpAddr),
    /// Any address of the family.
    Any { is_v4: bool },
    /// Any address of the family, if one is free.
    Spare { is_v4: bool },
}

/// Returns all of them.
pub(super) fn claimants<'a>(cluster: &'a Cluster, pools: &Pools<'a>) -> Vec<Claimant<'a>> {
    let gateways = cluster.gateways.iter().filter(|(_, gateway)| is_eligible(cluster, gateway));
    let gateways = gateways.map(|(name, gateway)| {
        let object = ObjectRef { kind: Kind::Gateway, name: name.clone() };
        let given = given(cluster, &object, &gateway.given);
        let claimant = Claimant::new(object.kind, name, gateway.meta.created_secs, &gateway.from);
        let claimant = claimant.of_pools(pools, &cluster.possession, given);
        let ports = gateway.listeners.iter().map(|listener| ("TCP", listener.port)).collect();
        let claimant = Claimant { share: Share { key: None, ports }, ..claimant };
        let keeps = |address: &&IpAddr| {
            cluster.possession.has_address(&name.namespace, **address) && pools.exclusion(**address).is_none()
        };
        let kept: Vec<bool> = claimant.given.iter().filter(keeps).map(IpAddr::is_ipv4).collect();
        let offered = claimant.families(pools);
        // A family whose ranges were taken away is still wanted by who has an address of it.
        let is_wanted = |is_v4: &bool| offered.contains(is_v4) || kept.contains(is_v4);
        let families: Vec<bool> = [true, false].into_iter().filter(is_wanted).collect();
        gateway_claim(claimant, gateway, &families)
    });
    let services = cluster.services.iter().filter_map(|(name, service)| {
        let balancer = service.load_balancer.as_deref()?;
        let object = ObjectRef { kind: Kind::Service, name: name.clone() };
        let given = match adopt::has_moved(cluster, &object, balancer) {
            true => balancer.given.clone(),
            false => given(cluster, &object, &balancer.given),
        };
        let claimant = Claimant::new(object.kind, name, service.meta.created_secs, &balancer.from);
        let claimant = claimant.of_pools(pools, &cluster.possession, given);
        let families = claimant.families(pools);
        let ports = service.ports.iter().map(|port| (&*port.protocol, port.port)).collect();
        let share = Share { key: balancer.shares_by(), ports };
        let adoption = Adoption::of(cluster, pools, &object, service, balancer, &claimant.given);
        let claimant = Claimant { share, adoption, ..claimant };
        Some(match claimant.adoption.hold {
            Some(_) => claimant.keeping(),
            None => service_claim(claimant, balancer, &families),
        })
    });
    gateways.chain(services).map(|claimant| claimant.while_unknown(cluster, pools)).collect()
}

/// Returns the addresses that an object has: by Claims, then by its status.
fn given(cluster: &Cluster, object: &ObjectRef, status: &[IpAddr]) -> Vec<IpAddr> {
    let mut given: Vec<IpAddr> = cluster.possession.of_object(object).collect();
    for address in status {
        if !given.contains(address) {
            given.push(*address);
        }
    }
    given
}

/// `families`: those of which it is to have an address.
fn gateway_claim<'a>(
    mut claimant: Claimant<'a>,
    gateway: &'a GatewaySpec,
    families: &[bool],
) -> Claimant<'a> {
    let wants_addresses = wants_addresses(gateway, &claimant.given);
    claimant.field = "spec.addresses";
    // One that it has stays one of that family, whatever the pools are now.
    let asked: Vec<IpAddr> = values(gateway).filter_map(|value| value.parse().ok()).collect();
    let has: Vec<bool> =
        claimant.given.iter().filter(|address| !asked.contains(address)).map(IpAddr::is_ipv4).collect();
    let count = gateway.addresses.len() - values(gateway).count();
    let mut new: Vec<bool> = families.iter().copied().cycle().take(count).collect();
    for is_v4 in &has {
        if let Some(at) = new.iter().position(|other| other == is_v4) {
            new.remove(at);
        }
    }
    let mut any = has.into_iter().chain(new);
    for request in &gateway.addresses {
        let Some(value) = &request.value else {
            // Without ranges there is no family to request: the slot stays empty.
            let is_v4 = any.next().unwrap_or(true);
            claimant.slots.push(Slot { wish: Wish::Any { is_v4 }, got: None });
            continue;
        };
        match value.parse() {
            Ok(address) => claimant.wants(address),
            Err(_) => claimant.refused.push((value.to_string(), format!("{value:?} is no IP address"))),
        }
    }
    if gateway.addresses.is_empty() && wants_addresses {
        let wish = |(i, is_v4): (usize, &bool)| match i {
            0 => Wish::Any { is_v4: *is_v4 },
            _ => Wish::Spare { is_v4: *is_v4 },
        };
        claimant.slots = families.iter().enumerate().map(|at| Slot { wish: wish(at), got: None }).collect();
    }
    claimant
}

/// Returns the addresses that a Gateway asks for by value, as written.
fn values(gateway: &GatewaySpec) -> impl Iterator<Item = &Arc<str>> {
    gateway.addresses.iter().filter_map(|request| request.value.as_ref())
}

/// Whether an address would serve anything. A Gateway with only HTTP listeners gets none.
fn wants_addresses(gateway: &GatewaySpec, given: &[IpAddr]) -> bool {
    let served = |protocol: &str| protocol == "TLS" || protocol == "TCP";
    !given.is_empty()
        || gateway.listeners.is_empty()
        || gateway.listeners.iter().any(|listener| served(&listener.protocol))
}

/// `families`: those that its pool has.
fn service_claim<'a>(
    mut claimant: Claimant<'a>,
    balancer: &'a LoadBalancerSpec,
    families: &[bool],
) -> Claimant<'a> {
    claimant.field = if balancer.field.is_empty() { "spec.ipFamilies" } else { &balancer.field };
    // What it asks for is not known in full: as with MetalLB, it keeps what it has until that is corrected.
    let is_unclear = !balancer.unreadable.is_empty() || balancer.also_asked.is_some();
    let asked = if is_unclear { claimant.given.clone() } else { balancer.addresses.clone() };
    for address in asked {
        claimant.wants(address);
    }
    claimant.refused.extend(contradiction(balancer));
    if !balancer.addresses.is_empty() || !balancer.field.is_empty() {
        return claimant;
    }
    let has = claimant.given.first().map(IpAddr::is_ipv4);
    let is_v4 = has.or(families.first().copied()).unwrap_or(true);
    let any = FamilyWish { is_v4, is_required: true };
    let wishes = if balancer.families.is_empty() { std::slice::from_ref(&any) } else { &balancer.families };
    let slot = |wish: &FamilyWish| {
        let FamilyWish { is_v4, is_required } = *wish;
        let wish = if is_required { Wish::Any { is_v4 } } else { Wish::Spare { is_v4 } };
        Slot { wish, got: None }
    };
    claimant.slots = wishes.iter().map(slot).collect();
    claimant
}

/// Returns what of a Service's request by value contradicts the rest of it, as MetalLB sees it, and why.
fn contradiction(balancer: &LoadBalancerSpec) -> Option<(String, String)> {
    if let Some(text) = balancer.unreadable.first() {
        return Some((
            text.to_string(),
            format!("{text:?} is no IP address: it gets all that it asks for or nothing"),
        ));
    }
    if let Some(alone) = &balancer.also_asked {
        let what = format!("it asks for {alone} by spec.loadBalancerIP too: one of both has to go");
        return Some((alone.to_string(), what));
    }
    let asks = |is_v4: bool| balancer.addresses.iter().any(|address| address.is_ipv4() == is_v4);
    let has = |is_v4: bool| balancer.families.iter().any(|wish| wish.is_v4 == is_v4);
    if balancer.addresses.is_empty() || balancer.families.is_empty() {
        return None;
    }
    let differs = [true, false].into_iter().find(|is_v4| asks(*is_v4) != has(*is_v4))?;
    let family = if differs { "IPv4" } else { "IPv6" };
    let what = match has(differs) {
        true => format!("none of them is {family}, which is in spec.ipFamilies"),
        false => format!("one of them is {family}, which is not in spec.ipFamilies"),
    };
    let asked: Vec<String> = balancer.addresses.iter().map(IpAddr::to_string).collect();
    Some((asked.join(","), what))
}

impl<'a> Claimant<'a> {
    fn new(kind: Kind, name: &'a ObjectName, created_secs: i64, from: &'a PoolWish) -> Self {
        Self {
            created_secs,
            kind,
            name,
            field: "",
            given: Vec::new(),
            slots: Vec::new(),
            refused: Vec::new(),
            share: Share::default(),
            from,
            pools: Vec::new(),
            no_pool: None,
            adoption: Adoption::default(),
        }
    }

    /// Wants what it has, and nothing else.
    pub(super) fn keeping(mut self) -> Self {
        let slot = |address: &IpAddr| Slot { wish: Wish::Exactly(*address), got: None };
        self.slots = self.given.iter().map(slot).collect();
        self
    }

    /// Finds its pools. Who asks for another pool than before, which it can have, gives back what is not of it.
    fn of_pools(mut self, pools: &Pools<'_>, possession: &Possession, mut given: Vec<IpAddr>) -> Self {
        match pools.of(self.name, self.from) {
            Ok(indices) => {
                self.pools = indices;
                if let Some(asked) = &self.from.pool {
                    let object = self.object();
                    let is_as_before = possession.pool_of(&object) == Some(&**asked);
                    let has = |address: IpAddr| possession.of_object(&object).any(|other| other == address);
                    given.retain(|address| {
                        is_as_before && has(*address)
                            || self.pools.iter().any(|index| pools.holds(*index, *address))
                    });
                }
            }
            Err(why) => self.no_pool = Some(why),
        }
        self.given = given;
        self
    }

    /// Returns the families of the pool of which it has an address, or else of its first pool; IPv4 first.
    fn families(&self, pools: &Pools<'_>) -> Vec<bool> {
        let has_one = |index: &&PoolIndex| self.given.iter().any(|address| pools.holds(**index, *address));
        let index = self.pools.iter().find(has_one).or(self.pools.first());
        let offers = |is_v4: &bool| index.is_some_and(|index| pools.offers(*index, *is_v4));
        [true, false].into_iter().filter(offers).collect()
    }

    /// Returns the pools of which it may get more.
    pub(super) fn indices(&self, pools: &Pools<'_>) -> Vec<PoolIndex> {
        self.home(pools).map_or_else(|| self.pools.clone(), |home| vec![home])
    }

    /// Returns the pool of what it has and did not ask for by value.
    pub(super) fn home(&self, pools: &Pools<'_>) -> Option<PoolIndex> {
        let slots = self.slots.iter().filter(|slot| !matches!(slot.wish, Wish::Exactly(_)));
        let got: Vec<IpAddr> = slots.filter_map(|slot| slot.got).collect();
        let has_one = |index: &&PoolIndex| got.iter().any(|address| pools.holds(**index, *address));
        self.pools.iter().find(has_one).copied()
    }

    /// Returns the addresses that it requests by value, and those that it has in status and could keep.
    pub(super) fn wanted(&self) -> impl Iterator<Item = IpAddr> {
        let exact = self.slots.iter().filter_map(|slot| match slot.wish {
            Wish::Exactly(address) => Some(address),
            Wish::Any { .. } | Wish::Spare { .. } => None,
        });
        // What it has is wanted as long as any address of its family is.
        let is_any = |address: &IpAddr| {
            self.slots.iter().any(|slot| match slot.wish {
                Wish::Any { is_v4 } | Wish::Spare { is_v4 } => is_v4 == address.is_ipv4(),
                Wish::Exactly(_) => false,
            })
        };
        exact.chain(self.given.iter().copied().filter(is_any))
    }

    /// Requests an address, if not already requested.
    fn wants(&mut self, address: IpAddr) {
        let known = |slot: &Slot| matches!(slot.wish, Wish::Exactly(other) if other == address);
        if !self.slots.iter().any(known) {
            self.slots.push(Slot { wish: Wish::Exactly(address), got: None });
        }
    }

    pub(super) fn object(&self) -> ObjectRef {
        ObjectRef { kind: self.kind, name: self.name.clone() }
    }

    /// Returns the name of MetalLB's pool that an address of a Service is of.
    fn pool_of(&self, ledger: &Ledger<'_>, address: IpAddr) -> Option<Arc<str>> {
        let service = ledger.cluster.services.get(self.name).filter(|_| self.kind == Kind::Service)?;
        let own = self.pools.iter().copied().find(|index| ledger.pools.holds(*index, address));
        match own.or_else(|| ledger.pools.holding(address).next()) {
            Some(index) => ledger.pools.metallb_name(index),
            None => service.noted.pool.clone(),
        }
    }

    pub(super) fn allocation(self, ledger: &Ledger<'_>) -> Allocation {
        let addresses: Vec<IpAddr> = self.slots.iter().filter_map(|slot| slot.got).collect();
        if let Some(Hold { problem }) = &self.adoption.hold {
            let problem = problem.clone().map(|problem| problem.object(self.object()));
            let has_moved = self.adoption.has_moved;
            return Allocation { addresses, problem, is_held: true, has_moved, ..Allocation::default() };
        }
        let lacks_any = !self.has_other_family()
            && self.slots.iter().any(|s| s.got.is_none() && matches!(s.wish, Wish::Any { .. }));
        let (reason, problem) = if let Some((value, first)) = self.refused.first() {
            let why: Vec<&str> = self.refused.iter().map(|(_, why)| &**why).collect();
            let what = if self.refused.len() == 1 { first.clone() } else { why.join("; ") };
            let problem = Problem::warning(self.field, what, "ask for addresses of your own in the ranges")
                .value(value)
                .object(self.object());
            (Some("AddressNotUsable"), Some(problem))
        } else if let Some(why) = &self.no_pool {
            let remedy = "name a pool that admits it, or none";
            let problem = Problem::warning(POOL_FIELD, why, remedy).object(self.object());
            let pool = self.from.pool.as_deref().unwrap_or_default();
            // To take a pool away takes nothing from those that have an address of it.
            let is_complete = !lacks_any && !addresses.is_empty();
            ((!is_complete).then_some("AddressNotUsable"), Some(problem.value(pool)))
        } else if lacks_any || (addresses.is_empty() && self.kind == Kind::Gateway) {
            let (what, remedy) = self.lack(&ledger.pools);
            let problem = Problem::warning(self.field, what, remedy);
            (Some("AddressNotAssigned"), Some(problem.object(self.object())))
        } else if let Some(first) = addresses.iter().find(|address| ledger.is_taken_out(**address)) {
            let draining = addresses.iter().filter(|address| ledger.is_taken_out(**address));
            let draining = draining.map(ToString::to_string).collect::<Vec<_>>().join(" and ");
            let what = format!(
                "the range of {draining} was taken out of the installation: it keeps what it has, and would not get it again"
            );
            let remedy =
                "move clients to an address of the ranges, or add the range to the chart's values again";
            (None, Some(Problem::warning(self.field, what, remedy).value(first).object(self.object())))
        } else {
            (None, None)
        };
        let problem = match (self.kind, reason) {
            (Kind::Service, Some(_)) => {
                problem.map(|problem: Problem| problem.reason(EventReason::AllocationFailed))
            }
            _ => problem,
        };
        let spare = self.spare(&ledger.pools).filter(|_| !addresses.is_empty());
        let pool = addresses.first().and_then(|address| self.pool_of(ledger, *address));
        Allocation { addresses, reason, problem, spare, pool, is_held: false, has_moved: false }
    }
}
