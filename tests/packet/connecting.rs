//! The bound on hellos of one source that wait for the backends of one route.

use std::mem::offset_of;

use common::maps::flow::{ClientTuple, Pending, RECORD_LOCKED, RECORD_OVER};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::maps::source::{Share, ShareKey};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, server_name};
use tests::fill::default_settings;
use tests::hello::hello;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place};

use crate::check::{assert_dropped, assert_sent, flow_order, order, sent};
use crate::delivery::collect;
use crate::scene::{Backend, Client, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, remove_flow, remove_hello, route_counts, waiting_of};

/// One tenant's silent backends refused the clients of other tenants behind the same address.
#[test]
fn a_source_has_no_more_hellos_waiting_for_a_routes_backends_than_its_bound() {
    tests::skip_without_root!();
    let mut programs = ready();
    programs.settings(Settings { share_connecting_max: 2, ..default_settings(Sizes::default()) });
    for family in FAMILIES {
        let client = |programs: &mut _, port| -> Client { dial(family).port(port).shake(programs) };
        let first = client(&mut programs, 41_000);
        let backend: Backend = first.ask(&mut programs, &usual_hello());
        let second = client(&mut programs, 41_001);
        second.ask(&mut programs, &usual_hello());
        let key = ShareKey::of(&first.dial.tuple(), 1);
        let count =
            |programs: &Programs| programs.entry::<_, Share>(name::SHARES, key).map(|share| share.connecting);
        assert_eq!(count(&programs), Some(2));
        let third = client(&mut programs, 41_002);
        let outcome = third.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::AdmitConnecting, &third.refusal());
        assert_eq!(count(&programs), Some(2));
        // Each exit gives the count back once: the backend answers, the client resets.
        backend.accept(&mut programs);
        assert_eq!(count(&programs), Some(1));
        second.give(&mut programs, &second.at(517).rst());
        assert_eq!(count(&programs), Some(0));
        third.ask(&mut programs, &usual_hello());
        assert_eq!(count(&programs), Some(1));
        remove_hello(&mut programs, third.dial.tuple());
    }
}

/// What a source takes of the stash is bounded, not how many hellos it takes it with.
#[test]
fn a_long_hello_counts_for_each_slot_that_it_takes() {
    tests::skip_without_root!();
    let mut programs = ready();
    programs.settings(Settings { share_connecting_max: 4, ..default_settings(Sizes::default()) });
    let long = hello().name(server_name(0)).length(5_000).bytes();
    for family in FAMILIES {
        let first = dial(family).port(41_000).shake(&mut programs);
        let backend = collect(&mut programs, first, &long, 1_400);
        let key = ShareKey::of(&first.dial.tuple(), 1);
        let count =
            |programs: &Programs| programs.entry::<_, Share>(name::SHARES, key).map(|share| share.connecting);
        assert_eq!(count(&programs), Some(3));
        let second = dial(family).port(41_001).shake(&mut programs);
        second.ask(&mut programs, &usual_hello());
        assert_eq!(count(&programs), Some(4));
        // Data behind the hello takes slots, too, but those are not counted.
        assert_dropped(&first.send(&mut programs, 5_000, &[0x17; 1_400]), Reason::HelloBuffered);
        backend.accept(&mut programs);
        assert_eq!(count(&programs), Some(4), "the backend acknowledged nothing");
        backend.give(&mut programs, &backend.at(0, 5_000));
        assert_eq!(count(&programs), Some(1));
        second.give(&mut programs, &second.at(517).rst());
        assert_eq!(count(&programs), Some(0));
    }
}

/// A client and its own backend, which accepted every connection and acknowledged nothing, took the slots of all: what was kept for
/// the backend was in no bound.
#[test]
fn hellos_that_a_backend_never_acknowledges_are_bounded_and_their_slots_come_back() {
    tests::skip_without_root!();
    const BOUND: u32 = 32;
    let sizes = Sizes::default();
    let mut programs = ready();
    programs.settings(Settings { share_connecting_max: BOUND, ..default_settings(sizes) });
    let long = hello().name(server_name(0)).length(16_300).bytes();
    let taken = |programs: &Programs| programs.element::<Cursors>(name::CURSORS, 0).buffered;
    for family in FAMILIES {
        let before = taken(&programs);
        let mut opened = Vec::new();
        let key = ShareKey::of(&dial(family).tuple(), 1);
        let count = |programs: &Programs| {
            programs.entry::<_, Share>(name::SHARES, key).map_or(0, |share| share.connecting)
        };
        while count(&programs) < BOUND && opened.len() < sizes.hellos as usize / 9 {
            let client = dial(family).port(41_000 + opened.len() as u16).shake(&mut programs);
            let backend = collect(&mut programs, client, &long, 1_400);
            assert_eq!(backend.accept(&mut programs).counted, [(Reason::ConnectHello, 1)]);
            opened.push((client, backend));
        }
        assert_eq!((opened.len(), count(&programs), taken(&programs) - before), (4, 32, 32));
        assert!(taken(&programs) - before < sizes.hellos / 2);
        let next = dial(family).port(42_000).shake(&mut programs);
        let outcome = next.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::AdmitConnecting, &next.refusal());
        // Each end gives them back once: delivered, reset by the client, ended by the daemon, and left over without a flow.
        let mut ends = opened.into_iter();
        let mut next = || ends.next().expect("four are open");
        let (_, backend) = next();
        backend.give(&mut programs, &backend.at(0, 16_300));
        assert_eq!((count(&programs), taken(&programs) - before), (24, 24));
        let (client, _) = next();
        client.give(&mut programs, &client.at(0).rst());
        programs.expire(&flow_order(&programs, client.dial.tuple(), Reason::ExpireClosed));
        assert_eq!((count(&programs), taken(&programs) - before), (16, 16));
        let (client, _) = next();
        programs.expire(&flow_order(&programs, client.dial.tuple(), Reason::ExpireIdle));
        assert_eq!((count(&programs), taken(&programs) - before), (8, 8));
        let (client, _) = next();
        remove_flow(&mut programs, client.dial.tuple());
        programs.expire(&order(client.dial.tuple(), Reason::ExpireHello));
        assert_eq!((count(&programs), taken(&programs) - before), (0, 0));
        forget_all(&mut programs);
    }
}

/// Returns the slots that are counted for hellos of the client's source which wait for backends of its route.
fn connecting(programs: &Programs, client: Client) -> u32 {
    let key = ShareKey::of(&client.dial.tuple(), 1);
    programs.entry::<_, Share>(name::SHARES, key).map_or(0, |share| share.connecting)
}

/// The segment that completes a hello counts it for its route, and then cannot store that: another CPU ended the connection
/// meanwhile. The record is removed as one that collects, which it was, and took the count with it for ever.
#[test]
fn a_hello_that_ended_before_its_backend_was_dialled_is_counted_nowhere() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    let flags = offset_of!(Pending, connection.flags);
    for family in FAMILIES {
        let (mut ended, mut accesses) = (0, 1);
        let mut nth = 1;
        while nth <= accesses {
            let [client, other] = [41_000, 41_001].map(|port| dial(family).port(port).shake(&mut programs));
            // Of the same source: what is given back twice is taken from this one.
            for one in [client, other] {
                assert_dropped(&one.send(&mut programs, 0, &hello[..300]), Reason::HelloBuffered);
            }
            let tuple: ClientTuple = client.dial.tuple();
            let end = [
                Change::expect(name::PENDING, &tuple, flags, RECORD_LOCKED, RECORD_LOCKED),
                Change::write(name::PENDING, &tuple, flags, &(RECORD_LOCKED | RECORD_OVER)),
            ];
            let end = programs.behind_access(&Place::new(name::PENDING, &tuple, flags), nth, &end);
            let end = end.expect("a hardware breakpoint");
            client.send(&mut programs, 300, &hello[300..]);
            let happened = end.happened();
            accesses = end.accesses() as u32;
            drop(end);
            if happened {
                ended += 1;
                assert_eq!((client.waiting(&programs), nats(&programs)), (None, vec![]), "{family:?}, {nth}");
                assert_eq!(connecting(&programs, client), 0, "{family:?}, {nth}");
                assert_eq!(waiting_of(&programs, client.dial.host), 1, "{family:?}, {nth}");
            }
            forget_all(&mut programs);
            nth += 1;
        }
        assert!(ended > 1, "{ended} of {accesses}");
    }
}

/// Its slots were taken off those of another hello of the source, which was counted.
#[test]
fn a_hello_that_there_was_no_room_to_count_takes_nothing_off_the_count() {
    tests::skip_without_root!();
    let sizes = Sizes { shares: 1, ..Sizes::default() };
    let mut programs = Programs::with_sizes(sizes).expect("the programs load");
    programs.tls_with_one_route();
    for family in FAMILIES {
        let full = ShareKey { route: 9, ..ShareKey::of(&dial(family).tuple(), 9) };
        programs.insert(name::SHARES, full, Share { flows: 1, connecting: 0 });
        let [uncounted, counted] = [41_000, 41_001].map(|port| dial(family).port(port).shake(&mut programs));
        uncounted.ask(&mut programs, &usual_hello());
        assert_eq!(connecting(&programs, uncounted), 0);
        // The daemon makes room.
        programs.remove::<_, Share>(name::SHARES, full);
        counted.ask(&mut programs, &usual_hello());
        assert_eq!(connecting(&programs, counted), 1);
        assert_dropped(&uncounted.give(&mut programs, &uncounted.at(517).rst()), Reason::HelloReset);
        assert_eq!(connecting(&programs, counted), 1, "{family:?}");
        assert_dropped(&counted.give(&mut programs, &counted.at(517).rst()), Reason::HelloReset);
        assert_eq!(connecting(&programs, counted), 0, "{family:?}");
        forget_all(&mut programs);
    }
}

/// A site whose 15,000 nodes are behind one address lost its uplink for a moment. All hellos come in two segments, and all
/// first segments before any second one.
#[test]
fn fifteen_thousand_nodes_behind_one_address_all_reconnect() {
    tests::skip_without_root!();
    const NODES: u16 = 15_000;
    let sizes = Sizes { flows: 32_768, hellos: 65_536, ..Sizes::default() };
    let mut programs = Programs::with_sizes(sizes).expect("the programs load");
    programs.tls_with_one_route();
    // Nobody waits for as long as the test runs.
    programs.settings(Settings { hello_timeout_ns: 600_000_000_000, ..default_settings(sizes) });
    let clients: Vec<Client> =
        (0..NODES).map(|node| dial(Family::V4).port(20_000 + node).shake(&mut programs)).collect();
    for client in &clients {
        assert_dropped(&client.send(&mut programs, 0, &usual_hello()[..300]), Reason::HelloBuffered);
    }
    for client in &clients {
        let outcome = client.send(&mut programs, 300, &usual_hello()[300..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        Backend::of(&sent(&outcome)).accept(&mut programs);
    }
    let (connected, refused, _) = route_counts(&programs);
    assert_eq!((connected, refused), (u64::from(NODES), 0));
}
