//! What the maps hold, part by part, so that it can be compared with what is in the kernel.

use super::applied::{Applied, AppliedRoute, put_name};
use super::change::Change;
use super::policies;
use super::tables::pages;
use common::maps::backend::Backend;
use common::maps::listener::AddressRole;
use common::maps::route::{LABEL_LISTENER, LABEL_ROUTE, LabelKey, MemberKey, PageKey};
use std::ops::Bound;
use std::sync::Arc;

/// Something that is served, with all elements that only it needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// What everything on the node needs: settings and addresses. Ids are right whatever the maps say: see `Applied::from_maps`.
    Node,
    /// A listener, by name.
    Listener(Arc<str>),
    /// A route, by name.
    Route(Arc<str>),
}

impl Applied {
    /// Returns the part behind this one; `None`: the first.
    pub fn next_part(&self, part: Option<&Part>) -> Option<Part> {
        let next_listener = |after: Bound<&Arc<str>>| {
            let next = self.listeners.range::<Arc<str>, _>((after, Bound::Unbounded)).next();
            next.map(|(name, _)| Part::Listener(Arc::clone(name)))
        };
        let route = |place| self.routes.get(place).map(|route| Part::Route(Arc::clone(&route.name)));
        match part {
            None => Some(Part::Node),
            Some(Part::Node) => next_listener(Bound::Unbounded).or_else(|| route(0)),
            Some(Part::Listener(name)) => next_listener(Bound::Excluded(name)).or_else(|| route(0)),
            Some(Part::Route(name)) => match self.routes.place(name) {
                Ok(place) => route(place + 1),
                Err(place) => route(place),
            },
        }
    }

    /// Whether the maps should have this part.
    pub fn has(&self, part: &Part) -> bool {
        match part {
            Part::Node => true,
            Part::Listener(name) => self.listeners.contains_key(name),
            Part::Route(name) => self.routes.find(name).is_some(),
        }
    }

    /// Returns the writes that make a part what it should be, whatever of it is there. What leads somewhere comes last.
    pub fn writes(&self, part: &Part) -> Vec<Change> {
        match part {
            Part::Node => {
                let address =
                    |(address, flags): (&_, &_)| Change::PutAddress(*address, AddressRole { flags: *flags });
                let mut writes = vec![Change::PutSettings(self.settings)];
                writes.extend(self.addresses.iter().map(address));
                writes
            }
            Part::Listener(name) => {
                let Some(listener) = self.listeners.get(name) else { return Vec::new() };
                let label = LabelKey { kind: LABEL_LISTENER, id: listener.id };
                let mut writes = vec![Change::PutLabel(label, Arc::clone(name))];
                writes.extend(listener.entries.iter().map(|(key, value)| Change::PutListener(*key, *value)));
                writes
            }
            Part::Route(name) => self.routes.find(name).map(|route| of_route(route)).unwrap_or_default(),
        }
    }
}

fn of_route(route: &AppliedRoute) -> Vec<Change> {
    let label = LabelKey { kind: LABEL_ROUTE, id: route.id };
    let mut writes =
        vec![Change::PutLabel(label, Arc::clone(&route.name)), Change::PutRouteCounters(route.id)];
    writes.extend(route.backends.iter().map(|(id, value)| Change::PutBackend(*id, *value)));
    for table in [&route.v4, &route.v6] {
        let (id, slots) = (table.table.id, table.table.slots);
        if table.table.is_single() {
            continue;
        }
        for (member, (backend, _)) in (0..).zip(&*table.members) {
            writes.push(Change::PutMember(MemberKey { table: id, member }, *backend));
        }
        let backend = |id: u32| route.backends.iter().find(|(other, _)| *other == id);
        let values: Option<Vec<Backend>> = table
            .members
            .iter()
            .map(|(id, weight)| Some(Backend { weight: *weight, ..backend(*id)?.1 }))
            .collect();
        let pages = values.map(|values| pages(&values, slots)).unwrap_or_default();
        writes.extend(
            (0..)
                .zip(pages)
                .map(|(page, value)| Change::PutPage(PageKey { table: id, page }, Box::new(value))),
        );
    }
    writes.extend(policies::puts(route.value.policy, route.source_ranges.as_ref()));
    writes.push(Change::PutRoute(route.id, route.value));
    writes
        .extend(route.names.iter().filter_map(|(listener, pattern)| put_name(*listener, pattern, route.id)));
    writes
}
