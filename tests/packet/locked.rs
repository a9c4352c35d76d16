//! Records of waiting and half-open connections have a lock. A packet that finds it held is dropped and changes nothing;
//! the CPU that holds it removes a record that ended meanwhile.

use std::mem::offset_of;

use common::maps::address::Address;
use common::maps::event::{EXPIRE_DONE, EXPIRE_NOTHING, Expiry};
use common::maps::flow::{ClientTuple, HalfOpen, Pending, RECORD_LOCKED, RECORD_OVER, Reply};
use common::maps::name;
use common::maps::settings::{Cursors, Settings};
use common::maps::source::Source;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::by_cookie::{clear_counts, crowd, dialled};
use crate::check::{assert_dropped, order, sent};
use crate::half_open::{caller, from_client, half_open, knock, tcp};
use crate::scene::{Backend, Client, dial, ready, usual_hello};
use crate::setup::{forget_all, nats, remove_hello, waiting_of};
use crate::undelivered::{PART, owed};

/// Sets the flags of a waiting connection's record.
fn mark(programs: &mut Programs, client: Client, flags: u8) -> Pending {
    let mut record = client.waiting(programs).expect("it waits");
    record.connection.flags = flags;
    programs.insert(name::PENDING, client.dial.tuple(), record);
    record
}

#[test]
fn packets_of_a_held_hello_are_dropped_and_pass_when_they_come_again() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let hello = usual_hello();
        let client = dial(family).shake(&mut programs);
        assert_dropped(&client.send(&mut programs, 0, &hello[..300]), Reason::HelloBuffered);
        let record = mark(&mut programs, client, RECORD_LOCKED);
        assert_dropped(&client.send(&mut programs, 300, &hello[300..]), Reason::HelloBusy);
        let reset = client.at(300).rst();
        assert_dropped(&client.give(&mut programs, &reset), Reason::HelloBusy);
        let removal = order(client.dial.tuple(), Reason::ExpireHello);
        assert_eq!(programs.expire(&removal).verdict, EXPIRE_NOTHING);
        assert_eq!(client.waiting(&programs), Some(record));
        mark(&mut programs, client, 0);
        let backend = Backend::of(&sent(&client.send(&mut programs, 300, &hello[300..])));
        let record = mark(&mut programs, client, RECORD_LOCKED);
        assert_dropped(&backend.give(&mut programs, &backend.syn_ack()), Reason::ConnectBusy);
        assert_dropped(&backend.refuse(&mut programs), Reason::ConnectBusy);
        assert_eq!(client.waiting(&programs), Some(record));
        mark(&mut programs, client, 0);
        assert_eq!(backend.accept(&mut programs).counted, [(Reason::ConnectHello, 1)]);
    }
}

/// Returns the changes of a CPU that ends a connection whose record another one holds: it marks the record, and leaves it
/// to the one that holds it.
fn end_held(tuple: &ClientTuple) -> [Change; 2] {
    let flags = offset_of!(Pending, connection.flags);
    [
        Change::expect(name::PENDING, tuple, flags, RECORD_LOCKED, RECORD_LOCKED),
        Change::write(name::PENDING, tuple, flags, &(RECORD_LOCKED | RECORD_OVER)),
    ]
}

/// Nobody finds it unlocked before: two CPUs would remove it, the second one maybe the client's next record.
#[test]
fn a_hello_that_ended_while_it_was_held_is_removed_with_its_port_by_its_holder_alone() {
    tests::skip_without_root!();
    let mut programs = ready();
    let flags = offset_of!(Pending, connection.flags);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let tuple: ClientTuple = client.dial.tuple();
        let unlocked = Change::expect(name::PENDING, &tuple, flags, RECORD_LOCKED | RECORD_OVER, RECORD_OVER);
        let (mut ended, mut accesses) = (0, 1);
        let mut nth = 1;
        while nth <= accesses {
            let mut later = nth + 1;
            while later == nth + 1 || later <= accesses {
                client.ask(&mut programs, &usual_hello());
                let generation = client.waiting(&programs).expect("it waits").connection.generation;
                let place = Place::new(name::PENDING, &tuple, flags);
                let end = programs.behind_access(&place, nth, &end_held(&tuple)).expect("a breakpoint");
                let found = programs.behind_access(&place, later, std::slice::from_ref(&unlocked));
                let found = found.expect("a second hardware breakpoint");
                client.send(&mut programs, 0, &usual_hello());
                let (happened, unlocked) = (end.happened(), found.happened());
                accesses = end.accesses() as u32;
                drop((end, found));
                assert!(!unlocked, "ended at access {nth}, found at {later}");
                if happened {
                    ended += 1;
                    assert_over(&programs, client, generation);
                }
                forget_all(&mut programs);
                later = if happened { later + 1 } else { u32::MAX };
            }
            nth += 1;
        }
        assert!(ended > 4, "{ended}");
    }
}

/// A CPU that looked up one client's record locks another's, which was stored in its element meanwhile, and gives it back.
/// If that connection ended in between, the next CPU that finds its record removes it, and takes it for none.
#[test]
fn a_hello_that_ended_while_it_was_held_by_mistake_is_no_connection() {
    tests::skip_without_root!();
    let mut programs = ready();
    let flags = offset_of!(Pending, connection.flags);
    for family in FAMILIES {
        let (mut ended, mut accesses) = (0, 1);
        let mut nth = 1;
        while nth <= accesses {
            let (other, _, bytes) = owed(&mut programs, family);
            let theirs: ClientTuple = other.dial.tuple();
            let record = other.waiting(&programs).expect("its bytes are kept");
            remove_hello(&mut programs, theirs);
            let client = dial(family).port(40_001).shake(&mut programs);
            client.ask(&mut programs, &usual_hello());
            let tuple: ClientTuple = client.dial.tuple();
            let [held, over] = end_held(&theirs);
            let end = [held, over, Change::remove(name::FLOWS, &theirs)];
            let place = Place::new(name::PENDING, &tuple, flags);
            let end = programs.behind_access(&place, nth, &end).expect("a hardware breakpoint");
            let reuse =
                [Change::remove(name::PENDING, &tuple), Change::insert(name::PENDING, &theirs, &record)];
            let place = Place::looked_up(name::PENDING, &tuple);
            let reuse = programs.behind_access(&place, 1, &reuse).expect("a second hardware breakpoint");
            let outcome = client.send(&mut programs, 0, &usual_hello());
            assert!(reuse.happened());
            let happened = end.happened();
            accesses = end.accesses() as u32;
            drop((reuse, end));
            assert_dropped(&outcome, Reason::HelloBusy);
            if happened {
                ended += 1;
                let left = other.waiting(&programs).expect("it was given back");
                assert_eq!((left.connection.flags, other.flow(&programs)), (RECORD_OVER, None));
                // Its client starts again.
                other.send(&mut programs, 0, &bytes[..PART]);
                let anew = other.waiting(&programs).expect("a new hello");
                assert_ne!(anew.connection.generation, record.connection.generation);
            }
            forget_all(&mut programs);
            nth += 1;
        }
        assert!(ended > 0, "{accesses}");
    }
}

/// Asserts that the hello with this generation was removed with everything that belonged to it. The same segment may have
/// started a new one.
#[track_caller]
fn assert_over(programs: &Programs, client: Client, generation: u32) {
    let waiting = client.waiting(programs);
    assert!(waiting.is_none_or(|record| record.connection.generation != generation));
    let left = usize::from(waiting.is_some());
    assert_eq!((nats(programs).len(), waiting_of(programs, client.dial.host)), (left, left as u32));
}

#[test]
fn a_record_that_became_another_clients_is_neither_changed_nor_left_locked() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        client.ask(&mut programs, &usual_hello());
        let mut other = client.waiting(&programs).expect("it waits");
        other.connection.generation += 1;
        other.have += 1;
        let tuple: ClientTuple = client.dial.tuple();
        let change = Change::write(name::PENDING, &tuple, 0, &other);
        let place = Place::new(name::PENDING, &tuple, offset_of!(Pending, connection.flags));
        let schedule = programs.behind_access(&place, 1, &[change]).expect("a hardware breakpoint");
        let outcome = client.send(&mut programs, 0, &usual_hello());
        assert!(schedule.happened());
        drop(schedule);
        assert_dropped(&outcome, Reason::HelloBusy);
        assert_eq!(client.waiting(&programs), Some(other));
        forget_all(&mut programs);
    }
}

/// Between the look-up and the lock, its holder removes the record, and the element becomes another client's. That client's
/// record would then be taken for this one's.
#[test]
fn a_record_that_was_removed_before_it_was_locked_is_not_this_clients() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for nth in 1..=3 {
            let client = dial(family).shake(&mut programs);
            client.ask(&mut programs, &usual_hello());
            let tuple: ClientTuple = client.dial.tuple();
            let change = Change::remove(name::PENDING, &tuple);
            let place = Place::new(name::PENDING, &tuple, offset_of!(Pending, connection.flags));
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            let outcome = client.send(&mut programs, 0, &usual_hello());
            assert!(schedule.happened());
            drop(schedule);
            assert_dropped(&outcome, Reason::HelloBusy);
            forget_all(&mut programs);
            programs.clear::<Address, Source>(name::SOURCES);
        }
    }
}

/// Sets the flags of a half-open connection's record.
fn mark_half_open(programs: &mut Programs, tuple: ClientTuple, flags: u8) -> HalfOpen {
    let mut record: HalfOpen = programs.entry(name::HALF_OPENS, tuple).expect("it is half-open");
    record.connection.flags = flags;
    programs.insert(name::HALF_OPENS, tuple, record);
    record
}

#[test]
fn packets_of_a_held_half_open_connection_are_dropped_and_pass_when_they_come_again() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let dial = caller(family);
        let backend = knock(&mut programs, dial);
        let record = mark_half_open(&mut programs, dial.tuple(), RECORD_LOCKED);
        let again = programs.ingress(Device::Client, &dial.syn().bytes());
        assert_dropped(&again, Reason::SynBusy);
        assert_dropped(&backend.give(&mut programs, &backend.syn_ack()), Reason::ConnectBusy);
        let removal = order(dial.tuple(), Reason::ExpireHalfOpen);
        assert_eq!(programs.expire(&removal).verdict, EXPIRE_NOTHING);
        assert_eq!(half_open(&programs, dial), Some(record));
        mark_half_open(&mut programs, dial.tuple(), 0);
        assert_eq!(backend.give(&mut programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
        mark_half_open(&mut programs, dial.tuple(), RECORD_LOCKED);
        let ack = from_client(dial, 0, 0).bytes();
        assert_dropped(&programs.ingress(Device::Client, &ack), Reason::SynBusy);
        mark_half_open(&mut programs, dial.tuple(), 0);
        assert_eq!(programs.ingress(Device::Client, &ack).counted, [(Reason::ForwardBackend, 1)]);
        assert_eq!(half_open(&programs, dial), None);
    }
}

/// The same on a TCP listener.
#[test]
fn a_half_open_record_that_was_removed_before_it_was_locked_is_not_this_clients() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        for nth in 1..=3 {
            let dial = caller(family);
            knock(&mut programs, dial);
            let tuple: ClientTuple = dial.tuple();
            let change = Change::remove(name::HALF_OPENS, &tuple);
            let place = Place::new(name::HALF_OPENS, &tuple, offset_of!(HalfOpen, connection.flags));
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            let outcome = programs.ingress(Device::Client, &dial.syn().bytes());
            assert!(schedule.happened());
            drop(schedule);
            assert_dropped(&outcome, Reason::SynBusy);
            forget_all(&mut programs);
        }
    }
}

#[test]
fn a_held_half_open_connection_is_not_evicted() {
    tests::skip_without_root!();
    let sizes = Sizes { hellos: 64, ..Sizes::default() };
    for family in FAMILIES {
        let mut programs = tcp(sizes, 1);
        let dial = caller(family);
        knock(&mut programs, dial);
        mark_half_open(&mut programs, dial.tuple(), RECORD_LOCKED);
        let before = nats(&programs);
        // Its time limit is over, and its slot is the only one.
        programs.settings(Settings { hello_timeout_ns: 1_000, half_opens: 1, ..default_settings(sizes) });
        clear_counts(&mut programs);
        let next = dial.port(40_001).syn().bytes();
        assert_eq!(programs.ingress(Device::Client, &next).counted, [(Reason::SynAnswered, 1)]);
        assert_eq!(nats(&programs), before);
        mark_half_open(&mut programs, dial.tuple(), 0);
        clear_counts(&mut programs);
        assert_eq!(programs.ingress(Device::Client, &next).counted, [(Reason::SynForwarded, 1)]);
        assert_eq!(half_open(&programs, dial), None);
    }
}

#[test]
fn an_order_of_the_daemon_ends_no_later_connection_of_the_client() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let client = dial(family).port(40_000).shake(&mut programs);
        client.ask(&mut programs, &usual_hello());
        knock(&mut programs, caller(family));
        let half = half_open(&programs, caller(family)).expect("it is half-open").connection;
        let hello = client.waiting(&programs).expect("it waits").connection;
        for (tuple, reason, generation) in [
            (client.dial.tuple(), Reason::ExpireHello, hello.generation),
            (caller(family).tuple(), Reason::ExpireHalfOpen, half.generation),
        ] {
            let stale = Expiry { generation: generation + 9, ..order(tuple, reason) };
            assert_eq!(programs.expire(&stale).verdict, EXPIRE_NOTHING);
            assert_eq!(programs.expire(&Expiry { generation, ..stale }).verdict, EXPIRE_DONE);
        }
    }
}

/// A SYN of a TCP listener is passed on, while another CPU dials another backend because the cookie of an earlier copy came back:
/// it found the record of the SYN held, which ends all the same.
#[test]
fn a_half_open_connection_that_is_held_ends_as_its_client_proves_another_handshake() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 2);
    let begun = Place::new(name::CURSORS, &0u32, offset_of!(Cursors, generation));
    for family in FAMILIES {
        for flags in [0, RECORD_LOCKED] {
            let dial = caller(family);
            let backend = knock(&mut programs, dial);
            let mut record = half_open(&programs, dial).expect("it is half-open");
            record.connection.flags = flags;
            let reply: Reply = programs.entry(name::NATS, backend.tuple()).expect("its replies are known");
            forget_all(&mut programs);
            crowd(&mut programs);
            let client = dial.shake(&mut programs);
            let changes = [
                Change::insert(name::HALF_OPENS, &dial.tuple(), &record),
                Change::insert(name::NATS, &backend.tuple(), &reply),
            ];
            let schedule = programs.behind_access(&begun, 1, &changes).expect("a hardware breakpoint");
            dialled(&mut programs, client, b"any bytes");
            assert!(schedule.happened());
            drop(schedule);
            let left = half_open(&programs, dial).map(|record| record.connection.flags);
            // The CPU that holds it removes it.
            assert_eq!(left, (flags != 0).then_some(flags | RECORD_OVER));
            forget_all(&mut programs);
        }
    }
}

/// The record that the free slot was of is still in the map: another CPU is about to remove it. The client was reset.
#[test]
fn a_hello_that_finds_a_slot_but_no_record_free_is_dropped_and_passes_when_it_comes_again() {
    tests::skip_without_root!();
    let mut programs = ready();
    let other = |nth: u32| dial(FAMILIES[0]).port(10_000 + nth as u16).tuple();
    for nth in 0..Sizes::default().hellos {
        programs.insert(name::PENDING, other(nth), Pending::zeroed());
    }
    for family in FAMILIES {
        let hello = usual_hello();
        let client = dial(family).shake(&mut programs);
        assert_dropped(&client.send(&mut programs, 0, &hello[..300]), Reason::HelloBusy);
        remove_hello(&mut programs, other(0));
        assert_dropped(&client.send(&mut programs, 0, &hello[..300]), Reason::HelloBuffered);
        assert_dropped(&client.give(&mut programs, &client.at(300).rst()), Reason::HelloReset);
        programs.insert(name::PENDING, other(0), Pending::zeroed());
    }
}

/// The server speaks first, so the client's ACK brings no bytes, and was answered by RST. Dropped, it is a lost ACK.
#[test]
fn a_bare_ack_that_finds_no_record_free_is_dropped_and_passes_when_it_comes_again() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    crowd(&mut programs);
    let other = |nth: u32| dial(FAMILIES[0]).port(10_000 + nth as u16).tuple();
    for nth in 0..Sizes::default().hellos {
        programs.insert(name::PENDING, other(nth), Pending::zeroed());
    }
    for family in FAMILIES {
        let client = caller(family).shake(&mut programs);
        assert_dropped(&client.give(&mut programs, &client.at(0)), Reason::HelloBusy);
        assert_eq!((nats(&programs), waiting_of(&programs, client.dial.host)), (vec![], 0));
        remove_hello(&mut programs, other(0));
        dialled(&mut programs, client, b"");
        programs.expire(&order(client.dial.tuple(), Reason::ExpireHello));
        programs.insert(name::PENDING, other(0), Pending::zeroed());
    }
}
