//! Half-open connections of TCP listeners. A ring of slots, taken in turn, limits their number and finds those past their
//! time limit.

use common::decide::half_open::{self, Taken as Places};
use common::decide::store::Unstored;
use common::maps::flow::{
    ClientTuple, HALF_OPEN_DIALLED, HalfOpen, OPTION_SACK, OPTION_TIMESTAMPS, RECORD_EMPTY, RECORD_LOCKED,
    WINDOW_SCALE_NONE,
};
use common::maps::settings::Settings;
use common::maps::word::Taken;
use common::reason::Reason;

use super::record::{self, Found};
use crate::atomic;
use crate::delivery;
use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::packet::Segment;
use crate::scratch::{Cursors, Dial, Held, Received};
use crate::verified::{looped, verified};

/// Slots examined for a new half-open connection.
const PROBES: u32 = 64;

/// No slot.
const NO_PLACE: u32 = u32::MAX;

verified! {
    /// Stores the connection in `dial`, whose SYN is in hand, as half-open. `Ok(false)`: there is no room.
    pub(crate) fn store as half_open_store(
        received: Received, dial: Dial, held: Held, cursors: Cursors
    ) -> Result<bool, Exit> {
        let slot = claim(received, dial, cursors);
        if slot == NO_PLACE {
            return Ok(false);
        }
        let new = &mut held.record;
        new.connection = dial.connection;
        new.connection.state = HALF_OPEN_DIALLED;
        // Held, so that no other CPU passes a copy of the SYN on before this one knows that it is alone.
        new.connection.flags = RECORD_LOCKED;
        new.nat = dial.nat;
        new.slot = slot;
        new.isn = received.segment.seq;
        new.started_ns = received.now_ns;
        new.backend_isn = 0;
        note_offer(&received.segment, new);
        new.backend_scale = WINDOW_SCALE_NONE;
        new.backend_window = 0;
        new.moves = 0;
        new.reserved = [0; 6];
        match maps::insert_half_open(&received.client, new) {
            Ok(()) => {
                held.held = true;
                count(dial.listener.id, 1);
                is_alone(received, held, slot)
            }
            // The same SYN may have arrived twice, at the same moment on two CPUs.
            Err(Unstored::Busy) => Err(Exit::drop(Reason::SynBusy)),
            Err(Unstored::Full) => Ok(false),
        }
    }
}

/// Whether the record that this CPU has just stored is the only one of its client and of its slot. If another CPU took the
/// slot meanwhile, or the client's connection waits for its backend, or is a flow since flows were looked up, the record is
/// removed again.
#[inline(always)]
fn is_alone(received: &mut Received, held: &mut Held, slot: u32) -> Result<bool, Exit> {
    let generation = held.record.connection.generation;
    let taken =
        maps::half_open_slot(slot).is_some_and(|slot| atomic::word(&slot.taken).generation == generation);
    let open = maps::flow(&received.client).is_some_and(|flow| flow.client_isn == received.segment.seq);
    let alone = taken && !open && maps::pending(&received.client).is_none();
    if !alone {
        remove_held(received, held);
    }
    if open { Err(Exit::drop(Reason::SynBusy)) } else { Ok(alone) }
}

/// Notes what the client offers in its SYN, which may have to go again from another port.
#[inline(always)]
fn note_offer(seg: &Segment, new: &mut HalfOpen) {
    new.syn_bytes = seg.payload_bytes;
    new.client_scale = seg.window_scale;
    new.client_window = seg.window;
    new.client_tsval = seg.tsval;
    new.mss = seg.mss;
    new.options = if seg.sack_permitted { OPTION_SACK } else { 0 };
    if seg.timestamps_at != 0 {
        new.options |= OPTION_TIMESTAMPS;
    }
}

/// Counts a record that was stored (`change` = 1), or that its holder removes (-1).
#[inline(always)]
fn count(listener: u32, change: u32) {
    if let Some(cursors) = maps::cursors() {
        atomic::add(&mut cursors.half_opens, change);
    }
    if let Some(count) = maps::half_open_count(listener) {
        atomic::add(count, change);
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
                return false;
            }
        }
        take(received, dial, cursors, place, taken)
    }
}

verified! {
    /// Whether SYNs of the listener in `dial` are answered by cookies, for too many connections are half-open. One
    /// that is past its time limit is then removed, for while the daemon is dead nobody else does it.
    pub(crate) fn is_crowded as half_open_crowded(received: Received, dial: Dial) -> bool {
        let (Some(settings), Some(cursors)) = (maps::settings(), maps::cursors()) else { return true };
        let listener = maps::half_open_count(dial.listener.id).map_or(0, |count| *count);
        let taken = Places { all: cursors.half_opens, listener };
        let crowded = half_open::answers_by_cookie(taken, settings.half_opens);
        if crowded {
            reclaim(received, dial, settings);
        }
        crowded
    }
}

/// Removes the half-open connection of one slot, chosen by the clock, if it is past its time limit.
#[inline(always)]
fn reclaim(received: &Received, dial: &mut Dial, settings: &Settings) {
    if settings.half_opens == 0 {
        return;
    }
    let place = (received.now_ns >> 6) as u32 % settings.half_opens;
    let Some(slot) = maps::half_open_slot(place) else { return };
    let taken = atomic::word(&slot.taken);
    let age_ns = received.now_ns.saturating_sub(u64::from(taken.since_secs) * 1_000_000_000);
    if taken.generation != 0 && age_ns > settings.hello_timeout_ns + 1_000_000_000 {
        kernel::assign(&mut dial.victim, &slot.owner);
        evict(&mut dial.victim, taken.generation);
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
    cursors.found
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
        received.from_node |= delivery::is_to_node(&held.record.connection);
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
        let (state, generation) = (record.connection.state, record.connection.generation);
        if state != RECORD_EMPTY {
            count(record.connection.listener, 1u32.wrapping_neg());
            if !maps::flow(client).is_some_and(|flow| flow.connection.generation == generation) {
                delivery::release(&record.nat, client, generation);
            }
        }
        if !maps::remove_half_open(client) {
            record::leave(&mut record.connection, generation);
        }
    }
}

verified! {
    /// Removes the half-open connection with this generation; `false`: it is gone, or another CPU holds it.
    fn evict as half_open_evict(client: ClientTuple; generation: u32) -> bool {
        let Some(record) = maps::half_open(client) else { return false };
        match record::lock(&mut record.connection, generation) {
            Found::Busy => return false,
            Found::Held | Found::None => remove(client),
        }
        true
    }
}

/// Ends the client's half-open connection, if it has one.
#[inline(always)]
pub(crate) fn forget(client: &mut ClientTuple) {
    if let Some(record) = maps::half_open(client) {
        let generation = record::generation(&mut record.connection);
        end(client, generation);
    }
}

verified! {
    /// Ends the half-open connection with this generation, whichever CPU holds its record: that one removes it.
    fn end as half_open_end(client: ClientTuple; generation: u32) -> () {
        if let Some(record) = maps::half_open(client)
            && record::end(&mut record.connection, generation)
        {
            remove(client);
        }
    }
}

/// Returns the half-open connection, by another VIP or port, that has the backend's side in `dial.nat`, and its generation. Its
/// client, then in `dial.victim`, has not proved that it sent the SYN.
#[inline(always)]
fn holder(dial: &mut Dial) -> Option<(&'static mut HalfOpen, u32)> {
    let generation = delivery::holder(&dial.nat, &mut dial.victim)?;
    let record = maps::half_open(&dial.victim)?;
    (record::generation(&mut record.connection) == generation).then_some((record, generation))
}

verified! {
    /// Whether the backend's side in `dial.nat` is refused to others: a connection has it whose client proved that it is there, or the
    /// client has the backend's own address. Otherwise a half-open connection has it, or nobody any more, or one whose record another CPU
    /// stores or removes.
    pub(crate) fn is_proven as half_open_proven_holder(dial: Dial) -> bool {
        if dial.nat.backend == dial.nat.source {
            return true;
        }
        let Some(generation) = delivery::holder(&dial.nat, &mut dial.victim) else { return false };
        // In this order: a connection that waits becomes a flow.
        maps::pending(&dial.victim).is_some_and(|pending| pending.connection.generation == generation)
            || maps::flow(&dial.victim).is_some_and(|flow| flow.connection.generation == generation)
    }
}

/// Ends the half-open connection that has the backend's side in `dial.nat`. Returns the sequence number that the backend expects of
/// it. `Err(true)`: another CPU holds its record, and will remove it; `Err(false)`: there is none.
#[inline(always)]
pub(crate) fn push_out(dial: &mut Dial) -> Result<u32, bool> {
    let Some((record, generation)) = holder(dial) else { return Err(false) };
    if !record::end(&mut record.connection, generation) {
        return Err(true);
    }
    let seq = record.isn.wrapping_add(1);
    remove(&mut dial.victim);
    Ok(seq)
}

verified! {
    /// Gives back the record that this CPU still holds at the end of a packet.
    pub(crate) fn settle as half_open_settle(received: Received, held: Held) -> () {
        held.held = false;
        if let Some(record) = maps::half_open(&received.client) {
            let (generation, state) = (record.connection.generation, record.connection.state);
            let delivery = record.connection.delivery;
            if !record::unlock(&mut record.connection, generation, state, delivery) {
                remove(&mut received.client);
            }
        }
    }
}
