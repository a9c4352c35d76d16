//! Under PREEMPT_RT a packet may interrupt the handling of another one on the same CPU, whose working memory it would use.

use common::maps::event::{EXPIRE_BUSY, EXPIRE_DONE};
use common::reason::Reason;
use tests::addresses::FAMILIES;

use crate::check::{assert_dropped, flow_order};
use crate::open::{HELLO, open};
use crate::scene::ready;

#[test]
fn a_packet_that_interrupts_another_is_dropped_and_its_repetition_passes() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let segment = open.client_segment(HELLO, 0).payload(*b"data");
        let before = open.flow(&programs);
        programs.set_busy(true);
        for _ in 0..2 {
            // It neither uses the memory nor gives back what another run holds.
            assert_dropped(&open.client.give(&mut programs, &segment), Reason::ParseBusy);
        }
        assert_eq!(open.flow(&programs), before);
        programs.set_busy(false);
        open.pass_to_backend(&mut programs, &segment);
    }
}

#[test]
fn an_order_of_the_daemon_waits_for_the_packet() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let removal = flow_order(&programs, open.client.dial.tuple(), Reason::ExpireRemoved);
        programs.set_busy(true);
        let outcome = programs.expire(&removal);
        assert_eq!((outcome.verdict, outcome.counted, outcome.emitted), (EXPIRE_BUSY, vec![], vec![]));
        programs.set_busy(false);
        assert_eq!(programs.expire(&removal).verdict, EXPIRE_DONE);
    }
}
