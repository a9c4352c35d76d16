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
//!
//! The chart's ranges are one pool, those of MetalLB are others. Who has an address keeps it whatever a pool says later; what an object
//! gets without asking for it by value comes from one pool.

/// Services that MetalLB may have served.
mod adopt;
/// Gateways and Services that want addresses, and what each of them wants.
mod claimant;
/// Addresses that objects of several namespaces have.
mod crossing;
/// Why an object has no address, or not all that it wants.
mod lack;
/// Which addresses of a range go only to who asks for them by value, and how many are left.
mod count;
/// Which addresses may be assigned at all, of which pool, and the next free one.
mod pool;
/// Services that share an address by a key.
mod share;
/// While not all objects and pools are known.
mod unknown;
#[cfg(test)]
mod adopt_tests;
#[cfg(test)]
mod histories;
#[cfg(test)]
mod lack_tests;
#[cfg(test)]
mod pool_tests;
#[cfg(test)]
mod service_tests;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod witness_tests;

use crate::model::cluster::{AddressHold, GatewaySpec};
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Problem};
use claimant::{Claimant, Wish, claimants};
use crossing::crossing;
use foldhash::HashMap;
use pool::{PoolIndex, Pools};
use share::{Share, Shares};
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

/// The only type of address that we assign (`spec.addresses[].type`).
pub const ADDRESS_TYPE: &str = "IPAddress";
/// Where an object names a pool, for problems.
const POOL_FIELD: &str = "metadata.annotations[metallb.io/address-pool]";

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
    /// Why a Service has no address of a family that it can do without.
    pub spare: Option<String>,
    /// Name of MetalLB's pool that a Service's addresses are of. One that is gone is still the one that they were of.
    pub pool: Option<Arc<str>>,
    /// It is left alone: its status and its Claims stay as they are.
    pub is_held: bool,
    /// But its Claims go: another implementation has given it other addresses.
    pub has_moved: bool,
}

/// How much of a pool is in use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUse {
    /// Addresses that objects have: IPv4, IPv6.
    pub assigned: [u64; 2],
    /// Those that are still free: IPv4, IPv6.
    pub available: [u64; 2],
}

/// The addresses of all objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Assignment {
    /// Gateways of ours that can have addresses at all.
    pub gateways: BTreeMap<ObjectName, Allocation>,
    /// Services of ours.
    pub services: BTreeMap<ObjectName, Allocation>,
    /// Pools of MetalLB.
    pub pools: BTreeMap<ObjectName, PoolUse>,
}

/// Returns the addresses that each Gateway should have in status. Requires complete lists of Gateways and
/// Services.
pub fn allocate(cluster: &Cluster) -> BTreeMap<ObjectName, Allocation> {
    assign(cluster).gateways
}

/// Reports pools that hold addresses of others.
pub fn report(cluster: &Cluster, problems: &mut Vec<Problem>) {
    if cluster.policy.pools.is_on() {
        pool::report(cluster, problems);
    }
}

/// Returns the addresses of Gateways and of Services of our class.
pub fn assign(cluster: &Cluster) -> Assignment {
    let pools = Pools::new(cluster);
    let mut claimants = claimants(cluster, &pools);
    claimants.sort_by_key(|claimant| (claimant.created_secs, claimant.kind, claimant.name));
    let holders = holders(&claimants, cluster);
    let crossing = crossing(&claimants, cluster, &pools);
    let (owners, shares) = (HashMap::default(), Shares::default());
    let mut ledger = Ledger { pools, cluster, holders, crossing, owners, shares };
    for claimant in &mut claimants {
        ledger.settle(claimant);
    }
    for claimant in &mut claimants {
        ledger.fill(claimant);
    }
    let pools = match cluster.policy.pools.is_on() {
        true => ledger.pools.uses(ledger.owners.keys().copied()),
        false => BTreeMap::new(),
    };
    let mut assignment = Assignment { pools, ..Assignment::default() };
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

/// The owners of addresses.
struct Ledger<'a> {
    pools: Pools<'a>,
    cluster: &'a Cluster,
    /// Those that had an address before, and still want it.
    holders: HashMap<IpAddr, Owner<'a>>,
    /// Those that had an address which several namespaces may share.
    crossing: HashMap<IpAddr, Vec<(ObjectRef, Share<'a>)>>,
    owners: HashMap<IpAddr, Owner<'a>>,
    shares: Shares<'a>,
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
        let exact = slots.iter().filter_map(|slot| match slot.wish {
            Wish::Exactly(address) => Some((address, self.objection(claimant, address)?)),
            Wish::Any { .. } | Wish::Spare { .. } => None,
        });
        let refused: Vec<(IpAddr, String)> = exact.collect();
        for slot in &mut slots {
            let Wish::Exactly(address) = slot.wish else { continue };
            // As with MetalLB, a Service gets all that it asks for or nothing, but for what it has.
            let is_whole =
                refused.is_empty() && claimant.refused.is_empty() || claimant.kind != Kind::Service;
            let is_refused = refused.iter().any(|(other, _)| *other == address);
            if !is_refused && (is_whole || claimant.given.contains(&address)) {
                slot.got = Some(address);
                self.own(claimant, address);
            }
        }
        claimant.refused.extend(refused.into_iter().map(|(address, why)| (address.to_string(), why)));
        for address in &claimant.given {
            let free = slots.iter_mut().find(|slot| {
                slot.got.is_none()
                    && matches!(slot.wish, Wish::Any { is_v4 } | Wish::Spare { is_v4 } if is_v4 == address.is_ipv4())
            });
            let Some(slot) = free else { continue };
            let is_adopted = claimant.adoption.addresses.contains(address) && self.pools.have(*address);
            let usable = self.pools.exclusion(*address).is_none()
                && (self.may_have(claimant, *address) || self.drains(claimant, *address) || is_adopted)
                && (!self.owners.contains_key(address) || self.keeps_shared(claimant, *address))
                && self
                    .holder(claimant, *address)
                    .is_none_or(|holder| self.share_with(claimant, *address, holder))
                && self.stranger(claimant, *address).is_none();
            if usable && !self.cluster.policy.shared.contains(address) {
                slot.got = Some(*address);
                self.own(claimant, *address);
            }
        }
        let missing = |address: &&IpAddr| !slots.iter().any(|slot| slot.got == Some(**address));
        if claimant.adoption.hold.is_none()
            && let Some(address) = claimant.adoption.addresses.iter().find(missing).copied()
        {
            let why = self.objection(claimant, address);
            claimant.adoption.refuse(address, why);
        }
        claimant.slots = slots;
    }

    /// Gives an object addresses, shared or free: all of the pool of which it has one, or else of the first that has all that it needs.
    fn fill(&mut self, claimant: &mut Claimant<'a>) {
        if claimant.adoption.hold.is_some() || self.cluster.address_hold != AddressHold::Nothing {
            return;
        }
        let open = claimant.slots.iter().filter_map(|slot| Some((slot.open()?, slot.is_needed())));
        let open: Vec<(bool, bool)> = open.collect();
        if open.is_empty() {
            return;
        }
        let Some(index) = self.choose(claimant, &open) else {
            // Which families a pool lacks is said, and so has to be known of each of them.
            for index in claimant.indices(&self.pools) {
                for (is_v4, _) in &open {
                    let _ = self.next(claimant, index, *is_v4);
                }
            }
            return;
        };
        for at in 0..claimant.slots.len() {
            let Some(is_v4) = claimant.slots[at].open() else { continue };
            if let Some(address) = self.next(claimant, index, is_v4) {
                self.give(claimant, at, address);
            }
        }
    }

    fn give(&mut self, claimant: &mut Claimant<'a>, slot: usize, address: IpAddr) {
        claimant.slots[slot].got = Some(address);
        self.own(claimant, address);
    }

    /// Returns the pool that an object gets the rest of its addresses of. `wished`: families, IPv4 or else IPv6, and whether it is
    /// incomplete without. As MetalLB does, of pools of one rank one that also has what it is complete without comes first, and a Service
    /// that requires both families gets both or nothing; one that prefers both has the other one rather than none of these pools.
    fn choose(&mut self, claimant: &Claimant<'a>, wished: &[(bool, bool)]) -> Option<PoolIndex> {
        let indices = claimant.indices(&self.pools);
        let ranks: Vec<&[PoolIndex]> =
            indices.chunk_by(|one, next| self.pools.rank(*one) == self.pools.rank(*next)).collect();
        let is_service = claimant.kind == Kind::Service;
        let has_spare = wished.iter().any(|(_, is_needed)| !is_needed);
        let mut has = |index: &PoolIndex, is_v4: &bool| self.next(claimant, *index, *is_v4).is_some();
        for rank in ranks {
            for counts_spare in [true, false].into_iter().filter(|counts_spare| has_spare || *counts_spare) {
                let mut has_all = |index: &PoolIndex| {
                    let is_wanted = |is_needed: &bool| *is_needed || counts_spare;
                    wished.iter().all(|(is_v4, is_needed)| !is_wanted(is_needed) || has(index, is_v4))
                };
                if let Some(index) = rank.iter().copied().find(|index| has_all(index)) {
                    return Some(index);
                }
            }
            let mut has_any = |index: &PoolIndex| wished.iter().any(|(is_v4, _)| has(index, is_v4));
            if let Some(index) = rank.iter().copied().find(|index| is_service && has_spare && has_any(index))
            {
                return Some(index);
            }
        }
        let mut has_any = |index: &PoolIndex| wished.iter().any(|(is_v4, _)| has(index, is_v4));
        indices.iter().copied().find(|index| !is_service && has_any(index))
    }

    /// Returns the first address of a pool and family that is free, or that others share with it.
    fn next(&mut self, claimant: &Claimant<'a>, index: PoolIndex, is_v4: bool) -> Option<IpAddr> {
        let Self { pools, owners, holders, shares, .. } = self;
        if pools.is_closed(index) {
            return None;
        }
        let free = pools
            .next(index, is_v4, |address| owners.contains_key(&address) || holders.contains_key(&address));
        let shared =
            shares.find(&claimant.name.namespace, &claimant.share, is_v4, pools.ranges(index, is_v4));
        let shared = shared.filter(|address| !pools.avoids(index, *address));
        let in_order = |address: &IpAddr| (pools.range_of(index, *address), *address);
        free.into_iter().chain(shared).min_by_key(in_order)
    }

    /// Returns why an object may not have an address that it requests; `None`: it may.
    fn objection(&self, claimant: &Claimant<'_>, address: IpAddr) -> Option<String> {
        if let Some(why) = self.pools.exclusion(address) {
            return Some(why);
        }
        let drains = self.drains(claimant, address);
        let keeps = drains || claimant.adoption.addresses.contains(&address);
        let holding: Vec<PoolIndex> = self.pools.holding(address).collect();
        if let Some(first) = holding.first().copied() {
            let named = self.pools.name(first);
            if let Some(asked) = &claimant.from.pool
                && !keeps
                && !holding.iter().any(|index| claimant.pools.contains(index))
            {
                return Some(format!("{address} is in {named}, not in the pool {asked}"));
            }
            // Only status says what a Gateway without listeners has.
            let has_it = claimant.given.contains(&address) && !self.cluster.possession.is_had(address);
            if !keeps && !has_it && holding.iter().all(|index| self.pools.avoids(*index, address)) {
                return Some(format!("{address} is one that {named} leaves out (avoidBuggyIPs)"));
            }
            if !keeps && !self.may_have(claimant, address) {
                return Some(format!("{address} is in {named}, which does not admit it"));
            }
            if !drains
                && !claimant.given.contains(&address)
                && holding.iter().all(|index| self.pools.is_closed(*index))
            {
                return self.pools.closed();
            }
        } else if !drains {
            return Some(format!("{address} is in none of the address ranges of the installation"));
        }
        if self.cluster.policy.shared.contains(&address) {
            return None;
        }
        let objection = |kind: Kind, name: &ObjectName, why: &str| {
            format!("{address} belongs to {kind} {name}, {why}, and is not shared between namespaces")
        };
        if let Some((kind, name)) = self.stranger(claimant, address) {
            return Some(objection(kind, name, "which has it"));
        }
        let (owner, why) = match (self.holder(claimant, address), self.owners.get(&address)) {
            (Some(holder), _) => (holder, "which has it"),
            (None, Some(owner)) => (owner, "which is older"),
            (None, None) => return None,
        };
        let is_shared = || self.share_with(claimant, address, owner);
        (owner.name.namespace != claimant.name.namespace && !is_shared())
            .then(|| objection(owner.kind, owner.name, why))
    }

    /// Returns the object of another namespace that has an address, unless one of the claimant's own has it too.
    fn holder(&self, claimant: &Claimant<'_>, address: IpAddr) -> Option<&Owner<'a>> {
        let is_own = self.cluster.possession.has_address(&claimant.name.namespace, address);
        self.holders
            .get(&address)
            .filter(|holder| !is_own && holder.name.namespace != claimant.name.namespace)
    }

    /// Whether a pool has an address and admits an object.
    fn may_have(&self, claimant: &Claimant<'_>, address: IpAddr) -> bool {
        self.pools.holding(address).any(|index| self.pools.admits(index, claimant.name, claimant.from))
    }

    /// Whether an object keeps an address whatever the pools are now: it was granted it, which only Claims say.
    fn drains(&self, claimant: &Claimant<'_>, address: IpAddr) -> bool {
        self.cluster.possession.of_object(&claimant.object()).any(|other| other == address)
    }

    /// Whether no pool has an address any more, and all of them are known.
    fn is_taken_out(&self, address: IpAddr) -> bool {
        self.cluster.address_hold == AddressHold::Nothing && !self.pools.have(address)
    }

    fn own(&mut self, claimant: &Claimant<'a>, address: IpAddr) {
        self.owners.entry(address).or_insert(Owner { kind: claimant.kind, name: claimant.name });
        // Those that the chart shares go only to who asks for them by value.
        if !self.cluster.policy.shared.contains(&address) {
            let crosses = self.pools.share_across_namespaces(address);
            let ranges = self.pools.holding(address).filter_map(|index| self.pools.range_of(index, address));
            self.shares.note(&claimant.name.namespace, &claimant.share, (address, ranges), crosses);
        }
    }
}
