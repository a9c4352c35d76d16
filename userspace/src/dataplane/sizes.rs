//! The number of entries of each map, and the setting that determines it.

use common::maps::name;

use crate::model::Settings;
use crate::plan::{closed_ring, dnat_flows, shares};

/// The three settings that size the maps. Sizes are fixed while the maps are pinned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// `maxFlows`.
    pub flows: u32,
    /// `maxNames`.
    pub names: u32,
    /// `maxHellos`.
    pub hellos: u32,
}

impl From<&Settings> for Sizes {
    fn from(settings: &Settings) -> Self {
        Self { flows: settings.max_flows, names: settings.max_names, hellos: settings.max_hellos }
    }
}

impl Sizes {
    /// Returns every map whose size depends on the settings, with its number of entries.
    pub fn maps(&self) -> [(&'static str, u32); 19] {
        let Self { flows, names, hellos } = *self;
        [
            (name::FLOWS, flows),
            // Every flow, hello and half-open connection has one source port towards its backend.
            (name::NATS, flows.saturating_add(hellos.saturating_mul(2))),
            (name::PENDING, hellos),
            (name::BUFFERS, hellos),
            (name::SOURCES, hellos),
            (name::HALF_OPENS, hellos),
            (name::HALF_OPEN_RING, hellos),
            (name::CLOSED_RING, closed_ring(flows)),
            (name::SHARES, shares(flows)),
            (name::DNAT_FLOWS, dnat_flows(flows)),
            (name::ROUTES_EXACT, names),
            (name::ROUTES_LONG, names),
            (name::ROUTES_WILDCARD, names),
            (name::ROUTES, names),
            (name::LABELS, names),
            (name::ROUTE_COUNTERS, names),
            (name::BACKENDS, names.saturating_mul(2)),
            (name::MEMBERS, names.saturating_mul(2)),
            (name::MAGLEV, names.saturating_mul(2)),
        ]
    }
}

/// Returns the field of `settings` that sizes a map.
pub fn setting(map: &str) -> &'static str {
    match map {
        name::FLOWS | name::NATS | name::DNAT_FLOWS | name::CLOSED_RING | name::SHARES => "maxFlows",
        name::PENDING | name::BUFFERS | name::SOURCES | name::HALF_OPENS | name::HALF_OPEN_RING => {
            "maxHellos"
        }
        name::ROUTES_EXACT
        | name::ROUTES_LONG
        | name::ROUTES_WILDCARD
        | name::ROUTES
        | name::LABELS
        | name::ROUTE_COUNTERS
        | name::BACKENDS
        | name::MEMBERS
        | name::MAGLEV => "maxNames",
        _ => "no setting (its size is fixed)",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_sized_map_names_its_setting() {
        let sizes = Sizes { flows: 1000, names: 10, hellos: 100 };
        for (map, _) in sizes.maps() {
            assert!(setting(map).starts_with("max"), "{map}");
        }
    }

    #[test]
    fn every_connection_has_room_for_its_port() {
        let sizes = Sizes { flows: 1000, names: 10, hellos: 100 };
        let nats = sizes.maps().into_iter().find(|(map, _)| *map == name::NATS).unwrap().1;
        assert_eq!(nats, 1000 + 100 + 100);
        let most = Sizes { flows: u32::MAX, names: u32::MAX, hellos: u32::MAX };
        assert!(most.maps().iter().all(|(_, entries)| *entries > 0));
    }
}
