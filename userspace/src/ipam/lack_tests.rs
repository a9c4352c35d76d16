//! What is left of a pool, and what is said where nothing is.

use super::pool_tests::{METALLB, ask, grant, pool, problem};
use super::tests::{cluster, families, got_service, service};
use super::*;

/// They were taken from those that are free, which they never were.
#[test]
fn what_was_given_before_a_pool_left_it_out_is_assigned_and_leaves_as_many_free() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["198.51.100.0-198.51.100.9"], |_| {});
    service(&mut cluster, "a/early", 1, &[]);
    let used = |cluster: &Cluster| assign(cluster).pools[&ObjectName::new(METALLB, "p")];
    assert_eq!(used(&cluster), PoolUse { assigned: [1, 0], available: [9, 0] });
    grant(&mut cluster, "a/early", "198.51.100.0");
    pool(&mut cluster, "p", &["198.51.100.0-198.51.100.9"], |pool| pool.leaves_out_ends = true);
    assert_eq!(got_service(&cluster, "a/early"), "198.51.100.0", "it keeps it");
    assert_eq!(used(&cluster), PoolUse { assigned: [1, 0], available: [9, 0] });
}

/// It read that all addresses were in use, though those of the other family were not.
#[test]
fn who_lacks_a_family_learns_which_of_which_pool_and_what_to_do() {
    let said = |ranges: &[&str], names_pool: bool, is_required: bool| {
        let mut cluster = cluster(&[]);
        pool(&mut cluster, "p", ranges, |_| {});
        service(&mut cluster, "a/first", 1, &[]);
        families(&mut cluster, "a/first", &[(false, true)]);
        service(&mut cluster, "a/late", 2, &[]);
        let wanted: &[(bool, bool)] =
            if is_required { &[(true, true), (false, true)] } else { &[(false, true)] };
        families(&mut cluster, "a/late", wanted);
        if names_pool {
            ask(&mut cluster, "a/late", Some("p"));
        }
        problem(&cluster, "a/late")
    };
    let ranges = ["198.51.100.1-198.51.100.9", "2001:db8::1-2001:db8::1"];
    let asked = "all IPv6 addresses of the pool p are in use";
    let any = "all IPv6 addresses of the installation are in use";
    let both = ": it gets addresses of both families or none";
    for (names_pool, is_required, what) in [
        (true, true, format!("{asked}{both}; add an IPv6 range to the pool, or name another one")),
        (true, false, format!("{asked}; add an IPv6 range to the pool, or name another one")),
        (
            false,
            true,
            format!("{any}{both}; add an IPv6 range to the chart's values, or to a pool that admits it"),
        ),
        (
            false,
            false,
            format!("{any}; add an IPv6 range to the chart's values, or to a pool that admits it"),
        ),
    ] {
        let said = said(&ranges, names_pool, is_required);
        assert!(said.contains(&what), "{said}");
    }
    // Of one that has an address already, the other one is of the same pool.
    let mut cluster = cluster(&["2001:db8:1::1-2001:db8:1::9"]);
    pool(&mut cluster, "p", &ranges, |_| {});
    service(&mut cluster, "a/first", 1, &["2001:db8::1"]);
    service(&mut cluster, "a/late", 2, &[]);
    families(&mut cluster, "a/late", &[(true, true), (false, true)]);
    grant(&mut cluster, "a/first", "2001:db8::1");
    grant(&mut cluster, "a/late", "198.51.100.3");
    let said = problem(&cluster, "a/late");
    let what = "its other address is of the pool p, whose IPv6 addresses are all in use: both come from one; add a range of that family";
    assert!(said.contains(what), "{said}");
}
