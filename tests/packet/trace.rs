//! Which packets `vestibule trace` receives. Their printed form is tested in `tests/path/trace.rs`.

use std::net::IpAddr;

use common::maps::address::Address;
use common::maps::name;
use common::maps::trace::{REASON_ANY, TraceCount, TraceFilter};
use common::reason::Reason;
use nix::time::{ClockId, clock_gettime};
use tests::addresses::{FAMILIES, Family, client, host};
use tests::icmp::{Icmp, quotation, unreachable};
use tests::program::Programs;
use tests::world::Device;

use crate::open::{HELLO, open};
use crate::scene::{ISN, dial, ready};

const SECOND_NS: u64 = 1_000_000_000;

fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every Linux has a monotonic clock");
    now.tv_sec() as u64 * SECOND_NS + now.tv_nsec() as u64
}

/// Selects the packets of one client.
fn watch(programs: &mut Programs, client: IpAddr) {
    let filter = TraceFilter {
        until_ns: now_ns() + 60 * SECOND_NS,
        clients: Address::from(client),
        clients_mask: Address { bytes: [0xff; 16] },
        reason: REASON_ANY,
        ..TraceFilter::zeroed()
    };
    programs.set(name::TRACE, 0, filter);
}

/// Returns how many of the packets that `story` sends were selected.
fn chosen(programs: &mut Programs, story: impl FnOnce(&mut Programs)) -> u64 {
    let count = |programs: &Programs| programs.element::<TraceCount>(name::TRACE_COUNT, 0).chosen;
    let before = count(programs);
    story(programs);
    count(programs) - before
}

#[test]
fn packets_of_both_sides_and_errors_about_them_belong_to_the_client() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let open = open(&mut programs, family);
        let (to_backend, to_client) = (open.client_segment(1, HELLO), open.backend_segment(0, HELLO));
        let error = {
            open.pass_to_client(&mut programs, &to_client);
            let about = open.at_client(&to_client);
            let router = host(family, 1, 99);
            Icmp::new(unreachable(family), router, about.from.ip())
                .ethernet(Device::Client.near_mac(), Device::Client.far_mac())
                .body(quotation(&about, 28))
                .bytes()
        };
        for (watched, expected) in [(client(family), 1), (host(family, 1, 99), 0)] {
            watch(&mut programs, watched);
            for (device, frame) in [
                (Device::Client, to_backend.bytes()),
                (Device::Backend, to_client.bytes()),
                (Device::Client, error.clone()),
            ] {
                let seen = chosen(&mut programs, |programs| drop(programs.ingress(device, &frame)));
                assert_eq!(seen, expected, "{family:?}, {watched} is watched");
            }
        }
    }
}

/// The working memory still has the previous packet. Fields not read from this one must not be compared.
#[test]
fn a_packet_that_was_not_read_is_not_mistaken_for_the_one_before() {
    tests::skip_without_root!();
    let mut programs = ready();
    let caller = dial(Family::V4);
    watch(&mut programs, caller.client().ip());
    let syn = caller.syn().seq(ISN).bytes();
    assert_eq!(chosen(&mut programs, |programs| drop(programs.ingress(Device::Client, &syn))), 1);
    let mut not_ip = syn.clone();
    not_ip[12..14].copy_from_slice(&[0x08, 0x06]);
    let other = dial(Family::V4).host(host(Family::V4, 1, 77)).syn().bytes();
    for frame in [not_ip, other] {
        assert_eq!(chosen(&mut programs, |programs| drop(programs.ingress(Device::Client, &frame))), 0);
    }
}

#[test]
fn a_filter_that_is_not_renewed_ends_and_is_switched_off() {
    tests::skip_without_root!();
    let mut programs = ready();
    let caller = dial(Family::V6);
    let syn = caller.syn().bytes();
    watch(&mut programs, caller.client().ip());
    let filter: TraceFilter = programs.element(name::TRACE, 0);
    // The first filter has only just ended and may be renewed, so it is left in place.
    for (until_ns, left) in [(now_ns(), true), (now_ns() - SECOND_NS, false)] {
        programs.set(name::TRACE, 0, TraceFilter { until_ns, ..filter });
        let seen = chosen(&mut programs, |programs| {
            assert_eq!(programs.ingress(Device::Client, &syn).counted, [(Reason::SynAnswered, 1)]);
        });
        assert_eq!(seen, 0);
        assert_eq!(programs.element::<TraceFilter>(name::TRACE, 0).until_ns != 0, left);
    }
}
