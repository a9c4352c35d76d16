//! Segments corrupted in transit: none of their content is kept, acknowledged, answered or trusted.

use common::maps::flow::{FLOW_ESTABLISHED, FLOW_SYN_SEEN};
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::compare::assert_bytes;
use tests::packet::{Segment, flag, transport_checksum};
use tests::program::{Programs, verdict};
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, assert_sent, reset_of, sent};
use crate::open::{HELLO, open};
use crate::scene::{ISN, dial, ready, usual_hello};

/// Returns the offset of the TCP header in a frame.
fn tcp_at(family: Family) -> usize {
    if family.is_v4() { 34 } else { 54 }
}

/// Returns the segment with one bit of its last byte flipped.
fn changed(segment: &Segment) -> Vec<u8> {
    let mut frame = segment.bytes();
    *frame.last_mut().expect("a segment has bytes") ^= 0x10;
    frame
}

#[track_caller]
fn assert_refused(programs: &mut Programs, device: Device, segment: &Segment) {
    assert_dropped(&programs.ingress(device, &changed(segment)), Reason::ParseTcpChecksum);
}

#[test]
fn a_syn_that_was_changed_is_not_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let dial = dial(family);
        assert_refused(&mut programs, Device::Client, &dial.syn());
        assert_refused(&mut programs, Device::Client, &dial.to_port(444).syn());
        dial.shake(&mut programs);
    }
}

#[test]
fn a_hello_that_was_changed_is_neither_kept_nor_acknowledged_nor_parsed() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        // A complete hello, with a name that has a backend.
        assert_refused(&mut programs, Device::Client, &client.at(0).psh().payload(hello.clone()));
        // A hello in parts: the first has PSH and would be acknowledged, the second completes the hello.
        assert_refused(&mut programs, Device::Client, &client.at(0).psh().payload(&hello[..100]));
        assert!(client.waiting(&programs).is_none());
        let first = client.at(0).psh().payload(&hello[..100]);
        assert_eq!(client.give(&mut programs, &first).counted, [(Reason::HelloAcked, 1)]);
        for bad in [
            client.at(100).psh().payload(&hello[100..]),
            client.at(0).psh().payload(&hello[..100]),
            client.at(100).fin(),
            client.at(100).rst(),
        ] {
            assert_refused(&mut programs, Device::Client, &bad);
            assert_eq!(client.waiting(&programs).map(|hello| (hello.have, hello.acked)), Some((100, 100)));
        }
        let outcome = client.send(&mut programs, 100, &hello[100..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    }
}

#[test]
fn a_backends_answer_that_was_changed_opens_and_refuses_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        assert_refused(&mut programs, Device::Backend, &backend.syn_ack());
        let rst = backend.segment().rst().ack(crate::scene::behind(ISN, 0)).window(0);
        assert_refused(&mut programs, Device::Backend, &rst);
        assert!(client.flow(&programs).is_none());
        backend.accept(&mut programs);
    }
}

#[test]
fn what_would_end_or_replace_a_flow_must_be_what_was_sent() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let before = open.flow(&programs);
        for bad in [
            open.client_segment(HELLO, 0).rst(),
            open.client_segment(HELLO, 0).fin(),
            open.client.dial.segment().syn(ISN ^ 0x5555),
        ] {
            assert_refused(&mut programs, Device::Client, &bad);
        }
        for bad in [
            open.backend_segment(0, HELLO).rst(),
            open.backend_segment(0, HELLO).fin(),
            open.backend.syn_ack(),
        ] {
            assert_refused(&mut programs, Device::Backend, &bad);
        }
        let after = open.flow(&programs);
        assert_eq!((after.connection.state, after.connection.flags), (FLOW_ESTABLISHED, 0));
        assert_eq!(after, before);
        // The uncorrupted SYN marks the flow when it comes again.
        let syn = open.client.dial.segment().syn(ISN ^ 0x5555);
        assert_eq!(open.client.give(&mut programs, &syn).counted, [(Reason::SynChallenged, 1)]);
        open.age_syn(&mut programs);
        let outcome = programs.ingress(Device::Client, &syn.bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        assert_eq!(open.flow(&programs).connection.flags, FLOW_SYN_SEEN);
        // A corrupted acknowledgement of the new handshake replaces nothing.
        let proof = dial(family).segment().seq(ISN ^ 0x5556).ack(sent(&outcome).seq.wrapping_add(1));
        assert_refused(&mut programs, Device::Client, &proof.psh().payload(usual_hello()));
        assert_eq!(open.flow(&programs).connection.state, FLOW_ESTABLISHED);
    }
}

#[test]
fn a_changed_acknowledgement_frees_nothing_that_we_owe() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.give(&mut programs, &client.at(0).psh().payload(&hello[..300]));
        let outcome = client.send(&mut programs, 300, &hello[300..]);
        let backend = crate::scene::Backend::of(&sent(&outcome));
        backend.accept(&mut programs);
        let acked = backend.at(0, HELLO);
        assert_refused(&mut programs, Device::Backend, &acked);
        assert!(client.waiting(&programs).is_some(), "still ours to deliver");
        assert_eq!(backend.give(&mut programs, &acked).counted, [(Reason::ForwardClient, 1)]);
        assert!(client.waiting(&programs).is_none());
    }
}

#[test]
fn changed_data_of_an_open_flow_stays_wrong_for_the_end_host() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let segment = open.client_segment(HELLO, 0).psh().payload(*b"data");
        let outcome = programs.ingress(Device::Client, &changed(&segment));
        assert_eq!(
            (outcome.verdict, outcome.counted.as_slice()),
            (verdict::REDIRECT, [(Reason::ForwardBackend, 1)].as_slice())
        );
        assert_bytes(&outcome.packet, &changed(&open.at_backend(&segment)));
        let segment = open.backend_segment(0, HELLO).psh().payload(*b"data");
        let outcome = programs.ingress(Device::Backend, &changed(&segment));
        assert_bytes(&outcome.packet, &changed(&open.at_client(&segment)));
    }
}

#[test]
fn every_bit_and_every_length_counts() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let plain = dial(family).to_port(444).segment().seq(ISN).ack(7_000);
        for length in (0..9).chain(470..530).chain(1_000..1_030).chain([1_400, 1_459]) {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 37 + 5) as u8).collect();
            let segment = plain.clone().payload(bytes);
            let outcome = programs.ingress(Device::Client, &segment.bytes());
            assert_sent(&outcome, Reason::ClassifyNoListener, &reset_of(&segment));
        }
        let frame = plain.payload([0xa5; 9]).bytes();
        // Every byte from the sequence number on, except data offset and flags: those are refused for other reasons.
        for at in (tcp_at(family) + 4..frame.len()).filter(|at| ![12, 13].contains(&(at - tcp_at(family)))) {
            for bit in 0..8 {
                let mut bad = frame.clone();
                bad[at] ^= 1 << bit;
                assert_dropped(&programs.ingress(Device::Client, &bad), Reason::ParseTcpChecksum);
            }
        }
    }
}

#[test]
fn a_checksum_that_looks_like_one_left_to_a_device_is_right_or_wrong() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let plain = dial(family).to_port(444).segment().seq(ISN).ack(7_000);
        let at = tcp_at(family);
        let (from, to) = (plain.from.ip(), plain.to.ip());
        // With checksum offload the sender leaves only the pseudo-header's sum in the field.
        let pseudo = !transport_checksum(from, to, 6, &[0; 22]);
        let field = |fill: u16| {
            let segment = plain.clone().payload(fill.to_be_bytes());
            let frame = segment.bytes();
            (u16::from_be_bytes([frame[at + 16], frame[at + 17]]), segment)
        };
        let (_, alike) = (0..=u16::MAX).map(field).find(|(sum, _)| *sum == pseudo).expect("one of all fits");
        let outcome = programs.ingress(Device::Client, &alike.bytes());
        assert_sent(&outcome, Reason::ClassifyNoListener, &reset_of(&alike));
        // The same checksum field over other bytes.
        let mut bad = alike.bytes();
        bad[at + 21] ^= 1;
        assert_dropped(&programs.ingress(Device::Client, &bad), Reason::ParseTcpChecksum);
        // On a flow, a FIN with such a checksum is verified and passes unchanged.
        let open = open(&mut programs, family);
        let fin = |fill: u16| {
            let segment = open.client_segment(HELLO, 0).flags(flag::FIN).payload(fill.to_be_bytes());
            let frame = segment.bytes();
            (u16::from_be_bytes([frame[at + 16], frame[at + 17]]), segment)
        };
        let length = 32 + 2;
        let pseudo = !transport_checksum(from, to, 6, &vec![0; length]);
        let (_, alike) = (0..=u16::MAX).map(fin).find(|(sum, _)| *sum == pseudo).expect("one of all fits");
        open.pass_to_backend(&mut programs, &alike);
    }
}

#[test]
fn an_ipv4_header_that_was_changed_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    let open = open(&mut programs, Family::V4);
    let before = open.flow(&programs);
    // Type of service, identification, TTL, and the checksum itself.
    for at in [15, 18, 19, 22, 24, 25] {
        for segment in [dial(Family::V4).syn(), open.client_segment(HELLO, 0).payload(*b"data")] {
            let mut frame = segment.bytes();
            frame[at] ^= 0x04;
            assert_dropped(&programs.ingress(Device::Client, &frame), Reason::ParseIpChecksum);
        }
        // Its connection is not known, so it is left to the node's stack, which drops it.
        let mut frame = open.backend_segment(0, HELLO).payload(*b"data").bytes();
        frame[at] ^= 0x04;
        let outcome = programs.ingress(Device::Backend, &frame);
        assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
    }
    assert_eq!(open.flow(&programs), before);
}

#[test]
fn a_copy_that_finds_no_link_address_is_counted() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = tests::hello::hello().name(tests::addresses::server_name(0)).length(4_000).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for (at, part) in [(0, &hello[..1_400]), (1_400, &hello[1_400..2_800])] {
            client.send(&mut programs, at, part);
        }
        let outcome = client.send(&mut programs, 2_800, &hello[2_800..]);
        let backend = crate::scene::Backend::of(&sent(&outcome));
        let neighbour = format!("neigh del {} dev {}\n", backend.address.ip(), Device::Backend.name());
        programs.world.change(|node| node.ip(&neighbour)).unwrap();
        // Three segments: two copies are lost; the kernel queues the last one until it has the link address.
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectHello, 1), (Reason::EmitCopyLost, 2)]);
        assert_eq!(outcome.verdict, verdict::REDIRECT);
        assert_eq!(
            programs.entries::<common::maps::flow::ClientTuple, common::maps::flow::Flow>(name::FLOWS).len(),
            1
        );
        // The repeated SYN-ACK gets the whole hello once the link address is known.
        let mac = Device::Backend.far_mac().map(|byte| format!("{byte:02x}")).join(":");
        let neighbour = format!(
            "neigh replace {} lladdr {mac} dev {} nud permanent\n",
            backend.address.ip(),
            Device::Backend.name()
        );
        programs.world.change(|node| node.ip(&neighbour)).unwrap();
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectRepeated, 1)]);
        assert_eq!(outcome.emitted.len(), 2);
        programs.remove::<common::maps::flow::ClientTuple, common::maps::flow::Flow>(
            name::FLOWS,
            client.dial.tuple(),
        );
    }
}
