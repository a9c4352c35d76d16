//! The difference of listeners, and of the roles of addresses.

use super::Planner;
use super::applied::AppliedListener;
use super::change::Change;
use crate::model::{Desired, DesiredListener, Problem, Protocol};
use common::maps::address::{Address, Port};
use common::maps::listener::{
    AddressRole, Listener, ListenerKey, PROTOCOL_TCP, PROTOCOL_TLS, ROLE_BACKEND, ROLE_OWN, ROLE_SOURCE,
    ROLE_VIP,
};
use common::maps::route::{LABEL_LISTENER, LabelKey};
use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

/// The largest MSS we announce. The kernel program's limit is 8,960 payload bytes per packet
/// (`PAYLOAD_MAX`).
const MSS_MAX: u16 = 8900;

impl Planner<'_> {
    /// Returns the id of each desired listener, in order; `None` if it has no address, or there are no more
    /// ids.
    pub(super) fn listener_ids(&mut self, desired: &Desired) -> Vec<Option<u32>> {
        let mut ids = Vec::with_capacity(desired.listeners.len());
        for listener in &desired.listeners {
            if listener.addresses.is_empty() {
                ids.push(None);
                continue;
            }
            let before = self.before.listeners.get(&listener.name).map(|listener| listener.id);
            let id = before.or_else(|| self.next_listener_id());
            if id.is_none() {
                self.after.lacks_listener_ids = true;
                self.problems.push(Problem::error(
                    "",
                    format!("listener {} is not served: all 65,535 ids are in use, or were seconds ago", listener.name),
                    "delete listeners that are not needed; of those just deleted, the ids are used again by itself",
                ));
            }
            ids.push(id);
        }
        ids
    }

    /// Returns an id that was never used, or else the one that has been free for longest.
    fn next_listener_id(&mut self) -> Option<u32> {
        // The id has 16 bits in the keys of names.
        if self.after.ids.listener <= u32::from(u16::MAX) {
            return Some(self.next_id(|ids| &mut ids.listener));
        }
        if self.after.free_listeners.is_empty() {
            return None;
        }
        Arc::make_mut(&mut self.after.free_listeners).pop_front()
    }

    /// Plans every listener.
    pub(super) fn listeners(&mut self, desired: &Desired, ids: &[Option<u32>]) {
        let before = self.before;
        let mtus = self.after.tally.mtus();
        let mut listeners = BTreeMap::new();
        let old = before.listeners.values().map(|listener| &**listener).chain(&before.leftover.listeners);
        let mut old_entries: HashMap<ListenerKey, Listener> = HashMap::new();
        for listener in old {
            old_entries.extend(listener.entries.iter().copied());
        }
        for (listener, id) in desired.listeners.iter().zip(ids) {
            let Some(id) = *id else { continue };
            let route = listener.route.and_then(|place| desired.routes.get(place));
            let route = route.and_then(|route| self.after.routes.find(&route.name));
            // On TLS the name decides whose the connection is.
            let policy =
                route.filter(|_| listener.protocol == Protocol::Tcp).map_or(0, |route| route.value.policy);
            let mtus = mtus.get(&id).copied().unwrap_or_default();
            let protocol = match listener.protocol {
                Protocol::Tls => PROTOCOL_TLS,
                Protocol::Tcp => PROTOCOL_TCP,
            };
            let value = Listener {
                id,
                route: route.map_or(0, |route| route.id),
                policy,
                protocol,
                ..Listener::zeroed()
            };
            let new = AppliedListener { id, entries: entries(listener, value, mtus) };
            for (key, value) in &new.entries {
                let old = old_entries.remove(key);
                if old != Some(*value) {
                    self.steps.listeners.push(Change::PutListener(*key, *value));
                }
                if let Some(old) = old.filter(|old| old.id != id) {
                    self.steps.ended.withdrawn.insert((old.id, *key));
                }
            }
            let same = before.listeners.get(&listener.name).filter(|old| ***old == new);
            if !before.listeners.contains_key(&listener.name) {
                let label = LabelKey { kind: LABEL_LISTENER, id };
                self.steps.fill.push(Change::PutLabel(label, Arc::clone(&listener.name)));
            }
            let new = same.map_or_else(|| Arc::new(new), Arc::clone);
            listeners.insert(Arc::clone(&listener.name), new);
        }
        self.after.listeners = Arc::new(listeners);
        let mut gone: Vec<_> = old_entries.into_iter().collect();
        gone.sort_by_key(|(key, _)| *key);
        for (key, value) in gone {
            self.steps.close.push(Change::DeleteListener(key));
            self.steps.ended.withdrawn.insert((value.id, key));
        }
        self.removed_listeners();
    }

    fn removed_listeners(&mut self) {
        let before = self.before;
        let named = before.listeners.iter().filter(|(name, _)| !self.after.listeners.contains_key(*name));
        let gone: Vec<u32> = named.map(|(_, listener)| listener.id).collect();
        for id in gone.into_iter().chain(before.leftover.listeners.iter().map(|listener| listener.id)) {
            self.steps.ended.listeners.insert(id);
            self.steps.later.push(Change::DeleteLabel(LabelKey { kind: LABEL_LISTENER, id }));
        }
        let ended = &mut self.steps.ended;
        ended.listeners.extend(before.leftover.named_listeners());
        ended.listeners.extend(before.leftover.labelled_listeners());
        let listeners = &ended.listeners;
        ended.withdrawn.retain(|(id, _)| !listeners.contains(id));
        ended.detached.retain(|(id, _)| !listeners.contains(id));
    }

    /// Plans the roles of addresses. A source address stays one forever, because flows may still use it.
    pub(super) fn addresses(&mut self) {
        let mut roles: BTreeMap<Address, u32> = BTreeMap::new();
        // That of a backend ends after its connections: until then, what its pod sends on them would pass us, on to the client.
        // One that was back by the time its connections were ended has others since.
        let (silent, tally) = (&self.before.leftover.silent, &self.before.tally);
        let is_silent = |address| silent.contains(address) && !tally.is_seeing(address);
        for (address, flags) in &*self.before.addresses {
            let is_over = is_silent(address) || self.own.contains(&IpAddr::from(*address));
            roles.insert(*address, *flags & if is_over { ROLE_SOURCE } else { ROLE_SOURCE | ROLE_BACKEND });
        }
        for (key, _) in self.after.listeners.values().flat_map(|listener| &listener.entries) {
            *roles.entry(key.address).or_default() |= ROLE_VIP;
        }
        for source in self.after.tally.sources() {
            *roles.entry(source).or_default() |= ROLE_SOURCE;
        }
        for backend in self.seeing() {
            *roles.entry(backend).or_default() |= ROLE_BACKEND;
        }
        for (address, flags) in &mut roles {
            if *flags != 0 && self.own.contains(&IpAddr::from(*address)) {
                *flags |= ROLE_OWN;
            }
        }
        for (address, flags) in &roles {
            self.role(*address, *flags);
        }
        roles.retain(|_, flags| *flags != 0);
        self.after.addresses = Arc::new(roles);
    }

    /// A source address must be in the map before the first SYN from it, a VIP after its listeners.
    fn role(&mut self, address: Address, new: u32) {
        let mut flags = self.before.addresses.get(&address).copied().unwrap_or_default();
        let put = |flags| Change::PutAddress(address, AddressRole { flags });
        // Before any connection whose replies are known by it.
        let replies = ROLE_SOURCE | ROLE_BACKEND;
        if new & replies & !flags != 0 {
            flags |= new & (replies | ROLE_OWN);
            self.steps.fill.push(put(flags));
        }
        if new & !flags != 0 {
            flags |= new;
            self.steps.vips.push(put(flags));
        }
        if new == 0 {
            self.steps.leave.push(Change::DeleteAddress(address));
        } else if flags != new {
            self.steps.leave.push(put(new));
        }
    }
}

/// Returns what `LISTENERS` should hold of a listener: for each address this value, with its MSS.
fn entries(listener: &DesiredListener, value: Listener, mtus: [u16; 2]) -> Vec<(ListenerKey, Listener)> {
    let entry = |address: &IpAddr| {
        let key = ListenerKey {
            address: Address::from(*address),
            port: Port::new(listener.port),
            reserved: [0; 2],
        };
        (key, Listener { mss: mss(*address, mtus), ..value })
    };
    let mut entries: Vec<_> = listener.addresses.iter().map(entry).collect();
    entries.sort_by_key(|(key, _)| *key);
    entries
}

/// Returns the MSS to announce: the smallest device MTU towards the backends of this family, minus the
/// headers.
fn mss(address: IpAddr, [mtu_v4, mtu_v6]: [u16; 2]) -> u16 {
    let (mtu, headers, least) = match address {
        IpAddr::V4(_) => (mtu_v4, 40, 536),
        IpAddr::V6(_) => (mtu_v6, 60, 1220),
    };
    let mtu = if mtu == 0 { 1500 } else { mtu };
    mtu.saturating_sub(headers).clamp(least, MSS_MAX)
}
