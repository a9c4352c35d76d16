//! Half-open connections of TCP listeners, in a ring in order of age: the oldest is evicted.

use common::maps::flow::{ClientTuple, HALF_OPEN_DIALLED, HalfOpen, WINDOW_SCALE_NONE};
use common::maps::word::Taken;
use common::reason::Reason;

use super::record::{self, Found};
use crate::atomic;
use crate::delivery;
use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::scratch::{Cursors, Dial, Held, Received};
use crate::verified::{looped, verified};

/// Slots examined before the oldest half-open connection is evicted.
const PROBES: u32 = 64;

/// No slot.
const NO_PLACE: u32 = u32::MAX;

verified! {
    /// Stores the connection in `dial`, whose SYN is in hand, as half-open.
    pub(crate) fn store as half_open_store(
        received: Received, dial: Dial, held: Held, cursors: Cursors
    ) -> Result<(), Exit> {
        cursors.busy = false;
        let slot = claim(received, dial, cursors);
        if slot == NO_PLACE {
            return Err(match cursors.busy {
                true => Exit::drop(Reason::SynBusy),
                false => Exit::reset(Reason::SynHalfOpenFull),
            });
        }
        let new = &mut held.record;
        new.connection = dial.connection;
        new.connection.state = HALF_OPEN_DIALLED;
        new.connection.flags = 0;
        new.nat = dial.nat;
        new.slot = slot;
        new.isn = received.segment.seq;
        new.started_ns = received.now_ns;
        new.syn_bytes = received.segment.payload_bytes;
        new.backend_isn = 0;
        new.client_scale = received.segment.window_scale;
        new.backend_scale = WINDOW_SCALE_NONE;
        new.backend_window = 0;
        new.reserved = [0; 4];
        if maps::insert_half_open(&received.client, new) {
            return Ok(());
        }
        // The same SYN may have arrived twice, at the same moment on two CPUs.
        Err(match maps::half_open(&received.client).is_some() {
            true => Exit::drop(Reason::SynBusy),
            false => Exit::reset(Reason::SynHalfOpenFull),
        })
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
        let taken = atomic::word(&slot.taken);
        // A copy: the slot may be claimed meanwhile.
        kernel::assign(&mut dial.victim, &slot.owner);
        if let Some(other) = maps::half_open(&dial.victim).filter(|other| is_in(other, place, taken)) {
            if other.started_ns + timeout_ns >= received.now_ns {
                return false;
            }
            if !evict(&mut dial.victim, taken.generation) {
                cursors.busy = true;
                return false;
            }
        }
        take(received, dial, cursors, place, taken)
    }
}

/// Whether the connection has this slot of the ring.
#[inline(always)]
fn is_in(held: &HalfOpen, place: u32, taken: Taken) -> bool {
    held.slot == place && held.connection.generation == taken.generation
}

/// Takes a slot of the ring for the client in `received`; `false` when another CPU took it since it was read.
#[inline(always)]
fn take(received: &Received, dial: &Dial, cursors: &mut Cursors, place: u32, seen: Taken) -> bool {
    let Some(slot) = maps::half_open_slot(place) else { return false };
    let since_secs = (received.now_ns / 1_000_000_000) as u32;
    let new = Taken { generation: dial.connection.generation, since_secs };
    if !atomic::replace(&mut slot.taken, seen, new) {
        cursors.busy = true;
        return false;
    }
    // A CPU that reads the owner half written finds no connection of this generation there.
    slot.owner = received.client;
    cursors.found = place;
    true
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
    if cursors.found == NO_PLACE {
        // Slots are taken in turn, so this one has about the oldest connection, and no other CPU starts here.
        push_out(received, dial, cursors, start % places);
    }
    cursors.found
}

/// Takes a slot whose connection is evicted.
#[inline(always)]
fn push_out(received: &Received, dial: &mut Dial, cursors: &mut Cursors, place: u32) {
    let Some(slot) = maps::half_open_slot(place) else { return };
    let taken = atomic::word(&slot.taken);
    kernel::assign(&mut dial.victim, &slot.owner);
    if maps::half_open(&dial.victim).is_some_and(|other| is_in(other, place, taken)) {
        if !evict(&mut dial.victim, taken.generation) {
            cursors.busy = true;
            return;
        }
        maps::count_event(Reason::SynHalfOpenEvicted);
    }
    take(received, dial, cursors, place, taken);
}

verified! {
    /// Locks the record of the client in `received` and copies it to `held`. With a `generation` other than 0, only the
    /// record with that generation.
    pub(crate) fn lock as half_open_lock(received: Received, held: Held; generation: u32) -> Found {
        // On the other path, the client's segment belonged to an open flow.
        if held.held {
            return Found::Held;
        }
        let Some(record) = maps::half_open(&received.client) else { return Found::None };
        let own = record::generation(&mut record.connection);
        if generation != 0 && own != generation {
            return Found::None;
        }
        let found = record::lock(&mut record.connection, own);
        if found == Found::Busy {
            return Found::Busy;
        }
        // The record may have been removed, and its element used for another client, before it was locked.
        if generation == 0 && !is_of(&received.client, own) {
            record::give_back(&mut record.connection, own);
            return Found::Busy;
        }
        if found == Found::None {
            remove(&mut received.client);
            return Found::None;
        }
        kernel::assign(&mut held.record, record);
        held.held = true;
        Found::Held
    }
}

#[inline(always)]
fn is_of(client: &ClientTuple, generation: u32) -> bool {
    maps::half_open(client).is_some_and(|found| record::generation(&mut found.connection) == generation)
}

/// Writes the copy back into the record, which this CPU goes on holding.
#[inline(always)]
pub(crate) fn write(received: &Received, held: &Held) {
    if let Some(record) = maps::half_open(&received.client) {
        kernel::assign_behind_head(record, &held.record);
        record::set_state(&mut record.connection, &held.record.connection);
    }
}

/// Removes the record that this CPU holds.
#[inline(always)]
pub(crate) fn remove_held(received: &mut Received, held: &mut Held) {
    held.held = false;
    remove(&mut received.client);
}

verified! {
    /// Removes a record that this CPU has locked, and its backend's side unless a flow took that over.
    fn remove as half_open_remove(client: ClientTuple) -> () {
        let Some(record) = maps::half_open(client) else { return };
        let (nat, generation) = (record.nat, record.connection.generation);
        if !maps::flow(client).is_some_and(|flow| flow.connection.generation == generation) {
            delivery::release(&nat, client, generation);
        }
        maps::remove_half_open(client);
    }
}

verified! {
    /// Removes the half-open connection with this generation; `false`: it is gone, or another CPU holds it.
    pub(crate) fn evict as half_open_evict(client: ClientTuple; generation: u32) -> bool {
        let Some(record) = maps::half_open(client) else { return false };
        match record::lock(&mut record.connection, generation) {
            Found::Busy => return false,
            Found::Held | Found::None => remove(client),
        }
        true
    }
}

verified! {
    /// Gives back the record that this CPU still holds at the end of a packet.
    pub(crate) fn settle as half_open_settle(received: Received, held: Held) -> () {
        held.held = false;
        if let Some(record) = maps::half_open(&received.client) {
            let (generation, state) = (record.connection.generation, record.connection.state);
            if !record::unlock(&mut record.connection, generation, state) {
                remove(&mut received.client);
            }
        }
    }
}
