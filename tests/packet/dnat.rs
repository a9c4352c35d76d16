//! Delivery `dnat`: the destination is rewritten, the backend sees the client's own address, and its replies
//! are matched to the connection. Only a backend's record selects this delivery.

use std::mem::offset_of;
use std::net::SocketAddr;

use common::maps::backend::{BACKEND_UNREACHABLE, Backend as BackendRecord, DELIVERY_DNAT};
use common::maps::flow::{FLOW_CLOSED, FLOW_ESTABLISHED, Reply};
use common::maps::listener::{ROLE_BACKEND, ROLE_VIP};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::maps::word::SYN_AGAIN;
use common::reason::Reason;
use tests::addresses::{BACKEND_PORT, FAMILIES, Family, vip};
use tests::icmp::{Icmp, quotation, unreachable};
use tests::packet::Segment;
use tests::program::{Programs, Sizes, verdict};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::by_cookie::crowd;
use crate::check::{assert_dropped, assert_handed_on, assert_sent, sent};
use crate::half_open::{at_backend, at_client, caller, from_client, half_open, tcp};
use crate::open::{HELLO, Open};
use crate::renew::NEXT_ISN;
use crate::scene::{BACKEND_TIME, Backend, Client, Dial, Offer, behind, dial, ready, usual_hello};
use crate::setup::{backend_address, backend_id, forget_all, nats, route_counts};

/// The second port of the TCP listener.
const OTHER_PORT: u16 = 20_002;

/// Switches these backends to see their clients' addresses.
pub(crate) fn keep_sources(programs: &mut Programs, ids: &[u32]) {
    for id in ids {
        let backend: BackendRecord = programs.entry(name::BACKENDS, *id).expect("the backend is there");
        programs.insert(name::BACKENDS, *id, BackendRecord { delivery: DELIVERY_DNAT, ..backend });
        programs.address(backend.address.into(), ROLE_BACKEND);
    }
    let settings: Settings = programs.element(name::SETTINGS, 0);
    programs.settings(Settings { deliveries: 1 << DELIVERY_DNAT, ..settings });
}

/// Loads programs with a TCP listener whose one backend of each family sees its clients' addresses.
pub(crate) fn direct() -> Programs {
    let mut programs = tcp(Sizes::default(), 1);
    keep_sources(&mut programs, &FAMILIES.map(|family| backend_id(family, 0)));
    programs
}

/// Returns the backend as dialled from the client's own address.
fn backend(dial: Dial) -> Backend {
    let address = SocketAddr::new(backend_address(dial.family, 0), BACKEND_PORT);
    Backend { address, source: dial.client(), timestamps: true }
}

/// Dials the TCP listener, lets the backend answer and the client acknowledge.
#[track_caller]
pub(crate) fn opened(programs: &mut Programs, dial: Dial) -> Backend {
    let backend = backend(dial);
    let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
    assert_sent(&outcome, Reason::SynForwarded, &at_backend(backend, &dial.syn()));
    let answer = backend.syn_ack();
    assert_sent(&backend.give(programs, &answer), Reason::ForwardClient, &at_client(dial, &answer));
    let ack = from_client(dial, 0, 0);
    let outcome = programs.ingress(Device::Client, &ack.bytes());
    assert_sent(&outcome, Reason::ForwardBackend, &at_backend(backend, &ack));
    backend
}

#[test]
fn a_tcp_listeners_backend_sees_the_client_from_its_syn_to_its_end() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        assert_eq!(backend.owner(&programs), Some(dial.tuple()));
        let client = Client { dial, cookie: crate::scene::BACKEND_ISN, time: 0 };
        assert_eq!(client.flow(&programs).unwrap().connection.state, FLOW_ESTABLISHED);
        let pass = |programs: &mut Programs, segment: &Segment, from: Device| match from {
            Device::Client => {
                let outcome = programs.ingress(from, &segment.bytes());
                assert_sent(&outcome, Reason::ForwardBackend, &at_backend(backend, segment));
            }
            Device::Backend => {
                let outcome = programs.ingress(from, &segment.bytes());
                assert_sent(&outcome, Reason::ForwardClient, &at_client(dial, segment));
            }
        };
        pass(&mut programs, &from_client(dial, 0, 0).payload(vec![1; 700]), Device::Client);
        pass(&mut programs, &backend.at(0, 700).payload(vec![2; 1_300]), Device::Backend);
        pass(&mut programs, &from_client(dial, 700, 1_300).fin(), Device::Client);
        pass(&mut programs, &backend.at(1_300, 701).fin(), Device::Backend);
        pass(&mut programs, &from_client(dial, 701, 1_301), Device::Client);
        assert_eq!(client.flow(&programs).unwrap().connection.state, FLOW_CLOSED);
    }
    assert_eq!(route_counts(&programs), (2, 0, 0));
}

/// Opens a connection of the TLS listener whose backend sees the client.
#[track_caller]
pub(crate) fn opened_by_name(programs: &mut Programs, family: Family) -> Open {
    let client = dial(family).shake(programs);
    let outcome = client.send(programs, 0, &usual_hello());
    assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    let syn = sent(&outcome);
    assert_eq!(syn.from, client.dial.client(), "the client's own address and port");
    let backend = Backend { address: syn.to, source: syn.from, timestamps: true };
    backend.accept(programs);
    let clock = client.flow(programs).expect("the connection is open").ts_delta;
    assert!(BACKEND_TIME.wrapping_sub(clock).wrapping_sub(client.time) < 60_000);
    Open { client, backend, offer: Offer::linux(1460, 9), clock }
}

/// The second handshake and the number translation do not depend on the delivery, so a TLS listener's also
/// work with this one.
#[test]
fn a_tls_listeners_backend_sees_the_client_too() {
    tests::skip_without_root!();
    let mut programs = ready();
    keep_sources(&mut programs, &[1, 2]);
    for family in FAMILIES {
        let open = opened_by_name(&mut programs, family);
        open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]));
        open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 1_200).payload(vec![0xa5; 300]));
    }
    assert_eq!(route_counts(&programs), (2, 0, 0));
}

/// Under many SYNs, the backend is dialled at the client's ACK, with numbers of its own.
#[test]
fn a_client_whose_syn_is_answered_by_cookie_is_seen_too() {
    tests::skip_without_root!();
    let mut programs = direct();
    crowd(&mut programs);
    for family in FAMILIES {
        let client = caller(family).shake(&mut programs);
        assert_eq!(nats(&programs), [], "nothing is stored at the SYN");
        let outcome = client.give(&mut programs, &client.at(0));
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let syn = sent(&outcome);
        assert_eq!(syn.from, client.dial.client(), "the client's own address and port");
        let backend = Backend { address: syn.to, source: syn.from, timestamps: true };
        assert_eq!(backend.owner(&programs), Some(client.dial.tuple()));
        assert_eq!(backend.accept(&mut programs).verdict, verdict::REDIRECT);
        let clock = client.flow(&programs).unwrap().ts_delta;
        let open = Open { client, backend, offer: Offer::linux(1460, 9), clock };
        open.pass_to_client(&mut programs, &open.backend_segment(0, 0).payload(vec![0x5a; 1_200]));
        open.pass_to_backend(&mut programs, &open.client_segment(0, 1_200).payload(vec![0xa5; 300]));
        forget_all(&mut programs);
        crowd(&mut programs);
    }
}

/// Other traffic of a backend is the node's to route; without the mark, none of it is examined.
#[test]
fn what_a_backend_sends_to_others_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family).port(50_000);
        let frame = backend(dial).at(0, 0).payload(*b"not of a connection here").bytes();
        let outcome = programs.ingress(Device::Backend, &frame);
        assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
    }
    let settings: Settings = programs.element(name::SETTINGS, 0);
    programs.settings(Settings { deliveries: 0, ..settings });
    for family in FAMILIES {
        let frame = backend(caller(family)).at(0, 0).bytes();
        let outcome = programs.ingress(Device::Backend, &frame);
        assert_handed_on(&outcome, &frame, Reason::NotOurs);
    }
}

/// The backend would see both as one connection, and bytes of one would reach the other.
#[test]
fn a_second_connection_from_the_same_port_to_the_same_backend_is_refused() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        let first = caller(family);
        let backend = opened(&mut programs, first);
        let second = first.to_port(OTHER_PORT);
        let outcome = programs.ingress(Device::Client, &second.syn().bytes());
        let refusal = second.to_client().flags(tests::packet::flag::RST | tests::packet::flag::ACK);
        let refusal = refusal.ack(behind(crate::scene::ISN, 0));
        assert_sent(&outcome, Reason::ConnectNoPort, &refusal);
        assert_eq!(half_open(&programs, second), None);
        assert_eq!(backend.owner(&programs), Some(first.tuple()), "the first keeps its replies");
    }
    assert_eq!(nats(&programs).len(), 2);
}

/// A SYN comes twice at once: the other CPU has the client's port towards the backend, and has not stored its record yet.
#[test]
fn a_syn_whose_copy_claimed_the_clients_port_meanwhile_is_dropped() {
    tests::skip_without_root!();
    let mut programs = direct();
    // Every new connection takes the next generation, before it claims its port.
    let begun = Place::new(name::CURSORS, &0u32, offset_of!(Cursors, generation));
    for family in FAMILIES {
        let dial = caller(family);
        let (nat, tuple) = (backend(dial).tuple(), dial.tuple());
        let claimed = [Change::insert(name::NATS, &nat, &Reply::to(&tuple, 77))];
        let claimed = programs.behind_access(&begun, 1, &claimed).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert!(claimed.happened());
        drop(claimed);
        assert_dropped(&outcome, Reason::ConnectBusy);
        assert_eq!((half_open(&programs, dial), nats(&programs)), (None, vec![(nat, tuple)]));
        forget_all(&mut programs);
    }
}

#[test]
fn a_backend_that_refuses_by_icmp_is_heard_by_its_client() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        let backend = backend(dial);
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        let about = sent(&outcome);
        let error = |from| {
            Icmp::new(unreachable(family), from, about.from.ip())
                .ethernet(Device::Backend.near_mac(), Device::Backend.far_mac())
                .rest(0)
                .body(quotation(&about, 20))
        };
        let outcome = programs.ingress(Device::Backend, &error(backend.address.ip()).hop_limit(200).bytes());
        assert_eq!(outcome.counted, [(Reason::IcmpToClient, 1), (Reason::IcmpRefused, 1)]);
        assert_eq!(outcome.verdict, verdict::REDIRECT);
        let expected = Segment { hop_limit: about.hop_limit, ..dial.syn() };
        let message = Icmp::new(unreachable(family), vip(family), dial.host)
            .ethernet(Device::Client.far_mac(), Device::Client.near_mac())
            .hop_limit(199)
            .rest(0)
            .body(quotation(&expected, 20));
        tests::compare::assert_bytes(&outcome.packet, &message.bytes());
        assert_eq!(half_open(&programs, dial), None);
        // Later segments of the backend are not ours.
        let frame = backend.syn_ack().bytes();
        let outcome = programs.ingress(Device::Backend, &frame);
        assert_handed_on(&outcome, &frame, Reason::ClassifyOwnTraffic);
    }
}

/// A stale entry whose connection now has another owner is not used: its generation differs. The segment may be of a connection that
/// the client has with the backend itself.
#[test]
fn a_reply_of_an_older_generation_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        let mut reply: Reply = programs.entry(name::NATS, backend.tuple()).unwrap();
        reply.generation = reply.generation.wrapping_sub(1);
        programs.insert(name::NATS, backend.tuple(), reply);
        for late in [backend.at(0, 0).payload(*b"of another connection"), backend.at(0, 0).rst()] {
            assert_handed_on(&backend.give(&mut programs, &late), &late.bytes(), Reason::ForwardStray);
        }
        let client = Client { dial, cookie: crate::scene::BACKEND_ISN, time: 0 };
        assert_eq!(client.flow(&programs).unwrap().connection.state, FLOW_ESTABLISHED);
    }
}

/// Another CPU claims the replies before it stores the record.
#[test]
fn a_reply_without_a_record_is_handed_on() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        let backend = backend(dial);
        programs.ingress(Device::Client, &dial.syn().bytes());
        programs.remove::<_, common::maps::flow::HalfOpen>(name::HALF_OPENS, dial.tuple());
        assert_eq!(backend.owner(&programs), Some(dial.tuple()));
        let other = backend.at(900, 900).payload(*b"of the client's own connection");
        assert_handed_on(&backend.give(&mut programs, &other), &other.bytes(), Reason::ForwardStray);
    }
}

/// Replies to such a client are addressed to a VIP; they are recognized by their source.
#[test]
fn a_client_whose_address_is_a_vip_is_served() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        programs.address(dial.host, ROLE_VIP);
        opened(&mut programs, dial);
    }
}

/// The client would receive its own address as the source, which no host accepts. On the backend's own device it is hidden.
#[test]
fn a_client_with_the_backends_address_on_another_device_is_refused() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family).host(backend_address(family, 0));
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_eq!(outcome.counted, [(Reason::ConnectNoPort, 1)]);
    }
    assert_eq!(nats(&programs), []);
}

/// A bare ACK in answer to our SYN may belong to the client's own connection to the backend, which must not
/// be reset.
#[test]
fn a_connection_that_is_not_ours_is_not_pushed_aside() {
    tests::skip_without_root!();
    let mut programs = ready();
    keep_sources(&mut programs, &[1, 2]);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let syn = sent(&client.send(&mut programs, 0, &usual_hello()));
        let backend = Backend { address: syn.to, source: syn.from, timestamps: true };
        let challenge = backend.segment().seq(77).ack(99);
        assert_handed_on(&backend.give(&mut programs, &challenge), &challenge.bytes(), Reason::ConnectStray);
        backend.accept(&mut programs);
    }
}

/// Returns a segment as it arrives on the backends' device.
fn beside_backends(segment: &Segment) -> Segment {
    segment.clone().ethernet(Device::Backend.near_mac(), Device::Backend.far_mac())
}

/// A backend answers such a client without us, from an address that the client has not dialled.
#[test]
fn a_client_on_the_backends_own_device_is_hidden_from_it() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        // Even the backend itself may be the client.
        for dial in [caller(family), caller(family).host(backend_address(family, 0))] {
            let outcome = programs.ingress(Device::Backend, &beside_backends(&dial.syn()).bytes());
            assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
            // It comes from an address of ours.
            let backend = Backend::of(&sent(&outcome));
            assert_eq!(backend.owner(&programs), Some(dial.tuple()));
            let outcome = backend.give(&mut programs, &backend.syn_ack());
            assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
            assert_eq!((sent(&outcome).from, sent(&outcome).to), (dial.vip(), dial.client()));
            let ack = beside_backends(&from_client(dial, 0, 0));
            let outcome = programs.ingress(Device::Backend, &ack.bytes());
            assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1)]);
            assert_eq!(sent(&outcome).from, backend.source);
        }
    }
}

/// The next backend is dialled by a packet that need not be the client's.
#[test]
fn whether_the_client_is_hidden_is_decided_by_its_own_packet() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        crate::setup::with_backends(&mut programs, 2);
        keep_sources(&mut programs, &[0, 1].map(|number| backend_id(family, number)));
        let next = |outcome: &tests::program::Outcome, first: &Segment| {
            assert!(outcome.counted.contains(&(Reason::ConnectNext, 1)), "{:?}", outcome.counted);
            let syn = sent(outcome);
            assert_ne!(syn.to, first.to);
            syn
        };
        // The first one's refusal comes by the device of the second one.
        let client = dial(family).shake(&mut programs);
        let first = sent(&client.send(&mut programs, 0, &usual_hello()));
        let backend = Backend { address: first.to, source: first.from, timestamps: true };
        let second = next(&backend.refuse(&mut programs), &first);
        assert_eq!((first.from, second.from), (client.dial.client(), client.dial.client()));
        // A client beside the backends, whose repetitions come by another device.
        let client = dial(family).port(40_009).shake(&mut programs);
        let hello = client.at(0).payload(usual_hello());
        let first = sent(&programs.ingress(Device::Backend, &beside_backends(&hello).bytes()));
        Backend::of(&first);
        client.give(&mut programs, &hello);
        Backend::of(&next(&client.give(&mut programs, &hello), &first));
    }
}

/// The backend is chosen long after the record of such a hello was stored.
#[test]
fn a_hello_in_two_segments_is_delivered_as_one_in_one() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = ready();
        crate::setup::with_backends(&mut programs, 2);
        keep_sources(&mut programs, &[0, 1].map(|number| backend_id(family, number)));
        let client = dial(family).shake(&mut programs);
        let hello = usual_hello();
        let outcome = client.send(&mut programs, 0, &hello[..300]);
        assert_eq!(outcome.counted, [(Reason::HelloBuffered, 1)]);
        let outcome = client.send(&mut programs, 300, &hello[300..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        let first = sent(&outcome);
        assert_eq!(first.from, client.dial.client());
        assert_eq!(client.waiting(&programs).unwrap().connection.delivery, DELIVERY_DNAT);
        // The bare ACK may be of the client's own connection.
        let backend = Backend { address: first.to, source: first.from, timestamps: true };
        let challenge = backend.segment().seq(77).ack(99);
        assert_handed_on(&backend.give(&mut programs, &challenge), &challenge.bytes(), Reason::ConnectStray);
        let second = sent(&backend.refuse(&mut programs));
        assert_ne!(second.to, first.to);
        assert_eq!(second.from, client.dial.client());
        let backend = Backend { address: second.to, source: second.from, timestamps: true };
        backend.accept(&mut programs);
        assert_eq!(client.flow(&programs).unwrap().connection.delivery, DELIVERY_DNAT);
    }
}

/// A backend that the client has no connection with any more learns it from us.
#[test]
fn a_client_that_begins_anew_with_another_backend_leaves_none_at_the_old_one() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 2);
        let both = [0, 1].map(|number| backend_id(family, number));
        keep_sources(&mut programs, &both);
        let dial = caller(family);
        let backend = |syn: &Segment| Backend { address: syn.to, source: syn.from, timestamps: true };
        let old = backend(&sent(&programs.ingress(Device::Client, &dial.syn().bytes())));
        old.give(&mut programs, &old.syn_ack());
        programs.ingress(Device::Client, &from_client(dial, 0, 0).bytes());
        // The old one's pod leaves.
        let gone = both[usize::from(old.address.ip() != backend_address(family, 0))];
        crate::setup::flag_backend(&mut programs, gone, BACKEND_UNREACHABLE);
        let client = Client { dial, cookie: crate::scene::BACKEND_ISN, time: 0 };
        let syn = dial.syn().seq(NEXT_ISN);
        assert_eq!(client.give(&mut programs, &syn).counted, [(Reason::SynChallenged, 1)]);
        let mut flow = client.flow(&programs).unwrap();
        flow.syn.time = flow.syn.time.wrapping_sub(SYN_AGAIN);
        programs.insert(name::FLOWS, dial.tuple(), flow);
        let outcome = client.give(&mut programs, &syn);
        assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
        let new = backend(&sent(&outcome));
        assert_ne!(new.address, old.address);
        let isn = crate::scene::BACKEND_ISN.wrapping_add(1 << 28);
        new.give(&mut programs, &new.syn_ack().seq(isn).ack(behind(NEXT_ISN, 0)));
        let ack = from_client(dial, 0, 0).seq(behind(NEXT_ISN, 0)).ack(behind(isn, 0));
        let outcome = client.give(&mut programs, &ack);
        let expected = [(Reason::SynOldReset, 1), (Reason::SynAcked, 1), (Reason::SynFlowReplaced, 1)];
        assert_eq!(outcome.counted, expected);
        assert_eq!(sent(&outcome), old.to_backend().rst().seq(behind(crate::scene::ISN, 0)).window(0));
        assert_eq!(old.owner(&programs), None);
        // The next segment opens the flow.
        let data = ack.psh().payload(*b"anything");
        let outcome = client.give(&mut programs, &data);
        assert_sent(&outcome, Reason::ForwardBackend, &at_backend(new, &data));
        assert_eq!(client.flow(&programs).unwrap().nat, new.tuple());
    }
}

/// The new connection has the addresses and ports of the old one at the backend, too, so the old one must end first.
#[test]
fn a_client_that_gives_up_its_flow_connects_to_the_same_backend_again() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        let client = Client { dial, cookie: crate::scene::BACKEND_ISN, time: 0 };
        let old = client.flow(&programs).unwrap();
        let syn = dial.syn().seq(NEXT_ISN);
        assert_eq!(client.give(&mut programs, &syn).counted, [(Reason::SynChallenged, 1)]);
        let mut flow = client.flow(&programs).unwrap();
        flow.syn.time = flow.syn.time.wrapping_sub(SYN_AGAIN);
        programs.insert(name::FLOWS, dial.tuple(), flow);
        let outcome = client.give(&mut programs, &syn);
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        // A SYN may be forged: the old connection goes on.
        assert_eq!(client.flow(&programs).unwrap().connection.generation, old.connection.generation);
        assert_eq!(backend.owner(&programs), Some(dial.tuple()));
        let client = client.told(&sent(&outcome));
        let ack = client.at(0).seq(behind(NEXT_ISN, 0));
        let outcome = client.give(&mut programs, &ack);
        let expected = [(Reason::SynFlowReplaced, 1), (Reason::SynOldReset, 1), (Reason::ConnectSyn, 1)];
        assert!(expected.iter().all(|one| outcome.counted.contains(one)), "{:?}", outcome.counted);
        let again = sent(&outcome);
        assert_eq!((again.from, again.to, again.seq), (dial.client(), backend.address, NEXT_ISN));
        assert_eq!(backend.owner(&programs), Some(dial.tuple()));
        let answer = backend.syn_ack().ack(behind(NEXT_ISN, 0));
        backend.give(&mut programs, &answer);
        let flow = client.flow(&programs).unwrap();
        assert_eq!((flow.client_isn, flow.connection.state), (NEXT_ISN, FLOW_ESTABLISHED));
    }
}
