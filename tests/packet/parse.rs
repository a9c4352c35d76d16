//! Packets that are not plain TCP segments, and malformed segments.

use std::net::IpAddr;

use common::maps::listener::{ROLE_OWN, ROLE_SOURCE, ROLE_VIP};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TENANT_NETS, balancer, client, vip};
use tests::icmp::{Icmp, echo};
use tests::packet::{ETHERNET_BYTES, Segment, checksum, flag, segment};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, assert_sent, reset_of, sent};
use crate::open::{HELLO, open};
use crate::scene::{ISN, dial, ready, usual_hello};

/// Returns the offset of the TCP header in a frame.
fn tcp_at(family: Family) -> usize {
    ETHERNET_BYTES + if family.is_v4() { 20 } else { 40 }
}

/// Returns the usual SYN as bytes.
fn syn(family: Family) -> Vec<u8> {
    dial(family).syn().bytes()
}

/// Returns the frame with the correct length of its IP packet.
fn with_length(mut frame: Vec<u8>, family: Family) -> Vec<u8> {
    let (at, length) = if family.is_v4() { (16, frame.len() - 14) } else { (18, frame.len() - 54) };
    frame[at..at + 2].copy_from_slice(&(length as u16).to_be_bytes());
    frame
}

/// Returns the frame with IPv4 options, whose length is a multiple of four.
fn with_ipv4_options(mut frame: Vec<u8>, options: &[u8]) -> Vec<u8> {
    frame.splice(34..34, options.iter().copied());
    frame[14] = 0x45 + (options.len() / 4) as u8;
    let mut frame = with_length(frame, Family::V4);
    frame[24..26].fill(0);
    let sum = checksum(&frame[14..34 + options.len()], 0);
    frame[24..26].copy_from_slice(&sum.to_be_bytes());
    frame
}

/// Returns the frame with one more extension header right after the IPv6 header; `rest` is its length and options.
fn with_header(mut frame: Vec<u8>, kind: u8, rest: &[u8]) -> Vec<u8> {
    let header = [&[frame[20]], rest].concat();
    frame.splice(54..54, header);
    frame[20] = kind;
    with_length(frame, Family::V6)
}

/// Returns the frame with an 8-byte extension header of padding.
fn with_padding(frame: Vec<u8>, kind: u8) -> Vec<u8> {
    with_header(frame, kind, &[0, 1, 4, 0, 0, 0, 0])
}

/// Returns a SYN with an 8-byte extension header of padding.
fn with_extension(kind: u8) -> Vec<u8> {
    with_padding(syn(Family::V6), kind)
}

/// Returns an IPv4 packet with these flags and fragment offset.
fn fragment_v4(word: u16) -> Vec<u8> {
    let mut frame = syn(Family::V4);
    frame[20..22].copy_from_slice(&word.to_be_bytes());
    frame
}

/// Returns the frame with options that may not be read over.
pub(crate) fn refused(frame: &[u8], family: Family) -> Vec<(&'static str, Vec<u8>)> {
    let frame = frame.to_vec();
    if family.is_v4() {
        let v4 = |options: &[u8]| with_ipv4_options(frame.clone(), options);
        return vec![
            ("IPv4 loose source route", v4(&[131, 7, 4, 192, 0, 2, 1, 0])),
            ("IPv4 strict source route", v4(&[1, 137, 3, 4])),
            ("IPv4 option without length", v4(&[7, 0, 4, 0])),
            ("IPv4 option longer than the header", v4(&[7, 11, 4, 0, 0, 0, 0, 0])),
        ];
    }
    let v6 = |kind: u8, rest: &[u8]| with_header(frame.clone(), kind, rest);
    let padded = |kind: u8| with_padding(frame.clone(), kind);
    vec![
        ("routing header", padded(43)),
        ("authentication header", v6(51, &[0, 1, 4, 0, 0, 0, 0])),
        ("routing behind hop-by-hop", with_padding(padded(43), 0)),
        ("option to be refused", v6(60, &[0, 0xc2, 4, 0, 0, 0, 0])),
        ("option to be dropped", v6(0, &[0, 0x5e, 4, 0, 0, 0, 0])),
        ("option longer than its header", v6(0, &[0, 1, 5, 0, 0, 0, 0])),
        ("five headers", (0..4).fold(padded(60), |frame, _| with_padding(frame, 60))),
    ]
}

/// Returns packets that are refused for something before the TCP header.
fn unusual() -> Vec<(&'static str, Vec<u8>, Reason)> {
    let fragments = [
        ("first fragment", fragment_v4(0x2000)),
        ("later fragment", fragment_v4(0x2001)),
        ("last fragment", fragment_v4(0x00b9)),
        ("fragment header", with_extension(44)),
    ];
    let all = fragments.map(|(what, frame)| (what, frame, Reason::ParseFragment)).into_iter();
    let options = FAMILIES.into_iter().flat_map(|family| refused(&syn(family), family));
    let beyond = with_header(syn(Family::V6), 0, &[90, 1, 4, 0, 0, 0, 0]);
    let options = options.chain([("header longer than the packet", beyond)]);
    all.chain(options.map(|(what, frame)| (what, frame, Reason::ParseOptions))).collect()
}

#[test]
fn what_is_not_ip_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for kind in [[0x08, 0x06], [0x81, 0x00], [0x88, 0xcc]] {
        let mut frame = syn(Family::V4);
        frame[12..14].copy_from_slice(&kind);
        let outcome = programs.ingress(Device::Client, &frame);
        assert_handed_on(&outcome, &frame, Reason::ParseNotIp);
    }
    // The fuzzer's: a header of another version was passed on to a backend.
    for version in [0, 4, 5, 7, 15] {
        let mut frame = syn(Family::V6);
        frame[14] = version << 4;
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ParseNotIp);
    }
}

/// Returns the address as IPv6 writes it in sockets, and nobody in packets.
pub(crate) fn mapped(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(v4) => IpAddr::V6(v4.to_ipv6_mapped()),
        v6 => v6,
    }
}

/// Returns the frame of an IPv4 segment as IPv6, with mapped addresses where it says so: of the sender, of the receiver.
pub(crate) fn as_mapped(mut segment: Segment, [from, to]: [bool; 2]) -> Vec<u8> {
    let other = |is_mapped: bool, v4: IpAddr, v6: IpAddr| if is_mapped { mapped(v4) } else { v6 };
    segment.from.set_ip(other(from, segment.from.ip(), client(Family::V6)));
    segment.to.set_ip(other(to, segment.to.ip(), vip(Family::V6)));
    segment.bytes()
}

/// A table's keys have IPv4 addresses in this form: in an IPv6 packet they would be another client's and another VIP's.
#[test]
fn mapped_addresses_in_ipv6_packets_are_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for both in [[true, true], [true, false], [false, true]] {
        let frame = as_mapped(dial(Family::V4).syn(), both);
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ParseNotIp);
    }
    let open = open(&mut programs, Family::V4);
    let flow = open.flow(&programs);
    for segment in
        [open.client_segment(HELLO, 0).psh().payload(*b"data"), open.client_segment(HELLO, 0).rst()]
    {
        let frame = as_mapped(segment, [true, true]);
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::ParseNotIp);
    }
    let frame = as_mapped(open.backend_segment(0, HELLO).fin(), [true, true]);
    assert_handed_on(&programs.ingress(Device::Backend, &frame), &frame, Reason::ParseNotIp);
    assert_eq!(open.flow(&programs), flow, "it is of another client");
    let ping = Icmp::new(echo(Family::V6), mapped(client(Family::V4)), mapped(vip(Family::V4)));
    let ping = ping.ethernet(Device::Client.near_mac(), Device::Client.far_mac()).bytes();
    assert_handed_on(&programs.ingress(Device::Client, &ping), &ping, Reason::ParseNotIp);
}

#[test]
fn a_packet_that_ends_before_its_length_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let whole = syn(family);
        // Cut within TCP's fixed part, within its options, and by one byte.
        for end in [tcp_at(family) + 10, tcp_at(family) + 30, whole.len() - 1] {
            let outcome = programs.ingress(Device::Client, &whole[..end]);
            assert_dropped(&outcome, Reason::ParseTruncated);
        }
    }
}

#[test]
fn fragments_and_headers_that_ask_for_more_are_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for (what, frame, reason) in unusual() {
        let outcome = programs.ingress(Device::Client, &frame);
        assert_eq!(outcome.counted, [(reason, 1)], "{what}");
        assert_dropped(&outcome, reason);
    }
}

#[test]
fn fragments_options_and_extension_headers_for_the_nodes_own_address_are_handed_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.address(vip(family), ROLE_VIP | ROLE_OWN);
    }
    for (what, frame, _) in unusual() {
        if ["first fragment", "fragment header"].contains(&what) {
            // The listener is ours: the node's stack would reassemble the packet and answer with RST.
            continue;
        }
        let outcome = programs.ingress(Device::Client, &frame);
        assert_eq!(outcome.counted, [(Reason::ClassifyOwnPort, 1)], "{what}");
        assert_handed_on(&outcome, &frame, Reason::ClassifyOwnPort);
    }
}

/// Returns the frame as a first fragment.
pub(crate) fn first_fragment(mut frame: Vec<u8>) -> Vec<u8> {
    if frame[12] == 0x08 {
        frame[20] |= 0x20;
        frame[24..26].fill(0);
        let sum = checksum(&frame[14..34], 0);
        frame[24..26].copy_from_slice(&sum.to_be_bytes());
        return frame;
    }
    with_header(frame, 44, &[0, 0, 1, 0, 0, 0, 9])
}

#[test]
fn a_first_fragment_of_a_connection_is_never_left_to_the_nodes_stack() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.address(vip(family), ROLE_VIP | ROLE_OWN);
        let open = open(&mut programs, family);
        let up = first_fragment(open.client_segment(HELLO, 0).payload([1; 800]).bytes());
        assert_dropped(&programs.ingress(Device::Client, &up), Reason::ParseFragment);
        let down = first_fragment(open.backend_segment(0, HELLO).payload([1; 800]).bytes());
        assert_dropped(&programs.ingress(Device::Backend, &down), Reason::ParseFragment);
        // The node's own port.
        let own = first_fragment(dial(family).to_port(22).syn().bytes());
        assert_handed_on(&programs.ingress(Device::Client, &own), &own, Reason::ClassifyOwnPort);
    }
}

/// Returns the frame with several forms of options that an end host skips.
pub(crate) fn harmless(frame: &[u8], family: Family) -> Vec<Vec<u8>> {
    if family.is_v4() {
        let record_route = [[7, 39, 4].as_slice(), &[0; 36], &[0]].concat();
        return [[1, 1, 1, 0].as_slice(), &[148, 4, 0, 0], &[0, 9, 9, 9], &record_route, &[1; 40]]
            .map(|options| with_ipv4_options(frame.to_vec(), options))
            .to_vec();
    }
    let padding = |kind| with_padding(frame.to_vec(), kind);
    let long = [[31].as_slice(), &[1, 252], &[0; 252]].concat();
    vec![
        padding(0),
        padding(60),
        with_padding(padding(60), 0),
        with_header(frame.to_vec(), 60, &[0, 0, 0, 0, 0, 0, 0]),
        with_header(frame.to_vec(), 60, &[0, 0x1e, 4, 1, 2, 3, 4]),
        with_header(frame.to_vec(), 0, &[[1].as_slice(), &[5, 2, 0, 0], &[1, 8], &[0; 8]].concat()),
        with_header(frame.to_vec(), 60, &long),
        (0..3).fold(padding(60), |frame, _| with_padding(frame, 60)),
    ]
}

#[test]
fn options_that_may_be_read_over_are_taken_off() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for frame in harmless(&syn(family), family) {
            let outcome = programs.ingress(Device::Client, &frame);
            assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)], "{frame:02x?}");
            sent(&outcome);
        }
        // Data of an open flow reaches the backend without the options.
        let open = open(&mut programs, family);
        let segment = open.client_segment(HELLO, 0).psh().payload([0x5a; 700]);
        for frame in harmless(&segment.bytes(), family) {
            let outcome = programs.ingress(Device::Client, &frame);
            assert_sent(&outcome, Reason::ForwardBackend, &open.at_backend(&segment));
        }
        // Corrupted packets are dropped.
        for mut frame in harmless(&syn(family), family) {
            let last = frame.len() - 1;
            frame[last] ^= 1;
            assert_dropped(&programs.ingress(Device::Client, &frame), Reason::ParseTcpChecksum);
        }
    }
    let mut frame = harmless(&syn(Family::V4), Family::V4).remove(0);
    frame[15] ^= 4;
    assert_dropped(&programs.ingress(Device::Client, &frame), Reason::ParseOptions);
}

#[test]
fn a_tcp_header_of_an_impossible_length_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // Shorter than the fixed part; longer than the packet.
        for words in [0, 4, 11] {
            let mut frame = syn(family);
            frame[tcp_at(family) + 12] = words << 4;
            assert_dropped(&programs.ingress(Device::Client, &frame), Reason::ParseTcpHeader);
        }
    }
}

#[test]
fn impossible_flags_are_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for flags in [
            flag::SYN | flag::FIN,
            flag::SYN | flag::RST,
            flag::FIN | flag::RST | flag::ACK,
            flag::SYN | flag::FIN | flag::RST,
            0xff,
            // None of ACK, SYN, FIN and RST.
            0,
            flag::PSH | flag::URG,
        ] {
            let frame = dial(family).segment().flags(flags).bytes();
            assert_dropped(&programs.ingress(Device::Client, &frame), Reason::ParseFlags);
        }
    }
}

#[test]
fn padding_behind_the_packet_is_no_payload() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let mut frame = client.at(0).bytes();
        frame.extend([0; 6]);
        assert_dropped(&programs.ingress(Device::Client, &frame), Reason::SynAcked);
        // A segment that is answered: the answer does not acknowledge the padding.
        let syn = dial(family).to_port(444).syn();
        let mut frame = syn.bytes();
        frame.extend([0xee; 6]);
        let outcome = programs.ingress(Device::Client, &frame);
        assert_sent(&outcome, Reason::ClassifyNoListener, &reset_of(&syn));
    }
}

#[test]
fn a_length_of_zero_means_the_whole_packet() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let mut frame = client.at(0).payload(usual_hello()).bytes();
        let at = if family.is_v4() { 16 } else { 18 };
        frame[at..at + 2].fill(0);
        if family.is_v4() {
            frame[24..26].fill(0);
            let sum = checksum(&frame[14..34], 0);
            frame[24..26].copy_from_slice(&sum.to_be_bytes());
        }
        let outcome = programs.ingress(Device::Client, &frame);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        assert_eq!(client.waiting(&programs).unwrap().have as usize, usual_hello().len());
    }
}

#[test]
fn options_are_read_in_any_order_and_garbage_ends_them() {
    tests::skip_without_root!();
    let mut programs = ready();
    let raw = |bytes: &[u8]| tests::tcp_option::TcpOption::Raw(bytes.to_vec());
    for family in FAMILIES {
        let syn = dial(family).segment().syn(ISN);
        let shuffled = syn.clone().window_scale(3).timestamps(77, 0).mss(900).option(raw(&[1, 4, 2]));
        let answer = sent(&programs.ingress(Device::Client, &shuffled.bytes()));
        let kinds = tests::tcp_option::encode(&answer.options);
        assert_eq!(kinds[4..6], [4, 2], "SACK permitted");
        assert_eq!(kinds[12..16], 77u32.to_be_bytes(), "the timestamp is echoed");
        assert_eq!(kinds[17..20], [3, 3, 7], "our window scale");
        // Nothing is read after an option length of 0, 1, or past the end of the header, and the parser does
        // not loop.
        for broken in [[30, 0, 4, 2], [30, 1, 4, 2], [30, 9, 4, 2]] {
            let answer = sent(&programs.ingress(Device::Client, &syn.clone().option(raw(&broken)).bytes()));
            let kinds = tests::tcp_option::encode(&answer.options);
            assert_eq!(kinds[4..], [1; 16], "only our segment size");
        }
    }
}

#[test]
fn a_malformed_segment_for_a_source_address_is_the_nodes_own() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let own = (balancer(family, TENANT_NETS[0]), 22).into();
        for role in [ROLE_SOURCE, ROLE_SOURCE | ROLE_OWN] {
            programs.address(balancer(family, TENANT_NETS[0]), role);
            let segment = segment(dial(family).client(), own)
                .ethernet(Device::Client.near_mac(), Device::Client.far_mac());
            let good = segment.clone().syn(ISN).bytes();
            let mut short_header = good.clone();
            short_header[tcp_at(family) + 12] = 4 << 4;
            let flags = segment.flags(flag::SYN | flag::FIN).bytes();
            for frame in [short_header, flags, good[..good.len() - 5].to_vec()] {
                let outcome = programs.ingress(Device::Client, &frame);
                assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
            }
        }
    }
}
