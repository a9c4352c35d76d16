//! The ring of closed flows: another CPU fills a slot again that this one is about to free.

use std::mem::offset_of;

use common::maps::event::{CLOSED_RING_DUE, EXPIRE_NOTHING, Expiry};
use common::maps::flow::{ClientTuple, FLOW_CLOSED, Slot};
use common::maps::name;
use common::maps::settings::Cursors;
use common::maps::word::Taken;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place};

use crate::check::order;
use crate::late_slots::nearly_closed;
use crate::open::{HELLO, Open};
use crate::scene::ready;
use crate::setup::forget_all;

/// The daemon's order to forget what is due.
fn due() -> Expiry {
    Expiry { seq: CLOSED_RING_DUE, ..order(ClientTuple::zeroed(), Reason::ExpireClosed) }
}

fn cursors(programs: &Programs) -> Cursors {
    programs.element(name::CURSORS, 0)
}

/// Sends the last acknowledgement of a connection.
#[track_caller]
fn close(programs: &mut Programs, open: Open) {
    open.client.give(programs, &open.client_segment(HELLO + 1, 1));
    assert_eq!(open.flow(programs).connection.state, FLOW_CLOSED);
}

/// Opens a connection and closes it.
#[track_caller]
fn closed(programs: &mut Programs, family: Family, port: u16) -> Open {
    let open = nearly_closed(programs, family, port);
    close(programs, open);
    open
}

/// A flow that is due is taken from its slot, by the daemon's order or as another flow closes; a whole ring later, another CPU
/// puts a flow there before it is freed. That one has just closed, and lingers.
#[test]
fn a_slot_that_was_filled_again_is_not_freed() {
    tests::skip_without_root!();
    let mut programs = ready();
    let places = u64::from(default_settings(Sizes::default()).closed);
    let place = Place::new(name::CURSORS, &0u32, offset_of!(Cursors, closed_tail));
    for (family, by_order) in FAMILIES.into_iter().flat_map(|family| [(family, true), (family, false)]) {
        for nth in 1.. {
            let tail = cursors(&programs).closed_head;
            programs.set(name::CURSORS, 0, Cursors { closed_tail: tail, ..cursors(&programs) });
            let [first, second] = [tail, tail + 1].map(|at| (at % places) as u32);
            closed(&mut programs, family, 40_000);
            let young = closed(&mut programs, family, 40_001);
            let slot: Slot = programs.element(name::CLOSED_RING, first);
            let taken = Taken { since_secs: 1, ..slot.taken };
            programs.set(name::CLOSED_RING, first, Slot { taken, ..slot });
            let slot: Slot = programs.element(name::CLOSED_RING, second);
            assert_eq!(slot.owner, young.client.dial.tuple());
            let third = nearly_closed(&mut programs, family, 40_002);
            let change = Change::write(name::CLOSED_RING, &first, 0, &slot);
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            match by_order {
                true => assert_eq!(programs.expire(&due()).verdict, EXPIRE_NOTHING),
                false => close(&mut programs, third),
            }
            let happened = schedule.happened();
            drop(schedule);
            let left = young.client.flow(&programs).map(|flow| flow.connection.state);
            assert_eq!(left, Some(FLOW_CLOSED), "{family:?}, access {nth}");
            forget_all(&mut programs);
            if !happened {
                assert!(nth > 2, "{nth}");
                break;
            }
        }
    }
}
