//! Keeps the bytes of waiting hellos: places in `CHUNKS`, the oldest that is not whole gives way; and the count of each
//! source. A place has one CPU at a time that writes to it or takes it.

use common::maps::event::Expiry;
use common::maps::flow::{
    CHUNK_BYTES, CHUNK_FREE, Chunk, ClientTuple, HELLO_CHUNKS, HELLO_COLLECTING, HELLO_CONNECTING,
    HELLO_OWED, Source,
};
use common::reason::Reason;
use core::ffi::c_void;

use crate::kernel;
use crate::maps;
use crate::packet::Scratch;

/// Places looked at before one of them has to give way.
const PROBES: u32 = 64;

/// A place not taken in [`Hello::chunks`].
pub(crate) const NO_CHUNK: u32 = u32::MAX;

/// Removes a client's hello with all that belongs to it. `false` when somebody else did.
#[inline(always)]
pub(crate) fn forget(client: &ClientTuple) -> bool {
    stash_forget(core::ptr::from_ref(client)) == 1
}

/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_forget(client: *const ClientTuple) -> u32 {
    // SAFETY: null is checked; else the caller's tuple.
    let Some(client) = (unsafe { client.as_ref() }) else { return 0 };
    let Some(hello) = maps::hello(client) else { return 0 };
    let (state, epoch, nat) = (hello.state, hello.source_epoch, hello.nat);
    if !maps::remove_hello(client) {
        return 0;
    }
    // A flow that took the four-tuple over keeps it.
    if state == HELLO_CONNECTING && !maps::flow(client).is_some_and(|flow| flow.nat == nat) {
        maps::free_nat(&nat, client);
    }
    if state == HELLO_COLLECTING || state == HELLO_CONNECTING {
        lower(client, epoch);
    }
    1
}

/// One waiting hello less for the source.
#[inline(always)]
pub(crate) fn lower(tuple: &ClientTuple, epoch: u32) {
    let prefix = tuple.client.source_prefix();
    if let Some(source) = maps::source(&prefix) {
        // The entry stays, whatever the count: the daemon removes it when the source has been quiet.
        if source.epoch == epoch && maps::add(&mut source.waiting, 1u32.wrapping_neg()) == 0 {
            maps::add(&mut source.waiting, 1);
        }
    }
}

/// One waiting hello more for the source; `false` when it has as many as it may.
#[inline(always)]
pub(crate) fn raise(s: &mut Scratch) -> bool {
    let Some(settings) = maps::settings() else { return false };
    let prefix = s.segment.tuple.client.source_prefix();
    let Some(source) = maps::source(&prefix) else {
        s.hello.source_epoch = (s.now_ns >> 20) as u32;
        let first = Source { newest_ns: s.now_ns, waiting: 1, epoch: s.hello.source_epoch };
        // Full only by counts that were never lowered: no reason to refuse a source that has none.
        maps::insert_source(&prefix, &first);
        return true;
    };
    // All of them are over by now, whoever failed to count them down.
    if source.newest_ns + settings.hello_timeout_ns < s.now_ns {
        source.waiting = 0;
        source.epoch += 1;
    }
    if maps::add(&mut source.waiting, 1) >= settings.source_hellos_max {
        maps::add(&mut source.waiting, 1u32.wrapping_neg());
        return false;
    }
    source.newest_ns = s.now_ns;
    s.hello.source_epoch = source.epoch;
    true
}

/// The search for a place.
#[repr(C)]
struct Search {
    scratch: *mut Scratch,
    timeout_ns: u64,
    oldest_ns: u64,
    start: u32,
    places: u32,
    found: u32,
    oldest: u32,
}

/// Looks at one place; 1 = it was free, and is locked now.
unsafe extern "C" fn probe(i: u32, search: *mut c_void) -> i64 {
    // SAFETY: `stash_claim` passes a `Search` on its stack.
    let search = unsafe { &mut *search.cast::<Search>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { search.scratch.as_mut() }) else { return 1 };
    if search.places == 0 {
        return 1;
    }
    let place = search.start.wrapping_add(i) % search.places;
    let Some(chunk) = maps::chunk(place) else { return 0 };
    // Nearly always: nobody's hello has to be looked up.
    if chunk.index == CHUNK_FREE {
        if !lock(chunk, s.now_ns) {
            return 0;
        }
        if chunk.index != CHUNK_FREE {
            chunk.locked = 0;
            return 0;
        }
        search.found = place;
        return 1;
    }
    // A copy: the place may become another's meanwhile.
    s.victim = chunk.owner;
    let own = s.victim == s.segment.tuple;
    let part = (chunk.index & 7) as usize;
    // The hello in hand holds it, though the map does not know yet.
    if own && s.hello.chunks[part] == place {
        return 0;
    }
    if let Some(hello) = maps::hello(&s.victim)
        && hello.chunks[part] == place
    {
        if own {
            return 0;
        }
        if hello.started_ns + search.timeout_ns >= s.now_ns || hello.state == HELLO_OWED {
            // A hello that is whole soon has its backend's answer: while any other waits for bytes, that one gives way.
            let whole_ns = if hello.state == HELLO_COLLECTING { 0 } else { search.timeout_ns };
            if hello.started_ns + whole_ns < search.oldest_ns && !is_locked(chunk.locked, s.now_ns) {
                search.oldest_ns = hello.started_ns + whole_ns;
                search.oldest = place;
            }
            return 0;
        }
        // Over: forgotten by whoever gets the place.
        if !lock_of(chunk, &s.victim, s.now_ns) {
            return 0;
        }
        forget(&s.victim);
    } else if !lock_of(chunk, &s.victim, s.now_ns) {
        return 0;
    }
    search.found = place;
    1
}

/// Most units of [`Chunk::locked`] between lock and release: a CPU that takes longer has stopped.
const LOCK_UNITS: i32 = 64;

/// Whether a CPU has the place.
#[inline(always)]
fn is_locked(since: u32, now_ns: u64) -> bool {
    let now = (now_ns >> 20) as u32;
    since != 0 && (now.wrapping_sub(since) as i32) < LOCK_UNITS
}

/// Locks a place; `false` when another CPU has it. To be released by [`stash_settle`].
#[inline(always)]
fn lock(chunk: &mut Chunk, now_ns: u64) -> bool {
    // One that is held is left alone: a newer time would make it look held for longer.
    !is_locked(chunk.locked, now_ns)
        && !is_locked(maps::exchange(&mut chunk.locked, (now_ns >> 20) as u32 | 1), now_ns)
}

/// Locks a place of `owner`'s; `false` when it is another's by now, or another CPU has it.
#[inline(always)]
fn lock_of(chunk: &mut Chunk, owner: &ClientTuple, now_ns: u64) -> bool {
    if !lock(chunk, now_ns) {
        return false;
    }
    if chunk.owner != *owner {
        chunk.locked = 0;
        return false;
    }
    true
}

/// Releases the places of the hello in hand, once it is stored or refused. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_settle(s: *mut Scratch) -> u32 {
    let mut places = Places { scratch: s };
    kernel::repeat(HELLO_CHUNKS as u32, release, core::ptr::from_mut(&mut places).cast());
    0
}

/// Context of [`release`]: on the stack, as the kernel wants it.
#[repr(C)]
struct Places {
    scratch: *mut Scratch,
}

/// Releases one place; 1 = the hello has no more.
unsafe extern "C" fn release(i: u32, places: *mut c_void) -> i64 {
    // SAFETY: `stash_settle` passes `Places` on its stack.
    let places = unsafe { &mut *places.cast::<Places>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { places.scratch.as_mut() }) else { return 1 };
    let Some(chunk) = maps::chunk(s.hello.chunks[(i & 7) as usize]) else { return 1 };
    if chunk.owner == s.client {
        chunk.locked = 0;
    }
    0
}

/// Frees the places of the hello in hand, which is delivered. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_free(s: *mut Scratch) -> u32 {
    let mut places = Places { scratch: s };
    kernel::repeat(HELLO_CHUNKS as u32, free, core::ptr::from_mut(&mut places).cast());
    0
}

/// Frees one place; 1 = the hello has no more.
unsafe extern "C" fn free(i: u32, places: *mut c_void) -> i64 {
    // SAFETY: `stash_free` passes `Places` on its stack.
    let places = unsafe { &mut *places.cast::<Places>() };
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { places.scratch.as_mut() }) else { return 1 };
    let place = s.hello.chunks[(i & 7) as usize];
    let Some(chunk) = maps::chunk(place) else { return 1 };
    if lock_of(chunk, &s.client, s.now_ns) {
        chunk.index = CHUNK_FREE;
        chunk.locked = 0;
        s.freed = place + 1;
    }
    0
}

/// Takes a place for chunk `index` of the client's hello: a free one, else the oldest hello gives way. `NO_CHUNK`: another
/// CPU was quicker. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_claim(s: *mut Scratch, index: u32) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return NO_CHUNK };
    let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return NO_CHUNK };
    let mut search = Search {
        scratch: s,
        timeout_ns: settings.hello_timeout_ns,
        oldest_ns: u64::MAX,
        start: match s.freed {
            0 => maps::advance(&mut cursors.chunk) as u32,
            freed => freed - 1,
        },
        places: settings.chunks,
        found: NO_CHUNK,
        oldest: NO_CHUNK,
    };
    s.freed = 0;
    kernel::repeat(PROBES, probe, core::ptr::from_mut(&mut search).cast());
    let mut place = search.found;
    if place == NO_CHUNK {
        place = search.oldest;
        if stash_evict(s, place) == 0 {
            return NO_CHUNK;
        }
    }
    let Some(chunk) = maps::chunk(place) else { return NO_CHUNK };
    chunk.owner = s.segment.tuple;
    chunk.index = index;
    place
}

/// Locks `place` and has the hello that holds it give way: forgotten, counted, and reported, so that the daemon resets its
/// client. 1 = done. Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_evict(s: *mut Scratch, place: u32) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let Some(chunk) = maps::chunk(place) else { return 0 };
    s.victim = chunk.owner;
    if !lock_of(chunk, &s.victim, s.now_ns) {
        return 0;
    }
    let Some(hello) = maps::hello(&s.victim) else { return 1 };
    if hello.chunks[(chunk.index & 7) as usize] != place {
        return 1;
    }
    let seq = hello.cookie.wrapping_add(1);
    if forget(&s.victim) {
        maps::count_event(Reason::HelloEvicted);
        s.told = Expiry { client: s.victim, seq, reason: Reason::HelloEvicted as u32 };
        maps::report(&s.told);
    }
    1
}

/// Bytes of one chunk, of so many from its beginning on.
#[inline(always)]
fn in_chunk(bytes: u32) -> u32 {
    core::hint::black_box(bytes).min(CHUNK_BYTES as u32)
}

/// Stores stream bytes `s.from` to `s.hello.have` of the window in the hello's chunks. 1 = done; [`stash_settle`] is
/// owed in any case.
/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_keep(s: *mut Scratch) -> u32 {
    // SAFETY: null is checked; else it is this CPU's working memory.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let mut index = 0;
    while index < HELLO_CHUNKS {
        let begin = (index * CHUNK_BYTES) as u32;
        if begin < s.hello.have && begin + CHUNK_BYTES as u32 > s.from {
            let begun = s.hello.chunks[index] != NO_CHUNK;
            if !begun {
                s.hello.chunks[index] = stash_claim(s, index as u32);
            }
            // Another CPU has taken the same place at the same moment: once more.
            if s.hello.chunks[index] == NO_CHUNK {
                s.hello.chunks[index] = stash_claim(s, index as u32);
            }
            let Some(chunk) = maps::chunk(s.hello.chunks[index]) else { return 0 };
            // Given away meanwhile, or at this moment: these bytes must not pass for somebody else's.
            if chunk.owner != s.client
                || chunk.index != index as u32
                || begun && !lock_of(chunk, &s.client, s.now_ns)
            {
                return 0;
            }
            let from = s.window.bytes.as_ptr().wrapping_add(index * CHUNK_BYTES);
            kernel::copy(chunk.bytes.as_mut_ptr(), from, in_chunk(s.hello.have - begin));
        }
        index += 1;
    }
    1
}

/// Copies the hello's chunks from stream byte `s.from` on back into the window. 1 = all were still there.
/// Verified once, on its own.
#[inline(never)]
#[unsafe(no_mangle)]
pub(crate) extern "C" fn stash_fetch(s: *mut Scratch) -> u32 {
    // SAFETY: as in `stash_keep`.
    let Some(s) = (unsafe { s.as_mut() }) else { return 0 };
    let mut index = 0;
    while index < HELLO_CHUNKS {
        let begin = (index * CHUNK_BYTES) as u32;
        if begin < s.hello.have && begin + CHUNK_BYTES as u32 > s.from {
            let Some(chunk) = maps::chunk(s.hello.chunks[index]) else { return 0 };
            // Given away meanwhile: somebody else's bytes must not pass for this client's.
            if chunk.owner != s.client || chunk.index != index as u32 {
                return 0;
            }
            let to = s.window.bytes.as_mut_ptr().wrapping_add(index * CHUNK_BYTES);
            kernel::copy(to, chunk.bytes.as_ptr(), in_chunk(s.hello.have - begin));
            // Nor while they were copied.
            if chunk.owner != s.client || chunk.index != index as u32 {
                return 0;
            }
        }
        index += 1;
    }
    1
}
