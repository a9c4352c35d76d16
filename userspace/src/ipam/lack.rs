//! Why an object has no address, or not all that it wants.

use super::claimant::{Claimant, Slot, Wish};
use super::pool::{NotFor, PoolIndex, Pools};
use crate::model::Kind;

/// The most pools that are named.
const NAMED: usize = 4;

fn family(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4" } else { "IPv6" }
}

fn family_range(is_v4: bool) -> &'static str {
    if is_v4 { "IPv4 address range" } else { "IPv6 address range" }
}

fn families_text(families: &[bool]) -> &'static str {
    match families {
        [is_v4] => family(*is_v4),
        _ => "IPv4 or IPv6",
    }
}

/// Lists the first of these.
fn some(all: impl ExactSizeIterator<Item = String>, between: &str) -> String {
    let more = all.len().saturating_sub(NAMED);
    let mut text = all.take(NAMED).collect::<Vec<_>>().join(between);
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}

impl Claimant<'_> {
    /// Why it has no address, or not one of each family, and what to do.
    pub(super) fn lack(&self, pools: &Pools<'_>) -> (String, &'static str) {
        let offers = |is_v4| self.pools.iter().any(|index| pools.offers(*index, is_v4));
        let lacking = self.slots.iter().find_map(|slot| match slot.wish {
            Wish::Any { is_v4 } if slot.got.is_none() => Some(is_v4),
            _ => None,
        });
        if let Some(why) =
            self.closed(pools).filter(|_| self.pools.iter().all(|index| pools.is_closed(*index)))
        {
            return (why, "remove MetalLB, or ask for addresses of the chart's ranges");
        }
        let needs = |is_v4: bool| {
            let is_open = |slot: &&Slot| slot.is_needed() && slot.open() == Some(is_v4);
            self.kind == Kind::Service && self.slots.iter().any(|slot| is_open(&slot))
        };
        let needs_both = needs(true) && needs(false);
        let has_both = |index: &PoolIndex| pools.offers(*index, true) && pools.offers(*index, false);
        if needs_both && offers(true) && offers(false) && !self.pools.iter().any(has_both) {
            let what =
                format!("no pool of {} has ranges of both families: it gets both or none", self.whose());
            return (what, "add a pool with both families, or ask for addresses by value");
        }
        match (lacking, self.home(pools)) {
            _ if !offers(true) && !offers(false) => self.none_offered(pools, &[true, false]),
            (Some(is_v4), _) if !offers(is_v4) => self.none_offered(pools, &[is_v4]),
            (Some(is_v4), Some(home)) if !pools.offers(home, is_v4) => {
                let (home, family) = (pools.name(home), family(is_v4));
                let what =
                    format!("its other address is of {home}, with no {family} range: both come from one");
                (what, "name a pool with both families, or ask for addresses by value")
            }
            (Some(is_v4), Some(home)) if pools.is_spent(home, is_v4) => {
                let why = match pools.why_none(home, is_v4) {
                    Some(why) => format!("which gives no {} address ({why})", family(is_v4)),
                    None => format!("whose {} addresses are all in use", family(is_v4)),
                };
                let what = format!("its other address is of {}, {why}: both come from one", pools.name(home));
                (what, "add a range of that family there, or name a pool with both families")
            }
            (None, _) if self.slots.is_empty() => {
                let what = "none of its listeners can be served: it needs no address";
                (what.to_owned(), "add a TLS or TCP listener")
            }
            _ => self.spent(pools, needs_both, lacking),
        }
    }

    /// Whose ranges it may get addresses of.
    fn whose(&self) -> String {
        self.from
            .pool
            .as_ref()
            .map_or_else(|| "the installation".to_owned(), |pool| format!("the pool {pool}"))
    }

    /// Returns why nobody gets an address of MetalLB's pools, if it would get one otherwise.
    fn closed(&self, pools: &Pools<'_>) -> Option<String> {
        let is_closed = |(_, why): &(PoolIndex, NotFor)| *why == NotFor::Closed;
        let would = || pools.not_for(self.name, self.from, &[true, false]).iter().any(is_closed);
        pools.closed().filter(|_| self.from.pool.is_some() || would())
    }

    /// Says that no pool of which it gets an address has ranges of these families, and why others give it none.
    fn none_offered(&self, pools: &Pools<'_>, families: &[bool]) -> (String, &'static str) {
        let (what, whose) = (families_text(families), self.whose());
        if self.from.pool.is_some() {
            let ranges = if let [is_v4] = families { family_range(*is_v4) } else { "address ranges" };
            return (format!("{whose} has no {ranges}"), "add a range to the pool, or name another one");
        }
        let others = pools.not_for(self.name, self.from, families);
        if others.is_empty() {
            let ranges = if let [is_v4] = families { family_range(*is_v4) } else { "address ranges" };
            return (format!("{whose} has no {ranges}"), "add a range to the chart's values");
        }
        let text = |(index, why): &(PoolIndex, NotFor)| format!("{} {}", pools.name(*index), why.text());
        let what = format!("no pool gives it an {what} address: {}", some(others.iter().map(text), ", "));
        let remedy = match others.iter().any(|(_, why)| *why == NotFor::Unasked) {
            true => {
                "name one of them in the annotation metallb.io/address-pool, or add a range to the chart's values"
            }
            false => "let one of them admit it, or add a range to the chart's values",
        };
        (what, remedy)
    }

    /// Says which addresses of which families are all in use, or are given to nobody. `lacking`: the first family of one that does not
    /// need both; of one that needs both, and has none, the first is not always that one.
    fn spent(&self, pools: &Pools<'_>, needs_both: bool, lacking: Option<bool>) -> (String, &'static str) {
        let is_spent = |is_v4: &bool| self.pools.iter().all(|index| pools.is_spent(*index, *is_v4));
        let has_none = self.slots.iter().all(|slot| slot.got.is_none());
        let open = |is_v4: &bool| self.slots.iter().any(|slot| slot.open() == Some(*is_v4));
        let both = [true, false].into_iter().filter(|is_v4| has_none && open(is_v4) && is_spent(is_v4));
        let families: Vec<bool> = match self.kind {
            Kind::Service if needs_both || lacking.is_some_and(|is_v4| is_spent(&is_v4)) => both.collect(),
            _ => Vec::new(),
        };
        let families =
            if families.is_empty() && !needs_both { lacking.into_iter().collect() } else { families };
        let mut what = match families.as_slice() {
            [] => format!("no pool of {} has free addresses of both families", self.whose()),
            families => self.in_use(pools, families),
        };
        if needs_both {
            what.push_str(if families.is_empty() {
                ": it gets both or none"
            } else {
                ": it gets addresses of both families or none"
            });
        }
        if let Some(why) = self.closed(pools) {
            what.push_str(&format!("; {why}"));
        }
        let remedy = match (families.as_slice(), self.from.pool.is_some()) {
            ([], _) => "add ranges of both families to one pool, or ask for addresses by value",
            ([true], true) => "add an IPv4 range to the pool, or name another one",
            ([true], false) => "add an IPv4 range to the chart's values, or to a pool that admits it",
            ([false], true) => "add an IPv6 range to the pool, or name another one",
            ([false], false) => "add an IPv6 range to the chart's values, or to a pool that admits it",
            (_, true) => "add ranges of both families to the pool, or name another one",
            (_, false) => "add ranges of both families to the chart's values, or to a pool that admits it",
        };
        (what, remedy)
    }

    /// Names the pools whose addresses of these families are all in use, and those that give none of theirs.
    fn in_use(&self, pools: &Pools<'_>, families: &[bool]) -> String {
        let of = |is_v4: bool| -> (Vec<PoolIndex>, Vec<(PoolIndex, &'static str)>) {
            let offering = self.pools.iter().copied().filter(|index| pools.offers(*index, is_v4));
            let (mut used, mut none) = (Vec::new(), Vec::new());
            offering.for_each(|index| match pools.why_none(index, is_v4) {
                Some(why) => none.push((index, why)),
                None => used.push(index),
            });
            (used, none)
        };
        let names =
            |used: &[PoolIndex]| some(used.iter().map(|index| pools.name(*index).to_string()), " and ");
        let all: Vec<_> = families.iter().map(|is_v4| (*is_v4, of(*is_v4))).collect();
        let mut said = Vec::new();
        match all.as_slice() {
            [(_, (first, _)), (_, (second, _))] if !first.is_empty() && first == second => {
                said.push(format!("all IPv4 and IPv6 addresses of {} are in use", names(first)));
            }
            all => {
                said.extend(all.iter().filter(|(_, (used, _))| !used.is_empty()).map(|(is_v4, (used, _))| {
                    format!("all {} addresses of {} are in use", family(*is_v4), names(used))
                }))
            }
        }
        for (is_v4, (_, none)) in &all {
            let text = |(index, why): &(PoolIndex, &str)| {
                format!("{} gives no {} address ({why})", pools.name(*index), family(*is_v4))
            };
            said.extend((!none.is_empty()).then(|| some(none.iter().map(text), ", ")));
        }
        said.join("; ")
    }

    /// Whether a Service that prefers both families has the one that it can do without: then it can do without the other one.
    pub(super) fn has_other_family(&self) -> bool {
        let has_spare = |slot: &Slot| slot.got.is_some() && matches!(slot.wish, Wish::Spare { .. });
        self.kind == Kind::Service && self.slots.iter().any(has_spare)
    }

    /// Returns why a Service has no address of a family that it can do without.
    pub(super) fn spare(&self, pools: &Pools<'_>) -> Option<String> {
        let can_do_without = |slot: &Slot| matches!(slot.wish, Wish::Spare { .. }) || self.has_other_family();
        let is_lacking = |slot: &&Slot| slot.got.is_none() && can_do_without(slot);
        let slot = self.slots.iter().filter(|_| self.kind == Kind::Service).find(is_lacking)?;
        let family = family(slot.open()?);
        let home =
            self.home(pools).map_or_else(|| "any pool".to_owned(), |home| pools.name(home).to_string());
        Some(format!("no free {family} address in {home}"))
    }
}
