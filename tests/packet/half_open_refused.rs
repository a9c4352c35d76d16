//! TCP listeners: connections that do not open.

use common::decide::source_port;
use common::maps::backend::BACKEND_RETIRED;
use common::maps::name;
use common::maps::settings::Settings;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::compare::assert_frame;
use tests::fill::default_settings;
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::by_cookie::clear_counts;
use crate::check::{assert_emitted, assert_handed_on, assert_sent, reset_of};
use crate::half_open::{caller, from_client, half_open, knock, opened, tcp};
use crate::scene::{BACKEND_ISN, ISN, behind};
use crate::setup::{backend_id, flag_backend, nats, route_counts, with_backends};

#[test]
fn without_a_port_the_client_is_refused() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let (_, refused, _) = route_counts(&programs);
        let settings = default_settings(Sizes::default());
        programs.settings(Settings { source_port_first: 2_000, source_port_last: 2_000, ..settings });
        assert_eq!(nats(&programs), []);
        let held = knock(&mut programs, dial);
        let second = dial.port(40_001);
        let searches = |programs: &Programs| -> u64 {
            programs.element(name::PORT_CURSORS, source_port::position(&held.tuple()).cursor)
        };
        let before = searches(&programs);
        let outcome = programs.ingress(Device::Client, &second.syn().bytes());
        assert_sent(&outcome, Reason::ConnectNoPort, &reset_of(&second.syn()));
        assert_eq!(searches(&programs), before + 1, "one search for a port");
        assert_eq!(nats(&programs), [(held.tuple(), dial.tuple())]);
        assert_eq!(route_counts(&programs).1, refused + 1);
        held.refuse(&mut programs);
    }
}

#[test]
fn without_a_backend_the_client_is_refused() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let dial = caller(family);
        with_backends(&mut programs, 1);
        flag_backend(&mut programs, backend_id(family, 0), BACKEND_RETIRED);
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_sent(&outcome, Reason::PickNone, &reset_of(&dial.syn()));
        let only = programs.backend(1, crate::setup::backend_address(other, 0));
        programs.route(1, &[(1, only)]);
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_sent(&outcome, Reason::PickNoFamily, &reset_of(&dial.syn()));
        assert_eq!(nats(&programs), []);
    }
}

#[test]
fn a_backend_removed_or_a_full_table_resets_both_sides_at_the_clients_ack() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes { flows: 1, ..Sizes::default() }, 1);
    for family in FAMILIES {
        with_backends(&mut programs, 1);
        let first = caller(family).port(50_000);
        opened(&mut programs, first);
        for reason in [Reason::ConnectTableFull, Reason::ConnectRetired] {
            let dial = caller(family);
            let backend = knock(&mut programs, dial);
            backend.give(&mut programs, &backend.syn_ack());
            if reason == Reason::ConnectRetired {
                crate::setup::remove_flow(&mut programs, first.tuple());
                flag_backend(&mut programs, backend_id(family, 0), BACKEND_RETIRED);
            }
            let ack = from_client(dial, 0, 0);
            let outcome = programs.ingress(Device::Client, &ack.bytes());
            assert_eq!(outcome.counted, [(reason, 1)]);
            assert_frame(&outcome.packet, &reset_of(&ack));
            let to_backend = backend.to_backend().rst().seq(behind(ISN, 0)).window(0);
            assert_emitted(&outcome, &[(Device::Backend, to_backend)]);
            assert_eq!((half_open(&programs, dial), backend.owner(&programs)), (None, None));
        }
    }
}

#[test]
fn only_an_acknowledgement_of_the_backends_syn_ack_opens_the_flow() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        let good = from_client(dial, 0, 0);
        let assert_refused = |programs: &mut Programs, segment: &Segment| {
            let outcome = programs.ingress(Device::Client, &segment.bytes());
            assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(segment));
            assert!(half_open(programs, dial).is_some(), "it goes on waiting");
        };
        // Before the backend has answered, no acknowledgement number is right.
        assert_refused(&mut programs, &good);
        backend.give(&mut programs, &backend.syn_ack());
        assert_refused(&mut programs, &good.clone().ack(BACKEND_ISN));
        assert_refused(&mut programs, &good.clone().seq(ISN));
        let outcome = programs.ingress(Device::Client, &good.bytes());
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
    }
}

/// The node may have another connection on the port. Its data was replaced by our SYN, and its RST reached our client.
#[test]
fn what_does_not_answer_the_syn_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        let theirs = backend.segment().seq(77).ack(behind(ISN, 50_000));
        for other in [
            backend.segment().rst().seq(9),
            backend.segment().rst().ack(behind(ISN, 1)),
            theirs.clone().payload(*b"theirs"),
            theirs.fin(),
        ] {
            assert_handed_on(&backend.give(&mut programs, &other), &other.bytes(), Reason::ConnectStray);
            assert!(half_open(&programs, dial).is_some());
        }
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
        crate::setup::forget_all(&mut programs);
    }
}

/// A slot whose connection is past its time limit is taken by the next one, without a daemon.
#[test]
fn half_open_connections_that_are_over_give_way() {
    tests::skip_without_root!();
    let sizes = Sizes { hellos: 64, ..Sizes::default() };
    for family in FAMILIES {
        let mut programs = tcp(sizes, 1);
        for port in 40_000..40_004 {
            knock(&mut programs, caller(family).port(port));
        }
        // One round through the ring of slots.
        programs.settings(Settings {
            hello_timeout_ns: 50_000_000,
            half_opens: 4,
            ..default_settings(sizes)
        });
        clear_counts(&mut programs);
        std::thread::sleep(std::time::Duration::from_millis(60));
        knock(&mut programs, caller(family).port(50_000));
        assert_eq!(nats(&programs).len(), 4);
    }
}
