//! A route as the maps hold it.

use crate::model::{Affinity, Named, Pattern, SourceRanges};
use common::maps::address::{Address, Port};
use common::maps::backend::Backend;
use common::maps::route::{PICK_ADDRESS, PICK_MAGLEV, Route, Table};
use std::sync::Arc;

/// A route as the maps hold it. There may be a million of them, so lists that never grow have no spare
/// capacity.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedRoute {
    pub(super) name: Arc<str>,
    pub(super) id: u32,
    /// As `ROUTES` holds it.
    pub(super) value: Route,
    pub(super) v4: AppliedTable,
    pub(super) v6: AppliedTable,
    /// (listener id, pattern), sorted.
    pub(super) names: Vec<(u32, Pattern)>,
    /// (backend id, value), by address and port.
    pub(super) backends: Vec<(u32, Backend)>,
    /// Ids of the listeners that lead here, by name or by default; sorted. Routes that have the same share them.
    pub(super) attached: Arc<[u32]>,
    /// Whose connections it admits. `None`: anybody's, or not known, and then the policy is not 0.
    pub(super) source_ranges: Option<SourceRanges>,
}

/// One family's backends of a route.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedTable {
    pub(super) table: Table,
    /// (backend id, weight) of each member.
    pub(super) members: Box<[(u32, u16)]>,
}

impl Named for AppliedRoute {
    fn name(&self) -> &str {
        &self.name
    }
}

impl AppliedRoute {
    /// Returns the value that `ROUTES` should hold, with this policy.
    pub(super) fn assembled(&self, policy: u16, affinity: Affinity) -> Route {
        let (v4, v6) = (self.v4.table, self.v6.table);
        let pick = match affinity {
            Affinity::None => PICK_MAGLEV,
            Affinity::ClientIp => PICK_ADDRESS,
        };
        Route { v4, v6, backends: self.backends.len() as u32, policy, pick, reserved: 0 }
    }

    /// Whether it has a name on this listener.
    pub(super) fn names_on(&self, listener: u32) -> bool {
        self.names.iter().any(|(other, _)| *other == listener)
    }

    /// Returns the backend with this address and port, if the route has it.
    pub(super) fn backend(&self, address: Address, port: Port) -> Option<&(u32, Backend)> {
        let found =
            self.backends.binary_search_by_key(&(address, port), |(_, b)| (b.address, b.port)).ok()?;
        self.backends.get(found)
    }
}
