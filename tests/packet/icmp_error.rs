//! Segments that cannot be passed on: their sender is notified.

use common::maps::told::TOLD_MAX;
use common::reason::Reason;
use common::wire::checksum;
use tests::addresses::FAMILIES;
use tests::compare::assert_bytes;
use tests::icmp::{Icmp, Kind, quotation, time_exceeded, too_big};
use tests::packet::Segment;
use tests::program::{Outcome, verdict};
use tests::world::Device;

use crate::open::{HELLO, open};
use crate::scene::{dial, ready};

/// Asserts the answer to a segment received on a device; 20 bytes of TCP are quoted.
#[track_caller]
fn assert_told(outcome: &Outcome, reason: Reason, device: Device, kind: Kind, rest: u32, about: &Segment) {
    assert_eq!(outcome.counted, [(reason, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    let expected = Icmp::new(kind, about.to.ip(), about.from.ip())
        .ethernet(device.far_mac(), device.near_mac())
        .rest(rest)
        .body(quotation(about, 20));
    assert_bytes(&outcome.packet, &expected.bytes());
    assert_eq!(outcome.emitted, []);
}

#[test]
fn a_segment_over_the_mtu_is_answered_with_the_mtu() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let up = open.client_segment(HELLO, 0).psh().payload(vec![0x5a; 1_500]);
        let down = open.backend_segment(0, HELLO).psh().payload(vec![0xa5; 1_500]);
        let kind = too_big(family);
        let outcome = open.client.give(&mut programs, &up);
        assert_told(&outcome, Reason::IcmpTooBig, Device::Client, kind, 1_500, &up);
        let outcome = open.backend.give(&mut programs, &down);
        assert_told(&outcome, Reason::IcmpTooBig, Device::Backend, kind, 1_500, &down);
    }
}

#[test]
fn a_super_packet_is_as_big_as_what_it_is_cut_into() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let headers = if family.is_v4() { 52 } else { 72 };
        let down = open.backend_segment(0, HELLO).psh().payload(vec![0xa5; 2_800]);
        let most = 1_500 - headers;
        let outcome = programs.ingress_gso(Device::Backend, &down.bytes(), most, 2);
        assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
        let outcome = programs.ingress_gso(Device::Backend, &down.bytes(), most + 1, 2);
        assert_told(&outcome, Reason::IcmpTooBig, Device::Backend, too_big(family), 1_500, &down);
    }
}

/// A client makes the node believe in such a route by an ICMP error to one of the node's own addresses, and the backend believes of
/// all clients what it learns about one. An IPv4 packet that the device takes is for routers to fragment; IPv6 has nothing like it, so
/// the backend learns of it, but not too often.
#[test]
fn a_narrow_route_to_one_client_lowers_no_mtu_of_all() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let client = open.client.dial.client().ip();
        let bits = if family.is_v4() { 32 } else { 128 };
        let device = Device::Client.name();
        let narrow = format!("route add {client}/{bits} dev {device} mtu lock 1300\n");
        programs.world.change(|node| node.ip(&narrow)).unwrap();
        let headers = if family.is_v4() { 52 } else { 72 };
        let down = |bytes: usize| open.backend_segment(0, HELLO).psh().payload(vec![0xa5; bytes]);
        open.pass_to_client(&mut programs, &down(1_300 - headers));
        let over = down(1_301 - headers);
        let outcome = open.backend.give(&mut programs, &over);
        if family.is_v4() {
            assert_eq!(
                (outcome.verdict, &outcome.counted[..]),
                (verdict::REDIRECT, &[(Reason::ForwardClient, 1)][..])
            );
            let header: [u8; 20] = outcome.packet[14..34].try_into().unwrap();
            assert_eq!(header[6..8], [0, 0], "DF");
            let zeroed = [&header[..10], &[0, 0], &header[12..]].concat().try_into().unwrap();
            assert_eq!(header[10..12], checksum::ipv4_header(&zeroed).to_be_bytes());
            // The device itself is no wider.
            let over = down(1_501 - headers);
            let outcome = open.backend.give(&mut programs, &over);
            assert_told(&outcome, Reason::IcmpTooBig, Device::Backend, too_big(family), 1_500, &over);
            continue;
        }
        assert_told(&outcome, Reason::IcmpTooBig, Device::Backend, too_big(family), 1_300, &over);
        let mut counted = Vec::new();
        // Twice as many as a second allows, and a second may end meanwhile.
        for _ in 0..3 * TOLD_MAX {
            counted.extend(open.backend.give(&mut programs, &over).counted);
        }
        assert!(counted.contains(&(Reason::IcmpTooMany, 1)), "{counted:?}");
        assert!(counted.iter().all(|(reason, _)| matches!(reason, Reason::IcmpTooBig | Reason::IcmpTooMany)));
    }
}

#[test]
fn a_used_up_hop_limit_is_told() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let kind = time_exceeded(family);
        for hop_limit in [0, 1] {
            let up = open.client_segment(HELLO, 0).payload(*b"data").hop_limit(hop_limit);
            let outcome = open.client.give(&mut programs, &up);
            assert_told(&outcome, Reason::IcmpHopLimit, Device::Client, kind, 0, &up);
            let down = open.backend_segment(0, HELLO).payload(*b"data").hop_limit(hop_limit);
            let outcome = open.backend.give(&mut programs, &down);
            assert_told(&outcome, Reason::IcmpHopLimit, Device::Backend, kind, 0, &down);
        }
        // A segment that we answer ourselves may arrive with hop limit 1.
        let outcome = open.client.give(&mut programs, &dial(family).port(40_009).syn().hop_limit(1));
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
    }
}
