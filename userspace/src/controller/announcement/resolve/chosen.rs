//! L2Advertisements for some objects only, by their labels (`spec.serviceSelectors`).
//!
//! Their rules name the addresses that these objects have, one by one: agents know no labels, and those of any release read such rules.
//! All agents watch the object, so that there is room for [`MOST`], and not for an address of each tenant. An address that was announced
//! because of such a rule keeps its room.

use super::{Basis, Rule, Unranged, alone, origin};
use crate::ipam::Assignment;
use crate::model::advertisement::AdvertisementSpec;
use crate::model::cluster::{Cluster, Labels, Ranges};
use crate::model::{Kind, ObjectRef, Problem};
use crate::sources::kubernetes::Waits;
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

/// The most addresses of all such rules: some 100 KB of the object with IPv4, 200 KB with IPv6.
pub(super) const MOST: usize = 4096;

/// The labels of the Gateways and Services that have an address.
pub(in crate::controller) type Holders = BTreeMap<IpAddr, Vec<Arc<Labels>>>;

/// Returns who has which address, if an L2Advertisement asks for it.
pub(in crate::controller) fn holders(cluster: &Cluster, assignment: &Assignment) -> Holders {
    let mut holders = Holders::new();
    if !cluster.announcing.advertisements.values().any(|one| is_for_some(one)) {
        return holders;
    }
    let gateways = assignment
        .gateways
        .iter()
        .filter_map(|(name, allocation)| Some((&cluster.gateways.get(name)?.from.labels, allocation)));
    let services = assignment.services.iter().filter_map(|(name, allocation)| {
        let service = cluster.services.get(name)?.load_balancer.as_ref()?;
        Some((&service.from.labels, allocation))
    });
    for (labels, allocation) in gateways.chain(services) {
        for address in &allocation.addresses {
            holders.entry(*address).or_default().push(Arc::clone(labels));
        }
    }
    holders
}

/// Whether it covers only what some objects have. A selector without requirements selects all.
fn is_for_some(advertisement: &AdvertisementSpec) -> bool {
    let selectors = &advertisement.service_selectors;
    !selectors.is_empty() && !selectors.iter().any(|selector| selector.requirements.is_empty())
}

/// What an L2Advertisement is to cover, and what finds room.
struct Chosen {
    /// Of which rule.
    at: usize,
    origin: String,
    wanted: BTreeSet<IpAddr>,
    granted: BTreeSet<IpAddr>,
}

/// Leaves rules of L2Advertisements for some objects only what these have of their ranges.
pub(super) fn choose(
    basis: &Basis<'_>,
    unranged: &Unranged<'_>,
    rules: &mut [(&AdvertisementSpec, Rule<'_>)],
    problems: &mut Vec<Problem>,
) {
    let bound = rules.iter().enumerate().filter(|(_, (advertisement, _))| is_for_some(advertisement));
    let mut all: Vec<Chosen> =
        bound.map(|(at, (advertisement, rule))| basis.chosen(at, advertisement, rule, unranged)).collect();
    let mut room = MOST;
    // What is announced goes before what is new.
    for is_new in [false, true] {
        for Chosen { origin, wanted, granted, .. } in &mut all {
            let these = wanted.iter().filter(|address| unranged.was_covered(origin, address) != is_new);
            let before = granted.len();
            granted.extend(these.take(room));
            room -= granted.len() - before;
        }
    }
    for Chosen { at, wanted, granted, .. } in all {
        let Some((advertisement, rule)) = rules.get_mut(at) else { continue };
        if granted.len() < wanted.len() {
            let object = ObjectRef { kind: Kind::L2Advertisement, name: advertisement.meta.name.clone() };
            // Without their number, for an Event says it.
            let what = format!(
                "selects addresses that find no room: all L2Advertisements with serviceSelectors may have {MOST}"
            );
            let remedy = "give the Services a pool of their own, and write it in spec.ipAddressPools instead; until then what came last is not announced";
            problems.push(Problem::warning("spec.serviceSelectors", what, remedy).object(object));
        }
        rule.addresses = granted.iter().map(alone).collect();
    }
}

impl Basis<'_> {
    /// What an L2Advertisement for some objects is to cover of the ranges of its rule.
    fn chosen(
        &self,
        at: usize,
        advertisement: &AdvertisementSpec,
        rule: &Rule<'_>,
        unranged: &Unranged<'_>,
    ) -> Chosen {
        let ranges: Ranges = rule.addresses.iter().copied().collect();
        let selects = |labels: &Arc<Labels>| {
            advertisement.service_selectors.iter().any(|selector| selector.matches(labels))
        };
        let its = self
            .holders
            .iter()
            .filter(|(address, labels)| ranges.holds(**address) && labels.iter().any(selects));
        let mut wanted: BTreeSet<IpAddr> = its.map(|(address, _)| *address).collect();
        let origin = origin(advertisement);
        // It is not known which addresses Gateways have: what was announced stays.
        let are_unknown =
            self.unlisted.iter().any(|source| matches!(source.waits(), Waits::All | Waits::Gateways));
        if are_unknown {
            wanted.extend(unranged.alone_before(&origin).filter(|address| ranges.holds(*address)));
        }
        Chosen { at, origin, wanted, granted: BTreeSet::new() }
    }
}
