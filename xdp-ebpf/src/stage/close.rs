//! Flows that are over: kept a while in the order they ended, then freed.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED, FLOW_OWED, FLOW_RESET};
use common::reason::Reason;
use common::wire::seq;

use crate::maps;
use crate::packet::Scratch;

/// Closed flows looked at each time one closes: enough to free them faster than they come.
const FREED_PER_CLOSE: u32 = 2;

/// Puts a flow that ended into the ring of closed flows, which frees the oldest.
#[inline(always)]
pub(crate) fn put(client: &ClientTuple, now_ns: u64) {
    close_flow(core::ptr::from_ref(client), now_ns);
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn close_flow(client: *const ClientTuple, now_ns: u64) -> u32 {
    // SAFETY: null is checked; else the caller's tuple.
    let Some(client) = (unsafe { client.as_ref() }) else { return 0 };
    let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return 0 };
    let (places, timeout_secs) = (u64::from(settings.closed), settings.closed_timeout_secs);
    if places == 0 {
        return 0;
    }
    let now = (now_ns / 1_000_000_000) as u32;
    let head = maps::advance(&mut cursors.closed_head);
    let mut freed = 0;
    while freed < FREED_PER_CLOSE {
        let tail = cursors.closed_tail;
        if tail >= head {
            break;
        }
        let Some(slot) = maps::closed_slot((tail % places) as u32) else { break };
        if slot.since_secs.wrapping_add(timeout_secs) > now {
            break;
        }
        // Two CPUs may have seen the same place: each takes one of its own.
        free_place((maps::advance(&mut cursors.closed_tail) % places) as u32, client);
        freed += 1;
    }
    let place = (head % places) as u32;
    // A full ring frees before time.
    free_place(place, client);
    if let Some(slot) = maps::closed_slot(place) {
        slot.owner = *client;
        slot.since_secs = now;
    }
    1
}

/// Removes the closed flow that stands in a place of the ring, unless it is the one that is being put there.
#[inline(always)]
fn free_place(place: u32, client: &ClientTuple) {
    let Some(slot) = maps::closed_slot(place) else { return };
    // Copies: another CPU may be filling the place.
    let (owner, since_secs) = (slot.owner, slot.since_secs);
    if since_secs != 0 && owner != *client {
        forget(&owner, since_secs);
    }
}

/// Removes a closed flow with its NAT entry, unless the client has begun anew since.
#[inline(always)]
fn forget(client: &ClientTuple, since_secs: u32) {
    let Some(flow) = maps::flow(client) else { return };
    // A flow of the same four-tuple that closed later stands in a later place.
    if flow.state == FLOW_ESTABLISHED || seq::before(since_secs.wrapping_add(60), flow.seen_secs) {
        return;
    }
    if drop_entry(client) {
        maps::count_event(Reason::ExpireClosed);
    }
}

/// Removes a flow's entries, whatever its state; `false` when somebody else did.
#[inline(always)]
pub(crate) fn drop_entry(client: &ClientTuple) -> bool {
    close_drop(core::ptr::from_ref(client)) == 1
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn close_drop(client: *const ClientTuple) -> u32 {
    // SAFETY: null is checked; else the caller's tuple.
    let Some(client) = (unsafe { client.as_ref() }) else { return 0 };
    let Some(flow) = maps::flow(client) else { return 0 };
    let (nat, owed) = (flow.nat, flow.backend_flags & FLOW_OWED != 0);
    if !maps::remove_flow(client) {
        return 0;
    }
    maps::free_nat(&nat, client);
    if owed {
        maps::remove_hello(client);
    }
    1
}

/// Ends the flow at `s.client` as reset; `s.flow` is a copy of it.
#[inline(always)]
pub(crate) fn end(s: &mut Scratch) {
    if let Some(flow) = maps::flow(&s.client) {
        flow.state = FLOW_RESET;
        put(&s.client, s.now_ns);
    }
}
