//! Entries that the daemon overwrites while a packet looks for them.
//!
//! The kernel adds the new element at the head of the chain, then removes the old one, so a look-up that is past the head by
//! then finds neither. Here it is past the head for sure: it passes another element of the same chain, and at that moment the
//! entry is overwritten, with what it was.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use common::decide::route_key;
use common::maps::address::{Address, Port};
use common::maps::backend::{BACKEND_RETIRED, Backend};
use common::maps::listener::{AddressRole, Listener, ListenerKey, ROLE_VIP};
use common::maps::name;
use common::maps::route::{MemberKey, NameKey, NameRoute, Page, PageKey, Route};
use common::reason::Reason;
use tests::addresses::{Family, TLS_PORT, client, vip};
use tests::hello::hello;
use tests::packet::segment;
use tests::program::{Outcome, Pod, Programs, Sizes};
use tests::schedule::{Change, Place, Schedule};
use tests::world::Device;

use crate::check::assert_dropped;
use crate::scene::{self, ISN, Offer, dial};
use crate::setup::{backend_address, forget_all};

const ROUTES: u32 = 120;
/// The first of the routes; there are others.
const FIRST: u32 = 100;
/// Enough addresses and ports for a few pairs in one of 65,536 chains.
const MANY: u16 = 1_500;

/// Returns the name that leads to a route.
fn name_of(route: u32) -> String {
    format!("t{route}.example.org")
}

/// Returns a name that leads to a route, and is too long for the map of short ones.
fn long_name_of(route: u32) -> String {
    format!("{}.t{route}.example.org", "x".repeat(63))
}

/// Returns the ids of a route's backends.
fn backends_of(route: u32) -> [u32; 2] {
    [10 * route, 10 * route + 1]
}

/// Loads routes from [`FIRST`] on, each of two names and two backends.
fn routed() -> Programs {
    let mut programs =
        Programs::with_sizes(Sizes { names: 512, ..Sizes::default() }).expect("the programs load");
    programs.tls_with_one_route();
    for route in FIRST..FIRST + ROUTES {
        let backends = [0, 1].map(|index| {
            let backend = programs.backend(route, backend_address(Family::V4, index));
            (backends_of(route)[usize::from(index)], backend)
        });
        programs.route(route, &backends);
        programs.name(1, &name_of(route), route);
        programs.name(1, &long_name_of(route), route);
    }
    programs
}

/// Waits for a look-up of `key` that has passed the element before it in its chain; the entry is then overwritten with what it is.
fn overwrite<K: Pod, V: Pod>(programs: &Programs, map: &'static str, (key, ahead): (K, K)) -> Schedule {
    let value: V = programs.entry(map, key).expect("the entry is there");
    let change = Change::replace(map, &key, &value);
    programs.behind_access(&Place::passed(map, &ahead), 1, &[change]).expect("the element is there")
}

/// Sends the hello of a new connection. Returns the backend that is dialled for it.
#[track_caller]
fn ask(programs: &mut Programs, port: u16, server_name: &str) -> SocketAddr {
    let client = dial(Family::V4).port(port).shake(programs);
    let bytes = hello().name(server_name).bytes();
    let backend = client.ask(programs, &bytes);
    let reset = client.at(bytes.len() as u32).rst();
    assert_eq!(client.give(programs, &reset).counted, [(Reason::HelloReset, 1)]);
    backend.address
}

/// Asserts that connections go where they go otherwise when the first entry of the pair is overwritten while a hello is judged.
#[track_caller]
fn asked<K: Pod, V: Pod>(programs: &mut Programs, map: &'static str, pair: (K, K), server_name: &str) {
    let mut happened = 0;
    // Not every client is led to this entry.
    for port in 41_000..41_032 {
        let usual = ask(programs, port, server_name);
        let other = overwrite::<K, V>(programs, map, pair);
        assert_eq!(ask(programs, port, server_name), usual, "{map}");
        happened += u32::from(other.happened());
    }
    assert!(happened > 0, "{map}: the entry was never looked up");
}

fn routes() -> impl Iterator<Item = u32> {
    FIRST..FIRST + ROUTES
}

#[test]
fn names_and_routes_are_found_while_they_are_overwritten() {
    tests::skip_without_root!();
    let mut programs = routed();
    let key = |name: String| {
        let (bytes, length) = route_key::buffer(name.as_bytes()).expect("a name");
        let mut key = NameKey::zeroed();
        route_key::exact(&mut key, 1, &bytes, length);
        key
    };
    let short: Vec<_> = routes().map(|route| key(name_of(route)).short).collect();
    let pair = programs.chained(name::ROUTES_EXACT, &short).expect("a chain of two");
    let of = |at: usize| FIRST + at as u32;
    let route = of(short.iter().position(|one| *one == pair.0).expect("one of them"));
    asked::<_, NameRoute>(&mut programs, name::ROUTES_EXACT, pair, &name_of(route));

    let long: Vec<_> = routes().map(|route| key(long_name_of(route))).collect();
    let pair = programs.chained(name::ROUTES_LONG, &long).expect("a chain of two");
    let route = of(long.iter().position(|one| *one == pair.0).expect("one of them"));
    asked::<_, NameRoute>(&mut programs, name::ROUTES_LONG, pair, &long_name_of(route));

    let ids: Vec<u32> = routes().collect();
    let pair = programs.chained(name::ROUTES, &ids).expect("a chain of two");
    asked::<_, Route>(&mut programs, name::ROUTES, pair, &name_of(pair.0));
}

#[test]
fn tables_and_backends_are_found_while_they_are_overwritten() {
    tests::skip_without_root!();
    let mut programs = routed();
    let table = |route: u32| {
        let record: Route = programs.entry(name::ROUTES, route).expect("the route is there");
        record.v4.id
    };
    let tables: Vec<(u32, u32)> = routes().map(|route| (table(route), route)).collect();
    let route_of = |table: u32| tables.iter().find(|(id, _)| *id == table).expect("a table of ours").1;

    let pages: Vec<_> =
        tables.iter().flat_map(|(table, _)| [0, 1].map(|page| PageKey { table: *table, page })).collect();
    let pair = programs.chained(name::MAGLEV, &pages).expect("a chain of two");
    asked::<_, Page>(&mut programs, name::MAGLEV, pair, &name_of(route_of(pair.0.table)));

    let members: Vec<_> = tables
        .iter()
        .flat_map(|(table, _)| [0, 1].map(|member| MemberKey { table: *table, member }))
        .collect();
    let pair = programs.chained(name::MEMBERS, &members).expect("a chain of two");
    asked::<_, u32>(&mut programs, name::MEMBERS, pair, &name_of(route_of(pair.0.table)));

    let backends: Vec<u32> = routes().flat_map(backends_of).collect();
    let pair = programs.chained(name::BACKENDS, &backends).expect("a chain of two");
    asked::<_, Backend>(&mut programs, name::BACKENDS, pair, &name_of(pair.0 / 10));
}

/// The client was reset as if its backend had been removed.
#[test]
fn a_backend_that_is_overwritten_while_it_accepts_gets_the_hello() {
    tests::skip_without_root!();
    let mut programs = routed();
    let backends: Vec<u32> = routes().flat_map(backends_of).collect();
    let pair = programs.chained(name::BACKENDS, &backends).expect("a chain of two");
    let bytes = hello().name(name_of(pair.0 / 10)).bytes();
    let mut happened = 0;
    for port in 41_000..41_032 {
        let backend = dial(Family::V4).port(port).shake(&mut programs).ask(&mut programs, &bytes);
        let other = overwrite::<_, Backend>(&programs, name::BACKENDS, pair);
        backend.accept(&mut programs);
        happened += u32::from(other.happened());
    }
    assert!(happened > 0, "the entry was never looked up");
}

/// Sends a SYN.
fn dialled(programs: &mut Programs, to: SocketAddr) -> Outcome {
    let from = SocketAddr::new(client(Family::V4), 40_000);
    let syn = segment(from, to).ethernet(Device::Client.near_mac(), Device::Client.far_mac()).syn(ISN);
    programs.ingress(Device::Client, &Offer::linux(1440, 7).put(syn, scene::CLIENT_TIME, 0).bytes())
}

/// A SYN went to the node's stack, as if the address were not ours.
#[test]
fn addresses_and_listeners_are_found_while_they_are_overwritten() {
    tests::skip_without_root!();
    let mut programs = routed();
    let address = vip(Family::V4);
    let key = |address: IpAddr, port| ListenerKey {
        address: address.into(),
        port: Port::new(port),
        reserved: [0; 2],
    };
    let listener: Listener =
        programs.entry(name::LISTENERS, key(address, TLS_PORT)).expect("listener 1 is there");

    let ports: Vec<_> = (10_000..10_000 + MANY).map(|port| key(address, port)).collect();
    ports.iter().for_each(|key| programs.insert(name::LISTENERS, *key, listener));
    let pair = programs.chained(name::LISTENERS, &ports).expect("a chain of two");
    let other = overwrite::<_, Listener>(&programs, name::LISTENERS, pair);
    let outcome = dialled(&mut programs, SocketAddr::new(address, pair.0.port.number()));
    assert!(other.happened(), "the listener was not looked up");
    assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
    drop(other);

    let vips: Vec<Address> =
        (0..MANY).map(|low| IpAddr::from(Ipv4Addr::from_bits(0x0a62_0000 + u32::from(low))).into()).collect();
    vips.iter().for_each(|vip| programs.insert(name::ADDRESSES, *vip, AddressRole { flags: ROLE_VIP }));
    let pair = programs.chained(name::ADDRESSES, &vips).expect("a chain of two");
    let hidden = IpAddr::from(pair.0);
    programs.listener(hidden, TLS_PORT, listener);
    let other = overwrite::<_, AddressRole>(&programs, name::ADDRESSES, pair);
    let outcome = dialled(&mut programs, SocketAddr::new(hidden, TLS_PORT));
    assert!(other.happened(), "the address was not looked up");
    assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
}

/// Returns the changes of the daemon, which overwrites the first entry with what it is, and then the second one: that gets the
/// element that the first one had.
fn taken_over<K: Pod, V: Pod>(map: &'static str, own: (K, V), other: (K, V)) -> [Change; 2] {
    [Change::replace(map, &own.0, &own.1), Change::replace(map, &other.0, &other.1)]
}

/// The client was refused as if its route had no backend: those of another route are none of its own.
#[test]
fn a_route_that_is_overwritten_while_it_is_read_refuses_nobody() {
    tests::skip_without_root!();
    let mut programs = routed();
    let [own, other] = [FIRST, FIRST + 1]
        .map(|route| (route, programs.entry::<_, Route>(name::ROUTES, route).expect("the route is there")));
    let bytes = hello().name(name_of(FIRST)).bytes();
    let places = [
        Place::looked_up(name::ROUTES, &FIRST),
        Place::new(name::ROUTES, &FIRST, offset_of!(Route, v4)),
        Place::new(name::ROUTES, &FIRST, offset_of!(Route, policy)),
    ];
    let mut happened = 0;
    for place in &places {
        for nth in 1.. {
            let client = dial(Family::V4).shake(&mut programs);
            let changes = taken_over(name::ROUTES, own, other);
            let schedule = programs.behind_access(place, nth, &changes).expect("the route is there");
            let outcome = client.send(&mut programs, 0, &bytes);
            let done = schedule.happened();
            drop(schedule);
            if outcome.counted != [(Reason::ConnectSyn, 1)] {
                assert_dropped(&outcome, Reason::RouteChanged);
                client.ask(&mut programs, &bytes);
            }
            forget_all(&mut programs);
            if !done {
                break;
            }
            happened += 1;
        }
    }
    assert!(happened > 3, "{happened}");
}

/// The client and its backend were reset as if the backend had been removed, because another one was.
#[test]
fn a_backend_whose_element_is_another_ones_while_it_accepts_gets_the_hello() {
    tests::skip_without_root!();
    let mut programs = routed();
    let bytes = hello().name(name_of(FIRST)).bytes();
    let mut happened = 0;
    for nth in 1.. {
        let backend = dial(Family::V4).shake(&mut programs).ask(&mut programs, &bytes);
        let id = backends_of(FIRST).into_iter().find(|id| {
            let record: Backend = programs.entry(name::BACKENDS, *id).expect("it is there");
            IpAddr::from(record.address) == backend.address.ip()
        });
        let id = id.expect("a backend of the route");
        let [own, mut other] = [id, backends_of(FIRST + 1)[0]]
            .map(|id| (id, programs.entry::<_, Backend>(name::BACKENDS, id).expect("it is there")));
        other.1.flags |= BACKEND_RETIRED;
        let place = Place::looked_up(name::BACKENDS, &id);
        let changes = taken_over(name::BACKENDS, own, other);
        let schedule = programs.behind_access(&place, nth, &changes).expect("the backend is there");
        backend.accept(&mut programs);
        let done = schedule.happened();
        drop(schedule);
        forget_all(&mut programs);
        if !done {
            break;
        }
        happened += 1;
    }
    assert!(happened > 0, "nobody looks it up");
}
