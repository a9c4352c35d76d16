//! Delivery `dnat`: another connection of the client, by another VIP or port, has its port at the backend already.

use std::mem::offset_of;

use common::maps::event::Expiry;
use common::maps::flow::{Connection, HalfOpen, RECORD_LOCKED, Reply};
use common::maps::name;
use common::maps::settings::Cursors;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::packet::Segment;
use tests::program::{Outcome, Programs, Sizes};
use tests::schedule::{Change, Place};
use tests::tuple::backend_tuple;
use tests::world::Device;

use crate::check::{assert_dropped, assert_emitted, assert_handed_on, order, sent};
use crate::dnat::{direct, keep_sources};
use crate::half_open::{caller, half_open, tcp};
use crate::scene::{Backend, Client, Dial, behind, dial, ready, usual_hello};
use crate::setup::{backend_id, backend_socket, forget_all, with_backends};

/// The second port of the TCP listener.
const OTHER_PORT: u16 = 20_002;
/// The number of a SYN that nobody proves.
const FORGED_ISN: u32 = 0x2222_0000;
/// The generation of a connection that has no record.
const NO_RECORD: u32 = u32::MAX;

/// Returns a client that has our SYN-ACK by another port, and its first segment, while a SYN that a stranger sent in its name has its port at
/// the backend.
#[track_caller]
fn behind_a_forged_syn(programs: &mut Programs, forged: Dial, tls: bool) -> (Client, Segment) {
    let outcome = programs.ingress(Device::Client, &forged.syn().seq(FORGED_ISN).bytes());
    assert_eq!(outcome.counted, [(Reason::SynForwarded, 1)]);
    let honest = if tls { dial(forged.family) } else { forged.to_port(OTHER_PORT) };
    let client = honest.shake(programs);
    assert!(half_open(programs, forged).is_some(), "a SYN proves nothing");
    let first = client.at(0);
    (client, if tls { first.payload(usual_hello()) } else { first })
}

/// Otherwise a stranger keeps a client from a VIP by a SYN to another one, each helloTimeout.
#[test]
fn a_syn_that_nobody_proved_gives_way_to_a_client_that_proves_its_own() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        for tls in [false, true] {
            let forged = caller(family);
            let (client, first) = behind_a_forged_syn(&mut programs, forged, tls);
            let outcome = client.give(&mut programs, &first);
            for reason in [Reason::SynOldReset, Reason::ConnectSyn] {
                assert!(outcome.counted.contains(&(reason, 1)), "{:?}", outcome.counted);
            }
            let syn = sent(&outcome);
            assert_eq!((syn.from, syn.to), (client.dial.client(), backend_socket(family, 0)));
            let backend = Backend { address: syn.to, source: syn.from, timestamps: true };
            // The backend would answer the second SYN for the first one.
            let rst = backend.to_backend().rst().seq(behind(FORGED_ISN, 0)).window(0);
            assert_emitted(&outcome, &[(Device::Backend, rst)]);
            assert_eq!(half_open(&programs, forged), None);
            assert_eq!(backend.owner(&programs), Some(client.dial.tuple()));
            backend.accept(&mut programs);
            assert!(client.flow(&programs).is_some());
            forget_all(&mut programs);
        }
    }
}

/// A lock is no reason for RST.
#[test]
fn while_another_cpu_holds_the_record_of_such_a_syn_the_client_waits() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        let forged = caller(family);
        let (client, first) = behind_a_forged_syn(&mut programs, forged, false);
        let held = half_open(&programs, forged).unwrap();
        let connection = Connection { flags: RECORD_LOCKED, ..held.connection };
        programs.insert(name::HALF_OPENS, forged.tuple(), HalfOpen { connection, ..held });
        assert_dropped(&client.give(&mut programs, &first), Reason::ConnectBusy);
        programs.remove::<_, HalfOpen>(name::HALF_OPENS, forged.tuple());
        forget_all(&mut programs);
    }
}

/// The half-open record of the other SYN is removed before its port is claimed: in between, one more SYN in its name may come.
#[test]
fn a_syn_that_takes_the_port_meanwhile_makes_the_client_wait() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        let forged = caller(family);
        let (client, first) = behind_a_forged_syn(&mut programs, forged, false);
        let nat = backend_tuple(backend_socket(family, 0), client.dial.client());
        let next = [Change::replace(name::NATS, &nat, &Reply::to(&forged.tuple(), NO_RECORD))];
        // Counted down where the record ends.
        let ended = Place::new(name::CURSORS, &0u32, offset_of!(Cursors, half_opens));
        let next = programs.behind_access(&ended, 1, &next).expect("a hardware breakpoint");
        let outcome = client.give(&mut programs, &first);
        assert!(next.happened());
        drop(next);
        assert_eq!(outcome.counted, [(Reason::SynOldReset, 1), (Reason::ConnectBusy, 1)]);
        assert_eq!(half_open(&programs, forged), None);
        assert_eq!(programs.entry::<_, Reply>(name::NATS, nat).unwrap().tuple(), forged.tuple());
        // It repeats its hello, and is served once the port is free.
        programs.remove::<_, Reply>(name::NATS, nat);
        assert_eq!(client.give(&mut programs, &first).counted, [(Reason::ConnectSyn, 1)]);
        forget_all(&mut programs);
    }
}

/// Its own SYN has the kernel ask for the link address, which a copy cannot wait for.
#[test]
fn where_the_next_hop_is_not_known_the_client_dials_without_the_rst() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = direct();
        programs.tcp_listener(OTHER_PORT);
        let forged = caller(family);
        let (client, first) = behind_a_forged_syn(&mut programs, forged, false);
        let backend = backend_socket(family, 0);
        let neighbour = format!("neigh del {} dev {}\n", backend.ip(), Device::Backend.name());
        programs.world.change(|node| node.ip(&neighbour)).unwrap();
        // What the programs remember of the next hop is over.
        std::thread::sleep(std::time::Duration::from_millis(140));
        let outcome = client.give(&mut programs, &first);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1), (Reason::EmitCopyLost, 1)]);
        let syn = sent(&outcome);
        assert_eq!((syn.from, syn.to), (client.dial.client(), backend));
        assert_eq!(outcome.emitted, []);
        assert_eq!(half_open(&programs, forged), None);
    }
}

/// Another CPU claims the port before it stores its record, and removes the record before the claim.
#[test]
fn a_port_whose_holder_has_no_record_is_no_reason_for_rst() {
    tests::skip_without_root!();
    let mut programs = direct();
    programs.tcp_listener(OTHER_PORT);
    for family in FAMILIES {
        for tls in [false, true] {
            let other = caller(family);
            let honest = if tls { dial(family) } else { other.to_port(OTHER_PORT) };
            let nat = backend_tuple(backend_socket(family, 0), honest.client());
            programs.insert(name::NATS, nat, Reply::to(&other.tuple(), NO_RECORD));
            let outcome = programs.ingress(Device::Client, &honest.syn().bytes());
            assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
            let client = honest.shake(&mut programs);
            let first = client.at(0);
            let first = if tls { first.payload(usual_hello()) } else { first };
            assert_dropped(&client.give(&mut programs, &first), Reason::ConnectBusy);
            assert_eq!(programs.entry::<_, Reply>(name::NATS, nat).unwrap().tuple(), other.tuple());
            programs.remove::<_, Reply>(name::NATS, nat);
            assert_eq!(client.give(&mut programs, &first).counted, [(Reason::ConnectSyn, 1)]);
            forget_all(&mut programs);
        }
    }
}

/// It has proved that it is there, as the other one has.
#[test]
fn a_client_that_waits_for_its_backend_keeps_its_port() {
    tests::skip_without_root!();
    let mut programs = direct();
    for family in FAMILIES {
        let waiting = dial(family).shake(&mut programs);
        let honest = caller(family);
        let backend = backend_tuple(backend_socket(family, 0), honest.client());
        // For a SYN-ACK of ours.
        programs.insert(name::NATS, backend, Reply::to(&waiting.dial.tuple(), NO_RECORD));
        let client = honest.shake(&mut programs);
        forget_all(&mut programs);
        let hello = waiting.at(0).payload(usual_hello());
        assert_eq!(waiting.give(&mut programs, &hello).counted, [(Reason::ConnectSyn, 1)]);
        for segment in [honest.syn(), client.at(0)] {
            let outcome = programs.ingress(Device::Client, &segment.bytes());
            assert_eq!(outcome.counted, [(Reason::ConnectNoPort, 1)]);
        }
        let holder: Reply = programs.entry(name::NATS, backend).unwrap();
        assert_eq!(holder.tuple(), waiting.dial.tuple());
        forget_all(&mut programs);
    }
}

/// The client would repeat its SYN to the same backend until it gives up.
#[test]
fn a_client_whose_port_has_a_connection_with_the_backend_itself_is_led_to_another_one() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = tcp(Sizes::default(), 2);
        keep_sources(&mut programs, &[0, 1].map(|number| backend_id(family, number)));
        let dial = caller(family);
        let syn = |outcome: &Outcome| {
            let syn = sent(outcome);
            Backend { address: syn.to, source: syn.from, timestamps: true }
        };
        let give =
            |programs: &mut Programs, segment: &Segment| programs.ingress(Device::Client, &segment.bytes());
        let first = syn(&give(&mut programs, &dial.syn()));
        // Before the backend has answered, the SYN is repeated as it is.
        assert_eq!(give(&mut programs, &dial.syn()).counted, [(Reason::SynForwarded, 1)]);
        let challenge = first.segment().seq(77).ack(99);
        assert_handed_on(&first.give(&mut programs, &challenge), &challenge.bytes(), Reason::ConnectStray);
        let client = dial.shake(&mut programs);
        let ack = client.at(0);
        assert_eq!(syn(&client.give(&mut programs, &ack)), first);
        assert_eq!(half_open(&programs, dial), None);
        assert_handed_on(&first.give(&mut programs, &challenge), &challenge.bytes(), Reason::ConnectStray);
        // The daemon does so each second.
        let generation = client.waiting(&programs).unwrap().connection.generation;
        let again = Expiry { generation, ..order(dial.tuple(), Reason::ConnectAgain) };
        assert_eq!(programs.expire(&again).counted, [(Reason::ConnectAgain, 1)]);
        let outcome = programs.expire(&again);
        assert_eq!(outcome.counted, [(Reason::ConnectNext, 1)]);
        let [(Device::Backend, frame)] = &outcome.emitted[..] else { panic!("{outcome:?}") };
        let next = crate::check::whole(frame);
        assert_eq!(next.from, dial.client());
        assert_ne!(next.to, first.address);
        Backend { address: next.to, ..first }.accept(&mut programs);
    }
}

/// A client that waits for the first backend that it chose, and the addresses of the others.
#[track_caller]
fn waiting(
    programs: &mut Programs,
    family: Family,
    count: u8,
) -> (Client, Segment, Backend, Vec<std::net::SocketAddr>) {
    let client = dial(family).shake(programs);
    let hello = client.at(0).payload(usual_hello());
    let syn = sent(&client.give(programs, &hello));
    let first = Backend { address: syn.to, source: syn.from, timestamps: true };
    let all = (0..count).map(|number| backend_socket(family, number));
    (client, hello, first, all.filter(|address| *address != syn.to).collect())
}

/// Gives the client's port at a backend to its connection by another port.
fn take(programs: &mut Programs, client: Client, address: std::net::SocketAddr) {
    let other = Reply::to(&client.dial.to_port(OTHER_PORT).tuple(), u32::MAX);
    programs.insert(name::NATS, backend_tuple(address, client.dial.client()), other);
}

fn three(family: Family) -> Programs {
    seeing(family, 3)
}

/// Programs with this many backends, each of which sees its clients' ports.
fn seeing(family: Family, count: u8) -> Programs {
    let mut programs = ready();
    with_backends(&mut programs, count);
    let ids: Vec<u32> = (0..count).map(|number| backend_id(family, number)).collect();
    keep_sources(&mut programs, &ids);
    programs
}

/// Only three are asked for at once, and its own may still answer.
#[test]
fn while_its_port_is_taken_at_the_next_three_a_client_keeps_its_backend() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = seeing(family, 5);
        for (silent, accepts) in [(true, true), (true, false), (false, false)] {
            let (client, hello, first, others) = waiting(&mut programs, family, 5);
            for address in &others {
                take(&mut programs, client, *address);
            }
            let again = |programs: &mut Programs| {
                if silent { client.give(programs, &hello) } else { first.refuse(programs) }
            };
            if silent {
                again(&mut programs);
            }
            let outcome = again(&mut programs);
            assert_eq!(outcome.counted, [(Reason::ConnectAgain, 1)]);
            assert_eq!(sent(&outcome).to, first.address);
            assert_eq!(first.owner(&programs), Some(client.dial.tuple()));
            if accepts {
                first.accept(&mut programs);
                assert!(client.flow(&programs).is_some());
            } else {
                // The search goes on behind them.
                for address in &others {
                    programs.remove::<_, Reply>(name::NATS, backend_tuple(*address, client.dial.client()));
                }
                let outcome = again(&mut programs);
                assert!(outcome.counted.contains(&(Reason::ConnectNext, 1)), "{:?}", outcome.counted);
                assert!(others.contains(&sent(&outcome).to));
                assert_eq!(first.owner(&programs), None);
            }
            forget_all(&mut programs);
        }
    }
}

#[test]
fn a_backend_where_the_clients_port_is_taken_is_passed_over() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = three(family);
        for silent in [false, true] {
            for taken in [0, 1] {
                let (client, hello, first, others) = waiting(&mut programs, family, 3);
                take(&mut programs, client, others[taken]);
                let outcome: Outcome = match silent {
                    false => first.refuse(&mut programs),
                    true => {
                        client.give(&mut programs, &hello);
                        client.give(&mut programs, &hello)
                    }
                };
                assert!(outcome.counted.contains(&(Reason::ConnectNext, 1)), "{:?}", outcome.counted);
                let next = sent(&outcome);
                assert_eq!((next.from, next.to), (client.dial.client(), others[1 - taken]));
                assert_eq!(first.owner(&programs), None);
                let other = Backend { address: others[taken], ..first };
                assert_eq!(other.owner(&programs), Some(client.dial.to_port(OTHER_PORT).tuple()));
                forget_all(&mut programs);
            }
        }
    }
}

/// Its own backend may still answer.
#[test]
fn while_its_port_is_taken_everywhere_else_a_client_keeps_a_silent_backend() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = three(family);
        let (client, hello, first, others) = waiting(&mut programs, family, 3);
        for address in others {
            take(&mut programs, client, address);
        }
        client.give(&mut programs, &hello);
        let outcome = client.give(&mut programs, &hello);
        assert_eq!(outcome.counted, [(Reason::ConnectAgain, 1)]);
        assert_eq!(sent(&outcome).to, first.address);
        assert_eq!(first.owner(&programs), Some(client.dial.tuple()));
        first.accept(&mut programs);
    }
}
