//! A narrow path to one client is not that of all clients: to a backend, all have one address.

use common::decide::told;
use common::maps::flow::FLOW_FRAGMENTED;
use common::maps::name;
use common::maps::settings::Cursors;
use common::maps::told::{TOLD_MAX, TOLD_WORDS, Told};
use common::reason::Reason;
use nix::time::{ClockId, clock_gettime};
use tests::addresses::Family;
use tests::fill::COOKIE_KEYS;
use tests::icmp::{Icmp, quotation, too_big};
use tests::packet::Segment;
use tests::program::{Outcome, Programs};
use tests::world::Device;

use crate::check::{assert_dropped, assert_sent, sent};
use crate::icmp::{assert_passed, error, plain};
use crate::open::{HELLO, Open, open_with};
use crate::scene::{Offer, dial, ready};

/// Passes a large segment of the backend to the client; returns it as the client's side has it.
fn large(programs: &mut Programs, open: Open) -> Segment {
    let segment = open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]);
    open.pass_to_client(programs, &segment);
    open.at_client(&segment)
}

#[test]
fn an_ipv4_segment_too_big_for_one_clients_way_is_not_told_and_loses_df() {
    tests::skip_without_root!();
    let mut programs = ready();
    let family = Family::V4;
    let open = plain(&mut programs, family);
    let other = open_with(&mut programs, dial(family).port(40_001), Offer::plain(1460));
    let about = large(&mut programs, open);
    let message = error(Device::Client, too_big(family), &about, 20);
    // We act on it ourselves, so its sum is verified.
    let mut changed = message.bytes();
    changed[34 + 7] ^= 4;
    assert_dropped(&programs.ingress(Device::Client, &changed), Reason::IcmpStray);
    assert_eq!(open.flow(&programs).connection.flags, 0);
    large(&mut programs, open);

    let outcome = programs.ingress(Device::Client, &message.bytes());
    assert_dropped(&outcome, Reason::IcmpFragmented);
    assert_eq!(open.flow(&programs).connection.flags, FLOW_FRAGMENTED);
    let before = programs.element::<Cursors>(name::CURSORS, 0).identification as u16;
    let segment = open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]);
    for number in 0..3 {
        let outcome = open.backend.give(&mut programs, &segment);
        let identification = before.wrapping_add(number);
        let expected = Segment { dont_fragment: false, identification, ..open.at_client(&segment) };
        assert_sent(&outcome, Reason::ForwardClient, &expected);
    }
    // Each segment that a super-packet is cut into has a number of its own.
    let bytes = open.backend_segment(0, HELLO).payload(vec![0x5a; 3_000]).bytes();
    programs.ingress_gso(Device::Backend, &bytes, 1_000, 3);
    let outcome = open.backend.give(&mut programs, &segment);
    assert_eq!(sent(&outcome).identification, before.wrapping_add(3 + 3));
    // The other direction, and other clients of the same backend, keep theirs.
    open.pass_to_backend(&mut programs, &open.client_segment(HELLO, 0).payload([1; 100]));
    large(&mut programs, other);
}

#[test]
fn an_ipv6_backend_is_never_told_an_mtu_below_the_least() {
    tests::skip_without_root!();
    let mut programs = ready();
    let family = Family::V6;
    let open = plain(&mut programs, family);
    let about = large(&mut programs, open);
    let at_backend = open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]);
    let expected = Segment { hop_limit: about.hop_limit, ..at_backend };
    for (said, told) in
        [(0, 1_280), (68, 1_280), (1_279, 1_280), (1_280, 1_280), (1_281, 1_281), (70_000, 70_000)]
    {
        for quoted in [8, 12, 18, 20, 500] {
            set_told(&mut programs, Told::zeroed());
            let message = error(Device::Client, too_big(family), &about, quoted).hop_limit(200).rest(said);
            let outcome = programs.ingress(Device::Client, &message.bytes());
            let (source, backend) = (open.backend.source.ip(), open.backend.address.ip());
            let expected = Icmp::new(too_big(family), source, backend)
                .ethernet(Device::Backend.far_mac(), Device::Backend.near_mac())
                .hop_limit(199)
                .rest(told)
                .body(quotation(&expected, quoted));
            assert_passed(&outcome, Reason::IcmpToBackend, &expected);
        }
    }
}

fn second() -> u32 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has a monotonic clock").tv_sec() as u32
}

/// Returns an error about a segment to the client of an IPv6 connection.
fn about(open: Open) -> Vec<u8> {
    let about = open.at_client(&open.backend_segment(0, HELLO).payload(vec![0x5a; 1_200]));
    error(Device::Client, too_big(Family::V6), &about, 20).bytes()
}

/// Writes what was passed to backends so far.
fn set_told(programs: &mut Programs, told: Told) {
    let mut cursors: Cursors = programs.element(name::CURSORS, 0);
    cursors.told = [told; TOLD_WORDS];
    programs.set(name::CURSORS, 0, cursors);
}

fn only_reason(outcome: &Outcome) -> Reason {
    let [(reason, 1)] = outcome.counted[..] else { panic!("{:?}", outcome.counted) };
    reason
}

/// Gives each group this many errors passed in this second, and the client's one more; returns its reason, and whether it was
/// counted.
fn one_more(programs: &mut Programs, open: Open, errors: u8) -> (Reason, bool) {
    let group = told::group(&open.client.dial.tuple().client, &COOKIE_KEYS[0]);
    let message = about(open);
    loop {
        let second = second();
        let before = Told { second, errors: u32::from_ne_bytes([errors; 4]) };
        set_told(programs, before);
        let outcome = programs.ingress(Device::Client, &message);
        if self::second() == second {
            let told = programs.element::<Cursors>(name::CURSORS, 0).told[Told::word(group)];
            assert!(told == before || told == before.raised(second, group), "{told:?}");
            return (only_reason(&outcome), told != before);
        }
    }
}

#[test]
fn ipv6_errors_to_backends_are_limited() {
    tests::skip_without_root!();
    let mut programs = ready();
    let open = plain(&mut programs, Family::V6);
    large(&mut programs, open);
    let most = TOLD_MAX as u8;
    assert_eq!(one_more(&mut programs, open, most), (Reason::IcmpToBackend, false), "it is news");
    assert_eq!(one_more(&mut programs, open, 0), (Reason::IcmpToBackend, true));
    assert_eq!(one_more(&mut programs, open, most - 1), (Reason::IcmpToBackend, true));
    assert_eq!(one_more(&mut programs, open, most), (Reason::IcmpTooMany, false));
}

/// The errors about one connection used up the second of all clients in its group, whose downloads then stayed where they were.
#[test]
fn a_client_does_not_use_up_the_errors_about_other_clients() {
    tests::skip_without_root!();
    let mut programs = ready();
    let family = Family::V6;
    let stranger = plain(&mut programs, family);
    large(&mut programs, stranger);
    let message = about(stranger);
    for port in 41_000..41_010 {
        let victim =
            open_with(&mut programs, dial(family).port(port).offer(Offer::plain(1440)), Offer::plain(1460));
        large(&mut programs, victim);
        let all = (0..1_000)
            .find(|_| only_reason(&programs.ingress(Device::Client, &message)) == Reason::IcmpTooMany);
        assert!(all.is_some(), "its group has none left");
        let outcome = programs.ingress(Device::Client, &about(victim));
        assert_eq!(only_reason(&outcome), Reason::IcmpToBackend);
    }
}

/// A damaged error says nothing, so the first good one about the flow still is the first.
#[test]
fn an_ipv6_error_with_a_wrong_checksum_is_no_news() {
    tests::skip_without_root!();
    let mut programs = ready();
    let open = plain(&mut programs, Family::V6);
    large(&mut programs, open);
    let mut damaged = about(open);
    *damaged.last_mut().unwrap() ^= 1;
    assert_dropped(&programs.ingress(Device::Client, &damaged), Reason::IcmpStray);
    let most = TOLD_MAX as u8;
    assert_eq!(one_more(&mut programs, open, most), (Reason::IcmpToBackend, false));
    assert_eq!(one_more(&mut programs, open, most), (Reason::IcmpTooMany, false));
}
