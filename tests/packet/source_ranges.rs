//! Source ranges of listeners and routes: which clients are admitted.

use std::net::IpAddr;

use common::maps::address::Port;
use common::maps::listener::{Listener, ListenerKey};
use common::maps::name;
use common::maps::policy::POLICY_NOBODY;
use common::maps::route::Route;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, server_name, vip};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::buffer::far;
use crate::by_cookie::{counts, crowd};
use crate::check::{assert_dropped, assert_sent, flow_order, reset_of};
use crate::half_open::{TCP_PORT, caller, half_open, knock, opened, tcp};
use crate::open::open_with;
use crate::scene::{Dial, Offer, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, route_counts, with_second_route};

/// The policy of these tests.
pub(crate) const POLICY: u16 = 0x0102;

/// Returns the network of `far(family, 2, _)`, and a host outside of it.
pub(crate) fn admitted(family: Family) -> (IpAddr, u32, IpAddr) {
    let bits = if family.is_v4() { 24 } else { 64 };
    (far(family, 2, 1), bits, far(family, 3, 1))
}

/// Lets the policy admit the hosts `far(family, 2, _)` of both families.
pub(crate) fn admit_far(programs: &mut Programs) {
    for family in FAMILIES {
        let (network, bits, _) = admitted(family);
        programs.policy(POLICY, network, bits);
    }
}

pub(crate) fn listener_policy(programs: &mut Programs, port: u16, policy: u16) {
    for family in FAMILIES {
        let key = ListenerKey { address: vip(family).into(), port: Port::new(port), reserved: [0; 2] };
        let listener: Listener = programs.entry(name::LISTENERS, key).expect("a listener");
        programs.listener(vip(family), port, Listener { policy, ..listener });
    }
}

fn route_policy(programs: &mut Programs, policy: u16) {
    let route: Route = programs.entry(name::ROUTES, 1u32).expect("route 1");
    programs.insert(name::ROUTES, 1u32, Route { policy, ..route });
}

/// Asserts that the SYN gets no answer and leaves nothing.
#[track_caller]
fn assert_unanswered(programs: &mut Programs, dial: Dial) {
    let before = (nats(programs), route_counts(programs));
    let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
    assert_dropped(&outcome, Reason::AdmitSynRange);
    assert!(outcome.emitted.is_empty() && half_open(programs, dial).is_none());
    assert_eq!((nats(programs), route_counts(programs)), before, "no backend is dialled");
}

#[test]
fn a_listener_answers_no_syn_from_outside_its_ranges() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    admit_far(&mut programs);
    listener_policy(&mut programs, TCP_PORT, POLICY);
    for family in FAMILIES {
        let (_, _, outside) = admitted(family);
        assert_unanswered(&mut programs, caller(family).host(outside));
        opened(&mut programs, caller(family).host(far(family, 2, 7)));
        // By cookie, too.
        crowd(&mut programs);
        assert_unanswered(&mut programs, caller(family).host(outside));
        caller(family).host(far(family, 2, 8)).shake(&mut programs);
        programs.set(name::HALF_OPEN_COUNT, 2, 0u32);
        assert_eq!(counts(&programs).1, 0);
    }
    listener_policy(&mut programs, TCP_PORT, 0);
    for family in FAMILIES {
        knock(&mut programs, caller(family).host(admitted(family).2));
    }
}

#[test]
fn a_tls_listener_answers_no_syn_from_outside_its_ranges_and_no_hello() {
    tests::skip_without_root!();
    let mut programs = ready();
    admit_far(&mut programs);
    for family in FAMILIES {
        let (_, _, outside) = admitted(family);
        // Its handshake was before the ranges.
        let early = dial(family).host(outside).port(40_100).shake(&mut programs);
        listener_policy(&mut programs, tests::addresses::TLS_PORT, POLICY);
        assert_dropped(
            &programs.ingress(Device::Client, &dial(family).host(outside).syn().bytes()),
            Reason::AdmitSynRange,
        );
        let outcome = early.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::AdmitSourceRange, &early.refusal());
        assert_eq!(early.waiting(&programs), None);
        open_with(&mut programs, dial(family).host(far(family, 2, 9)), Offer::linux(1460, 9));
        listener_policy(&mut programs, tests::addresses::TLS_PORT, 0);
    }
}

#[test]
fn a_route_refuses_hellos_from_outside_its_ranges_and_the_routes_beside_it_do_not() {
    tests::skip_without_root!();
    let mut programs = ready();
    admit_far(&mut programs);
    with_second_route(&mut programs);
    route_policy(&mut programs, POLICY);
    for family in FAMILIES {
        let (_, _, outside) = admitted(family);
        let (connected, refused, retried) = route_counts(&programs);
        let client = dial(family).host(outside).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::AdmitSourceRange, &client.refusal());
        assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![]));
        assert_eq!(route_counts(&programs), (connected, refused + 1, retried));
        let beside = dial(family).host(outside).port(50_001).shake(&mut programs);
        let hello = tests::hello::hello().name(server_name(1)).length(517).bytes();
        beside.ask(&mut programs, &hello).accept(&mut programs);
        open_with(&mut programs, dial(family).host(far(family, 2, 9)), Offer::linux(1460, 9));
        forget_all(&mut programs);
    }
}

/// Between the write of the route and that of its listener, and where a route's listener has no policy.
#[test]
fn a_route_of_a_tcp_listener_answers_no_syn_from_outside_its_ranges() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    admit_far(&mut programs);
    for family in FAMILIES {
        let (_, _, outside) = admitted(family);
        // By cookie before the ranges.
        crowd(&mut programs);
        let early = caller(family).host(outside).port(40_100).shake(&mut programs);
        programs.set(name::HALF_OPEN_COUNT, 2, 0u32);
        route_policy(&mut programs, POLICY);
        assert_unanswered(&mut programs, caller(family).host(outside));
        let outcome = early.give(&mut programs, &early.at(0));
        assert_sent(&outcome, Reason::AdmitSourceRange, &reset_of(&early.at(0)));
        knock(&mut programs, caller(family).host(far(family, 2, 7)));
        route_policy(&mut programs, 0);
    }
}

/// Stored addresses of IPv4 are addresses of IPv6, too.
#[test]
fn ranges_hold_addresses_of_their_own_family_alone() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for (family, other) in [(FAMILIES[0], FAMILIES[1]), (FAMILIES[1], FAMILIES[0])] {
        let all: IpAddr = if family.is_v4() { [0; 4].into() } else { [0u8; 16].into() };
        let policy = POLICY + if family.is_v4() { 1 } else { 2 };
        programs.policy(policy, all, 0);
        listener_policy(&mut programs, TCP_PORT, policy);
        knock(&mut programs, caller(family).port(41_000));
        assert_unanswered(&mut programs, caller(other).port(41_001));
    }
}

#[test]
fn a_policy_without_ranges_admits_nobody() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    admit_far(&mut programs);
    for policy in [POLICY_NOBODY, POLICY + 1, POLICY - 1, 1] {
        listener_policy(&mut programs, TCP_PORT, policy);
        for family in FAMILIES {
            assert_unanswered(&mut programs, caller(family).host(far(family, 2, 7)));
        }
    }
}

/// The daemon orders it when ranges change.
#[test]
fn a_flow_that_is_no_longer_admitted_is_reset_on_both_sides() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open_with(&mut programs, dial(family), Offer::linux(1460, 9));
        let outcome =
            programs.expire(&flow_order(&programs, open.client.dial.tuple(), Reason::ExpireRefused));
        assert_eq!(outcome.counted, [(Reason::ExpireRefused, 1)]);
        assert_eq!(outcome.emitted.len(), 2, "both ends");
        let late = open.client_segment(0, 0).payload(*b"late");
        assert_eq!(open.client.give(&mut programs, &late).counted, [(Reason::ForwardLinger, 1)]);
    }
}
