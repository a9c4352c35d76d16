//! Assigns addresses to Gateways and Services. Pure: the same objects get the same addresses on every node,
//! in any order.
//!
//! Objects are served by age. An object gets what it requests, or already has in status, unless the address
//! is outside the installation's ranges, excluded, or belongs to another namespace: to one that has it, or else to that of the older
//! object. After that, objects that request nothing in particular get the addresses that are still free.
//!
//! What an object was granted is read from Claims first: its status is a copy, which may be empty, or have been edited.
//!
//! An address whose range was taken away drains: who was granted it keeps it and is warned, and nobody else gets it.

/// Which addresses may be assigned at all, and the next free one.
mod pool;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod tests;

use crate::model::cluster::{FamilyWish, GatewaySpec, LoadBalancerSpec};
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Problem};
use foldhash::HashMap;
use pool::Pool;
use std::collections::BTreeMap;
use std::net::IpAddr;

/// The only type of address that we assign (`spec.addresses[].type`).
pub const ADDRESS_TYPE: &str = "IPAddress";

/// The addresses of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Allocation {
    /// For status, in this order: as requested; if nothing was requested, IPv4 first.
    pub addresses: Vec<IpAddr>,
    /// Why `Programmed` is False: `AddressNotUsable` or `AddressNotAssigned`. `None`: nothing that was
    /// requested is missing.
    pub reason: Option<&'static str>,
    /// What is missing, and what to do.
    pub problem: Option<Problem>,
}

/// The addresses of all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Gateways of ours that can have addresses at all.
    pub gateways: BTreeMap<ObjectName, Allocation>,
    /// Services of our class.
    pub services: BTreeMap<ObjectName, Allocation>,
}

/// Returns the addresses that each Gateway should have in status. Requires complete lists of Gateways and
/// Services.
pub fn allocate(cluster: &Cluster) -> BTreeMap<ObjectName, Allocation> {
    assign(cluster).gateways
}

/// Returns the addresses of Gateways and of Services of our class.
pub fn assign(cluster: &Cluster) -> Assignment {
    let mut claimants = claimants(cluster);
    claimants.sort_by_key(|claimant| (claimant.created_secs, claimant.kind, claimant.name));
    let holders = holders(&claimants, cluster);
    let mut ledger =
        Ledger { pool: Pool::new(&cluster.policy), cluster, holders, owners: HashMap::default() };
    for claimant in &mut claimants {
        ledger.settle(claimant);
    }
    for claimant in &mut claimants {
        ledger.fill(claimant);
    }
    let mut assignment = Assignment::default();
    for claimant in claimants {
        let (kind, name) = (claimant.kind, claimant.name.clone());
        let allocation = claimant.allocation(&ledger);
        match kind {
            Kind::Service => assignment.services.insert(name, allocation),
            _ => assignment.gateways.insert(name, allocation),
        };
    }
    assignment
}

/// Returns the first of those that have an address and still want it, by address. Claims say who has it; only of an address that no
/// Claim has, status does: a Gateway without listeners has no Claim.
fn holders<'a>(claimants: &[Claimant<'a>], cluster: &Cluster) -> HashMap<IpAddr, Owner<'a>> {
    let mut holders = HashMap::default();
    for is_claimed in [true, false] {
        for claimant in claimants {
            let Claimant { kind, name, given, .. } = claimant;
            for address in claimant.wanted() {
                let has_it = match is_claimed {
                    true => cluster.possession.has_address(&name.namespace, address),
                    false => given.contains(&address),
                };
                if has_it {
                    holders.entry(address).or_insert(Owner { kind: *kind, name });
                }
            }
        }
    }
    holders
}

/// Whether a Gateway can have addresses: its class is ours and not refused, and the Gateway itself is not
/// refused for a reason that is known without its listeners.
pub fn is_eligible(cluster: &Cluster, gateway: &GatewaySpec) -> bool {
    let class = cluster.classes.get(&gateway.class);
    class.is_some_and(|class| !class.has_parameters)
        && !gateway.has_parameters
        && gateway.addresses.iter().all(|request| &*request.kind == ADDRESS_TYPE)
}

/// A Gateway or Service that wants addresses.
struct Claimant<'a> {
    created_secs: i64,
    kind: Kind,
    name: &'a ObjectName,
    /// Field of the request, for problems.
    field: &'a str,
    /// Addresses that it has: by Claims, then by its status.
    given: Vec<IpAddr>,
    slots: Vec<Slot>,
    /// Requested values that it cannot have, with the reasons.
    refused: Vec<(String, String)>,
}

/// One address that is wanted.
struct Slot {
    wish: Wish,
    got: Option<IpAddr>,
}

#[derive(Clone, Copy)]
enum Wish {
    /// This address.
    Exactly(IpAddr),
    /// Any address of the family.
    Any { is_v4: bool },
    /// Any address of the family, if one is free.
    Spare { is_v4: bool },
}

fn claimants(cluster: &Cluster) -> Vec<Claimant<'_>> {
    let pool = Pool::new(&cluster.policy);
    let families: Vec<bool> = [true, false].into_iter().filter(|is_v4| pool.offers(*is_v4)).collect();
    let gateways = cluster.gateways.iter().filter(|(_, gateway)| is_eligible(cluster, gateway));
    let gateways: Vec<Claimant<'_>> = gateways
        .map(|(name, gateway)| {
            let object = ObjectRef { kind: Kind::Gateway, name: name.clone() };
            let given = given(cluster, &object, &gateway.given);
            let keeps = |address: &&IpAddr| {
                cluster.possession.has_address(&name.namespace, **address)
                    && pool.exclusion(**address).is_none()
            };
            let kept: Vec<bool> = given.iter().filter(keeps).map(IpAddr::is_ipv4).collect();
            // A family whose ranges were taken away is still wanted by who has an address of it.
            let is_wanted = |is_v4: &bool| families.contains(is_v4) || kept.contains(is_v4);
            let families: Vec<bool> = [true, false].into_iter().filter(is_wanted).collect();
            gateway_claim(name, gateway, given, &families)
        })
        .collect();
    let services = cluster.services.iter().filter_map(|(name, service)| {
        let balancer = service.load_balancer.as_deref()?;
        let object = ObjectRef { kind: Kind::Service, name: name.clone() };
        let given = given(cluster, &object, &balancer.given);
        Some(service_claim(name, service.meta.created_secs, balancer, given, &families))
    });
    gateways.into_iter().chain(services).collect()
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

fn gateway_claim<'a>(
    name: &'a ObjectName,
    gateway: &'a GatewaySpec,
    given: Vec<IpAddr>,
    families: &[bool],
) -> Claimant<'a> {
    let wants_addresses = wants_addresses(gateway, &given);
    let mut claimant = Claimant {
        created_secs: gateway.meta.created_secs,
        kind: Kind::Gateway,
        name,
        field: "spec.addresses",
        given,
        slots: Vec::new(),
        refused: Vec::new(),
    };
    let mut any = families.iter().cycle();
    for request in &gateway.addresses {
        let Some(value) = &request.value else {
            // Without ranges there is no family to request: the slot stays empty.
            let is_v4 = any.next().copied().unwrap_or(true);
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

/// Whether an address would serve anything. A Gateway with only HTTP listeners gets none.
fn wants_addresses(gateway: &GatewaySpec, given: &[IpAddr]) -> bool {
    let served = |protocol: &str| protocol == "TLS" || protocol == "TCP";
    !given.is_empty()
        || gateway.listeners.is_empty()
        || gateway.listeners.iter().any(|listener| served(&listener.protocol))
}

/// `families`: those that the ranges have.
fn service_claim<'a>(
    name: &'a ObjectName,
    created_secs: i64,
    balancer: &'a LoadBalancerSpec,
    given: Vec<IpAddr>,
    families: &[bool],
) -> Claimant<'a> {
    let mut claimant = Claimant {
        created_secs,
        kind: Kind::Service,
        name,
        field: if balancer.field.is_empty() { "spec.ipFamilies" } else { &balancer.field },
        given,
        slots: Vec::new(),
        refused: Vec::new(),
    };
    for address in &balancer.addresses {
        claimant.wants(*address);
    }
    if !balancer.addresses.is_empty() || !balancer.field.is_empty() {
        return claimant;
    }
    let any = FamilyWish { is_v4: families.first().copied().unwrap_or(true), is_required: true };
    let wishes = if balancer.families.is_empty() { std::slice::from_ref(&any) } else { &balancer.families };
    let slot = |wish: &FamilyWish| {
        let FamilyWish { is_v4, is_required } = *wish;
        let wish = if is_required { Wish::Any { is_v4 } } else { Wish::Spare { is_v4 } };
        Slot { wish, got: None }
    };
    claimant.slots = wishes.iter().map(slot).collect();
    claimant
}

impl Claimant<'_> {
    /// Returns the addresses that it requests by value, and those that it has in status and could keep.
    fn wanted(&self) -> impl Iterator<Item = IpAddr> {
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

    fn object(&self) -> ObjectRef {
        ObjectRef { kind: self.kind, name: self.name.clone() }
    }

    /// Why it has no address, or not one of each family, and what to do.
    fn lack(&self, pool: &Pool<'_>) -> (&'static str, &'static str) {
        const ADD: &str = "add a range to the chart's values";
        let lacking = self.slots.iter().find_map(|slot| match slot.wish {
            Wish::Any { is_v4 } if slot.got.is_none() => Some(is_v4),
            _ => None,
        });
        match lacking {
            _ if !pool.offers(true) && !pool.offers(false) => ("the installation has no address ranges", ADD),
            Some(true) if !pool.offers(true) => ("the installation has no IPv4 address range", ADD),
            Some(false) if !pool.offers(false) => ("the installation has no IPv6 address range", ADD),
            None if self.slots.is_empty() => {
                ("none of its listeners can be served: it needs no address", "add a TLS or TCP listener")
            }
            _ => ("all addresses of the installation's ranges are in use", ADD),
        }
    }

    fn allocation(self, ledger: &Ledger<'_>) -> Allocation {
        let addresses: Vec<IpAddr> = self.slots.iter().filter_map(|slot| slot.got).collect();
        let lacks_any = self.slots.iter().any(|s| s.got.is_none() && matches!(s.wish, Wish::Any { .. }));
        let (reason, problem) = if let Some((value, first)) = self.refused.first() {
            let why: Vec<&str> = self.refused.iter().map(|(_, why)| &**why).collect();
            let what = if self.refused.len() == 1 { first.clone() } else { why.join("; ") };
            let problem = Problem::warning(self.field, what, "ask for addresses of your own in the ranges")
                .value(value)
                .object(self.object());
            (Some("AddressNotUsable"), Some(problem))
        } else if lacks_any || (addresses.is_empty() && self.kind == Kind::Gateway) {
            let (what, remedy) = self.lack(&ledger.pool);
            let problem = Problem::warning(self.field, what, remedy);
            (Some("AddressNotAssigned"), Some(problem.object(self.object())))
        } else if let Some(first) = addresses.iter().find(|address| !ledger.pool.holds(**address)) {
            let draining = addresses.iter().filter(|address| !ledger.pool.holds(**address));
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
        Allocation { addresses, reason, problem }
    }
}

/// The owners of addresses.
struct Ledger<'a> {
    pool: Pool<'a>,
    cluster: &'a Cluster,
    /// Those that had an address before, and still want it.
    holders: HashMap<IpAddr, Owner<'a>>,
    owners: HashMap<IpAddr, Owner<'a>>,
}

/// The oldest object that has an address.
struct Owner<'a> {
    kind: Kind,
    name: &'a ObjectName,
}

impl<'a> Ledger<'a> {
    /// Gives an object the addresses that it requests by value, and those it has in status and may keep.
    fn settle(&mut self, claimant: &mut Claimant<'a>) {
        let mut slots = std::mem::take(&mut claimant.slots);
        for slot in &mut slots {
            let Wish::Exactly(address) = slot.wish else { continue };
            match self.objection(claimant, address) {
                None => {
                    slot.got = Some(address);
                    self.own(claimant, address);
                }
                Some(why) => claimant.refused.push((address.to_string(), why)),
            }
        }
        for address in &claimant.given {
            let free = slots.iter_mut().find(|slot| {
                slot.got.is_none()
                    && matches!(slot.wish, Wish::Any { is_v4 } | Wish::Spare { is_v4 } if is_v4 == address.is_ipv4())
            });
            let Some(slot) = free else { continue };
            let usable = self.pool.exclusion(*address).is_none()
                && (self.pool.holds(*address) || self.drains(claimant, *address))
                && !self.owners.contains_key(address)
                && self.holder(claimant, *address).is_none();
            if usable && !self.cluster.policy.shared.contains(address) {
                slot.got = Some(*address);
                self.own(claimant, *address);
            }
        }
        claimant.slots = slots;
    }

    /// Gives an object addresses that are still free.
    fn fill(&mut self, claimant: &mut Claimant<'a>) {
        let mut slots = std::mem::take(&mut claimant.slots);
        for slot in slots.iter_mut().filter(|slot| slot.got.is_none()) {
            let (Wish::Any { is_v4 } | Wish::Spare { is_v4 }) = slot.wish else { continue };
            slot.got = self.pool.next(is_v4, |address| {
                self.owners.contains_key(&address) || self.holders.contains_key(&address)
            });
            if let Some(address) = slot.got {
                self.own(claimant, address);
            }
        }
        claimant.slots = slots;
    }

    /// Returns why an object may not have an address that it requests; `None`: it may.
    fn objection(&self, claimant: &Claimant<'_>, address: IpAddr) -> Option<String> {
        if let Some(why) = self.pool.exclusion(address) {
            return Some(why);
        }
        if !self.pool.holds(address) && !self.drains(claimant, address) {
            return Some(format!("{address} is in none of the address ranges of the installation"));
        }
        if self.cluster.policy.shared.contains(&address) {
            return None;
        }
        let (owner, why) = match (self.holder(claimant, address), self.owners.get(&address)) {
            (Some(holder), _) => (holder, "which has it"),
            (None, Some(owner)) => (owner, "which is older"),
            (None, None) => return None,
        };
        (owner.name.namespace != claimant.name.namespace).then(|| {
            let Owner { kind, name } = owner;
            format!("{address} belongs to {kind} {name}, {why}, and is not shared between namespaces")
        })
    }

    /// Returns the object of another namespace that has an address, unless one of the claimant's own has it too.
    fn holder(&self, claimant: &Claimant<'_>, address: IpAddr) -> Option<&Owner<'a>> {
        let is_own = self.cluster.possession.has_address(&claimant.name.namespace, address);
        self.holders
            .get(&address)
            .filter(|holder| !is_own && holder.name.namespace != claimant.name.namespace)
    }

    /// Whether an object keeps an address that is in no range any more: its namespace was granted it, which only Claims say, and it
    /// is among its own.
    fn drains(&self, claimant: &Claimant<'_>, address: IpAddr) -> bool {
        self.cluster.possession.has_address(&claimant.name.namespace, address)
            && claimant.given.contains(&address)
    }

    fn own(&mut self, claimant: &Claimant<'a>, address: IpAddr) {
        self.owners.entry(address).or_insert(Owner { kind: claimant.kind, name: claimant.name });
    }
}
