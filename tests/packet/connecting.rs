//! The bound on hellos of one source that wait for the backends of one route.

use common::maps::name;
use common::maps::settings::Settings;
use common::maps::source::{Share, ShareKey};
use common::reason::Reason;
use tests::addresses::FAMILIES;
use tests::fill::default_settings;
use tests::program::Sizes;

use crate::check::assert_sent;
use crate::scene::{Backend, Client, dial, ready, usual_hello};
use crate::setup::remove_hello;

/// One tenant's silent backends refused the clients of other tenants behind the same address.
#[test]
fn a_source_has_no_more_hellos_waiting_for_a_routes_backends_than_its_bound() {
    tests::skip_without_root!();
    let mut programs = ready();
    programs.settings(Settings { share_connecting_max: 2, ..default_settings(Sizes::default()) });
    for family in FAMILIES {
        let client = |programs: &mut _, port| -> Client { dial(family).port(port).shake(programs) };
        let first = client(&mut programs, 41_000);
        let backend: Backend = first.ask(&mut programs, &usual_hello());
        let second = client(&mut programs, 41_001);
        second.ask(&mut programs, &usual_hello());
        let key = ShareKey::of(&first.dial.tuple(), 1);
        let count = |programs: &tests::program::Programs| {
            programs.entry::<_, Share>(name::SHARES, key).map(|share| share.connecting)
        };
        assert_eq!(count(&programs), Some(2));
        let third = client(&mut programs, 41_002);
        let outcome = third.send(&mut programs, 0, &usual_hello());
        assert_sent(&outcome, Reason::AdmitConnecting, &third.refusal());
        assert_eq!(count(&programs), Some(2));
        // Each exit gives the count back once: the backend answers, the client resets.
        backend.accept(&mut programs);
        assert_eq!(count(&programs), Some(1));
        second.give(&mut programs, &second.at(517).rst());
        assert_eq!(count(&programs), Some(0));
        third.ask(&mut programs, &usual_hello());
        assert_eq!(count(&programs), Some(1));
        remove_hello(&mut programs, third.dial.tuple());
    }
}
