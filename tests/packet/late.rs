//! A write that comes too late: while a packet of a flow is handled, its record becomes another connection's.

use std::mem::offset_of;

use common::maps::address::Port;
use common::maps::event::{Expiry, PROBE_BOTH};
use common::maps::flow::{FLOW_UNDELIVERED, Flow};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::packet::{Segment, flag};
use tests::program::Programs;
use tests::schedule::{Change, Place};
use tests::world::{Device, HOP_AGE};

use crate::check::order;
use crate::open::{HELLO, Open, open};
use crate::scene::ready;

/// What every packet may write in a record.
const WORDS: [usize; 7] = [
    offset_of!(Flow, connection.state),
    offset_of!(Flow, client.sent),
    offset_of!(Flow, client.acked),
    offset_of!(Flow, backend.sent),
    offset_of!(Flow, backend.acked),
    offset_of!(Flow, syn),
    offset_of!(Flow, hops),
];

/// The record as another connection has it, which is open and has other numbers.
pub(crate) fn of_another(flow: Flow) -> Flow {
    let mut other = flow;
    other.set_generation(flow.connection.generation.wrapping_add(1));
    for end in [&mut other.client, &mut other.backend] {
        end.sent.next = end.sent.next.wrapping_add(0x4000_0000);
        end.acked.number = end.acked.number.wrapping_add(0x4000_0000);
    }
    other
}

/// Opens a connection, and makes its record another's right after the nth access to each word, while `packet` is
/// handled. The other connection must find its record as it was, but for the time of its last packet.
#[track_caller]
fn assert_untouched(
    programs: &mut Programs,
    prepare: fn(&mut Programs, Open),
    packet: fn(Open) -> (Device, Segment),
) {
    let mut happened = 0;
    for family in FAMILIES {
        for word in WORDS {
            for nth in 1.. {
                let open = open(programs, family);
                prepare(programs, open);
                let tuple = open.client.dial.tuple();
                let other = of_another(open.flow(programs));
                let (device, segment) = packet(open);
                let bytes = segment.bytes();
                if word == offset_of!(Flow, hops) {
                    // So that the packet looks up its next hop.
                    std::thread::sleep(HOP_AGE);
                }
                let place = Place::new(name::FLOWS, &tuple, word);
                let change = Change::write(name::FLOWS, &tuple, 0, &other);
                let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
                programs.ingress(device, &bytes);
                let done = schedule.happened();
                drop(schedule);
                if done {
                    happened += 1;
                    let found = open.flow(programs);
                    let other = Flow { seen_secs: found.seen_secs, ..other };
                    assert_eq!(found, other, "{family:?}, access {nth} to the word at {word}");
                }
                crate::setup::forget_all(programs);
                if !done {
                    break;
                }
            }
        }
    }
    assert!(happened > 4, "{happened}");
}

/// No order is carried out on another connection either, and nothing of it is sent anywhere.
#[test]
fn no_order_reaches_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let orders = [(Reason::ExpireRemoved, 0), (Reason::ExpireProbe, PROBE_BOTH)];
    for family in FAMILIES {
        for (reason, seq) in orders {
            for word in WORDS.into_iter().chain([offset_of!(Flow, nat)]) {
                for nth in 1.. {
                    let open = open(&mut programs, family);
                    let tuple = open.client.dial.tuple();
                    let flow = open.flow(&programs);
                    let mut other = of_another(flow);
                    other.nat.source_port = Port::new(1_025);
                    let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
                    let order = Expiry { generation, seen_secs, seq, ..order(tuple, reason) };
                    let place = Place::new(name::FLOWS, &tuple, word);
                    let change = Change::write(name::FLOWS, &tuple, 0, &other);
                    let schedule =
                        programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
                    let outcome = programs.expire(&order);
                    let happened = schedule.happened();
                    drop(schedule);
                    if happened {
                        let found = open.flow(&programs);
                        let expected = Flow { seen_secs: found.seen_secs, ..other };
                        assert_eq!(found, expected, "{reason:?}, access {nth} to the word at {word}");
                    }
                    for (_, frame) in &outcome.emitted {
                        let sent = Segment::parse(frame).expect("a TCP segment");
                        assert!(
                            sent.from.port() != 1_025,
                            "{reason:?}, access {nth} to the word at {word}: {sent:?}"
                        );
                    }
                    crate::setup::forget_all(&mut programs);
                    if !happened {
                        break;
                    }
                }
            }
        }
    }
}

const fn nothing(_: &mut Programs, _: Open) {}

#[test]
fn no_segment_teaches_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let data = |open: Open| (Device::Client, open.client_segment(HELLO, 0).payload([1; 10]).window(9_999));
    assert_untouched(&mut programs, nothing, data);
    let data = |open: Open| (Device::Backend, open.backend_segment(0, HELLO).payload([1; 10]).window(9_999));
    assert_untouched(&mut programs, nothing, data);
}

#[test]
fn no_end_ends_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let closing = |programs: &mut Programs, open: Open| {
        open.pass_to_backend(programs, &open.client_segment(HELLO, 0).fin());
        open.pass_to_client(programs, &open.backend_segment(0, HELLO + 1).fin());
    };
    let last = |open: Open| (Device::Client, open.client_segment(HELLO + 1, 1));
    assert_untouched(&mut programs, closing, last);
    let acked = |programs: &mut Programs, open: Open| {
        open.pass_to_client(programs, &open.backend_segment(0, HELLO).payload([1; 10]));
    };
    let exact = |open: Open| (Device::Client, open.client_segment(HELLO, 0).flags(flag::RST));
    assert_untouched(&mut programs, acked, exact);
    let ahead = |open: Open| (Device::Backend, open.backend_segment(10, HELLO).flags(flag::RST));
    assert_untouched(&mut programs, acked, ahead);
}

#[test]
fn no_syn_marks_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let syn = |open: Open| (Device::Client, open.client.dial.syn().seq(0x7000_0000));
    assert_untouched(&mut programs, nothing, syn);
    let again = |programs: &mut Programs, open: Open| {
        open.client.give(programs, &open.client.dial.syn().seq(0x7000_0000));
        open.age_syn(programs);
    };
    assert_untouched(&mut programs, again, syn);
}

#[test]
fn no_acknowledgement_settles_another_connections_bytes() {
    tests::skip_without_root!();
    let mut programs = ready();
    let owing = |programs: &mut Programs, open: Open| {
        let mut flow = open.flow(programs);
        flow.connection.flags |= FLOW_UNDELIVERED;
        programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
    };
    let ack = |open: Open| (Device::Backend, open.backend_segment(0, HELLO));
    assert_untouched(&mut programs, owing, ack);
}
