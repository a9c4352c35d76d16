//! Limits of the hello buffers: per source, in total, and in time.

use std::mem::offset_of;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::thread::sleep;
use std::time::Duration;

use common::maps::backend::BACKEND_RETIRED;
use common::maps::event::Expiry;
use common::maps::flow::{
    BUFFER_BYTES, BUFFER_FREE, Buffer, FLOW_RESET, FLOW_UNDELIVERED, PENDING_CONNECTING, PENDING_UNDELIVERED,
    Pending,
};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family, server_name};
use tests::compare::assert_frame;
use tests::fill::default_settings;
use tests::hello::hello;
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place};
use tests::world::Device;
use userspace::dataplane::read::now_ns;

use crate::check::{assert_dropped, assert_emitted, assert_sent, order, reset_of, sent};
use crate::delivery::collect;
use crate::scene::{Backend, Client, ISN, behind, dial, ready, usual_hello};
use crate::setup::{backend_id, flag_backend, hellos, nats, route_counts, waiting_of, with_backends};

/// Returns a client's address beyond the default route.
pub(crate) fn far(family: Family, net: u8, host: u8) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::new(192, 0, net, host).into(),
        Family::V6 => Ipv6Addr::new(0x2001, 0xdb8, 0, net.into(), 0, 0, 0, host.into()).into(),
    }
}

/// Loads programs with room for this many waiting hellos.
pub(crate) fn small(hellos: u32) -> Programs {
    let mut programs = Programs::with_sizes(Sizes { hellos, ..Sizes::default() }).expect("the programs load");
    programs.tls_with_one_route();
    programs
}

/// Shakes hands and sends the first part of a hello, which then waits for the rest.
#[track_caller]
pub(crate) fn begin(programs: &mut Programs, family: Family, host: IpAddr, port: u16) -> Client {
    let client = dial(family).host(host).port(port).shake(programs);
    assert_dropped(&client.send(programs, 0, &usual_hello()[..300]), Reason::HelloBuffered);
    client
}

#[test]
fn no_source_holds_more_than_64_incomplete_hellos_once_half_of_the_buffers_are_taken() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(126);
        let host = far(family, 2, 1);
        let clients: Vec<Client> = (0..64).map(|i| begin(&mut programs, family, host, 40_000 + i)).collect();
        assert_eq!(waiting_of(&programs, host), 64);
        // One more from the same source; for IPv6 the source is the whole /64.
        let same = if family.is_v4() { host } else { far(family, 2, 2) };
        let refused = dial(family).host(same).port(50_000).shake(&mut programs);
        let outcome = refused.send(&mut programs, 0, &usual_hello()[..300]);
        assert_sent(&outcome, Reason::HelloSourceFull, &refused.refusal());
        assert_eq!(refused.waiting(&programs), None);
        // Other sources have their own counts: for IPv4 the next address, for IPv6 the next /64.
        let other = if family.is_v4() { far(family, 2, 2) } else { far(family, 3, 1) };
        begin(&mut programs, family, other, 40_000);
        assert_eq!((waiting_of(&programs, host), waiting_of(&programs, other)), (64, 1));
        // One hello is delivered, one reset and one closed, which frees three slots.
        let outcome = clients[0].send(&mut programs, 300, &usual_hello()[300..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        assert_eq!(waiting_of(&programs, host), 64);
        Backend::of(&sent(&outcome)).accept(&mut programs);
        assert_eq!(waiting_of(&programs, host), 63);
        clients[1].give(&mut programs, &clients[1].at(300).rst());
        clients[2].give(&mut programs, &clients[2].at(300).fin());
        assert_eq!(waiting_of(&programs, host), 61);
        for port in 50_001..50_004 {
            begin(&mut programs, family, same, port);
        }
        let refused = dial(family).host(same).port(50_004).shake(&mut programs);
        let outcome = refused.send(&mut programs, 0, &usual_hello()[..300]);
        assert_sent(&outcome, Reason::HelloSourceFull, &refused.refusal());
        let (connected, _, _) = route_counts(&programs);
        assert_eq!(connected, 1);
    }
}

/// Behind one address there may be many clients, of one tenant or of several: 64 of them kept the others out.
#[test]
fn a_source_has_as_many_incomplete_hellos_as_it_sends_while_half_of_the_buffers_are_free() {
    tests::skip_without_root!();
    let long = hello().name(server_name(0)).length(5_000).bytes();
    for family in FAMILIES {
        let mut programs = small(300);
        let host = far(family, 2, 1);
        let mut clients: Vec<Client> =
            (0..148).map(|i| begin(&mut programs, family, host, 40_000 + i)).collect();
        assert_eq!(buffered(&programs), 148);
        // One long hello takes three buffers.
        let client = dial(family).host(host).port(50_000).shake(&mut programs);
        for (at, part) in (0..).step_by(1_400).zip(long[..4_200].chunks(1_400)) {
            client.send(&mut programs, at, part);
        }
        assert_eq!(buffered(&programs), 151);
        let refused = dial(family).host(host).port(50_001).shake(&mut programs);
        let outcome = refused.send(&mut programs, 0, &usual_hello()[..300]);
        assert_sent(&outcome, Reason::HelloSourceFull, &refused.refusal());
        begin(&mut programs, family, far(family, 3, 1), 40_000);
        // Each exit gives its buffers back: reset, closed, timed out, delivered.
        client.give(&mut programs, &client.at(4_200).rst());
        assert_eq!(buffered(&programs), 149);
        let next = |clients: &mut Vec<Client>| clients.pop().expect("there are many");
        let closed = next(&mut clients);
        closed.give(&mut programs, &closed.at(300).fin());
        programs.expire(&order(next(&mut clients).dial.tuple(), Reason::ExpireHello));
        let outcome = next(&mut clients).send(&mut programs, 300, &usual_hello()[300..]);
        assert_eq!(buffered(&programs), 147, "its backend has not answered");
        Backend::of(&sent(&outcome)).accept(&mut programs);
        assert_eq!(buffered(&programs), 146);
        // Below half, the source is served again.
        begin(&mut programs, family, host, 50_002);
    }
}

/// Returns the number of buffers that hellos have.
fn buffered(programs: &Programs) -> u32 {
    programs.element::<Cursors>(name::CURSORS, 0).buffered
}

#[test]
fn a_hello_counts_until_its_backend_answers_or_it_is_given_up() {
    tests::skip_without_root!();
    let mut programs = ready();
    with_backends(&mut programs, 2);
    for family in FAMILIES {
        let host = far(family, 2, 1);
        let client = dial(family).host(host).shake(&mut programs);
        let ask = |programs: &mut Programs| {
            let backend = client.ask(programs, &usual_hello());
            assert_eq!(waiting_of(programs, host), 1);
            backend
        };
        // In turn: both backends refuse; both stay silent until the client resets; the daemon expires the hello; the
        // backend is retired.
        let first = ask(&mut programs);
        let outcome = first.refuse(&mut programs);
        assert_eq!(waiting_of(&programs, host), 1);
        let outcome = Backend::of(&sent(&outcome)).refuse(&mut programs);
        assert_eq!(outcome.counted, [(Reason::ConnectExhausted, 1)]);
        assert_eq!(waiting_of(&programs, host), 0);
        ask(&mut programs);
        for _ in 0..4 {
            assert_eq!(waiting_of(&programs, host), 1);
            client.send(&mut programs, 0, &usual_hello());
        }
        client.give(&mut programs, &client.at(517).rst());
        assert_eq!(waiting_of(&programs, host), 0);
        ask(&mut programs);
        programs.expire(&order(client.dial.tuple(), Reason::ExpireHello));
        assert_eq!(waiting_of(&programs, host), 0);
        let backend = ask(&mut programs);
        for index in 0..2 {
            flag_backend(&mut programs, backend_id(family, index), BACKEND_RETIRED);
        }
        let outcome = backend.give(&mut programs, &backend.syn_ack());
        assert_eq!(outcome.counted, [(Reason::ConnectRetired, 1)]);
        assert_eq!(waiting_of(&programs, host), 0);
        // Refused before any backend is dialled.
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_eq!(outcome.counted, [(Reason::PickNone, 1)]);
        assert_eq!(waiting_of(&programs, host), 0);
    }
}

/// Returns the slots' metadata, without their bytes.
fn places(programs: &Programs, sizes: u32) -> Vec<Buffer> {
    (0..sizes).map(|place| programs.element(name::BUFFERS, place)).collect()
}

/// The next hello then finds a slot without a search, and that slot is in the CPU's cache.
#[test]
fn the_places_of_a_delivered_hello_are_free() {
    tests::skip_without_root!();
    let mut programs = small(8);
    let long = hello().name(server_name(0)).length(5_000).bytes();
    for family in FAMILIES {
        for (port, bytes) in (40_000..).zip([usual_hello(), long.clone()]) {
            let client = dial(family).host(far(family, 2, 1)).port(port).shake(&mut programs);
            let mut backend = None;
            for (at, part) in (0..).step_by(1_400).zip(bytes.chunks(1_400)) {
                let outcome = client.send(&mut programs, at, part);
                if outcome.counted.contains(&(Reason::ConnectSyn, 1)) {
                    backend = Some(Backend::of(&sent(&outcome)));
                }
            }
            let backend = backend.expect("the hello is whole");
            let held = client.waiting(&programs).expect("it waits for its backend").buffers;
            let held: Vec<u32> = held.into_iter().filter(|place| *place != u32::MAX).collect();
            assert_eq!(held.len(), bytes.len().div_ceil(BUFFER_BYTES));
            let outcome = backend.give(&mut programs, &backend.syn_ack());
            assert_eq!(outcome.counted.last(), Some(&(Reason::ConnectHello, 1)));
            let owed = client.flow(&programs).expect("it is open").connection.flags & FLOW_UNDELIVERED != 0;
            for place in held {
                let chunk = places(&programs, 8)[place as usize];
                assert_eq!((chunk.index == BUFFER_FREE, chunk.locked), (!owed, 0), "slot {place}");
            }
            crate::setup::forget_all(&mut programs);
        }
    }
}

/// Fills buffers for four hellos of which one slot is taken. The last of four new hellos evicts the oldest.
#[track_caller]
fn drive_out(programs: &mut Programs, family: Family) {
    for port in 50_000..50_003 {
        dial(family).host(far(family, 2, 1)).port(port).shake(programs).ask(programs, &usual_hello());
    }
    let client = dial(family).host(far(family, 2, 1)).port(50_003).shake(programs);
    let outcome = client.send(programs, 0, &usual_hello());
    assert_eq!(outcome.counted, [(Reason::HelloEvicted, 1), (Reason::ConnectSyn, 1)]);
}

/// Has the client's hello begin at this time of the monotonic clock, nanoseconds.
fn start(programs: &mut Programs, client: Client, started_ns: u64) {
    let hello = client.waiting(programs).expect("it waits");
    programs.insert(name::PENDING, client.dial.tuple(), Pending { started_ns, ..hello });
}

/// Loads programs with room for this many waiting hellos, which have all the time that a test may take, however busy the machine is.
/// Returns a time when hellos may have started, too, nanoseconds.
fn patient(hellos: u32) -> (Programs, u64) {
    let mut programs = small(hellos);
    let sizes = Sizes { hellos, ..Sizes::default() };
    programs.settings(Settings { hello_timeout_ns: 160_000_000_000, ..default_settings(sizes) });
    (programs, now_ns().checked_sub(100_000_000_000).expect("the machine has been up for 100 s"))
}

/// Its backend's SYN was lost, or a part of the hello on its path to the backend. With the latter its flow would be reset.
#[test]
fn a_whole_hello_gives_way_behind_those_that_wait_for_bytes() {
    tests::skip_without_root!();
    for (family, is_owed) in FAMILIES.into_iter().flat_map(|family| [(family, false), (family, true)]) {
        let (mut programs, then) = patient(4);
        let oldest = dial(family).shake(&mut programs);
        if is_owed {
            oldest.give(&mut programs, &oldest.at(0).psh().payload(&usual_hello()[..300]));
            let outcome = oldest.send(&mut programs, 300, &usual_hello()[300..]);
            Backend::of(&sent(&outcome)).accept(&mut programs);
        } else {
            oldest.ask(&mut programs, &usual_hello());
        }
        let state = oldest.waiting(&programs).expect("it waits").connection.state;
        assert_eq!(state, if is_owed { PENDING_UNDELIVERED } else { PENDING_CONNECTING });
        start(&mut programs, oldest, then);
        let since = if is_owed { 72_000_000_000 } else { 16_000_000_000 };
        let slow = [0, 1, 2].map(|i| {
            let client = begin(&mut programs, family, far(family, 2, 1), 40_000 + i);
            start(&mut programs, client, then + since + u64::from(i));
            client
        });
        // A client with a one-byte hello evicts no client whose backend is about to answer.
        for (port, gone) in (50_000..).zip(&slow) {
            let client = dial(family).host(far(family, 3, 1)).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello()[..1]);
            assert_eq!(outcome.counted, [(Reason::HelloBuffered, 1), (Reason::HelloEvicted, 1)]);
            assert_eq!(gone.waiting(&programs), None);
        }
        assert!(oldest.waiting(&programs).is_some());
    }
}

/// One host can fill all buffers with hellos to the silent backends of eight routes, its own or those of an outage. These went after every hello
/// whose second segment was still to come, and each client with such a hello was reset.
#[test]
fn hellos_of_silent_backends_give_way_before_those_that_are_arriving() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let (mut programs, then) = patient(4);
        let silent = [0, 1, 2].map(|i| {
            let client = dial(family).host(far(family, 2, 1)).port(40_000 + i).shake(&mut programs);
            client.ask(&mut programs, &usual_hello());
            start(&mut programs, client, then + u64::from(i));
            client
        });
        let arriving = begin(&mut programs, family, far(family, 3, 1), 40_000);
        start(&mut programs, arriving, then + 25_000_000_000);
        for (port, gone) in (50_000..).zip(&silent) {
            let client = dial(family).host(far(family, 2, 1)).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello());
            assert_eq!(outcome.counted, [(Reason::HelloEvicted, 1), (Reason::ConnectSyn, 1)]);
            assert_eq!(gone.waiting(&programs), None);
        }
        let outcome = arriving.send(&mut programs, 300, &usual_hello()[300..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    }
}

/// After a search has found the oldest hello it examines 64 more slots. In that time another CPU may assign
/// the oldest hello's slot to a complete one. Evicting the slot's new owner reset a client in one of several
/// thousand such searches.
#[test]
fn a_place_that_was_given_to_another_hello_is_not_the_oldest_ones_any_more() {
    tests::skip_without_root!();
    for (nth, family) in (1..).zip(FAMILIES.into_iter().cycle()) {
        let (counted, is_waiting, happened) = given_away(family, nth);
        if !happened {
            assert!(nth > 3, "nobody looks at it");
            break;
        }
        // The next oldest is evicted.
        let gave_way = [(Reason::HelloBuffered, 1), (Reason::HelloEvicted, 1)];
        assert_eq!(counted, gave_way, "{family:?}, look {nth}");
        assert!(is_waiting, "{family:?}, look {nth}");
    }
}

/// Sends a new hello while three wait; after the `nth` read of the oldest one's age, its slot passes to a
/// complete hello. Returns what was counted, whether the complete hello still waits, and whether there was such a read.
fn given_away(family: Family, nth: u32) -> (Vec<(Reason, u64)>, bool, bool) {
    let mut programs = small(4);
    let oldest = begin(&mut programs, family, far(family, 2, 1), 40_000);
    for port in [40_001, 40_002] {
        begin(&mut programs, family, far(family, 2, 1), port);
    }
    let whole = dial(family).shake(&mut programs);
    whole.ask(&mut programs, &usual_hello());
    let place_of = |client: Client| client.waiting(&programs).expect("it waits").buffers[0];
    let (given, left) = (place_of(oldest), place_of(whole));
    assert_eq!(left, 3);
    // The slot that the complete hello leaves is outside the search.
    programs.settings(Settings { buffers: 3, ..default_settings(Sizes { hellos: 4, ..Sizes::default() }) });
    let (oldest, taker) = (oldest.dial.tuple(), whole.dial.tuple());
    let changes = [
        Change::remove(name::PENDING, &oldest),
        Change::write(name::BUFFERS, &given, offset_of!(Buffer, owner), &taker),
        Change::write(name::PENDING, &taker, offset_of!(Pending, buffers), &given),
    ];
    let age = Place::new(name::PENDING, &oldest, offset_of!(Pending, started_ns));
    let client = dial(family).host(far(family, 3, 1)).port(50_000).shake(&mut programs);
    let other = programs.behind_access(&age, nth, &changes).expect("the byte is there");
    let outcome = client.send(&mut programs, 0, &usual_hello()[..300]);
    let happened = other.happened();
    drop(other);
    (outcome.counted, whole.waiting(&programs).is_some(), happened)
}

/// Lets hellos time out after 50 ms.
fn short_lived(programs: &mut Programs, sizes: Sizes) {
    programs.settings(Settings { hello_timeout_ns: 50_000_000, ..default_settings(sizes) });
}

#[test]
fn the_count_of_a_source_begins_anew_when_all_are_over() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let host = far(family, 2, 1);
        programs.settings(default_settings(Sizes::default()));
        let clients: Vec<Client> = (0..64).map(|i| begin(&mut programs, family, host, 40_000 + i)).collect();
        short_lived(&mut programs, Sizes::default());
        sleep(Duration::from_millis(60));
        let client = dial(family).host(host).port(50_000).shake(&mut programs);
        assert_dropped(&client.send(&mut programs, 0, &usual_hello()[..300]), Reason::HelloBuffered);
        assert_eq!(waiting_of(&programs, host), 1);
        // Hellos from before the count started again do not lower the new count.
        programs.settings(default_settings(Sizes::default()));
        let outcome = clients[0].send(&mut programs, 300, &usual_hello()[300..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        assert_eq!(waiting_of(&programs, host), 2, "one incomplete, one that waits for its backend");
        crate::setup::forget_all(&mut programs);
    }
}

#[test]
fn a_hello_that_takes_too_long_is_forgotten_when_its_client_speaks() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.settings(default_settings(Sizes::default()));
        let host = far(family, 2, 1);
        let client = begin(&mut programs, family, host, 40_000);
        short_lived(&mut programs, Sizes::default());
        sleep(Duration::from_millis(60));
        let outcome = client.send(&mut programs, 300, &usual_hello()[300..]);
        assert_sent(&outcome, Reason::HelloTimeout, &client.refusal());
        assert_eq!((client.waiting(&programs), waiting_of(&programs, host)), (None, 0));
        // The time limit also applies while the backend has not answered.
        let client = dial(family).host(host).port(40_000).shake(&mut programs);
        let backend = client.ask(&mut programs, &usual_hello());
        sleep(Duration::from_millis(60));
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::HelloTimeout, &client.refusal());
        assert_eq!((client.waiting(&programs), backend.owner(&programs)), (None, None));
        assert_eq!(nats(&programs), []);
        // A segment of another connection removes nothing: its sender may be a stranger, and the client must get its
        // RST. Its cookie decides, since another epoch may have started.
        let client = begin(&mut programs, family, host, 40_000);
        sleep(Duration::from_millis(60));
        let other = client.at(0).ack(client.wrong_ack());
        let outcome = client.give(&mut programs, &other);
        assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(&other));
        assert!(client.waiting(&programs).is_some());
        let outcome = client.send(&mut programs, 300, &usual_hello()[300..]);
        assert_sent(&outcome, Reason::HelloTimeout, &client.refusal());
        // A RST is not answered.
        let client = begin(&mut programs, family, host, 40_000);
        sleep(Duration::from_millis(60));
        assert_dropped(&client.give(&mut programs, &client.at(300).rst()), Reason::HelloReset);
        assert_eq!(client.waiting(&programs), None);
    }
}

#[test]
fn when_the_buffers_are_full_the_oldest_gives_way() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(4);
        let clients: Vec<Client> =
            (0..4).map(|i| begin(&mut programs, family, far(family, 2, 1), 40_000 + i)).collect();
        for (round, oldest) in (0..).zip(&clients[..2]) {
            let generation = oldest.waiting(&programs).expect("it waits").connection.generation;
            let client = dial(family).host(far(family, 3, 1)).port(50_000 + round).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello()[..300]);
            assert_eq!(outcome.counted, [(Reason::HelloBuffered, 1), (Reason::HelloEvicted, 1)]);
            assert_eq!(outcome.emitted, []);
            assert_eq!(oldest.waiting(&programs), None);
            assert_eq!(hellos(&programs).len(), 4);
            // The eviction is reported to the daemon, which resets the client.
            let seq = oldest.cookie.wrapping_add(1);
            let told = Expiry { seq, generation, ..order(oldest.dial.tuple(), Reason::HelloEvicted) };
            assert_eq!(programs.evictions(), [told]);
            let outcome = programs.expire(&told);
            assert_eq!((outcome.verdict, outcome.counted.as_slice()), (0, &[][..]));
            assert_emitted(&outcome, &[(Device::Client, oldest.refusal())]);
        }
        assert_eq!(waiting_of(&programs, far(family, 2, 1)), 2);
        // The hellos that stayed are intact.
        let outcome = clients[2].send(&mut programs, 300, &usual_hello()[300..]);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
    }
}

#[test]
fn a_hello_that_is_refused_takes_nobodys_place() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(4);
        for port in 40_000..40_004 {
            begin(&mut programs, family, far(family, 2, 1), port);
        }
        let unknown = hello().name("nobody.example.org").length(517).bytes();
        let client = dial(family).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &unknown);
        assert_sent(&outcome, Reason::RouteNone, &client.refusal());
        assert_eq!(hellos(&programs).len(), 4);
        assert_eq!(programs.evictions(), []);
    }
}

#[test]
fn a_hello_that_waits_for_its_backend_gives_way_with_its_port() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(4);
        let oldest = dial(family).shake(&mut programs);
        let backend = oldest.ask(&mut programs, &usual_hello());
        drive_out(&mut programs, family);
        assert_eq!((oldest.waiting(&programs), backend.owner(&programs)), (None, None));
        assert_eq!(programs.evictions().len(), 1);
    }
}

#[test]
fn a_hello_that_is_owed_gives_way_and_its_flow_is_reset() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(4);
        let bytes = hello().name(server_name(0)).length(517).bytes();
        let oldest = dial(family).shake(&mut programs);
        oldest.give(&mut programs, &oldest.at(0).psh().payload(&bytes[..300]));
        let outcome = oldest.send(&mut programs, 300, &bytes[300..]);
        let backend = Backend::of(&sent(&outcome));
        backend.accept(&mut programs);
        let started_ns = oldest.waiting(&programs).expect("it waits").started_ns;
        start(&mut programs, oldest, started_ns - 6_000_000_000);
        drive_out(&mut programs, family);
        assert_eq!(oldest.waiting(&programs), None);
        let told = programs.evictions();
        assert_eq!(told.len(), 1);
        assert_eq!(told[0].client, oldest.dial.tuple());
        let outcome = programs.expire(&told[0]);
        let to_backend = backend.to_backend().seq(behind(ISN, 517)).flags(flag::RST).window(0);
        assert_emitted(&outcome, &[(Device::Client, oldest.refusal()), (Device::Backend, to_backend)]);
        assert_eq!(oldest.flow(&programs).unwrap().connection.state, FLOW_RESET);
    }
}

#[test]
fn a_hello_larger_than_the_buffers_is_refused() {
    tests::skip_without_root!();
    let mut programs = small(2);
    let bytes = hello().name(server_name(0)).length(6_000).bytes();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for at in [0, 1_400] {
            let outcome = client.send(&mut programs, at as u32, &bytes[at..at + 1_400]);
            assert!(outcome.counted.len() == 1 && hellos(&programs).len() == 1, "{outcome:?}");
        }
        client.send(&mut programs, 2_800, &bytes[2_800..4_000]);
        let outcome = client.send(&mut programs, 4_000, &bytes[4_000..5_400]);
        assert_sent(&outcome, Reason::HelloBufferFailed, &client.refusal());
        assert_eq!(hellos(&programs), []);
        assert_eq!(waiting_of(&programs, client.dial.host), 0);
    }
}

#[test]
fn places_of_hellos_that_are_over_are_taken_again_and_their_clients_reset() {
    tests::skip_without_root!();
    let sizes = Sizes { hellos: 4, ..Sizes::default() };
    for family in FAMILIES {
        let mut programs = small(4);
        for port in 40_000..40_004 {
            begin(&mut programs, family, far(family, 2, 1), port);
        }
        short_lived(&mut programs, sizes);
        sleep(Duration::from_millis(60));
        let client = dial(family).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello()[..300]);
        assert_eq!(outcome.counted, [(Reason::HelloBuffered, 1), (Reason::HelloEvicted, 1)]);
        // The daemon would have reset its client a moment later.
        let evicted = programs.evictions();
        assert_eq!(evicted.len(), 1);
        let reset = programs.expire(&evicted[0]);
        let rst = Segment::parse(&reset.emitted[0].1).expect("a RST");
        assert_eq!((reset.emitted[0].0, rst.flags & flag::RST), (Device::Client, flag::RST));
        assert_eq!(tests::tuple::client_tuple(rst.to, rst.from), evicted[0].client);
        assert_eq!(hellos(&programs).len(), 4);
    }
}

/// Returns a hello that fills nine buffers.
fn largest() -> Vec<u8> {
    hello().name(server_name(0)).length(18_432).records_of(40).bytes()
}

#[test]
fn each_of_nine_buffers_is_its_hellos_until_that_gives_way() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(10);
        let bytes = largest();
        let first = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, first, &bytes, 1_400);
        let held = first.waiting(&programs).expect("it waits for its backend").buffers;
        // However long the test takes.
        start(&mut programs, first, now_ns() + 60_000_000_000);
        for (index, place) in (0..).zip(held) {
            let buffer = places(&programs, 10)[place as usize];
            assert_eq!((buffer.index, buffer.locked), (index, 0), "slot {place}");
        }
        // The one slot that is left passes from hello to hello; the nine are another's.
        begin(&mut programs, family, far(family, 2, 1), 40_000);
        for port in 40_001..40_012 {
            let client = dial(family).host(far(family, 2, 1)).port(port).shake(&mut programs);
            let outcome = client.send(&mut programs, 0, &usual_hello()[..300]);
            assert_eq!(outcome.counted, [(Reason::HelloBuffered, 1), (Reason::HelloEvicted, 1)]);
        }
        let outcome = backend.accept(&mut programs);
        assert_eq!(crate::delivery::delivered(&outcome, ISN), bytes);
    }
}

#[test]
fn a_hello_whose_ninth_buffer_is_taken_gives_way_as_a_whole() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(17);
        let first = dial(family).shake(&mut programs);
        collect(&mut programs, first, &largest(), 1_400);
        assert_eq!(first.waiting(&programs).expect("it waits").buffers, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
        for port in 40_001..40_009 {
            begin(&mut programs, family, far(family, 2, 1), port);
        }
        // The next search is among the nine, from the last one on.
        let sizes = Sizes { hellos: 17, ..Sizes::default() };
        programs.settings(Settings { buffers: 9, ..default_settings(sizes) });
        let client = dial(family).host(far(family, 3, 1)).shake(&mut programs);
        let outcome = client.send(&mut programs, 0, &usual_hello()[..300]);
        assert_eq!(outcome.counted, [(Reason::HelloBuffered, 1), (Reason::HelloEvicted, 1)]);
        assert_eq!(client.waiting(&programs).expect("it waits").buffers[0], 8);
        assert_eq!(first.waiting(&programs), None);
        assert_eq!(programs.evictions().len(), 1);
    }
}

#[test]
fn large_hellos_share_the_buffers_with_small_ones() {
    tests::skip_without_root!();
    for family in FAMILIES {
        let mut programs = small(10);
        let bytes = largest();
        let first = dial(family).shake(&mut programs);
        let backend = collect(&mut programs, first, &bytes, 1_400);
        let second = begin(&mut programs, family, far(family, 2, 1), 40_000);
        // Ten slots are taken. The delivery leaves all bytes unchanged and frees nine slots once all bytes
        // are delivered.
        let outcome = backend.accept(&mut programs);
        assert_eq!(crate::delivery::delivered(&outcome, ISN), bytes);
        let outcome = backend.give(&mut programs, &backend.at(0, 18_432));
        assert_eq!(outcome.counted, [(Reason::ForwardClient, 1)]);
        assert_eq!(hellos(&programs), [second.dial.tuple()]);
        let third = dial(family).port(40_001).shake(&mut programs);
        let backend = collect(&mut programs, third, &bytes, 1_400);
        let outcome = backend.accept(&mut programs);
        assert_eq!(crate::delivery::delivered(&outcome, ISN), bytes);
        assert_eq!(programs.evictions(), []);
    }
}

#[test]
fn an_order_to_reset_a_client_of_whom_nothing_is_known_uses_its_number() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let dial = dial(family);
        let told = Expiry { seq: 77, ..order(dial.tuple(), Reason::HelloEvicted) };
        let outcome = programs.expire(&told);
        assert_eq!(outcome.verdict, 0);
        assert_eq!(outcome.emitted.len(), 1);
        assert_frame(&outcome.emitted[0].1, &dial.to_client().rst().seq(77));
    }
}

#[test]
fn a_hello_refused_by_its_name_gives_back_one_place_only() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let host = far(family, 2, 1);
        for port in 40_000..40_003 {
            begin(&mut programs, family, host, port);
        }
        let unknown = hello().name("nobody.example.org").length(517).bytes();
        let client = dial(family).host(host).port(50_000).shake(&mut programs);
        assert_dropped(&client.send(&mut programs, 0, &unknown[..300]), Reason::HelloBuffered);
        assert_eq!(waiting_of(&programs, host), 4);
        let outcome = client.send(&mut programs, 300, &unknown[300..]);
        assert_sent(&outcome, Reason::RouteNone, &client.refusal());
        assert_eq!(waiting_of(&programs, host), 3);
    }
}
