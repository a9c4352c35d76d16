//! What the daemon orders in a crowded flow map.

use common::maps::event::{Expiry, PROBE_BOTH, PROBE_HELD};
use common::maps::flow::{
    FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ESTABLISHED, FLOW_PROBED, FLOW_RESET,
};
use common::maps::name;
use common::maps::source::{Share, ShareKey};
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::packet::flag;
use tests::program::Programs;
use tests::world::Device;

use crate::check::order;
use crate::open::{HELLO, Open, open};
use crate::scene::ready;
use crate::setup::forget_all;

const BOTH: u8 = FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL;

/// The order about the flow as it is now.
fn about(programs: &Programs, open: Open, reason: Reason, seq: u32) -> Expiry {
    let flow = open.flow(programs);
    let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
    Expiry { generation, seen_secs, seq, ..order(open.client.dial.tuple(), reason) }
}

/// The backend sends, and the client sends all the time but never acknowledges: what it sends saved it from every order
/// that it overtook.
#[test]
fn a_client_that_only_sends_is_not_saved_by_what_it_sends() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for reason in [Reason::ExpireHeld, Reason::ExpireCrowded] {
            let open = open(&mut programs, family);
            open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload([2; 100]));
            let seen = open.flow(&programs).client.acked.number;
            let held = about(&programs, open, reason, seen);
            open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0).payload([1; 10]));
            open.pass_to_client(&mut programs, &open.backend_segment(100, HELLO + 10));
            let outcome = programs.expire(&held);
            assert_eq!((outcome.counted, outcome.emitted.len()), (vec![(reason, 1)], 2));
            assert_eq!(open.flow(&programs).connection.state, FLOW_RESET);
            forget_all(&mut programs);
        }
    }
}

#[test]
fn a_connection_with_progress_since_does_not_are_evicted() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload([2; 100]));
        let seen = open.flow(&programs).client.acked.number;
        let crowded = about(&programs, open, Reason::ExpireCrowded, seen);
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 100));
        let outcome = programs.expire(&crowded);
        assert_eq!((outcome.verdict, outcome.counted, outcome.emitted), (1, vec![], vec![]));
        assert_eq!(open.flow(&programs).connection.state, FLOW_ESTABLISHED);
        forget_all(&mut programs);
    }
}

/// Asks both ends, and asserts that each gets a probe.
#[track_caller]
fn ask_both(programs: &mut Programs, open: Open) {
    let asked = about(programs, open, Reason::ExpireProbe, PROBE_BOTH);
    let outcome = programs.expire(&asked);
    assert_eq!(outcome.counted, [(Reason::ExpireProbe, 1)]);
    let devices: Vec<Device> = outcome.emitted.iter().map(|(device, _)| *device).collect();
    assert_eq!(devices, [Device::Client, Device::Backend]);
    for (_, frame) in &outcome.emitted {
        let probe = tests::packet::Segment::parse(frame).expect("a TCP segment");
        assert_eq!((probe.flags, probe.payload.len()), (flag::ACK, 0));
    }
    assert_eq!(open.flow(programs).connection.flags & (BOTH | FLOW_PROBED), BOTH | FLOW_PROBED);
}

#[test]
fn both_ends_of_an_idle_connection_are_asked_and_those_that_answer_keep_it() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        ask_both(&mut programs, open);
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0));
        assert_eq!(
            open.flow(&programs).connection.flags & BOTH,
            FLOW_CLIENT_ON_TRIAL,
            "the backend is silent"
        );
        // The daemon asks the silent one again.
        let again = about(&programs, open, Reason::ExpireProbe, 0);
        assert_eq!(programs.expire(&again).emitted.len(), 1);
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO));
        let connection = open.flow(&programs).connection;
        assert_eq!((connection.state, connection.flags & (BOTH | FLOW_PROBED)), (FLOW_ESTABLISHED, 0));
        let ended = about(&programs, open, Reason::ExpireTrial, 0);
        assert_eq!(programs.expire(&ended).verdict, 1);
        forget_all(&mut programs);
    }
}

#[test]
fn an_idle_connection_without_an_answer_is_evicted() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        ask_both(&mut programs, open);
        let ended = about(&programs, open, Reason::ExpireTrial, 0);
        let outcome = programs.expire(&ended);
        assert_eq!((outcome.counted, outcome.emitted.len()), (vec![(Reason::ExpireTrial, 1)], 2));
        forget_all(&mut programs);
    }
}

#[test]
fn a_connection_with_a_packet_since_is_not_asked() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let asked = about(&programs, open, Reason::ExpireProbe, PROBE_BOTH);
        let asked = Expiry { seen_secs: asked.seen_secs.wrapping_sub(1), ..asked };
        let outcome = programs.expire(&asked);
        assert_eq!((outcome.verdict, outcome.counted, outcome.emitted), (1, vec![], vec![]));
        assert_eq!(open.flow(&programs).connection.flags & BOTH, 0);
        // Where bytes stay without acknowledgement, one end repeats them all the time.
        let held = Expiry { seq: PROBE_HELD, ..asked };
        assert_eq!(programs.expire(&held).emitted.len(), 2);
        assert_eq!(open.flow(&programs).connection.flags & BOTH, BOTH);
        forget_all(&mut programs);
    }
}

#[test]
fn the_count_of_a_source_is_evicted() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let key = ShareKey::of(&open.client.dial.tuple(), open.flow(&programs).connection.route);
        let gone = Expiry { seq: key.route, ..order(open.client.dial.tuple(), Reason::ExpireShare) };
        assert!(programs.entry::<_, Share>(name::SHARES, key).is_some());
        assert_eq!(programs.expire(&gone).counted, [(Reason::ExpireShare, 1)]);
        assert_eq!(programs.entry::<_, Share>(name::SHARES, key), None);
        assert_eq!(programs.expire(&gone).verdict, 1);
        // What the flow no longer has in it is not counted down from another count.
        open.reset(&mut programs);
        forget_all(&mut programs);
    }
}
