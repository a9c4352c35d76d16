//! An old connection at the backend on our four-tuple. It may be alive: the node masquerades others' connections with ports
//! that the programs do not see. Ours takes another port, and the old one keeps its packets.

use common::maps::flow::{ClientTuple, Flow, PENDING_CONNECTING, Reply};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::packet::flag;
use tests::program::{Programs, Sizes};

use crate::check::{assert_dropped, assert_handed_on, assert_sent, sent};
use crate::connect::{expected_syn, repeat};
use crate::half_open::{caller, knock, tcp};
use crate::open::open;
use crate::ports::ports;
use crate::scene::{Backend, ISN, behind, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, with_backends};

/// Returns the number of flows, those that are over included.
fn flows(programs: &Programs) -> usize {
    programs.entries::<ClientTuple, Flow>(name::FLOWS).len()
}

/// The most ports given up for one segment of the client.
const MOVES: usize = 8;

#[test]
fn an_old_connection_in_the_way_means_another_port_and_no_reset() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let first = client.ask(&mut programs, &usual_hello());
        let generation = client.waiting(&programs).unwrap().connection.generation;
        // What a backend answers to a SYN on an open connection (RFC 5961 section 4), or in TIME_WAIT.
        let outcome = first.give(&mut programs, &first.at(500, 7_000));
        let second = Backend::of(&sent(&outcome));
        assert_ne!(second.source.port(), first.source.port());
        assert_eq!((second.address, second.source.ip()), (first.address, first.source.ip()));
        assert_sent(&outcome, Reason::ConnectOld, &expected_syn(second));
        assert_eq!(nats(&programs), [(second.tuple(), client.dial.tuple())]);
        let waiting = client.waiting(&programs).unwrap();
        assert_eq!((waiting.nat, waiting.connection.state), (second.tuple(), PENDING_CONNECTING));
        assert_eq!(waiting.connection.generation, generation);
        // The rest is for the node, which may have the old connection.
        for late in [first.at(500, 7_000), first.at(500, 7_000).payload(*b"theirs"), first.at(0, 9).rst()] {
            assert_handed_on(&first.give(&mut programs, &late), &late.bytes(), Reason::ClassifyOwnTraffic);
        }
        second.accept(&mut programs);
        assert_eq!(client.flow(&programs).unwrap().nat, second.tuple());
        assert_eq!(nats(&programs), [(second.tuple(), client.dial.tuple())]);
        forget_all(&mut programs);
    }
}

#[test]
fn what_does_not_answer_our_syn_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let before = client.waiting(&programs);
        for other in [
            backend.at(500, 7_000).payload(*b"theirs"),
            backend.at(500, 7_000).flags(flag::FIN),
            backend.syn_ack().ack(behind(ISN, 1)),
            backend.segment().syn(7_000),
            backend.at(0, 9).rst(),
            backend.segment().rst(),
        ] {
            assert_handed_on(&backend.give(&mut programs, &other), &other.bytes(), Reason::ConnectStray);
        }
        assert_eq!(client.waiting(&programs), before);
        backend.accept(&mut programs);
    }
}

/// A flow that is over keeps its port for ten seconds, in which conntrack may give it to another connection. Its SYN-ACK was passed
/// to our client, which answered with RST, or was reset here.
#[test]
fn another_connection_on_the_port_of_one_that_is_over_gets_its_answer() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for closed in [true, false] {
            let open = open(&mut programs, family);
            match closed {
                true => open.close(&mut programs),
                false => open.reset(&mut programs),
            }
            let theirs = open.backend_segment(0, 0).syn(77_000).flags(flag::SYN | flag::ACK).ack(9_000);
            assert_handed_on(
                &open.backend.give(&mut programs, &theirs),
                &theirs.bytes(),
                Reason::ConnectStray,
            );
            assert_eq!((flows(&programs), nats(&programs).len()), (0, 0), "{family:?}");
            let data = theirs.clone().flags(flag::ACK).payload(*b"theirs");
            assert_handed_on(
                &open.backend.give(&mut programs, &data),
                &data.bytes(),
                Reason::ClassifyOwnTraffic,
            );
        }
        // On an open one it may be a stranger's.
        let open = open(&mut programs, family);
        let forged = open.backend_segment(0, 0).syn(77_000).flags(flag::SYN | flag::ACK).ack(9_000);
        assert_eq!(open.backend.give(&mut programs, &forged).counted, [(Reason::ForwardClient, 1)]);
        assert_eq!(flows(&programs), 1);
        forget_all(&mut programs);
    }
}

/// Of two SYNs the second may arrive first, and the backend answers the other one by a bare acknowledgement. We took it for an
/// old connection's, moved to another port, and left half a connection behind.
#[test]
fn a_bare_acknowledgement_of_our_syn_changes_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let before = client.waiting(&programs);
        let late = backend.at(1, 0);
        for late in [late.clone(), late.clone().payload(*b"early"), late.flags(flag::FIN | flag::ACK)] {
            assert_dropped(&backend.give(&mut programs, &late), Reason::ConnectIgnored);
        }
        assert_eq!(client.waiting(&programs), before);
        backend.accept(&mut programs);
        assert_eq!(client.flow(&programs).unwrap().nat, backend.tuple());
        forget_all(&mut programs);
    }
}

/// A bare ACK is easily forged by anyone who knows the port.
#[test]
fn forged_acks_cost_a_few_ports_for_each_segment_of_the_client() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 1);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let mut backend = client.ask(&mut programs, &usual_hello());
        for again in [true, false] {
            for _ in 0..MOVES {
                let outcome = backend.give(&mut programs, &backend.at(500, 7_000));
                assert_eq!(outcome.counted, [(Reason::ConnectOld, 1)]);
                backend = Backend::of(&sent(&outcome));
            }
            let more = backend.at(500, 7_000);
            assert_handed_on(&backend.give(&mut programs, &more), &more.bytes(), Reason::ConnectStray);
            assert_eq!(nats(&programs), [(backend.tuple(), client.dial.tuple())]);
            if again {
                // The last port stays, and the client's repetition asks there again.
                let outcome = repeat(&mut programs, client);
                assert_sent(&outcome, Reason::ConnectAgain, &expected_syn(backend));
            }
        }
        backend.accept(&mut programs);
        forget_all(&mut programs);
    }
}

#[test]
fn where_no_other_port_is_free_the_connection_keeps_its_own() {
    tests::skip_without_root!();
    let mut programs = ready();
    programs.settings(ports(2_000, 2_000));
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let old = backend.at(500, 7_000);
        assert_handed_on(&backend.give(&mut programs, &old), &old.bytes(), Reason::ConnectStray);
        assert_sent(&repeat(&mut programs, client), Reason::ConnectAgain, &expected_syn(backend));
        backend.accept(&mut programs);
        forget_all(&mut programs);
    }
}

/// One CPU has found the reply's connection when another one gives the port up.
#[test]
fn a_segment_that_meets_a_port_just_given_up_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let first = client.ask(&mut programs, &usual_hello());
        let reply: Reply = programs.entry(name::NATS, first.tuple()).unwrap();
        let second = Backend::of(&sent(&first.give(&mut programs, &first.at(500, 7_000))));
        programs.insert(name::NATS, first.tuple(), reply);
        for late in [first.at(500, 7_000), first.syn_ack(), first.at(500, 7_000).payload(*b"theirs")] {
            let outcome = first.give(&mut programs, &late);
            assert_handed_on(&outcome, &late.bytes(), Reason::ClassifyOwnTraffic);
        }
        second.accept(&mut programs);
        forget_all(&mut programs);
    }
}

/// The same on a TCP listener: the late segments were answered with RST, which ended the other connection.
#[test]
fn a_segment_that_meets_a_tcp_listeners_port_just_given_up_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let first = knock(&mut programs, dial);
        let reply: Reply = programs.entry(name::NATS, first.tuple()).unwrap();
        let old = first.at(500, 7_000);
        let second = Backend::of(&sent(&first.give(&mut programs, &old)));
        programs.insert(name::NATS, first.tuple(), reply);
        for late in [old.clone(), first.syn_ack(), old.payload(*b"theirs")] {
            let outcome = first.give(&mut programs, &late);
            assert_handed_on(&outcome, &late.bytes(), Reason::ClassifyOwnTraffic);
        }
        assert_eq!(second.give(&mut programs, &second.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
        forget_all(&mut programs);
    }
}
