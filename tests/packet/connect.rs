//! The connection to the backend: SYN, its options, retransmission, refusal, the next backend.

use common::maps::backend::BACKEND_RETIRED;
use common::maps::flow::PENDING_CONNECTING;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::compare::assert_frame;
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::{assert_emitted, assert_handed_on, assert_sent, reset_of, sent, timestamps};
use crate::scene::{
    BACKEND_ISN, BACKEND_TIME, Backend, CLIENT_TIME, CLIENT_WINDOW, Client, ISN, Offer, behind, dial, ready,
    stamped, usual_hello,
};
use crate::setup::{
    backend_id, flag_backend, hellos, nats, remove_flow, remove_hello, route_counts, with_backends,
};

/// Sends the whole hello again, as a client does when it is not acknowledged.
pub(crate) fn repeat(programs: &mut Programs, client: Client) -> tests::program::Outcome {
    client.send(programs, 0, &usual_hello())
}

/// Returns the SYN that a backend gets for the usual client.
pub(crate) fn expected_syn(backend: Backend) -> Segment {
    let syn = backend.to_backend().syn(ISN).window(64_256);
    Offer::linux(1440, 7).put_fixed(syn, CLIENT_TIME + 1, 0)
}

/// Under reordering, a segment may arrive after one with a newer timestamp. A backend that has seen the newer
/// timestamp drops segments with older ones (PAWS, RFC 7323 section 5.3). Of 100,000 connections under loss
/// and reordering, three hung for ever.
#[test]
fn the_syn_that_is_repeated_is_never_older_than_the_first() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = usual_hello();
    for family in FAMILIES {
        for (time, expected) in [(100, 300), (500, 500)] {
            let client = dial(family).port(40_000 + time as u16).shake(&mut programs);
            let segment = |time: u32| {
                let segment = client.dial.segment().seq(behind(ISN, 0)).ack(client.cookie.wrapping_add(1));
                stamped(segment, CLIENT_TIME + time, client.time).payload(&bytes[..])
            };
            client.give(&mut programs, &segment(300));
            let outcome = client.give(&mut programs, &segment(time));
            assert_eq!(outcome.counted, [(Reason::ConnectAgain, 1)]);
            assert_eq!(timestamps(&sent(&outcome)), Some((CLIENT_TIME + expected, 0)));
            // The delivery's timestamp is no older than the SYN's either.
            let delivered = sent(&Backend::of(&sent(&outcome)).accept(&mut programs));
            assert_eq!(timestamps(&delivered).map(|(value, _)| value), Some(CLIENT_TIME + expected));
        }
    }
}

#[test]
fn a_connection_opens_with_the_clients_options() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello());
        let backend = Backend::of(&sent(&outcome));
        assert_sent(&outcome, Reason::ConnectSyn, &expected_syn(backend));
        assert_eq!(backend.owner(&programs), Some(client.dial.tuple()));
        assert_eq!(client.waiting(&programs).unwrap().connection.state, PENDING_CONNECTING);

        let outcome = backend.give(&mut programs, &backend.syn_ack());
        let expected = backend
            .to_backend()
            .seq(behind(ISN, 0))
            .ack(behind(BACKEND_ISN, 0))
            .flags(flag::PSH)
            .window(CLIENT_WINDOW)
            .payload(usual_hello());
        let expected = stamped(expected, CLIENT_TIME + 1, BACKEND_TIME);
        assert_sent(&outcome, Reason::ConnectHello, &expected);
        // Nothing was acknowledged to the client, so nothing is undelivered.
        assert_eq!(client.waiting(&programs), None);
        let flow = client.flow(&programs).unwrap();
        assert_eq!((flow.nat, flow.connection.route, flow.connection.listener), (backend.tuple(), 1, 1));
        assert_eq!(backend.owner(&programs), Some(client.dial.tuple()));
    }
    assert_eq!(route_counts(&programs), (2, 0, 0));
}

#[test]
fn the_syn_carries_what_the_client_offered() {
    tests::skip_without_root!();
    let mut programs = ready();
    let plain = Offer { mss: None, sack: false, timestamps: false, scale: None };
    for family in FAMILIES {
        let v4 = family.is_v4();
        // The cookie rounds the segment size down; the MTU of the backend's device limits it.
        let cases = [
            (plain, if v4 { 536 } else { 1220 }),
            (Offer { mss: Some(536), ..plain }, 536),
            (Offer { mss: Some(1219), sack: true, ..plain }, 536),
            (Offer { mss: Some(1460), timestamps: true, ..plain }, if v4 { 1460 } else { 1440 }),
            (Offer { mss: Some(1459), ..plain }, 1440),
            (Offer { mss: Some(1400), scale: Some(0), ..plain }, 1400),
            (Offer { mss: Some(216), scale: Some(14), ..plain }, 216),
            (Offer::linux(8960, 9), if v4 { 1460 } else { 1440 }),
        ];
        for (port, (offer, mss)) in (40_000..).zip(cases) {
            let client = dial(family).offer(offer).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello());
            let backend = Backend::of(&sent(&outcome));
            // A SYN's window is not scaled, so it is announced in bytes, capped at 65,535.
            let window = (u32::from(CLIENT_WINDOW) << offer.scale.unwrap_or(0)).min(65_535) as u16;
            let syn = backend.to_backend().syn(ISN).window(window);
            let expected = Offer { mss: Some(mss), ..offer }.put_fixed(syn, CLIENT_TIME + 1, 0);
            assert_sent(&outcome, Reason::ConnectSyn, &expected);
        }
    }
}

#[test]
fn the_next_backend_answers_and_gets_the_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let first = client.ask(&mut programs, &usual_hello());
        let outcome = first.refuse(&mut programs);
        let second = Backend::of(&sent(&outcome));
        assert_ne!(second.address, first.address);
        let outcome = second.accept(&mut programs);
        assert_eq!(sent(&outcome).payload, usual_hello());
        let id = if second.address == crate::setup::backend_socket(family, 0) { 0 } else { 1 };
        assert_eq!(client.flow(&programs).unwrap().connection.backend, backend_id(family, id));
        // The first backend accepts after all, but its port is no longer ours.
        let outcome = first.give(&mut programs, &first.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ClassifyOwnTraffic, 1)]);
    }
}

#[test]
fn a_refusal_asks_the_next_backend_at_once() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        with_backends(&mut programs, 4);
        let client = dial(family).shake(&mut programs);
        let first = client.ask(&mut programs, &usual_hello());
        let outcome = first.refuse(&mut programs);
        let second = Backend::of(&sent(&outcome));
        assert_sent(&outcome, Reason::ConnectNext, &expected_syn(second));
        let outcome = second.refuse(&mut programs);
        let third = Backend::of(&sent(&outcome));
        assert_sent(&outcome, Reason::ConnectNext, &expected_syn(third));
        assert_eq!(nats(&programs), [(third.tuple(), client.dial.tuple())]);
        let fourth = Backend::of(&sent(&third.refuse(&mut programs)));
        // The last refusal is passed to the client, at the sequence number it expects.
        assert_sent(&fourth.refuse(&mut programs), Reason::ConnectExhausted, &client.refusal());
        assert_eq!(client.waiting(&programs), None);
        assert_eq!(nats(&programs), []);
        assert_eq!(route_counts(&programs), (0, 1, 4));
    }
}

#[test]
fn the_only_backend_refuses_and_the_client_is_reset() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        assert_sent(&backend.refuse(&mut programs), Reason::ConnectExhausted, &client.refusal());
        // A retransmission of the hello starts again, since the cookie is still valid.
        assert_eq!(repeat(&mut programs, client).counted, [(Reason::ConnectSyn, 1)]);
        remove_hello(&mut programs, client.dial.tuple());
    }
}

/// A port is claimed before the record of its connection is stored. What comes on it meanwhile may be for a connection that the node
/// masquerades; a RST of ours, at the number that it acknowledges, ended that one.
#[test]
fn segments_on_a_port_without_a_record_are_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        // Only the NAT entry is left.
        remove_hello(&mut programs, client.dial.tuple());
        for stray in [backend.syn_ack(), backend.at(500, 7_000).payload(*b"theirs"), backend.at(0, 0).rst()] {
            assert_handed_on(&backend.give(&mut programs, &stray), &stray.bytes(), Reason::ConnectStray);
        }
    }
}

#[test]
fn a_full_flow_table_refuses_and_resets_both_sides() {
    tests::skip_without_root!();
    let mut programs = Programs::with_sizes(Sizes { flows: 1, ..Sizes::default() }).unwrap();
    programs.tls_with_one_route();
    for family in FAMILIES {
        let first = dial(family).shake(&mut programs);
        first.ask(&mut programs, &usual_hello()).accept(&mut programs);
        let second = dial(family).port(40_001).shake(&mut programs);
        let backend = second.ask(&mut programs, &usual_hello());
        let answer = backend.syn_ack();
        let outcome = backend.give(&mut programs, &answer);
        assert_eq!(outcome.counted, [(Reason::ConnectTableFull, 1)]);
        assert_frame(&outcome.packet, &reset_of(&answer));
        assert_emitted(&outcome, &[(Device::Client, second.refusal())]);
        assert_eq!(hellos(&programs), []);
        assert_eq!(backend.owner(&programs), None);
        assert_eq!(second.flow(&programs), None);
        assert!(first.flow(&programs).is_some(), "an open flow is never evicted");
        remove_flow(&mut programs, first.dial.tuple());
    }
    assert_eq!(route_counts(&programs), (2, 2, 0));
}

#[test]
fn a_backend_removed_while_connecting_resets_both_sides() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 1);
    for family in FAMILIES {
        let id = backend_id(family, 0);
        for gone in [false, true] {
            with_backends(&mut programs, 1);
            let client = dial(family).shake(&mut programs);
            let backend = client.ask(&mut programs, &usual_hello());
            flag_backend(&mut programs, id, BACKEND_RETIRED);
            if gone {
                programs.remove::<_, common::maps::backend::Backend>(common::maps::name::BACKENDS, id);
            }
            let answer = backend.syn_ack();
            let outcome = backend.give(&mut programs, &answer);
            assert_eq!(outcome.counted, [(Reason::ConnectRetired, 1)]);
            assert_frame(&outcome.packet, &reset_of(&answer));
            assert_emitted(&outcome, &[(Device::Client, client.refusal())]);
            assert_eq!((hellos(&programs), nats(&programs)), (vec![], vec![]));
            assert_eq!(client.flow(&programs), None);
        }
    }
}

#[test]
fn a_repeated_syn_carries_the_clients_latest_time_and_window() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let later = stamped(dial(family).segment().seq(behind(ISN, 0)), CLIENT_TIME + 900, client.time);
        let later = later.ack(client.cookie.wrapping_add(1)).window(100).payload(usual_hello());
        let outcome = client.give(&mut programs, &later);
        let syn = backend.to_backend().syn(ISN).window(12_800);
        let expected = Offer::linux(1440, 7).put_fixed(syn, CLIENT_TIME + 900, 0);
        assert_sent(&outcome, Reason::ConnectAgain, &expected);
        let outcome = backend.accept(&mut programs);
        assert_eq!(timestamps(&sent(&outcome)), Some((CLIENT_TIME + 900, BACKEND_TIME)));
    }
}
