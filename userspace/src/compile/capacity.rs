//! Checks whether everything fits into the maps, whose sizes follow `settings.maxNames`, but for that of source ranges.

use super::maglev;
use crate::model::{BackendSpec, Desired, DesiredRoute, Problem, SourceRanges};
use crate::settle::{ADDRESSES_MAX, BINDINGS_MAX};
use common::maps::policy::RANGES_MAX;
use common::maps::route::PAGE_SLOTS;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The room that is left in the maps.
#[derive(Clone, Debug)]
pub(super) struct Room {
    names: usize,
    routes: usize,
    backends: usize,
    pages: usize,
    ranges: usize,
    /// Sets of source ranges that have their room.
    sets: BTreeSet<SourceRanges>,
}

impl Room {
    /// Returns the room of empty maps.
    pub(super) fn new(names_max: u32) -> Self {
        let most = names_max as usize;
        Self {
            names: most,
            routes: most,
            backends: 2 * most,
            pages: 2 * most,
            ranges: RANGES,
            sets: BTreeSet::new(),
        }
    }

    /// Takes the room that a route needs. Returns `false`, and takes none, if there is not enough.
    pub(super) fn take(&mut self, route: &DesiredRoute) -> bool {
        let rest = |left: usize, needed: usize| left.checked_sub(needed);
        let left = (
            rest(self.names, route.names.len()),
            rest(self.routes, 1),
            rest(self.backends, route.backends.len()),
            rest(self.pages, pages(&route.backends)),
            rest(self.ranges, self.ranges_for(route)),
        );
        let (Some(names), Some(routes), Some(backends), Some(pages), Some(ranges)) = left else {
            return false;
        };
        (self.names, self.routes, self.backends, self.pages, self.ranges) =
            (names, routes, backends, pages, ranges);
        self.sets.extend(route.source_ranges.clone());
        true
    }

    /// Whether there is not enough room for a route's source ranges.
    pub(super) fn lacks_ranges(&self, route: &DesiredRoute) -> bool {
        self.ranges < self.ranges_for(route)
    }

    /// Returns how many ranges a route needs room for beside those before it. Equal sets are in the map once.
    fn ranges_for(&self, route: &DesiredRoute) -> usize {
        let new = route.source_ranges.as_ref().filter(|ranges| !self.sets.contains(*ranges));
        new.map_or(0, |ranges| ranges.ranges().len())
    }
}

/// Whether the maps have room for everything desired.
pub(super) fn fits(desired: &Desired) -> bool {
    Load::of(desired).fits(desired.settings.max_names)
}

/// What the maps must hold of routes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    names: usize,
    routes: usize,
    backends: usize,
    pages: usize,
    ranges: usize,
    /// The number of routes by their source ranges.
    sets: BTreeMap<SourceRanges, usize>,
}

impl Load {
    /// Returns the load of all routes.
    pub(super) fn of(desired: &Desired) -> Self {
        desired.routes.iter().fold(Self::default(), |load, route| load.with(route))
    }

    /// Adds a route.
    pub(super) fn with(mut self, route: &DesiredRoute) -> Self {
        self.names += route.names.len();
        self.routes += 1;
        self.backends += route.backends.len();
        self.pages += pages(&route.backends);
        if let Some(ranges) = &route.source_ranges {
            let routes = self.sets.entry(ranges.clone()).or_default();
            *routes += 1;
            // Equal sets are in the map once.
            self.ranges += if *routes == 1 { ranges.ranges().len() } else { 0 };
        }
        self
    }

    /// Removes one of the routes.
    pub(super) fn without(mut self, route: &DesiredRoute) -> Self {
        self.names -= route.names.len();
        self.routes -= 1;
        self.backends -= route.backends.len();
        self.pages -= pages(&route.backends);
        if let Some(ranges) = &route.source_ranges
            && let Entry::Occupied(mut routes) = self.sets.entry(ranges.clone())
        {
            *routes.get_mut() -= 1;
            if *routes.get() == 0 {
                self.ranges -= ranges.ranges().len();
                routes.remove();
            }
        }
        self
    }

    /// Whether no map must hold more for this load than for the other.
    pub(super) fn is_at_most(&self, other: &Self) -> bool {
        self.names <= other.names
            && self.routes <= other.routes
            && self.backends <= other.backends
            && self.pages <= other.pages
            && self.ranges <= other.ranges
    }

    /// Returns for each map what it must hold, what it can hold, and a description.
    fn counts(&self, names_max: usize) -> [(usize, usize, &'static str); 4] {
        [
            (self.names, names_max, "names (a name counts once a listener)"),
            (self.routes, names_max, "routes"),
            (self.backends, 2 * names_max, "backends"),
            (self.pages, 2 * names_max, "pages of 128 Maglev slots (unequal weights need more)"),
        ]
    }

    /// Whether the maps have room for this load.
    pub(super) fn fits(&self, names_max: u32) -> bool {
        self.ranges <= RANGES && self.counts(names_max as usize).iter().all(|(count, most, _)| count <= most)
    }
}

/// Reports each map that would have to hold too much.
pub(super) fn check(desired: &Desired, problems: &mut Vec<Problem>) {
    bindings(desired, problems);
    let names_max = desired.settings.max_names as usize;
    let load = Load::of(desired);
    if load.ranges > RANGES {
        let what = format!("have {} source ranges together, and there is room for {RANGES}", load.ranges);
        problems.push(Problem::error("routes", what, "use fewer ranges, or several nodes"));
    }
    for (count, most, what) in load.counts(names_max) {
        if count > most {
            let needed = names_max.saturating_mul(count).div_ceil(most);
            problems.push(
                Problem::error(
                    "settings.maxNames",
                    format!("too small: there are {count} {what}, and room for {most}"),
                    format!("raise it to {needed} or more"),
                )
                .value(names_max),
            );
        }
    }
}

/// Reports too many addresses and ports. The sizes of their maps are fixed.
fn bindings(desired: &Desired, problems: &mut Vec<Problem>) {
    let bindings = desired.listeners.iter().map(|listener| listener.addresses.len()).sum::<usize>();
    let addresses: BTreeSet<_> = desired.listeners.iter().flat_map(|listener| &listener.addresses).collect();
    let counts = [
        (bindings, BINDINGS_MAX, "addresses and ports"),
        (addresses.len(), ADDRESSES_MAX, "different addresses"),
    ];
    for (count, most, what) in counts.into_iter().filter(|(count, most, _)| count > most) {
        let what = format!("there are {count} {what}, and room for {most}");
        problems.push(Problem::error("listeners", what, "serve fewer, or on several nodes"));
    }
}

/// The most source ranges of all routes together, equal sets counted once. Half of what the map holds, so that there is room for
/// what they are before and after any change.
pub(super) const RANGES: usize = RANGES_MAX / 2;

fn pages(backends: &[BackendSpec]) -> usize {
    let family = |is_v4: bool| {
        let members = backends.iter().filter(move |b| b.address.is_ipv4() == is_v4 && b.weight > 0);
        let slots = maglev::slots(members.map(|b| b.weight)) as usize;
        if slots > 1 { slots.div_ceil(PAGE_SLOTS) } else { 0 }
    };
    family(true) + family(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::SourceRanges;
    use std::net::IpAddr;
    use std::sync::Arc;

    /// Returns a route with this many ranges that cannot be merged.
    fn limited(count: u32) -> DesiredRoute {
        let range = |number: u32| IpAddr::from((0x0a00_0000 + 2 * number).to_be_bytes()).into();
        let ranges = SourceRanges::new(&(0..count).map(range).collect::<Vec<_>>());
        DesiredRoute {
            name: count.to_string().into(),
            source_ranges: Some(ranges),
            ..DesiredRoute::default()
        }
    }

    #[test]
    fn source_ranges_take_room() {
        let mut room = Room { ranges: 10, ..Room::new(100) };
        assert!(room.take(&limited(7)) && room.lacks_ranges(&limited(4)));
        assert!(!room.take(&limited(4)) && room.take(&limited(3)) && room.take(&DesiredRoute::default()));
        assert!(room.take(&limited(7)), "an equal set is in the map once");
        let load = Load::default().with(&limited(7)).with(&limited(3));
        let less = load.clone().without(&limited(3));
        assert!(less.is_at_most(&load) && !load.is_at_most(&less));
        assert_eq!(load.clone().with(&limited(3)).ranges, 10);
        assert_eq!(load.clone().with(&limited(3)).without(&limited(3)), load);
    }

    /// A change of all of them fits beside what they were.
    #[test]
    fn the_ranges_of_a_file_are_counted() {
        let routes = |count: u32| -> Desired {
            let route = |number: u32| {
                let one = |n: u32| IpAddr::from((number << 16 | n << 1).to_be_bytes()).into();
                let ranges = SourceRanges::new(&(0..1_024).map(one).collect::<Vec<_>>());
                let (name, source_ranges) = (format!("{number:04}").into(), Some(ranges));
                Arc::new(DesiredRoute { name, source_ranges, ..DesiredRoute::default() })
            };
            Desired { routes: (0..count).map(route).collect(), ..Desired::default() }
        };
        let most = (RANGES / 1_024) as u32;
        assert!(fits(&routes(most)) && !fits(&routes(most + 1)));
        let mut problems = Vec::new();
        check(&routes(most + 1), &mut problems);
        let [problem] = &problems[..] else { panic!("{problems:?}") };
        assert_eq!(problem.what, "have 525312 source ranges together, and there is room for 524288");
    }
}
