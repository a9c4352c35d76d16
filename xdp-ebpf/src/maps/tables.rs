//! The maps as the tables of the decision.

use common::decide::pick::{self, Choice, LOOKS_MAX, Search};
use common::decide::{route_key, tables::Tables};
use common::maps::backend::Backend;
use common::maps::listener::{Listener, ListenerKey};
use common::maps::policy::PolicyKey;
use common::maps::route::{MemberKey, NameKey, PAGE_SLOTS, PageKey, Route, SuffixKey};

use super::{
    BACKENDS, LISTENERS, MAGLEV, MEMBERS, POLICIES, ROUTES, ROUTES_EXACT, ROUTES_LONG, ROUTES_WILDCARD,
    overwritten,
};
use crate::kernel;
use crate::trie_key;
use crate::verified::looped;

/// Every map that a decision looks up.
pub(crate) struct Maps;

impl Tables for Maps {
    #[inline(always)]
    fn listener(&self, key: &ListenerKey, to: &mut Listener) -> bool {
        overwritten(|| LISTENERS.get_ptr(key)).is_some_and(|from| copied(from, to))
    }

    #[inline(always)]
    fn name(&self, key: &NameKey) -> u32 {
        let found = match route_key::is_short(key.short.length) {
            true => overwritten(|| ROUTES_EXACT.get_ptr(&key.short)),
            false => overwritten(|| ROUTES_LONG.get_ptr(key)),
        };
        // SAFETY: non-null by the lookup; see `hash_access!`.
        found.map_or(0, |found| unsafe { (*found).route })
    }

    #[inline(always)]
    fn wildcard(&self, key: &SuffixKey) -> u32 {
        ROUTES_WILDCARD.get(trie_key::of_suffix(key)).map_or(0, |found| found.route)
    }

    #[inline(always)]
    fn route(&self, id: u32, to: &mut Route) -> bool {
        overwritten(|| ROUTES.get_ptr(&id)).is_some_and(|from| copied(from, to))
    }

    #[inline(always)]
    fn is_within(&self, key: &PolicyKey) -> bool {
        POLICIES.get(trie_key::of_policy(key)).is_some()
    }

    #[inline(always)]
    fn slot(&self, table: u32, slot: u32) -> u32 {
        let key = PageKey { table, page: slot / PAGE_SLOTS as u32 };
        let Some(page) = overwritten(|| MAGLEV.get_ptr(&key)) else { return 0 };
        // SAFETY: as in `name`.
        let slots = unsafe { &(*page).slots };
        1 + u32::from(slots[(slot & (PAGE_SLOTS as u32 - 1)) as usize])
    }

    #[inline(always)]
    fn member(&self, key: &MemberKey) -> u32 {
        // SAFETY: as in `name`.
        overwritten(|| MEMBERS.get_ptr(key)).map_or(0, |id| unsafe { *id })
    }

    #[inline(always)]
    fn backend(&self, id: u32, to: &mut Backend) -> bool {
        overwritten(|| BACKENDS.get_ptr(&id)).is_some_and(|from| copied(from, to))
    }

    #[inline(always)]
    fn search(&self, choice: &mut Choice, search: Search) {
        each_member(choice, search);
    }
}

looped! {
    /// Looks at the next member of a route's table.
    fn each_member(choice: Choice; search: Search) times LOOKS_MAX, |_round| {
        pick::look(&Maps, choice, &search)
    }
}

/// Copies an entry to `to`.
#[inline(always)]
fn copied<T: Copy>(from: *const T, to: &mut T) -> bool {
    // SAFETY: non-null by the lookup; see `hash_access!`.
    kernel::assign(to, unsafe { &*from });
    true
}
