//! Which packets are ours, and how packets to ports without a listener are answered.

use common::maps::listener::{ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TENANT_NETS, balancer, client, host, vip};
use tests::compare::assert_bytes;
use tests::packet::{checksum, flag, segment, transport_checksum};
use tests::program::{Outcome, verdict};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, assert_sent, reset_of};
use crate::scene::{ISN, dial, ready};

const UDP: u8 = 17;
const SCTP: u8 = 132;
const GRE: u8 = 47;
const ICMP: u8 = 1;
const ICMP_V6: u8 = 58;

/// Returns a packet of the client that is not TCP: `body` follows the IP header.
pub(crate) fn datagram(family: Family, protocol: u8, body: &[u8]) -> Vec<u8> {
    let tcp = dial(family).segment();
    let mut frame = tcp.bytes();
    frame.truncate(if family.is_v4() { 34 } else { 54 });
    frame.extend(body);
    if family.is_v4() {
        frame[16..18].copy_from_slice(&(20 + body.len() as u16).to_be_bytes());
        frame[23] = protocol;
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&(body.len() as u16).to_be_bytes());
        frame[20] = protocol;
    }
    frame
}

/// Returns the ICMP error that answers a packet of [`datagram`]; it quotes the IP header and 8 bytes (RFC
/// 792, RFC 4443).
fn unreachable(family: Family, asked: &[u8], code: u8) -> Vec<u8> {
    let (ip_bytes, kind) = if family.is_v4() { (20, 3) } else { (40, 1) };
    let mut message = vec![kind, code, 0, 0, 0, 0, 0, 0];
    message.extend(&asked[14..14 + ip_bytes + 8]);
    let sum = if family.is_v4() {
        checksum(&message, 0)
    } else {
        transport_checksum(vip(family), client(family), ICMP_V6, &message)
    };
    message[2..4].copy_from_slice(&sum.to_be_bytes());
    let mut frame = dial(family).to_client().bytes();
    frame.truncate(14 + ip_bytes);
    if family.is_v4() {
        frame[16..18].copy_from_slice(&(20 + message.len() as u16).to_be_bytes());
        frame[20..22].fill(0);
        frame[23] = ICMP;
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&(message.len() as u16).to_be_bytes());
        frame[20] = ICMP_V6;
    }
    frame.extend(message);
    frame
}

#[track_caller]
fn assert_unreachable(outcome: &Outcome, expected: &[u8]) {
    assert_eq!(outcome.counted, [(Reason::ClassifyUnreachable, 1)]);
    assert_eq!(outcome.verdict, verdict::REDIRECT);
    assert_bytes(&outcome.packet, expected);
    assert_eq!(outcome.emitted, []);
}

#[test]
fn other_destinations_are_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // An address of the node that is neither VIP nor source.
        programs.address(host(family, 1, 77), ROLE_OWN);
        for number in [77, 78] {
            let frame =
                segment(dial(family).client(), (host(family, 1, number), 443).into()).syn(ISN).bytes();
            assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::NotOurs);
        }
    }
}

#[test]
fn ports_without_listener_are_the_nodes_where_the_address_is() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.address(vip(family), ROLE_VIP | ROLE_OWN);
        for frame in [
            dial(family).to_port(22).syn().bytes(),
            dial(family).to_port(22).segment().ack(1).payload(*b"data").bytes(),
            dial(family).to_port(22).segment().rst().bytes(),
            datagram(family, UDP, &[0, 53, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]),
            datagram(family, if family.is_v4() { ICMP } else { ICMP_V6 }, &[8; 16]),
        ] {
            assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ClassifyOwnPort);
        }
        // The listener's own port is still ours.
        dial(family).shake(&mut programs);
    }
}

#[test]
fn traffic_of_the_node_itself_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let source = (balancer(family, TENANT_NETS[0]), 50_000).into();
        let tcp = segment((host(family, 2, 9), 80).into(), source)
            .ethernet(Device::Backend.near_mac(), Device::Backend.far_mac());
        let mut udp = datagram(family, UDP, &[0, 53, 0, 53, 0, 12, 0, 0, 1, 2, 3, 4]);
        let at = if family.is_v4() { 30 } else { 38 };
        let tcp_frame = tcp.bytes();
        udp[..12].copy_from_slice(&tcp_frame[..12]);
        let bytes = if family.is_v4() { 4 } else { 16 };
        udp[at..at + bytes].copy_from_slice(&tcp_frame[at..at + bytes]);
        for frame in [
            tcp.clone().syn(ISN).bytes(),
            tcp.clone().flags(flag::SYN).ack(9).bytes(),
            tcp.ack(1).payload(*b"data").bytes(),
            udp,
        ] {
            let outcome = programs.ingress(Device::Backend, &frame);
            assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
        }
    }
}

#[test]
fn a_vip_that_is_also_a_source_address_serves_clients() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.address(vip(family), ROLE_VIP | ROLE_SOURCE | ROLE_OWN);
        dial(family).shake(&mut programs);
        let frame = dial(family).to_port(22).syn().bytes();
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ClassifyOwnPort);
    }
}

#[test]
fn a_port_without_listener_answers_with_rst() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let closed = dial(family).to_port(444);
        let plain = closed.segment().seq(ISN);
        for asked in [
            closed.syn(),
            plain.clone().ack(7_000),
            plain.clone().ack(7_000).payload(*b"data"),
            plain.clone().ack(7_000).fin(),
            plain.clone().flags(flag::SYN).ack(7_000),
            // Without an ACK to quote, the RST acknowledges the whole segment.
            plain.clone().fin().payload(*b"data"),
            plain.fin(),
        ] {
            let outcome = programs.ingress(Device::Client, &asked.bytes());
            assert_sent(&outcome, Reason::ClassifyNoListener, &reset_of(&asked));
        }
    }
}

#[test]
fn icmp_and_what_is_too_short_to_quote_are_never_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (protocol, body) in
            [(ICMP, [8; 64].as_slice()), (ICMP_V6, &[128; 64]), (UDP, &[0x9c, 0x40, 0x01, 0xbb, 0, 8, 0])]
        {
            let asked = datagram(family, protocol, body);
            assert_dropped(&programs.ingress(Device::Client, &asked), Reason::ClassifyDropped);
        }
    }
}

#[test]
fn rst_to_a_port_without_listener_is_never_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let plain = dial(family).to_port(444).segment().seq(ISN);
        for asked in [plain.clone().rst(), plain.rst().ack(7_000)] {
            let outcome = programs.ingress(Device::Client, &asked.bytes());
            assert_dropped(&outcome, Reason::ClassifyDropped);
        }
    }
}

#[test]
fn udp_is_answered_with_port_unreachable() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for body in [vec![0x9c, 0x40, 0x01, 0xbb, 0, 8, 0, 0], (0..=255).cycle().take(1200).collect()] {
            let asked = datagram(family, UDP, &body);
            let code = if family.is_v4() { 3 } else { 4 };
            let outcome = programs.ingress(Device::Client, &asked);
            assert_unreachable(&outcome, &unreachable(family, &asked, code));
        }
    }
}

#[test]
fn other_protocols_are_answered_with_unreachable() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for protocol in [SCTP, GRE, 255] {
            let asked = datagram(family, protocol, &[0x5a; 33]);
            // Protocol unreachable. ICMPv6 has no such code, so port unreachable is used instead.
            let code = if family.is_v4() { 2 } else { 4 };
            let outcome = programs.ingress(Device::Client, &asked);
            assert_unreachable(&outcome, &unreachable(family, &asked, code));
        }
    }
}

#[test]
fn frames_for_another_host_are_not_ours() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // A frame for another MAC, as a device in promiscuous mode receives it.
        let frame = dial(family).syn().ethernet([2, 0, 0, 0, 9, 9], Device::Client.far_mac()).bytes();
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::NotOurs);
    }
}

#[test]
fn neighbour_discovery_is_the_nodes_own() {
    tests::skip_without_root!();
    let mut programs = ready();
    for kind in 133..=137 {
        let mut body = [0; 32];
        body[0] = kind;
        let frame = datagram(Family::V6, ICMP_V6, &body);
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ClassifyOwnTraffic);
    }
}
