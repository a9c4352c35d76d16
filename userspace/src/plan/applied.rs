//! What the maps hold, in compact form, with the assigned ids.

use crate::model::{Desired, DesiredListener, DesiredRoute, Pattern, SharedList, SourceRanges};
use common::maps::address::Address;
use common::maps::backend::Backend;
use common::maps::flow::ClientTuple;
use common::maps::listener::{IDS, Listener, ListenerKey, ROLE_BACKEND};
use common::maps::policy::POLICY_NOBODY;
use common::maps::route::{LABEL_LISTENER, NameRoute};
use common::maps::settings::{Ids, Settings};
use foldhash::{HashMap, HashSet};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

pub(super) use super::applied_route::{AppliedRoute, AppliedTable};
use super::change::{Change, name_key, one_label_key, suffix_key};
use super::hops::Hops;
use super::tally::Tally;

/// What the maps hold. Cheap to clone; the default value is for empty maps.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    pub(super) ids: Ids,
    /// Ids of removed listeners that nothing refers to any more, the longest free first.
    pub(super) free_listeners: Arc<VecDeque<u32>>,
    /// A listener is not served because there is no id for it.
    pub(super) lacks_listener_ids: bool,
    /// The id to try first for the next policy; 0 is as 1.
    pub(super) next_policy: u16,
    /// A route admits nobody because there is no room for its source ranges.
    pub(super) lacks_policies: bool,
    /// Policies that are about to be deleted: how many ranges of each are in the map until [`Applied::forget_policies`].
    pub(super) leaving_policies: Arc<BTreeMap<u16, usize>>,
    pub(super) settings: Settings,
    /// `ROLE_*` bits.
    pub(super) addresses: Arc<BTreeMap<Address, u32>>,
    pub(super) listeners: Arc<BTreeMap<Arc<str>, Arc<AppliedListener>>>,
    /// By name.
    pub(super) routes: SharedList<Arc<AppliedRoute>>,
    /// The tally of the routes.
    pub(super) tally: Tally,
    /// What a daemon that died left half done; empty after the next plan.
    pub(super) leftover: Leftover,
    /// What it was planned for. `None`: it was read from the maps, or the state of the network has no number.
    pub(super) basis: Option<Basis>,
}

/// What the last plan was made for. What is unchanged since need not be planned again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Basis {
    pub(super) desired: Desired,
    /// [`super::Hops::edition`].
    pub(super) edition: u64,
}

impl Basis {
    /// Whether an unchanged route needs no new plan: listeners, source addresses and network are the same.
    pub(super) fn is_like(&self, desired: &Desired, hops: &Hops) -> bool {
        let (before, now) = (&self.desired, desired);
        let route = |desired: &Desired, listener: &DesiredListener| {
            listener.route.and_then(|place| desired.routes.get(place)).map(|route| Arc::clone(&route.name))
        };
        let alike = |old: &DesiredListener, new: &DesiredListener| {
            (&old.name, &old.addresses, old.port, old.protocol)
                == (&new.name, &new.addresses, new.port, new.protocol)
                && route(before, old) == route(now, new)
        };
        hops.edition == self.edition
            && before.settings.source_addresses == now.settings.source_addresses
            && before.listeners.len() == now.listeners.len()
            && before.listeners.iter().zip(&now.listeners).all(|(old, new)| alike(old, new))
    }
}

/// A listener as the maps hold it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct AppliedListener {
    pub(super) id: u32,
    /// By key.
    pub(super) entries: Vec<(ListenerKey, Listener)>,
}

/// Returns a list as what was planned or read before it has it, where that is the same.
pub(super) fn shared(list: &[u32], before: &mut Arc<[u32]>) -> Arc<[u32]> {
    if **before != *list {
        *before = list.into();
    }
    Arc::clone(before)
}

/// Map entries that belong to no listener or route that is kept.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Leftover {
    pub(super) listeners: Vec<AppliedListener>,
    pub(super) names: Vec<(u32, Pattern)>,
    pub(super) backends: Vec<(u32, Backend)>,
    /// Writes that delete malformed keys.
    pub(super) broken: Vec<Change>,
    /// Pages, members, labels, routes, counters, policies to delete.
    pub(super) later: Vec<Change>,
    /// Ranges to delete once routes and listeners that may have them are written.
    pub(super) ranges: Vec<Change>,
    /// Addresses that reply to no connection any more: see [`Applied::forget_senders`].
    pub(super) silent: BTreeSet<Address>,
}

impl Leftover {
    /// Returns the ids of left-over listeners and names.
    pub(super) fn named_listeners(&self) -> impl Iterator<Item = u32> {
        let names = self.names.iter().map(|(listener, _)| *listener);
        self.listeners.iter().map(|listener| listener.id).chain(names)
    }

    /// Returns the ids of listeners' labels that are to be deleted.
    pub(super) fn labelled_listeners(&self) -> impl Iterator<Item = u32> {
        self.later.iter().filter_map(labelled_listener)
    }
}

/// Returns the id of the listener whose label a change deletes.
fn labelled_listener(change: &Change) -> Option<u32> {
    match change {
        Change::DeleteLabel(key) if key.kind == LABEL_LISTENER => Some(key.id),
        _ => None,
    }
}

impl Applied {
    /// Keeps what the outputs are to hold from now on instead of what it was planned for, whose listeners, routes and settings are the
    /// same: otherwise all of it would be kept twice.
    pub fn take_equal(&mut self, desired: &Desired) {
        if let Some(basis) = &mut self.basis {
            basis.desired = desired.clone();
        }
    }

    /// Selects another key for new cookies. Returns the settings, which the caller must write.
    pub fn sign_with(&mut self, cookie_key: u32) -> Settings {
        self.settings.cookie_key = cookie_key;
        self.settings
    }

    /// Allows these listener ids to be given out again: what the plan that removed them called for is done, so that no connection,
    /// name or label has them any more.
    pub fn reuse_listeners(&mut self, ids: impl IntoIterator<Item = u32>) {
        let named: BTreeSet<u32> = self.leftover.named_listeners().collect();
        let ids: BTreeSet<u32> = ids.into_iter().filter(|id| !named.contains(id)).collect();
        // Otherwise the next plan would delete the label of whatever gets the id.
        self.leftover.later.retain(|change| labelled_listener(change).is_none_or(|id| !ids.contains(&id)));
        Arc::make_mut(&mut self.free_listeners).extend(ids);
    }

    /// Allows these policy ids, and the room of their ranges, to be given out again: what the plans that removed them called for is
    /// done.
    pub fn forget_policies(&mut self, ids: impl IntoIterator<Item = u32>) {
        let ids: BTreeSet<u16> = ids.into_iter().filter_map(|id| id.try_into().ok()).collect();
        if ids.is_empty() {
            return;
        }
        let is_gone =
            |change: &Change| matches!(change, Change::DeletePolicy(key) if ids.contains(&key.id()));
        // Otherwise the next plan would delete the ranges of the policy that gets the id.
        self.leftover.later.retain(|change| !is_gone(change));
        self.leftover.ranges.retain(|change| !is_gone(change));
        Arc::make_mut(&mut self.leaving_policies).retain(|id, _| !ids.contains(id));
    }

    /// Returns the addresses of backends that are gone, and by which replies are known until [`Applied::forget_senders`].
    pub fn gone_senders(&self) -> BTreeSet<Address> {
        let is_gone = |(address, flags): &(&Address, &u32)| {
            **flags & ROLE_BACKEND != 0 && !self.tally.is_seeing(address)
        };
        self.addresses.iter().filter(is_gone).map(|(address, _)| *address).collect()
    }

    /// Has the next plan no longer know replies by these addresses, unless backends have them again, or had before that plan: the
    /// connections are ended.
    pub fn forget_senders(&mut self, addresses: impl IntoIterator<Item = Address>) {
        self.leftover.silent.extend(addresses);
    }

    /// Whether the next plan has addresses to forget.
    pub fn has_senders_to_forget(&self) -> bool {
        !self.leftover.silent.is_empty()
    }

    /// Whether a route admits nobody because there was no room for its source ranges.
    pub fn lacks_policies(&self) -> bool {
        self.lacks_policies
    }

    /// Returns the ids of listeners that were given out, and of which nothing is in the maps but a label: connections may still have
    /// them. While half of all ids were never given out, only those with a label.
    pub fn unused_listeners(&self) -> BTreeSet<u32> {
        let next = self.ids.listener.min(IDS as u32);
        let is_early = next <= IDS as u32 / 2;
        let mut unused: BTreeSet<u32> = if is_early { BTreeSet::new() } else { (1..next).collect() };
        unused.extend(self.leftover.labelled_listeners());
        let kept = self.listeners.values().map(|listener| listener.id);
        for id in kept.chain(self.leftover.named_listeners()).chain(self.free_listeners.iter().copied()) {
            unused.remove(&id);
        }
        unused
    }

    /// Returns deletions of what nothing leads to. The next plan has them, too.
    pub fn left(&self) -> &[Change] {
        &self.leftover.later
    }

    /// Whether a listener is not served because there was no id for it.
    pub fn lacks_listener_ids(&self) -> bool {
        self.lacks_listener_ids
    }

    /// Whether a route admits nobody because there is no room for its source ranges.
    pub fn lacks_room_for(&self, route: &DesiredRoute) -> bool {
        let is_refusing =
            || self.routes.find(&route.name).is_some_and(|own| own.value.policy == POLICY_NOBODY);
        self.lacks_policies
            && route.source_ranges.as_ref().is_some_and(|ranges| !ranges.is_empty())
            && is_refusing()
    }

    /// Returns what is needed to check all flows at once. This is required when a daemon adopts the maps of
    /// another one.
    pub fn census(&self) -> Census {
        let entries = self.listeners.values().flat_map(|listener| &listener.entries);
        let routes = || self.routes.iter();
        Census {
            listeners: entries.map(|(key, value)| (*key, value.id)).collect(),
            attached: routes().flat_map(|r| r.attached.iter().map(|id| (*id, r.id))).collect(),
            backends: routes().flat_map(|r| r.backends.iter().map(|(id, _)| (*id, r.id))).collect(),
            ranges: routes().filter_map(|r| Some((r.id, r.source_ranges.clone()?))).collect(),
            next: self.ids,
        }
    }
}

/// The listeners, routes and backends in the maps, to check whether a connection belongs to them.
#[derive(Clone, Debug, Default)]
pub struct Census {
    listeners: HashMap<ListenerKey, u32>,
    /// (listener id, route id).
    attached: HashSet<(u32, u32)>,
    /// Backend id to route id.
    backends: HashMap<u32, u32>,
    /// Route id to whose connections it admits.
    ranges: HashMap<u32, SourceRanges>,
    /// The ids that are given out next.
    next: Ids,
}

impl Census {
    /// Whether a connection's listener, route and backend still exist and belong together. A waiting hello
    /// without a route has `route` and `backend` 0. Of what came after the census nothing is known to be missing.
    pub fn knows(&self, client: &ClientTuple, listener: u32, route: u32, backend: u32) -> bool {
        if listener >= self.next.listener || route >= self.next.route || backend >= self.next.backend {
            return true;
        }
        let key = ListenerKey { address: client.vip, port: client.vip_port, reserved: [0; 2] };
        self.listeners.get(&key) == Some(&listener)
            && (route == 0 || self.attached.contains(&(listener, route)))
            && (backend == 0 || self.backends.get(&backend) == Some(&route))
    }

    /// Whether the route, if it has one, admits the client.
    pub fn admits(&self, client: &ClientTuple, route: u32) -> bool {
        self.ranges.get(&route).is_none_or(|ranges| ranges.holds(client.client.into()))
    }
}

/// Returns the write that makes a name lead to a route; `None` for a pattern that no name can match.
pub(super) fn put_name(listener: u32, pattern: &Pattern, route: u32) -> Option<Change> {
    Some(match pattern {
        Pattern::Exact(name) => Change::PutName(listener, name.clone(), NameRoute { route }),
        Pattern::OneLabel(suffix) => {
            one_label_key(listener, suffix)?;
            Change::PutOneLabel(listener, suffix.clone(), NameRoute { route })
        }
        Pattern::Wildcard(suffix) => {
            suffix_key(listener, suffix)?;
            Change::PutWildcard(listener, suffix.clone(), NameRoute { route })
        }
    })
}

/// Returns the write that deletes a name; `None` for a pattern that no name can match.
pub(super) fn delete_name(listener: u32, pattern: &Pattern) -> Option<Change> {
    Some(match pattern {
        Pattern::Exact(name) => Change::DeleteName(Box::new(name_key(listener, name)?)),
        Pattern::OneLabel(suffix) => Change::DeleteName(Box::new(one_label_key(listener, suffix)?)),
        Pattern::Wildcard(suffix) => Change::DeleteWildcard(Box::new(suffix_key(listener, suffix)?)),
    })
}
