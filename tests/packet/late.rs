//! A write that comes too late: while a packet of a flow is handled, its record becomes another connection's.

use std::mem::offset_of;

use common::maps::address::Port;
use common::maps::event::{Expiry, PROBE_BOTH, PROBE_HELD};
use common::maps::flow::{
    FLOW_BACKEND_ON_TRIAL, FLOW_CLIENT_ON_TRIAL, FLOW_ENDING, FLOW_FRAGMENTED, FLOW_PROBED, FLOW_SYN_SEEN,
    FLOW_UNDELIVERED, Flow,
};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::icmp::too_big;
use tests::packet::{self, Segment};
use tests::program::Programs;
use tests::schedule::{Change, Place};
use tests::world::{Device, HOP_AGE};

use crate::check::order;
use crate::icmp::error;
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
    packet: fn(Open) -> (Device, Vec<u8>),
) {
    let mut happened = 0;
    for family in FAMILIES {
        for word in WORDS {
            for nth in 1.. {
                let open = open(programs, family);
                prepare(programs, open);
                let tuple = open.client.dial.tuple();
                let other = of_another(open.flow(programs));
                let (device, bytes) = packet(open);
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

/// Gives the flow these flags.
fn flag(programs: &mut Programs, open: Open, flags: u8) -> Flow {
    let mut flow = open.flow(programs);
    flow.connection.flags |= flags;
    programs.insert(name::FLOWS, open.client.dial.tuple(), flow);
    flow
}

/// No order is carried out on another connection either, and nothing of it is sent anywhere. The other connection has the same flags, and
/// its last packet came in the same second.
#[test]
fn no_order_reaches_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let orders = [
        (Reason::ExpireRemoved, 0),
        (Reason::ExpireIdle, 0),
        (Reason::ExpireHeld, 0),
        (Reason::ExpireCrowded, 0),
        (Reason::ExpireTrial, 0),
        (Reason::ExpireProbe, 0),
        (Reason::ExpireProbe, PROBE_BOTH),
        (Reason::ExpireProbe, PROBE_HELD),
    ];
    for family in FAMILIES {
        for (reason, kind) in orders {
            let mut reached = 0;
            for word in WORDS.into_iter().chain([offset_of!(Flow, nat)]) {
                for nth in 1.. {
                    let open = open(&mut programs, family);
                    let tuple = open.client.dial.tuple();
                    let on_trial = match reason {
                        Reason::ExpireTrial => FLOW_BACKEND_ON_TRIAL | FLOW_PROBED,
                        Reason::ExpireProbe if kind == 0 => FLOW_BACKEND_ON_TRIAL,
                        _ => 0,
                    };
                    let flow = flag(&mut programs, open, on_trial);
                    let mut other = of_another(flow);
                    other.nat.source_port = Port::new(1_025);
                    let (generation, seen_secs) = (flow.connection.generation, flow.seen_secs);
                    let progress = flow.client.acked.number.wrapping_add(flow.backend.acked.number);
                    let is_held = matches!(reason, Reason::ExpireHeld | Reason::ExpireCrowded);
                    let seq = if is_held { progress } else { kind };
                    let order = Expiry { generation, seen_secs, seq, ..order(tuple, reason) };
                    let place = Place::new(name::FLOWS, &tuple, word);
                    let change = Change::write(name::FLOWS, &tuple, 0, &other);
                    let schedule =
                        programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
                    let outcome = programs.expire(&order);
                    let happened = schedule.happened();
                    drop(schedule);
                    if happened {
                        reached += 1;
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
            assert!(reached > 4, "{family:?}, {reason:?}, {kind}: {reached}");
        }
    }
}

const fn nothing(_: &mut Programs, _: Open) {}

#[test]
fn no_segment_teaches_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let data =
        |open: Open| (Device::Client, open.client_segment(HELLO, 0).payload([1; 10]).window(9_999).bytes());
    assert_untouched(&mut programs, nothing, data);
    let data =
        |open: Open| (Device::Backend, open.backend_segment(0, HELLO).payload([1; 10]).window(9_999).bytes());
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
    let last = |open: Open| (Device::Client, open.client_segment(HELLO + 1, 1).bytes());
    assert_untouched(&mut programs, closing, last);
    let acked = |programs: &mut Programs, open: Open| {
        open.pass_to_client(programs, &open.backend_segment(0, HELLO).payload([1; 10]));
    };
    let exact = |open: Open| (Device::Client, open.client_segment(HELLO, 0).flags(packet::flag::RST).bytes());
    assert_untouched(&mut programs, acked, exact);
    let ahead =
        |open: Open| (Device::Backend, open.backend_segment(10, HELLO).flags(packet::flag::RST).bytes());
    assert_untouched(&mut programs, acked, ahead);
}

#[test]
fn no_syn_marks_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let syn = |open: Open| (Device::Client, open.client.dial.syn().seq(0x7000_0000).bytes());
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
        flag(programs, open, FLOW_UNDELIVERED);
    };
    let ack = |open: Open| (Device::Backend, open.backend_segment(0, HELLO).bytes());
    assert_untouched(&mut programs, owing, ack);
}

#[test]
fn no_answer_acquits_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let asked = |programs: &mut Programs, open: Open| {
        flag(programs, open, FLOW_CLIENT_ON_TRIAL | FLOW_BACKEND_ON_TRIAL | FLOW_PROBED | FLOW_ENDING);
    };
    let client = |open: Open| (Device::Client, open.client_segment(HELLO, 0).bytes());
    assert_untouched(&mut programs, asked, client);
    let backend = |open: Open| (Device::Backend, open.backend_segment(0, HELLO).bytes());
    assert_untouched(&mut programs, asked, backend);
}

#[test]
fn no_wrong_cookie_is_counted_for_another_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let seen = |programs: &mut Programs, open: Open| {
        flag(programs, open, FLOW_SYN_SEEN);
    };
    let guess = |open: Open| (Device::Client, open.client_segment(HELLO, 0x1234_5678).bytes());
    let open = open(&mut programs, FAMILIES[0]);
    seen(&mut programs, open);
    programs.ingress(Device::Client, &guess(open).1);
    assert_eq!(open.flow(&programs).connection.wrong_cookies, 1, "the guess is counted");
    crate::setup::forget_all(&mut programs);
    assert_untouched(&mut programs, seen, guess);
}

#[test]
fn no_error_makes_another_connections_way_narrow() {
    tests::skip_without_root!();
    let mut programs = ready();
    let narrow = |open: Open| {
        let about = open.at_client(&open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]));
        let kind = too_big(open.client.dial.family);
        (Device::Client, error(Device::Client, kind, &about, 20).bytes())
    };
    let open = open(&mut programs, FAMILIES[0]);
    programs.ingress(Device::Client, &narrow(open).1);
    assert_eq!(open.flow(&programs).connection.flags, FLOW_FRAGMENTED, "the error is believed");
    crate::setup::forget_all(&mut programs);
    assert_untouched(&mut programs, nothing, narrow);
}
