//! Records of waiting connections: stored, locked, written back, removed.

use common::decide::store::Unstored;
use common::maps::flow::{
    BUFFER_BYTES, ClientTuple, Flow, PENDING_COLLECTING, PENDING_CONNECTING, PENDING_UNDELIVERED,
    RECORD_EMPTY, RECORD_LOCKED,
};
use common::reason::Reason;

use super::count;
use super::record::{self, Found};
use crate::atomic;
use crate::buffer::{place, source};
use crate::delivery;
use crate::exit::Exit;
use crate::kernel;
use crate::maps;
use crate::scratch::{Received, Waiting};
use crate::verified::verified;

verified! {
    /// Locks the record of the client in `received` and copies it to `waiting.pending`. With a `generation` other than
    /// 0, only the record with that generation.
    pub(crate) fn lock as pending_lock(received: Received, waiting: Waiting; generation: u32) -> Found {
        let Some(held) = maps::pending(&received.client) else { return Found::None };
        let own = record::generation(&mut held.connection);
        if generation != 0 && own != generation {
            return Found::None;
        }
        let found = record::lock(&mut held.connection, own);
        if found == Found::Busy {
            return Found::Busy;
        }
        // The record may have been removed, and its element used for another client, before it was locked.
        if generation == 0 && !is_of(&received.client, own) {
            record::give_back(&mut held.connection, own);
            return Found::Busy;
        }
        if found == Found::None {
            remove(&mut received.client);
            return Found::None;
        }
        kernel::assign(&mut waiting.pending, held);
        waiting.held = true;
        received.from_node |= delivery::is_to_node(&waiting.pending.connection);
        Found::Held
    }
}

/// Counts the slots of `BUFFERS` that records name: one of them had `before` slots, and has `after` now. Its holder alone
/// changes it, so the sum is exact.
#[inline(always)]
fn count_slots(before: u32, after: u32) {
    let change = after.wrapping_sub(before);
    if change != 0
        && let Some(cursors) = maps::cursors()
    {
        atomic::add(&mut cursors.buffered, change);
    }
}

/// Returns the number of slots of a record with this many bytes.
#[inline(always)]
pub(crate) fn slots(bytes: u32) -> u32 {
    bytes.max(1).div_ceil(BUFFER_BYTES as u32)
}

/// Whether the client's record is the one with this generation.
#[inline(always)]
pub(crate) fn is_of(client: &ClientTuple, generation: u32) -> bool {
    maps::pending(client).is_some_and(|found| record::generation(&mut found.connection) == generation)
}

/// Returns the sequence number behind the bytes that we acknowledged of the hello of `flow`; `None`: its record is gone.
#[inline(always)]
pub(crate) fn acknowledged(client: &ClientTuple, flow: &mut Flow, generation: u32) -> Option<u32> {
    let held = maps::pending(client)?;
    let until = held.isn.wrapping_add(1).wrapping_add(held.acked);
    // What was read is the record's own if the record is still there, and looked up after the reads.
    atomic::fence(&mut flow.seen_secs);
    is_of(client, generation).then_some(until)
}

verified! {
    /// Writes the copy back into the record, which this CPU holds, and unlocks it; `false`: it was over, and is removed.
    pub(crate) fn write_back as pending_write_back(received: Received, waiting: Waiting) -> bool {
        waiting.held = false;
        let Some(held) = maps::pending(&received.client) else { return false };
        let copy = &waiting.pending;
        count_slots(slots(held.have), slots(copy.have));
        kernel::assign_behind_head(held, copy);
        let c = &copy.connection;
        let open = record::unlock(&mut held.connection, c.generation, c.state, c.delivery);
        if !open {
            remove(&mut received.client);
        }
        open
    }
}

/// Stores the record of a connection that has none yet. This CPU holds it, so that no other one goes on with it before
/// [`is_second`] has looked.
#[inline(always)]
pub(crate) fn insert(received: &Received, waiting: &mut Waiting) -> Result<(), Exit> {
    waiting.pending.connection.flags = RECORD_LOCKED;
    match maps::insert_pending(&received.client, &waiting.pending) {
        Ok(()) => {
            waiting.held = true;
            count_slots(0, slots(waiting.pending.have));
            Ok(())
        }
        // The same hello may have arrived twice, at the same moment on two CPUs. Or another CPU frees at this moment the record
        // that a free slot was of. The client repeats what was not acknowledged; a bare ACK counts as lost.
        Err(Unstored::Busy | Unstored::Full) => Err(Exit::drop(Reason::HelloBusy)),
    }
}

/// Whether the connection in `waiting`, which began with the packet in hand, is a flow already. Another CPU may have opened
/// it by a copy of the same packet, and removed its own record, after flows were looked up here and before the record was
/// stored. The record, if it was stored, is then removed.
#[inline(always)]
pub(crate) fn is_second(received: &mut Received, waiting: &mut Waiting) -> bool {
    let second = maps::flow(&received.client).is_some_and(|flow| flow.client_isn == waiting.pending.isn);
    if second && waiting.held {
        remove_held(received, waiting);
    }
    second
}

/// Stores the record, new or held, as it is in `waiting.pending`.
#[inline(always)]
pub(crate) fn store(received: &mut Received, waiting: &mut Waiting) -> Result<(), Exit> {
    if !waiting.held {
        return insert(received, waiting);
    }
    if write_back(received, waiting) { Ok(()) } else { Err(Exit::drop(Reason::HelloBeyond)) }
}

/// Writes the copy back into the record, which this CPU goes on holding.
#[inline(always)]
pub(crate) fn write(received: &Received, waiting: &Waiting) {
    if let Some(held) = maps::pending(&received.client) {
        count_slots(slots(held.have), slots(waiting.pending.have));
        kernel::assign_behind_head(held, &waiting.pending);
        record::set_state(&mut held.connection, &waiting.pending.connection);
    }
}

/// Removes the record that this CPU holds.
#[inline(always)]
pub(crate) fn remove_held(received: &mut Received, waiting: &mut Waiting) {
    waiting.held = false;
    remove(&mut received.client);
}

verified! {
    /// Removes a record that this CPU has locked, and everything that belongs to it.
    fn remove as pending_remove(client: ClientTuple) -> () {
        let Some(held) = maps::pending(client) else { return };
        let epoch = held.source_epoch;
        let (state, generation) = (held.connection.state, held.connection.generation);
        if state == PENDING_CONNECTING || state == PENDING_UNDELIVERED {
            count::lower_connecting(client, held.connection.route, held.slots);
        }
        if state == PENDING_CONNECTING {
            // If it became a flow, the flow keeps the backend's side.
            if !maps::flow(client).is_some_and(|flow| flow.connection.generation == generation) {
                // Not copied: the stack is as deep here as the kernel allows, and nobody else changes a locked record.
                delivery::release(&held.nat, client, generation);
            }
        }
        if state == PENDING_COLLECTING {
            source::lower(client, epoch);
        }
        if state != RECORD_EMPTY {
            count_slots(slots(held.have), 0);
        }
        if !maps::remove_pending(client) {
            record::leave(&mut held.connection, generation);
        }
    }
}

verified! {
    /// Ends the waiting connection with this generation, whichever CPU holds its record: that one removes it.
    pub(crate) fn end as pending_end(client: ClientTuple; generation: u32) -> () {
        if let Some(held) = maps::pending(client)
            && record::end(&mut held.connection, generation)
        {
            remove(client);
        }
    }
}

verified! {
    /// Removes the waiting connection with this generation; `false`: it is gone, or another CPU holds it.
    pub(crate) fn evict as pending_evict(client: ClientTuple; generation: u32) -> bool {
        let Some(held) = maps::pending(client) else { return false };
        match record::lock(&mut held.connection, generation) {
            Found::Busy => return false,
            Found::Held | Found::None => remove(client),
        }
        true
    }
}

verified! {
    /// Gives back what this CPU still holds at the end of a packet: the record, and slots of `BUFFERS`.
    pub(crate) fn settle as pending_settle(received: Received, waiting: Waiting) -> () {
        if waiting.held {
            waiting.held = false;
            if let Some(held) = maps::pending(&received.client) {
                let (generation, state) = (held.connection.generation, held.connection.state);
                let delivery = held.connection.delivery;
                if !record::unlock(&mut held.connection, generation, state, delivery) {
                    remove(&mut received.client);
                }
            }
        }
        if waiting.claimed != 0 {
            place::settle(waiting);
        }
    }
}
