//! What MetalLB's own controller gives and refuses (`cargo xtask test witness`), each as a rule.

use super::pool_tests::{ask, pool};
use super::service_tests::share;
use super::tests::{cluster, families, got_service, ip, name, object as object_ref, service};
use super::*;
use crate::model::cluster::{LoadBalancerSpec, PoolScope, PoolsClosed};
use std::sync::Arc;

fn balancer<'a>(cluster: &'a mut Cluster, object: &str) -> &'a mut LoadBalancerSpec {
    let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
    Arc::make_mut(service.load_balancer.as_mut().unwrap())
}

fn grant(cluster: &mut Cluster, service: &str, address: &str) {
    cluster.possession.add_address(&object_ref(Kind::Service, service), ip(address));
}

fn problem(cluster: &Cluster, service: &str) -> String {
    assign(cluster).services[&name(service)].problem.clone().unwrap().to_string()
}

#[test]
fn a_service_gets_all_that_it_requires_or_nothing_and_keeps_what_it_has() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "four", &["192.0.2.1-192.0.2.9"], |_| {});
    service(&mut cluster, "a/require", 1, &[]);
    families(&mut cluster, "a/require", &[(true, true), (false, true)]);
    assert_eq!(got_service(&cluster, "a/require"), "AddressNotAssigned");
    grant(&mut cluster, "a/require", "192.0.2.1");
    assert_eq!(got_service(&cluster, "a/require"), "192.0.2.1 AddressNotAssigned");
    // By value.
    service(&mut cluster, "a/asks", 2, &["192.0.2.2", "2001:db8::1"]);
    assert_eq!(got_service(&cluster, "a/asks"), "AddressNotUsable");
    grant(&mut cluster, "a/asks", "192.0.2.2");
    assert_eq!(got_service(&cluster, "a/asks"), "192.0.2.2 AddressNotUsable");
    pool(&mut cluster, "six", &["2001:db8::1-2001:db8::9"], |_| {});
    assert_eq!(got_service(&cluster, "a/asks"), "192.0.2.2 2001:db8::1");
}

#[test]
fn one_that_prefers_both_families_has_the_other_one_of_a_pool_of_its_own_rather_than_one_of_all() {
    let mut cluster = cluster(&[]);
    let bound = PoolScope { namespaces: ["a".into()].into(), ..PoolScope::default() };
    pool(&mut cluster, "own", &["2001:db8::1-2001:db8::1"], |pool| pool.scope = bound);
    pool(&mut cluster, "all", &["192.0.2.1-192.0.2.9"], |_| {});
    service(&mut cluster, "a/prefer", 1, &[]);
    families(&mut cluster, "a/prefer", &[(true, true), (false, false)]);
    assert_eq!(got_service(&cluster, "a/prefer"), "2001:db8::1");
    let spare = assign(&cluster).services[&name("a/prefer")].spare.clone();
    assert_eq!(spare.as_deref(), Some("no free IPv4 address in the pool own"));
    service(&mut cluster, "a/next", 2, &[]);
    families(&mut cluster, "a/next", &[(true, true), (false, false)]);
    assert_eq!(got_service(&cluster, "a/next"), "192.0.2.1");
}

#[test]
fn what_it_asks_for_by_value_is_of_its_families_and_said_once() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9", "2001:db8::1-2001:db8::9"]);
    service(&mut cluster, "a/one", 1, &["192.0.2.1"]);
    families(&mut cluster, "a/one", &[(true, true), (false, false)]);
    assert_eq!(got_service(&cluster, "a/one"), "AddressNotUsable");
    let why = problem(&cluster, "a/one");
    assert!(why.contains("none of them is IPv6, which is in spec.ipFamilies"), "{why}");
    families(&mut cluster, "a/one", &[(false, true)]);
    let why = problem(&cluster, "a/one");
    assert!(why.contains("one of them is IPv4, which is not in spec.ipFamilies"), "{why}");
    families(&mut cluster, "a/one", &[(true, true)]);
    assert_eq!(got_service(&cluster, "a/one"), "192.0.2.1");
    balancer(&mut cluster, "a/one").also_asked = Some("192.0.2.1".into());
    let why = problem(&cluster, "a/one");
    assert!(why.contains("it asks for 192.0.2.1 by spec.loadBalancerIP too"), "{why}");
    assert_eq!(got_service(&cluster, "a/one"), "AddressNotUsable");
    grant(&mut cluster, "a/one", "192.0.2.1");
    assert_eq!(got_service(&cluster, "a/one"), "192.0.2.1 AddressNotUsable");
}

/// A typo takes no address from who has one, and is given no part of the rest.
#[test]
fn what_cannot_be_read_is_refused_with_all_the_rest() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    for (object, addresses) in [("a/some", &["192.0.2.1"][..]), ("a/none", &[][..])] {
        service(&mut cluster, object, 1, addresses);
        let balancer = balancer(&mut cluster, object);
        balancer.field = "metadata.annotations[metallb.io/loadBalancerIPs]".into();
        balancer.unreadable = vec!["192.0.2.x".into()];
        assert_eq!(got_service(&cluster, object), "AddressNotUsable");
    }
    for (object, address) in [("a/some", "192.0.2.1"), ("a/none", "192.0.2.2")] {
        grant(&mut cluster, object, address);
        assert_eq!(got_service(&cluster, object), format!("{address} AddressNotUsable"));
    }
}

/// MetalLB may answer there, too.
#[test]
fn nobody_comes_into_an_address_of_a_pool_while_metallb_runs() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["192.0.2.1-192.0.2.9"], |_| {});
    for (object, age, port) in [("a/has", 1, 443), ("a/new", 2, 80)] {
        service(&mut cluster, object, age, &[]);
        share(&mut cluster, object, "k", &[port]);
        ask(&mut cluster, object, Some("p"));
    }
    grant(&mut cluster, "a/has", "192.0.2.1");
    cluster.possession.note_pool(object_ref(Kind::Service, "a/has"), "p");
    assert_eq!(got_service(&cluster, "a/new"), "192.0.2.1");
    cluster.pools_closed = Some(PoolsClosed {
        why: "MetalLB runs".into(),
        brief: "MetalLB runs".into(),
        may_run: true,
        was_seen: true,
    });
    assert_eq!(got_service(&cluster, "a/has"), "192.0.2.1");
    assert_eq!(got_service(&cluster, "a/new"), "AddressNotAssigned");
}

#[test]
fn of_a_pool_that_avoids_buggy_addresses_nobody_gets_one() {
    let mut cluster = cluster(&[]);
    let ranges = ["192.0.2.0-192.0.2.0", "192.0.2.255-192.0.3.1", "2001:db8::-2001:db8::1"];
    pool(&mut cluster, "p", &ranges, |pool| pool.leaves_out_ends = true);
    service(&mut cluster, "a/four", 1, &[]);
    families(&mut cluster, "a/four", &[(true, true)]);
    service(&mut cluster, "a/six", 2, &[]);
    families(&mut cluster, "a/six", &[(false, true)]);
    assert_eq!(got_service(&cluster, "a/four"), "192.0.3.1");
    assert_eq!(got_service(&cluster, "a/six"), "2001:db8::");
    service(&mut cluster, "a/asks", 3, &["192.0.2.255"]);
    assert_eq!(got_service(&cluster, "a/asks"), "AddressNotUsable");
    assert!(problem(&cluster, "a/asks").contains("the pool p leaves out (avoidBuggyIPs)"));
    grant(&mut cluster, "a/asks", "192.0.2.255");
    assert_eq!(got_service(&cluster, "a/asks"), "192.0.2.255");
}

#[test]
fn the_first_address_of_a_pool_is_given_be_it_free_or_shared() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["192.0.2.8-192.0.2.9", "192.0.2.1-192.0.2.2"], |_| {});
    service(&mut cluster, "a/asks", 1, &["192.0.2.1"]);
    share(&mut cluster, "a/asks", "k", &[443]);
    for (object, age, port) in [("a/first", 2, 80), ("a/second", 3, 81)] {
        service(&mut cluster, object, age, &[]);
        share(&mut cluster, object, "k", &[port]);
    }
    assert_eq!(got_service(&cluster, "a/first"), "192.0.2.8");
    assert_eq!(got_service(&cluster, "a/second"), "192.0.2.8");
}

#[test]
fn those_that_are_announced_by_the_nodes_of_their_pods_share_with_those_that_have_the_same_pods() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["192.0.2.1-192.0.2.9"], |_| {});
    let all = [("a/cluster", ""), ("a/web", "app=web"), ("a/db", "app=db"), ("a/web-too", "app=web")];
    for (port, (object, pods)) in (1..).zip(all) {
        service(&mut cluster, object, port.into(), &[]);
        share(&mut cluster, object, "k", &[port]);
        balancer(&mut cluster, object).local_pods = pods.into();
    }
    let got = all.map(|(object, _)| got_service(&cluster, object).replace("192.0.2.", "."));
    assert_eq!(got, [".1", ".2", ".3", ".2"]);
}
