//! Flows that are over: kept for a while in the order in which they ended, then freed.

use common::maps::flow::{ClientTuple, FLOW_ESTABLISHED};
use common::maps::word::Taken;
use common::reason::Reason;

use super::forget;
use crate::atomic;
use crate::maps;
use crate::verified::verified;

/// Closed flows examined each time one closes: enough to free them faster than they arrive.
const FREED_PER_CLOSE: u32 = 2;

verified! {
    /// Puts a flow that ended into the ring of closed flows, and frees the oldest ones.
    pub(super) fn put as closed_put(client: ClientTuple; generation: u32, now_ns: u64) -> () {
        let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return };
        let (places, timeout_secs) = (u64::from(settings.closed), settings.closed_timeout_secs);
        if places == 0 {
            return;
        }
        let now = (now_ns / 1_000_000_000) as u32;
        let head = atomic::advance(&mut cursors.closed_head);
        let mut freed = 0;
        while freed < FREED_PER_CLOSE {
            let tail = cursors.closed_tail;
            if tail >= head {
                break;
            }
            let Some(slot) = maps::closed_slot((tail % places) as u32) else { break };
            if slot.taken.since_secs.wrapping_add(timeout_secs) > now {
                break;
            }
            // Two CPUs may have seen the same slot: each of them frees a different one.
            free_place((atomic::advance(&mut cursors.closed_tail) % places) as u32, generation);
            freed += 1;
        }
        let place = (head % places) as u32;
        // When the ring is full, its oldest flow is freed early.
        free_place(place, generation);
        if let Some(slot) = maps::closed_slot(place) {
            // Another CPU that reads the owner half written finds no flow of this generation there.
            slot.owner = *client;
            slot.taken = Taken { generation, since_secs: now };
        }
    }
}

verified! {
    /// Removes the closed flow in a slot of the ring, unless it is the flow that is being put there.
    fn free_place as closed_free(; place: u32, putting: u32) -> () {
        let Some(slot) = maps::closed_slot(place) else { return };
        // Copies: another CPU may be filling the slot.
        let (mut owner, Taken { generation, since_secs }) = (slot.owner, atomic::word(&slot.taken));
        if since_secs == 0 || generation == putting {
            return;
        }
        let Some(flow) = maps::flow(&owner) else { return };
        // Its client has started a new connection since.
        if flow.connection.state == FLOW_ESTABLISHED || flow.connection.generation != generation {
            return;
        }
        if forget::flow(&mut owner, generation) {
            maps::count_event(Reason::ExpireClosed);
        }
    }
}
