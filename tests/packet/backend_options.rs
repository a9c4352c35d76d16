//! Backends' segments with IPv4 options or IPv6 extension headers: the node's stack, which knows nothing of the connection,
//! would answer them with RST.

use common::maps::listener::{ROLE_OWN, ROLE_SOURCE};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, TENANT_NETS, balancer};
use tests::program::Programs;
use tests::world::Device;

use crate::check::{assert_dropped, assert_handed_on, assert_sent};
use crate::open::{HELLO, open};
use crate::parse::{first_fragment, harmless, refused};
use crate::scene::{dial, ready, usual_hello};
use crate::setup::forget_all;

/// Calls `story` with our source address as it may be: ours alone, and the node's own as well.
fn each(mut story: impl FnMut(&mut Programs, Family)) {
    let mut programs = ready();
    for family in FAMILIES {
        for role in [ROLE_SOURCE, ROLE_SOURCE | ROLE_OWN] {
            programs.address(balancer(family, TENANT_NETS[0]), role);
            story(&mut programs, family);
            forget_all(&mut programs);
        }
    }
}

#[test]
fn options_of_a_backends_segment_are_taken_off() {
    tests::skip_without_root!();
    each(|programs, family| {
        let open = open(programs, family);
        let segment = open.backend_segment(0, HELLO).psh().payload([0x5a; 700]);
        for frame in harmless(&segment.bytes(), family) {
            let outcome = programs.ingress(Device::Backend, &frame);
            assert_sent(&outcome, Reason::ForwardClient, &open.at_client(&segment));
        }
    });
}

#[test]
fn a_backends_answer_with_options_opens_the_connection() {
    tests::skip_without_root!();
    each(|programs, family| {
        for (port, which) in (40_000..).zip(0..5) {
            let client = dial(family).port(port).shake(programs);
            let backend = client.ask(programs, &usual_hello());
            let frame = harmless(&backend.syn_ack().bytes(), family).swap_remove(which);
            assert_eq!(programs.ingress(Device::Backend, &frame).counted, [(Reason::ConnectHello, 1)]);
        }
    });
}

#[test]
fn options_of_a_backends_segment_that_may_not_be_read_over_are_dropped() {
    tests::skip_without_root!();
    each(|programs, family| {
        let open = open(programs, family);
        let segment = open.backend_segment(0, HELLO).psh().payload([0x5a; 700]).bytes();
        for (what, frame) in refused(&segment, family) {
            let outcome = programs.ingress(Device::Backend, &frame);
            assert_eq!(outcome.counted, [(Reason::ParseOptions, 1)], "{what}");
            assert_dropped(&outcome, Reason::ParseOptions);
        }
        // The first fragment, with options, and in IPv6 with more of them behind the fragment header. The node's stack
        // would put it together with the others, and answer with RST.
        let frame = harmless(&first_fragment(segment.clone()), family).swap_remove(0);
        let reason = if family.is_v4() { Reason::ParseFragment } else { Reason::ParseOptions };
        assert_dropped(&programs.ingress(Device::Backend, &frame), reason);
        if !family.is_v4() {
            let frame = first_fragment(harmless(&segment, family).swap_remove(0));
            assert_dropped(&programs.ingress(Device::Backend, &frame), Reason::ParseFragment);
        }
    });
}

#[test]
fn options_of_the_nodes_own_traffic_reach_its_stack() {
    tests::skip_without_root!();
    each(|programs, family| {
        let open = open(programs, family);
        let mut own = open.backend_segment(0, HELLO).payload([0x5a; 700]);
        own.to.set_port(22);
        let frames = refused(&own.bytes(), family).into_iter().map(|(_, frame)| frame);
        for frame in frames.chain(harmless(&own.bytes(), family)) {
            let outcome = programs.ingress(Device::Backend, &frame);
            assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
        }
    });
}
