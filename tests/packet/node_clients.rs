//! Clients on the node itself: they come by the node's own pair and are answered by it, whatever the FIB says of their addresses.

use common::maps::backend::{DELIVERY_DNAT, DELIVERY_NODE};
use common::maps::event::EXPIRE_DONE;
use common::maps::name;
use common::maps::next_hop::NODE_LINK;
use common::reason::Reason;
use tests::addresses::{BACKEND_PORT, CLIENT_NET, FAMILIES, Family, balancer};
use tests::icmp::{Icmp, quotation, unreachable};
use tests::packet::Segment;
use tests::program::{Outcome, Programs, Sizes, verdict};
use tests::world::Device;

use crate::check::{assert_handed_on, flow_order, order, sent};
use crate::dnat::keep_sources;
use crate::half_open::{caller, from_client, tcp};
use crate::open::HELLO;
use crate::scene::{Backend, Client, Dial, dial, ready, usual_hello};
use crate::setup::backend_id;

/// Makes the client's device the program's end of the pair.
pub(crate) fn by_pair(mut programs: Programs) -> Programs {
    let device = programs.world.ifindex(Device::Client);
    programs.set(name::NODE_CLIENTS, 0, device);
    programs
}

/// A client at the node's own address, to which the FIB leads nowhere.
fn own(family: Family) -> Dial {
    dial(family).host(balancer(family, CLIENT_NET))
}

/// Asserts that the frame goes out of the pair, from one end to the other.
#[track_caller]
fn assert_by_pair(frame: &[u8]) {
    assert_eq!([&frame[..6], &frame[6..12]], [&NODE_LINK, &NODE_LINK]);
}

/// Returns the segment that the client gets, by the pair.
#[track_caller]
fn at_node(outcome: &Outcome, reason: Reason) -> Segment {
    assert_eq!(outcome.counted, [(reason, 1)]);
    let segment = sent(outcome);
    assert_by_pair(&outcome.packet);
    segment
}

/// Opens a connection by name; its backend gets what is for it by the FIB.
#[track_caller]
pub(crate) fn opened(programs: &mut Programs, family: Family) -> (Client, Backend) {
    let outcome = programs.ingress(Device::Client, &own(family).syn().bytes());
    let client =
        Client { dial: own(family), cookie: 0, time: 0 }.told(&at_node(&outcome, Reason::SynAnswered));
    let backend = client.ask(programs, &usual_hello());
    let outcome = backend.accept(programs);
    assert_eq!(sent(&outcome).ethernet, (Device::Backend.far_mac(), Device::Backend.near_mac()));
    (client, backend)
}

#[test]
fn what_is_for_the_client_goes_by_the_pair_and_the_rest_by_the_fib() {
    tests::skip_without_root!();
    let mut programs = by_pair(ready());
    for family in FAMILIES {
        let (client, backend) = opened(&mut programs, family);
        let data = backend.at(0, HELLO).payload(vec![1; 900]);
        let got = at_node(&backend.give(&mut programs, &data), Reason::ForwardClient);
        assert_eq!((got.from, got.to), (client.dial.vip(), client.dial.client()));
        let up = client.at(HELLO).payload(vec![2; 300]);
        let up = sent(&client.give(&mut programs, &up));
        assert_eq!(up.ethernet, (Device::Backend.far_mac(), Device::Backend.near_mac()));
        assert_eq!(client.flow(&programs).unwrap().connection.delivery, DELIVERY_NODE);
        // The next packet of the flow, too: its hop is not the FIB's.
        at_node(&backend.give(&mut programs, &data), Reason::ForwardClient);
        // What nobody listens for.
        let refused = programs.ingress(Device::Client, &own(family).to_port(9).syn().bytes());
        at_node(&refused, Reason::ClassifyNoListener);
    }
}

#[test]
fn a_tcp_listeners_client_gets_the_backends_own_answers_by_the_pair() {
    tests::skip_without_root!();
    let mut programs = by_pair(tcp(Sizes::default(), 1));
    for family in FAMILIES {
        let dial = caller(family).host(balancer(family, CLIENT_NET));
        let syn = sent(&programs.ingress(Device::Client, &dial.syn().bytes()));
        let backend = Backend::of(&syn);
        at_node(&backend.give(&mut programs, &backend.syn_ack()), Reason::ForwardClient);
        programs.ingress(Device::Client, &from_client(dial, 0, 0).bytes());
        at_node(&backend.give(&mut programs, &backend.at(0, 0).payload(vec![1; 90])), Reason::ForwardClient);
    }
}

/// With the client's own address as source, a pod that is its own backend would drop what it gets.
#[test]
fn backends_that_see_their_clients_do_not_see_those_of_the_node() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    keep_sources(&mut programs, &FAMILIES.map(|family| backend_id(family, 0)));
    for family in FAMILIES {
        let seen = sent(&programs.ingress(Device::Client, &caller(family).syn().bytes()));
        assert_eq!(seen.from, caller(family).client());
    }
    let mut programs = by_pair(programs);
    for family in FAMILIES {
        let dial = caller(family).port(41_000);
        let hidden = sent(&programs.ingress(Device::Client, &dial.syn().bytes()));
        assert_ne!(hidden.from.ip(), dial.host);
        assert_eq!(hidden.to.port(), BACKEND_PORT);
    }
    assert_ne!(DELIVERY_DNAT, DELIVERY_NODE);
}

#[test]
fn what_the_daemon_ends_is_reset_by_the_pair() {
    tests::skip_without_root!();
    let mut programs = by_pair(ready());
    for family in FAMILIES {
        let (client, _) = opened(&mut programs, family);
        let ended = programs.expire(&flow_order(&programs, client.dial.tuple(), Reason::ExpireRemoved));
        assert_eq!(ended.verdict, EXPIRE_DONE);
        let to_client: Vec<_> =
            ended.emitted.iter().filter(|(device, _)| *device == Device::Client).collect();
        assert_eq!(to_client.len(), 1, "{family:?}");
        assert_by_pair(&to_client[0].1);
        // Before any backend is known.
        let waiting = own(family).port(41_000).shake(&mut programs);
        waiting.send(&mut programs, 0, &usual_hello()[..100]);
        let ended = programs.expire(&order(waiting.dial.tuple(), Reason::HelloTimeout));
        assert_eq!((ended.verdict, ended.emitted.len()), (EXPIRE_DONE, 1), "{family:?}");
        assert_by_pair(&ended.emitted[0].1);
        // Evicted: nothing is left but the report, which says it.
        for (delivery, emitted) in [(DELIVERY_NODE, 1), (0, 0)] {
            let gone = own(family).port(42_000).tuple();
            let mut evicted = order(gone, Reason::HelloEvicted);
            evicted.seen_secs = delivery.into();
            assert_eq!(programs.expire(&evicted).emitted.len(), emitted, "{family:?}");
        }
    }
}

#[test]
fn errors_about_what_went_to_a_backend_reach_the_client_by_the_pair() {
    tests::skip_without_root!();
    let mut programs = by_pair(ready());
    for family in FAMILIES {
        let (client, backend) = opened(&mut programs, family);
        let up = sent(&client.give(&mut programs, &client.at(HELLO).payload(vec![2; 300])));
        let error = Icmp::new(unreachable(family), backend.address.ip(), backend.source.ip())
            .ethernet(Device::Backend.near_mac(), Device::Backend.far_mac())
            .body(quotation(&up, 8));
        let outcome = programs.ingress(Device::Backend, &error.bytes());
        assert_eq!(
            (outcome.verdict, &outcome.counted[..]),
            (verdict::REDIRECT, &[(Reason::IcmpToClient, 1)][..])
        );
        assert_by_pair(&outcome.packet);
    }
}

/// The node's stack would route it into the pair again.
#[test]
fn what_is_not_ours_is_not_handed_back_to_the_nodes_stack() {
    tests::skip_without_root!();
    let mut programs = ready();
    let stray = |family| {
        let mut segment = own(family).syn();
        segment.to.set_ip(balancer(family, 77));
        segment.bytes()
    };
    for family in FAMILIES {
        let frame = stray(family);
        assert_handed_on(&programs.ingress(Device::Client, &frame), &frame, Reason::NotOurs);
    }
    let mut programs = by_pair(programs);
    for family in FAMILIES {
        let outcome = programs.ingress(Device::Client, &stray(family));
        crate::check::assert_dropped(&outcome, Reason::ClassifyNodeStray);
        let frame = stray(family);
        assert_handed_on(&programs.ingress(Device::Backend, &frame), &frame, Reason::NotOurs);
    }
}

/// A sender that takes an address of the node for its source gets nothing.
#[test]
fn the_nodes_own_addresses_are_no_clients_of_other_devices() {
    tests::skip_without_root!();
    let mut programs = ready();
    let pair = programs.world.ifindex(Device::Backend);
    programs.set(name::NODE_CLIENTS, 0, pair);
    for family in FAMILIES {
        for dial in [own(family), own(family).to_port(9)] {
            let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
            crate::check::assert_dropped(&outcome, Reason::EmitNoRoute);
        }
    }
}
