//! Reads that come too late: the element of a map becomes another connection's between two reads of one packet's handling.

use std::mem::offset_of;

use common::maps::address::Port;
use common::maps::event::{EXPIRE_NOTHING, Expiry};
use common::maps::flow::{BackendTuple, FLOW_REMOVED, Flow, Reply};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::icmp::unreachable;
use tests::packet::Segment;
use tests::program::{Outcome, Programs, verdict};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, order};
use crate::icmp::error;
use crate::late::of_another;
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{Client, Offer, dial, ready, usual_hello};
use crate::setup::forget_all;
use crate::undelivered::owed;

/// Makes the flow's record `other`'s right after the nth access to the byte `at` of it, while a packet is handled. `None`: there
/// was no such access.
fn outcome_with(
    programs: &mut Programs,
    open: Open,
    (at, nth): (usize, u32),
    other: &Flow,
    (device, segment): &(Device, Segment),
) -> Option<Outcome> {
    let tuple = open.client.dial.tuple();
    let change = Change::write(name::FLOWS, &tuple, 0, other);
    let place = Place::new(name::FLOWS, &tuple, at);
    let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
    let outcome = programs.ingress(*device, &segment.bytes());
    schedule.happened().then_some(outcome)
}

/// A packet that teaches something and a packet that teaches nothing, from each side, and why it is dropped if its record is
/// another connection's.
fn packets(open: Open) -> [((Device, Segment), Reason); 4] {
    let client = open.client_segment(HELLO, 0);
    let backend = open.backend_segment(0, HELLO);
    [
        ((Device::Client, client.clone().payload([1; 10])), Reason::SynStray),
        ((Device::Client, client), Reason::SynStray),
        ((Device::Backend, backend.clone().payload([1; 10])), Reason::ForwardChanged),
        ((Device::Backend, backend), Reason::ForwardChanged),
    ]
}

/// Words of a flow have half of a generation, which comes again after 65,536 dials. Between the look at the addresses and the
/// numbers, all of it is compared: a CPU may stop there for as long as that takes.
#[test]
fn a_connection_with_the_same_half_of_its_generation_is_another_one() {
    tests::skip_without_root!();
    let mut programs = ready();
    let addressed = offset_of!(Flow, nat) + offset_of!(BackendTuple, source_port);
    for family in FAMILIES {
        for index in 0..4 {
            for nth in 1.. {
                let open = open(&mut programs, family);
                let mut other = open.flow(&programs);
                other.set_generation(other.connection.generation.wrapping_add(1 << 16));
                other.nat.source_port = Port::new(1_025);
                let (packet, reason) = &packets(open)[index];
                let outcome = outcome_with(&mut programs, open, (addressed, nth), &other, packet);
                if let Some(outcome) = &outcome {
                    assert_dropped(outcome, *reason);
                    assert_eq!(open.flow(&programs), other, "{family:?}, access {nth}");
                }
                forget_all(&mut programs);
                if outcome.is_none() {
                    assert!(nth > 1, "nobody looks at the addresses");
                    break;
                }
            }
        }
    }
}

/// Behind that, the numbers that a packet is judged by are read word by word. Once some of them are another connection's, the
/// packet is dropped: the offset that it is translated by is that one's, too.
#[test]
fn no_segment_passes_by_another_connections_numbers() {
    tests::skip_without_root!();
    let mut programs = ready();
    // The first is touched right behind the comparison of the generation, the others in the midst of what is judged by.
    let hops = (offset_of!(Flow, hops), 1);
    let client = (offset_of!(Flow, client.acked), 1);
    let [backend, again] = [1, 2].map(|nth| (offset_of!(Flow, backend.acked), nth));
    let points = [
        (0, hops),
        (0, client),
        (1, hops),
        (1, client),
        (2, hops),
        (2, backend),
        (3, hops),
        (3, backend),
        (3, again),
    ];
    for family in FAMILIES {
        for (index, at) in points {
            let open = open(&mut programs, family);
            let other = of_another(open.flow(&programs));
            let (packet, reason) = &packets(open)[index];
            let outcome = outcome_with(&mut programs, open, at, &other, packet).expect("it is looked at");
            assert_dropped(&outcome, *reason);
            assert_eq!(open.flow(&programs), other, "{family:?}, packet {index}, {at:?}");
            forget_all(&mut programs);
        }
    }
}

/// A flow is removed, and its port is free already, which the same client's next connection has: its record comes into the
/// element of the old one's. What was read of the old one does not decide whether the new one's segment has to be verified.
#[test]
fn a_wrong_checksum_settles_nothing_of_a_flow_that_was_opened_meanwhile() {
    tests::skip_without_root!();
    let mut programs = ready();
    let places = [
        offset_of!(Flow, connection.flags),
        offset_of!(Flow, nat) + offset_of!(BackendTuple, source_port),
        offset_of!(Flow, connection.generation),
    ];
    let mut happened = 0;
    for family in FAMILIES {
        for at in places {
            for nth in 1.. {
                let (client, backend, _) = owed(&mut programs, family);
                let tuple = client.dial.tuple();
                let new = client.flow(&programs).expect("it is open");
                let mut old = new;
                old.set_generation(new.connection.generation.wrapping_sub(1));
                (old.connection.state, old.connection.flags) = (FLOW_REMOVED, 0);
                programs.insert(name::FLOWS, tuple, old);
                let mut frame = backend.at(0, 4_500).payload([1; 10]).bytes();
                *frame.last_mut().expect("it has a payload") ^= 1;
                let change = Change::write(name::FLOWS, &tuple, 0, &new);
                let place = Place::new(name::FLOWS, &tuple, at);
                let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
                let outcome = programs.ingress(Device::Backend, &frame);
                let done = schedule.happened();
                drop(schedule);
                assert_dropped(&outcome, Reason::ParseTcpChecksum);
                let left = if done { new } else { old };
                assert_eq!(client.flow(&programs), Some(left), "{family:?}, access {nth} to {at}");
                assert!(client.waiting(&programs).is_some());
                forget_all(&mut programs);
                if !done {
                    break;
                }
                happened += 1;
            }
        }
    }
    assert!(happened > 0);
}

/// A connection ends between the look-up of the port that an error quotes and the read of what was found: its element is the
/// entry of another connection by then, whose numbers the error fits.
#[test]
fn an_error_does_not_reach_the_connection_that_took_the_quoted_ones_entry() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for nth in 1.. {
            let one = open(&mut programs, family);
            let other = open_with(&mut programs, dial(family).port(40_001), Offer::linux(1460, 9));
            let (key, others) = (one.backend.tuple(), other.backend.tuple());
            let reply: Reply = programs.entry(name::NATS, others).expect("its replies are known");
            programs.remove::<_, Reply>(name::NATS, others);
            let about = one.at_backend(&one.client_segment(0, 0).payload(usual_hello()));
            let frame = error(Device::Backend, unreachable(family), &about, 20).bytes();
            let changes = [Change::remove(name::NATS, &key), Change::insert(name::NATS, &others, &reply)];
            let place = Place::looked_up(name::NATS, &key);
            let schedule = programs.behind_access(&place, nth, &changes).expect("a hardware breakpoint");
            let outcome = programs.ingress(Device::Backend, &frame);
            let happened = schedule.happened();
            drop(schedule);
            forget_all(&mut programs);
            if !happened {
                assert!(nth > 1, "nobody looks it up");
                break;
            }
            // It is about no connection that we have.
            assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
        }
    }
}

/// Our answers to a SYN on an open flow, and to a SYN-ACK that comes again, have the numbers of that flow. If its record becomes
/// another connection's while they are copied, nothing is sent: that one's are nobody else's business.
#[test]
fn no_answer_has_another_connections_numbers() {
    tests::skip_without_root!();
    let mut programs = ready();
    let words = [
        offset_of!(Flow, connection.generation),
        offset_of!(Flow, client.sent),
        offset_of!(Flow, client.acked),
        offset_of!(Flow, backend.sent),
        offset_of!(Flow, backend.acked),
        offset_of!(Flow, seq_delta),
    ];
    let mut happened = 0;
    for family in FAMILIES {
        for (challenged, word) in [true, false].into_iter().flat_map(|which| words.map(|word| (which, word)))
        {
            for nth in 1.. {
                let open = open(&mut programs, family);
                let flow = open.flow(&programs);
                let (client, backend) = (flow.client.acked.number, flow.backend.acked.number);
                let (packet, numbers) = if challenged {
                    let syn = open.client.dial.syn().seq(0x7000_0000);
                    ((Device::Client, syn), (client.wrapping_sub(flow.seq_delta).wrapping_sub(1), backend))
                } else {
                    ((Device::Backend, open.backend.syn_ack_with(open.offer)), (backend, client))
                };
                let outcome = outcome_with(&mut programs, open, (word, nth), &of_another(flow), &packet);
                forget_all(&mut programs);
                let Some(outcome) = outcome else { break };
                happened += 1;
                if outcome.verdict == verdict::REDIRECT {
                    let sent = Segment::parse(&outcome.packet).expect("a TCP segment");
                    assert_eq!((sent.seq, sent.ack), numbers, "{family:?}, access {nth} to {word}: {sent:?}");
                }
            }
        }
    }
    assert!(happened > 20, "{happened}");
}

/// A client whose hello was evicted has sent it again, and the backend accepts between the two look-ups of the order to reset the
/// client: first it waits, then it has a flow, and at no moment it has neither.
#[test]
fn an_order_about_an_evicted_hello_resets_no_connection_that_opens_meanwhile() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let mut flow = open(&mut programs, family).flow(&programs);
        forget_all(&mut programs);
        let clients: Vec<Client> = (41_000..41_060)
            .map(|port| {
                let client = dial(family).port(port).shake(&mut programs);
                client.ask(&mut programs, &usual_hello());
                client
            })
            .collect();
        let tuples: Vec<_> = clients.iter().map(|client| client.dial.tuple()).collect();
        let (tuple, ahead) = programs.chained(name::PENDING, &tuples).expect("a chain of two");
        let client = clients[tuples.iter().position(|other| *other == tuple).expect("one of them")];
        let generation = client.waiting(&programs).expect("it waits").connection.generation;
        flow.set_generation(generation);
        let evicted = Expiry {
            seq: client.cookie.wrapping_add(1),
            generation: generation.wrapping_sub(1),
            ..order(tuple, Reason::HelloEvicted)
        };
        let changes = [Change::insert(name::FLOWS, &tuple, &flow), Change::remove(name::PENDING, &tuple)];
        let place = Place::passed(name::PENDING, &ahead);
        let schedule = programs.behind_access(&place, 1, &changes).expect("a hardware breakpoint");
        let outcome = programs.expire(&evicted);
        assert!(schedule.happened());
        drop(schedule);
        assert_eq!((outcome.verdict, outcome.emitted), (EXPIRE_NOTHING, vec![]));
        assert_eq!(client.flow(&programs), Some(flow));
        forget_all(&mut programs);
    }
}
