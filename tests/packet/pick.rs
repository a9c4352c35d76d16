//! Choosing a backend of the route.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use common::maps::backend::{BACKEND_REFUSING, BACKEND_RETIRED, BACKEND_UNREACHABLE, Backend as Member};
use common::maps::name;
use common::maps::route::Route;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::program::Programs;

use crate::check::assert_sent;
use crate::scene::{dial, ready, usual_hello};
use crate::setup::{
    backend_address, backend_id, backend_socket, flag_backend, nats, route_counts, with_backends,
};

/// Returns the backend that a client on this port gets; the client then resets the connection.
#[track_caller]
fn picked(programs: &mut Programs, family: Family, port: u16) -> SocketAddr {
    let client = dial(family).port(port).shake(programs);
    let backend = client.ask(programs, &usual_hello());
    let reset = client.at(usual_hello().len() as u32).rst();
    assert_eq!(client.give(programs, &reset).counted, [(Reason::HelloReset, 1)]);
    backend.address
}

/// Asserts that a client is refused for this reason, and that the route counts it.
#[track_caller]
fn assert_refused(programs: &mut Programs, family: Family, reason: Reason) {
    let (connected, refused, retried) = route_counts(programs);
    let client = dial(family).shake(programs);
    let outcome = client.send(programs, 0, &usual_hello());
    assert_sent(&outcome, reason, &client.refusal());
    assert_eq!(client.waiting(programs), None);
    assert_eq!(nats(programs), []);
    assert_eq!(route_counts(programs), (connected, refused + 1, retried));
}

#[test]
fn clients_spread_over_backends_and_a_port_keeps_its_own() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    for family in FAMILIES {
        let mut used: BTreeMap<SocketAddr, u32> = BTreeMap::new();
        for port in 40_000..40_060 {
            let backend = picked(&mut programs, family, port);
            *used.entry(backend).or_default() += 1;
            assert_eq!(picked(&mut programs, family, port), backend);
        }
        let expected = [backend_socket(family, 0), backend_socket(family, 1)];
        assert!(used.keys().copied().eq(expected), "{used:?}");
        // 60 fair coin tosses show one side fewer than ten times in one of 10^7 runs; ours are the same in
        // every run.
        assert!(used.values().all(|count| *count >= 10), "{used:?}");
    }
}

#[test]
fn one_backend_takes_all() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for port in 40_000..40_010 {
            assert_eq!(picked(&mut programs, family, port), backend_socket(family, 0));
        }
    }
}

#[test]
fn backends_retired_or_unreachable_are_passed_over() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 3);
    for family in FAMILIES {
        flag_backend(&mut programs, backend_id(family, 0), BACKEND_RETIRED);
        flag_backend(&mut programs, backend_id(family, 2), BACKEND_UNREACHABLE);
        for port in 40_000..40_020 {
            assert_eq!(picked(&mut programs, family, port), backend_socket(family, 1));
        }
    }
}

/// Gateway API: the share of a backendRef that leads nowhere is refused, not spread over the others.
#[test]
fn the_share_of_a_refusing_member_is_refused() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    for family in FAMILIES {
        flag_backend(&mut programs, backend_id(family, 0), BACKEND_REFUSING);
        let (mut refused, mut taken) = (0, 0);
        for port in 40_000..40_060 {
            let client = dial(family).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello());
            if outcome.counted.contains(&(Reason::PickRefused, 1)) {
                assert_sent(&outcome, Reason::PickRefused, &client.refusal());
                assert_eq!(client.waiting(&programs), None);
                refused += 1;
            } else {
                let reset = client.at(usual_hello().len() as u32).rst();
                assert_eq!(client.give(&mut programs, &reset).counted, [(Reason::HelloReset, 1)]);
                taken += 1;
            }
        }
        assert_eq!(nats(&programs), []);
        assert!(refused >= 10 && taken >= 10, "{refused} refused, {taken} taken");
    }
}

#[test]
fn backends_of_weight_zero_take_no_new_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let member = |index, weight| {
            let member = programs.backend(1, backend_address(family, index));
            (backend_id(family, index), Member { weight, ..member })
        };
        let drained = [member(0, 0), member(1, 1)];
        let all_drained = [member(0, 0), member(1, 0)];
        programs.route(1, &drained);
        for port in 40_000..40_010 {
            assert_eq!(picked(&mut programs, family, port), backend_socket(family, 1));
        }
        programs.route(1, &all_drained);
        assert_refused(&mut programs, family, Reason::PickNone);
    }
}

#[test]
fn a_route_without_backend_refuses() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        with_backends(&mut programs, 2);
        for index in 0..2 {
            flag_backend(&mut programs, backend_id(family, index), BACKEND_RETIRED);
        }
        assert_refused(&mut programs, family, Reason::PickNone);
        programs.route(1, &[]);
        assert_refused(&mut programs, family, Reason::PickNone);
        programs.remove::<_, Route>(name::ROUTES, 1u32);
        assert_refused(&mut programs, family, Reason::PickNone);
    }
}

#[test]
fn a_route_without_backend_of_the_clients_family_refuses() {
    tests::skip_without_root!();
    let mut programs = ready();
    for (family, other) in [(Family::V4, Family::V6), (Family::V6, Family::V4)] {
        let backend = programs.backend(1, backend_address(other, 0));
        programs.route(1, &[(backend_id(other, 0), backend)]);
        assert_refused(&mut programs, family, Reason::PickNoFamily);
        assert_eq!(picked(&mut programs, other, 40_000), backend_socket(other, 0));
    }
}

#[test]
fn passing_over_many_backends_is_no_try() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 6);
    for family in FAMILIES {
        for index in [0, 1, 3, 4, 5] {
            flag_backend(&mut programs, backend_id(family, index), BACKEND_UNREACHABLE);
        }
        for port in 40_000..40_020 {
            assert_eq!(picked(&mut programs, family, port), backend_socket(family, 2));
        }
    }
}

/// Sixteen members were looked at, and a client was refused if none of them could be dialled.
#[test]
fn the_one_usable_backend_serves_wherever_it_is() {
    tests::skip_without_root!();
    let mut programs = ready();
    for only in [0, 39] {
        with_backends(&mut programs, 40);
        for family in FAMILIES {
            for index in (0..40).filter(|&index| index != only) {
                let flags = [BACKEND_RETIRED, BACKEND_UNREACHABLE][usize::from(index % 2)];
                flag_backend(&mut programs, backend_id(family, index), flags);
            }
            for port in 40_000..40_100 {
                assert_eq!(picked(&mut programs, family, port), backend_socket(family, only));
            }
            flag_backend(&mut programs, backend_id(family, only), BACKEND_RETIRED);
            assert_refused(&mut programs, family, Reason::PickNone);
        }
    }
}
