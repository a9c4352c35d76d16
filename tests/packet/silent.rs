//! Backends that do not answer: asked again, round and round, until the time limit of the hello.

use std::time::Duration;

use common::maps::backend::{BACKEND_RETIRED, BACKEND_UNREACHABLE};
use common::maps::event::Expiry;
use common::maps::flow::HalfOpen;
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::world::Device;
use userspace::dataplane::read::now_ns;

use crate::check::{assert_sent, order, sent};
use crate::connect::{expected_syn, repeat};
use crate::half_open::{caller, half_open, knock, tcp};
use crate::scene::{Backend, Client, Dial, dial, ready, usual_hello};
use crate::setup::{backend_id, flag_backend, nats, remove_hello, route_counts, with_backends};

/// It got two SYNs, then its client was reset 0.4 s after the hello.
#[test]
fn the_only_backend_is_asked_again_from_the_same_port() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        for _ in 0..20 {
            assert_sent(&repeat(&mut programs, client), Reason::ConnectAgain, &expected_syn(backend));
            assert_eq!(backend.owner(&programs), Some(client.dial.tuple()));
        }
        assert_eq!(route_counts(&programs).1, 0, "nobody is refused");
        assert_eq!(sent(&backend.accept(&mut programs)).payload, usual_hello());
        crate::setup::remove_flow(&mut programs, client.dial.tuple());
    }
}

#[test]
fn silent_backends_are_asked_twice_each_round_and_round() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        with_backends(&mut programs, 3);
        let client = dial(family).shake(&mut programs);
        let mut backend = client.ask(&mut programs, &usual_hello());
        let mut tried = vec![backend.address];
        for _ in 0..8 {
            // The first retransmission sends the same SYN again.
            assert_sent(&repeat(&mut programs, client), Reason::ConnectAgain, &expected_syn(backend));
            // The second one dials another backend; the first backend's port is free.
            let outcome = repeat(&mut programs, client);
            let next = Backend::of(&sent(&outcome));
            assert_sent(&outcome, Reason::ConnectNext, &expected_syn(next));
            assert_eq!(backend.owner(&programs), None);
            assert_eq!(next.owner(&programs), Some(client.dial.tuple()));
            tried.push(next.address);
            backend = next;
        }
        assert_ne!(tried[0], tried[1]);
        assert!(tried[2] != tried[0] && tried[2] != tried[1], "{tried:?}");
        assert_eq!(tried[..6], tried[3..], "{tried:?}");
        assert_eq!(route_counts(&programs), (0, 0, 8));
        backend.accept(&mut programs);
        crate::setup::remove_flow(&mut programs, client.dial.tuple());
    }
}

#[test]
fn a_backend_that_is_alone_usable_is_asked_until_another_one_is() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for flags in [BACKEND_RETIRED, BACKEND_UNREACHABLE] {
            with_backends(&mut programs, 3);
            let client = dial(family).shake(&mut programs);
            let backend = client.ask(&mut programs, &usual_hello());
            let others: Vec<u8> = (0..3)
                .filter(|&index| crate::setup::backend_socket(family, index) != backend.address)
                .collect();
            for &index in &others {
                flag_backend(&mut programs, backend_id(family, index), flags);
            }
            for _ in 0..5 {
                assert_sent(&repeat(&mut programs, client), Reason::ConnectAgain, &expected_syn(backend));
            }
            flag_backend(&mut programs, backend_id(family, others[0]), 0);
            let outcome = repeat(&mut programs, client);
            assert_eq!(outcome.counted, [(Reason::ConnectNext, 1)]);
            assert_ne!(Backend::of(&sent(&outcome)).address, backend.address);
            remove_hello(&mut programs, client.dial.tuple());
        }
    }
}

/// Many members between them may not be dialled.
#[test]
fn two_silent_backends_take_turns_however_far_apart_they_are() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 60);
    for family in FAMILIES {
        for index in (0..60).filter(|index| index % 30 != 0) {
            flag_backend(&mut programs, backend_id(family, index), BACKEND_UNREACHABLE);
        }
        let client = dial(family).shake(&mut programs);
        let mut backend = client.ask(&mut programs, &usual_hello());
        for _ in 0..6 {
            assert_sent(&repeat(&mut programs, client), Reason::ConnectAgain, &expected_syn(backend));
            let outcome = repeat(&mut programs, client);
            let next = Backend::of(&sent(&outcome));
            assert_sent(&outcome, Reason::ConnectNext, &expected_syn(next));
            assert_ne!(next.address, backend.address);
            backend = next;
        }
        // Both refuse: that is the end of the round, and of the connection.
        let outcome = backend.refuse(&mut programs);
        let other = Backend::of(&sent(&outcome));
        assert_eq!(outcome.counted, [(Reason::ConnectNext, 1)]);
        let last = match other.refuse(&mut programs) {
            outcome if outcome.counted == [(Reason::ConnectNext, 1)] => {
                Backend::of(&sent(&outcome)).refuse(&mut programs)
            }
            outcome => outcome,
        };
        assert_sent(&last, Reason::ConnectExhausted, &client.refusal());
    }
}

/// In a round with a silent backend, a refusal goes on to the next one. A round in which all refuse is the last.
#[test]
fn refusals_of_all_end_it_and_refusals_of_some_do_not() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        with_backends(&mut programs, 2);
        let client = dial(family).shake(&mut programs);
        let first = client.ask(&mut programs, &usual_hello());
        repeat(&mut programs, client);
        let second = Backend::of(&sent(&repeat(&mut programs, client)));
        // The second refuses: the silent one gets another SYN at once.
        let outcome = second.refuse(&mut programs);
        let again = Backend::of(&sent(&outcome));
        assert_sent(&outcome, Reason::ConnectNext, &expected_syn(again));
        assert_eq!(again.address, first.address);
        // In this round both refuse.
        let outcome = again.refuse(&mut programs);
        let last = Backend::of(&sent(&outcome));
        assert_eq!(last.address, second.address);
        assert_sent(&last.refuse(&mut programs), Reason::ConnectExhausted, &client.refusal());
        assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![]));
    }
}

#[test]
fn the_only_backend_may_refuse_after_silence() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        for _ in 0..3 {
            repeat(&mut programs, client);
        }
        assert_sent(&backend.refuse(&mut programs), Reason::ConnectExhausted, &client.refusal());
        assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![]));
    }
}

/// Has the client's half-open connection started this long ago.
pub(crate) fn age(programs: &mut Programs, dial: Dial, ago: Duration) {
    let held = half_open(programs, dial).expect("it is half-open");
    let started_ns = now_ns() - ago.as_nanos() as u64;
    programs.insert(name::HALF_OPENS, dial.tuple(), HalfOpen { started_ns, ..held });
}

/// On a TCP listener the client's own SYN is passed on. A backend that left two of them unanswered kept its client until `helloTimeout`,
/// and after that, for the client hashes to it again.
#[test]
fn a_tcp_client_gets_another_backend_when_its_own_left_two_syns_unanswered() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 3);
    for family in FAMILIES {
        let dial = caller(family);
        let first = knock(&mut programs, dial);
        age(&mut programs, dial, Duration::from_millis(1_500));
        assert_eq!(knock(&mut programs, dial), first, "the first repetition");
        age(&mut programs, dial, Duration::from_secs(3));
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let client = Client { dial, cookie: 0, time: 0 }.told(&sent(&outcome));
        // The SYN may be forged: until the client has proved it, its backend may still answer.
        assert_eq!(first.owner(&programs), Some(dial.tuple()));
        let outcome = client.give(&mut programs, &client.at(0));
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let mut backend = Backend::of(&sent(&outcome));
        assert_eq!((half_open(&programs, dial), first.owner(&programs)), (None, None));
        let mut tried = vec![backend.address];
        let again = Expiry {
            generation: client.waiting(&programs).expect("it waits").connection.generation,
            ..order(dial.tuple(), Reason::ConnectAgain)
        };
        for _ in 0..2 {
            assert_eq!(programs.expire(&again).counted, [(Reason::ConnectAgain, 1)]);
            let outcome = programs.expire(&again);
            assert_eq!(outcome.counted, [(Reason::ConnectNext, 1)]);
            backend = Backend::of(&Segment::parse(&outcome.emitted[0].1).expect("a SYN"));
            tried.push(backend.address);
        }
        tried.sort();
        tried.dedup();
        assert_eq!(tried.len(), 3, "all members are asked: {tried:?}");
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ConnectHello, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

/// Its own SYN, with all its options, is worth more than a second dial of the same backend.
#[test]
fn a_tcp_client_keeps_the_only_backend_that_is_usable_and_one_that_has_answered() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let dial = caller(family);
        let long = Duration::from_secs(8);
        let mut programs = tcp(Sizes::default(), 1);
        let backend = knock(&mut programs, dial);
        age(&mut programs, dial, long);
        assert_eq!(knock(&mut programs, dial), backend);
        let mut programs = tcp(Sizes::default(), 3);
        let backend = knock(&mut programs, dial);
        let others: Vec<u8> =
            (0..3).filter(|&index| crate::setup::backend_socket(family, index) != backend.address).collect();
        for &index in &others {
            // Of the TCP listener's route.
            flag_backend(&mut programs, backend_id(family, index), BACKEND_UNREACHABLE);
        }
        age(&mut programs, dial, long);
        assert_eq!(knock(&mut programs, dial), backend);
        flag_backend(&mut programs, backend_id(family, others[0]), 0);
        // Its answer was lost on the path to the client, which repeats its SYN.
        backend.give(&mut programs, &backend.syn_ack());
        age(&mut programs, dial, long);
        assert_eq!(knock(&mut programs, dial), backend);
    }
}

/// Its probe failed meanwhile, and its member is gone from the table.
#[test]
fn a_tcp_client_of_a_silent_backend_that_left_the_table_gets_another_one() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 3);
        let stays = crate::setup::backend_socket(family, 0);
        let caller = |port| caller(family).port(port);
        let (dial, _) = (50_000..)
            .map(|port| (caller(port), knock(&mut programs, caller(port))))
            .find(|(_, backend)| backend.address != stays)
            .expect("most clients hash to others");
        with_backends(&mut programs, 1);
        age(&mut programs, dial, Duration::from_secs(3));
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        let client = Client { dial, cookie: 0, time: 0 }.told(&sent(&outcome));
        assert_eq!(Backend::of(&sent(&client.give(&mut programs, &client.at(0)))).address, stays);
    }
}
