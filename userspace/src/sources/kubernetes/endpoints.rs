//! Endpoints of Services, put together from their slices. Time is an argument.

use super::pack;
use super::watch_event::Slice;
use crate::model::ObjectName;
use crate::model::cluster::{Endpoint, EndpointState};
use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// An endpoint counts as removed when no slice of its Service has held it for this long: one that moves from slice to
/// slice is missing from both for a moment.
const GRACE: Duration = Duration::from_secs(1);

/// All slices, by Service.
#[derive(Debug, Default)]
pub(super) struct Slices {
    slices: BTreeMap<ObjectName, Slice>,
    /// Each slice's Service, and its own name: both are in one namespace.
    by_service: BTreeSet<(ObjectName, Arc<str>)>,
    /// Endpoints in no slice any more, and when each is forgotten.
    departed: BTreeMap<ObjectName, Vec<(Endpoint, Instant)>>,
    /// Services whose slices changed since [`Slices::settle`].
    touched: BTreeSet<ObjectName>,
    /// Services whose endpoints [`Slices::settle`] changed.
    changed: BTreeSet<ObjectName>,
}

impl Slices {
    /// New or changed slice.
    pub(super) fn put(&mut self, name: ObjectName, slice: Slice) {
        match self.slices.get(&name) {
            Some(old) if *old == slice => return,
            Some(old) if old.service == slice.service => {}
            Some(_) => self.take_away(&name),
            None => {}
        }
        let service = slice.of(&name);
        self.by_service.insert((service.clone(), Arc::clone(&name.name)));
        self.touched.insert(service);
        self.slices.insert(name, slice);
    }

    /// A slice is gone.
    pub(super) fn take_away(&mut self, name: &ObjectName) {
        let Some(slice) = self.slices.remove(name) else { return };
        let service = slice.of(name);
        self.by_service.remove(&(service.clone(), Arc::clone(&name.name)));
        self.touched.insert(service);
    }

    /// To be called after many were added.
    pub(super) fn pack(&mut self) {
        pack::map(&mut self.slices);
        pack::set(&mut self.by_service);
    }

    /// How many slices there are.
    pub(super) fn len(&self) -> usize {
        self.slices.len()
    }

    /// Names of all slices.
    pub(super) fn names(&self) -> impl Iterator<Item = &ObjectName> {
        self.slices.keys()
    }

    /// When the next endpoint's grace is over.
    pub(super) fn next_expiry(&self) -> Option<Instant> {
        self.departed.values().flatten().map(|(_, until)| *until).min()
    }

    /// Writes the endpoints of the Services whose slices changed, or whose departed endpoints are to be forgotten, and of
    /// no other. Whether anything changed.
    pub(super) fn settle(
        &mut self,
        endpoints: &mut BTreeMap<ObjectName, Arc<[Endpoint]>>,
        now: Instant,
    ) -> bool {
        let mut touched = std::mem::take(&mut self.touched);
        for (service, departed) in &self.departed {
            if departed.iter().any(|(_, until)| *until <= now) {
                touched.insert(service.clone());
            }
        }
        let mut changed = false;
        let are_many = 2 * touched.len() > endpoints.len();
        for service in touched {
            let before = endpoints.get(&service);
            let after = self.endpoints(&service, before, now);
            if before.map_or(&[][..], |before| before) == &*after {
                continue;
            }
            changed = true;
            self.changed.insert(service.clone());
            if after.is_empty() {
                endpoints.remove(&service);
            } else {
                endpoints.insert(service, after);
            }
        }
        if changed && are_many {
            pack::map(endpoints);
        }
        changed
    }

    /// Services whose endpoints changed since this was last asked.
    pub(super) fn take_changed(&mut self) -> BTreeSet<ObjectName> {
        std::mem::take(&mut self.changed)
    }

    /// What a Service's slices hold together, and what they held a moment ago.
    fn endpoints(
        &mut self,
        service: &ObjectName,
        before: Option<&Arc<[Endpoint]>>,
        now: Instant,
    ) -> Arc<[Endpoint]> {
        let present = self.present(service);
        let is_present = |endpoint: &Endpoint| present.binary_search_by_key(&key(endpoint), key).is_ok();
        let mut departed = self.departed.remove(service).unwrap_or_default();
        departed.retain(|(endpoint, until)| *until > now && !is_present(endpoint));
        let leaves =
            |endpoint: &&Endpoint| endpoint.state != EndpointState::Departed && !is_present(endpoint);
        for endpoint in before.into_iter().flat_map(|before| before.iter()).filter(leaves) {
            departed.push((Endpoint { state: EndpointState::Departed, ..endpoint.clone() }, now + GRACE));
        }
        if departed.is_empty() {
            return present;
        }
        let mut all: Vec<Endpoint> = present.to_vec();
        all.extend(departed.iter().map(|(endpoint, _)| endpoint.clone()));
        all.sort_by(|a, b| key(a).cmp(&key(b)));
        self.departed.insert(service.clone(), departed);
        all.into()
    }

    /// What a Service's slices hold together. An endpoint in two slices has the better of its two states.
    fn present(&self, service: &ObjectName) -> Arc<[Endpoint]> {
        let slices = || {
            let from = self.by_service.range((service.clone(), Arc::default())..);
            let own = from.take_while(|(of, _)| of == service);
            own.filter_map(|(of, name)| {
                self.slices.get(&ObjectName::new(Arc::clone(&of.namespace), Arc::clone(name)))
            })
        };
        let mut few = slices();
        if let (Some(only), None) = (few.next(), few.next()) {
            return Arc::clone(&only.endpoints);
        }
        normalise(slices().flat_map(|slice| slice.endpoints.iter().cloned()).collect())
    }
}

impl Slice {
    /// The Service of a slice of this name.
    fn of(&self, name: &ObjectName) -> ObjectName {
        ObjectName::new(Arc::clone(&name.namespace), Arc::clone(&self.service))
    }
}

/// What makes two endpoints the same.
fn key(endpoint: &Endpoint) -> (&str, IpAddr, u16) {
    (&endpoint.port_name, endpoint.address, endpoint.port)
}

/// Sorts; of each endpoint the best state stays.
pub(super) fn normalise(mut endpoints: Vec<Endpoint>) -> Arc<[Endpoint]> {
    endpoints.sort_by(|a, b| (key(a), a.state, &a.zones).cmp(&(key(b), b.state, &b.zones)));
    endpoints.dedup_by(|later, earlier| key(later) == key(earlier));
    endpoints.into()
}
