//! Frames with a VLAN tag. A tag of VLAN 0 has only a priority (IEEE 802.1Q): the frame is one of the device itself.

use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::compare::assert_frame;
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::whole;
use crate::open::{HELLO, Open};
use crate::scene::{BACKEND_TIME, Backend, Client, Offer, dial, usual_hello};

/// Returns the frame with a tag of priority 5 and this VLAN.
fn tagged(segment: &Segment, vlan: u16) -> Vec<u8> {
    let mut frame = segment.bytes();
    let [high, low] = (5 << 13 | vlan).to_be_bytes();
    frame.splice(12..12, [0x81, 0x00, high, low]);
    frame
}

/// Sends the segment with a tag of VLAN 0; returns the one frame that the node sends for it, and where.
#[track_caller]
fn give(programs: &mut Programs, device: Device, segment: &Segment) -> (Device, Vec<u8>) {
    programs.world.send(device, &tagged(segment, 0)).expect("the device takes it");
    let mut sent = programs.world.receive(1);
    assert_eq!(sent.len(), 1, "{sent:02x?}");
    sent.swap_remove(0)
}

#[test]
fn frames_with_a_priority_alone_are_served_and_answered_without_a_tag() {
    tests::skip_without_root!();
    let mut programs = Programs::attached(Sizes::default()).expect("the programs load");
    programs.tls_with_one_route();
    for family in FAMILIES {
        let dial = dial(family);
        let (device, answer) = give(&mut programs, Device::Client, &dial.syn());
        assert_eq!(device, Device::Client);
        let client = Client { dial, cookie: 0, time: 0 }.told(&whole(&answer));
        let (device, syn) = give(&mut programs, Device::Client, &client.at(0).payload(usual_hello()));
        assert_eq!(device, Device::Backend);
        let backend = Backend::of(&whole(&syn));
        let (device, hello) = give(&mut programs, Device::Backend, &backend.syn_ack());
        assert_eq!((device, whole(&hello).payload), (Device::Backend, usual_hello()));
        let clock = client.flow(&programs).expect("the flow is there").ts_delta;
        assert_ne!(clock, BACKEND_TIME);
        let open = Open { client, backend, offer: Offer::linux(1460, 9), clock };
        let up = open.client_segment(HELLO, 0).payload(*b"up");
        let (device, frame) = give(&mut programs, Device::Client, &up);
        assert_eq!(device, Device::Backend);
        assert_frame(&frame, &open.at_backend(&up));
        let down = open.backend_segment(0, HELLO + 2).payload(*b"down");
        let (device, frame) = give(&mut programs, Device::Backend, &down);
        assert_eq!(device, Device::Client);
        assert_frame(&frame, &open.at_client(&down));
    }
}

#[test]
fn frames_of_another_vlan_are_handed_on() {
    tests::skip_without_root!();
    let mut programs = Programs::attached(Sizes::default()).expect("the programs load");
    programs.tls_with_one_route();
    for family in FAMILIES {
        for vlan in [1, 42, 4095] {
            let before = programs.counters()[&Reason::ParseNotIp];
            programs
                .world
                .send(Device::Client, &tagged(&dial(family).syn(), vlan))
                .expect("the device takes it");
            assert_eq!(programs.world.drain(), []);
            assert_eq!(programs.counters()[&Reason::ParseNotIp] - before, 1);
        }
    }
}
