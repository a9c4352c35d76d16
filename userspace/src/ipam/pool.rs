//! Which addresses may be assigned at all, of which pool, and the next free one.

use super::PoolUse;
use super::count::{LeftOut, count};
use crate::model::cluster::{AddressRange, Policy, PoolScope, PoolSpec, PoolWish};
use crate::model::{Cluster, Kind, ObjectName, ObjectRef, Problem};
use ipnet::IpNet;
use std::collections::BTreeMap;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

/// The chart's ranges and MetalLB's pools, in the order in which objects get addresses of them: pools that admit some only, the
/// chart's ranges, and pools that admit everybody; among pools, by priority and name.
pub(super) struct Pools<'a> {
    cluster: &'a Cluster,
    pools: Vec<Pool<'a>>,
}

/// Index of a pool among all.
pub(super) type PoolIndex = usize;

/// A pool, and which of its ranges.
pub(super) type RangeIndex = (PoolIndex, usize);

/// Ranges, read from first to last.
struct Pool<'a> {
    /// `None`: the chart's ranges.
    spec: Option<&'a PoolSpec>,
    ranges: &'a [AddressRange],
    v4: Cursor,
    v6: Cursor,
}

/// The position of the search for a free address of a family. Everything before it is taken or may not be
/// assigned.
#[derive(Default)]
struct Cursor {
    range: usize,
    /// `None`: the range's first address.
    next: Option<IpAddr>,
}

/// Why an object that names no pool gets no address of one.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum NotFor {
    /// It gives addresses to those who name it.
    Unasked,
    /// It is for others.
    Others,
    /// MetalLB may run.
    Closed,
}

impl NotFor {
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Unasked => "gives none unasked (spec.autoAssign)",
            Self::Others => "does not admit it (spec.serviceAllocation)",
            Self::Closed => "gives none while MetalLB may run",
        }
    }
}

impl<'a> Pools<'a> {
    pub(super) fn new(cluster: &'a Cluster) -> Self {
        let policy = &cluster.policy;
        let is_read = |pool: &&PoolSpec| policy.pools.namespaces.contains(&pool.meta.name.namespace);
        let read = cluster.pools.values().map(|pool| &**pool).filter(is_read);
        let (mut bound, mut free): (Vec<&PoolSpec>, Vec<&PoolSpec>) =
            read.partition(|pool| pool.scope.is_bound());
        for pools in [&mut bound, &mut free] {
            pools.sort_by_key(|pool| (pool.priority, &pool.meta.name.name, &pool.meta.name.namespace));
        }
        let of = |spec: Option<&'a PoolSpec>| Pool {
            spec,
            ranges: spec.map_or(&policy.ranges, |spec| &spec.ranges),
            v4: Cursor::default(),
            v6: Cursor::default(),
        };
        let specs = bound.into_iter().map(Some).chain([None]).chain(free.into_iter().map(Some));
        Self { cluster, pools: specs.map(of).collect() }
    }

    /// Returns the pools of which an object may get addresses that it does not ask for by value, in order; or why it gets none of the
    /// pool that it asks for.
    pub(super) fn of(&self, object: &ObjectName, wish: &PoolWish) -> Result<Vec<PoolIndex>, String> {
        let indices = || (0..self.pools.len()).filter(|index| !self.pools[*index].ranges.is_empty());
        let Some(asked) = &wish.pool else {
            let is_automatic = |index: &PoolIndex| {
                !self.is_closed(*index) && self.pools[*index].spec.is_none_or(|spec| spec.is_automatic)
            };
            let indices = indices().filter(is_automatic).filter(|index| self.admits(*index, object, wish));
            return Ok(indices.collect());
        };
        let is_asked =
            |index: &PoolIndex| self.pools[*index].spec.is_some_and(|s| s.meta.name.name == *asked);
        match (0..self.pools.len()).find(is_asked) {
            Some(index) if self.admits(index, object, wish) => Ok(vec![index]),
            Some(_) => Err(format!("the pool {asked} does not admit it: its serviceAllocation names others")),
            None => Err(format!("there is no pool {asked}")),
        }
    }

    /// Whether a pool has an address.
    pub(super) fn holds(&self, index: PoolIndex, address: IpAddr) -> bool {
        self.pools[index].ranges.iter().any(|range| range.holds(address))
    }

    /// Returns the first range of a pool that has an address.
    pub(super) fn range_of(&self, index: PoolIndex, address: IpAddr) -> Option<RangeIndex> {
        let at = self.pools[index].ranges.iter().position(|range| range.holds(address))?;
        Some((index, at))
    }

    /// Returns a pool's ranges of a family, in order.
    pub(super) fn ranges(&self, index: PoolIndex, is_v4: bool) -> impl Iterator<Item = RangeIndex> {
        let ranges = self.pools[index].ranges.iter().enumerate();
        ranges.filter(move |(_, range)| range.first.is_ipv4() == is_v4).map(move |(at, _)| (index, at))
    }

    /// Returns the pools with an address: several, where they overlap.
    pub(super) fn holding(&self, address: IpAddr) -> impl Iterator<Item = PoolIndex> {
        (0..self.pools.len()).filter(move |index| self.holds(*index, address))
    }

    /// Whether a pool has an address.
    pub(super) fn have(&self, address: IpAddr) -> bool {
        self.holding(address).next().is_some()
    }

    /// Whether Services of several namespaces may share an address: every pool that has it says so.
    pub(super) fn share_across_namespaces(&self, address: IpAddr) -> bool {
        let says_so = |index: PoolIndex| self.pools[index].spec.is_some_and(|s| s.shares_across_namespaces);
        self.have(address) && self.holding(address).all(says_so)
    }

    /// Whether an object may ask a pool for an address by value.
    pub(super) fn admits(&self, index: PoolIndex, object: &ObjectName, wish: &PoolWish) -> bool {
        let scope: Option<&PoolScope> = self.pools[index].spec.map(|spec| &spec.scope);
        let namespace = &object.namespace;
        let labels = self.cluster.namespaces.labels.get(namespace).map(|labels| &**labels);
        scope.is_none_or(|scope| scope.admits(namespace, labels, &wish.labels))
    }

    /// Returns why nobody gets an address of MetalLB's pools that he does not have; `None`: everybody may.
    pub(super) fn closed(&self) -> Option<String> {
        let why = &self.cluster.pools_closed.as_ref().filter(|_| self.pools.len() > 1)?.why;
        Some(format!("{why}: nobody gets an address of its pools meanwhile"))
    }

    /// Whether a pool is one of those.
    pub(super) fn is_closed(&self, index: PoolIndex) -> bool {
        self.cluster.pools_closed.is_some() && self.pools[index].spec.is_some()
    }

    /// Whether a pool has addresses of a family.
    pub(super) fn offers(&self, index: PoolIndex, is_v4: bool) -> bool {
        self.pools[index].ranges.iter().any(|range| range.first.is_ipv4() == is_v4)
    }

    /// Whether all addresses of a family that a pool gives are known to be taken.
    pub(super) fn is_spent(&self, index: PoolIndex, is_v4: bool) -> bool {
        let Pool { ranges, v4, v6, .. } = &self.pools[index];
        let cursor = if is_v4 { v4 } else { v6 };
        cursor.range >= ranges.len()
    }

    /// Returns why a pool gives nobody an address of a family that it has ranges of; `None`: it gives some.
    pub(super) fn why_none(&self, index: PoolIndex, is_v4: bool) -> Option<&'static str> {
        let Pool { spec, ranges, .. } = &self.pools[index];
        let excluded = IpNet::aggregate(&self.cluster.policy.excluded);
        let ranges = || ranges.iter().filter(|range| range.first.is_ipv4() == is_v4);
        let gives = |excluded: &[IpNet]| ranges().any(|range| count(range, left_out(*spec), excluded) > 0);
        match (gives(&excluded), gives(&[]), spec) {
            (true, ..) => None,
            (false, true, _) => Some("all of them are in ranges of nodes, pods or Services"),
            (false, false, Some(_)) => Some("spec.avoidBuggyIPs leaves out all of them"),
            (false, false, None) => Some("all of them look like the address of a network"),
        }
    }

    /// Returns the pools with addresses of one of these families of which an object that names no pool gets none, each with the reason.
    pub(super) fn not_for(
        &self,
        object: &ObjectName,
        wish: &PoolWish,
        families: &[bool],
    ) -> Vec<(PoolIndex, NotFor)> {
        let offers = |index: &PoolIndex| families.iter().any(|is_v4| self.offers(*index, *is_v4));
        let why = |index: PoolIndex| {
            let spec = self.pools[index].spec?;
            match () {
                () if !spec.is_automatic => Some(NotFor::Unasked),
                () if !self.admits(index, object, wish) => Some(NotFor::Others),
                () => self.is_closed(index).then_some(NotFor::Closed),
            }
        };
        (0..self.pools.len()).filter(offers).filter_map(|index| Some((index, why(index)?))).collect()
    }

    /// Returns how many addresses of MetalLB's pools are assigned, and how many are free.
    pub(super) fn uses(&self, assigned: impl Iterator<Item = IpAddr>) -> BTreeMap<ObjectName, PoolUse> {
        let mut counts = vec![[0_u64; 2]; self.pools.len()];
        // What was given before it was left out is none of those that the pool gives.
        let mut given = counts.clone();
        for address in assigned {
            let family = usize::from(!address.is_ipv4());
            let is_excluded = self.exclusion(address).is_some();
            for index in self.holding(address) {
                counts[index][family] += 1;
                given[index][family] += u64::from(!is_excluded && !self.avoids(index, address));
            }
        }
        let excluded = IpNet::aggregate(&self.cluster.policy.excluded);
        let size = |spec: &PoolSpec, is_v4: bool| {
            let ranges = spec.ranges.iter().filter(|range| range.first.is_ipv4() == is_v4);
            let counts = ranges.map(|range| count(range, left_out(Some(spec)), &excluded));
            counts.fold(0_u64, |sum, count| sum.saturating_add(u64::try_from(count).unwrap_or(u64::MAX)))
        };
        let of = |((pool, assigned), given): ((&Pool<'_>, [u64; 2]), [u64; 2])| {
            let spec = pool.spec?;
            let free = |at: usize| size(spec, at == 0).saturating_sub(given[at]);
            Some((spec.meta.name.clone(), PoolUse { assigned, available: [free(0), free(1)] }))
        };
        self.pools.iter().zip(counts).zip(given).filter_map(of).collect()
    }

    /// Returns the rank of a pool: those that admit some only come first, then the chart's ranges.
    pub(super) fn rank(&self, index: PoolIndex) -> u8 {
        match self.pools[index].spec {
            Some(spec) if spec.scope.is_bound() => 0,
            None => 1,
            Some(_) => 2,
        }
    }

    /// Returns the name of a pool of MetalLB.
    pub(super) fn metallb_name(&self, index: PoolIndex) -> Option<Arc<str>> {
        self.pools[index].spec.map(|spec| Arc::clone(&spec.meta.name.name))
    }

    /// Returns the name of a pool, for problems.
    pub(super) fn name(&self, index: PoolIndex) -> impl fmt::Display {
        match self.pools[index].spec {
            Some(spec) => format!("the pool {}", spec.meta.name.name),
            None => "the ranges of the installation".to_owned(),
        }
    }

    /// Returns why no object may have an address, not even one that has it; `None`: one may.
    pub(super) fn exclusion(&self, address: IpAddr) -> Option<String> {
        let net = self.cluster.policy.excluded.iter().find(|net| net.contains(&address))?;
        Some(format!("{address} is in {net}, a range of nodes, pods or Services"))
    }

    /// Whether a pool gives an address to nobody: MetalLB refuses it also to who asks for it by value.
    pub(super) fn avoids(&self, index: PoolIndex, address: IpAddr) -> bool {
        let Pool { spec, ranges, .. } = &self.pools[index];
        let left_out = left_out(*spec);
        left_out == LeftOut::Buggy
            && ranges.iter().any(|range| range.holds(address) && left_out.has(range, address))
    }

    /// Returns the next address of a pool and family that may be assigned and for which `taken` returns `false`. The search never goes
    /// back, so between two calls the set of taken addresses may only grow.
    pub(super) fn next(
        &mut self,
        index: PoolIndex,
        is_v4: bool,
        taken: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        if self.is_closed(index) {
            return None;
        }
        let policy = &self.cluster.policy;
        let Pool { spec, ranges, v4, v6 } = &mut self.pools[index];
        let left_out = left_out(*spec);
        let cursor = if is_v4 { v4 } else { v6 };
        loop {
            let range = ranges.get(cursor.range)?;
            let from = cursor.next.unwrap_or(range.first);
            let is_free = |address| {
                !taken(address) && !policy.shared.contains(&address) && !left_out.has(range, address)
            };
            let found =
                (range.first.is_ipv4() == is_v4).then(|| free(range, from, policy, is_free)).flatten();
            match found {
                Some(address) => {
                    cursor.next = Some(address);
                    return Some(address);
                }
                None => *cursor = Cursor { range: cursor.range + 1, next: None },
            }
        }
    }
}

/// Which addresses a pool leaves out; `None`: the chart's ranges.
fn left_out(spec: Option<&PoolSpec>) -> LeftOut {
    match spec {
        None => LeftOut::Ends,
        Some(spec) if spec.leaves_out_ends => LeftOut::Buggy,
        Some(_) => LeftOut::Nothing,
    }
}

/// Reports pools of MetalLB that hold addresses of others: who gets them depends on the order alone.
pub(super) fn report(cluster: &Cluster, problems: &mut Vec<Problem>) {
    let pools = Pools::new(cluster);
    for (index, pool) in pools.pools.iter().enumerate() {
        let Some(spec) = pool.spec else { continue };
        let others = pools.pools.iter().enumerate().filter(|(other, _)| *other != index);
        let overlap = others.flat_map(|(other, pool)| pool.ranges.iter().map(move |range| (other, range)));
        let overlap = |own: &AddressRange| overlap.clone().find(|(_, range)| own.overlaps(range));
        let found = pool.ranges.iter().enumerate().find_map(|(at, own)| Some((at, own, overlap(own)?.0)));
        if let Some((at, own, other)) = found {
            let what = format!("has addresses of {} too", pools.name(other));
            let field = format!("spec.addresses[{at}]");
            let problem = Problem::warning(field, what, "list each address in one pool only");
            let object = ObjectRef { kind: Kind::IpAddressPool, name: spec.meta.name.clone() };
            problems.push(problem.value(format!("{}-{}", own.first, own.last)).object(object));
        }
    }
}

/// Returns the first free address of a range, at or after `from`.
fn free(
    range: &AddressRange,
    from: IpAddr,
    policy: &Policy,
    is_free: impl Fn(IpAddr) -> bool,
) -> Option<IpAddr> {
    let mut address = from;
    while range.holds(address) {
        match policy.excluded.iter().find(|net| net.contains(&address)) {
            Some(net) => address = after(last(net))?,
            None if is_free(address) => return Some(address),
            None => address = after(address)?,
        }
    }
    None
}

fn last(net: &IpNet) -> IpAddr {
    match net {
        IpNet::V4(net) => IpAddr::V4(net.broadcast()),
        IpNet::V6(net) => IpAddr::V6(net.broadcast()),
    }
}

fn after(address: IpAddr) -> Option<IpAddr> {
    match address {
        IpAddr::V4(address) => Some(IpAddr::V4(Ipv4Addr::from_bits(address.to_bits().checked_add(1)?))),
        IpAddr::V6(address) => Some(IpAddr::V6(Ipv6Addr::from_bits(address.to_bits().checked_add(1)?))),
    }
}
