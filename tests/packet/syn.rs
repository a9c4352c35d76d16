//! SYNs to TLS listeners, and the cookies that clients return.

use common::decide::cookie::{self, EPOCH_SHIFT};
use common::maps::name;
use common::maps::settings::CookieKey;
use common::reason::Reason;
use nix::time::{ClockId, clock_gettime};
use tests::addresses::{FAMILIES, Family};
use tests::fill::{COOKIE_KEYS, default_settings};
use tests::packet::{Segment, flag};
use tests::program::{Programs, Sizes};

use crate::check::{assert_dropped, assert_sent, reset_of, sent, timestamps};
use crate::scene::{CLIENT_TIME, Client, ISN, Offer, behind, dial, ready, stamped, usual_hello};

/// Reads a clock of the kernel, in nanoseconds.
pub(crate) fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id).expect("the kernel has this clock");
    time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
}

/// Returns offers as clients make them: all options, none, each alone.
pub(crate) fn offers() -> Vec<Offer> {
    let none = Offer { mss: None, sack: false, timestamps: false, scale: None };
    vec![
        Offer::linux(1460, 7),
        Offer::linux(8960, 14),
        none,
        Offer { mss: Some(536), ..none },
        Offer { sack: true, ..none },
        Offer { timestamps: true, ..none },
        Offer { scale: Some(0), ..none },
        Offer { scale: Some(14), sack: true, ..none },
    ]
}

/// Asserts that nothing is stored for the client.
#[track_caller]
fn assert_nothing_stored(programs: &Programs, client: Client) {
    assert_eq!(client.waiting(programs), None);
    assert_eq!(client.flow(programs), None);
}

#[test]
fn a_syn_is_answered_with_the_options_offered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for offer in offers() {
            let dial = dial(family).offer(offer);
            let before = clock(ClockId::CLOCK_MONOTONIC);
            let client = dial.shake(&mut programs);
            let outcome = client.give(&mut programs, &dial.syn());
            let after = clock(ClockId::CLOCK_MONOTONIC);
            let value = timestamps(&sent(&outcome)).map_or(0, |(value, _)| value);
            if offer.timestamps {
                // The lowest byte belongs to the cookie.
                assert!((before >> 28..=after >> 28).contains(&(u64::from(value) >> 8)), "{value}");
                assert_eq!(value & 0xff, client.time & 0xff);
            }
            let listener_mss = if family.is_v4() { 1460 } else { 1440 };
            let ours = Offer { mss: Some(listener_mss), scale: offer.scale.map(|_| 7), ..offer };
            let answer = dial.to_client().syn(sent(&outcome).seq).ack(behind(ISN, 0)).window(18_432);
            let expected = ours.put_fixed(answer, value, CLIENT_TIME);
            assert_sent(&outcome, Reason::SynAnswered, &expected);
            assert_nothing_stored(&programs, client);
        }
    }
}

#[test]
fn a_syn_of_any_hop_limit_and_with_ecn_is_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let syn = dial(family).syn().hop_limit(1).flags(flag::ECE | flag::CWR);
        let outcome = programs.ingress(tests::world::Device::Client, &syn.bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        // ECN is not accepted, since we could not keep the promise for the backend.
        assert_eq!(sent(&outcome).flags, flag::SYN | flag::ACK);
        assert_eq!(sent(&outcome).hop_limit, 64);
    }
}

#[test]
fn data_in_a_syn_is_not_acknowledged() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let outcome = client.give(&mut programs, &dial(family).syn().payload(usual_hello()));
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
        assert_eq!(sent(&outcome).ack, behind(ISN, 0));
        assert!(sent(&outcome).payload.is_empty());
        assert_nothing_stored(&programs, client);
    }
}

#[test]
fn the_third_handshake_packet_is_absorbed() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for offer in offers() {
            let client = dial(family).offer(offer).shake(&mut programs);
            assert_dropped(&client.give(&mut programs, &client.at(0)), Reason::SynAcked);
            assert_nothing_stored(&programs, client);
        }
    }
}

#[test]
fn a_fin_without_hello_is_refused() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let outcome = client.give(&mut programs, &client.at(0).fin());
        assert_sent(&outcome, Reason::SynClosedEarly, &client.refusal());
        assert_nothing_stored(&programs, client);
    }
}

/// Asserts that the segment is rejected and nothing stored; returns whether it was reset. Tags have 11 bits, so one wrong cookie in 2,048
/// passes for that of a later segment.
#[track_caller]
fn assert_not_let_in(programs: &mut Programs, client: Client, segment: &Segment) -> bool {
    let outcome = client.give(programs, segment);
    let is_early = outcome.counted[..] == [(Reason::SynEarly, 1)];
    if is_early {
        assert_dropped(&outcome, Reason::SynEarly);
    } else {
        assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(segment));
    }
    assert_nothing_stored(programs, client);
    !is_early
}

#[test]
fn segments_without_their_cookie_are_reset() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let bare = dial(family).segment().seq(behind(ISN, 0)).fin();
        for wrong in [
            client.at(0).ack(client.wrong_ack()),
            client.at(0).ack(client.wrong_ack()).fin(),
            client.at(0).ack(client.wrong_ack()).payload(usual_hello()),
            // Without ACK.
            bare.clone().payload(*b"data"),
            bare,
        ] {
            let outcome = client.give(&mut programs, &wrong);
            assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(&wrong));
            assert_nothing_stored(&programs, client);
        }
    }
}

#[test]
fn a_cookie_vouches_for_options_and_four_tuple() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let good = client.at(0).payload(usual_hello());
        let mut no_timestamps = good.clone();
        no_timestamps.options.clear();
        let mut other_port = good.clone();
        other_port.from.set_port(40_001);
        for wrong in [no_timestamps, other_port, good.clone().ack(12_345)] {
            assert_not_let_in(&mut programs, client, &wrong);
        }
        // Each bit of segment size, window scale and SACK.
        for bit in 22..30 {
            let wrong = good.clone().ack((client.cookie ^ 1 << bit).wrapping_add(1));
            assert_not_let_in(&mut programs, client, &wrong);
        }
        assert_eq!(client.give(&mut programs, &good).counted, [(Reason::ConnectSyn, 1)]);
    }
}

#[test]
fn a_rst_without_flow_is_dropped() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        for rst in [client.at(0).rst(), dial(family).segment().rst().seq(behind(ISN, 0))] {
            assert_dropped(&client.give(&mut programs, &rst), Reason::SynStray);
        }
    }
}

#[test]
fn a_second_segment_before_the_first_is_dropped_and_comes_again() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let hello = usual_hello();
        let (first, second) = hello.split_at(300);
        assert_dropped(&client.send(&mut programs, 300, second), Reason::SynEarly);
        assert_nothing_stored(&programs, client);
        assert_dropped(&client.send(&mut programs, 0, first), Reason::HelloBuffered);
        let outcome = client.send(&mut programs, 300, second);
        assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        // A pure ACK that overtakes its hello is not answered with a reset either.
        let other = dial(family).port(40_001).shake(&mut programs);
        assert_dropped(&other.give(&mut programs, &other.at(300)), Reason::SynEarly);
    }
}

#[test]
fn both_keys_verify_and_the_chosen_one_signs() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let mut settings = default_settings(Sizes::default());
        programs.settings(settings);
        programs.cookie_key(0, COOKIE_KEYS[0]);
        let old = dial(family).shake(&mut programs);
        assert_eq!(cookie::key_index(old.cookie), 0);
        settings.cookie_key = 1;
        programs.settings(settings);
        let new = dial(family).port(40_001).shake(&mut programs);
        assert_eq!(cookie::key_index(new.cookie), 1);
        for client in [old, new] {
            assert_dropped(&client.give(&mut programs, &client.at(0)), Reason::SynAcked);
        }
        // The old key is replaced, so its cookies are no longer valid.
        programs.cookie_key(0, CookieKey { k0: 1, k1: 2 });
        assert_not_let_in(&mut programs, old, &old.at(0));
        assert_dropped(&new.give(&mut programs, &new.at(0)), Reason::SynAcked);
    }
}

#[test]
fn a_key_of_zeros_verifies_nothing() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        programs.cookie_key(0, CookieKey { k0: 0, k1: 0 });
        let client = dial(family).shake(&mut programs);
        let outcome = client.give(&mut programs, &client.at(0));
        assert_sent(&outcome, Reason::SynCookieMismatch, &client.refusal());
    }
}

/// Returns a client with a cookie as made `age` epochs ago.
pub(crate) fn aged(family: Family, age: u32) -> Client {
    let dial = dial(family);
    let epoch = cookie::epoch(clock(ClockId::CLOCK_TAI)) - age;
    let offer = cookie::Offer { mss: 1440, window_scale: 7, sack: true, timestamps: true };
    let cookie = cookie::make(&COOKIE_KEYS[0], 0, &dial.tuple(), ISN, epoch, &offer);
    Client { dial, cookie: cookie.seq, time: cookie.stamp.into() }
}

/// Waits while an epoch is about to end, so that it does not change during a test.
pub(crate) fn away_from_the_end_of_an_epoch() {
    while clock(ClockId::CLOCK_TAI) % (1 << EPOCH_SHIFT) > (1 << EPOCH_SHIFT) - 5_000_000_000 {
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
}

#[test]
fn a_cookie_is_good_in_its_epoch_and_the_next() {
    tests::skip_without_root!();
    let mut programs = ready();
    away_from_the_end_of_an_epoch();
    for family in FAMILIES {
        for age in [0, 1] {
            let client = aged(family, age);
            assert_dropped(&client.give(&mut programs, &client.at(0)), Reason::SynAcked);
        }
        let mut resets = 0;
        for age in [2, 3, 1000] {
            let client = aged(family, age);
            for late in [client.at(0), client.at(0).payload(usual_hello())] {
                resets += u32::from(assert_not_let_in(&mut programs, client, &late));
            }
        }
        assert!(resets > 0, "{family:?}: the client of a dead cookie gets no RST");
    }
}

#[test]
fn a_cookie_belongs_to_one_first_sequence_number() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        let twice = sent(&client.give(&mut programs, &dial(family).syn()));
        assert_eq!(twice.seq, client.cookie, "a repeated SYN gets the same answer");
        // Tags have 11 bits and depend on the clock: two numbers have the same tag once in 2,048 times.
        let other = (1..=4)
            .map(|bits| sent(&client.give(&mut programs, &dial(family).syn().seq(ISN ^ bits))))
            .find(|answer| answer.seq != client.cookie)
            .expect("another first sequence number gets another cookie");
        // The other cookie at our number fits this four-tuple, but not this first sequence number.
        let wrong = dial(family).segment().seq(behind(ISN, 0)).ack(other.seq.wrapping_add(1));
        let wrong = stamped(wrong, CLIENT_TIME + 1, client.time).payload(usual_hello());
        assert_dropped(&client.give(&mut programs, &wrong), Reason::SynEarly);
        let entries: Vec<(common::maps::flow::ClientTuple, common::maps::flow::Pending)> =
            programs.entries(name::PENDING);
        assert_eq!(entries, []);
    }
}

#[test]
fn a_syn_ack_to_a_listener_is_reset() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        // RFC 9293 section 3.10.7.2: an ACK in LISTEN is answered with RST. If it were answered with SYN-ACK,
        // two such listeners would answer each other for ever.
        let wrong = dial(family).syn().ack(12_345);
        let outcome = programs.ingress(tests::world::Device::Client, &wrong.bytes());
        assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(&wrong));
    }
}
