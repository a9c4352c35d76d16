//! A slot of `BUFFERS` that another CPU takes, fills and releases, between the look of this one and its lock.

use std::mem::offset_of;

use common::maps::flow::{BUFFER_FREE, Buffer, ClientTuple, Pending};
use common::maps::name;
use common::maps::settings::Cursors;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::program::Programs;
use tests::schedule::{Change, Place};

use crate::buffer::{begin, far, small};
use crate::check::assert_dropped;
use crate::scene::{Client, dial, usual_hello};
use crate::setup::remove_hello;

/// The slot that both CPUs want. A search begins at it.
const SLOT: u32 = 0;

/// A hello of the other client: its first part is in this slot.
fn first(programs: &mut Programs, family: Family, slot: u32) -> (Client, Pending) {
    let client = begin(programs, family, far(family, 2, 1), 40_000);
    let record = client.waiting(programs).expect("it waits");
    assert_eq!(record.buffers[0], slot);
    (client, record)
}

/// Lets the next search begin at [`SLOT`], which looks like this.
fn set(programs: &mut Programs, owner: ClientTuple, index: u32) {
    let buffer: Buffer = programs.element(name::BUFFERS, SLOT);
    programs.set(name::BUFFERS, SLOT, Buffer { owner, index, locked: 0, ..buffer });
    let cursors: Cursors = programs.element(name::CURSORS, 0);
    programs.set(name::CURSORS, 0, Cursors { buffer: SLOT.into(), ..cursors });
}

/// Sends a client's hello while `changes` are made right after the first access to a byte. They leave the slot to the other
/// client, and this one takes the next.
#[track_caller]
fn assert_left(programs: &mut Programs, family: Family, place: &Place, changes: &[Change]) {
    let client = dial(family).host(far(family, 3, 1)).shake(programs);
    let schedule = programs.behind_access(place, 1, changes).expect("a hardware breakpoint");
    let outcome = client.send(programs, 0, &usual_hello()[..300]);
    assert!(schedule.happened());
    drop(schedule);
    assert_dropped(&outcome, Reason::HelloBuffered);
    assert_ne!(client.waiting(programs).expect("it waits").buffers[0], SLOT);
    let buffer: Buffer = programs.element(name::BUFFERS, SLOT);
    assert_eq!(buffer.locked, 0);
    assert_ne!(buffer.owner, client.dial.tuple());
}

fn index() -> Place {
    Place::new(name::BUFFERS, &SLOT, offset_of!(Buffer, index))
}

/// The slot of a delivered hello is free, and its client's next hello takes it.
#[test]
fn a_free_slot_that_its_last_client_took_again_is_left() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(2);
        let (other, record) = first(&mut programs, family, SLOT);
        let tuple = other.dial.tuple();
        remove_hello(&mut programs, tuple);
        set(&mut programs, tuple, BUFFER_FREE);
        let taken = [
            Change::write(name::BUFFERS, &SLOT, offset_of!(Buffer, index), &0u32),
            Change::insert(name::PENDING, &tuple, &record),
        ];
        assert_left(&mut programs, family, &index(), &taken);
        assert_eq!(other.waiting(&programs), Some(record));
    }
}

/// Both CPUs saw the lock free, and the other one has it now.
#[test]
fn a_slot_that_another_cpu_locks_first_is_left() {
    tests::skip_without_root!();
    let lock = offset_of!(Buffer, locked);
    for family in FAMILIES {
        let mut programs = small(2);
        let (other, _) = first(&mut programs, family, SLOT);
        remove_hello(&mut programs, other.dial.tuple());
        set(&mut programs, other.dial.tuple(), BUFFER_FREE);
        let before: Buffer = programs.element(name::BUFFERS, SLOT);
        let client = dial(family).host(far(family, 3, 1)).shake(&mut programs);
        let locked = [Change::write(name::BUFFERS, &SLOT, lock, &1_u32)];
        let schedule = programs
            .behind_access(&Place::new(name::BUFFERS, &SLOT, lock), 1, &locked)
            .expect("a hardware breakpoint");
        let outcome = client.send(&mut programs, 0, &usual_hello()[..300]);
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::HelloBuffered);
        assert_ne!(client.waiting(&programs).expect("it waits").buffers[0], SLOT);
        let after: Buffer = programs.element(name::BUFFERS, SLOT);
        assert_eq!((after.locked, after.owner, after.index), (1, before.owner, before.index));
    }
}

/// The hello that had the slot is gone, and another client's takes it for the same part.
#[test]
fn a_slot_that_another_client_took_for_the_same_part_is_left() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(2);
        let (other, record) = first(&mut programs, family, SLOT);
        let tuple = other.dial.tuple();
        remove_hello(&mut programs, tuple);
        set(&mut programs, other.dial.port(40_001).tuple(), 0);
        let taken = [
            Change::write(name::BUFFERS, &SLOT, offset_of!(Buffer, owner), &tuple),
            Change::insert(name::PENDING, &tuple, &record),
        ];
        assert_left(&mut programs, family, &index(), &taken);
        assert_eq!(other.waiting(&programs), Some(record));
    }
}

/// An earlier hello of the client had the slot for its second part, and its present one takes it for the same.
#[test]
fn a_slot_that_its_client_took_for_the_same_part_is_left() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(3);
        // Not in the slot that both want.
        let cursors: Cursors = programs.element(name::CURSORS, 0);
        programs.set(name::CURSORS, 0, Cursors { buffer: 1, ..cursors });
        let (other, record) = first(&mut programs, family, 1);
        let tuple = other.dial.tuple();
        set(&mut programs, tuple, 1);
        let second = offset_of!(Pending, buffers) + size_of::<u32>();
        let taken = [Change::write(name::PENDING, &tuple, second, &SLOT)];
        assert_left(&mut programs, family, &Place::new(name::PENDING, &tuple, second), &taken);
        let mut expected = record;
        expected.buffers[1] = SLOT;
        assert_eq!(other.waiting(&programs), Some(expected));
    }
}
