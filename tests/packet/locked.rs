//! Records of waiting and half-open connections have a lock. A packet that finds it held is dropped and changes nothing;
//! the CPU that holds it removes a record that ended meanwhile.

use std::mem::offset_of;

use common::maps::address::Address;
use common::maps::event::{EXPIRE_DONE, EXPIRE_NOTHING, Expiry};
use common::maps::flow::{ClientTuple, HalfOpen, Pending, RECORD_LOCKED, RECORD_OVER};
use common::maps::name;
use common::maps::settings::Settings;
use common::maps::source::Source;
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place};
use tests::world::Device;

use crate::by_cookie::clear_counts;
use crate::check::{assert_dropped, order, sent};
use crate::half_open::{caller, from_client, half_open, knock, tcp};
use crate::scene::{Backend, Client, dial, ready, usual_hello};
use crate::setup::{nats, waiting_of};

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

#[test]
fn a_hello_that_ended_while_it_was_held_is_removed_with_its_port() {
    tests::skip_without_root!();
    let mut programs = ready();
    let flags = offset_of!(Pending, connection.flags);
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let tuple: ClientTuple = client.dial.tuple();
        // Before it is locked, while it is, and when it is unlocked.
        for nth in 1.. {
            client.ask(&mut programs, &usual_hello());
            let generation = client.waiting(&programs).expect("it waits").connection.generation;
            let change = Change::write(name::PENDING, &tuple, flags, &RECORD_OVER);
            let place = Place::new(name::PENDING, &tuple, flags);
            let schedule = programs.behind_access(&place, nth, &[change]).expect("a hardware breakpoint");
            client.send(&mut programs, 0, &usual_hello());
            let happened = schedule.happened();
            drop(schedule);
            if happened {
                end_unlocked(&mut programs, client);
                assert_over(&programs, client, generation);
            }
            crate::setup::forget_all(&mut programs);
            programs.clear::<Address, Source>(name::SOURCES);
            if !happened {
                assert!(nth > 4, "{nth}");
                break;
            }
        }
    }
}

/// Does what a CPU does next that marked a record as over when nobody held it: removes it.
pub(crate) fn end_unlocked(programs: &mut Programs, client: Client) {
    if client.waiting(programs).is_some_and(|record| record.connection.flags == RECORD_OVER) {
        programs.expire(&order(client.dial.tuple(), Reason::ExpireHello));
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
        crate::setup::forget_all(&mut programs);
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
