//! Places of waiting bytes: taken, locked, given away.

use common::maps::event::Expiry;
use common::maps::flow::{
    BUFFER_FREE, Buffer, ClientTuple, PENDING_BUFFERS, PENDING_COLLECTING, PENDING_UNDELIVERED, Pending,
};
use common::reason::Reason;

use super::NO_BUFFER;
use crate::connection::forget;
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Received, Waiting};
use crate::verified::{looped, verified};

/// Places looked at before one of them has to give way.
const PROBES: u32 = 64;

/// Most units of [`Buffer::locked`] between lock and release: a CPU that takes longer has stopped.
const LOCK_UNITS: i32 = 64;

/// Whether a CPU has the place.
#[inline(always)]
fn is_locked(since: u32, now_ns: u64) -> bool {
    let now = (now_ns >> 20) as u32;
    since != 0 && (now.wrapping_sub(since) as i32) < LOCK_UNITS
}

/// Locks a place; `false` when another CPU has it. To be released by [`settle`].
#[inline(always)]
fn lock(buffer: &mut Buffer, now_ns: u64) -> bool {
    // One that is held is left alone: a newer time would make it look held for longer.
    !is_locked(buffer.locked, now_ns)
        && !is_locked(maps::exchange(&mut buffer.locked, (now_ns >> 20) as u32 | 1), now_ns)
}

/// Locks a place of `owner`'s; `false` when it is another's by now, or another CPU has it.
#[inline(always)]
pub(super) fn lock_of(buffer: &mut Buffer, owner: &ClientTuple, now_ns: u64) -> bool {
    if !lock(buffer, now_ns) {
        return false;
    }
    if buffer.owner != *owner {
        buffer.locked = 0;
        return false;
    }
    true
}

looped! {
    /// Looks at places from `start` on until one is free, or over; it is locked then, and in `cursors.found`.
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

/// What hellos give way by, the least first: when they began. One that is whole soon has its backend's answer: while any
/// other waits for bytes, that one gives way.
#[inline(always)]
fn gives_way_by(pending: &Pending, timeout_ns: u64) -> u64 {
    let whole_ns = if pending.connection.state == PENDING_COLLECTING { 0 } else { timeout_ns };
    pending.started_ns + whole_ns
}

/// Looks at one place; `true`: it is locked now, and `cursors.found`.
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
    // Nearly always: nobody's hello has to be looked up.
    if buffer.index == BUFFER_FREE {
        if !lock(buffer, now_ns) {
            return false;
        }
        if buffer.index != BUFFER_FREE {
            buffer.locked = 0;
            return false;
        }
        cursors.found = place;
        return true;
    }
    // A copy: the place may become another's meanwhile.
    kernel::assign(&mut waiting.victim, &buffer.owner);
    let own = waiting.victim == received.segment.tuple;
    let part = (buffer.index & 7) as usize;
    // The hello in hand holds it, though the map does not know yet.
    if own && waiting.pending.buffers[part] == place {
        return false;
    }
    if let Some(pending) = maps::pending(&waiting.victim)
        && pending.buffers[part] == place
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
        // Over: forgotten by whoever gets the place.
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
    /// Takes a place for buffer `index` of the client's hello: a free one, else the oldest hello gives way. `NO_BUFFER`: another
    /// CPU was quicker.
    pub(super) fn claim as buffer_claim(
        received: Received, waiting: Waiting, cursors: Cursors; index: u32
    ) -> u32 {
        let (Some(settings), Some(shared)) = (maps::settings(), maps::cursors()) else { return NO_BUFFER };
        let start = match waiting.freed {
            0 => maps::advance(&mut shared.buffer) as u32,
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
    /// Locks `place` and has the hello that holds it give way: forgotten, counted, and reported, so that the daemon resets
    /// its client. `false`: it is not the hello that was met there; another CPU was quicker.
    fn evict as buffer_evict(
        received: Received, waiting: Waiting; place: u32, since_ns: u64, timeout_ns: u64
    ) -> bool {
        let Some(buffer) = maps::buffer(place) else { return false };
        kernel::assign(&mut waiting.victim, &buffer.owner);
        if !lock_of(buffer, &waiting.victim, received.now_ns) {
            return false;
        }
        let Some(pending) = maps::pending(&waiting.victim) else { return true };
        if pending.buffers[(buffer.index & 7) as usize] != place {
            return true;
        }
        // The place was given to another hello while the search went on: that one is not the oldest.
        if gives_way_by(pending, timeout_ns) != since_ns {
            buffer.locked = 0;
            return false;
        }
        let seq = pending.vip_isn.wrapping_add(1);
        if forget::pending(&mut waiting.victim) {
            maps::count_event(Reason::HelloEvicted);
            waiting.eviction = Expiry { client: waiting.victim, seq, reason: Reason::HelloEvicted as u32 };
            maps::report(&waiting.eviction);
        }
        true
    }
}

verified! {
    /// Releases the places of the hello in hand, once it is stored or refused.
    pub(crate) fn settle as buffer_settle(received: Received, waiting: Waiting) -> () {
        release_each(received, waiting);
    }
}

looped! {
    /// Releases one place; the hello has no more than those.
    fn release_each(received: Received, waiting: Waiting) times PENDING_BUFFERS as u32, |round| {
        let Some(buffer) = maps::buffer(waiting.pending.buffers[(round & 7) as usize]) else { return true };
        if buffer.owner == received.client {
            buffer.locked = 0;
        }
        false
    }
}

verified! {
    /// Frees the places of the hello in hand, which is delivered.
    pub(crate) fn free as buffer_free(received: Received, waiting: Waiting) -> () {
        free_each(received, waiting);
    }
}

looped! {
    /// Frees one place; the hello has no more than those.
    fn free_each(received: Received, waiting: Waiting) times PENDING_BUFFERS as u32, |round| {
        let place = waiting.pending.buffers[(round & 7) as usize];
        let Some(buffer) = maps::buffer(place) else { return true };
        if lock_of(buffer, &received.client, received.now_ns) {
            buffer.index = BUFFER_FREE;
            buffer.locked = 0;
            waiting.freed = place + 1;
        }
        false
    }
}
