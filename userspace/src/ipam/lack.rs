//! Why an object has no address, or not all that it wants.

use super::claimant::{Claimant, Slot, Wish};
use super::pool::{PoolIndex, Pools};
use crate::model::Kind;

impl Claimant<'_> {
    /// Why it has no address, or not one of each family, and what to do.
    pub(super) fn lack(&self, pools: &Pools<'_>) -> (String, &'static str) {
        let (whose, add) = match &self.from.pool {
            Some(pool) => (format!("the pool {pool}"), "add a range to the pool, or name another one"),
            None => ("the installation".to_owned(), "add a range to the chart's values"),
        };
        let offers = |is_v4| self.pools.iter().any(|index| pools.offers(*index, is_v4));
        let lacking = self.slots.iter().find_map(|slot| match slot.wish {
            Wish::Any { is_v4 } if slot.got.is_none() => Some(is_v4),
            _ => None,
        });
        let is_closed = self.pools.iter().all(|index| pools.is_closed(*index));
        if let Some(why) = pools.closed().filter(|_| is_closed) {
            return (why, "remove MetalLB, or ask for addresses of the chart's ranges");
        }
        let family = if lacking == Some(false) { "IPv6" } else { "IPv4" };
        let needs = |is_v4: bool| {
            let is_open = |slot: &&Slot| slot.is_needed() && slot.open() == Some(is_v4);
            self.kind == Kind::Service && self.slots.iter().any(|slot| is_open(&slot))
        };
        let has_both = |index: &PoolIndex| pools.offers(*index, true) && pools.offers(*index, false);
        if needs(true) && needs(false) && offers(true) && offers(false) && !self.pools.iter().any(has_both) {
            let what = format!("no pool of {whose} has ranges of both families: it gets both or none");
            return (what, "add a pool with both families, or ask for addresses by value");
        }
        match (lacking, self.home(pools)) {
            _ if !offers(true) && !offers(false) => (format!("{whose} has no address ranges"), add),
            (Some(is_v4), _) if !offers(is_v4) => (format!("{whose} has no {family} address range"), add),
            (Some(is_v4), Some(home)) if !pools.offers(home, is_v4) => {
                let home = pools.name(home);
                let what =
                    format!("its other address is of {home}, with no {family} range: both come from one");
                (what, "name a pool with both families, or ask for addresses by value")
            }
            (Some(is_v4), Some(home)) if pools.is_spent(home, is_v4) => {
                let home = pools.name(home);
                let what = format!(
                    "its other address is of {home}, whose {family} addresses are all in use: both come from one"
                );
                (what, "add a range of that family there, or name a pool with both families")
            }
            (None, _) if self.slots.is_empty() => {
                let what = "none of its listeners can be served: it needs no address";
                (what.to_owned(), "add a TLS or TCP listener")
            }
            _ => self.spent(pools, &whose, needs(true) && needs(false), lacking),
        }
    }

    /// Says which family's addresses are all in use: of one that needs both, and has none, the first lacking is not always that one.
    fn spent(
        &self,
        pools: &Pools<'_>,
        whose: &str,
        needs_both: bool,
        lacking: Option<bool>,
    ) -> (String, &'static str) {
        let is_spent = |is_v4: bool| self.pools.iter().all(|index| pools.is_spent(*index, is_v4));
        let family = match needs_both {
            true => [true, false].into_iter().find(|is_v4| is_spent(*is_v4)),
            false => lacking,
        };
        let Some(is_v4) = family else {
            let what =
                format!("no pool of {whose} has free addresses of both families: it gets both or none");
            return (what, "add ranges of both families to one pool, or ask for addresses by value");
        };
        let (family, remedy) = match (is_v4, &self.from.pool) {
            (true, Some(_)) => ("IPv4", "add an IPv4 range to the pool, or name another one"),
            (false, Some(_)) => ("IPv6", "add an IPv6 range to the pool, or name another one"),
            (true, None) => ("IPv4", "add an IPv4 range to the chart's values, or to a pool that admits it"),
            (false, None) => ("IPv6", "add an IPv6 range to the chart's values, or to a pool that admits it"),
        };
        let both = if needs_both { ": it gets addresses of both families or none" } else { "" };
        (format!("all {family} addresses of {whose} are in use{both}"), remedy)
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
        let family = if slot.open()? { "IPv4" } else { "IPv6" };
        let home =
            self.home(pools).map_or_else(|| "any pool".to_owned(), |home| pools.name(home).to_string());
        Some(format!("no free {family} address in {home}"))
    }
}
