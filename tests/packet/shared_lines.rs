//! Which memory, that other CPUs use too, a packet of an established connection writes: the list in ARCHITECTURE.md, "At 64 cores".
//! Maps with an element for each CPU are not looked at. What is compared are the values before and after a packet: a store of the value that
//! is there already takes the line, too, and is not seen.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::offset_of;
use std::time::Duration;

use common::decide::source_port;
use common::maps::address::Address;
use common::maps::event::RouteCounters;
use common::maps::flow::{
    BackendTuple, Buffer, ClientTuple, Connection, End, FLOW_FRAGMENTED, Flow, HalfOpen, Pending, Reply, Slot,
};
use common::maps::name;
use common::maps::next_hop::{HOPS, Hop, age};
use common::maps::previous::{Peer, PeerKey};
use common::maps::settings::Cursors;
use common::maps::source::{Share, ShareKey, Source};
use common::maps::trace::TraceCount;
use common::reason::Reason;
use nix::time::{ClockId, clock_gettime};
use tests::addresses::{FAMILIES, Family, TLS_PORT};
use tests::program::{Pod, Programs, Sizes};
use tests::world::Device;
use zerocopy::IntoBytes;

use crate::dnat::{self, keep_sources};
use crate::half_open::{self, caller, tcp};
use crate::node_clients;
use crate::open::{HELLO, Open, open};
use crate::scene::{BACKEND_ISN, BACKEND_TIME, Backend, Client, Dial, Offer, dial, ready};

/// A part of a map's value: the map, where it begins, and its bytes.
type Part = (&'static str, usize, usize);

/// What the client's packets write: with each that brings news, once a second, and once in 134 ms.
const BY_CLIENT: [Part; 2] = [
    (name::FLOWS, offset_of!(Flow, client) + offset_of!(End, sent), 8),
    (name::FLOWS, offset_of!(Flow, client) + offset_of!(End, acked), 8),
];
/// The same of the backend's.
const BY_BACKEND: [Part; 2] = [
    (name::FLOWS, offset_of!(Flow, backend) + offset_of!(End, sent), 8),
    (name::FLOWS, offset_of!(Flow, backend) + offset_of!(End, acked), 8),
];
/// What the first packet of a second writes, too.
const EACH_SECOND: [Part; 1] = [(name::FLOWS, offset_of!(Flow, seen_secs), 4)];
/// What the first packet of each unit of 134 ms writes, too: in the flow, and at the next hop that all its flows share.
const EACH_UNIT: [Part; 2] = [(name::FLOWS, offset_of!(Flow, hops), 8), (name::HOPS, 0, 8)];

/// What each packet to a client writes, too, if routers may fragment it: one number for all such flows.
const WHERE_FRAGMENTED: Part = (name::CURSORS, offset_of!(Cursors, identification), 4);

/// Ids of listeners that are looked at: those of the tests are low.
const LISTENERS: u32 = 64;

const LINE: usize = 64;
/// Bytes of the kernel's `struct htab_elem`, which lies before the key.
const HEAD: usize = 48;

/// What is in all maps that have one value for all CPUs and that programs write.
type Image = BTreeMap<(&'static str, Vec<u8>), Vec<u8>>;

fn hash<K: Pod + IntoBytes + zerocopy::Immutable, V: Pod + IntoBytes + zerocopy::Immutable>(
    image: &mut Image,
    programs: &Programs,
    map: &'static str,
) {
    let entries = programs.entries::<K, V>(map).into_iter();
    image.extend(entries.map(|(key, value)| ((map, key.as_bytes().to_vec()), value.as_bytes().to_vec())));
}

fn array<V: Pod + IntoBytes + zerocopy::Immutable>(
    image: &mut Image,
    programs: &Programs,
    map: &'static str,
    elements: u32,
) {
    for index in 0..elements {
        let value = programs.element::<V>(map, index).as_bytes().to_vec();
        image.insert((map, index.to_ne_bytes().to_vec()), value);
    }
}

fn image(programs: &Programs) -> Image {
    let (mut image, sizes) = (Image::new(), Sizes::default());
    hash::<ClientTuple, Flow>(&mut image, programs, name::FLOWS);
    hash::<BackendTuple, Reply>(&mut image, programs, name::NATS);
    hash::<ClientTuple, Pending>(&mut image, programs, name::PENDING);
    hash::<ClientTuple, HalfOpen>(&mut image, programs, name::HALF_OPENS);
    hash::<Address, Source>(&mut image, programs, name::SOURCES);
    hash::<ShareKey, Share>(&mut image, programs, name::SHARES);
    hash::<u32, RouteCounters>(&mut image, programs, name::ROUTE_COUNTERS);
    hash::<u32, u64>(&mut image, programs, name::HEARD);
    hash::<PeerKey, Peer>(&mut image, programs, name::PEERS);
    array::<Cursors>(&mut image, programs, name::CURSORS, 1);
    array::<u64>(&mut image, programs, name::PORT_CURSORS, source_port::CURSORS as u32);
    array::<Hop>(&mut image, programs, name::HOPS, HOPS);
    array::<TraceCount>(&mut image, programs, name::TRACE_COUNT, 1);
    array::<Buffer>(&mut image, programs, name::BUFFERS, sizes.hellos);
    array::<Slot>(&mut image, programs, name::HALF_OPEN_RING, sizes.hellos);
    array::<Slot>(&mut image, programs, name::CLOSED_RING, sizes.closed);
    array::<u32>(&mut image, programs, name::HALF_OPEN_COUNT, LISTENERS);
    image
}

/// Returns the parts of the list, and of what is added to it, that differ. Panics if anything else does.
fn written(before: &Image, after: &Image, added: &[Part]) -> BTreeSet<Part> {
    assert!(before.keys().eq(after.keys()), "elements were made or removed");
    let listed = [&BY_CLIENT[..], &BY_BACKEND, &EACH_SECOND, &EACH_UNIT, added].concat();
    let mut written = BTreeSet::new();
    for ((map, key), old) in before {
        let new = &after[&(*map, key.clone())];
        for at in (0..old.len()).filter(|at| old[*at] != new[*at]) {
            let part =
                listed.iter().find(|(of, from, bytes)| of == map && (*from..from + bytes).contains(&at));
            written.insert(*part.unwrap_or_else(|| panic!("byte {at} of {map} {key:?} is not in the list")));
        }
    }
    written
}

fn unit() -> u32 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has a monotonic clock");
    age(Duration::from(now).as_nanos() as u64)
}

/// Waits for the start of a unit of 134 ms.
fn begin_unit() {
    let before = unit();
    while unit() == before {
        std::hint::spin_loop();
    }
}

/// Returns what one packet with 100 new bytes writes: of the client or of its backend. `old`: the first one for a second. `added`: see
/// [`written`].
fn pass(
    programs: &mut Programs,
    open: Open,
    from_client: bool,
    seq: u32,
    ack: u32,
    old: bool,
    added: &[Part],
) -> BTreeSet<Part> {
    // A node that announced the address before.
    programs.insert(name::PEERS, PeerKey::new(7, programs.world.ifindex(Device::Client)), Peer::zeroed());
    let flow = open.flow(programs);
    let (key, seen_secs) = (open.client.dial.tuple(), flow.seen_secs - u32::from(old));
    let segment = match from_client {
        true => open.client_segment(seq, ack),
        false => open.backend_segment(seq, ack),
    };
    let segment = segment.payload([7; 100]);
    programs.insert(name::FLOWS, key, Flow { seen_secs, ..flow });
    let before = image(programs);
    let device = if from_client { Device::Client } else { Device::Backend };
    assert_eq!(programs.ingress(device, &segment.bytes()).counted.len(), 1);
    written(&before, &image(programs), added)
}

/// Asserts that packets of a connection that `begin` opens write what the list says and nothing else. `until`: bytes that its client has
/// sent.
#[track_caller]
fn assert_listed(mut programs: Programs, until: u32, begin: impl Fn(&mut Programs, Family) -> Open) {
    for family in FAMILIES {
        let open = begin(&mut programs, family);
        // The hello is delivered from here on.
        open.backend.give(&mut programs, &open.backend_segment(0, until));
        let all: BTreeSet<Part> =
            [&BY_CLIENT[..], &BY_BACKEND, &EACH_SECOND, &EACH_UNIT].concat().into_iter().collect();
        let mut seen = BTreeSet::new();
        // Each side sends 100 bytes in turn, and acknowledges what it got.
        let (mut client, mut backend) = (until, 0);
        for turn in 0..8 {
            for from_client in [false, true] {
                begin_unit();
                let (seq, ack) = if from_client { (client, backend) } else { (backend, client) };
                let parts = pass(&mut programs, open, from_client, seq, ack, turn % 2 == 0, &[]);
                let others = if from_client { &BY_BACKEND } else { &BY_CLIENT };
                assert!(others.iter().all(|part| !parts.contains(part)), "{family:?}: {parts:?}");
                seen.extend(parts);
                if from_client {
                    client += 100;
                } else {
                    backend += 100;
                }
            }
        }
        assert_eq!(seen, all, "{family:?}: nothing in the list is never written");
        crate::setup::forget_all(&mut programs);
    }
}

/// A connection of the TCP listener: numbers and clocks are the backend's own.
fn of_tcp(dial: Dial, backend: Backend) -> Open {
    let client = Client { dial, cookie: BACKEND_ISN, time: BACKEND_TIME };
    Open { client, backend, offer: Offer::linux(1460, 9), clock: 0 }
}

#[test]
fn a_packet_of_an_established_connection_writes_what_the_list_says_and_nothing_else() {
    tests::skip_without_root!();
    assert_listed(ready(), HELLO, open);
}

#[test]
fn nor_one_to_a_backend_that_sees_its_clients() {
    tests::skip_without_root!();
    let mut programs = ready();
    keep_sources(&mut programs, &[1, 2]);
    assert_listed(programs, HELLO, dnat::opened_by_name);
}

#[test]
fn nor_one_of_a_tcp_listener() {
    tests::skip_without_root!();
    assert_listed(tcp(Sizes::default(), 1), 0, |programs, family| {
        of_tcp(caller(family), half_open::opened(programs, caller(family)))
    });
}

#[test]
fn nor_one_of_a_tcp_listener_to_a_backend_that_sees_its_clients() {
    tests::skip_without_root!();
    assert_listed(dnat::direct(), 0, |programs, family| {
        of_tcp(caller(family), dnat::opened(programs, caller(family)))
    });
}

#[test]
fn nor_one_of_a_client_on_the_node() {
    tests::skip_without_root!();
    assert_listed(node_clients::by_pair(ready()), HELLO, |programs, family| {
        let (client, backend) = node_clients::opened(programs, family);
        let clock = client.flow(programs).expect("the flow is there").ts_delta;
        Open { client, backend, offer: Offer::linux(1460, 9), clock }
    });
}

#[test]
fn one_that_routers_may_fragment_writes_the_next_identification_too() {
    tests::skip_without_root!();
    let mut programs = ready();
    let open = open(&mut programs, Family::V4);
    open.backend.give(&mut programs, &open.backend_segment(0, HELLO));
    let flow = open.flow(&programs);
    let connection = Connection { flags: FLOW_FRAGMENTED, ..flow.connection };
    programs.insert(name::FLOWS, open.client.dial.tuple(), Flow { connection, ..flow });
    for turn in 0..3 {
        let (client, backend) = (HELLO + 100 * turn, 100 * turn);
        for (from_client, seq, ack) in [(true, client, backend), (false, backend, client + 100)] {
            let parts = pass(&mut programs, open, from_client, seq, ack, false, &[WHERE_FRAGMENTED]);
            assert_eq!(parts.contains(&WHERE_FRAGMENTED), !from_client, "{parts:?}");
        }
    }
}

/// It answers by cookie, or for nobody: all that it keeps is per CPU.
#[test]
fn what_xdp_answers_writes_no_shared_line() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let other = dial(family).port(1).syn().bytes();
        for (port, reason) in [(TLS_PORT, Reason::XdpAnswered), (444, Reason::XdpNoListener)] {
            let frame = dial(family).to_port(port).syn().bytes();
            // XDP answers in units of time in which TCX has.
            let is_answered = (0..100).any(|_| {
                programs.ingress(Device::Client, &other);
                let before = image(&programs);
                let outcome = programs.front(Device::Client, &frame);
                let parts = written(&before, &image(&programs), &[]);
                assert_eq!(parts, BTreeSet::new(), "{family:?} {reason:?}");
                outcome.counted == [(reason, 1)]
            });
            assert!(is_answered, "{family:?} {reason:?}");
        }
    }
}

/// The lines of an element of `FLOWS` that hold these bytes of its value, for the element with this number.
fn lines(element: usize, from: usize, bytes: usize) -> BTreeSet<usize> {
    let size = HEAD + size_of::<ClientTuple>() + size_of::<Flow>();
    let value = element * size + HEAD + size_of::<ClientTuple>();
    (value + from..value + from + bytes).map(|at| at / LINE).collect()
}

/// What both directions write with each packet is in 32 bytes that follow each other: in five of eight flows in one line, else in two.
#[test]
fn what_two_cpus_write_for_one_flow_is_in_one_line_or_two() {
    let (from, bytes) = (offset_of!(Flow, client), 2 * size_of::<End>());
    assert_eq!(offset_of!(Flow, backend), from + size_of::<End>());
    assert_eq!((offset_of!(Flow, connection), size_of::<Connection>()), (0, offset_of!(Flow, seen_secs)));
    // The elements follow each other from the start of a page, and every eighth lies alike.
    let size = HEAD + size_of::<ClientTuple>() + size_of::<Flow>();
    assert_eq!((size, 8 * size % LINE), (216, 0));
    let touched: Vec<usize> = (0..8).map(|element| lines(element, from, bytes).len()).collect();
    assert_eq!((touched.iter().filter(|lines| **lines == 1).count(), touched.iter().max()), (5, Some(&2)));
    // The rest of what is written, once a second and eight times a second, adds at most two lines.
    for element in 0..8 {
        let mut all = lines(element, from, bytes);
        all.extend(lines(element, offset_of!(Flow, seen_secs), 4));
        all.extend(lines(element, offset_of!(Flow, hops), 8));
        assert!(all.len() <= 3, "element {element}: {all:?}");
    }
    // A packet of one flow writes a line of another one: the ends of neighbours.
    let shared = (0..8).filter(|element| {
        let (own, next) = (lines(*element, from, bytes), lines(element + 1, 0, size_of::<Flow>()));
        !own.is_disjoint(&next)
    });
    assert_eq!(shared.count(), 0, "the words of two flows never share a line");
    // But with the links of the next element, which look-ups read that pass it in its bucket.
    let passed = (0..8).filter(|element| {
        let next = (element + 1) * size;
        let links: BTreeSet<usize> = (next..next + HEAD).map(|at| at / LINE).collect();
        !lines(*element, from, bytes).is_disjoint(&links)
    });
    assert_eq!(passed.count(), 3, "of eight");
}

/// Next hops that follow each other share lines, as every flow of a hop does its head.
#[test]
fn what_two_cpus_write_for_two_next_hops_may_be_in_one_line() {
    let (_, head, bytes) = EACH_UNIT[1];
    let size = size_of::<Hop>();
    // The kernel rounds an element up to 8 bytes.
    assert_eq!((size, size % 8, 8 * size % LINE), (40, 0, 0));
    let line = |element: usize| (element * size + head) / LINE..=(element * size + head + bytes - 1) / LINE;
    assert!((0..8).all(|element| line(element).count() == 1), "a head is in one line");
    assert_eq!((0..8).filter(|element| line(*element) == line(element + 1)).count(), 3, "of eight pairs");
}

/// What connections that begin or end write is in other lines than the number that packets to be fragmented take.
#[test]
fn the_identification_shares_no_line_with_what_new_connections_write() {
    let (_, own, _) = WHERE_FRAGMENTED;
    let others = [
        offset_of!(Cursors, buffer),
        offset_of!(Cursors, closed_head),
        offset_of!(Cursors, closed_tail),
        offset_of!(Cursors, generation),
        offset_of!(Cursors, half_opens),
    ];
    assert!(others.iter().all(|other| own.abs_diff(*other) >= LINE), "{own}: {others:?}");
}
