//! A stranger who knows addresses and ports of a flow, but none of its numbers.

use common::maps::flow::{FLOW_CLOSED, FLOW_ESTABLISHED, FLOW_RESET, Flow, WINDOW_SCALE_NONE};
use common::maps::name;
use common::maps::word::{Hops, WINDOW_UNIT};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, sent};
use crate::half_open::{caller, from_client, knock, tcp};
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{BACKEND_ISN, Offer, behind, dial, ready};

/// Opens a connection in which both ends sent and acknowledged 100 bytes.
fn talked(programs: &mut Programs, family: Family, port: u16) -> Open {
    let open = open_with(programs, dial(family).port(port), Offer::linux(1460, 7));
    open.pass_to_client(programs, &open.backend_segment(0, HELLO).payload([1; 100]));
    open.pass_to_backend(programs, &open.client_segment(HELLO, 100).payload([1; 100]));
    open.pass_to_client(programs, &open.backend_segment(100, HELLO + 100));
    open
}

/// The flow without the time of its last packet.
fn known(programs: &Programs, open: Open) -> Flow {
    Flow { seen_secs: 0, hops: Hops::zeroed(), ..open.flow(programs) }
}

/// One step of the search: a segment that might be learned from, then a RST and a FIN at its end.
fn step(segment: &Segment, bytes: usize) -> [Segment; 3] {
    let end = segment.seq.wrapping_add(bytes as u32);
    let at_end = |flags| Segment { seq: end, flags, ..segment.clone() };
    [segment.clone().payload(vec![7; bytes]), at_end(flag::RST | flag::ACK), at_end(flag::FIN | flag::ACK)]
}

/// An acknowledgement up to 2^24 behind was believed, whatever its sequence number, so 2^8 guesses of the one taught the
/// flow the stranger's number, and a RST at that number ended it.
#[test]
fn every_acknowledgement_in_steps_of_two_to_the_24th_teaches_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = talked(&mut programs, family, 40_000);
        let before = known(&programs, open);
        for far in [0x2000_0000, 0xe000_0000] {
            for guess in 0..=255u32 {
                for segment in step(&open.client_segment(HELLO.wrapping_add(far), guess << 24), 10) {
                    open.client.give(&mut programs, &segment);
                }
                for segment in step(&open.backend_segment(far, HELLO.wrapping_add(guess << 24)), 10) {
                    open.backend.give(&mut programs, &segment);
                }
            }
        }
        assert_eq!(known(&programs, open), before, "{family:?}");
        // The connection itself goes on, to its orderly end.
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 100, 100).fin());
        open.pass_to_client(&mut programs, &open.backend_segment(100, HELLO + 101).fin());
        // It may free an older flow, too: the search took longer than closed flows are kept.
        open.client.give(&mut programs, &open.client_segment(HELLO + 101, 101));
        assert_eq!(open.flow(&programs).connection.state, FLOW_CLOSED);
    }
}

/// We acknowledged any SYN in the backend's name, with its own window and the timestamp that it echoed, at the numbers that
/// the backend expects. One such packet set the clock by which the backend judged the client's segments, and it dropped them
/// all from then on (PAWS).
#[test]
fn a_syn_in_the_backends_name_is_passed_on_and_not_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = talked(&mut programs, family, 40_000);
        let before = known(&programs, open);
        // The last ones have one of the numbers of the SYN-ACK that opened the flow.
        let now = HELLO + 100;
        for (seq, ack) in [(100, now), (0, now), (7_000, now), (0x8000_0000, now), (u32::MAX, now), (100, 0)]
        {
            for flags in [flag::SYN, flag::SYN | flag::ACK] {
                let forged = Segment { flags, ..open.backend_segment(seq, ack) };
                open.pass_to_client(&mut programs, &forged.window(0));
            }
        }
        assert_eq!(known(&programs, open), before, "{family:?}");
        // The one that opened the flow may come again, with the number that nobody else knows.
        let outcome = open.backend.give(&mut programs, &open.backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        let answer = sent(&outcome);
        assert_eq!((answer.flags, answer.to), (flag::ACK, open.backend.address));
        crate::setup::forget_all(&mut programs);
    }
}

/// The node's stack got these, has no socket for them, and answered one with the right acknowledgement by a RST at that number,
/// which ended the backend's connection. A host that has the connection ignores them.
#[test]
fn impossible_flags_in_the_backends_name_do_not_reach_the_nodes_stack() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = talked(&mut programs, family, 40_000);
        let before = known(&programs, open);
        for flags in
            [flag::SYN | flag::FIN | flag::ACK, flag::SYN | flag::RST, flag::FIN | flag::RST, 0, flag::PSH]
        {
            let forged = Segment { flags, ..open.backend_segment(100, HELLO + 100) };
            assert_dropped(&open.backend.give(&mut programs, &forged), Reason::ParseFlags);
            // Nobody's, for all that we know: the node may have its own connection.
            let mut other = forged.clone();
            other.to.set_port(9);
            let outcome = open.backend.give(&mut programs, &other);
            assert_handed_on(&outcome, &other.bytes(), Reason::ClassifyOwnTraffic);
        }
        assert_eq!(known(&programs, open), before, "{family:?}");
        crate::setup::forget_all(&mut programs);
    }
}

/// Asserts what the flow learns from a client's and a backend's segment that are each alike but for their numbers.
#[track_caller]
fn assert_learned(programs: &mut Programs, port: u16, seq: u32, ack: u32, learned: bool) {
    for family in FAMILIES {
        for from_client in [true, false] {
            let open = talked(programs, family, port);
            let before = known(programs, open);
            if from_client {
                let segment = open.client_segment((HELLO + 100).wrapping_add(seq), 100u32.wrapping_add(ack));
                open.pass_to_backend(programs, &segment.payload([9; 10]));
            } else {
                let segment = open.backend_segment(100u32.wrapping_add(seq), (HELLO + 100).wrapping_add(ack));
                open.pass_to_client(programs, &segment.payload([9; 10]));
            }
            let after = known(programs, open);
            assert_eq!(after != before, learned, "{family:?} {from_client} {seq:#x} {ack:#x}: {after:?}");
            crate::setup::forget_all(programs);
        }
    }
}

#[test]
fn only_segments_inside_both_windows_are_learned_from() {
    tests::skip_without_root!();
    let mut programs = ready();
    // The largest window of either end is 65,535 << 7. What they announced is from one unit to four.
    let window = 65_535 << 7;
    let below = |bytes: u32| 0u32.wrapping_sub(bytes);
    for (seq, ack, learned) in [
        (0, 0, true),
        // Data behind a gap, and an acknowledgement of what was acknowledged before.
        (2_000, 0, true),
        (0, below(100), true),
        (0, below(WINDOW_UNIT), true),
        // Within the largest possible window, but not within one that was announced (RFC 5961 section 5.2).
        (0, below(4 * WINDOW_UNIT + 1), false),
        (0, below(window + 200), false),
        // An acknowledgement of what was never sent.
        (0, 1, false),
        (0, 1 << 24, false),
        // Beyond every window announced.
        (1 << 23, 0, false),
        (1 << 31, 0, false),
    ] {
        assert_learned(&mut programs, 40_000, seq, ack, learned);
    }
}

/// A receiver takes nothing from a segment that is behind what it has. We took the acknowledgement: of bytes that a stranger
/// sent ahead of the connection's, too, and a RST at that number ended the flow.
#[test]
fn an_old_segment_acknowledges_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = talked(&mut programs, family, 40_000);
        open.pass_to_client(&mut programs, &open.backend_segment(100, HELLO + 100).payload([2; 50]));
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 80, 150).payload([1; 10]));
        let reset = open.backend_segment(150, HELLO + 100).rst();
        assert_eq!(open.backend.give(&mut programs, &reset).counted, [(Reason::ForwardTrial, 1)]);
        assert_eq!(open.flow(&programs).connection.state, FLOW_ESTABLISHED);
        // The same with bytes that are new by one: the client has it all.
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 91, 150).payload([1; 10]));
        assert_eq!(open.backend.give(&mut programs, &reset).counted, [(Reason::ForwardReset, 1)]);
        assert_eq!(open.flow(&programs).connection.state, FLOW_RESET);
        crate::setup::forget_all(&mut programs);
    }
}

/// Nor does a segment without data show that its sender sent any: the flow waited for their acknowledgement, and ended both
/// ends after 20 minutes without one.
#[test]
fn a_bare_acknowledgement_shows_no_bytes() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = talked(&mut programs, family, 40_000);
        let before = known(&programs, open);
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 5_100, 100));
        open.pass_to_client(&mut programs, &open.backend_segment(5_100, HELLO + 100));
        assert_eq!(known(&programs, open), before, "{family:?}");
        crate::setup::forget_all(&mut programs);
    }
}

/// A forged FIN at the right number is overtaken by the data that follows, and the flow is not held as half closed.
#[test]
fn bytes_behind_a_fin_show_that_it_was_forged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = talked(&mut programs, family, 40_000);
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 100, 100).fin());
        assert_eq!(open.flow(&programs).client.sent.fin, 1);
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO + 100, 100).payload([2; 50]));
        let flow = open.flow(&programs);
        assert_eq!((flow.connection.state, flow.client.sent.fin), (FLOW_ESTABLISHED, 0));
    }
}

/// A byte behind a gap, forged in the name of a backend that is silent, is acknowledged by no client: it was taken for one that never
/// acknowledges anything, and reset after a minute.
#[test]
fn only_the_backends_first_byte_begins_what_its_client_has_to_acknowledge() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let has_first = |programs: &Programs| open.flow(programs).backend.sent.has_first();
        open.pass_to_client(&mut programs, &open.backend_segment(1_000, HELLO).payload([9]));
        assert_eq!(open.flow(&programs).backend.sent.next, behind(BACKEND_ISN, 1_001));
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO));
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0).payload([1; 10]));
        assert!(!has_first(&programs));
        let agreed = open.flow(&programs).backend.sent.agreed();
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload([2; 10]));
        assert!(has_first(&programs), "although it ends before the forged one");
        assert_eq!(open.flow(&programs).backend.sent.agreed(), agreed);
        crate::setup::forget_all(&mut programs);
    }
}

/// On a TCP listener, too: the scales of both handshakes are kept, though windows pass unchanged.
#[test]
fn a_flow_of_a_tcp_listener_has_windows_too() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        for (port, client, backend, kept) in [
            (40_000, Some(3), Some(11), (3, 11)),
            // An end alone does not scale (RFC 7323 section 2.2).
            (40_001, Some(3), None, (WINDOW_SCALE_NONE, WINDOW_SCALE_NONE)),
            (40_002, None, Some(11), (WINDOW_SCALE_NONE, WINDOW_SCALE_NONE)),
        ] {
            let offer = |scale| Offer { scale, ..Offer::plain(1_440) };
            let dial = caller(family).port(port).offer(offer(client));
            let held = knock(&mut programs, dial);
            held.give(&mut programs, &held.syn_ack_with(offer(backend)).window(20_000));
            programs.ingress(Device::Client, &from_client(dial, 0, 0).window(1_000).bytes());
            let flow: Flow = programs.entry(name::FLOWS, dial.tuple()).expect("it is open");
            let (client, backend) = (flow.client.sent.agreed(), flow.backend.sent.agreed());
            assert_eq!((client.scale, backend.scale, client.scaled), (kept.0, kept.1, false));
            // 1,000 << 3 and 20,000 bytes, in units of 16 KiB.
            assert_eq!((flow.client.acked.window, flow.backend.acked.window), (1, 2));
            let before = Flow { seen_secs: 0, hops: Hops::zeroed(), ..flow };
            let far = from_client(dial, 1 << 24, 0).payload(*b"stranger");
            programs.ingress(Device::Client, &far.bytes());
            let after: Flow = programs.entry(name::FLOWS, dial.tuple()).expect("it is open");
            assert_eq!(Flow { seen_secs: 0, hops: Hops::zeroed(), ..after }, before);
        }
    }
}
