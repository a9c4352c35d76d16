//! Slots of `BUFFERS`: taken, locked, evicted. `place` is the index of a slot.

use common::maps::event::Expiry;
use common::maps::flow::{
    BUFFER_FREE, Buffer, PENDING_BUFFERS, PENDING_COLLECTING, PENDING_UNDELIVERED, Pending,
};
use common::reason::Reason;

use super::NO_BUFFER;
use crate::atomic;
use crate::connection::pending;
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Received, Waiting};
use crate::verified::{looped, verified};

/// Slots examined before one of them is evicted.
const PROBES: u32 = 64;

/// Whether a CPU holds the lock.
#[inline(always)]
fn is_locked(buffer: &Buffer) -> bool {
    atomic::read_now(&buffer.locked) != 0
}

/// Locks a buffer; `false` when another CPU holds the lock. [`settle`] releases it.
#[inline(always)]
fn lock(buffer: &mut Buffer) -> bool {
    atomic::exchange(&mut buffer.locked, 1) == 0
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

/// Returns the order of eviction, lowest value first: the time when the hello started, later for complete ones. One that waits for its
/// backend counts as younger by the time in which a lost SYN is repeated (of 10 s); one that is being delivered by more, for its flow is
/// open, and would be reset. Not by the whole time limit: many that wait for silent backends must not take the slots of those that are arriving.
#[inline(always)]
fn gives_way_by(pending: &Pending, timeout_ns: u64) -> u64 {
    pending.started_ns
        + match pending.connection.state {
            PENDING_COLLECTING => 0,
            PENDING_UNDELIVERED => timeout_ns / 2,
            _ => timeout_ns / 8,
        }
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
    let Some(buffer) = maps::buffer(place) else { return false };
    if is_locked(buffer) {
        cursors.busy = true;
        return false;
    }
    // A copy: the buffer may get another owner meanwhile.
    kernel::assign(&mut waiting.victim, &buffer.owner);
    let part = buffer.index;
    // The usual case: no hello has to be looked up.
    if part == BUFFER_FREE {
        return take(buffer, waiting, cursors, place, part);
    }
    let own = waiting.victim == received.segment.tuple;
    // The hello in hand uses the slot, though its entry in the map does not show it yet.
    if own && slot_of(&waiting.pending, part) == place {
        return false;
    }
    let Some(pending) = maps::pending(&waiting.victim).filter(|pending| slot_of(pending, part) == place)
    else {
        return take(buffer, waiting, cursors, place, part);
    };
    if own {
        return false;
    }
    let (state, generation) = (pending.connection.state, pending.connection.generation);
    if pending.started_ns + timeout_ns >= received.now_ns || state == PENDING_UNDELIVERED {
        let since_ns = gives_way_by(pending, timeout_ns);
        if since_ns < cursors.oldest_ns {
            cursors.oldest_ns = since_ns;
            cursors.oldest = place;
        }
        return false;
    }
    // Past its time limit, which the daemon has not noticed yet: the CPU that gets the slot forgets the hello.
    let (at, seen_secs) = (pending.vip_isn.wrapping_add(1), pending.connection.delivery.into());
    if !pending::evict(&mut waiting.victim, generation) {
        cursors.busy = true;
        return false;
    }
    report(waiting, at, generation, seen_secs);
    take(buffer, waiting, cursors, place, part)
}

/// Locks a slot that belonged to no hello a moment ago; `false` when that is no longer so.
#[inline(always)]
fn take(buffer: &mut Buffer, waiting: &mut Waiting, cursors: &mut Cursors, place: u32, part: u32) -> bool {
    if !lock(buffer) {
        cursors.busy = true;
        return false;
    }
    // Another CPU may have taken the slot, stored its hello, and released the lock meanwhile.
    let used = part != BUFFER_FREE
        && maps::pending(&waiting.victim).is_some_and(|pending| slot_of(pending, part) == place);
    if buffer.index != part || buffer.owner != waiting.victim || used {
        release(buffer);
        cursors.busy = true;
        return false;
    }
    cursors.found = place;
    true
}

verified! {
    /// Takes a slot for buffer `index` of the client's hello: a free one, or else that of the oldest hello,
    /// which is evicted. Returns `NO_BUFFER` when there is none, or, with `cursors.busy`, when another CPU was
    /// quicker.
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
        cursors.busy = false;
        search(received, waiting, cursors, start, settings.buffers, settings.hello_timeout_ns);
        let mut place = cursors.found;
        if place == NO_BUFFER {
            place = cursors.oldest;
            if place == NO_BUFFER {
                return NO_BUFFER;
            }
            if !evict(waiting, place, cursors.oldest_ns, settings.hello_timeout_ns) {
                cursors.busy = true;
                return NO_BUFFER;
            }
        }
        let Some(buffer) = maps::buffer(place) else { return NO_BUFFER };
        buffer.owner = received.segment.tuple;
        buffer.index = index;
        waiting.claimed |= 1 << (index & 31);
        place
    }
}

verified! {
    /// Locks slot `place` and evicts its hello: forgets it, counts it, and reports it so that the daemon
    /// resets its client. Returns `false` when the slot or the hello is locked, or the hello is not the one that the
    /// search found: another CPU was quicker.
    fn evict as buffer_evict(waiting: Waiting; place: u32, since_ns: u64, timeout_ns: u64) -> bool {
        let Some(buffer) = maps::buffer(place) else { return false };
        if !lock(buffer) {
            return false;
        }
        kernel::assign(&mut waiting.victim, &buffer.owner);
        let Some(pending) = maps::pending(&waiting.victim) else { return true };
        if slot_of(pending, buffer.index) != place {
            return true;
        }
        let generation = pending.connection.generation;
        let seq = pending.vip_isn.wrapping_add(1);
        let seen_secs = pending.connection.delivery.into();
        // The slot may have got another hello during the search, and that one is not the oldest.
        if gives_way_by(pending, timeout_ns) != since_ns || !pending::evict(&mut waiting.victim, generation) {
            release(buffer);
            return false;
        }
        report(waiting, seq, generation, seen_secs);
        true
    }
}

/// Counts the eviction of a hello of `waiting.victim`, and reports it so that the daemon resets the client.
#[inline(always)]
fn report(waiting: &mut Waiting, seq: u32, generation: u32, seen_secs: u32) {
    maps::count_event(Reason::HelloEvicted);
    let reason = Reason::HelloEvicted as u32;
    waiting.eviction = Expiry { client: waiting.victim, seq, reason, generation, seen_secs };
    maps::report(&waiting.eviction);
}

verified! {
    /// Releases the locks that this CPU still holds.
    pub(crate) fn settle as buffer_settle(waiting: Waiting) -> () {
        release_each(waiting);
        waiting.claimed = 0;
    }
}

looped! {
    /// Releases one buffer's lock; ends after the last one that is held.
    fn release_each(waiting: Waiting) times PENDING_BUFFERS as u32, |round| {
        let left = waiting.claimed >> (round & 31);
        if left & 1 != 0
            && let Some(buffer) = maps::buffer(slot_of(&waiting.pending, round))
        {
            release(buffer);
        }
        left <= 1
    }
}

verified! {
    /// Frees the buffers of the hello in hand, which is delivered. This CPU holds its record.
    pub(crate) fn free as buffer_free(waiting: Waiting) -> () {
        free_each(waiting);
    }
}

looped! {
    /// Frees one buffer; ends after the hello's last one.
    fn free_each(waiting: Waiting) times PENDING_BUFFERS as u32, |round| {
        let place = slot_of(&waiting.pending, round);
        let Some(buffer) = maps::buffer(place) else { return true };
        // A slot that another CPU examines at this moment is left to the search.
        if lock(buffer) {
            buffer.index = BUFFER_FREE;
            release(buffer);
            waiting.freed = place + 1;
        }
        false
    }
}
