//! Counts the outcomes of a route's connections, and the flows that a route, and each source of its clients, has.

use common::decide::admit::{self, Held};
use common::maps::flow::ClientTuple;
use common::maps::source::{Share, ShareKey};
use common::reason::Reason;

use crate::atomic;
use crate::exit::Exit;
use crate::maps;
use crate::verified::verified;

/// Counts a connection that reached its backend.
#[inline(always)]
pub(crate) fn connected(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        atomic::advance(&mut counters.connected);
    }
}

/// Counts a connection that was refused although its route is known.
#[inline(always)]
pub(crate) fn refused(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        atomic::advance(&mut counters.refused);
    }
}

/// Counts a try of another backend.
#[inline(always)]
pub(crate) fn retried(route: u32) {
    if let Some(counters) = maps::route_counters(&route) {
        atomic::advance(&mut counters.retried);
    }
}

verified! {
    /// Counts a flow of the client's to this route, before it is made. `Err`: the route or the source has as many already as it
    /// may; it is counted all the same.
    pub(super) fn raise as count_raise(client: ClientTuple; route: u32) -> Result<(), Exit> {
        let found = raise_found(|| maps::route_counters(&route).map(|counters| &mut counters.flows), 1);
        let route_flows = admit::count(found.unwrap_or(0));
        let key = ShareKey::of(client, route);
        let share = || maps::share(&key).map(|share| &mut share.flows);
        let mut found = raise_found(share, 1);
        // If it cannot be stored, either another CPU was quicker, or the map is full. That is no reason to refuse a source:
        // the daemon makes room.
        if found.is_none() && !maps::insert_share(&key, &Share { flows: 1, connecting: 0 }) {
            found = raise_found(share, 1);
            if found.is_none() {
                maps::count_event(Reason::AdmitUncounted);
            }
        }
        let Some(settings) = maps::settings() else { return Ok(()) };
        // Its hello was admitted.
        let held = Held { route_flows, share_flows: admit::count(found.unwrap_or(0)), share_connecting: 0 };
        admit::admit(&held, settings).map_err(Exit::reset)
    }
}

verified! {
    /// Counts a flow down again, once it is removed. The daemon removes shares of zero.
    pub(super) fn lower as count_lower(client: ClientTuple; route: u32) -> () {
        if let Some(counters) = maps::route_counters(&route) {
            lower_to_zero(&mut counters.flows, 1);
        }
        if let Some(share) = maps::share(&ShareKey::of(client, route)) {
            lower_to_zero(&mut share.flows, 1);
        }
    }
}

verified! {
    /// Counts the slots of a hello of the client's that begins to wait for a backend of the route, before its record says so.
    /// They count until the backend has acknowledged what we acknowledged. `false`: the map is full, and they are not counted.
    pub(crate) fn raise_connecting as count_raise_connecting(client: ClientTuple; route: u32, slots: u32) -> bool {
        let key = ShareKey::of(client, route);
        let share = || maps::share(&key).map(|share| &mut share.connecting);
        // Where the map is full, the flow says so.
        raise_found(share, slots).is_some()
            || maps::insert_share(&key, &Share { flows: 0, connecting: slots })
            || raise_found(share, slots).is_some()
    }
}

/// Counts such a hello down again, by the CPU that removes its record. Inlined: removal of a record is as many calls deep
/// as the kernel allows.
#[inline(always)]
pub(crate) fn lower_connecting(client: &ClientTuple, route: u32, slots: u8) {
    if let Some(share) = maps::share(&ShareKey::of(client, route)) {
        lower_to_zero(&mut share.connecting, slots.into());
    }
}

/// Adds to the count that `find` looks up; returns what it was. `None`: there is none. The daemon may remove the count after the look-up, and
/// its element may become another one's, which nobody would ever lower: then this takes off again what it added.
#[inline(always)]
fn raise_found(find: impl Fn() -> Option<&'static mut u32>, by: u32) -> Option<u32> {
    let count = find()?;
    // A full barrier: what is looked up next is as it is after the addition.
    let was = atomic::add(count, by);
    if find().is_some_and(|found| core::ptr::eq(found, count)) {
        return Some(was);
    }
    lower_to_zero(count, by);
    None
}

/// Counts down, not below zero: of a share that was dropped and made again, flows were forgotten.
#[inline(always)]
fn lower_to_zero(count: &mut u32, by: u32) {
    let was = admit::count(atomic::add(count, by.wrapping_neg()));
    if was < by {
        atomic::add(count, by - was);
    }
}
