//! ICMP: errors about a connection's segments reach the end that sent them; a VIP answers pings.

use std::net::IpAddr;

use common::maps::listener::{ROLE_OWN, ROLE_VIP};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TENANT_NETS, balancer, client, host, vip};
use tests::compare::assert_bytes;
use tests::icmp::{Icmp, Kind, echo, echo_reply, quotation, time_exceeded, too_big, unreachable};
use tests::packet::{Segment, checksum};
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, sent};
use crate::half_open::{half_open, knock, tcp};
use crate::open::{HELLO, Open, open, open_with};
use crate::parse::mapped;
use crate::scene::{Backend, Dial, ISN, Offer, behind, dial, ready, usual_hello};
use crate::setup::{route_counts, with_backends};

/// Returns a router on the client's side or on the backend's.
pub(crate) fn router(family: Family, device: Device) -> IpAddr {
    host(family, if device == Device::Client { 1 } else { 2 }, 99)
}

/// Returns an error as received from the router on one side, about a segment that left on that side.
pub(crate) fn error(device: Device, kind: Kind, about: &Segment, quoted: usize) -> Icmp {
    let family = FAMILIES[usize::from(about.from.is_ipv6())];
    Icmp::new(kind, router(family, device), about.from.ip())
        .ethernet(device.near_mac(), device.far_mac())
        .rest(1_400)
        .body(quotation(about, quoted))
}

/// An error that is passed to every backend. Of IPv4, "too big" is not.
fn passed_to_backends(family: Family) -> Kind {
    if family.is_v4() { time_exceeded(family) } else { too_big(family) }
}

#[track_caller]
pub(crate) fn assert_passed(outcome: &Outcome, reason: Reason, expected: &Icmp) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_bytes(&outcome.packet, &expected.bytes());
    assert_eq!(outcome.emitted, []);
}

/// Opens a connection whose options do not differ between its ends: a translation is then exact, with its checksum.
pub(crate) fn plain(programs: &mut Programs, family: Family) -> Open {
    open_with(programs, dial(family).offer(Offer::plain(1440)), Offer::plain(1460))
}

#[test]
fn an_error_from_the_clients_side_reaches_the_backend_as_about_its_own_segment() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = plain(&mut programs, family);
        let from_backend = open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]);
        open.pass_to_client(&mut programs, &from_backend);
        let at_client = open.at_client(&from_backend);
        // As the backend sent it, with the hop limit one lower.
        let expected = Segment { hop_limit: at_client.hop_limit, ..from_backend.clone() };
        for kind in [passed_to_backends(family), unreachable(family), time_exceeded(family)] {
            for quoted in [8, 11, 12, 16, 18, 20, 21, 500] {
                let outcome = programs.ingress(
                    Device::Client,
                    &error(Device::Client, kind, &at_client, quoted).hop_limit(200).bytes(),
                );
                let (source, backend) = (open.backend.source.ip(), open.backend.address.ip());
                let message = Icmp::new(kind, source, backend)
                    .ethernet(Device::Backend.far_mac(), Device::Backend.near_mac())
                    .hop_limit(199)
                    .rest(1_400)
                    .body(quotation(&expected, quoted));
                assert_passed(&outcome, Reason::IcmpToBackend, &message);
            }
        }
    }
}

#[test]
fn an_error_from_the_backends_side_reaches_the_client_as_about_its_own_segment() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = plain(&mut programs, family);
        let from_client = open.client_segment(HELLO, 0).payload(vec![0x5a; 1_200]);
        open.pass_to_backend(&mut programs, &from_client);
        let at_backend = open.at_backend(&from_client);
        let expected = Segment { hop_limit: at_backend.hop_limit, ..from_client.clone() };
        for kind in [too_big(family), unreachable(family), time_exceeded(family)] {
            for quoted in [8, 12, 18, 20, 500] {
                let outcome = programs.ingress(
                    Device::Backend,
                    &error(Device::Backend, kind, &at_backend, quoted).hop_limit(200).bytes(),
                );
                let message = Icmp::new(kind, vip(family), client(family))
                    .ethernet(Device::Client.far_mac(), Device::Client.near_mac())
                    .hop_limit(199)
                    .rest(1_400)
                    .body(quotation(&expected, quoted));
                assert_passed(&outcome, Reason::IcmpToClient, &message);
            }
        }
    }
}

#[test]
fn an_error_that_was_changed_stays_wrong_for_the_end_host() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = plain(&mut programs, family);
        let about = open.at_backend(&open.client_segment(0, 0).payload(usual_hello()));
        let mut frame = error(Device::Backend, too_big(family), &about, 100).bytes();
        let at = frame.len() - 1;
        frame[at] ^= 0x10;
        let outcome = programs.ingress(Device::Backend, &frame);
        assert_eq!(outcome.counted, [(Reason::IcmpToClient, 1)]);
        let mut repaired = outcome.packet.clone();
        repaired[at] ^= 0x10;
        let sum = |frame: &[u8]| checksum(&frame[34..], 0);
        if family.is_v4() {
            assert_ne!(sum(&outcome.packet), 0);
            assert_eq!(sum(&repaired), 0);
        }
    }
}

#[test]
fn what_quotes_no_segment_under_way_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = plain(&mut programs, family);
        let from_backend = open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]);
        open.pass_to_client(&mut programs, &from_backend);
        let about = open.at_client(&from_backend);
        let change = |change: &dyn Fn(&mut Segment)| {
            let mut segment = about.clone();
            change(&mut segment);
            error(Device::Client, too_big(family), &segment, 20)
        };
        let seq = about.seq;
        let mut strays = vec![
            change(&|s| s.seq = seq.wrapping_sub(1)),
            change(&|s| s.seq = seq.wrapping_add(1_201)),
            change(&|s| s.seq = seq.wrapping_add(1 << 31)),
            change(&|s| s.to.set_port(s.to.port() + 1)),
            change(&|s| s.from.set_port(s.from.port() + 1)),
            change(&|s| s.to.set_ip(host(family, 1, 77))),
            // Too few bytes of the TCP header.
            error(Device::Client, too_big(family), &about, 7),
            // Not addressed to the sender of the quoted segment.
            Icmp { to: vip(family), ..change(&|s| s.from.set_ip(host(family, 1, 77))) },
        ];
        let ip_protocol = if family.is_v4() { 9 } else { 6 };
        let mut udp = change(&|_| {});
        udp.body[ip_protocol] = 17;
        let mut garbage = change(&|_| {});
        garbage.body.fill(0xee);
        strays.extend([udp, garbage]);
        if family.is_v4() {
            let mut fragment = change(&|_| {});
            fragment.body[7] = 1;
            strays.push(fragment);
        }
        for stray in strays {
            let outcome = programs.ingress(Device::Client, &stray.bytes());
            assert_dropped(&outcome, Reason::IcmpStray);
        }
        // Both ends of the window are within it.
        for seq in [seq, seq.wrapping_add(1_200)] {
            let about = Segment { seq, ..about.clone() };
            let frame = error(Device::Client, passed_to_backends(family), &about, 20).bytes();
            let outcome = programs.ingress(Device::Client, &frame);
            assert_eq!(outcome.counted, [(Reason::IcmpToBackend, 1)]);
        }
        // On the backend's side, an error that matches no connection of ours belongs to the node itself.
        let mut other = open.at_backend(&open.client_segment(HELLO, 0));
        other.from.set_port(other.from.port() ^ 1);
        let frame = error(Device::Backend, too_big(family), &other, 20).bytes();
        assert_handed_on(&programs.ingress(Device::Backend, &frame), &frame, Reason::ClassifyOwnTraffic);
        let old = open.at_backend(&open.client_segment(HELLO, 0).seq(ISN.wrapping_sub(9)));
        let outcome =
            programs.ingress(Device::Backend, &error(Device::Backend, too_big(family), &old, 20).bytes());
        assert_dropped(&outcome, Reason::IcmpStray);
        // A reset flow takes no errors.
        open.reset(&mut programs);
        assert_dropped(&programs.ingress(Device::Client, &change(&|_| {}).bytes()), Reason::IcmpStray);
    }
}

/// An IPv6 error may quote what it likes: a quoted address that is an IPv4 one in the tables leads to no connection of that.
#[test]
fn an_ipv6_error_that_quotes_mapped_addresses_concerns_no_ipv4_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let open = plain(&mut programs, Family::V4);
    let from_backend = open.backend_segment(0, HELLO).payload([0x5a; 100]);
    open.pass_to_client(&mut programs, &from_backend);
    let flow = open.flow(&programs);
    let at_client = open.at_client(&from_backend);
    for from_vip in [mapped(vip(Family::V4)), vip(Family::V6)] {
        let mut quoted = at_client.clone();
        quoted.from.set_ip(from_vip);
        quoted.to.set_ip(mapped(client(Family::V4)));
        for kind in [too_big(Family::V6), unreachable(Family::V6), time_exceeded(Family::V6)] {
            let error = Icmp::new(kind, router(Family::V6, Device::Client), vip(Family::V6))
                .ethernet(Device::Client.near_mac(), Device::Client.far_mac())
                .rest(1_400)
                .body(quotation(&quoted, 20));
            assert_dropped(&programs.ingress(Device::Client, &error.bytes()), Reason::IcmpStray);
        }
    }
    assert_eq!(open.flow(&programs), flow);
}

#[test]
fn errors_of_the_nodes_own_connections_are_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.address(vip(family), ROLE_VIP | ROLE_OWN);
        let own = tests::packet::segment((vip(family), 22).into(), dial(family).client()).ack(7);
        let frame = error(Device::Client, too_big(family), &own, 20).bytes();
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ClassifyOwnPort);
    }
}

#[test]
fn an_error_too_old_or_too_big_to_travel_on_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = plain(&mut programs, family);
        let about = open.at_backend(&open.client_segment(0, 0).payload(vec![1; 1_600]));
        for hop_limit in [0, 1] {
            let error = error(Device::Backend, too_big(family), &about, 20).hop_limit(hop_limit);
            assert_dropped(&programs.ingress(Device::Backend, &error.bytes()), Reason::EmitHopLimit);
        }
        let error = error(Device::Backend, too_big(family), &about, 1_600);
        assert_dropped(&programs.ingress(Device::Backend, &error.bytes()), Reason::EmitTooBig);
    }
}

/// Returns the SYN that a backend got, as a router on the path quotes it.
fn syn_to(backend: Backend) -> Segment {
    backend.to_backend().syn(ISN)
}

#[test]
fn an_unreachable_backend_is_replaced_at_once() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 3);
    for family in FAMILIES {
        for kind in [unreachable(family), time_exceeded(family)] {
            let before = route_counts(&programs);
            let client = dial(family).shake(&mut programs);
            let mut backend = client.ask(&mut programs, &usual_hello());
            let mut tried = vec![backend.address];
            for _ in 0..2 {
                let asked = error(Device::Backend, kind, &syn_to(backend), 8);
                let outcome = programs.ingress(Device::Backend, &asked.bytes());
                assert_eq!(outcome.counted, [(Reason::ConnectNext, 1), (Reason::IcmpRefused, 1)]);
                backend = Backend::of(&sent(&outcome));
                assert!(!tried.contains(&backend.address));
                tried.push(backend.address);
            }
            let asked = error(Device::Backend, kind, &syn_to(backend), 8);
            let outcome = programs.ingress(Device::Backend, &asked.bytes());
            assert_eq!(outcome.counted, [(Reason::ConnectExhausted, 1), (Reason::IcmpRefused, 1)]);
            tests::compare::assert_frame(&outcome.packet, &client.refusal());
            assert!(client.waiting(&programs).is_none());
            let after = route_counts(&programs);
            assert_eq!((after.1 - before.1, after.2 - before.2), (1, 3));
        }
    }
}

#[test]
fn a_forged_or_changed_unreachable_replaces_nobody() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 3);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let wrong = Segment { seq: ISN ^ 1, ..syn_to(backend) };
        // About another connection of the node, for all that we know.
        let other = error(Device::Backend, unreachable(family), &wrong, 8).bytes();
        let outcome = programs.ingress(Device::Backend, &other);
        assert_handed_on(&outcome, &other, Reason::ClassifyOwnTraffic);
        let mut changed = error(Device::Backend, unreachable(family), &syn_to(backend), 8).bytes();
        let at = if family.is_v4() { 34 } else { 54 };
        changed[at + 5] ^= 1;
        assert_dropped(&programs.ingress(Device::Backend, &changed), Reason::IcmpStray);
        // An error that the SYN was too big ends nothing.
        let big = error(Device::Backend, too_big(family), &syn_to(backend), 8);
        assert_dropped(&programs.ingress(Device::Backend, &big.bytes()), Reason::IcmpStray);
        backend.accept(&mut programs);
    }
}

/// Returns the error of a router that could not pass on the SYN of a TCP listener's client.
fn unreached(dial: Dial, backend: Backend) -> Icmp {
    let (from, to) = (backend.source, backend.address);
    let syn = Segment { hop_limit: 63, from, to, ..dial.syn() };
    error(Device::Backend, unreachable(dial.family), &syn, 40)
}

#[test]
fn a_client_of_a_tcp_listener_hears_that_its_backend_is_unreachable() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 1);
        let dial = dial(family).to_port(20_001);
        let backend = knock(&mut programs, dial);
        let before = route_counts(&programs);
        let outcome = programs.ingress(Device::Backend, &unreached(dial, backend).bytes());
        assert_eq!(outcome.counted, [(Reason::IcmpToClient, 1), (Reason::IcmpRefused, 1)]);
        let about = Segment { hop_limit: 63, ..dial.syn() };
        let expected = Icmp::new(unreachable(family), vip(family), client(family))
            .ethernet(Device::Client.far_mac(), Device::Client.near_mac())
            .hop_limit(63)
            .rest(1_400)
            .body(quotation(&about, 40));
        assert_bytes(&outcome.packet, &expected.bytes());
        assert!(half_open(&programs, dial).is_none());
        assert_eq!(route_counts(&programs).1, before.1 + 1);
    }
}

/// Of two SYNs one is answered, and a router reports the other one. The connection was forgotten, and its client reset.
#[test]
fn an_unreachable_about_a_repeated_syn_ends_no_connection_that_was_accepted() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 1);
        let dial = dial(family).to_port(20_001);
        let backend = knock(&mut programs, dial);
        backend.give(&mut programs, &backend.syn_ack());
        let outcome = programs.ingress(Device::Backend, &unreached(dial, backend).bytes());
        assert_eq!(outcome.counted, [(Reason::IcmpToClient, 1)]);
        assert!(half_open(&programs, dial).is_some());
    }
}

#[test]
fn a_hello_that_we_owe_goes_once_more_in_smaller_segments() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = tests::hello::hello().name(tests::addresses::server_name(0)).length(2_600).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.send(&mut programs, 0, &hello[..1_300]);
        client.give(&mut programs, &client.at(0).psh().payload(&hello[..1_300]));
        let outcome = client.send(&mut programs, 1_300, &hello[1_300..]);
        let backend = Backend::of(&sent(&outcome));
        let delivered = crate::delivery::pieces(&backend.accept(&mut programs));
        let about = delivered.first().expect("two pieces").clone();
        assert!(about.payload.len() > 1_300);
        let error = error(Device::Backend, too_big(family), &about, 20).rest(1_300);
        let mut changed = error.bytes();
        changed[if family.is_v4() { 41 } else { 61 }] ^= 4;
        assert_dropped(&programs.ingress(Device::Backend, &changed), Reason::IcmpStray);
        let outcome = programs.ingress(Device::Backend, &error.bytes());
        assert_eq!(outcome.counted, [(Reason::ConnectRepeated, 1)]);
        let pieces = crate::delivery::pieces(&outcome);
        let ip_and_tcp = if family.is_v4() { 52 } else { 72 };
        assert!(pieces.iter().all(|piece| piece.payload.len() + ip_and_tcp <= 1_300));
        let bytes: Vec<u8> = pieces.iter().flat_map(|piece| piece.payload.clone()).collect();
        assert!(bytes == hello, "{} bytes of {}", bytes.len(), hello.len());
        // The same error again changes nothing.
        assert_dropped(&programs.ingress(Device::Backend, &error.bytes()), Reason::IcmpStray);
    }
}

/// The backend has not acknowledged the hello yet. What the client sent behind it, it repeats itself, in smaller segments.
#[test]
fn an_error_about_bytes_behind_a_hello_that_we_owe_reaches_the_client() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = tests::hello::hello().name(tests::addresses::server_name(0)).length(2_600).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.send(&mut programs, 0, &hello[..1_300]);
        // Repeated, it is acknowledged.
        client.give(&mut programs, &client.at(0).psh().payload(&hello[..1_300]));
        let outcome = client.send(&mut programs, 1_300, &hello[1_300..]);
        Backend::of(&sent(&outcome)).accept(&mut programs);
        let undelivered = client.waiting(&programs).expect("it is undelivered");
        assert!(undelivered.acked > 0);
        let outcome = client.send(&mut programs, 2_600, &[0x17; 1_400]);
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        let error = error(Device::Backend, too_big(family), &sent(&outcome), 20).rest(1_300);
        let outcome = programs.ingress(Device::Backend, &error.bytes());
        assert_eq!(outcome.counted, [(Reason::IcmpToClient, 1)]);
        assert_eq!(client.waiting(&programs), Some(undelivered), "it still waits, and is not locked");
    }
}

#[test]
fn the_end_of_the_longest_hello_goes_once_more_in_smaller_segments() {
    tests::skip_without_root!();
    let mut programs = ready();
    let name = tests::addresses::server_name(0);
    let hello = tests::hello::hello().name(name).length(18_432).records_of(40).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = crate::delivery::collect(&mut programs, client, &hello, 1_300);
        let delivered = crate::delivery::pieces(&backend.accept(&mut programs));
        let about = delivered.last().expect("thirteen pieces").clone();
        backend.give(&mut programs, &backend.at(0, 16_500));
        let error = error(Device::Backend, too_big(family), &about, 20).rest(1_300);
        let outcome = programs.ingress(Device::Backend, &error.bytes());
        assert_eq!(outcome.counted, [(Reason::ConnectRepeated, 1)]);
        let bytes = crate::delivery::delivered(&outcome, ISN.wrapping_add(16_500));
        assert!(bytes == hello[16_500..], "{} bytes", bytes.len());
    }
}

#[test]
fn a_vip_answers_pings() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for bytes in [0, 1, 56, 1_400] {
            let body: Vec<u8> = (0..bytes).map(|i| (i * 7) as u8).collect();
            let asked = Icmp::new(echo(family), client(family), vip(family))
                .ethernet(Device::Client.near_mac(), Device::Client.far_mac())
                .hop_limit(3)
                .rest(0x1234_0001)
                .body(body);
            let (kind, code) = echo_reply(family);
            let answer = Icmp {
                ethernet: (Device::Client.far_mac(), Device::Client.near_mac()),
                from: vip(family),
                to: client(family),
                hop_limit: 64,
                kind,
                code,
                ..asked.clone()
            };
            let outcome = programs.ingress(Device::Client, &asked.bytes());
            assert_passed(&outcome, Reason::IcmpEcho, &answer);
            // A corrupted ping is answered with an equally wrong checksum, so that the sender detects it.
            let mut changed = asked.bytes();
            let last = changed.len() - 1;
            changed[last] ^= 1;
            let mut expected = answer.bytes();
            expected[last] ^= 1;
            assert_bytes(&programs.ingress(Device::Client, &changed).packet, &expected);
        }
    }
}

#[test]
fn pings_of_the_nodes_own_addresses_are_the_nodes() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.address(vip(family), ROLE_VIP | ROLE_OWN);
        let ping = |to| {
            Icmp::new(echo(family), client(family), to)
                .ethernet(Device::Client.near_mac(), Device::Client.far_mac())
                .body([1; 56])
                .bytes()
        };
        let frame = ping(vip(family));
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ClassifyOwnPort);
        let frame = ping(balancer(family, TENANT_NETS[0]));
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ClassifyOwnTraffic);
    }
}

#[test]
fn echoes_redirects_and_other_kinds_of_icmp_are_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let about = open.at_client(&open.backend_segment(0, HELLO));
        let kinds: &[Kind] = if family.is_v4() {
            &[(0, 0), (4, 0), (5, 1), (13, 0), (8, 1)]
        } else {
            &[(129, 0), (200, 0), (128, 1)]
        };
        for kind in kinds {
            let frame = error(Device::Client, *kind, &about, 20).bytes();
            assert_dropped(&programs.ingress(Device::Client, &frame), Reason::ClassifyDropped);
        }
    }
}

#[test]
fn the_sequence_number_of_the_quotation_is_the_receivers_with_all_options() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let from_backend = open.backend_segment(0, HELLO).payload(vec![0x5a; 900]);
        open.pass_to_client(&mut programs, &from_backend);
        let kind = passed_to_backends(family);
        let frame = error(Device::Client, kind, &open.at_client(&from_backend), 60).bytes();
        let outcome = programs.ingress(Device::Client, &frame);
        assert_eq!(outcome.counted, [(Reason::IcmpToBackend, 1)]);
        let tcp = if family.is_v4() { 34 + 8 + 20 } else { 54 + 8 + 40 };
        let seq = u32::from_be_bytes(outcome.packet[tcp + 4..tcp + 8].try_into().expect("four bytes"));
        let ack = u32::from_be_bytes(outcome.packet[tcp + 8..tcp + 12].try_into().expect("four bytes"));
        assert_eq!((seq, ack), (from_backend.seq, behind(ISN, HELLO)));
    }
}
