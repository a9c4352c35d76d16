//! Segments of open connections: everything that differs between the two sides is translated, and nothing else.

use common::maps::flow::{FLOW_ESTABLISHED, Reply};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::compare::assert_bytes;
use tests::packet::{Segment, flag};
use tests::program::{Programs, verdict};
use tests::tcp_option::TcpOption;
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, assert_sent};
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{BACKEND_ISN, Backend, CLIENT_TIME, ISN, Offer, behind, dial, ready, usual_hello};

/// Returns variations of a segment that must not affect the translation.
fn variants(plain: &Segment) -> Vec<Segment> {
    let with = |change: fn(&mut Segment)| {
        let mut segment = plain.clone();
        change(&mut segment);
        segment
    };
    vec![
        plain.clone(),
        plain.clone().psh().payload(*b"data"),
        plain.clone().payload([0xa5; 1_399]),
        plain.clone().window(0),
        plain.clone().window(1),
        plain.clone().window(65_535),
        plain.clone().hop_limit(2),
        plain.clone().hop_limit(255),
        plain.clone().flags(flag::ECE | flag::CWR).payload(*b"!"),
        with(|s| s.traffic_class = 0xb9),
        with(|s| (s.flags, s.urgent) = (s.flags | flag::URG, 3)),
        with(|s| if s.from.is_ipv4() { s.identification = 0x1234 } else { s.flow_label = 0xf_1234 }),
        with(|s| s.dont_fragment = s.from.is_ipv6()),
        with(|s| s.options.push(TcpOption::Raw(vec![253, 4, 0xf9, 0x89]))),
    ]
}

#[test]
fn segments_pass_both_ways_with_everything_translated() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let offers = [
            (Offer::linux(1440, 7), Offer::linux(1460, 9)),
            (Offer::plain(1440), Offer::plain(1460)),
            // The backend declined all options.
            (Offer::linux(1440, 7), Offer::plain(1460)),
            (
                Offer { timestamps: true, ..Offer::plain(1440) },
                Offer { timestamps: true, ..Offer::plain(1460) },
            ),
        ];
        for (port, (client, backend)) in (40_000..).zip(offers) {
            let open = open_with(&mut programs, dial(family).port(port).offer(client), backend);
            for segment in variants(&open.client_segment(HELLO, 0)) {
                open.pass_to_backend(&mut programs, &segment);
            }
            for segment in variants(&open.backend_segment(0, HELLO)) {
                open.pass_to_client(&mut programs, &segment);
            }
            // Far into the connection, across the wrap of each number.
            for far in [0x7fff_0000, 0xf000_0000, 0xffff_ffff] {
                let segment = open.client_segment(far, far).payload(*b"far");
                let outcome = open.client.give(&mut programs, &segment);
                // Of numbers that are not the flow's, one in 2,048 looks like a later segment of a new hello.
                if outcome.counted != [(Reason::SynEarly, 1)] {
                    assert_sent(&outcome, Reason::ForwardBackend, &open.at_backend(&segment));
                }
                open.pass_to_client(&mut programs, &open.backend_segment(far, far).payload(*b"far"));
            }
        }
    }
}

#[test]
fn the_numbers_are_those_of_the_other_side() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let outcome = open.client.give(&mut programs, &open.client_segment(HELLO, 0).payload(*b"x"));
        let sent = crate::check::sent(&outcome);
        assert_eq!((sent.seq, sent.ack), (behind(ISN, HELLO), behind(BACKEND_ISN, 0)));
        let outcome = open.backend.give(&mut programs, &open.backend_segment(1_000, HELLO));
        let sent = crate::check::sent(&outcome);
        assert_eq!((sent.seq, sent.ack), (behind(open.client.cookie, 1_000), behind(ISN, HELLO)));
        let (value, echo) = crate::check::timestamps(&sent).unwrap();
        assert!(value.wrapping_sub(open.client.time) < 60_000, "our clock goes on: {value}");
        assert_eq!(echo, CLIENT_TIME + 1);
    }
}

/// Returns SACK blocks of received bytes beyond a gap, counted from after the backend's SYN, as the client
/// reports them.
fn blocks(open: Open, count: u32) -> Vec<(u32, u32)> {
    let number = |at| behind(open.client.cookie, at);
    (0..count).map(|i| (number(1_000 + 100 * i), number(1_050 + 100 * i))).collect()
}

#[test]
fn sack_blocks_of_the_client_are_moved_and_those_of_the_backend_stay() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let stamped = open(&mut programs, family);
        for count in 1..=3 {
            let segment = stamped.client_segment(HELLO, 0).option(TcpOption::Nop).option(TcpOption::Nop);
            stamped.pass_to_backend(&mut programs, &segment.sack(&blocks(stamped, count)));
        }
        let sack_only = |mss| Offer { sack: true, ..Offer::plain(mss) };
        let dial = dial(family).port(40_001).offer(sack_only(1440));
        let plain = open_with(&mut programs, dial, sack_only(1460));
        for count in 1..=4 {
            let nops = [TcpOption::Nop, TcpOption::Nop];
            let mut segment = plain.client_segment(HELLO, 0);
            segment.options.extend(nops.clone());
            plain.pass_to_backend(&mut programs, &segment.sack(&blocks(plain, count)));
            // D-SACK and blocks at the end of the header, without NOPs before them.
            let segment = plain.client_segment(HELLO, 0).sack(&blocks(plain, count));
            plain.pass_to_backend(&mut programs, &segment);
            let mut segment = plain.backend_segment(0, HELLO);
            segment.options.extend(nops);
            let theirs: Vec<_> = (0..count).map(|i| (behind(ISN, 600 + i), behind(ISN, 700 + i))).collect();
            plain.pass_to_client(&mut programs, &segment.sack(&theirs));
        }
    }
}

#[test]
fn windows_are_told_in_the_scale_each_side_knows() {
    tests::skip_without_root!();
    let mut programs = ready();
    // The scales of client and backend; then for each side the window it announces and the one the other
    // sees. Our scale is 7.
    let none = None;
    let cases = [
        (Some(7), Some(9), 502, 502, 128, 512),
        (Some(7), Some(2), 502, 502, 128, 4),
        // Rounded down to zero, it must still look open.
        (Some(7), Some(2), 502, 502, 31, 1),
        (Some(7), Some(14), 502, 502, 65_535, 65_535),
        (Some(0), Some(7), 65_535, 65_535, 1_000, 1_000),
        // The backend declined scaling: the window is sent unscaled, capped at 65,535.
        (Some(7), none, 502, 64_256, 64_000, 500),
        (Some(7), none, 513, 65_535, 100, 1),
        (Some(0), none, 513, 513, 128, 1),
        (none, none, 502, 502, 128, 128),
    ];
    for family in FAMILIES {
        for (port, (client, backend, told, seen, backend_told, client_seen)) in (40_000..).zip(cases) {
            let dial = dial(family).port(port).offer(Offer { scale: client, ..Offer::linux(1440, 0) });
            let open = open_with(&mut programs, dial, Offer { scale: backend, ..Offer::linux(1460, 0) });
            let segment = open.client_segment(HELLO, 0).window(told);
            assert_eq!(open.at_backend(&segment).window, seen, "{client:?} {backend:?}");
            open.pass_to_backend(&mut programs, &segment);
            let segment = open.backend_segment(0, HELLO).window(backend_told);
            assert_eq!(open.at_client(&segment).window, client_seen, "{client:?} {backend:?}");
            open.pass_to_client(&mut programs, &segment);
            // A zero window stays zero.
            open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).window(0));
        }
    }
}

#[test]
fn padding_travels_with_the_packet_and_counts_for_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    // Ethernet itself pads what has no options in IPv4, to 60 bytes.
    for (port, offer) in [(40_000, Offer::linux(1460, 9)), (40_001, Offer::plain(1460))] {
        for family in FAMILIES {
            let open = open_with(&mut programs, dial(family).port(port).offer(offer), offer);
            open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO));
            let padded = |segment: &Segment| [segment.bytes(), vec![0; 6]].concat();
            let mut pass = |segment: &Segment, reason| {
                let outcome = programs.ingress(Device::Client, &padded(segment));
                assert_eq!(outcome.counted, [(reason, 1)]);
                assert_bytes(&outcome.packet, &padded(&open.at_backend(segment)));
                open.flow(&programs).client.sent.next
            };
            let segment = open.client_segment(HELLO, 0);
            assert_eq!(pass(&segment, Reason::ForwardBackend), behind(ISN, HELLO));
            pass(&segment.rst(), Reason::ForwardReset);
        }
    }
}

/// Asserts that a super-packet passes as it is: only headers change.
#[track_caller]
fn assert_whole(programs: &mut Programs, device: Device, segment: &Segment, expected: &Segment) {
    let outcome = programs.ingress_gso(device, &segment.bytes(), 1_400, 2);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_bytes(&outcome.packet, &expected.bytes());
    assert_eq!(outcome.emitted, []);
}

#[test]
fn super_packets_pass_whole() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let up = open.client_segment(HELLO, 0).psh().payload(vec![0x5a; 2_800]);
        let down = open.backend_segment(0, HELLO).psh().payload(vec![0xa5; 2_800]);
        assert_whole(&mut programs, Device::Client, &up, &open.at_backend(&up));
        assert_whole(&mut programs, Device::Backend, &down, &open.at_client(&down));
        assert_eq!(open.flow(&programs).client.sent.next, behind(ISN, HELLO + 2_800));
    }
}

#[test]
fn traffic_of_either_side_keeps_the_flow_from_idling() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let flow = open.flow(&programs);
        for from_client in [true, false] {
            let old = common::maps::flow::Flow { seen_secs: 1, ..open.flow(&programs) };
            programs.insert(name::FLOWS, open.client.dial.tuple(), old);
            if from_client {
                open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0));
            } else {
                open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO));
            }
            let now = open.flow(&programs);
            assert!(now.seen_secs.wrapping_sub(flow.seen_secs) < 60, "{} {}", flow.seen_secs, now.seen_secs);
            assert_eq!(now.connection.state, FLOW_ESTABLISHED);
        }
    }
}

/// A NAT map element is reused for another key as soon as it is removed, so a lookup may return the other key's
/// value. The segment's own addresses and ports decide, or one tenant's bytes would reach another's client.
#[test]
fn a_backends_segment_never_reaches_the_connection_of_another_key() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let one = open(&mut programs, family);
        let other = open_with(&mut programs, dial(family).port(40_001), Offer::linux(1460, 9));
        let reply: Reply = programs.entry(name::NATS, other.backend.tuple()).unwrap();
        programs.insert(name::NATS, one.backend.tuple(), reply);
        let segment = one.backend_segment(0, HELLO).payload(*b"another tenant's");
        // The sender retransmits it; then it matches its own entry or is a stray.
        assert_dropped(&programs.ingress(Device::Backend, &segment.bytes()), Reason::ConnectIgnored);
        // Nor does one reach a connection that waits for its backend.
        let waiting = dial(family).port(40_002).shake(&mut programs);
        let backend = waiting.ask(&mut programs, &usual_hello());
        let reply: Reply = programs.entry(name::NATS, backend.tuple()).unwrap();
        programs.insert(name::NATS, one.backend.tuple(), reply);
        let segment = Backend { source: one.backend.source, ..backend }.syn_ack();
        let outcome = programs.ingress(Device::Backend, &segment.bytes());
        assert_handed_on(&outcome, &segment.bytes(), Reason::ClassifyOwnTraffic);
        assert!(waiting.waiting(&programs).is_some());
    }
}
