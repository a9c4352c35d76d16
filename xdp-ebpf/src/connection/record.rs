//! The lock of a waiting or half-open connection's record. The CPU that holds it alone writes the record and removes it.
//! Nobody waits for the lock: the packet is dropped, and its sender repeats it.

use common::maps::flow::{Connection, RECORD_LOCKED, RECORD_OVER};
use common::maps::word::{Head, Word};

use super::exchange::{self, Marks};
use crate::atomic;
use crate::verified::Code;

/// The result of locking a connection's record.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Found {
    /// There is no such record.
    None,
    /// Another CPU holds it.
    Busy,
    /// This CPU holds it from now on.
    Held,
}

impl Code for Found {
    #[inline(always)]
    fn code(self) -> u32 {
        self as u32
    }

    #[inline(always)]
    fn of(code: u32) -> Self {
        match code {
            0 => Self::None,
            2 => Self::Held,
            _ => Self::Busy,
        }
    }
}

/// Returns the generation of a record.
#[inline(always)]
pub(super) fn generation(connection: &mut Connection) -> u32 {
    atomic::word(atomic::head(connection)).generation
}

/// Locks the record with this generation. `None`: it is over, and the caller must remove it.
#[inline(always)]
pub(super) fn lock(connection: &mut Connection, generation: u32) -> Found {
    let was = exchange::mark(connection, generation, Marks::flags(RECORD_LOCKED), Marks::NONE);
    match was.map_or(RECORD_LOCKED, Marks::its_flags) {
        flags if flags & RECORD_LOCKED != 0 => Found::Busy,
        flags if flags & RECORD_OVER != 0 => Found::None,
        _ => Found::Held,
    }
}

/// Gives a record that this CPU holds the state of its copy.
#[inline(always)]
pub(super) fn set_state(connection: &mut Connection, copy: &Connection) {
    let (set, clear) = (Marks::state(copy.state), Marks::state(!copy.state));
    exchange::mark(connection, copy.generation, set, clear);
}

/// Unlocks a record that this CPU holds, with the state and delivery of its copy, which has this generation; `false`: it is over,
/// and this CPU must remove it.
#[inline(always)]
pub(super) fn unlock(connection: &mut Connection, generation: u32, state: u8, delivery: u8) -> bool {
    let head = atomic::head(connection);
    exchange::unlock(head, generation, state.into(), delivery.into()) & u32::from(RECORD_OVER) == 0
}

/// Unlocks a record that was locked by mistake, whatever happened to it meanwhile: the CPU that locks it next sees that.
#[inline(always)]
pub(super) fn give_back(connection: &mut Connection, generation: u32) {
    exchange::mark(connection, generation, Marks::NONE, Marks::flags(RECORD_LOCKED));
}

/// Unlocks a record that this CPU holds, and whose element could not be removed: it is over, and nothing belongs to it any
/// more.
#[inline(always)]
pub(super) fn leave(connection: &mut Connection, generation: u32) {
    // Not by a function of its own: removal of a record is as many calls deep as the kernel allows.
    atomic::change(atomic::head(connection), generation, |was| Head::of(was).left().bits());
}

/// Marks the record with this generation as over; `true`: this CPU holds it and must remove it. Otherwise the one that
/// holds it does.
#[inline(always)]
pub(super) fn end(connection: &mut Connection, generation: u32) -> bool {
    let over = Marks::flags(RECORD_LOCKED | RECORD_OVER);
    let was = exchange::mark(connection, generation, over, Marks::NONE);
    was.is_some_and(|was| was.its_flags() & RECORD_LOCKED == 0)
}
