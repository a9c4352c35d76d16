//! Policies: an id for each set of source ranges that routes have.

use super::Planner;
use super::change::Change;
use crate::model::{Problem, SourceRanges};
use common::maps::address::Address;
use common::maps::policy::{FAMILY_V4, FAMILY_V6, POLICY_NOBODY, PolicyKey, RANGES_MAX};
use ipnet::IpNet;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// Number of policy ids: neither 0 nor that of nobody.
const IDS: usize = POLICY_NOBODY as usize - 1;

/// The policies of routes, by what they admit. A set never changes: a route with other ranges gets another id, by the one write
/// that changes the route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Policies(BTreeMap<SourceRanges, Shared>);

/// A policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shared {
    id: u16,
    /// The number of routes that have it.
    routes: usize,
}

impl Policies {
    /// Counts a route with these ranges, whose policy has this id.
    pub(super) fn add(&mut self, id: u16, ranges: Option<&SourceRanges>) {
        if let Some(ranges) = stored(id, ranges) {
            self.0.entry(ranges.clone()).or_insert(Shared { id, routes: 0 }).routes += 1;
        }
    }

    /// Counts it no longer.
    pub(super) fn remove(&mut self, id: u16, ranges: Option<&SourceRanges>) {
        let Some(ranges) = stored(id, ranges) else { return };
        if let Some(shared) = self.0.get_mut(ranges) {
            shared.routes -= 1;
            if shared.routes == 0 {
                self.0.remove(ranges);
            }
        }
    }

    /// Returns the id of these ranges.
    pub(super) fn id(&self, ranges: &SourceRanges) -> Option<u16> {
        self.0.get(ranges).map(|shared| shared.id)
    }

    fn iter(&self) -> impl Iterator<Item = (&SourceRanges, u16)> {
        self.0.iter().map(|(ranges, shared)| (ranges, shared.id))
    }
}

/// Returns the ranges of a route that are in the map.
fn stored(id: u16, ranges: Option<&SourceRanges>) -> Option<&SourceRanges> {
    ranges.filter(|_| !matches!(id, 0 | POLICY_NOBODY))
}

/// Returns the writes that put a route's ranges there.
pub(super) fn puts(id: u16, ranges: Option<&SourceRanges>) -> impl Iterator<Item = Change> {
    stored(id, ranges).into_iter().flat_map(move |ranges| keys(id, ranges)).map(Change::PutPolicy)
}

/// Returns the keys of a policy.
pub(super) fn keys(policy: u16, ranges: &SourceRanges) -> impl Iterator<Item = PolicyKey> {
    ranges.ranges().iter().map(move |range| {
        let (family, before) = match range {
            IpNet::V4(_) => (FAMILY_V4, 96),
            IpNet::V6(_) => (FAMILY_V6, 0),
        };
        PolicyKey::of_range(
            policy,
            family,
            Address::from(range.network()),
            before + u32::from(range.prefix_len()),
        )
    })
}

/// Returns the range of a key; `None`: we write no such key.
pub(super) fn range(key: &PolicyKey) -> Option<IpNet> {
    let network = std::net::IpAddr::from(key.address);
    let bits = match (key.family, network.is_ipv4()) {
        (FAMILY_V4, true) => key.address_bits().checked_sub(96)?,
        (FAMILY_V6, false) => key.address_bits(),
        _ => return None,
    };
    IpNet::new(network, u8::try_from(bits).ok()?).ok().filter(|range| range.network() == network)
}

/// Ids of new policies.
#[derive(Debug, Default)]
pub(super) struct NewPolicies {
    ids: BTreeMap<SourceRanges, u16>,
    /// Ids that the maps have something of, once the first new one was needed.
    taken: Option<BTreeSet<u16>>,
    /// Ranges in the map, and those to be added.
    count: usize,
    /// A route has another policy than before.
    pub(super) has_changed: bool,
}

impl Planner<'_> {
    /// Returns the policy of a route. Without room for it, nobody is admitted.
    pub(super) fn policy(&mut self, ranges: Option<&SourceRanges>, route: &str) -> u16 {
        let Some(ranges) = ranges else { return 0 };
        if ranges.is_empty() {
            return POLICY_NOBODY;
        }
        if let Some(id) = self.known_policy(ranges) {
            return id;
        }
        let Some(id) = self.next_policy(ranges.ranges().len()) else {
            self.after.lacks_policies = true;
            self.problems.push(Problem::error(
                "",
                format!(
                    "route {route} admits nobody: there is no room for its source ranges beside those of other routes, \
                     which may have {RANGES_MAX} together, and 65,534 different sets"
                ),
                "use fewer ranges, or the same ones for several routes",
            ));
            return POLICY_NOBODY;
        };
        self.new_policies.ids.insert(ranges.clone(), id);
        id
    }

    /// Whether a route that has these ranges and this policy certainly has those that are desired.
    pub(super) fn policy_stays(
        &self,
        (policy, ranges): (u16, Option<&SourceRanges>),
        desired: Option<&SourceRanges>,
    ) -> bool {
        let id = match desired {
            None => Some(0),
            Some(ranges) if ranges.is_empty() => Some(POLICY_NOBODY),
            Some(ranges) => self.known_policy(ranges),
        };
        ranges == desired && Some(policy) == id
    }

    fn known_policy(&self, ranges: &SourceRanges) -> Option<u16> {
        self.before.tally.policies.id(ranges).or_else(|| self.new_policies.ids.get(ranges).copied())
    }

    /// Returns an id of which the maps have nothing, the one that was given out longest ago.
    fn next_policy(&mut self, ranges: usize) -> Option<u16> {
        let (before, new) = (self.before, &mut self.new_policies);
        let taken = new.taken.get_or_insert_with(|| {
            let leaving = &before.leaving_policies;
            let kept: usize = before.tally.policies.iter().map(|(ranges, _)| ranges.ranges().len()).sum();
            new.count = kept + leaving.values().sum::<usize>();
            before.tally.policies.iter().map(|(_, id)| id).chain(leaving.keys().copied()).collect()
        });
        if new.count + ranges > RANGES_MAX || taken.len() >= IDS {
            return None;
        }
        let next = self.after.next_policy.max(1);
        let id = (next..POLICY_NOBODY).chain(1..next).find(|id| !taken.contains(id))?;
        taken.insert(id);
        new.count += ranges;
        self.after.next_policy = id + 1;
        Some(id)
    }

    /// Plans the ranges of new policies, and of those that no route has any more.
    pub(super) fn policies(&mut self) {
        for (ranges, id) in &self.new_policies.ids {
            self.steps.fill.extend(keys(*id, ranges).map(Change::PutPolicy));
        }
        if !self.new_policies.has_changed {
            return;
        }
        let (before, after) = (self.before, &self.after.tally.policies);
        let is_gone = |(ranges, id): &(&SourceRanges, u16)| after.id(ranges) != Some(*id);
        for (ranges, id) in before.tally.policies.iter().filter(is_gone) {
            self.steps.later.extend(keys(id, ranges).map(Change::DeletePolicy));
            Arc::make_mut(&mut self.after.leaving_policies).insert(id, ranges.ranges().len());
        }
    }
}
