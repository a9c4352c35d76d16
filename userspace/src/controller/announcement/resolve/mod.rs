//! What the cluster announces, and who: of the chart, of L2Advertisements of MetalLB, and of the nodes. Pure.
//!
//! In the object, an empty list means all. So nothing that selects nothing makes a rule: it would cover everything.

/// Those for some objects only.
pub(in crate::controller) mod chosen;

use crate::model::advertisement::AdvertisementSpec;
use crate::model::cluster::{AddressRange, LabelSelector, PoolSpec, PoolsClosed, Ranges};
use crate::model::{Cluster, Kind, ObjectRef, Problem};
use crate::sources::kubernetes::Source;
use crate::sources::kubernetes::api::announcement::{
    AnnouncementRule, AnnouncementSpec, OnIsolation, Preferred, seconds, text,
};
use chosen::{Holders, choose};
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

/// [`AnnouncementRule::origin`] of the chart's own ranges.
const OWN_RANGES: &str = "addresses.l2";

/// The most bytes of names in all preferences. An object of 1.5 MB is the largest that etcd takes, and all agents read it.
const PREFERRED_BYTES: usize = 256 << 10;
/// What a name takes beside its own bytes, in JSON.
const QUOTED: usize = 3;

/// What is known.
pub(in crate::controller) struct Basis<'a> {
    pub(in crate::controller) cluster: &'a Cluster,
    /// Nodes whose agent has a Lease.
    pub(in crate::controller) leases: &'a BTreeSet<String>,
    /// Why nothing is taken from MetalLB's pools.
    pub(in crate::controller) metallb: Option<&'a PoolsClosed>,
    /// What is not listed.
    pub(in crate::controller) unlisted: &'a BTreeSet<Source>,
    /// Addresses that objects have.
    pub(in crate::controller) in_use: &'a BTreeSet<IpAddr>,
    /// Those of them that are, or were, of one of MetalLB's pools.
    pub(in crate::controller) pooled: &'a BTreeSet<IpAddr>,
    /// Who has them, if an L2Advertisement asks for it.
    pub(in crate::controller) holders: &'a Holders,
    /// What the object says now.
    pub(in crate::controller) said: Option<&'a AnnouncementSpec>,
}

/// Returns what the object is to say, and what is wrong with what it follows from; `None`: that is not known.
pub(in crate::controller) fn resolve(basis: &Basis<'_>) -> (Option<AnnouncementSpec>, Vec<Problem>) {
    let policy = &basis.cluster.policy;
    let mut spec = AnnouncementSpec {
        agent_grace_seconds: seconds(policy.announcing.grace),
        rebalance_after_seconds: policy.announcing.rebalance.map(seconds),
        on_isolation: OnIsolation::of(policy.announcing.withdraws),
        ..AnnouncementSpec::default()
    };
    if !policy.announces() {
        return (Some(spec), Vec::new());
    }
    // Without their labels it is not known which of them must not.
    if basis.unlisted.contains(&Source::Nodes) {
        return (None, Vec::new());
    }
    let mut problems = Vec::new();
    let members = Members::of(basis);
    let unranged = Unranged::of(basis);
    if policy.announcing.own_ranges {
        let addresses = policy.ranges.iter().copied().chain(unranged.own()).collect();
        let nodes = members.able.iter().collect();
        let rule = Rule { addresses, nodes, interfaces: &[], weights: BTreeMap::new() };
        spec.rules.extend(members.write(rule, OWN_RANGES.to_owned()));
    }
    match basis.advertised() {
        Advertised::AsBefore => {
            let before = basis.said.into_iter().flat_map(|said| &said.rules);
            let theirs = before.filter(|rule| rule.origin != OWN_RANGES);
            spec.rules.extend(theirs.filter_map(|rule| members.keep(rule)));
        }
        Advertised::Nothing => {}
        Advertised::Now => {
            let rule = |advertisement| {
                (advertisement, basis.rule(advertisement, &members, &unranged, &mut problems))
            };
            let mut rules: Vec<_> = basis.advertisements().map(rule).collect();
            choose(basis, &unranged, &mut rules, &mut problems);
            bound_preferences(&mut rules, PREFERRED_BYTES, &mut problems);
            let written =
                rules.into_iter().map(|(advertisement, rule)| members.write(rule, origin(advertisement)));
            spec.rules.extend(written.flatten());
        }
    }
    spec.members = members.all.iter().map(ToString::to_string).collect();
    (Some(spec), problems)
}

/// Leaves out the preferences that find no room in the object: without them, its nodes announce all the same.
fn bound_preferences(
    rules: &mut [(&AdvertisementSpec, Rule<'_>)],
    mut room: usize,
    problems: &mut Vec<Problem>,
) {
    for (advertisement, rule) in rules {
        let bytes: usize = rule.weights.values().flatten().map(|node| node.len() + QUOTED).sum();
        if let Some(left) = room.checked_sub(bytes) {
            room = left;
            continue;
        }
        rule.weights.clear();
        let object = ObjectRef { kind: Kind::L2Advertisement, name: advertisement.meta.name.clone() };
        let what = "prefers nodes whose names find no room: the preferences of all L2Advertisements may have 256 KiB of them";
        let remedy = "prefer fewer nodes, or name them in spec.nodeSelectors; until then its nodes are equal";
        problems.push(Problem::warning("spec.preferredNodeSelectors", what, remedy).object(object));
    }
}

/// [`AnnouncementRule::origin`] of an L2Advertisement.
fn origin(advertisement: &AdvertisementSpec) -> String {
    format!("{} {}", Kind::L2Advertisement, advertisement.meta.name)
}

/// What counts of L2Advertisements.
enum Advertised {
    /// What they say now.
    Now,
    /// What they said when the object was written: it is not known whether MetalLB runs, or what there is of its objects. A
    /// controller that begins to lead does not know it for a minute, and nothing is to be announced less because of it.
    AsBefore,
    /// Nothing: MetalLB announces by them.
    Nothing,
}

/// The nodes of agents.
struct Members {
    /// In order.
    all: Vec<Arc<str>>,
    /// Those that may announce.
    able: BTreeSet<Arc<str>>,
}

/// A rule, in which nothing is nothing.
struct Rule<'a> {
    addresses: Vec<AddressRange>,
    nodes: BTreeSet<&'a Arc<str>>,
    /// None: all.
    interfaces: &'a [Arc<str>],
    /// Nodes that are preferred, by weight.
    weights: BTreeMap<u32, Vec<&'a Arc<str>>>,
}

impl Members {
    fn of(basis: &Basis<'_>) -> Self {
        let nodes = &basis.cluster.announcing.nodes;
        let all: Vec<Arc<str>> =
            nodes.keys().filter(|node| basis.leases.contains(&***node)).cloned().collect();
        let able = all.iter().filter(|node| !nodes[*node].is_left_out).cloned().collect();
        Self { all, able }
    }

    /// Returns a rule as the object has it, where empty means all; `None`: it is about nothing.
    fn write(&self, rule: Rule<'_>, origin: String) -> Option<AnnouncementRule> {
        let Rule { addresses, nodes, interfaces, weights } = rule;
        if addresses.is_empty() || nodes.is_empty() {
            return None;
        }
        let mut seen = HashSet::with_capacity(addresses.len());
        let texts = addresses.iter().map(text).filter(|text| seen.insert(text.clone())).collect();
        let nodes = match nodes.len() == self.all.len() {
            true => Vec::new(),
            false => nodes.iter().map(ToString::to_string).collect(),
        };
        let interfaces = interfaces.iter().map(ToString::to_string).collect();
        let preferred = weights.into_iter().rev().map(|(weight, nodes)| Preferred {
            weight: weight.into(),
            nodes: nodes.into_iter().map(ToString::to_string).collect(),
        });
        Some(AnnouncementRule { addresses: texts, nodes, interfaces, preferred: preferred.collect(), origin })
    }

    /// Returns a rule that was written before, without nodes that are gone or must not announce any more; `None`: it is about nothing, or
    /// none that a controller writes. One without addresses would cover every address, and with one that cannot be read, no agent could
    /// read any rule.
    fn keep(&self, rule: &AnnouncementRule) -> Option<AnnouncementRule> {
        rule.ranges()?;
        let is_named =
            |node: &&Arc<str>| rule.nodes.is_empty() || rule.nodes.iter().any(|name| **name == ***node);
        let nodes: Vec<&Arc<str>> = self.able.iter().filter(is_named).collect();
        if nodes.is_empty() {
            return None;
        }
        let mut preferred = rule.preferred.clone();
        let stays = |name: &String| nodes.iter().any(|node| ***node == **name);
        preferred.iter_mut().for_each(|preferred| preferred.nodes.retain(stays));
        preferred.retain(|preferred| !preferred.nodes.is_empty());
        let nodes = match nodes.len() == self.all.len() {
            true => Vec::new(),
            false => nodes.iter().map(ToString::to_string).collect(),
        };
        Some(AnnouncementRule { nodes, preferred, ..rule.clone() })
    }
}

/// Addresses that objects keep though no range has them any more. What announced them goes on doing so.
struct Unranged<'a> {
    basis: &'a Basis<'a>,
    /// While the pools are not known, those of pools are among them.
    addresses: Vec<IpAddr>,
    /// What the object says that rules cover, by origin.
    before: BTreeMap<&'a str, Ranges>,
}

impl<'a> Unranged<'a> {
    fn of(basis: &'a Basis<'a>) -> Self {
        let Cluster { policy, pools, .. } = basis.cluster;
        let is_read = |pool: &&Arc<PoolSpec>| policy.pools.namespaces.contains(&pool.meta.name.namespace);
        let of_pools = pools.values().filter(is_read).flat_map(|pool| &pool.ranges);
        let ranges: Vec<&AddressRange> = policy.ranges.iter().chain(of_pools).collect();
        let is_in_none = |address: &IpAddr| !ranges.iter().any(|range| range.holds(*address));
        let addresses = basis.in_use.iter().copied().filter(is_in_none).collect();
        let mut before: BTreeMap<&str, Ranges> = BTreeMap::new();
        for rule in basis.said.into_iter().flat_map(|said| &said.rules) {
            before.entry(&rule.origin).or_default().extend(rule.ranges().into_iter().flatten());
        }
        Self { basis, addresses, before }
    }

    /// Whatever covers all ranges covers them, too.
    fn all(&self) -> impl Iterator<Item = AddressRange> {
        self.addresses.iter().map(alone)
    }

    /// Those that a rule of this origin covered.
    fn covered(&self, origin: &str) -> impl Iterator<Item = AddressRange> {
        self.addresses.iter().filter(|address| self.was_covered(origin, address)).map(alone)
    }

    /// Those of the chart's own ranges: not those of pools, which are announced where L2Advertisements say so.
    fn own(&self) -> impl Iterator<Item = AddressRange> {
        let knows_pools = self.basis.knows_pools();
        let is_own = move |address: &&IpAddr| {
            self.was_covered(OWN_RANGES, address) || knows_pools && !self.basis.pooled.contains(*address)
        };
        self.addresses.iter().filter(is_own).map(alone)
    }

    fn was_covered(&self, origin: &str, address: &IpAddr) -> bool {
        self.before.get(origin).is_some_and(|before| before.holds(*address))
    }

    /// Those that rules of this origin named one by one.
    fn alone_before(&self, origin: &str) -> impl Iterator<Item = IpAddr> {
        self.before.get(origin).into_iter().flat_map(Ranges::alone)
    }
}

fn alone(address: &IpAddr) -> AddressRange {
    AddressRange { first: *address, last: *address }
}

impl<'a> Basis<'a> {
    fn advertised(&self) -> Advertised {
        if !self.cluster.policy.pools.is_on() {
            return Advertised::Nothing;
        }
        let are_unlisted =
            [Source::Advertisements, Source::Pools].iter().any(|source| self.unlisted.contains(source));
        match self.metallb {
            Some(closed) if closed.was_seen => Advertised::Nothing,
            None if !are_unlisted => Advertised::Now,
            _ => Advertised::AsBefore,
        }
    }

    /// Whether all pools that count are known.
    fn knows_pools(&self) -> bool {
        !self.cluster.policy.pools.is_on() || !self.unlisted.contains(&Source::Pools)
    }

    /// Those of the namespaces whose pools are read.
    fn advertisements(&self) -> impl Iterator<Item = &'a AdvertisementSpec> {
        let namespaces = &self.cluster.policy.pools.namespaces;
        let all = self.cluster.announcing.advertisements.values().map(|one| &**one);
        all.filter(|one| namespaces.contains(&one.meta.name.namespace))
    }

    /// What an L2Advertisement says.
    fn rule<'m>(
        &self,
        advertisement: &'m AdvertisementSpec,
        members: &'m Members,
        unranged: &Unranged<'_>,
        problems: &mut Vec<Problem>,
    ) -> Rule<'m> {
        let mut tell = |field: String, value: &str, what: &str, remedy: &str| {
            let object = ObjectRef { kind: Kind::L2Advertisement, name: advertisement.meta.name.clone() };
            problems.push(Problem::warning(field, what, remedy).value(value).object(object));
        };
        let AdvertisementSpec { pool_selectors, node_selectors, interfaces, .. } = advertisement;
        let namespace = &advertisement.meta.name.namespace;
        let pools = self.cluster.pools.values().filter(|pool| pool.meta.name.namespace == *namespace);
        let pools: Vec<&PoolSpec> = pools.map(|pool| &**pool).collect();
        for (at, name) in advertisement.pools.iter().enumerate() {
            if !pools.iter().any(|pool| pool.meta.name.name == *name) {
                let remedy = "write the name of an IPAddressPool of the same namespace";
                tell(format!("spec.ipAddressPools[{at}]"), name, "there is no such pool", remedy);
            }
        }
        let is_for_all = advertisement.pools.is_empty() && pool_selectors.is_empty();
        let is_covered = |pool: &&&PoolSpec| {
            is_for_all
                || advertisement.pools.contains(&pool.meta.name.name)
                || pool_selectors.iter().any(|selector| selector.matches(&pool.labels))
        };
        let mut addresses: Vec<AddressRange> =
            pools.iter().filter(is_covered).flat_map(|pool| &pool.ranges).copied().collect();
        match is_for_all {
            true => addresses.extend(unranged.all()),
            false => addresses.extend(unranged.covered(&origin(advertisement))),
        }
        let nodes = &self.cluster.announcing.nodes;
        let is_selected = |node: &&Arc<str>| {
            let labels = &nodes[*node].labels;
            node_selectors.is_empty() || node_selectors.iter().any(|selector| selector.matches(labels))
        };
        if !members.all.is_empty() && !members.all.iter().any(|node| is_selected(&node)) {
            let remedy = "select nodes that run an agent of Vestibule, by their labels";
            tell("spec.nodeSelectors".to_owned(), "", "selects no node of an agent", remedy);
        }
        if advertisement.is_refused {
            addresses.clear();
        }
        let nodes: BTreeSet<&Arc<str>> = members.able.iter().filter(is_selected).collect();
        let weights = self.weights(advertisement, &nodes);
        Rule { addresses, nodes, interfaces, weights }
    }

    /// Which of an L2Advertisement's own nodes it prefers, by the sum of the weights that select them.
    fn weights<'m>(
        &self,
        advertisement: &AdvertisementSpec,
        nodes: &BTreeSet<&'m Arc<str>>,
    ) -> BTreeMap<u32, Vec<&'m Arc<str>>> {
        let labels = &self.cluster.announcing.nodes;
        let mut weights: BTreeMap<u32, Vec<&Arc<str>>> = BTreeMap::new();
        for node in nodes {
            let is_its = |(_, selector): &&(u32, LabelSelector)| selector.matches(&labels[*node].labels);
            let its = advertisement.preferred.iter().filter(is_its).map(|(weight, _)| *weight);
            match its.fold(0, u32::saturating_add) {
                0 => {}
                weight => weights.entry(weight).or_default().push(node),
            }
        }
        weights
    }
}

#[cfg(test)]
mod tests;
