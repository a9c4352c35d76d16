//! Checks whether everything fits into the maps, whose sizes follow `settings.maxNames`.

use super::maglev;
use crate::model::{BackendSpec, Desired, DesiredRoute, Problem};
use crate::settle::{ADDRESSES_MAX, BINDINGS_MAX};
use common::maps::route::PAGE_SLOTS;
use std::collections::BTreeSet;

/// The room that is left in the maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Room {
    names: usize,
    routes: usize,
    backends: usize,
    pages: usize,
}

impl Room {
    /// Returns the room of empty maps.
    pub(super) fn new(names_max: u32) -> Self {
        let most = names_max as usize;
        Self { names: most, routes: most, backends: 2 * most, pages: 2 * most }
    }

    /// Takes the room that a route needs. Returns `false`, and takes none, if there is not enough.
    pub(super) fn take(&mut self, route: &DesiredRoute) -> bool {
        let rest = |left: usize, needed: usize| left.checked_sub(needed);
        let left = (
            rest(self.names, route.names.len()),
            rest(self.routes, 1),
            rest(self.backends, route.backends.len()),
            rest(self.pages, pages(&route.backends)),
        );
        let (Some(names), Some(routes), Some(backends), Some(pages)) = left else { return false };
        *self = Self { names, routes, backends, pages };
        true
    }
}

/// Whether the maps have room for everything desired.
pub(super) fn fits(desired: &Desired) -> bool {
    Load::of(desired).fits(desired.settings.max_names)
}

/// What the maps must hold of routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Load {
    names: usize,
    routes: usize,
    backends: usize,
    pages: usize,
}

impl Load {
    /// Returns the load of all routes.
    pub(super) fn of(desired: &Desired) -> Self {
        desired.routes.iter().fold(Self::default(), |load, route| load.with(route))
    }

    /// Adds a route.
    pub(super) fn with(self, route: &DesiredRoute) -> Self {
        Self {
            names: self.names + route.names.len(),
            routes: self.routes + 1,
            backends: self.backends + route.backends.len(),
            pages: self.pages + pages(&route.backends),
        }
    }

    /// Removes one of the routes.
    pub(super) fn without(self, route: &DesiredRoute) -> Self {
        Self {
            names: self.names - route.names.len(),
            routes: self.routes - 1,
            backends: self.backends - route.backends.len(),
            pages: self.pages - pages(&route.backends),
        }
    }

    /// Whether no map must hold more for this load than for the other.
    pub(super) fn is_at_most(self, other: Self) -> bool {
        self.names <= other.names
            && self.routes <= other.routes
            && self.backends <= other.backends
            && self.pages <= other.pages
    }

    /// Returns for each map what it must hold, what it can hold, and a description.
    fn counts(self, names_max: usize) -> [(usize, usize, &'static str); 4] {
        [
            (self.names, names_max, "names (a name counts once a listener)"),
            (self.routes, names_max, "routes"),
            (self.backends, 2 * names_max, "backends"),
            (self.pages, 2 * names_max, "pages of 128 Maglev slots (unequal weights need more)"),
        ]
    }

    /// Whether the maps have room for this load.
    pub(super) fn fits(self, names_max: u32) -> bool {
        self.counts(names_max as usize).iter().all(|(count, most, _)| count <= most)
    }
}

/// Reports each map that would have to hold too much.
pub(super) fn check(desired: &Desired, problems: &mut Vec<Problem>) {
    bindings(desired, problems);
    let names_max = desired.settings.max_names as usize;
    for (count, most, what) in Load::of(desired).counts(names_max) {
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

fn pages(backends: &[BackendSpec]) -> usize {
    let family = |is_v4: bool| {
        let members = backends.iter().filter(move |b| b.address.is_ipv4() == is_v4 && b.weight > 0);
        let slots = maglev::slots(members.map(|b| b.weight)) as usize;
        if slots > 1 { slots.div_ceil(PAGE_SLOTS) } else { 0 }
    };
    family(true) + family(false)
}
