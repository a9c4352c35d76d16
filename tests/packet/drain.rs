//! A draining node: new connections are refused; connections in progress and open ones continue.

use std::time::Duration;

use common::maps::name;
use common::reason::Reason;
use tests::addresses::{FAMILIES, Family};
use tests::program::{Programs, Sizes};
use tests::world::Device;

use crate::check::{assert_sent, reset_of};
use crate::half_open::{caller, from_client, half_open, knock, opened, tcp};
use crate::scene::{dial, ready, usual_hello};
use crate::silent::age;

fn drain(programs: &mut Programs, on: bool) {
    programs.set(name::DRAIN, 0, u32::from(on));
}

#[test]
fn a_syn_is_refused_and_a_handshake_under_way_goes_on() {
    tests::skip_without_root!();
    let mut programs = ready();
    for family in FAMILIES {
        let client = dial(family).shake(&mut programs);
        drain(&mut programs, true);
        let syn = dial(family).port(40_001).syn();
        let outcome = programs.ingress(Device::Client, &syn.bytes());
        assert_sent(&outcome, Reason::SynDraining, &reset_of(&syn));
        let backend = client.ask(&mut programs, &usual_hello());
        assert_eq!(backend.accept(&mut programs).counted[0].0, Reason::ConnectHello);
        assert!(client.flow(&programs).is_some());
        drain(&mut programs, false);
        let outcome = programs.ingress(Device::Client, &syn.bytes());
        assert_eq!(outcome.counted, [(Reason::SynAnswered, 1)]);
    }
}

#[test]
fn a_tcp_listener_refuses_too_and_a_repeated_syn_still_passes() {
    tests::skip_without_root!();
    let mut programs = tcp(Sizes::default(), 3);
    let open = caller(Family::V4).port(40_010);
    opened(&mut programs, open);
    knock(&mut programs, caller(Family::V4));
    drain(&mut programs, true);
    // However long its backend has been silent: another one would be dialled by a cookie, and these are refused.
    age(&mut programs, caller(Family::V4), Duration::from_secs(3));
    let again = programs.ingress(Device::Client, &caller(Family::V4).syn().bytes());
    assert_eq!(again.counted, [(Reason::SynForwarded, 1)]);
    let other = caller(Family::V6);
    let outcome = programs.ingress(Device::Client, &other.syn().bytes());
    assert_sent(&outcome, Reason::SynDraining, &reset_of(&other.syn()));
    assert_eq!(half_open(&programs, other), None);
    let data = from_client(open, 0, 0).payload(b"more".to_vec());
    assert_eq!(programs.ingress(Device::Client, &data.bytes()).counted, [(Reason::ForwardBackend, 1)]);
}
