//! Who gets which addresses while not all objects and pools are known.

use super::adopt::Hold;
use super::claimant::{Claimant, Slot, Wish};
use super::pool::Pools;
use crate::model::Cluster;
use crate::model::cluster::AddressHold;
use std::net::IpAddr;

impl Claimant<'_> {
    /// Keeps to what Claims say that it has while it is not all known who has which addresses: if it would get or lose any, it is left
    /// alone.
    pub(super) fn while_unknown(mut self, cluster: &Cluster, pools: &Pools<'_>) -> Self {
        let own: Vec<IpAddr> = cluster.possession.of_object(&self.object()).collect();
        let is_clear = match cluster.address_hold {
            AddressHold::Nothing => true,
            AddressHold::Pools => self.asks_for_chart_ranges(cluster, &own),
            AddressHold::All => false,
        };
        if is_clear {
            return self;
        }
        let is_usable = own.iter().all(|address| pools.exclusion(*address).is_none());
        if self.adoption.hold.is_none() && self.wants_only(&own) && is_usable {
            // What it has not and can do without may be another one's.
            let has = |is_v4| own.iter().any(|address| address.is_ipv4() == is_v4);
            self.slots.retain(|slot| slot.is_needed() || slot.open().is_none_or(has));
            self.given = own;
            return self;
        }
        // What only its status shows is no other one's either.
        let of_status = self.given.iter().copied().filter(|address| !own.contains(address));
        self.given = own.iter().copied().chain(of_status).collect();
        // Why it is left alone besides may be wrong, too.
        self.adoption.hold = Some(Hold { problem: None });
        self.refused.clear();
        self.keeping()
    }

    /// Whether it wants what it has, and of the rest only addresses of the chart's ranges, by value.
    fn asks_for_chart_ranges(&self, cluster: &Cluster, own: &[IpAddr]) -> bool {
        let is_known = |slot: &Slot| match slot.wish {
            Wish::Exactly(address) => {
                own.contains(&address) || cluster.policy.ranges.iter().any(|range| range.holds(address))
            }
            Wish::Any { .. } | Wish::Spare { .. } => false,
        };
        let is_plain = self.from.pool.is_none() && self.refused.is_empty();
        is_plain && self.adoption.is_none() && self.slots.iter().all(is_known)
    }

    /// Whether it wants these addresses and no other.
    fn wants_only(&self, own: &[IpAddr]) -> bool {
        let mut rest = own.to_vec();
        let mut takes = |is_it: &dyn Fn(IpAddr) -> bool| {
            let at = rest.iter().position(|address| is_it(*address));
            at.map(|at| rest.remove(at)).is_some()
        };
        let exact = self.slots.iter().filter_map(|slot| match slot.wish {
            Wish::Exactly(address) => Some(address),
            Wish::Any { .. } | Wish::Spare { .. } => None,
        });
        let has_exact = exact.into_iter().all(|wanted| takes(&|address| address == wanted));
        let mut open = self.slots.iter().filter_map(|slot| Some((slot.open()?, !slot.is_needed())));
        let has_any = open.all(|(is_v4, is_spare)| takes(&|address| address.is_ipv4() == is_v4) || is_spare);
        has_exact && has_any && rest.is_empty() && self.refused.is_empty() && self.no_pool.is_none()
    }
}
