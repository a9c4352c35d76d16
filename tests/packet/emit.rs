//! Egress: by the kernel's routes and neighbours at the time of sending.

use std::collections::BTreeSet;

use common::maps::address::Address;
use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, client, vip};
use tests::program::Programs;
use tests::world::{DEVICES, Device};

use crate::check::{assert_dropped, sent};
use crate::open::{HELLO, open, open_with};
use crate::scene::{Offer, dial, ready, usual_hello};
use crate::setup::backend_address;

/// Runs an `ip` command on the node.
fn ip(programs: &Programs, command: &str) {
    programs.world.change(|node| node.ip(&format!("{command}\n"))).expect("`ip` takes the command");
}

#[test]
fn what_has_no_route_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let bits = if family.is_v4() { 32 } else { 128 };
        for kind in ["unreachable", "blackhole", "prohibit"] {
            for (to, from_client) in [(backend_address(family, 0), true), (client(family), false)] {
                ip(&programs, &format!("route add {kind} {to}/{bits}"));
                let outcome = if from_client {
                    open.client.give(&mut programs, &open.client_segment(HELLO, 0))
                } else {
                    open.backend.give(&mut programs, &open.backend_segment(0, HELLO))
                };
                assert_dropped(&outcome, Reason::EmitNoRoute);
                ip(&programs, &format!("route del {kind} {to}/{bits}"));
            }
        }
        // The route is back, and so is the connection.
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0));
    }
}

#[test]
fn what_we_make_ourselves_needs_a_route_too() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let bits = if family.is_v4() { 32 } else { 128 };
        let dial = dial(family);
        let waiting = dial.shake(&mut programs);
        ip(&programs, &format!("route add unreachable {}/{bits}", client(family)));
        let outcome = programs.ingress(Device::Client, &dial.port(40_001).syn().bytes());
        assert_dropped(&outcome, Reason::EmitNoRoute);
        let outcome = programs.ingress(Device::Client, &dial.to_port(444).syn().bytes());
        assert_dropped(&outcome, Reason::EmitNoRoute);
        ip(&programs, &format!("route del unreachable {}/{bits}", client(family)));
        ip(&programs, &format!("route add unreachable {}/{bits}", backend_address(family, 0)));
        assert_dropped(&waiting.send(&mut programs, 0, &usual_hello()), Reason::EmitNoRoute);
        ip(&programs, &format!("route del unreachable {}/{bits}", backend_address(family, 0)));
        // The client's retransmission finds the waiting hello and its backend.
        let outcome = waiting.send(&mut programs, 0, &usual_hello());
        assert_eq!(outcome.counted, [(Reason::ConnectAgain, 1)]);
    }
}

/// The egress MTU shrank without the daemon's knowledge. A hello dropped silently here would never arrive.
#[test]
fn a_hello_that_is_too_long_for_the_route_is_for_its_routers_to_judge() {
    tests::skip_without_root!();
    let mut programs = ready();
    let bytes = tests::hello::hello().name(tests::addresses::server_name(0)).length(1_300).bytes();
    for family in FAMILIES {
        let bits = if family.is_v4() { 32 } else { 128 };
        let backend = dial(family).shake(&mut programs).ask(&mut programs, &bytes);
        let narrow = format!("{}/{bits} dev backend mtu lock 1280", backend_address(family, 0));
        ip(&programs, &format!("route add {narrow}"));
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectHello, 1)]);
        assert_eq!(sent(&outcome).payload, bytes);
        ip(&programs, &format!("route del {narrow}"));
    }
}

#[test]
fn a_node_that_does_not_forward_says_so() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let (key, all) = match family {
            Family::V4 => ("net/ipv4/conf/client/forwarding", "net/ipv4/conf/backend/forwarding"),
            Family::V6 => ("net/ipv6/conf/client/forwarding", "net/ipv6/conf/backend/forwarding"),
        };
        let keys = [key, all];
        programs.world.change(|node| keys.iter().try_for_each(|key| node.sysctl(key, "0"))).unwrap();
        let outcome = open.client.give(&mut programs, &open.client_segment(HELLO, 0));
        assert_dropped(&outcome, Reason::EmitForwardingOff);
        let outcome = open.backend.give(&mut programs, &open.backend_segment(0, HELLO));
        assert_dropped(&outcome, Reason::EmitForwardingOff);
        let outcome = programs.ingress(Device::Client, &dial(family).port(40_001).syn().bytes());
        assert_dropped(&outcome, Reason::EmitForwardingOff);
    }
}

#[test]
fn a_next_hop_whose_link_address_is_not_known_is_left_to_the_kernel_to_ask_for() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let backend = backend_address(family, 0);
        ip(&programs, &format!("neigh del {backend} dev {}", Device::Backend.name()));
        let segment = open.client_segment(HELLO, 0).payload(*b"data");
        let outcome = open.client.give(&mut programs, &segment);
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
        // The kernel writes the link addresses once it knows them; everything else is already set.
        let passed = sent(&outcome);
        assert_eq!(tests::packet::Segment { ethernet: passed.ethernet, ..open.at_backend(&segment) }, passed);
    }
}

/// Returns, for each CPU, the ingress devices for which it remembers the next hop between two addresses.
fn remembered(programs: &Programs, from: Address, to: Address) -> Vec<BTreeSet<u32>> {
    // Layout of the programs' `NextHop`: addresses, device, egress, MTU, age, link addresses.
    let mut devices: Vec<BTreeSet<u32>> = Vec::new();
    for place in 0..256 {
        for (cpu, hop) in programs.per_cpu::<[u8; 60]>(name::NEXT_HOPS, place).iter().enumerate() {
            devices.resize(devices.len().max(cpu + 1), BTreeSet::new());
            if hop[..16] == from.bytes && hop[16..32] == to.bytes {
                devices[cpu].insert(u32::from_ne_bytes([hop[32], hop[33], hop[34], hop[35]]));
            }
        }
    }
    devices
}

/// When both shared one slot, each evicted the other at every new connection, and nearly every packet queried
/// the FIB.
#[test]
fn the_next_hops_of_both_sides_packets_are_remembered_beside_each_other() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let ends = (vip(family).into(), client(family).into());
        let both = DEVICES.map(|device| programs.world.ifindex(device)).into();
        let beside = (0..20).any(|port| {
            // The SYN is answered on the client's side; the backend's segment reaches the client from the
            // other device.
            let open = open_with(&mut programs, dial(family).port(40_000 + port), Offer::linux(1460, 9));
            open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO));
            remembered(&programs, ends.0, ends.1).contains(&both)
        });
        assert!(beside, "{:?}", remembered(&programs, ends.0, ends.1));
    }
}

#[test]
fn replies_leave_by_the_route_of_that_moment() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // From here on the client is reached through the other device.
        let open = open(&mut programs, family);
        let bits = if family.is_v4() { 32 } else { 128 };
        let via = backend_address(family, 1);
        ip(
            &programs,
            &format!("route add {}/{bits} via {via} dev {}", client(family), Device::Backend.name()),
        );
        let segment = open.backend_segment(0, HELLO);
        let outcome = open.backend.give(&mut programs, &segment);
        assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
        let passed = sent(&outcome);
        assert_eq!(passed.ethernet, (Device::Backend.far_mac(), Device::Backend.near_mac()));
        assert_eq!(passed.to, open.client.dial.client());
    }
}
