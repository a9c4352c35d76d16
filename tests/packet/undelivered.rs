//! We must deliver the bytes that we acknowledged to the client, however many retransmissions it takes.

use std::mem::offset_of;

use common::maps::event::Expiry;
use common::maps::flow::{
    Buffer, ClientTuple, FLOW_ESTABLISHED, FLOW_RESET, FLOW_UNDELIVERED, Flow, PENDING_UNDELIVERED, Pending,
    RECORD_OVER,
};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, server_name};
use tests::compare::assert_frame;
use tests::hello::hello;
use tests::packet::flag;
use tests::program::{Outcome, Programs};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::check::{assert_emitted, assert_sent, reset_of, sent, timestamps};
use crate::delivery::{collect, delivered, pieces};
use crate::scene::{
    BACKEND_ISN, BACKEND_TIME, Backend, CLIENT_TIME, Client, ISN, behind, dial, ready, stamped, usual_hello,
};
use crate::setup::remove_hello;

/// The payload bytes of each client segment.
pub(crate) const PART: usize = 1_000;

/// Opens a connection whose hello of 4,500 bytes arrived in five segments, four of them acknowledged.
pub(crate) fn owed(programs: &mut Programs, family: Family) -> (Client, Backend, Vec<u8>) {
    let bytes = hello().name(server_name(0)).length(4_500).bytes();
    let client = dial(family).shake(programs);
    let backend = collect(programs, client, &bytes, PART);
    let outcome = backend.accept(programs);
    assert_eq!(delivered(&outcome, ISN), bytes);
    let waiting = client.waiting(programs).expect("the hello is kept");
    assert_eq!((waiting.connection.state, waiting.acked), (PENDING_UNDELIVERED, 4_000));
    assert_ne!(client.flow(programs).expect("the flow is there").connection.flags & FLOW_UNDELIVERED, 0);
    (client, backend, bytes)
}

/// Asserts that these bytes were sent again, starting at byte `from`.
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

/// Asserts that no byte is undelivered any more.
#[track_caller]
fn assert_settled(programs: &Programs, client: Client) {
    assert_eq!(client.waiting(programs), None);
    assert_eq!(client.flow(programs).expect("the flow is there").connection.flags & FLOW_UNDELIVERED, 0);
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
        // A duplicate acknowledgement asks for the first missing segment only, and gets it.
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
        // The last part was never acknowledged, so the client retransmits it.
        let outcome = client.send(&mut programs, 4_000, &bytes[4_000..]);
        assert_repeated(&outcome, &bytes, 0);
        backend.give(&mut programs, &backend.at(0, 2_500));
        let outcome = client.send(&mut programs, 4_000, &bytes[4_000..]);
        assert_repeated(&outcome, &bytes, 2_500);
        // New data passes as usual.
        let outcome = client.send(&mut programs, 4_500, b"more");
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        assert_eq!(sent(&outcome).payload, b"more");
    }
}

/// 18 KB go to the backend for a packet: not for a stranger's.
#[test]
fn what_is_not_believed_repeats_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(6_000).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, client, &bytes, PART);
        backend.accept(&mut programs);
        let repeated = client.at(5_000).payload(&bytes[5_000..]);
        let far = repeated.ack.wrapping_add(1 << 24);
        let outcome = client.give(&mut programs, &repeated.clone().ack(far));
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        assert_eq!(client.give(&mut programs, &repeated).counted, [(Reason::ConnectRepeated, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

#[test]
fn the_end_of_the_longest_hello_is_repeated_from_where_it_is_missing() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = hello().name(server_name(0)).length(18_432).records_of(40).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, client, &bytes, PART);
        backend.accept(&mut programs);
        for have in [16_383, 16_384, 17_001, 17_999] {
            let outcome = backend.give(&mut programs, &backend.at(0, have));
            assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
            let outcome = backend.give(&mut programs, &backend.at(0, have));
            let mss = if family.is_v4() { 1_448 } else { 1_428 };
            let end = bytes.len().min(have as usize + mss);
            assert_eq!(outcome.counted, [(Reason::ConnectRepeated, 1)]);
            assert_eq!(delivered(&outcome, ISN.wrapping_add(have)), bytes[have as usize..end]);
            let outcome = client.send(&mut programs, 18_000, &bytes[18_000..]);
            assert_eq!(outcome.counted, [(Reason::ConnectRepeated, 1)]);
            assert_eq!(delivered(&outcome, ISN.wrapping_add(have)), bytes[have as usize..]);
        }
        backend.give(&mut programs, &backend.at(0, 18_000));
        assert_settled(&programs, client);
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
                // The client's retransmission passes to the backend again.
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

/// Resets the connection and removes its entries.
fn end(programs: &mut Programs, client: Client, backend: Backend) {
    let order = crate::check::flow_order(programs, client.dial.tuple(), Reason::ExpireRemoved);
    assert_eq!(programs.expire(&order).verdict, 0);
    assert_eq!(client.waiting(programs), None);
    let order = crate::check::flow_order(programs, client.dial.tuple(), Reason::ExpireClosed);
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
        // The client's window scale applies to this field. The unscaled value would announce too much.
        let expected =
            backend.to_backend().seq(behind(ISN, 0)).ack(behind(BACKEND_ISN, 0)).window(again.window >> 7);
        let expected = stamped(expected, CLIENT_TIME, BACKEND_TIME);
        assert_sent(&outcome, Reason::ForwardBackend, &expected);
        // The client retransmits the hello itself.
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
        // The hello was evicted while the daemon was dead, so nothing was reset. The backend sends first.
        let (client, backend, _) = owed(&mut programs, family);
        remove_hello(&mut programs, client.dial.tuple());
        let asks = backend.at(0, 0);
        let outcome = backend.give(&mut programs, &asks);
        // The client repeats nothing that was acknowledged, so it would wait for ever.
        assert_eq!(outcome.counted, [(Reason::HelloBufferFailed, 1)]);
        assert_frame(&outcome.packet, &reset_of(&asks));
        assert_emitted(&outcome, &[(Device::Client, client.refusal())]);
        assert_eq!(client.flow(&programs).unwrap().connection.state, FLOW_RESET);
        let repeats = client.at(4_000).payload(*b"more");
        let outcome = client.give(&mut programs, &repeats);
        assert_sent(&outcome, Reason::ForwardLinger, &reset_of(&repeats));
        order_closed(&mut programs, client);
        // Only the bytes are lost: another client has their slot.
        for from_client in [true, false] {
            let (client, backend, bytes) = owed(&mut programs, family);
            let place = client.waiting(&programs).unwrap().buffers[1];
            let chunk: Buffer = programs.element(name::BUFFERS, place);
            programs.set(name::BUFFERS, place, Buffer { index: 7, ..chunk });
            let to_backend = backend.to_backend().rst().window(0);
            if from_client {
                let repeats = client.at(4_000).payload(&bytes[4_000..]);
                let outcome = client.give(&mut programs, &repeats);
                assert_eq!(outcome.counted, [(Reason::HelloBufferFailed, 1)]);
                assert_frame(&outcome.packet, &reset_of(&repeats));
                let expected = to_backend.seq(behind(ISN, 4_500));
                assert_emitted(&outcome, &[(Device::Backend, expected)]);
            } else {
                let asks = backend.at(0, 0);
                let outcome = backend.give(&mut programs, &asks);
                assert_eq!(outcome.counted, [(Reason::HelloBufferFailed, 1)]);
                assert_frame(&outcome.packet, &reset_of(&asks));
                assert_emitted(&outcome, &[(Device::Client, client.refusal())]);
            }
            assert_eq!(client.flow(&programs).unwrap().connection.state, FLOW_RESET);
            order_closed(&mut programs, client);
        }
    }
}

/// An eviction and the backend's acknowledgement cross: what was evicted had arrived, and nothing is lost.
#[test]
fn bytes_that_gave_way_after_they_arrived_end_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (client, backend, bytes) = owed(&mut programs, family);
        let tuple = client.dial.tuple();
        remove_hello(&mut programs, tuple);
        let acks = backend.at(0, bytes.len() as u32);
        let outcome = backend.give(&mut programs, &acks);
        assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
        let connection = client.flow(&programs).unwrap().connection;
        assert_eq!((connection.state, connection.flags & FLOW_UNDELIVERED), (FLOW_ESTABLISHED, 0));
        // The daemon reads of the eviction late.
        let order =
            Expiry { generation: connection.generation, ..crate::check::order(tuple, Reason::HelloEvicted) };
        assert_eq!(programs.expire(&order).verdict, 1);
        assert_eq!(client.flow(&programs).unwrap().connection.state, FLOW_ESTABLISHED);
        crate::setup::forget_all(&mut programs);
    }
}

/// The hello was evicted, and while its bytes are asked for, another CPU receives the backend's acknowledgement of all of them: the flow
/// was reset on both sides, though nothing was lost.
#[test]
fn bytes_that_arrive_while_they_are_found_to_be_gone_end_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for from_client in [true, false] {
            let mut spared = 0;
            for nth in 1.. {
                let (client, backend, bytes) = owed(&mut programs, family);
                remove_hello(&mut programs, client.dial.tuple());
                let flags_then = client.flow(&programs).unwrap().connection.flags & !FLOW_UNDELIVERED;
                let at = offset_of!(Flow, connection.flags);
                let arrived = Change::write(name::FLOWS, &client.dial.tuple(), at, &flags_then);
                let other = programs.behind_access(&flags(client), nth, &[arrived]).expect("a breakpoint");
                let outcome = match from_client {
                    true => client.give(&mut programs, &client.at(4_000).payload(&bytes[4_000..])),
                    false => backend.give(&mut programs, &backend.at(0, 0)),
                };
                let happened = other.happened();
                drop(other);
                let state = client.flow(&programs).expect("the flow is there").connection.state;
                crate::setup::forget_all(&mut programs);
                let [(reason, 1)] = outcome.counted[..] else { panic!("{:?}", outcome.counted) };
                // It arrived when the flow had ended.
                if state == FLOW_RESET {
                    assert_eq!(reason, Reason::HelloBufferFailed);
                    break;
                }
                assert!(happened, "{family:?}, access {nth}: {reason:?}");
                let busy = if from_client { Reason::HelloBusy } else { Reason::ConnectBusy };
                spared += u32::from(reason == busy);
            }
            assert!(spared > 0, "{family:?}, from the client: {from_client}");
        }
    }
}

/// Expires the flow, as the daemon does.
fn order_closed(programs: &mut Programs, client: Client) {
    let order = crate::check::flow_order(programs, client.dial.tuple(), Reason::ExpireClosed);
    assert_eq!(programs.expire(&order).verdict, 0);
    assert_eq!(client.waiting(programs), None);
}

/// Returns the changes made by a CPU that processes the backend's acknowledgement of all undelivered bytes.
fn settle(programs: &Programs, client: Client) -> Vec<Change> {
    let (tuple, flow) = (client.dial.tuple(), client.flow(programs).expect("it is open"));
    let flags = flow.connection.flags & !FLOW_UNDELIVERED;
    vec![
        Change::write(name::FLOWS, &tuple, offset_of!(Flow, connection.flags), &flags),
        Change::remove(name::PENDING, &tuple),
    ]
}

/// The same, and then a hello of another client takes one of the freed slots.
fn settle_and_take(programs: &Programs, client: Client) -> Vec<Change> {
    let mut changes = settle(programs, client);
    let place = client.waiting(programs).expect("the hello is kept").buffers[1];
    let other = ClientTuple { client_port: common::maps::address::Port::new(1), ..client.dial.tuple() };
    changes.push(Change::write(name::BUFFERS, &place, offset_of!(Buffer, owner), &other));
    changes
}

/// Returns the changes of a CPU that settles what is undelivered while another one holds the record: it marks the record,
/// and the one that holds it removes it.
fn settle_held(programs: &Programs, client: Client) -> Vec<Change> {
    let mut changes = settle(programs, client);
    changes.pop();
    let tuple = client.dial.tuple();
    changes.push(Change::write(name::PENDING, &tuple, offset_of!(Pending, connection.flags), &RECORD_OVER));
    changes
}

/// Does what a CPU does next that marked a record as over when nobody held it: removes it.
fn end_unlocked(programs: &mut Programs, client: Client) {
    if client.waiting(programs).is_some_and(|record| record.connection.flags == RECORD_OVER) {
        programs.expire(&crate::check::order(client.dial.tuple(), Reason::ExpireHello));
    }
}

/// Returns the location of the flag for undelivered bytes.
fn flags(client: Client) -> Place {
    Place::new(name::FLOWS, &client.dial.tuple(), offset_of!(Flow, connection.flags))
}

/// Returns the location of a byte of the hello's entry that is read before the hello's bytes.
fn stored(client: Client) -> Place {
    Place::new(name::PENDING, &client.dial.tuple(), offset_of!(Pending, connection.state))
}

/// Gives one packet with the changes applied after the first access to a byte, then for another connection
/// after the second access, and so on until there is no such access.
fn behind_each_access(
    place: fn(Client) -> Place,
    changes: fn(&Programs, Client) -> Vec<Change>,
    give: fn(&mut Programs, Client, Backend, &[u8]) -> Outcome,
    allowed: &[Reason],
) {
    let mut programs = ready();
    for family in FAMILIES {
        for nth in 1.. {
            let (client, backend, bytes) = owed(&mut programs, family);
            let changes = changes(&programs, client);
            let other = programs.behind_access(&place(client), nth, &changes).expect("the byte is there");
            let outcome = give(&mut programs, client, backend, &bytes);
            let happened = other.happened();
            drop(other);
            if !happened {
                assert!(nth > 1, "{family:?}: nobody looks at it");
                end(&mut programs, client, backend);
                break;
            }
            let state = client.flow(&programs).expect("the flow is there").connection.state;
            assert_eq!(state, FLOW_ESTABLISHED, "{family:?}, access {nth}: {:?}", outcome.counted);
            let [(reason, 1)] = outcome.counted[..] else { panic!("{:?}", outcome.counted) };
            assert!(allowed.contains(&reason), "{family:?}, access {nth}: {reason:?}");
            end_unlocked(&mut programs, client);
            assert_settled(&programs, client);
            end(&mut programs, client, backend);
        }
    }
}

/// Two acknowledgements of the backend on two CPUs: this CPU has seen that bytes are undelivered, then the
/// other settles them, and this one finds no hello. Of 252,891 connections with hellos of 12,000 bytes, 15
/// were reset before the flag was read again.
#[test]
fn an_acknowledgement_passes_when_another_settles_what_is_owed() {
    tests::skip_without_root!();
    let passed = [Reason::ForwardClient];
    behind_each_access(flags, settle, |p, _, backend, _| backend.give(p, &backend.at(0, 4_500)), &passed);
    behind_each_access(flags, settle, |p, _, backend, _| backend.give(p, &backend.at(0, 2_000)), &passed);
    let data = |p: &mut Programs, _, backend: Backend, _: &[u8]| {
        backend.give(p, &backend.at(0, 4_500).payload(*b"hello"))
    };
    behind_each_access(flags, settle, data, &passed);
}

/// The same for a packet that requests the bytes again: it finds them, or finds that nothing is undelivered.
/// Here another client takes one of the slots at once.
#[test]
fn nothing_ends_when_another_settles_what_is_about_to_be_repeated() {
    tests::skip_without_root!();
    let again = |p: &mut Programs, client: Client, _, bytes: &[u8]| client.send(p, 4_000, &bytes[4_000..]);
    for (place, change) in [
        (flags as fn(Client) -> Place, settle_and_take as fn(&Programs, Client) -> Vec<Change>),
        (stored, settle_held),
    ] {
        let allowed = [Reason::ForwardClient, Reason::ForwardChanged, Reason::ConnectRepeated];
        behind_each_access(place, change, |p, _, backend, _| backend.give(p, &backend.at(0, 0)), &allowed);
        let allowed = [Reason::ForwardBackend, Reason::ForwardChanged, Reason::ConnectRepeated];
        behind_each_access(place, change, |p, _, backend, _| backend.give(p, &backend.syn_ack()), &allowed);
        let allowed = [Reason::ForwardBackend, Reason::HelloBeyond, Reason::ConnectRepeated];
        behind_each_access(place, change, again, &allowed);
    }
}

/// The hello is evicted between its look-up and the reads, and its element becomes another client's, of which less was
/// acknowledged. The bytes are lost, and must not seem to be settled.
#[test]
fn what_another_client_was_acknowledged_settles_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for at in [offset_of!(Pending, isn), offset_of!(Pending, acked)] {
            let (client, backend, _) = owed(&mut programs, family);
            let tuple = client.dial.tuple();
            let acked = Change::write(name::PENDING, &tuple, offset_of!(Pending, acked), &1_000u32);
            let changes = [acked, Change::remove(name::PENDING, &tuple)];
            let place = Place::new(name::PENDING, &tuple, at);
            let schedule = programs.behind_access(&place, 1, &changes).expect("a hardware breakpoint");
            let outcome = backend.give(&mut programs, &backend.at(0, 2_000));
            assert!(schedule.happened());
            drop(schedule);
            assert_eq!(outcome.counted, [(Reason::HelloBufferFailed, 1)]);
            assert_eq!(client.flow(&programs).expect("it lingers").connection.state, FLOW_RESET);
            crate::setup::forget_all(&mut programs);
        }
    }
}

/// Another client takes a slot before its bytes are copied, or while they are.
#[test]
fn a_slot_of_another_client_is_not_delivered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for nth in 0..=1 {
            let (client, _, bytes) = owed(&mut programs, family);
            let slot = client.waiting(&programs).expect("the hello is kept").buffers[1];
            let buffer: Buffer = programs.element(name::BUFFERS, slot);
            let other = client.dial.port(1).tuple();
            let place = Place::new(name::BUFFERS, &slot, offset_of!(Buffer, bytes));
            let change = Change::write(name::BUFFERS, &slot, offset_of!(Buffer, owner), &other);
            let schedule = (nth > 0).then(|| programs.behind_access(&place, nth, &[change]));
            let schedule = schedule.transpose().expect("a hardware breakpoint");
            if nth == 0 {
                programs.set(name::BUFFERS, slot, Buffer { owner: other, ..buffer });
            }
            let outcome = client.send(&mut programs, 4_000, &bytes[4_000..]);
            assert!(schedule.is_none_or(|schedule| schedule.happened()));
            assert_eq!(outcome.counted, [(Reason::HelloBufferFailed, 1)]);
            for (_, frame) in &outcome.emitted {
                assert_eq!(tests::packet::Segment::parse(frame).expect("a TCP segment").payload, b"");
            }
            crate::setup::forget_all(&mut programs);
        }
    }
}

/// The properties that the tests above rely on: changes are applied after one access, as long as they wait
/// for it, and a missing element is reported.
#[test]
fn a_schedule_is_made_once_and_tells_what_it_missed() {
    tests::skip_without_root!();
    let mut programs = ready();
    let (client, backend, _) = owed(&mut programs, Family::V4);
    let absent = client.dial.port(1).tuple();
    let missed =
        programs.behind_access(&flags(client), 1, &[Change::remove(name::PENDING, &absent)]).unwrap();
    assert_eq!((missed.accesses(), missed.happened()), (0, false));
    backend.give(&mut programs, &backend.at(0, 1_000));
    let accesses = missed.accesses();
    assert!(accesses >= 2 && !missed.happened(), "{accesses}");
    backend.give(&mut programs, &backend.at(0, 1_001));
    assert_eq!((missed.accesses(), missed.happened()), (2 * accesses, false));
    drop(missed);
    let waiting = client.waiting(&programs);
    drop(programs.behind_access(&flags(client), 1, &settle(&programs, client)).unwrap());
    backend.give(&mut programs, &backend.at(0, 2_000));
    assert!(waiting.is_some() && client.waiting(&programs) == waiting);
    let nowhere = Place::new(name::FLOWS, &absent, 0);
    let error = programs.behind_access(&nowhere, 1, &[]).unwrap_err();
    assert!(format!("{error:#}").contains(name::FLOWS), "{error:#}");
}

/// The client may have started again between the reads of flow and bytes, which are then another tenant's.
#[test]
fn bytes_of_another_connection_are_not_repeated() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (client, backend, bytes) = owed(&mut programs, family);
        let mut pending = client.waiting(&programs).expect("the hello is kept");
        pending.connection.generation += 1;
        programs.insert(name::PENDING, client.dial.tuple(), pending);
        let outcome = client.send(&mut programs, 3_000, &bytes[3_000..]);
        // We acknowledged them to the client, so nobody can send them again.
        assert_eq!(outcome.counted, [(Reason::HelloBufferFailed, 1)]);
        let asks_again = backend.give(&mut programs, &backend.at(0, 1_000));
        assert_eq!(asks_again.counted, [(Reason::ForwardLinger, 1)]);
        for frame in outcome.emitted.iter().chain(&asks_again.emitted) {
            let segment = tests::packet::Segment::parse(&frame.1).expect("a TCP segment");
            assert_eq!(segment.payload, b"");
        }
        assert_eq!(client.waiting(&programs), Some(pending));
        crate::setup::forget_all(&mut programs);
    }
}
