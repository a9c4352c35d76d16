//! Counts of sources and routes that come too late: the daemon removes the count between its look-up and the change, and
//! its element becomes another's.

use common::maps::address::Address;
use common::maps::event::RouteCounters;
use common::maps::name;
use common::maps::settings::Settings;
use common::maps::source::{Share, ShareKey, Source};
use common::maps::word::Waiting;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::fill::default_settings;
use tests::program::{Pod, Programs, Sizes};
use tests::schedule::{Change, Place};

use crate::buffer::far;
use crate::check::{assert_dropped, flow_order};
use crate::open::open;
use crate::scene::{Dial, dial, ready, usual_hello};
use crate::setup::forget_all;

/// The route of the other count.
const OTHER: u32 = 9;

/// Runs `story` with the count of `key` removed at the nth look-up of `map`, and its element given to `other`. Returns the
/// other's count afterwards; `None`: there were fewer look-ups.
fn taken_over<K: Pod, V: Pod>(
    programs: &mut Programs,
    (map, nth): (&'static str, u32),
    key: &K,
    other: (K, V),
    story: impl FnOnce(&mut Programs),
) -> Option<V> {
    let changes = [Change::remove(map, key), Change::insert(map, &other.0, &other.1)];
    let place = Place::looked_up(map, key);
    let schedule = programs.behind_access(&place, nth, &changes).expect("a hardware breakpoint");
    story(programs);
    let happened = schedule.happened();
    drop(schedule);
    happened.then(|| programs.entry(map, other.0).expect("it was inserted"))
}

/// The other source, and a count of it in which nothing is zero.
fn other_share(family: Family) -> (ShareKey, Share) {
    let source = Address::from(far(family, 7, 1)).source_prefix();
    (ShareKey { source, route: OTHER }, Share { flows: 5, connecting: 3 })
}

/// A source whose count is too high for ever is refused before it has what it may have.
#[test]
fn a_flow_and_a_hello_raise_no_count_of_another_source() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let (key, count) = (ShareKey::of(&dial(family).tuple(), 1), other_share(family));
        let mut lower = 0;
        for nth in 1.. {
            programs.insert(name::SHARES, key, Share::zeroed());
            let found = taken_over(&mut programs, (name::SHARES, nth), &key, count, |programs| {
                open(programs, family);
            });
            forget_all(&mut programs);
            let Some(found) = found else {
                assert!(nth > 4, "{family:?}: {nth} look-ups");
                break;
            };
            assert!(found.flows <= 5 && found.connecting <= 3, "{family:?}, look-up {nth}: {found:?}");
            lower += u32::from(found != count.1);
        }
        assert_eq!(lower, 1, "{family:?}: only the hello that no longer waits is counted down late");
    }
}

/// The other's count is one too low: it may have one more than its bound. It does not fall below zero.
#[test]
fn the_end_of_a_flow_takes_one_off_another_sources_count_at_most() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for (had, left) in [(5, 4), (0, 0)] {
            let (other, count) = other_share(family);
            let count = (other, Share { flows: had, ..count });
            let open = open(&mut programs, family);
            let tuple = open.client.dial.tuple();
            let key = ShareKey::of(&tuple, 1);
            programs.expire(&flow_order(&programs, tuple, Reason::ExpireIdle));
            let over = flow_order(&programs, tuple, Reason::ExpireClosed);
            let found = taken_over(&mut programs, (name::SHARES, 1), &key, count, |programs| {
                programs.expire(&over);
            });
            assert_eq!(found, Some(Share { flows: left, ..count.1 }), "{family:?}");
            forget_all(&mut programs);
        }
    }
}

/// What a route shows of its past may be one too high; what bounds it may not.
#[test]
fn a_flow_raises_no_count_of_flows_of_another_route() {
    tests::skip_without_root!();
    let mut programs = ready();
    let empty: RouteCounters = programs.entry(name::ROUTE_COUNTERS, 1u32).expect("the daemon made them");
    let count = RouteCounters { connected: 10, refused: 20, retried: 30, flows: 5, ..empty };
    for family in FAMILIES {
        let mut shown = 0;
        for nth in 1.. {
            programs.insert(name::ROUTE_COUNTERS, 1u32, empty);
            let place = (name::ROUTE_COUNTERS, nth);
            let found = taken_over(&mut programs, place, &1u32, (OTHER, count), |programs| {
                open(programs, family);
            });
            programs.insert(name::ROUTE_COUNTERS, 1u32, empty);
            forget_all(&mut programs);
            let Some(found) = found else { break };
            programs.remove::<_, RouteCounters>(name::ROUTE_COUNTERS, OTHER);
            assert_eq!(RouteCounters { connected: 10, ..found }, count, "{family:?}, look-up {nth}");
            shown += found.connected - 10;
        }
        assert_eq!(shown, 1, "{family:?}: the opened connection is shown for the other route");
    }
}

fn source_of(caller: Dial) -> Address {
    Address::from(caller.host).source_prefix()
}

/// A source is refused by no other's count, and raises none. The time of the other's newest hello is the current one.
#[test]
fn a_hello_is_not_counted_for_another_source() {
    tests::skip_without_root!();
    let mut programs = ready();
    let sizes = Sizes::default();
    let crowded = Settings { buffers: 0, source_hellos_max: 7, ..default_settings(sizes) };
    for (settings, waiting) in [(default_settings(sizes), 6), (crowded, 7)] {
        for family in FAMILIES {
            for nth in 1.. {
                programs.settings(default_settings(sizes));
                let first = dial(family).port(41_000).shake(&mut programs);
                assert_dropped(&first.send(&mut programs, 0, &usual_hello()[..300]), Reason::HelloBuffered);
                let key = source_of(first.dial);
                let was: Source = programs.entry(name::SOURCES, key).expect("it is counted");
                let count = Waiting { waiting, epoch: was.count.epoch.wrapping_add(77) };
                let other = (Address::from(far(family, 7, 1)).source_prefix(), Source { count, ..was });
                programs.settings(Settings { buffers: settings.buffers.max(1), ..settings });
                let second = dial(family).port(41_001).shake(&mut programs);
                let found = taken_over(&mut programs, (name::SOURCES, nth), &key, other, |programs| {
                    let outcome = second.send(programs, 0, &usual_hello()[..300]);
                    assert_eq!(outcome.counted[0].0, Reason::HelloBuffered, "{outcome:?}");
                });
                forget_all(&mut programs);
                let Some(found) = found else {
                    assert!(nth > 2, "{nth}");
                    break;
                };
                assert_eq!(found.count, count, "{family:?}, look-up {nth}");
                assert!(found.newest_ns >= was.newest_ns);
            }
        }
    }
}
