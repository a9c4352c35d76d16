//! How connections end: FIN in both directions, RST, and the segments that follow.

use common::maps::event::{CLOSED_RING_DUE, EXPIRE_DONE, EXPIRE_NOTHING, Expiry};
use common::maps::flow::{ClientTuple, FLOW_CLOSED, FLOW_ESTABLISHED, FLOW_RESET, Slot};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};

use crate::check::{assert_dropped, assert_sent, order, reset_of};
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{Offer, dial, ready};
use crate::setup::nats;

/// Returns the owner of the newest slot in the ring of closed flows.
fn newest_closed(programs: &Programs) -> Slot {
    let cursors: Cursors = programs.element(name::CURSORS, 0);
    programs.element(name::CLOSED_RING, (cursors.closed_head - 1) as u32)
}

#[test]
fn fin_both_ways_closes_the_flow_whoever_begins() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (port, client_first) in [(40_000, true), (40_001, false)] {
            let open = open_with(&mut programs, dial(family).port(port), Offer::linux(1460, 9));
            let p = &mut programs;
            if client_first {
                open.pass_to_backend(p, &open.client_segment(HELLO, 0).fin());
                open.pass_to_client(p, &open.backend_segment(0, HELLO + 1));
                // Half-closed: the backend may keep sending.
                open.pass_to_client(p, &open.backend_segment(0, HELLO + 1).payload(*b"still here"));
                open.pass_to_backend(p, &open.client_segment(HELLO + 1, 10));
                open.pass_to_client(p, &open.backend_segment(10, HELLO + 1).fin());
                assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED);
                open.pass_to_backend(p, &open.client_segment(HELLO + 1, 11));
            } else {
                open.pass_to_client(p, &open.backend_segment(0, HELLO).payload(*b"bye").fin());
                open.pass_to_backend(p, &open.client_segment(HELLO, 4));
                open.pass_to_backend(p, &open.client_segment(HELLO, 4).payload(*b"still here"));
                open.pass_to_client(p, &open.backend_segment(4, HELLO + 10));
                open.pass_to_backend(p, &open.client_segment(HELLO + 10, 4).fin());
                assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED);
                open.pass_to_client(p, &open.backend_segment(4, HELLO + 11));
            }
            assert_eq!(open.flow(p).connection.state, FLOW_CLOSED);
            assert_eq!(newest_closed(p).owner, open.client.dial.tuple());
            // Late segments of either side still pass: a lost last ACK can be requested again.
            open.pass_to_client(p, &open.backend_segment(10, HELLO + 1).fin());
            open.pass_to_backend(p, &open.client_segment(HELLO + 1, 11));
            assert_eq!(open.flow(p).connection.state, FLOW_CLOSED);
        }
    }
}

#[test]
fn fin_of_both_at_once_closes_the_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let p = &mut programs;
        open.pass_to_backend(p, &open.client_segment(HELLO, 0).fin());
        open.pass_to_client(p, &open.backend_segment(0, HELLO).fin());
        open.pass_to_backend(p, &open.client_segment(HELLO + 1, 1));
        assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED);
        open.pass_to_client(p, &open.backend_segment(1, HELLO + 1));
        assert_eq!(open.flow(p).connection.state, FLOW_CLOSED);
    }
}

#[test]
fn an_acknowledgement_short_of_the_fin_does_not_close() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let p = &mut programs;
        open.pass_to_backend(p, &open.client_segment(HELLO, 0).payload(*b"last").fin());
        open.pass_to_client(p, &open.backend_segment(0, HELLO + 4).payload(*b"more").fin());
        open.pass_to_backend(p, &open.client_segment(HELLO + 5, 4));
        open.pass_to_client(p, &open.backend_segment(5, HELLO + 4));
        assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED);
        open.pass_to_backend(p, &open.client_segment(HELLO + 5, 5));
        assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED);
        open.pass_to_client(p, &open.backend_segment(5, HELLO + 5));
        assert_eq!(open.flow(p).connection.state, FLOW_CLOSED);
    }
}

/// Asserts that a reset flow answers each further segment with a RST, at the number it acknowledged.
#[track_caller]
fn assert_lingers(programs: &mut Programs, open: Open) {
    assert_eq!(open.flow(programs).connection.state, FLOW_RESET);
    assert_eq!(newest_closed(programs).owner, open.client.dial.tuple());
    for ack in [0, 77] {
        for segment in [open.client_segment(HELLO, ack), open.client_segment(HELLO, ack).payload(*b"late")] {
            let outcome = open.client.give(programs, &segment);
            assert_sent(&outcome, Reason::ForwardLinger, &reset_of(&segment));
        }
        let segment = open.backend_segment(ack, HELLO).fin();
        let outcome = open.backend.give(programs, &segment);
        assert_sent(&outcome, Reason::ForwardLinger, &reset_of(&segment));
    }
    // A RST is never answered.
    let outcome = open.client.give(programs, &open.client_segment(HELLO, 0).rst());
    assert_dropped(&outcome, Reason::EmitUnanswered);
    let outcome = open.backend.give(programs, &open.backend_segment(0, HELLO).rst());
    assert_dropped(&outcome, Reason::EmitUnanswered);
    assert_eq!(open.flow(programs).connection.state, FLOW_RESET);
}

#[test]
fn a_reset_of_the_client_ends_the_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // At what the backend acknowledged; with ACK and without.
        for (port, at, ack) in [(40_000, HELLO, true), (40_001, HELLO, false)] {
            let open = open_with(&mut programs, dial(family).port(port), Offer::linux(1460, 9));
            let p = &mut programs;
            open.pass_to_client(p, &open.backend_segment(0, HELLO));
            open.pass_to_backend(p, &open.client_segment(HELLO, 0).payload([1; 100]));
            let mut rst = open.client_segment(at, 0).rst().window(0);
            rst.options.clear();
            if !ack {
                (rst.flags, rst.ack) = (tests::packet::flag::RST, 0);
            }
            let outcome = open.client.give(p, &rst);
            assert_sent(&outcome, Reason::ForwardReset, &open.at_backend(&rst));
            assert_lingers(p, open);
        }
    }
}

#[test]
fn a_reset_of_the_backend_ends_the_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (port, acked) in [(40_000, 100), (40_001, 0)] {
            let open = open_with(&mut programs, dial(family).port(port), Offer::linux(1460, 9));
            let p = &mut programs;
            open.pass_to_client(p, &open.backend_segment(0, HELLO).payload([1; 100]));
            open.pass_to_backend(p, &open.client_segment(HELLO, acked));
            let mut rst = open.backend_segment(acked, HELLO).rst().window(0);
            rst.options.clear();
            let outcome = open.backend.give(p, &rst);
            assert_sent(&outcome, Reason::ForwardReset, &open.at_client(&rst));
            assert_lingers(p, open);
        }
    }
}

#[test]
fn a_reset_of_a_closed_flow_makes_it_linger() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        open.close(&mut programs);
        assert_eq!(open.flow(&programs).connection.state, FLOW_CLOSED);
        let rst = open.client_segment(HELLO + 1, 1).rst();
        let outcome = open.client.give(&mut programs, &rst);
        assert_sent(&outcome, Reason::ForwardReset, &open.at_backend(&rst));
        assert_lingers(&mut programs, open);
    }
}

#[test]
fn closed_flows_are_forgotten_when_others_close() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        let at = |port| dial(family).port(port);
        let open = |programs: &mut Programs, port| open_with(programs, at(port), Offer::linux(1460, 9));
        let flows: Vec<Open> = (40_000..40_005).map(|port| open(&mut programs, port)).collect();
        // The linger time is long enough that no flow is removed.
        for flow in &flows[..3] {
            flow.close(&mut programs);
        }
        assert_eq!(nats(&programs).len(), 5);
        // No linger time: each flow that closes frees two older ones, never an open one.
        programs.settings(Settings { closed_timeout_secs: 0, ..default_settings(Sizes::default()) });
        flows[3].pass_to_client(&mut programs, &flows[3].backend_segment(0, HELLO));
        let rst = flows[3].client_segment(HELLO, 0).rst();
        let outcome = flows[3].client.give(&mut programs, &rst);
        assert_eq!(outcome.counted, [(Reason::ForwardReset, 1), (Reason::ExpireClosed, 2)]);
        assert_eq!((flows[0].client.flow(&programs), flows[1].client.flow(&programs)), (None, None));
        assert_eq!((flows[0].backend.owner(&programs), flows[1].backend.owner(&programs)), (None, None));
        assert_eq!(flows[2].flow(&programs).connection.state, FLOW_CLOSED);
        assert_eq!(flows[4].flow(&programs).connection.state, FLOW_ESTABLISHED);
        assert_eq!(nats(&programs).len(), 3);
    }
}

#[test]
fn the_daemon_has_closed_flows_forgotten_that_are_due_in_several_runs() {
    tests::skip_without_root!();
    let due = Expiry { seq: CLOSED_RING_DUE, ..order(ClientTuple::zeroed(), Reason::ExpireClosed) };
    for family in FAMILIES {
        let mut programs = ready();
        let open = |programs: &mut Programs, port| {
            open_with(programs, dial(family).port(port), Offer::linux(1460, 9))
        };
        let flows: Vec<Open> = (40_000..40_132).map(|port| open(&mut programs, port)).collect();
        for flow in &flows[..130] {
            flow.close(&mut programs);
        }
        let early = programs.expire(&due);
        assert_eq!((early.verdict, early.counted.as_slice()), (EXPIRE_NOTHING, &[][..]));
        programs.settings(Settings { closed_timeout_secs: 0, ..default_settings(Sizes::default()) });
        for (verdict, counted) in [(EXPIRE_DONE, 128), (EXPIRE_NOTHING, 2)] {
            let outcome = programs.expire(&due);
            assert_eq!((outcome.verdict, outcome.counted), (verdict, vec![(Reason::ExpireClosed, counted)]));
        }
        let rest = programs.expire(&due);
        assert_eq!((rest.verdict, rest.counted.as_slice()), (EXPIRE_NOTHING, &[][..]));
        assert_eq!(nats(&programs).len(), 2);
        for flow in &flows[130..] {
            assert_eq!(flow.flow(&programs).connection.state, FLOW_ESTABLISHED);
        }
    }
}

/// While flows close faster than slots become due, each slot is written over again and again. The sweep after that looks at
/// each slot once, however long it went on.
#[test]
fn the_daemon_passes_over_slots_of_closed_flows_that_were_written_over() {
    tests::skip_without_root!();
    let due = Expiry { seq: CLOSED_RING_DUE, ..order(ClientTuple::zeroed(), Reason::ExpireClosed) };
    let places = u64::from(Sizes::default().closed);
    for family in FAMILIES {
        let mut programs = ready();
        let open = open(&mut programs, family);
        open.close(&mut programs);
        let cursors: Cursors = programs.element(name::CURSORS, 0);
        let closed_head = cursors.closed_head + 1_000_000 * places;
        programs.set(name::CURSORS, 0, Cursors { closed_head, ..cursors });
        programs.settings(Settings { closed_timeout_secs: 0, ..default_settings(Sizes::default()) });
        let enough = places / 128 + 1;
        let runs = (0..enough).take_while(|_| programs.expire(&due).verdict == EXPIRE_DONE).count() as u64;
        assert!(runs < enough, "{family:?}: there was more to look at after {runs} runs");
        assert_eq!(programs.element::<Cursors>(name::CURSORS, 0).closed_tail, closed_head);
        assert_eq!((open.client.flow(&programs), open.backend.owner(&programs)), (None, None));
    }
}

#[test]
fn a_full_ring_of_closed_flows_frees_the_oldest_before_its_time() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = Programs::with_sizes(Sizes { closed: 4, ..Sizes::default() }).unwrap();
        programs.tls_with_one_route();
        let at = |port| dial(family).port(port);
        let flows: Vec<Open> =
            (40_000..40_006).map(|port| open_with(&mut programs, at(port), Offer::linux(1460, 9))).collect();
        for flow in &flows[..4] {
            flow.reset(&mut programs);
        }
        flows[4].pass_to_client(&mut programs, &flows[4].backend_segment(0, HELLO));
        let rst = flows[4].client_segment(HELLO, 0).rst();
        let outcome = flows[4].client.give(&mut programs, &rst);
        assert_eq!(outcome.counted, [(Reason::ForwardReset, 1), (Reason::ExpireClosed, 1)]);
        assert_eq!((flows[0].client.flow(&programs), flows[0].backend.owner(&programs)), (None, None));
        for flow in &flows[1..5] {
            assert_eq!(flow.flow(&programs).connection.state, FLOW_RESET);
        }
        assert_eq!(flows[5].flow(&programs).connection.state, FLOW_ESTABLISHED);
    }
}

#[test]
fn a_reset_out_of_place_passes_and_ends_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let p = &mut programs;
        open.pass_to_backend(p, &open.client_segment(HELLO, 0).payload([1; 100]));
        open.pass_to_client(p, &open.backend_segment(0, HELLO).payload([1; 100]));
        // The ends decide themselves: they may reply with a challenge ACK.
        for at in [0, HELLO - 1, HELLO + 101, 70_000] {
            let rst = open.client_segment(at, 0).rst();
            assert_sent(&open.client.give(p, &rst), Reason::ForwardUnfit, &open.at_backend(&rst));
            assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED, "{at}");
        }
        for at in [u32::MAX, 101, 70_000] {
            let rst = open.backend_segment(at, HELLO).rst();
            assert_sent(&open.backend.give(p, &rst), Reason::ForwardUnfit, &open.at_client(&rst));
            assert_eq!(open.flow(p).connection.state, FLOW_ESTABLISHED, "{at}");
        }
        open.pass_to_backend(p, &open.client_segment(HELLO + 100, 100));
    }
}
