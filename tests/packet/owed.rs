//! Bytes that we acknowledged to the client are ours to deliver, however often it takes.

use common::maps::flow::{Chunk, FLOW_OWED, FLOW_RESET, HELLO_OWED};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, server_name};
use tests::compare::assert_frame;
use tests::hello::hello;
use tests::packet::flag;
use tests::program::{Outcome, Programs};
use tests::world::Device;

use crate::check::{assert_emitted, assert_sent, reset_of, sent, timestamps};
use crate::delivery::{collect, delivered, pieces};
use crate::scene::{
    BACKEND_ISN, BACKEND_TIME, Backend, CLIENT_TIME, Client, ISN, behind, dial, ready, stamped, usual_hello,
};
use crate::setup::remove_hello;

/// Bytes of the client's segments.
const PART: usize = 1_000;

/// A connection whose hello of 4,500 bytes came in five segments, four of them acknowledged.
fn owed(programs: &mut Programs, family: Family) -> (Client, Backend, Vec<u8>) {
    let bytes = hello().name(server_name(0)).length(4_500).bytes();
    let client = dial(family).shake(programs);
    let backend = collect(programs, client, &bytes, PART);
    let outcome = backend.accept(programs);
    assert_eq!(delivered(&outcome, ISN), bytes);
    let waiting = client.waiting(programs).expect("the hello is kept");
    assert_eq!((waiting.state, waiting.acked), (HELLO_OWED, 4_000));
    assert_ne!(client.flow(programs).expect("the flow is there").backend_flags & FLOW_OWED, 0);
    (client, backend, bytes)
}

/// These bytes, from the `from`th on, came once more.
#[track_caller]
fn assert_repeated(outcome: &Outcome, bytes: &[u8], from: usize) {
    assert_eq!(outcome.counted, [(Reason::ConnectRepeated, 1)]);
    assert_eq!(delivered(outcome, ISN.wrapping_add(from as u32)), bytes[from..]);
    let pieces = pieces(outcome);
    let (last, first) = pieces.split_last().expect("two pieces or more");
    assert_eq!(last.flags, flag::ACK | flag::PSH);
    for piece in first {
        assert_eq!(piece.flags, flag::ACK);
    }
    for piece in &pieces {
        assert_eq!(piece.ack, behind(BACKEND_ISN, 0));
        let (value, echo) = timestamps(piece).expect("timestamps were agreed");
        assert_eq!(value, CLIENT_TIME + 1);
        assert!(echo.wrapping_sub(BACKEND_TIME) < 60_000, "{echo}");
    }
}

/// Nothing is owed any more.
#[track_caller]
fn assert_settled(programs: &Programs, client: Client) {
    assert_eq!(client.waiting(programs), None);
    assert_eq!(client.flow(programs).expect("the flow is there").backend_flags & FLOW_OWED, 0);
}

#[test]
fn a_repeated_syn_ack_brings_the_hello_again() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (_, backend, bytes) = owed(&mut programs, family);
        for _ in 0..3 {
            let outcome = backend.give(&mut programs, &backend.syn_ack());
            assert_repeated(&outcome, &bytes, 0);
        }
    }
}

#[test]
fn a_repeated_acknowledgement_brings_what_follows_it() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (client, backend, bytes) = owed(&mut programs, family);
        // A duplicate asks for the first hole, and gets that.
        let mss = if family.is_v4() { 1_448 } else { 1_428 };
        let outcome = backend.give(&mut programs, &backend.at(0, 0));
        assert_repeated(&outcome, &bytes[..mss], 0);
        for have in [1_448, 2_000, 3_999] {
            let outcome = backend.give(&mut programs, &backend.at(0, have));
            assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
            let outcome = backend.give(&mut programs, &backend.at(0, have));
            let end = bytes.len().min(have as usize + mss);
            assert_repeated(&outcome, &bytes[..end], have as usize);
        }
        assert!(client.waiting(&programs).is_some());
    }
}

#[test]
fn a_repetition_by_the_client_brings_what_is_missing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (client, backend, bytes) = owed(&mut programs, family);
        // The last part was never acknowledged, so that is what the client repeats.
        let outcome = client.send(&mut programs, 4_000, &bytes[4_000..]);
        assert_repeated(&outcome, &bytes, 0);
        backend.give(&mut programs, &backend.at(0, 2_500));
        let outcome = client.send(&mut programs, 4_000, &bytes[4_000..]);
        assert_repeated(&outcome, &bytes, 2_500);
        // New data passes as ever.
        let outcome = client.send(&mut programs, 4_500, b"more");
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        assert_eq!(sent(&outcome).payload, b"more");
    }
}

#[test]
fn what_the_backend_acknowledged_is_owed_no_more() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (have, settled) in [(3_999, false), (4_000, true), (4_500, true)] {
            let (client, backend, bytes) = owed(&mut programs, family);
            let outcome = backend.give(&mut programs, &backend.at(0, have).payload(*b"hello"));
            assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
            if settled {
                assert_settled(&programs, client);
                // The client's repetition is its own again.
                let outcome = client.send(&mut programs, 4_000, &bytes[4_000..]);
                assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
                assert_eq!(sent(&outcome).payload, bytes[4_000..]);
            } else {
                assert!(client.waiting(&programs).is_some());
            }
            end(&mut programs, client, backend);
        }
    }
}

/// Both sides forget the connection.
fn end(programs: &mut Programs, client: Client, backend: Backend) {
    let order = crate::check::order(client.dial.tuple(), Reason::ExpireRemoved);
    assert_eq!(programs.expire(&order).verdict, 0);
    assert_eq!(client.waiting(programs), None);
    let order = crate::check::order(client.dial.tuple(), Reason::ExpireClosed);
    assert_eq!(programs.expire(&order).verdict, 0);
    assert_eq!((client.flow(programs), backend.owner(programs)), (None, None));
}

#[test]
fn a_repeated_syn_ack_is_acknowledged_where_nothing_is_owed() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        backend.accept(&mut programs);
        let again = backend.syn_ack();
        let outcome = backend.give(&mut programs, &again);
        // The client's scale is on the figure: told as it is it would promise too much.
        let expected =
            backend.to_backend().seq(behind(ISN, 0)).ack(behind(BACKEND_ISN, 0)).window(again.window >> 7);
        let expected = stamped(expected, CLIENT_TIME, BACKEND_TIME);
        assert_sent(&outcome, Reason::ForwardBackend, &expected);
        // The client repeats the hello itself.
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        assert_eq!(sent(&outcome).payload, usual_hello());
    }
}

#[test]
fn bytes_that_gave_way_end_the_flow_on_both_sides() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // The daemon is dead, nobody resets what the stash gave away. The backend speaks first.
        let (client, backend, _) = owed(&mut programs, family);
        remove_hello(&mut programs, client.dial.tuple());
        let asks = backend.at(0, 0);
        let outcome = backend.give(&mut programs, &asks);
        assert_sent(&outcome, Reason::ForwardLinger, &reset_of(&asks));
        assert_eq!(client.flow(&programs).unwrap().state, FLOW_RESET);
        let repeats = client.at(4_000).payload(*b"more");
        let outcome = client.give(&mut programs, &repeats);
        assert_sent(&outcome, Reason::ForwardLinger, &reset_of(&repeats));
        order_closed(&mut programs, client);
        // Only the bytes are gone: their place is somebody else's by now.
        for from_client in [true, false] {
            let (client, backend, bytes) = owed(&mut programs, family);
            let place = client.waiting(&programs).unwrap().chunks[1];
            let chunk: Chunk = programs.element(name::CHUNKS, place);
            programs.set(name::CHUNKS, place, Chunk { index: 7, ..chunk });
            let to_backend = backend.to_backend().rst().window(0);
            if from_client {
                let repeats = client.at(4_000).payload(&bytes[4_000..]);
                let outcome = client.give(&mut programs, &repeats);
                assert_eq!(outcome.counted, [(Reason::HelloStashFailed, 1)]);
                assert_frame(&outcome.packet, &reset_of(&repeats));
                let expected = to_backend.seq(behind(ISN, 4_500));
                assert_emitted(&outcome, &[(Device::Backend, expected)]);
            } else {
                let asks = backend.at(0, 0);
                let outcome = backend.give(&mut programs, &asks);
                assert_eq!(outcome.counted, [(Reason::HelloStashFailed, 1)]);
                assert_frame(&outcome.packet, &reset_of(&asks));
                assert_emitted(&outcome, &[(Device::Client, client.refusal())]);
            }
            assert_eq!(client.flow(&programs).unwrap().state, FLOW_RESET);
            order_closed(&mut programs, client);
        }
    }
}

/// The daemon forgets the flow.
fn order_closed(programs: &mut Programs, client: Client) {
    let order = crate::check::order(client.dial.tuple(), Reason::ExpireClosed);
    assert_eq!(programs.expire(&order).verdict, 0);
    assert_eq!(client.waiting(programs), None);
}
