//! Counts the outcomes of a route's connections, and the flows that a route, and each source of its clients, has.

use common::decide::admit;
use common::maps::flow::ClientTuple;
use common::maps::source::{Share, ShareKey};
use common::reason::Reason;

use crate::atomic;
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
    /// Counts a flow of the client's to this route, before it is made.
    pub(super) fn raise as count_raise(client: ClientTuple; route: u32) -> () {
        if let Some(counters) = maps::route_counters(&route) {
            atomic::add(&mut counters.flows, 1);
        }
        let key = ShareKey::of(client, route);
        if let Some(share) = maps::share(&key) {
            atomic::add(&mut share.flows, 1);
        } else if !maps::insert_share(&key, &Share { flows: 1, connecting: 0 }) {
            // Either another CPU was quicker, or the map is full. That is no reason to refuse a source: the daemon makes
            // room.
            match maps::share(&key) {
                Some(share) => drop(atomic::add(&mut share.flows, 1)),
                None => maps::count_event(Reason::AdmitUncounted),
            }
        }
    }
}

verified! {
    /// Counts a flow down again, once it is removed. The daemon removes shares of zero.
    pub(super) fn lower as count_lower(client: ClientTuple; route: u32) -> () {
        if let Some(counters) = maps::route_counters(&route) {
            lower_to_zero(&mut counters.flows);
        }
        if let Some(share) = maps::share(&ShareKey::of(client, route)) {
            lower_to_zero(&mut share.flows);
        }
    }
}

verified! {
    /// Counts a hello of the client's that begins to wait for a backend of the route, before its record says so.
    pub(crate) fn raise_connecting as count_raise_connecting(client: ClientTuple; route: u32) -> () {
        let key = ShareKey::of(client, route);
        if maps::share(&key).is_none() && maps::insert_share(&key, &Share { flows: 0, connecting: 1 }) {
            return;
        }
        // Where the map is full, the flow says so.
        if let Some(share) = maps::share(&key) {
            atomic::add(&mut share.connecting, 1);
        }
    }
}

/// Counts such a hello down again, by the CPU that ends its record's state of connecting. Inlined: removal of a record is
/// as many calls deep as the kernel allows.
#[inline(always)]
pub(crate) fn lower_connecting(client: &ClientTuple, route: u32) {
    if let Some(share) = maps::share(&ShareKey::of(client, route)) {
        lower_to_zero(&mut share.connecting);
    }
}

/// Counts down, not below zero: of a share that was dropped and made again, flows were forgotten.
#[inline(always)]
fn lower_to_zero(count: &mut u32) {
    if admit::count(atomic::add(count, 1u32.wrapping_neg())) == 0 {
        atomic::add(count, 1);
    }
}
