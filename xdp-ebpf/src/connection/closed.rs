//! Flows that are over: kept for a while in the order in which they ended, then freed.

use common::maps::flow::ClientTuple;
use common::maps::settings::{self, Settings};
use common::maps::word::Taken;
use common::reason::Reason;

use super::forget;
use crate::atomic;
use crate::maps;
use crate::scratch::Cursors;
use crate::verified::{looped, verified};

/// Closed flows examined each time one closes: enough to free them faster than they arrive.
const FREED_PER_CLOSE: u32 = 2;

/// Tries to take a slot, each of which fails only when another CPU took one a moment ago.
const TRIES: u32 = 2;

/// The most slots examined in one run for the daemon: packets of this CPU wait meanwhile.
const FREED_PER_RUN: u32 = 128;

verified! {
    /// Puts a flow that ended into the ring of closed flows, and frees the oldest ones.
    pub(super) fn put as closed_put(client: ClientTuple; generation: u32, now_ns: u64) -> () {
        let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return };
        let places = u64::from(settings.closed);
        if places == 0 {
            return;
        }
        let now = (now_ns / 1_000_000_000) as u32;
        let head = atomic::advance(&mut cursors.closed_head);
        let mut freed = 0;
        while freed < FREED_PER_CLOSE {
            let Some((place, over)) = take_due(settings, cursors, head, now) else { break };
            free_place(place, over);
            freed += 1;
        }
        let place = (head % places) as u32;
        if let Some(slot) = maps::closed_slot(place) {
            // When the ring is full, its oldest flow is freed early.
            free_place(place, atomic::word(&slot.taken).generation);
            // Another CPU that reads the owner half written finds no flow of this generation there.
            slot.owner = *client;
            slot.taken = Taken { generation, since_secs: now };
        }
    }
}

/// Takes the oldest slot before `head`, if its flow has been over for long enough. Returns the slot and the flow's generation.
#[inline(always)]
fn take_due(settings: &Settings, cursors: &mut settings::Cursors, head: u64, now: u32) -> Option<(u32, u32)> {
    let places = u64::from(settings.closed);
    if places == 0 {
        return None;
    }
    let mut tried = 0;
    while tried < TRIES {
        let tail = atomic::read_long(&cursors.closed_tail);
        // While flows close faster than slots become due, slots are written over, and the tail stays behind.
        let oldest = tail.max(head.saturating_sub(places));
        if oldest >= head {
            return None;
        }
        let place = (oldest % places) as u32;
        let Taken { generation, since_secs } = atomic::word(&maps::closed_slot(place)?.taken);
        if since_secs.wrapping_add(settings.closed_timeout_secs) > now {
            return None;
        }
        // Another CPU may have seen the same slot. The next one may not be due.
        if atomic::raise(&mut cursors.closed_tail, tail, oldest + 1) {
            return Some((place, generation));
        }
        tried += 1;
    }
    None
}

/// Frees the flows that have been over for long enough, as many as one run may; `true`: there may be more.
#[inline(always)]
pub(crate) fn sweep(cursors: &mut Cursors, now_ns: u64) -> bool {
    cursors.left = FREED_PER_RUN;
    sweep_each(cursors, (now_ns / 1_000_000_000) as u32);
    cursors.left == 0
}

looped! {
    /// Frees the oldest flow; ends at the first one that is to linger.
    fn sweep_each(cursors: Cursors; now: u32) times FREED_PER_RUN, |_round| {
        let (Some(settings), Some(ring)) = (maps::settings(), maps::cursors()) else { return true };
        let head = ring.closed_head;
        let Some((place, over)) = take_due(settings, ring, head, now) else { return true };
        free_place(place, over);
        cursors.left -= 1;
        false
    }
}

verified! {
    /// Removes the closed flow with this generation in a slot of the ring.
    fn free_place as closed_free(; place: u32, generation: u32) -> () {
        let Some(slot) = maps::closed_slot(place) else { return };
        // Copies: another CPU may be filling the slot, or may have filled it since it was looked at.
        let (mut owner, taken) = (slot.owner, atomic::word(&slot.taken));
        if taken.since_secs == 0 || taken.generation != generation {
            return;
        }
        // Not if its client has started a new connection since: that has another generation. Only flows that are over get here.
        if forget::flow(&mut owner, generation) {
            maps::count_event(Reason::ExpireClosed);
        }
    }
}
