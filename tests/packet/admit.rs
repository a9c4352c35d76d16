//! Bounds on the connections of a route, and of a source to a route.

use std::net::IpAddr;

use common::maps::name;
use common::maps::settings::Settings;
use common::maps::source::{Share, ShareKey};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, server_name};
use tests::compare::assert_frame;
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::buffer::far;
use crate::check::{assert_emitted, assert_sent, flow_order, reset_of};
use crate::half_open::{TCP_PORT, from_client, knock, opened};
use crate::open::{HELLO, open, open_with};
use crate::renew::{NEXT_ISN, begin_anew};
use crate::scene::{BACKEND_ISN, Backend, Client, Dial, ISN, Offer, behind, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, route_counts, route_flows, share_flows, with_second_route};

/// Loads programs with a TLS and a TCP listener of route 1, a name of route 2, and these bounds.
fn bounded(route_flows_max: u32, share_flows_max: u32) -> Programs {
    let mut programs = ready();
    programs.tcp_listener(TCP_PORT);
    with_second_route(&mut programs);
    let default = default_settings(Sizes::default());
    programs.settings(Settings { route_flows_max, share_flows_max, ..default });
    programs
}

/// Opens a connection of this host to route 1.
#[track_caller]
fn open_from(programs: &mut Programs, dial: Dial) {
    open_with(programs, dial, Offer::linux(1460, 9));
}

/// Asserts that the host may have no further connection to route 1, by either listener.
#[track_caller]
fn assert_refused(programs: &mut Programs, family: Family, host: IpAddr, reason: Reason) {
    let (connected, refused, retried) = route_counts(programs);
    let ports = nats(programs).len();
    let client = dial(family).host(host).port(50_000).shake(programs);
    let outcome = client.send(programs, 0, &usual_hello());
    assert_sent(&outcome, reason, &client.refusal());
    assert_eq!(client.waiting(programs), None);
    let syn = client.dial.to_port(TCP_PORT).syn();
    let outcome = programs.ingress(Device::Client, &syn.bytes());
    assert_sent(&outcome, reason, &reset_of(&syn));
    assert_eq!(route_counts(programs), (connected, refused + 2, retried));
    assert_eq!(nats(programs).len(), ports, "no backend is dialled");
}

/// Asserts that the host is admitted to route 2.
#[track_caller]
fn assert_other_route_admits(programs: &mut Programs, family: Family, host: IpAddr) {
    let client = dial(family).host(host).port(50_001).shake(programs);
    let hello = tests::hello::hello().name(server_name(1)).length(517).bytes();
    client.ask(programs, &hello).accept(programs);
}

#[test]
fn a_route_has_no_more_flows_than_its_bound_and_others_notice_nothing() {
    tests::skip_without_root!();
    let mut programs = bounded(3, 65_536);
    for family in FAMILIES {
        let first = open(&mut programs, family);
        open_from(&mut programs, dial(family).host(far(family, 2, 1)));
        opened(&mut programs, dial(family).to_port(TCP_PORT));
        assert_eq!(route_flows(&programs, 1), 3);
        assert_refused(&mut programs, family, far(family, 3, 1), Reason::AdmitRouteFull);
        assert_other_route_admits(&mut programs, family, far(family, 3, 1));
        first.pass_to_backend(&mut programs, &first.client_segment(HELLO, 0).payload(*b"as before"));
        // One ends, and another one begins.
        for reason in [Reason::ExpireIdle, Reason::ExpireClosed] {
            programs.expire(&flow_order(&programs, first.client.dial.tuple(), reason));
        }
        open_from(&mut programs, dial(family).host(far(family, 3, 1)));
        assert_refused(&mut programs, family, far(family, 4, 1), Reason::AdmitRouteFull);
        forget_all(&mut programs);
    }
}

#[test]
fn a_source_has_no_more_flows_to_a_route_than_its_bound() {
    tests::skip_without_root!();
    let mut programs = bounded(1_000, 2);
    for family in FAMILIES {
        let host = far(family, 2, 1);
        // For IPv6 the source is the whole /64.
        let (same, other) = match family {
            Family::V4 => (host, far(family, 2, 2)),
            Family::V6 => (far(family, 2, 2), far(family, 3, 1)),
        };
        open_from(&mut programs, dial(family).host(host));
        opened(&mut programs, dial(family).host(same).to_port(TCP_PORT));
        assert_eq!(share_flows(&programs, same, 1), Some(2));
        assert_refused(&mut programs, family, host, Reason::AdmitSourceFull);
        assert_refused(&mut programs, family, same, Reason::AdmitSourceFull);
        assert_other_route_admits(&mut programs, family, same);
        open_from(&mut programs, dial(family).host(other));
        assert_eq!((share_flows(&programs, host, 1), share_flows(&programs, other, 1)), (Some(2), Some(1)));
        forget_all(&mut programs);
    }
}

/// Asserts that of four connections of this host that were all admitted, only the first two open.
#[track_caller]
fn assert_two_open(programs: &mut Programs, family: Family, by_port: bool, reason: Reason) {
    let dials = (41_000..41_004).map(|port| dial(family).port(port));
    let dialled: Vec<(Client, Backend)> = match by_port {
        true => dials
            .map(|dial| {
                let dial = dial.to_port(TCP_PORT);
                let backend = knock(programs, dial);
                backend.give(programs, &backend.syn_ack());
                (Client { dial, cookie: BACKEND_ISN, time: 0 }, backend)
            })
            .collect(),
        false => dials
            .map(|dial| {
                let client = dial.shake(programs);
                (client, client.ask(programs, &usual_hello()))
            })
            .collect(),
    };
    let before = route_counts(programs);
    for (number, (client, backend)) in dialled.into_iter().enumerate() {
        let (last, opens) = match by_port {
            true => (from_client(client.dial, 0, 0), Reason::ForwardBackend),
            false => (backend.syn_ack(), Reason::ConnectHello),
        };
        let device = if by_port { Device::Client } else { Device::Backend };
        let outcome = programs.ingress(device, &last.bytes());
        if number < 2 {
            assert_eq!(outcome.counted, [(opens, 1)]);
            continue;
        }
        assert_eq!(outcome.counted, [(reason, 1)]);
        assert_frame(&outcome.packet, &reset_of(&last));
        let other = match by_port {
            true => (Device::Backend, backend.to_backend().rst().seq(behind(ISN, 0)).window(0)),
            false => (Device::Client, client.refusal()),
        };
        assert_emitted(&outcome, &[other]);
        assert_eq!(
            (client.flow(programs), client.waiting(programs), backend.owner(programs)),
            (None, None, None)
        );
    }
    let (connected, refused, retried) = before;
    assert_eq!(route_counts(programs), (connected + 2, refused + 2, retried));
}

/// Bounds were compared only before a backend was dialled: a source with one connection less than it may have could wait for silent
/// backends with as many hellos as it liked, and had all of them open once they answered.
#[test]
fn connections_that_were_admitted_at_once_do_not_exceed_a_bound() {
    tests::skip_without_root!();
    for (most_of_route, most_of_source, reason) in
        [(1_000, 3, Reason::AdmitSourceFull), (3, 1_000, Reason::AdmitRouteFull)]
    {
        let mut programs = bounded(most_of_route, most_of_source);
        for family in FAMILIES {
            for by_port in [false, true] {
                let first = open(&mut programs, family);
                assert_two_open(&mut programs, family, by_port, reason);
                assert_eq!(route_flows(&programs, 1), 3);
                assert_eq!(share_flows(&programs, first.client.dial.host, 1), Some(3));
                forget_all(&mut programs);
            }
        }
    }
}

/// A record that is removed twice, or by two orders, is counted down once.
#[test]
fn each_end_of_a_flow_counts_it_down_once() {
    tests::skip_without_root!();
    let mut programs = bounded(1_000, 1_000);
    for family in FAMILIES {
        let kept = open_from_port(&mut programs, family, 39_999);
        let host = kept.host;
        for (port, end) in (40_000..).zip(["fin", "rst", "idle", "removed", "held"]) {
            let open = open_with(&mut programs, dial(family).port(port), Offer::linux(1460, 9));
            let counts = (route_flows(&programs, 1), share_flows(&programs, host, 1));
            assert_eq!(counts, (2, Some(2)), "{end}");
            let tuple = open.client.dial.tuple();
            match end {
                "fin" => open.close(&mut programs),
                "rst" => open.reset(&mut programs),
                "idle" => drop(programs.expire(&flow_order(&programs, tuple, Reason::ExpireIdle))),
                "removed" => drop(programs.expire(&flow_order(&programs, tuple, Reason::ExpireRemoved))),
                _ => {
                    let flow = open.flow(&programs);
                    let seq = flow.client.acked.number.wrapping_add(flow.backend.acked.number);
                    let held = common::maps::event::Expiry {
                        seq,
                        ..flow_order(&programs, tuple, Reason::ExpireHeld)
                    };
                    programs.expire(&held);
                }
            }
            assert_eq!(route_flows(&programs, 1), 2, "{end}: it lingers");
            for _ in 0..2 {
                programs.expire(&flow_order(&programs, tuple, Reason::ExpireClosed));
                let counts = (route_flows(&programs, 1), share_flows(&programs, host, 1));
                assert_eq!(counts, (1, Some(1)), "{end}");
            }
        }
        forget_all(&mut programs);
    }
}

fn open_from_port(programs: &mut Programs, family: Family, port: u16) -> Dial {
    let dial = dial(family).port(port);
    open_from(programs, dial);
    dial
}

#[test]
fn a_flow_in_place_of_another_counts_once() {
    tests::skip_without_root!();
    let mut programs = bounded(1_000, 1);
    for family in FAMILIES {
        let old = open(&mut programs, family);
        let host = old.client.dial.host;
        let new = begin_anew(&mut programs, old);
        // The bare ACK of the new handshake ends the old flow; only then is the new one admitted.
        let ack = new.at(0).seq(NEXT_ISN.wrapping_add(1));
        assert_eq!(
            new.give(&mut programs, &ack).counted,
            [(Reason::SynOldReset, 1), (Reason::SynAcked, 1), (Reason::SynFlowReplaced, 1)]
        );
        assert_eq!((route_flows(&programs, 1), share_flows(&programs, host, 1)), (0, Some(0)));
        let outcome = new.give(&mut programs, &ack.payload(usual_hello()));
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        assert_eq!((route_flows(&programs, 1), share_flows(&programs, host, 1)), (0, Some(0)));
        forget_all(&mut programs);
    }
}

/// A SYN on a flow that is over removes it at once.
#[test]
fn a_closed_flow_counts_until_its_port_is_used_again() {
    tests::skip_without_root!();
    let mut programs = bounded(1_000, 1);
    for family in FAMILIES {
        let old = open(&mut programs, family);
        old.reset(&mut programs);
        let host = old.client.dial.host;
        assert_refused(&mut programs, family, host, Reason::AdmitSourceFull);
        open(&mut programs, family);
        assert_eq!((route_flows(&programs, 1), share_flows(&programs, host, 1)), (1, Some(1)));
        forget_all(&mut programs);
    }
}

#[test]
fn a_connection_without_room_in_the_flow_table_is_not_counted() {
    tests::skip_without_root!();
    let sizes = Sizes { flows: 1, ..Sizes::default() };
    let mut programs = Programs::with_sizes(sizes).expect("the programs load");
    programs.tls_with_one_route();
    for family in FAMILIES {
        let first = open(&mut programs, family);
        let host = first.client.dial.host;
        let client = dial(family).port(40_001).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectTableFull, 1)]);
        assert_eq!((route_flows(&programs, 1), share_flows(&programs, host, 1)), (1, Some(1)));
        forget_all(&mut programs);
    }
}

/// Nobody is refused because of it, and no count goes below zero.
#[test]
fn a_full_map_of_counts_refuses_nobody() {
    tests::skip_without_root!();
    let sizes = Sizes { shares: 1, ..Sizes::default() };
    let mut programs = Programs::with_sizes(sizes).expect("the programs load");
    programs.tls_with_one_route();
    programs.settings(Settings { share_flows_max: 2, ..default_settings(sizes) });
    for family in FAMILIES {
        let (one, other) = (far(family, 2, 1), far(family, 3, 1));
        open_from(&mut programs, dial(family).host(one));
        for port in 40_000..40_003 {
            let client = dial(family).host(other).port(port).shake(&mut programs);
            let backend = client.ask(&mut programs, &usual_hello());
            let outcome = backend.give(&mut programs, &backend.syn_ack());
            assert_eq!(outcome.counted, [(Reason::ConnectHello, 1), (Reason::AdmitUncounted, 1)]);
        }
        let counts = |programs: &Programs| {
            let shares = [one, other].map(|host| share_flows(programs, host, 1));
            (route_flows(programs, 1), shares)
        };
        assert_eq!(counts(&programs), (4, [Some(1), None]));
        // The daemon makes room: what was not counted, or is forgotten, is not counted down.
        let key = ShareKey { source: common::maps::address::Address::from(one).source_prefix(), route: 1 };
        programs.remove::<_, Share>(name::SHARES, key);
        open_from(&mut programs, dial(family).host(other).port(40_003));
        assert_eq!(counts(&programs), (5, [None, Some(1)]));
        for (host, ports) in [(one, 40_000..40_001), (other, 40_000..40_004)] {
            for port in ports {
                let tuple = dial(family).host(host).port(port).tuple();
                for reason in [Reason::ExpireIdle, Reason::ExpireClosed] {
                    assert_eq!(programs.expire(&flow_order(&programs, tuple, reason)).verdict, 0);
                }
            }
        }
        assert_eq!(counts(&programs), (0, [None, Some(0)]));
        forget_all(&mut programs);
    }
}
