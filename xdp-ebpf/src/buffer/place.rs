//! Slots of `BUFFERS`: taken, locked, evicted. `place` is the index of a slot.

use common::maps::event::Expiry;
use common::maps::flow::{
    BUFFER_FREE, Buffer, ClientTuple, PENDING_BUFFERS, PENDING_COLLECTING, PENDING_UNDELIVERED, Pending,
};
use common::reason::Reason;

use super::NO_BUFFER;
use crate::atomic;
use crate::connection::forget;
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Received, Waiting};
use crate::verified::{looped, verified};

/// Slots examined before one of them is evicted.
const PROBES: u32 = 64;

/// The longest time between lock and release, in units of [`Buffer::locked`]. A CPU that takes longer has stopped.
const LOCK_UNITS: i32 = 64;

/// Whether a CPU holds the lock.
#[inline(always)]
fn is_locked(since: u32, now_ns: u64) -> bool {
    let now = (now_ns >> 20) as u32;
    since != 0 && (now.wrapping_sub(since) as i32) < LOCK_UNITS
}

/// Locks a buffer; `false` when another CPU holds the lock. [`settle`] releases it.
#[inline(always)]
fn lock(buffer: &mut Buffer, now_ns: u64) -> bool {
    // A held lock is left alone: a newer time would make it look held for longer.
    !is_locked(buffer.locked, now_ns)
        && !is_locked(atomic::exchange(&mut buffer.locked, (now_ns >> 20) as u32 | 1), now_ns)
}

/// Releases a buffer's lock, after everything that was written while it was held.
#[inline(always)]
fn release(buffer: &mut Buffer) {
    atomic::exchange(&mut buffer.locked, 0);
}

/// Returns the slot of the hello's buffer `index`; `NO_BUFFER` when it has none.
#[inline(always)]
pub(super) fn slot_of(pending: &Pending, index: u32) -> u32 {
    pending.buffers.get(index as usize).copied().unwrap_or(NO_BUFFER)
}

/// Locks a buffer of `owner`; `false` when it has another owner now, or another CPU holds the lock.
#[inline(always)]
pub(super) fn lock_of(buffer: &mut Buffer, owner: &ClientTuple, now_ns: u64) -> bool {
    if !lock(buffer, now_ns) {
        return false;
    }
    if buffer.owner != *owner {
        release(buffer);
        return false;
    }
    true
}

looped! {
    /// Searches the slots from `start` on for one that is free or whose hello is past its time limit. It is
    /// then locked and in `cursors.found`.
    fn search(
        received: Received, waiting: Waiting, cursors: Cursors; start: u32, places: u32, timeout_ns: u64
    ) times PROBES, |round| {
        if places == 0 {
            return true;
        }
        let place = start.wrapping_add(round) % places;
        probe(received, waiting, cursors, place, timeout_ns)
    }
}

/// Returns the order of eviction, lowest value first: the time when the hello started. A complete hello
/// counts as `timeout_ns` younger, because its backend soon answers: a hello that still waits for bytes is
/// normally evicted first.
#[inline(always)]
fn gives_way_by(pending: &Pending, timeout_ns: u64) -> u64 {
    let whole_ns = if pending.connection.state == PENDING_COLLECTING { 0 } else { timeout_ns };
    pending.started_ns + whole_ns
}

/// Examines one slot; `true` when it is now locked and in `cursors.found`.
#[inline(always)]
fn probe(
    received: &Received,
    waiting: &mut Waiting,
    cursors: &mut Cursors,
    place: u32,
    timeout_ns: u64,
) -> bool {
    let now_ns = received.now_ns;
    let Some(buffer) = maps::buffer(place) else { return false };
    // The usual case: no hello has to be looked up.
    if buffer.index == BUFFER_FREE {
        if !lock(buffer, now_ns) {
            return false;
        }
        if buffer.index != BUFFER_FREE {
            release(buffer);
            return false;
        }
        cursors.found = place;
        return true;
    }
    // A copy: the buffer may get another owner meanwhile.
    kernel::assign(&mut waiting.victim, &buffer.owner);
    let own = waiting.victim == received.segment.tuple;
    let part = buffer.index;
    // The hello in hand uses the slot, though its entry in the map does not show it yet.
    if own && slot_of(&waiting.pending, part) == place {
        return false;
    }
    if let Some(pending) = maps::pending(&waiting.victim)
        && slot_of(pending, part) == place
    {
        if own {
            return false;
        }
        let state = pending.connection.state;
        if pending.started_ns + timeout_ns >= now_ns || state == PENDING_UNDELIVERED {
            let since_ns = gives_way_by(pending, timeout_ns);
            if since_ns < cursors.oldest_ns && !is_locked(buffer.locked, now_ns) {
                cursors.oldest_ns = since_ns;
                cursors.oldest = place;
            }
            return false;
        }
        // Past its time limit: the CPU that gets the slot forgets the hello.
        if !lock_of(buffer, &waiting.victim, now_ns) {
            return false;
        }
        forget::pending(&mut waiting.victim);
    } else if !lock_of(buffer, &waiting.victim, now_ns) {
        return false;
    }
    cursors.found = place;
    true
}

verified! {
    /// Takes a slot for buffer `index` of the client's hello: a free one, or else that of the oldest hello,
    /// which is evicted. Returns `NO_BUFFER` when another CPU was quicker.
    pub(super) fn claim as buffer_claim(
        received: Received, waiting: Waiting, cursors: Cursors; index: u32
    ) -> u32 {
        let (Some(settings), Some(shared)) = (maps::settings(), maps::cursors()) else { return NO_BUFFER };
        let start = match waiting.freed {
            0 => atomic::advance(&mut shared.buffer) as u32,
            freed => freed - 1,
        };
        waiting.freed = 0;
        cursors.found = NO_BUFFER;
        cursors.oldest = NO_BUFFER;
        cursors.oldest_ns = u64::MAX;
        search(received, waiting, cursors, start, settings.buffers, settings.hello_timeout_ns);
        let mut place = cursors.found;
        if place == NO_BUFFER {
            place = cursors.oldest;
            if !evict(received, waiting, place, cursors.oldest_ns, settings.hello_timeout_ns) {
                return NO_BUFFER;
            }
        }
        let Some(buffer) = maps::buffer(place) else { return NO_BUFFER };
        buffer.owner = received.segment.tuple;
        buffer.index = index;
        place
    }
}

verified! {
    /// Locks slot `place` and evicts its hello: forgets it, counts it, and reports it so that the daemon
    /// resets its client. Returns `false` when the slot is locked or its hello is not the one that the search
    /// found: another CPU was quicker.
    fn evict as buffer_evict(
        received: Received, waiting: Waiting; place: u32, since_ns: u64, timeout_ns: u64
    ) -> bool {
        let Some(buffer) = maps::buffer(place) else { return false };
        kernel::assign(&mut waiting.victim, &buffer.owner);
        if !lock_of(buffer, &waiting.victim, received.now_ns) {
            return false;
        }
        let Some(pending) = maps::pending(&waiting.victim) else { return true };
        if slot_of(pending, buffer.index) != place {
            return true;
        }
        // The slot got another hello during the search, and that one is not the oldest.
        if gives_way_by(pending, timeout_ns) != since_ns {
            release(buffer);
            return false;
        }
        let seq = pending.vip_isn.wrapping_add(1);
        if forget::pending(&mut waiting.victim) {
            maps::count_event(Reason::HelloEvicted);
            let reason = Reason::HelloEvicted as u32;
            waiting.eviction = Expiry { client: waiting.victim, seq, reason, generation: 0, seen_secs: 0 };
            maps::report(&waiting.eviction);
        }
        true
    }
}

verified! {
    /// Releases the locks of the hello in hand, once it is stored or refused.
    pub(crate) fn settle as buffer_settle(received: Received, waiting: Waiting) -> () {
        release_each(received, waiting);
    }
}

looped! {
    /// Releases one buffer's lock; ends after the hello's last buffer.
    fn release_each(received: Received, waiting: Waiting) times PENDING_BUFFERS as u32, |round| {
        let Some(buffer) = maps::buffer(slot_of(&waiting.pending, round)) else { return true };
        if buffer.owner == received.client {
            release(buffer);
        }
        false
    }
}

verified! {
    /// Frees the buffers of the hello in hand, which is delivered.
    pub(crate) fn free as buffer_free(received: Received, waiting: Waiting) -> () {
        free_each(received, waiting);
    }
}

looped! {
    /// Frees one buffer; ends after the hello's last one.
    fn free_each(received: Received, waiting: Waiting) times PENDING_BUFFERS as u32, |round| {
        let place = slot_of(&waiting.pending, round);
        let Some(buffer) = maps::buffer(place) else { return true };
        if lock_of(buffer, &received.client, received.now_ns) {
            buffer.index = BUFFER_FREE;
            release(buffer);
            waiting.freed = place + 1;
        }
        false
    }
}
