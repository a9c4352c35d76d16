//! What is left of a pool, and what is said where nothing is.

use super::pool_tests::{METALLB, ask, grant, pool, problem};
use super::tests::{cluster, families, got_service, service};
use super::*;
use crate::model::cluster::{PoolScope, PoolsClosed};

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
    let any = "all IPv6 addresses of the pool p are in use";
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

/// It read that the installation has no address ranges, whose pools gave none of theirs to this one.
#[test]
fn who_is_given_nothing_by_any_pool_learns_why_of_each() {
    let mut cluster = cluster(&[]);
    service(&mut cluster, "a/s", 1, &[]);
    let said = |cluster: &Cluster| problem(cluster, "a/s");
    assert!(
        said(&cluster).contains("the installation has no address ranges; add a range to the chart's values")
    );
    pool(&mut cluster, "asked", &["198.51.100.1-198.51.100.9"], |pool| pool.is_automatic = false);
    let unasked = "the pool asked gives none unasked (spec.autoAssign)";
    let name =
        "name one of them in the annotation metallb.io/address-pool, or add a range to the chart's values";
    let expected = format!("no pool gives it an IPv4 or IPv6 address: {unasked}; {name}");
    assert!(said(&cluster).contains(&expected), "{}", said(&cluster));
    pool(&mut cluster, "other", &["198.51.100.11-198.51.100.19"], |pool| {
        pool.scope = PoolScope { namespaces: vec!["b".into()], ..PoolScope::default() };
    });
    let others = "the pool other does not admit it (spec.serviceAllocation)";
    let expected = format!("no pool gives it an IPv4 or IPv6 address: {others}, {unasked}; {name}");
    assert!(said(&cluster).contains(&expected), "{}", said(&cluster));
    cluster.pools.remove(&ObjectName::new(METALLB, "asked"));
    let admit = "let one of them admit it, or add a range to the chart's values";
    let expected = format!("no pool gives it an IPv4 or IPv6 address: {others}; {admit}");
    assert!(said(&cluster).contains(&expected), "{}", said(&cluster));
    // Closing that one changes nothing for it.
    cluster.pools_closed = Some(closed());
    assert!(said(&cluster).contains(&expected), "{}", said(&cluster));
    pool(&mut cluster, "p", &["198.51.100.21-198.51.100.29"], |_| {});
    let expected = "MetalLB runs: nobody gets an address of its pools meanwhile; remove MetalLB";
    assert!(said(&cluster).contains(expected), "{}", said(&cluster));
}

/// Where the chart's ranges have no address left, the pools that are closed would have.
#[test]
fn who_finds_the_charts_ranges_used_and_pools_closed_learns_of_both() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.1"]);
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.9"], |_| {});
    cluster.pools_closed = Some(closed());
    service(&mut cluster, "a/first", 1, &[]);
    service(&mut cluster, "a/late", 2, &[]);
    let said = problem(&cluster, "a/late");
    let what = "all IPv4 addresses of the ranges of the installation are in use; MetalLB runs: nobody gets an address of its pools";
    assert!(said.contains(what), "{said}");
}

/// It read that they were in use, though nobody had one.
#[test]
fn a_pool_that_leaves_out_all_of_its_addresses_is_not_said_to_be_used_up() {
    let said = |excluded: &[&str], also: &[&str]| {
        let mut cluster = cluster(&[]);
        cluster.policy.excluded = excluded.iter().map(|net| net.parse().unwrap()).collect();
        let ranges: Vec<&str> =
            ["198.51.100.255-198.51.101.0"].into_iter().chain(also.iter().copied()).collect();
        pool(&mut cluster, "p", &ranges, |pool| pool.leaves_out_ends = true);
        service(&mut cluster, "a/s", 1, &[]);
        ask(&mut cluster, "a/s", Some("p"));
        problem(&cluster, "a/s")
    };
    let buggy = "the pool p gives no IPv4 address (spec.avoidBuggyIPs leaves out all of them); add an IPv4 range to the pool";
    assert!(said(&[], &[]).contains(buggy), "{}", said(&[], &[]));
    let of_nodes = "the pool p gives no IPv4 address (all of them are in ranges of nodes, pods or Services); add an IPv4 range";
    let nodes = said(&["198.51.102.0/24"], &["198.51.102.1-198.51.102.9"]);
    assert!(nodes.contains(of_nodes), "{nodes}");
}

/// Only the first of them was named, and a range of that one would not have helped.
#[test]
fn who_lacks_both_families_learns_of_both() {
    let mut cluster = cluster(&[]);
    for pools in ["p", "q"] {
        let (v4, v6) = match pools {
            "p" => ("198.51.100.1-198.51.100.1", "2001:db8::1-2001:db8::1"),
            _ => ("198.51.100.2-198.51.100.2", "2001:db8::2-2001:db8::2"),
        };
        pool(&mut cluster, pools, &[v4, v6], |_| {});
    }
    for (age, first) in [(1, "a/first"), (2, "a/second")] {
        service(&mut cluster, first, age, &[]);
        families(&mut cluster, first, &[(true, true), (false, true)]);
    }
    service(&mut cluster, "a/late", 3, &[]);
    for (wanted, both) in [
        ([(true, true), (false, true)], ": it gets addresses of both families or none"),
        // One that prefers both lacks the first.
        ([(true, true), (false, false)], ""),
    ] {
        families(&mut cluster, "a/late", &wanted);
        ask(&mut cluster, "a/late", None);
        let said = problem(&cluster, "a/late");
        let what = format!(
            "all IPv4 and IPv6 addresses of the pool p and the pool q are in use{both}; add ranges of both families to the chart's values"
        );
        assert!(said.contains(&what), "{said}");
        ask(&mut cluster, "a/late", Some("q"));
        let said = problem(&cluster, "a/late");
        let what = format!(
            "all IPv4 and IPv6 addresses of the pool q are in use{both}; add ranges of both families to the pool, or name another one"
        );
        assert!(said.contains(&what), "{said}");
    }
}

fn closed() -> PoolsClosed {
    PoolsClosed { why: "MetalLB runs".into(), brief: "".into(), may_run: true, was_seen: true }
}
