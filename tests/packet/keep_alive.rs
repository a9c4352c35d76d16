//! Keep-alives of a client whose hello has not arrived: answered while its cookie is good, and nothing is stored.

use common::decide::cookie::{self, Verdict};
use common::maps::flow::{ClientTuple, Pending};
use common::maps::name;
use common::reason::Reason;
use nix::time::ClockId;
use tests::addresses::FAMILIES;
use tests::fill::COOKIE_KEYS;
use tests::packet::Segment;
use tests::program::Programs;

use crate::check::{assert_dropped, assert_sent, reset_of, sent, timestamps};
use crate::open::open;
use crate::renew::{NEXT_ISN, begin_anew};
use crate::scene::{Client, Dial, ISN, Offer, behind, dial, ready, usual_hello};
use crate::setup::forget_all;
use crate::syn::{aged, away_from_the_end_of_an_epoch, clock, offers};

/// Returns the client's keep-alive before its first byte, without or with a byte of garbage (RFC 9293 section 3.8.4).
fn keep_alive(client: Client, garbage: &[u8]) -> Segment {
    client.at(0).seq(ISN).payload(garbage)
}

/// Dials from the first port on whose cookie does not fit the bare segment at this offset by chance, as one in 2,048 does
/// without timestamps.
fn shake(programs: &mut Programs, mut dial: Dial, offset: u32) -> Client {
    loop {
        let client = dial.shake(programs);
        let epoch = cookie::epoch(clock(ClockId::CLOCK_TAI));
        let (isn, tuple) = (behind(ISN, offset).wrapping_sub(1), dial.tuple());
        let stamp = dial.offer.timestamps.then_some(client.time as u8);
        match cookie::check(&COOKIE_KEYS[0], &tuple, isn, epoch, client.cookie, stamp) {
            Verdict::First(_) => dial.port += 1,
            _ => return client,
        }
    }
}

/// Sends a keep-alive before the first byte and asserts that it is acknowledged, with a timestamp that keeps the cookie.
#[track_caller]
fn assert_kept_alive(programs: &mut Programs, client: Client, garbage: &[u8]) -> Client {
    let outcome = client.give(programs, &keep_alive(client, garbage));
    assert_eq!(outcome.counted, [(Reason::SynKeepAlive, 1)]);
    assert_eq!(outcome.emitted, []);
    client.assert_acknowledged(&outcome, 0);
    assert_eq!(programs.entries::<ClientTuple, Pending>(name::PENDING), []);
    match timestamps(&sent(&outcome)) {
        Some((value, _)) => Client { time: value, ..client },
        None => client,
    }
}

#[test]
fn a_keep_alive_before_the_hello_is_answered_and_nothing_is_stored() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for offer in offers() {
            let mut client = shake(&mut programs, dial(family).offer(offer), u32::MAX);
            assert_dropped(&client.give(&mut programs, &client.at(0)), Reason::SynAcked);
            for garbage in [&[] as &[u8], &[0x16], &[]] {
                client = assert_kept_alive(&mut programs, client, garbage);
            }
            // The byte was none of the hello's, and the client's echo of our answer still proves its cookie.
            client.ask(&mut programs, &usual_hello());
            forget_all(&mut programs);
        }
    }
}

#[test]
fn a_keep_alive_is_answered_as_long_as_its_cookie_lives() {
    tests::skip_without_root!();
    let mut programs = ready();
    away_from_the_end_of_an_epoch();
    for family in FAMILIES {
        let mut resets = 0;
        for garbage in [&[] as &[u8], &[0]] {
            for age in [0, 1] {
                assert_kept_alive(&mut programs, aged(family, age), garbage);
            }
            for age in [2, 3, 1000] {
                let client = aged(family, age);
                let late = keep_alive(client, garbage);
                let outcome = client.give(&mut programs, &late);
                match outcome.counted[..] {
                    // The tuple's tag has 11 bits.
                    [(Reason::SynEarly, 1)] => assert_dropped(&outcome, Reason::SynEarly),
                    _ => {
                        assert_sent(&outcome, Reason::SynCookieMismatch, &reset_of(&late));
                        resets += 1;
                    }
                }
            }
        }
        assert!(resets > 0, "{family:?}: the client of a dead cookie gets no RST");
    }
}

#[test]
fn what_only_resembles_a_keep_alive_is_not_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        // With a FIN, of two bytes, and one number too early.
        for segment in [
            keep_alive(client, &[]).fin(),
            keep_alive(client, &[0, 0]),
            keep_alive(client, &[]).seq(ISN.wrapping_sub(1)),
        ] {
            assert_dropped(&client.give(&mut programs, &segment), Reason::SynEarly);
        }
        // Corrupted in transit: with a byte of garbage, the last byte is part of the checksum alone.
        let mut corrupted = keep_alive(client, &[0]).bytes();
        *corrupted.last_mut().expect("a frame has bytes") ^= 1;
        let outcome = programs.ingress(tests::world::Device::Client, &corrupted);
        assert_dropped(&outcome, Reason::ParseTcpChecksum);
        // Of a handshake that never was.
        let wrong = keep_alive(client, &[]).ack(client.wrong_ack());
        assert_sent(&client.give(&mut programs, &wrong), Reason::SynCookieMismatch, &reset_of(&wrong));
        // The hello's first byte alone is one, whatever it is.
        assert_dropped(&client.send(&mut programs, 0, &usual_hello()[..1]), Reason::HelloBuffered);
        forget_all(&mut programs);
    }
}

#[test]
fn a_keep_alive_between_two_parts_of_a_hello_is_answered() {
    tests::skip_without_root!();
    let mut programs = ready();
    let hello = usual_hello();
    for family in FAMILIES {
        for (port, offer) in [40_000, 50_000].into_iter().zip([Offer::linux(1440, 7), Offer::plain(1440)]) {
            let client = shake(&mut programs, dial(family).port(port).offer(offer), 299);
            client.give(&mut programs, &client.at(0).psh().payload(&hello[..300]));
            for garbage in [&[] as &[u8], &[0]] {
                let outcome = client.give(&mut programs, &client.at(299).payload(garbage));
                assert_eq!(outcome.counted, [(Reason::HelloAcked, 1)]);
                client.assert_acknowledged(&outcome, 300);
            }
            // The client's answer to ours is none.
            assert_dropped(&client.give(&mut programs, &client.at(300)), Reason::SynAcked);
            let outcome = client.send(&mut programs, 300, &hello[300..]);
            assert_eq!(outcome.counted, [(Reason::ConnectSyn, 1)]);
        }
    }
}

/// The bare ACK of the new handshake was lost: a keep-alive proves as much.
#[test]
fn a_keep_alive_of_a_reused_port_ends_the_old_flow() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        for garbage in [&[] as &[u8], &[0]] {
            let open = open(&mut programs, family);
            let again = begin_anew(&mut programs, open);
            let segment = again.at(0).seq(NEXT_ISN).payload(garbage);
            let outcome = again.give(&mut programs, &segment);
            let last = if garbage.is_empty() { Reason::SynAcked } else { Reason::SynKeepAlive };
            let mut expected = vec![(Reason::SynFlowReplaced, 1), (last, 1)];
            expected.extend(garbage.is_empty().then_some((Reason::SynOldReset, 1)));
            expected.sort();
            assert_eq!(outcome.counted, expected);
            assert_eq!(again.flow(&programs), None);
            assert_eq!(again.give(&mut programs, &segment).counted, [(Reason::SynKeepAlive, 1)]);
            forget_all(&mut programs);
        }
    }
}
