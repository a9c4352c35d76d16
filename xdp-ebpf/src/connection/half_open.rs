//! Half-open connections of TCP listeners, in a ring in order of age: the oldest is evicted.

use common::maps::flow::{HALF_OPEN_DIALLED, WINDOW_SCALE_NONE};
use common::reason::Reason;

use super::forget;
use crate::atomic;
use crate::delivery;
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Dial, Received};
use crate::verified::{looped, verified};
use common::maps::flow::HalfOpen;

/// Slots examined before the oldest half-open connection is evicted.
const PROBES: u32 = 64;

/// No slot.
const NO_PLACE: u32 = u32::MAX;

verified! {
    /// Stores the connection in `dial`, whose SYN is in hand, as half-open. Returns `false` when there is no
    /// slot, or when another CPU took the slot or the source port.
    pub(crate) fn store as half_open_store(
        received: Received, dial: Dial, half_open: HalfOpen, cursors: Cursors
    ) -> bool {
        let slot = claim(received, dial, cursors);
        half_open.connection = dial.connection;
        half_open.connection.state = HALF_OPEN_DIALLED;
        half_open.nat = dial.nat;
        half_open.slot = slot;
        half_open.isn = received.segment.seq;
        half_open.started_ns = received.now_ns;
        half_open.syn_bytes = received.segment.payload_bytes;
        half_open.backend_isn = 0;
        half_open.client_scale = received.segment.window_scale;
        half_open.backend_scale = WINDOW_SCALE_NONE;
        half_open.backend_window = 0;
        half_open.reserved = [0; 4];
        if slot == NO_PLACE || !maps::insert_half_open(&received.client, half_open) {
            return false;
        }
        // Another CPU may have claimed the same slot or the port. An entry that is not in the ring would
        // never be found again.
        let generation = dial.connection.generation;
        let kept = maps::half_open_slot(slot)
            .is_some_and(|held| held.generation == generation && held.owner == received.client)
            && delivery::is_held(&half_open.nat, generation);
        if !kept {
            forget::half_open(&mut received.client);
        }
        kept
    }
}

looped! {
    /// Searches the slots from `start` on for one that is free or past its time limit, and puts it in
    /// `cursors.found`.
    fn search(
        received: Received, dial: Dial, cursors: Cursors; start: u32, places: u32, timeout_ns: u64
    ) times PROBES, |round| {
        if places == 0 {
            return true;
        }
        let place = start.wrapping_add(round) % places;
        let Some(slot) = maps::half_open_slot(place) else { return false };
        let Some(held) = maps::half_open(&slot.owner) else {
            cursors.found = place;
            return true;
        };
        if held.slot != place {
            cursors.found = place;
            return true;
        }
        if held.started_ns + timeout_ns < received.now_ns {
            // A copy: the slot may be claimed meanwhile.
            kernel::assign(&mut dial.victim, &slot.owner);
            forget::half_open(&mut dial.victim);
            cursors.found = place;
            return true;
        }
        false
    }
}

#[inline(always)]
fn claim(received: &mut Received, dial: &mut Dial, cursors: &mut Cursors) -> u32 {
    let (Some(settings), Some(shared)) = (maps::settings(), maps::cursors()) else { return NO_PLACE };
    let places = settings.half_opens;
    if places == 0 {
        return NO_PLACE;
    }
    let start = atomic::advance(&mut shared.half_open) as u32;
    cursors.found = NO_PLACE;
    search(received, dial, cursors, start, places, settings.hello_timeout_ns);
    let mut place = cursors.found;
    if place == NO_PLACE {
        // Slots are taken in turn, so this one has about the oldest connection, and no other CPU starts here.
        place = start % places;
        evict(dial, place);
    }
    let Some(slot) = maps::half_open_slot(place) else { return NO_PLACE };
    slot.owner = received.client;
    slot.generation = dial.connection.generation;
    slot.since_secs = (received.now_ns / 1_000_000_000) as u32;
    place
}

#[inline(always)]
fn evict(dial: &mut Dial, place: u32) {
    let Some(slot) = maps::half_open_slot(place) else { return };
    kernel::assign(&mut dial.victim, &slot.owner);
    if forget::half_open(&mut dial.victim) {
        maps::count_event(Reason::SynHalfOpenEvicted);
    }
}
