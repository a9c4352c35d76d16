//! Devices that give the sum over each packet (CHECKSUM_COMPLETE): what we change of the packet, we change of its sum, or the
//! next kernel that sees it distrusts the device.

use common::reason::Reason;
use tests::addresses::{FAMILIES, client as client_of, vip};
use tests::icmp::{Icmp, echo, too_big, unreachable};
use tests::packet::{Segment, flag};
use tests::program::{Outcome, Programs};
use tests::world::Device;

use crate::classify::datagram;
use crate::icmp::error;
use crate::open::{HELLO, Open, open, open_with};
use crate::parse::harmless;
use crate::scene::{ISN, Offer, dial, ready, stamped, usual_hello};
use crate::setup::forget_all;

/// Runs the frame with its sum, which is then compared with the packet, and asserts the reason.
#[track_caller]
fn run(programs: &mut Programs, device: Device, frame: &[u8], reason: Reason) -> Outcome {
    let outcome = programs.ingress_summed(device, frame);
    assert_eq!(outcome.counted, [(reason, 1)]);
    outcome
}

#[track_caller]
fn give(programs: &mut Programs, device: Device, segment: &Segment, reason: Reason) {
    run(programs, device, &segment.bytes(), reason);
}

/// The answer is as long as the question: the kernel does not keep the sum of a packet that gets another length.
#[test]
fn the_sum_of_an_answer_fits() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        give(&mut programs, Device::Client, &dial(family).syn(), Reason::SynAnswered);
        let client = dial(family).shake(&mut programs);
        give(&mut programs, Device::Client, &client.at(0).seq(ISN), Reason::SynKeepAlive);
        let bare = dial(family).to_port(444).segment().seq(ISN).ack(7_000);
        give(&mut programs, Device::Client, &bare, Reason::ClassifyNoListener);
        // The SYN to a backend, in place of a segment of its length.
        client.give(&mut programs, &client.at(0).payload(&usual_hello()[..509]));
        give(
            &mut programs,
            Device::Client,
            &client.at(509).payload(&usual_hello()[509..]),
            Reason::ConnectSyn,
        );
        let ping = Icmp::new(echo(family), client_of(family), vip(family))
            .ethernet(Device::Client.near_mac(), Device::Client.far_mac())
            .hop_limit(3)
            .body([7; 57]);
        run(&mut programs, Device::Client, &ping.bytes(), Reason::IcmpEcho);
        // Unreachable: the answer quotes the IP header and eight bytes.
        let length = 8 + if family.is_v4() { 28 } else { 48 };
        let asked = datagram(family, 17, &vec![0x5a; length]);
        run(&mut programs, Device::Client, &asked, Reason::ClassifyUnreachable);
        forget_all(&mut programs);
    }
}

/// Sends segments of many kinds in both directions.
fn both_ways(programs: &mut Programs, open: Open) {
    let sack = |segment: Segment| segment.sack(&[(5_000, 6_000)]);
    let client = [
        open.client_segment(HELLO, 0).psh().payload(*b"odd"),
        open.client_segment(HELLO + 3, 0).payload(vec![0x5a; 1_300]),
        open.client_segment(HELLO, 0).hop_limit(2),
        open.client_segment(HELLO, 0).hop_limit(255).flags(flag::ECE | flag::URG),
        sack(open.client_segment(HELLO, 0)),
        open.client_segment(HELLO + 1_303, 0).fin(),
    ];
    for segment in client {
        give(programs, Device::Client, &segment, Reason::ForwardBackend);
    }
    let backend = [
        open.backend_segment(0, HELLO).psh().payload(*b"odd"),
        open.backend_segment(3, HELLO).payload(vec![0xa5; 1_300]),
        sack(open.backend_segment(0, HELLO)),
        open.backend_segment(1_303, HELLO + 1_304).fin(),
    ];
    for segment in backend {
        give(programs, Device::Backend, &segment, Reason::ForwardClient);
    }
}

#[test]
fn the_sum_of_a_forwarded_packet_fits() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let linux = open(&mut programs, family);
        both_ways(&mut programs, linux);
        let declined = open_with(&mut programs, dial(family).port(40_001), Offer::plain(1460));
        both_ways(&mut programs, declined);
        let plain = dial(family).port(40_002).offer(Offer::plain(1440));
        let plain = open_with(&mut programs, plain, Offer::plain(1460));
        both_ways(&mut programs, plain);
        let acked = plain.client_segment(HELLO + 1_304, 1_304);
        give(&mut programs, Device::Client, &acked, Reason::ForwardBackend);
        let rst = plain.backend_segment(1_304, HELLO + 1_304).rst();
        give(&mut programs, Device::Backend, &rst, Reason::ForwardReset);
        forget_all(&mut programs);
    }
}

#[test]
fn the_sum_of_a_packet_whose_options_are_taken_off_fits() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let up = open.client_segment(HELLO, 0).payload([0x5a; 701]).bytes();
        for frame in harmless(&up, family) {
            run(&mut programs, Device::Client, &frame, Reason::ForwardBackend);
        }
        let down = open.backend_segment(0, HELLO).payload([0xa5; 701]).bytes();
        for frame in harmless(&down, family) {
            run(&mut programs, Device::Backend, &frame, Reason::ForwardClient);
        }
        forget_all(&mut programs);
    }
}

#[test]
fn the_sum_of_an_icmp_error_fits() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let up = open.client_segment(HELLO, 0).payload(vec![0x5a; 1_200]);
        open.pass_to_backend(&mut programs, &up);
        let down = open.backend_segment(0, HELLO).payload(vec![0xa5; 1_200]);
        open.pass_to_client(&mut programs, &down);
        for quoted in [8, 20, 32, 501] {
            let about = error(Device::Backend, too_big(family), &open.at_backend(&up), quoted);
            run(&mut programs, Device::Backend, &about.bytes(), Reason::IcmpToClient);
            // "Too big" about one IPv4 client is kept from its backend.
            let kind = if family.is_v4() { unreachable(family) } else { too_big(family) };
            let about = error(Device::Client, kind, &open.at_client(&down), quoted);
            run(&mut programs, Device::Client, &about.bytes(), Reason::IcmpToBackend);
        }
        forget_all(&mut programs);
    }
}

/// What is handed on or dropped keeps its sum: a query about its checksum leaves no trace.
#[test]
fn the_sum_of_a_packet_that_is_not_sent_fits() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let mut own = open.backend_segment(0, HELLO).payload(*b"data");
        own.to.set_port(22);
        give(&mut programs, Device::Backend, &own, Reason::ClassifyOwnTraffic);
        let client = dial(family).port(40_001).shake(&mut programs);
        let part = client.at(0).payload(&usual_hello()[..300]);
        give(&mut programs, Device::Client, &part, Reason::HelloBuffered);
        let stray = stamped(dial(family).port(40_002).segment().rst().seq(7), 1, 2);
        give(&mut programs, Device::Client, &stray, Reason::SynStray);
        forget_all(&mut programs);
    }
}
