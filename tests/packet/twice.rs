//! The packet that starts a connection is received twice, on two CPUs: one of them stops for any time between a look-up
//! and what it does next, and the other one goes on. There is one connection in the end.

use std::mem::offset_of;

use common::maps::address::{Address, Port};
use common::maps::event::RouteCounters;
use common::maps::flow::{BackendTuple, ClientTuple, FLOW_ESTABLISHED, FLOW_REMOVED, Flow, HalfOpen, Reply};
use common::maps::listener::ListenerKey;
use common::maps::name;
use common::maps::settings::Cursors;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::packet::Segment;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place, Schedule};
use tests::world::Device;

use crate::by_cookie::{counts, crowd, dialled};
use crate::check::assert_dropped;
use crate::half_open::{caller, from_client, half_open, knock, opened, tcp};
use crate::open::{HELLO, open};
use crate::scene::{BACKEND_ISN, Backend, Client, Dial, behind, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, route_flows, waiting_of};

/// A byte that is touched after flows and records were looked up, and before a record is stored: every new connection
/// takes the next generation.
fn begun() -> Place {
    Place::new(name::CURSORS, &0u32, offset_of!(Cursors, generation))
}

/// What a connection has in the maps once it is open.
#[derive(Clone, Copy)]
struct Made {
    client: ClientTuple,
    flow: Flow,
    nat: BackendTuple,
    reply: Reply,
}

/// Lets the backend accept; returns what the connection has, and removes it all.
#[track_caller]
fn made(programs: &mut Programs, client: Client, backend: Backend) -> Made {
    backend.accept(programs);
    let (tuple, nat) = (client.dial.tuple(), backend.tuple());
    let flow = client.flow(programs).expect("it is open");
    let reply = programs.entry(name::NATS, nat).expect("its replies are known");
    assert_eq!(client.waiting(programs), None);
    forget_all(programs);
    Made { client: tuple, flow, nat, reply }
}

impl Made {
    /// The changes of the CPU that opens the connection.
    fn changes(self) -> [Change; 2] {
        [
            Change::insert(name::FLOWS, &self.client, &self.flow),
            Change::insert(name::NATS, &self.nat, &self.reply),
        ]
    }
}

/// Slots of `BUFFERS` that records name.
fn buffered(programs: &Programs) -> u32 {
    programs.element::<Cursors>(name::CURSORS, 0).buffered
}

/// Sends a segment, and opens the same connection on another CPU before the segment's record is stored. Asserts that only
/// that one is left.
#[track_caller]
fn assert_one(programs: &mut Programs, client: Client, made: Made, payload: &[u8]) {
    let slots = buffered(programs);
    let schedule = programs.behind_access(&begun(), 1, &made.changes()).expect("a hardware breakpoint");
    let outcome = client.send(programs, 0, payload);
    assert!(schedule.happened());
    drop(schedule);
    assert_dropped(&outcome, Reason::HelloBeyond);
    assert_eq!(client.waiting(programs), None);
    assert_eq!(client.flow(programs), Some(made.flow));
    assert_eq!(nats(programs), [(made.nat, made.client)]);
    let counted = (waiting_of(programs, client.dial.host), buffered(programs), route_flows(programs, 1));
    assert_eq!(counted, (0, slots, 0));
    // The client's retransmission passes on the flow.
    let again = client.send(programs, 0, payload);
    assert_eq!(again.counted, [(Reason::ForwardBackend, 1)]);
    forget_all(programs);
}

#[test]
fn a_hello_whose_flow_was_made_meanwhile_dials_no_second_backend() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    for family in FAMILIES {
        // Whole, and its first part, which would wait for the rest.
        for part in [&hello[..], &hello[..300]] {
            let client = dial(family).shake(&mut programs);
            let backend = client.ask(&mut programs, &hello);
            let made = made(&mut programs, client, backend);
            assert_one(&mut programs, client, made, part);
        }
    }
}

#[test]
fn the_ack_of_a_tcp_listener_whose_flow_was_made_meanwhile_dials_no_second_backend() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    for family in FAMILIES {
        for data in [&b"any bytes"[..], b""] {
            crowd(&mut programs);
            let client = caller(family).shake(&mut programs);
            let backend = dialled(&mut programs, client, data);
            let made = made(&mut programs, client, backend);
            assert_one(&mut programs, client, made, data);
        }
    }
}

/// A SYN that is passed on. Its client would get a second SYN-ACK, of another backend.
#[test]
fn a_syn_whose_flow_was_made_meanwhile_is_not_passed_on() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        let client = Client { dial, cookie: BACKEND_ISN, time: 0 };
        let flow = client.flow(&programs).expect("it is open");
        let reply = programs.entry(name::NATS, backend.tuple()).expect("its replies are known");
        forget_all(&mut programs);
        let made = Made { client: dial.tuple(), flow, nat: backend.tuple(), reply };
        let schedule = programs.behind_access(&begun(), 1, &made.changes()).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::SynBusy);
        assert_eq!((half_open(&programs, dial), counts(&programs)), (None, (0, 0)));
        assert_eq!((nats(&programs), client.flow(&programs)), (vec![(made.nat, made.client)], Some(flow)));
        forget_all(&mut programs);
    }
}

/// Another connection of the client is over and lingers. It is not the hello's, which goes on.
#[test]
fn a_hello_goes_on_beside_an_earlier_flow_of_its_client() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let mut made = made(&mut programs, client, backend);
        made.flow.client_isn = made.flow.client_isn.wrapping_add(1);
        let schedule = programs.behind_access(&begun(), 1, &made.changes()).expect("a hardware breakpoint");
        client.ask(&mut programs, &usual_hello());
        assert!(schedule.happened());
        drop(schedule);
        assert_eq!(waiting_of(&programs, client.dial.host), 1);
        forget_all(&mut programs);
    }
}

/// The same for a SYN that is passed on: the other CPU's record is there already.
#[test]
fn a_syn_whose_record_was_stored_meanwhile_is_dropped() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    for family in FAMILIES {
        let dial = caller(family);
        knock(&mut programs, dial);
        let record = half_open(&programs, dial).expect("it is half-open");
        forget_all(&mut programs);
        let change = Change::insert(name::HALF_OPENS, &dial.tuple(), &record);
        let schedule = programs.behind_access(&begun(), 1, &[change]).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::SynBusy);
        assert_eq!((half_open(&programs, dial), nats(&programs)), (Some(record), vec![]));
        forget_all(&mut programs);
    }
}

/// The client was answered by a cookie before, and the other CPU gets its ACK, and dials: the SYN goes to no second
/// backend.
#[test]
fn a_syn_whose_connection_was_dialled_meanwhile_is_not_passed_on() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    for family in FAMILIES {
        crowd(&mut programs);
        let client = caller(family).shake(&mut programs);
        let backend = dialled(&mut programs, client, b"");
        let (tuple, nat) = (client.dial.tuple(), backend.tuple());
        let record = client.waiting(&programs).expect("it waits");
        let reply: Reply = programs.entry(name::NATS, nat).expect("its replies are known");
        forget_all(&mut programs);
        let dial = [Change::insert(name::PENDING, &tuple, &record), Change::insert(name::NATS, &nat, &reply)];
        let schedule = programs.behind_access(&begun(), 1, &dial).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &client.dial.syn().bytes());
        assert!(schedule.happened());
        drop(schedule);
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        assert_eq!((half_open(&programs, client.dial), counts(&programs)), (None, (0, 0)));
        assert_eq!((client.waiting(&programs), nats(&programs)), (Some(record), vec![(nat, tuple)]));
        forget_all(&mut programs);
    }
}

/// A flow of the client comes between the last look and the store, and may be gone again after it: that is no full table.
#[test]
fn a_flow_that_came_and_went_while_another_was_stored_resets_nobody() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    // It counts the flow before it stores it, and down again when it could not.
    let counted = Place::new(name::ROUTE_COUNTERS, &1u32, offset_of!(RouteCounters, flows));
    for family in FAMILIES {
        for (by_port, stays) in [(false, false), (false, true), (true, false), (true, true)] {
            let other = open(&mut programs, family).flow(&programs);
            forget_all(&mut programs);
            let (client, device, segment) = about_to_open(&mut programs, family, by_port);
            let tuple = client.dial.tuple();
            let come = [Change::insert(name::FLOWS, &tuple, &other)];
            let come = programs.behind_access(&counted, 1, &come).expect("a hardware breakpoint");
            let gone = match stays {
                true => None,
                false => Some(programs.behind_access(&counted, 2, &[Change::remove(name::FLOWS, &tuple)])),
            };
            let gone = gone.transpose().expect("a second hardware breakpoint");
            let before = nats(&programs);
            let outcome = programs.ingress(device, &segment.bytes());
            assert!(come.happened() && gone.as_ref().is_none_or(Schedule::happened));
            drop((come, gone));
            assert_eq!(route_flows(&programs, 1), 0);
            if stays {
                // It is another connection's.
                assert_eq!(outcome.counted, [(Reason::ConnectTableFull, 1)]);
            } else {
                assert_dropped(&outcome, if by_port { Reason::SynBusy } else { Reason::ConnectBusy });
                assert_eq!(nats(&programs), before);
                // The sender repeats its segment.
                programs.ingress(device, &segment.bytes());
                assert_eq!(client.flow(&programs).expect("it is open").connection.state, FLOW_ESTABLISHED);
            }
            forget_all(&mut programs);
        }
    }
}

/// Another CPU stores the very flow between the last look and the store, for a copy of the packet: that is no full table.
#[test]
fn a_flow_that_a_copy_of_its_packet_made_meanwhile_resets_nobody() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    let counted = Place::new(name::ROUTE_COUNTERS, &1u32, offset_of!(RouteCounters, flows));
    for (family, by_port) in FAMILIES.into_iter().flat_map(|family| [(family, false), (family, true)]) {
        let mut made = open(&mut programs, family).flow(&programs);
        forget_all(&mut programs);
        let (client, device, segment) = about_to_open(&mut programs, family, by_port);
        let tuple = client.dial.tuple();
        made.set_generation(match by_port {
            true => half_open(&programs, client.dial).expect("it is dialled").connection.generation,
            false => client.waiting(&programs).expect("it waits").connection.generation,
        });
        let come = [Change::insert(name::FLOWS, &tuple, &made)];
        let come = programs.behind_access(&counted, 1, &come).expect("a hardware breakpoint");
        let before = nats(&programs);
        let outcome = programs.ingress(device, &segment.bytes());
        assert!(come.happened());
        drop(come);
        assert_dropped(&outcome, if by_port { Reason::SynBusy } else { Reason::ConnectIgnored });
        assert_eq!((client.flow(&programs), nats(&programs)), (Some(made), before));
        assert_eq!(route_flows(&programs, 1), 0, "counted by the other one");
        forget_all(&mut programs);
    }
}

/// Returns a client, and the segment that opens its flow next, on the TCP or the TLS listener.
#[track_caller]
fn about_to_open(programs: &mut Programs, family: Family, by_port: bool) -> (Client, Device, Segment) {
    if by_port {
        let dial = caller(family);
        let backend = knock(programs, dial);
        assert_eq!(backend.give(programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
        (Client { dial, cookie: BACKEND_ISN, time: 0 }, Device::Client, from_client(dial, 0, 0))
    } else {
        let client = dial(family).shake(programs);
        let backend = client.ask(programs, &usual_hello());
        (client, Device::Backend, backend.syn_ack())
    }
}

/// The other CPU has stored its record, and waits for the backend.
#[test]
fn a_hello_whose_record_was_stored_meanwhile_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    for family in FAMILIES {
        for part in [&hello[..], &hello[..300]] {
            let client = dial(family).shake(&mut programs);
            client.ask(&mut programs, &hello);
            let record = client.waiting(&programs).expect("it waits");
            forget_all(&mut programs);
            let change = Change::insert(name::PENDING, &client.dial.tuple(), &record);
            let schedule = programs.behind_access(&begun(), 1, &[change]).expect("a hardware breakpoint");
            let outcome = client.send(&mut programs, 0, part);
            assert!(schedule.happened());
            drop(schedule);
            assert_dropped(&outcome, Reason::HelloBusy);
            assert_eq!(client.waiting(&programs), Some(record));
            assert_eq!((nats(&programs), waiting_of(&programs, client.dial.host)), (vec![], 0));
            forget_all(&mut programs);
        }
    }
}

/// A byte that is touched after flows were looked up, and before records are: the packet's listener is read in between.
fn listened(dial: Dial) -> Place {
    let (address, port) = (Address::from(dial.vip().ip()), Port::new(dial.vip().port()));
    Place::new(name::LISTENERS, &ListenerKey { address, port, reserved: [0; 2] }, 0)
}

/// The other CPU opens the connection, and removes its record, between the look-ups of this one. A later segment proves no
/// handshake: it would be answered with RST.
#[test]
fn a_segment_whose_flow_was_made_meanwhile_is_not_refused() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // Also one without data.
        for data in [&b"data"[..], b""] {
            let client = dial(family).shake(&mut programs);
            let backend = client.ask(&mut programs, &usual_hello());
            let made = made(&mut programs, client, backend);
            let place = listened(client.dial);
            let schedule = programs.behind_access(&place, 1, &made.changes()).expect("a hardware breakpoint");
            let segment = client.at(HELLO).ack(behind(client.cookie, 100)).payload(data);
            let outcome = client.give(&mut programs, &segment);
            assert!(schedule.happened());
            drop(schedule);
            assert_dropped(&outcome, Reason::HelloBeyond);
            assert_eq!(client.flow(&programs), Some(made.flow));
            forget_all(&mut programs);
        }
    }
}

/// The same for a SYN that comes late to a crowded TCP listener: it would be answered by a cookie.
#[test]
fn a_syn_whose_flow_was_made_meanwhile_is_not_answered() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = opened(&mut programs, dial);
        let flow = Client { dial, cookie: BACKEND_ISN, time: 0 }.flow(&programs).expect("it is open");
        let reply = programs.entry(name::NATS, backend.tuple()).expect("its replies are known");
        forget_all(&mut programs);
        crowd(&mut programs);
        let made = Made { client: dial.tuple(), flow, nat: backend.tuple(), reply };
        let place = listened(dial);
        let schedule = programs.behind_access(&place, 1, &made.changes()).expect("a hardware breakpoint");
        let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::SynBusy);
        forget_all(&mut programs);
    }
}

/// A SYN-ACK that comes twice: the other CPU opens the flow between the look-ups of this one, which would reset the backend.
/// The client's half-open record is of a later SYN, and only there to be touched between them.
#[test]
fn a_syn_ack_whose_flow_was_made_meanwhile_is_dropped() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        opened(&mut programs, dial);
        let client = Client { dial, cookie: BACKEND_ISN, time: 0 };
        let mut flow = client.flow(&programs).expect("it is open");
        forget_all(&mut programs);
        let (backend, tuple) = (knock(&mut programs, dial), dial.tuple());
        let mut later = half_open(&programs, dial).expect("it is half-open");
        flow.set_generation(later.connection.generation);
        flow.nat = later.nat;
        later.connection.generation += 1;
        programs.insert(name::HALF_OPENS, tuple, later);
        let place = Place::new(name::HALF_OPENS, &tuple, offset_of!(HalfOpen, connection.generation));
        let change = Change::insert(name::FLOWS, &tuple, &flow);
        let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::ConnectIgnored);
        assert_eq!((client.flow(&programs), half_open(&programs, dial)), (Some(flow), Some(later)));
        forget_all(&mut programs);
    }
}

/// Two SYNs of a client whose connection is over: the CPU that marked the flow removes it, and counts it down.
#[test]
fn a_flow_that_another_cpu_removes_is_left_to_it() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // Before this CPU has read the state, and before it exchanges it.
        for nth in 1..=2 {
            let open = open(&mut programs, family);
            open.close(&mut programs);
            let (tuple, state) = (open.client.dial.tuple(), offset_of!(Flow, connection.state));
            let place = Place::new(name::FLOWS, &tuple, state);
            let change = Change::write(name::FLOWS, &tuple, state, &FLOW_REMOVED);
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            open.client.give(&mut programs, &open.client.dial.syn());
            assert!(schedule.happened());
            drop(schedule);
            assert_eq!(open.flow(&programs).connection.state, FLOW_REMOVED);
            assert_eq!(route_flows(&programs, 1), 1);
            assert_eq!(open.backend.owner(&programs), Some(tuple));
            forget_all(&mut programs);
        }
    }
}

/// The port of a refused try is released at once, and once more with the record: by then it is another client's.
#[test]
fn a_port_that_another_client_claimed_meanwhile_is_not_released() {
    tests::skip_without_root!();
    let mut programs = ready();
    let counted = Place::new(name::ROUTE_COUNTERS, &1u32, offset_of!(RouteCounters, retried));
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        let other = client.dial.port(50_000).tuple();
        let claimed = Change::insert(name::NATS, &backend.tuple(), &Reply::to(&other, 77));
        let schedule = programs.behind_access(&counted, 1, &[claimed]).expect("a hardware breakpoint");
        let outcome = backend.refuse(&mut programs);
        assert!(schedule.happened(), "{:?}", outcome.counted);
        drop(schedule);
        assert_eq!(outcome.counted, [(Reason::ConnectExhausted, 1)]);
        assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![(backend.tuple(), other)]));
        forget_all(&mut programs);
    }
}
