//! Writes without an exchange that come too late: into a slot of a ring, a next hop, or the filter of `vestibule trace`
//! that another CPU has written meanwhile.

use std::mem::offset_of;

use common::maps::flow::{ClientTuple, FLOW_CLOSED, Flow, HalfOpen, Slot};
use common::maps::name;
use common::maps::next_hop::{HOPS, Hop, HopHead, SLOTS, stored};
use common::maps::settings::{Cursors, Settings};
use common::maps::trace::{REASON_ANY, TraceCount, TraceFilter};
use common::maps::word::Taken;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::fill::default_settings;
use tests::program::{Programs, Sizes};
use tests::schedule::{Change, Place, Schedule};
use tests::world::{Device, HOP_AGE};

use crate::by_cookie::counts;
use crate::check::{flow_order, order};
use crate::half_open::{caller, from_client, half_open, knock, tcp};
use crate::open::{HELLO, Open, open, open_with};
use crate::scene::{Offer, dial, ready};
use crate::setup::{forget_all, nats, route_flows, share_flows};

/// Writes an element of an array right after the nth access to the byte `at` of it.
fn overwrite<V: tests::program::Pod>(
    programs: &Programs,
    (map, index): (&'static str, u32),
    (at, nth): (usize, u32),
    value: &V,
) -> Schedule {
    let change = Change::write(map, &index, 0, value);
    programs.behind_access(&Place::new(map, &index, at), nth, &[change]).expect("a hardware breakpoint")
}

/// A CPU takes a slot and is stopped; another one takes the slot, too, and stores its connection; then the first one writes
/// its client into the slot. The connection of the second one has no slot then: it goes on, and only the daemon finds it
/// when its time is over.
#[test]
fn a_slot_with_another_owner_ends_no_half_open_connection() {
    tests::skip_without_root!();
    let taken = offset_of!(Slot, taken);
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let (one, other, third) = (caller(family), caller(family).port(40_001), caller(family).port(40_002));
        let mut lost = 0;
        for (nth, ends) in (1..).flat_map(|nth| [(nth, false), (nth, true)]) {
            let backend = knock(&mut programs, other);
            let record = half_open(&programs, other).expect("it is half-open");
            let own: Slot = programs.element(name::HALF_OPEN_RING, record.slot);
            assert_eq!(own.taken.generation, record.connection.generation);
            // The other's slot is the one that this client's SYN takes next.
            let next = programs.element::<Cursors>(name::CURSORS, 0).half_open as u32;
            let place = next % default_settings(Sizes::default()).half_opens;
            programs.set(name::HALF_OPEN_RING, record.slot, Slot::zeroed());
            programs.set(name::HALF_OPEN_RING, place, Slot::zeroed());
            let record = HalfOpen { slot: place, ..record };
            programs.insert(name::HALF_OPENS, other.tuple(), record);
            let schedule = overwrite(&programs, (name::HALF_OPEN_RING, place), (taken, nth), &own);
            programs.ingress(Device::Client, &one.syn().bytes());
            let happened = schedule.happened();
            drop(schedule);
            if happened {
                let slot: Slot = programs.element(name::HALF_OPEN_RING, place);
                assert_eq!(slot.taken, own.taken, "{family:?}, access {nth}");
                lost += u32::from(slot.owner != own.owner);
                assert_eq!(half_open(&programs, other), Some(record));
                knock(&mut programs, third);
                assert_eq!(half_open(&programs, other), Some(record), "{family:?}, access {nth}");
                end_or_open(&mut programs, other, backend, ends);
                for left in [one, third] {
                    programs.expire(&order(left.tuple(), Reason::ExpireHalfOpen));
                }
                assert_eq!(programs.element::<Cursors>(name::CURSORS, 0).half_opens, 0);
                assert_eq!(nats(&programs).len(), usize::from(!ends));
            }
            forget_all(&mut programs);
            if !happened {
                assert!(nth > 2, "{nth}");
                break;
            }
        }
        assert_eq!(lost, 2, "{family:?}: the late write was made");
    }
}

/// A CPU has taken a slot, and not yet stored its record, so that another one finds the slot free, and takes it, too. There is
/// one half-open connection for a slot: the first one's client is answered by a cookie.
#[test]
fn a_slot_that_another_took_before_its_record_was_stored_has_one_connection() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 1);
    for family in FAMILIES {
        let (one, other) = (caller(family), caller(family).port(40_001));
        knock(&mut programs, other);
        let mut record = half_open(&programs, other).expect("it is half-open");
        let own: Slot = programs.element(name::HALF_OPEN_RING, record.slot);
        let before = (nats(&programs), counts(&programs));
        // The slot that this client's SYN takes next.
        let next = programs.element::<Cursors>(name::CURSORS, 0).half_open as u32;
        record.slot = next % default_settings(Sizes::default()).half_opens;
        programs.set(name::HALF_OPEN_RING, record.slot, Slot::zeroed());
        programs.insert(name::HALF_OPENS, other.tuple(), record);
        // It is read, then exchanged.
        let schedule =
            overwrite(&programs, (name::HALF_OPEN_RING, record.slot), (offset_of!(Slot, taken), 2), &own);
        let outcome = programs.ingress(Device::Client, &one.syn().bytes());
        assert!(schedule.happened());
        drop(schedule);
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        assert_eq!((half_open(&programs, one), half_open(&programs, other)), (None, Some(record)));
        assert_eq!((nats(&programs), counts(&programs)), before);
        assert_eq!(programs.element::<Slot>(name::HALF_OPEN_RING, record.slot).taken, own.taken);
        forget_all(&mut programs);
    }
}

/// The daemon ends the half-open connection, or its client goes on.
fn end_or_open(
    programs: &mut Programs,
    other: crate::scene::Dial,
    backend: crate::scene::Backend,
    ends: bool,
) {
    if ends {
        assert_eq!(programs.expire(&order(other.tuple(), Reason::ExpireHalfOpen)).verdict, 0);
        return;
    }
    assert_eq!(backend.give(programs, &backend.syn_ack()).counted, [(Reason::ForwardClient, 1)]);
    let ack = from_client(other, 0, 0);
    assert_eq!(programs.ingress(Device::Client, &ack.bytes()).counted, [(Reason::ForwardBackend, 1)]);
}

/// Opens a connection from this port and closes all of it but the last acknowledgement.
pub(crate) fn nearly_closed(programs: &mut Programs, family: Family, port: u16) -> Open {
    let open = open_with(programs, dial(family).port(port), Offer::linux(1460, 9));
    open.pass_to_backend(programs, &open.client_segment(HELLO, 0).fin());
    open.pass_to_client(programs, &open.backend_segment(0, HELLO + 1).fin());
    open
}

/// A slot of the ring of closed flows that two CPUs write, the one a whole ring later than the other: one of the flows is in
/// no slot. It is closed all the same, and the daemon, which looks at every flow, removes it.
#[test]
fn a_closed_flow_that_lost_its_slot_is_left_to_the_daemon() {
    tests::skip_without_root!();
    let mut programs = ready();
    let places = u64::from(Sizes::default().closed);
    for family in FAMILIES {
        for nth in 1.. {
            let [one, other] = [40_000, 40_001].map(|port| nearly_closed(&mut programs, family, port));
            let last = |open: Open| open.client_segment(HELLO + 1, 1);
            let head = programs.element::<Cursors>(name::CURSORS, 0).closed_head;
            let [first, second] = [head, head + 1].map(|at| (at % places) as u32);
            other.pass_to_backend(&mut programs, &last(other));
            let slot: Slot = programs.element(name::CLOSED_RING, first);
            assert_eq!(slot.owner, other.client.dial.tuple());
            programs.set(name::CLOSED_RING, first, Slot::zeroed());
            let at = (offset_of!(Slot, taken), nth);
            let schedule = overwrite(&programs, (name::CLOSED_RING, second), at, &slot);
            one.pass_to_backend(&mut programs, &last(one));
            let happened = schedule.happened();
            drop(schedule);
            for (open, left) in [(one, 1), (other, 0)] {
                assert_eq!(open.flow(&programs).connection.state, FLOW_CLOSED, "{family:?}, access {nth}");
                let tuple: ClientTuple = open.client.dial.tuple();
                assert_eq!(programs.expire(&flow_order(&programs, tuple, Reason::ExpireClosed)).verdict, 0);
                let shares = share_flows(&programs, open.client.dial.host, 1);
                assert_eq!(
                    (nats(&programs).len(), route_flows(&programs, 1), shares),
                    (left, left as u32, Some(left as u32))
                );
            }
            forget_all(&mut programs);
            if !happened {
                assert!(nth > 2, "{nth}");
                break;
            }
        }
    }
}

/// A slot read while it is written has the generation of one flow and the client of another.
#[test]
fn a_slot_that_is_half_written_frees_no_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    let settings = default_settings(Sizes::default());
    programs.settings(Settings { closed_timeout_secs: 0, ..settings });
    for family in FAMILIES {
        let [one, other] = [40_000, 40_001].map(|port| nearly_closed(&mut programs, family, port));
        let last = |open: Open| open.client_segment(HELLO + 1, 1);
        let at = programs.element::<Cursors>(name::CURSORS, 0).closed_head;
        let cursors = Cursors { closed_tail: at, ..programs.element(name::CURSORS, 0) };
        programs.set(name::CURSORS, 0, cursors);
        one.pass_to_backend(&mut programs, &last(one));
        let place = at as u32 % settings.closed;
        let slot: Slot = programs.element(name::CLOSED_RING, place);
        let taken = Taken { generation: other.flow(&programs).connection.generation, ..slot.taken };
        programs.set(name::CLOSED_RING, place, Slot { taken, ..slot });
        other.pass_to_backend(&mut programs, &last(other));
        assert_eq!(programs.element::<Cursors>(name::CURSORS, 0).closed_tail, at + 1, "it was looked at");
        assert_eq!(one.flow(&programs).connection.state, FLOW_CLOSED);
        // Whole, it frees the flow.
        programs.set(name::CURSORS, 0, Cursors { closed_tail: at, ..programs.element(name::CURSORS, 0) });
        programs.set(name::CLOSED_RING, place, slot);
        let third = nearly_closed(&mut programs, family, 40_002);
        let outcome = third.client.give(&mut programs, &last(third));
        assert_eq!(outcome.counted, [(Reason::ForwardBackend, 1), (Reason::ExpireClosed, 2)]);
        assert_eq!(programs.entry::<_, Flow>(name::FLOWS, one.client.dial.tuple()), None);
        forget_all(&mut programs);
    }
}

/// Two CPUs see the slot of the flow that closed first, which is due. One of them takes it; the other one does not take the next
/// slot instead, whose flow closed just now.
#[test]
fn a_slot_that_two_see_is_taken_once_and_the_next_one_stays() {
    tests::skip_without_root!();
    let mut programs = ready();
    let places = u64::from(Sizes::default().closed);
    for family in FAMILIES {
        for nth in 1.. {
            let [old, young, third] = [0, 1, 2].map(|n| nearly_closed(&mut programs, family, 40_000 + n));
            let last = |open: Open| open.client_segment(HELLO + 1, 1);
            let at = programs.element::<Cursors>(name::CURSORS, 0).closed_head;
            old.pass_to_backend(&mut programs, &last(old));
            young.pass_to_backend(&mut programs, &last(young));
            // The flow closed a second after the node had started.
            let place = (at % places) as u32;
            let slot: Slot = programs.element(name::CLOSED_RING, place);
            assert_eq!(slot.owner, old.client.dial.tuple());
            let taken = Taken { since_secs: 1, ..slot.taken };
            programs.set(name::CLOSED_RING, place, Slot { taken, ..slot });
            let cursors: Cursors = programs.element(name::CURSORS, 0);
            programs.set(name::CURSORS, 0, Cursors { closed_tail: at, ..cursors });
            let tail = offset_of!(Cursors, closed_tail);
            let taken = Change::write(name::CURSORS, &0u32, tail, &(at + 1));
            let place = Place::new(name::CURSORS, &0u32, tail);
            let schedule = programs.behind_access(&place, nth, &[taken]).expect("a hardware breakpoint");
            third.client.give(&mut programs, &last(third));
            let happened = schedule.happened();
            drop(schedule);
            let left = young.client.flow(&programs).map(|flow| flow.connection.state);
            assert_eq!(left, Some(FLOW_CLOSED), "{family:?}, access {nth}");
            assert_eq!(programs.element::<Cursors>(name::CURSORS, 0).closed_tail, at + 1);
            forget_all(&mut programs);
            if !happened {
                assert!(nth > 2, "{nth}");
                break;
            }
        }
    }
}

/// A CPU that took an element of `HOPS` is stopped for a minute, and another one takes it for other content: what the
/// first one writes then is of no version that anybody believes.
#[test]
fn what_is_written_late_into_a_hop_is_not_believed() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let pass = |programs: &mut Programs| {
            std::thread::sleep(HOP_AGE);
            open.pass_to_client(programs, &open.backend_segment(0, HELLO));
            open.flow(programs).hops.numbers & 0xfff
        };
        let number = pass(&mut programs);
        assert_ne!(number, 0);
        let whole: Hop = programs.element(name::HOPS, number);
        let mut mixed = 0;
        for nth in 1.. {
            // In none of the elements in which the hop may be.
            for tried in 0..SLOTS {
                programs.set(name::HOPS, (number + tried) % HOPS, Hop::zeroed());
            }
            // To another link address, and confirmed for as long as this takes.
            let confirmed = whole.head.confirmed + 1_000;
            let parts = whole.parts.map(|part| stored((part & 0xffff_ffff_ffff) ^ 1 << 16, 9));
            let other = Hop { head: HopHead { confirmed, version: 9, reserved: 0 }, parts };
            let at = (offset_of!(Hop, head), nth);
            let schedule = overwrite(&programs, (name::HOPS, number), at, &other);
            pass(&mut programs);
            let happened = schedule.happened();
            drop(schedule);
            if !happened {
                assert!(nth > 2, "{nth}");
                break;
            }
            let hop: Hop = programs.element(name::HOPS, number);
            let own = hop.parts.iter().filter(|part| *part >> 48 == u64::from(hop.head.version)).count();
            assert!(own == 0 || hop == other, "{family:?}, access {nth}: {hop:?}");
            mixed += u32::from(own == 0);
            // And the next packets go where they should.
            open.pass_to_client(&mut programs, &open.backend_segment(0, HELLO));
            pass(&mut programs);
        }
        assert!(mixed > 0, "{family:?}: the late write was made");
        forget_all(&mut programs);
    }
}

const SECOND_NS: u64 = 1_000_000_000;

/// A filter that is renewed as it is switched off may stay off until it is renewed again, half a second later. Nothing else
/// of it changes, and the packet leaves as usual.
#[test]
fn a_filter_that_is_renewed_as_it_is_switched_off_loses_one_renewal() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let syn = dial(family).syn().bytes();
        let over = TraceFilter { until_ns: 1, reason: REASON_ANY, ..TraceFilter::zeroed() };
        let renewed = TraceFilter { until_ns: u64::MAX - 2 * SECOND_NS, ..over };
        let chosen = |programs: &Programs| programs.element::<TraceCount>(name::TRACE_COUNT, 0);
        let mut off = 0;
        for nth in 1.. {
            programs.set(name::TRACE, 0, over);
            let schedule =
                overwrite(&programs, (name::TRACE, 0), (offset_of!(TraceFilter, until_ns), nth), &renewed);
            let outcome = programs.ingress(Device::Client, &syn);
            let happened = schedule.happened();
            drop(schedule);
            assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
            if !happened {
                break;
            }
            let filter: TraceFilter = programs.element(name::TRACE, 0);
            assert_eq!(TraceFilter { until_ns: renewed.until_ns, ..filter }, renewed);
            off += u32::from(filter.until_ns == 0);
            programs.set(name::TRACE, 0, renewed);
            let before = chosen(&programs).chosen;
            programs.ingress(Device::Client, &syn);
            assert_eq!(chosen(&programs).chosen, before + 1, "{family:?}, access {nth}");
        }
        assert_ne!(off, 0, "{family:?}: the late write was made");
        programs.set(name::TRACE, 0, TraceFilter::zeroed());
    }
}

/// Two CPUs that begin a second of the log at once: the beginning of either remains, and the next second has its own.
#[test]
fn a_second_of_the_log_that_two_begin_ends_after_a_second() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let syn = dial(family).syn().bytes();
        let filter =
            TraceFilter { until_ns: u64::MAX - 2 * SECOND_NS, reason: REASON_ANY, ..TraceFilter::zeroed() };
        programs.set(name::TRACE, 0, filter);
        for at in [offset_of!(TraceCount, second_ns), offset_of!(TraceCount, second_first)] {
            for nth in 1.. {
                programs.set(name::TRACE_COUNT, 0, TraceCount { chosen: 500, ..TraceCount::zeroed() });
                // The other one is a nanosecond ahead, with packets that this one does not count.
                let other = TraceCount { chosen: 510, second_ns: 1, second_first: 509 };
                let schedule = overwrite(&programs, (name::TRACE_COUNT, 0), (at, nth), &other);
                let outcome = programs.ingress(Device::Client, &syn);
                let happened = schedule.happened();
                drop(schedule);
                assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
                if !happened {
                    break;
                }
                let count: TraceCount = programs.element(name::TRACE_COUNT, 0);
                assert!([500, 509].contains(&count.second_first), "{count:?}");
                assert!(count.second_first <= count.chosen);
            }
        }
        programs.set(name::TRACE, 0, TraceFilter::zeroed());
    }
}
