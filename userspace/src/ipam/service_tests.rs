//! Addresses of Services that ask for none.

use super::pool_tests::pool;
use super::tests::{
    DUAL, cluster, families, gateway, got_service, ip, name, object as object_ref, range, service,
};
use super::*;
use crate::model::EventReason;
use crate::model::cluster::ServicePort;
use std::sync::Arc;

/// All Claims are lost, as where their definition is deleted before a controller starts: two Services would swap addresses.
#[test]
fn a_service_has_what_its_status_says_where_claims_say_nothing() {
    let mut cluster = cluster(&DUAL);
    for (object, age, given) in [("a/old", 1, "192.0.2.2"), ("b/young", 2, "192.0.2.1")] {
        service(&mut cluster, object, age, &[]);
        families(&mut cluster, object, &[(true, true)]);
        let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
        Arc::make_mut(service.load_balancer.as_mut().unwrap()).given = vec![ip(given)];
    }
    assert_eq!(
        (got_service(&cluster, "a/old"), got_service(&cluster, "b/young")),
        ("192.0.2.2".into(), "192.0.2.1".into())
    );
    // What a Claim says comes first.
    cluster.possession.add_address(&object_ref(Kind::Service, "a/old"), ip("192.0.2.1"));
    assert_eq!(
        (got_service(&cluster, "a/old"), got_service(&cluster, "b/young")),
        ("192.0.2.1".into(), "192.0.2.3".into())
    );
}

/// A Service with a key and TCP ports.
fn sharing(cluster: &mut Cluster, object: &str, age: i64, key: &str, ports: &[u16]) {
    service(cluster, object, age, &[]);
    share(cluster, object, key, ports);
}

/// The Service has this key and these TCP ports.
pub(super) fn share(cluster: &mut Cluster, object: &str, key: &str, ports: &[u16]) {
    let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
    let protocol: Arc<str> = "TCP".into();
    let port = |port: &u16| ServicePort {
        name: "".into(),
        port: *port,
        is_tcp: true,
        protocol: Arc::clone(&protocol),
    };
    service.ports = ports.iter().map(port).collect();
    Arc::make_mut(service.load_balancer.as_mut().unwrap()).sharing_key = Some(key.into());
}

#[test]
fn services_of_a_namespace_with_one_key_and_other_ports_share_an_address() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    sharing(&mut cluster, "a/api", 1, "k", &[6443]);
    sharing(&mut cluster, "a/konnectivity", 2, "k", &[8132]);
    sharing(&mut cluster, "a/same-port", 3, "k", &[6443, 8133]);
    sharing(&mut cluster, "a/other-key", 4, "l", &[8134]);
    sharing(&mut cluster, "b/stranger", 5, "k", &[8135]);
    service(&mut cluster, "a/none", 6, &[]);
    sharing(&mut cluster, "a/last", 7, "k", &[8135]);
    let all = ["a/api", "a/konnectivity", "a/same-port", "a/other-key", "b/stranger", "a/none", "a/last"];
    let got = |cluster: &Cluster| all.map(|object| got_service(cluster, object).replace("192.0.2.", "."));
    assert_eq!(got(&cluster), [".1", ".1", ".2", ".3", ".4", ".5", ".1"]);
    // It stays so, in any order, and when the first of them goes.
    for object in all {
        let address = ip(&got_service(&cluster, object));
        cluster.possession.add_address(&object_ref(Kind::Service, object), address);
    }
    assert_eq!(got(&cluster), [".1", ".1", ".2", ".3", ".4", ".5", ".1"]);
    sharing(&mut cluster, "a/api", 9, "k", &[6443]);
    assert_eq!(got(&cluster), [".1", ".1", ".2", ".3", ".4", ".5", ".1"]);
    cluster.services.remove(&name("a/api"));
    assert_eq!(got(&cluster)[1..], [".1", ".2", ".3", ".4", ".5", ".1"]);
    // A port more that another one has takes the address from nobody: who has the port answers there.
    sharing(&mut cluster, "a/last", 7, "k", &[8135, 8132]);
    assert_eq!(got_service(&cluster, "a/last"), "192.0.2.1");
    // Who gives up the key shares no more: what it has, the others had before.
    sharing(&mut cluster, "a/last", 7, "", &[8135]);
    let service = Arc::make_mut(cluster.services.get_mut(&name("a/last")).unwrap());
    Arc::make_mut(service.load_balancer.as_mut().unwrap()).sharing_key = None;
    assert_eq!(got_service(&cluster, "a/last"), "192.0.2.6");
}

/// A pool says that Services of several namespaces may share its addresses.
#[test]
fn services_of_several_namespaces_share_an_address_where_its_pool_says_so() {
    let mut cluster = cluster(&[]);
    let across = |cluster: &mut Cluster, says_so| {
        pool(cluster, "p", &["192.0.2.1-192.0.2.9"], |pool| pool.shares_across_namespaces = says_so);
    };
    across(&mut cluster, true);
    sharing(&mut cluster, "a/api", 1, "k", &[6443]);
    sharing(&mut cluster, "b/konnectivity", 2, "k", &[8132]);
    sharing(&mut cluster, "c/same-port", 3, "k", &[6443]);
    sharing(&mut cluster, "c/other-key", 4, "l", &[8133]);
    service(&mut cluster, "c/none", 5, &[]);
    let all = ["a/api", "b/konnectivity", "c/same-port", "c/other-key", "c/none"];
    let got = |cluster: &Cluster| all.map(|object| got_service(cluster, object).replace("192.0.2.", "."));
    assert_eq!(got(&cluster), [".1", ".1", ".2", ".3", ".4"]);
    for object in all {
        let address = ip(&got_service(&cluster, object));
        cluster.possession.add_address(&object_ref(Kind::Service, object), address);
    }
    // An older one that asks for it by value shares it if it has other ports than all who have it, whatever their age.
    let by_value = |cluster: &mut Cluster, ports: &[u16]| {
        service(cluster, "d/old", 0, &["192.0.2.1"]);
        share(cluster, "d/old", "k", ports);
        got_service(cluster, "d/old")
    };
    assert_eq!(by_value(&mut cluster, &[9000]), "192.0.2.1");
    assert_eq!(by_value(&mut cluster, &[8132]), "AddressNotUsable");
    assert_eq!(got(&cluster), [".1", ".1", ".2", ".3", ".4"]);
    cluster.services.remove(&name("d/old"));
    // Neither the pool nor a key that another one gives up takes it from anybody.
    across(&mut cluster, false);
    assert_eq!(got(&cluster), [".1", ".1", ".2", ".3", ".4"]);
    share(&mut cluster, "a/api", "m", &[6443]);
    assert_eq!(got(&cluster)[..2], [".1", ".1"]);
    assert_eq!(by_value(&mut cluster, &[9000]), "AddressNotUsable");
}

/// Found by random histories: who asks for it by value without the key comes into no address that namespaces share.
#[test]
fn nobody_without_the_key_comes_into_an_address_that_namespaces_share() {
    let refused = "192.0.2.1 belongs to Service a/one, which has it, and is not shared between namespaces";
    for is_granted in [true, false] {
        let mut cluster = cluster(&[]);
        pool(&mut cluster, "p", &["192.0.2.1-192.0.2.1"], |pool| pool.shares_across_namespaces = true);
        for (object, port) in [("a/one", 1), ("b/two", 2)] {
            service(&mut cluster, object, 1, &["192.0.2.1"]);
            share(&mut cluster, object, "k", &[port]);
        }
        // A Gateway has no key. The address is that of its own namespace, too.
        gateway(&mut cluster, "b/g", 3, &["192.0.2.1"], &[]);
        if is_granted {
            for object in ["a/one", "b/two"] {
                cluster.possession.add_address(&object_ref(Kind::Service, object), ip("192.0.2.1"));
            }
        }
        let assigned = assign(&cluster);
        assert_eq!(assigned.services[&name("b/two")].addresses, [ip("192.0.2.1")], "{is_granted}");
        let gateway = &assigned.gateways[&name("b/g")];
        assert_eq!(gateway.addresses, [] as [IpAddr; 0], "{is_granted}");
        let problem = gateway.problem.as_ref().unwrap().to_string();
        assert!(problem.contains(refused), "{is_granted}: {problem}");
    }
    // One that was there before keeps further namespaces out: it has not agreed.
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["192.0.2.1-192.0.2.1"], |pool| pool.shares_across_namespaces = true);
    sharing(&mut cluster, "a/one", 1, "k", &[1]);
    gateway(&mut cluster, "a/g", 2, &["192.0.2.1"], &[]);
    sharing(&mut cluster, "b/two", 3, "k", &[2]);
    assert_eq!(got_service(&cluster, "b/two"), "AddressNotAssigned");
    for (kind, object) in [(Kind::Service, "a/one"), (Kind::Gateway, "a/g")] {
        cluster.possession.add_address(&object_ref(kind, object), ip("192.0.2.1"));
    }
    service(&mut cluster, "b/two", 0, &["192.0.2.1"]);
    share(&mut cluster, "b/two", "k", &[2]);
    assert_eq!(got_service(&cluster, "b/two"), "AddressNotUsable");
    assert_eq!(got_service(&cluster, "a/one"), "192.0.2.1");
}

/// Found by random histories, and said in deploy/README.md.
#[test]
fn who_joined_an_address_and_drops_its_key_keeps_it_and_keeps_the_first_namespace_out() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["192.0.2.1-192.0.2.9"], |pool| pool.shares_across_namespaces = true);
    for (object, age, port) in [("a/first", 1, 1), ("b/joined", 2, 2)] {
        sharing(&mut cluster, object, age, "k", &[port]);
        cluster.possession.add_address(&object_ref(Kind::Service, object), ip("192.0.2.1"));
    }
    // As long as both have the key, others come.
    sharing(&mut cluster, "a/new", 3, "k", &[3]);
    assert_eq!(got_service(&cluster, "a/new"), "192.0.2.1");
    keyless(&mut cluster, "b/joined");
    assert_eq!(["a/first", "b/joined"].map(|object| got_service(&cluster, object)), ["192.0.2.1"; 2]);
    assert_eq!(got_service(&cluster, "a/new"), "192.0.2.2");
    service(&mut cluster, "a/new", 3, &["192.0.2.1"]);
    share(&mut cluster, "a/new", "k", &[3]);
    assert_eq!(got_service(&cluster, "a/new"), "AddressNotUsable");
}

/// MetalLB let them share it; no pool says so.
#[test]
fn of_two_namespaces_the_first_to_settle_decides_who_comes_to_their_address() {
    for (first, second) in [("a", "b"), ("b", "a")] {
        let mut cluster = cluster(&[]);
        pool(&mut cluster, "p", &["192.0.2.1-192.0.2.9"], |_| ());
        for (age, (namespace, port)) in (1..).zip([(first, 1), (second, 2)]) {
            let object = format!("{namespace}/made-by-metallb");
            sharing(&mut cluster, &object, age, "k", &[port]);
            cluster.possession.add_address(&object_ref(Kind::Service, &object), ip("192.0.2.1"));
        }
        for (namespace, wanted) in [(first, "192.0.2.1"), (second, "AddressNotUsable")] {
            let object = format!("{namespace}/new");
            service(&mut cluster, &object, 3, &["192.0.2.1"]);
            share(&mut cluster, &object, "k", &[3]);
            assert_eq!(got_service(&cluster, &object), wanted, "{first} is first");
            cluster.services.remove(&name(&object));
        }
    }
}

#[test]
fn one_of_its_own_namespace_without_the_key_ends_sharing_where_a_pool_lets_namespaces_share() {
    for (across, wanted) in [(true, "192.0.2.2"), (false, "192.0.2.1")] {
        let mut cluster = cluster(&[]);
        pool(&mut cluster, "p", &["192.0.2.1-192.0.2.9"], |pool| pool.shares_across_namespaces = across);
        sharing(&mut cluster, "a/first", 1, "k", &[1]);
        cluster.possession.add_address(&object_ref(Kind::Service, "a/first"), ip("192.0.2.1"));
        service(&mut cluster, "a/keyless", 2, &["192.0.2.1"]);
        sharing(&mut cluster, "a/new", 3, "k", &[3]);
        let got = ["a/first", "a/keyless", "a/new"].map(|object| got_service(&cluster, object));
        assert_eq!(got, ["192.0.2.1", "192.0.2.1", wanted], "{across}");
    }
}

/// The Service gives up its key.
fn keyless(cluster: &mut Cluster, object: &str) {
    let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
    Arc::make_mut(service.load_balancer.as_mut().unwrap()).sharing_key = None;
}

/// Anybody who may edit a status took the address from those who share it, or kept the owner's own namespace out of it.
#[test]
fn a_status_that_says_so_takes_no_address_that_claims_give_to_others() {
    let mut cluster = cluster(&["192.0.2.7-192.0.2.9"]);
    pool(&mut cluster, "p", &["192.0.2.1-192.0.2.1"], |pool| pool.shares_across_namespaces = true);
    for (object, port) in [("a/one", 1), ("b/two", 2)] {
        sharing(&mut cluster, object, 5, "k", &[port]);
        cluster.possession.add_address(&object_ref(Kind::Service, object), ip("192.0.2.1"));
    }
    gateway(&mut cluster, "a/g", 1, &[], &["192.0.2.1"]);
    let assigned = assign(&cluster);
    assert_eq!(assigned.services[&name("b/two")].addresses, [ip("192.0.2.1")]);
    assert_eq!(assigned.gateways[&name("a/g")].addresses, [ip("192.0.2.7")]);

    cluster.possession.add_address(&object_ref(Kind::Service, "c/own"), ip("192.0.2.8"));
    service(&mut cluster, "c/own", 2, &["192.0.2.8"]);
    gateway(&mut cluster, "d/edited", 1, &[], &["192.0.2.8"]);
    service(&mut cluster, "c/more", 3, &["192.0.2.8"]);
    assert_eq!(got_service(&cluster, "c/more"), "192.0.2.8");
}

/// All Claims are lost: statuses show who shared it.
#[test]
fn an_address_that_namespaces_share_stays_theirs_where_claims_say_nothing() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["192.0.2.1-192.0.2.9"], |pool| pool.shares_across_namespaces = true);
    for (object, age, ports) in [("a/one", 2, &[1]), ("b/two", 1, &[2]), ("c/three", 3, &[2])] {
        sharing(&mut cluster, object, age, "k", ports);
        let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
        Arc::make_mut(service.load_balancer.as_mut().unwrap()).given = vec![ip("192.0.2.5")];
    }
    let got = ["a/one", "b/two", "c/three"].map(|object| got_service(&cluster, object));
    // Two claim one port: neither of them is believed to be the one that shares.
    assert_eq!(got[0], "192.0.2.5");
}

/// Services that ask for none get addresses of the families that they are of, and keep them as Gateways do.
#[test]
fn services_get_an_address_of_each_family_and_keep_it() {
    let mut cluster = cluster(&["192.0.2.0-192.0.2.2", "2001:db8::-2001:db8::1"]);
    let put = |cluster: &mut Cluster, name_of: &str, age, wanted: &[(bool, bool)]| {
        service(cluster, name_of, age, &[]);
        families(cluster, name_of, wanted);
    };
    put(&mut cluster, "a/any", 1, &[]);
    put(&mut cluster, "b/require", 2, &[(false, true), (true, true)]);
    put(&mut cluster, "c/prefer", 3, &[(false, true), (true, false)]);
    put(&mut cluster, "d/prefer", 4, &[(true, true), (false, false)]);
    assert_eq!(got_service(&cluster, "a/any"), "192.0.2.1");
    assert_eq!(got_service(&cluster, "b/require"), "2001:db8::1 192.0.2.2");
    // Neither .0 nor the routers' anycast address is given to who asks for none.
    assert_eq!(got_service(&cluster, "c/prefer"), "AddressNotAssigned");
    assert_eq!(got_service(&cluster, "d/prefer"), "AddressNotAssigned");
    service(&mut cluster, "c/prefer", 3, &["2001:db8::", "192.0.2.0"]);
    assert_eq!(got_service(&cluster, "c/prefer"), "2001:db8:: 192.0.2.0");
    // What was granted comes before age.
    cluster.services.remove(&name("b/require"));
    cluster.possession.add_address(&object_ref(Kind::Service, "d/prefer"), ip("192.0.2.1"));
    assert_eq!(got_service(&cluster, "d/prefer"), "192.0.2.1 2001:db8::1");
    assert_eq!(got_service(&cluster, "a/any"), "192.0.2.2");
    cluster.policy.ranges.remove(1);
    assert_eq!(got_service(&cluster, "d/prefer"), "192.0.2.1");
    put(&mut cluster, "c/six", 5, &[(false, true)]);
    let problem = assign(&cluster).services[&name("c/six")].problem.clone().unwrap();
    expect_test::expect![[
        r#"warning: Service c/six: spec.ipFamilies: the installation has no IPv6 address range; add a range to the chart's values"#
    ]]
    .assert_eq(&problem.to_string());
    // A range of one address means that one.
    cluster.services.retain(|service, _| *service == name("c/six"));
    cluster.policy.ranges = vec![range("2001:db8::-2001:db8::")];
    assert_eq!(got_service(&cluster, "c/six"), "2001:db8::");
}

#[test]
fn why_a_service_has_no_address_of_its_second_family() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.1"]);
    for (object, is_required) in [("a/prefers", false), ("a/requires", true)] {
        service(&mut cluster, object, 1, &[]);
        families(&mut cluster, object, &[(true, true), (false, is_required)]);
    }
    let services = assign(&cluster).services;
    let prefers = &services[&name("a/prefers")];
    assert_eq!(prefers.spare.as_deref(), Some("no free IPv6 address in the ranges of the installation"));
    assert_eq!(prefers.problem, None);
    let requires = &services[&name("a/requires")];
    assert_eq!(requires.spare, None);
    assert_eq!(requires.problem.as_ref().unwrap().reason, Some(EventReason::AllocationFailed));
}
