//! Who may have an address that an object of another namespace has.

use super::claimant::Claimant;
use super::pool::Pools;
use super::share::Share;
use super::{Ledger, Owner};
use crate::model::{Cluster, Kind, ObjectName, ObjectRef};
use foldhash::HashMap;
use std::net::IpAddr;

/// Returns all that have an address and still want it, where several namespaces have it or may share it.
pub(super) fn crossing<'a>(
    claimants: &[Claimant<'a>],
    cluster: &Cluster,
    pools: &Pools<'_>,
) -> HashMap<IpAddr, Vec<(ObjectRef, Share<'a>)>> {
    let held = |claimant: &Claimant<'a>| {
        let object = claimant.object();
        let granted: Vec<IpAddr> = cluster.possession.of_object(&object).collect();
        // A status says who has an address only where no Claim does: it may have been edited.
        let is_given = |address: &IpAddr| {
            claimant.adoption.addresses.contains(address)
                || claimant.given.contains(address) && !cluster.possession.is_had(*address)
        };
        let has_it = |address: &IpAddr| granted.contains(address) || is_given(address);
        claimant.wanted().filter(has_it).collect::<Vec<_>>()
    };
    // The first namespace that has an address; `None`: several do or may.
    let mut only: HashMap<IpAddr, Option<&str>> = HashMap::default();
    for claimant in claimants {
        for address in held(claimant) {
            let namespace = Some(&*claimant.name.namespace);
            let first = || namespace.filter(|_| !pools.share_across_namespaces(address));
            let only = only.entry(address).or_insert_with(first);
            *only = only.filter(|_| *only == namespace);
        }
    }
    let mut crossing: HashMap<IpAddr, Vec<(ObjectRef, Share<'a>)>> = HashMap::default();
    for claimant in claimants {
        for address in held(claimant).into_iter().filter(|address| only.get(address) == Some(&None)) {
            crossing.entry(address).or_default().push((claimant.object(), claimant.share.clone()));
        }
    }
    crossing
}

impl Ledger<'_> {
    /// Whether an object keeps an address that another one has, too: they share it, or it was granted it when they did. Where both have
    /// a port then, the older one answers there.
    pub(super) fn keeps_shared(&self, claimant: &Claimant<'_>, address: IpAddr) -> bool {
        let is_of_namespace = |owner: &Owner<'_>| {
            owner.name.namespace == claimant.name.namespace && claimant.share.key.is_some()
        };
        self.shares.admit(&claimant.name.namespace, &claimant.share, address)
            || self.owners.get(&address).is_some_and(is_of_namespace) && self.drains(claimant, address)
            || self.owners.get(&address).is_some_and(|owner| self.share_with(claimant, address, owner))
    }

    /// Whether an object may have an address that an object of another namespace has: both have it already, or the pool lets
    /// namespaces share it.
    pub(super) fn share_with(&self, claimant: &Claimant<'_>, address: IpAddr, owner: &Owner<'_>) -> bool {
        self.share_by_key(claimant, address, owner) || self.crosses(claimant, address)
    }

    /// Returns the object of another namespace that has an address, and with which an object that does not have it may not share it,
    /// although its own namespace has the address.
    pub(super) fn stranger(&self, claimant: &Claimant<'_>, address: IpAddr) -> Option<(Kind, &ObjectName)> {
        if self.drains(claimant, address) {
            return None;
        }
        let (namespace, share) = (&claimant.name.namespace, &claimant.share);
        // What MetalLB gave is kept from nobody but whom a Claim says has it; those of one key share it, whatever their ports.
        let is_adopted = claimant.adoption.addresses.contains(&address);
        let granted =
            |object: &ObjectRef| self.cluster.possession.of_object(object).any(|had| had == address);
        let fits = |object: &ObjectRef, other: &Share<'_>| match is_adopted {
            true => !granted(object) || share.key.is_some() && share.key == other.key,
            false => share.fits(other),
        };
        let others = self.crossing.get(&address).into_iter().flatten();
        let mut others = others.filter(|(object, _)| object.name.namespace != *namespace);
        if let Some((object, _)) = others.find(|(object, other)| !fits(object, other)) {
            return Some((object.kind, &object.name));
        }
        let is_crossed =
            !is_adopted && self.shares.is_crossed(address) && !self.shares.admit(namespace, share, address);
        self.owners.get(&address).filter(|_| is_crossed).map(|owner| (owner.kind, owner.name))
    }

    /// Whether the pool lets namespaces share an address, and an object has the key of all others that have it, and other ports.
    fn crosses(&self, claimant: &Claimant<'_>, address: IpAddr) -> bool {
        let share = &claimant.share;
        let others = self.crossing.get(&address).into_iter().flatten();
        let mut others = others.filter(|(object, _)| *object != claimant.object());
        self.pools.share_across_namespaces(address)
            && share.key.is_some()
            && others.all(|(_, other)| share.fits(other))
            && (!self.shares.has(address) || self.shares.admit(&claimant.name.namespace, share, address))
    }

    /// Whether both have an address by one key though they are of two namespaces: MetalLB lets them, and so does a pool that says so; what
    /// was made stays. Once both were granted it, no key that one of them changes and no pool takes it from the other.
    fn share_by_key(&self, claimant: &Claimant<'_>, address: IpAddr, owner: &Owner<'_>) -> bool {
        let balancer = |kind, name| {
            let service = self.cluster.services.get(name).filter(|_| kind == Kind::Service)?;
            service.load_balancer.as_deref()
        };
        let own = balancer(claimant.kind, claimant.name);
        let (Some(own), Some(other)) = (own, balancer(owner.kind, owner.name)) else { return false };
        let is_granted = self.drains(claimant, address);
        let has_it = is_granted || claimant.adoption.addresses.contains(&address);
        let object = || ObjectRef { kind: owner.kind, name: owner.name.clone() };
        let both_granted = || {
            let may = claimant.name.namespace != owner.name.namespace || own.is_adopted && other.is_adopted;
            may && is_granted && self.cluster.possession.of_object(&object()).any(|had| had == address)
        };
        has_it && (own.sharing_key.is_some() && own.shares_by() == other.shares_by() || both_granted())
    }
}
