//! Services that MetalLB may have served.

use super::pool_tests::{ask, pool};
use super::service_tests::share;
use super::tests::{cluster, families, got_service, ip, name, object, range, service};
use super::*;
use crate::model::cluster::{LoadBalancerSpec, PoolScope, PoolsClosed, ServicePort};
use crate::model::{EventReason, Possession};
use std::sync::Arc;

fn change(cluster: &mut Cluster, object: &str, change: impl FnOnce(&mut LoadBalancerSpec)) {
    let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
    change(Arc::make_mut(service.load_balancer.as_mut().unwrap()));
}

/// Adds a Service without class, with a port and with this status. It asks for these addresses.
fn adopted(cluster: &mut Cluster, object: &str, age: i64, asked: &[&str], status: &[&str]) {
    service(cluster, object, age, asked);
    let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
    let protocol = "TCP".into();
    service.ports = vec![ServicePort { name: "".into(), port: 443, is_tcp: true, protocol }];
    change(cluster, object, |own| {
        (own.is_adopted, own.given) = (true, status.iter().map(|text| ip(text)).collect());
        own.given_by_others.clone_from(&own.given);
    });
}

/// Returns the addresses of a Service, and why it is left alone.
fn left(cluster: &Cluster, object: &str) -> (String, String) {
    let allocation = &assign(cluster).services[&name(object)];
    assert!(allocation.is_held, "{allocation:?}");
    let problem = allocation.problem.as_ref().map(ToString::to_string).unwrap_or_default();
    (got_service(cluster, object), problem)
}

fn close(cluster: &mut Cluster, may_run: bool) {
    cluster.pools_closed = Some(PoolsClosed {
        why: "MetalLB runs".into(),
        brief: "MetalLB runs".into(),
        may_run,
        was_seen: may_run,
    });
}

#[test]
fn what_metallb_gave_stays_and_others_get_free_addresses() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.9"], |pool| {
        pool.scope = PoolScope { namespaces: vec!["b".into()], ..PoolScope::default() };
    });
    adopted(&mut cluster, "a/new", 1, &[], &[]);
    adopted(&mut cluster, "a/has", 2, &[], &["192.0.2.1"]);
    adopted(&mut cluster, "a/asks", 3, &["192.0.2.7"], &["192.0.2.7"]);
    // Its pool admits it no more.
    adopted(&mut cluster, "a/bound", 4, &[], &["198.51.100.4"]);
    adopted(&mut cluster, "a/bound-asks", 5, &["198.51.100.5"], &["198.51.100.5"]);
    // What it asks for itself changes what it has.
    adopted(&mut cluster, "a/moves", 6, &["192.0.2.8"], &["192.0.2.6"]);
    adopted(&mut cluster, "b/moves", 7, &[], &["192.0.2.5"]);
    ask(&mut cluster, "b/moves", Some("p"));
    let all = ["a/new", "a/has", "a/asks", "a/bound", "a/bound-asks", "a/moves", "b/moves"];
    let got = |cluster: &Cluster| all.map(|object| got_service(cluster, object));
    let expected =
        ["192.0.2.2", "192.0.2.1", "192.0.2.7", "198.51.100.4", "198.51.100.5", "192.0.2.8", "198.51.100.1"];
    assert_eq!(got(&cluster), expected);
    assert!(assign(&cluster).services.values().all(|own| !own.is_held));
    // It stays so once Claims say it.
    for (service, address) in all.iter().zip(expected) {
        cluster.possession.add_address(&object(Kind::Service, service), ip(address));
    }
    assert_eq!(got(&cluster), expected);
}

#[test]
fn while_metallb_may_run_only_our_own_class_is_touched() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    adopted(&mut cluster, "a/has", 1, &[], &["192.0.2.1"]);
    adopted(&mut cluster, "a/new", 2, &[], &[]);
    adopted(&mut cluster, "a/granted", 3, &[], &["192.0.2.3"]);
    adopted(&mut cluster, "a/elsewhere", 4, &["203.0.113.1"], &["203.0.113.1"]);
    service(&mut cluster, "a/ours", 5, &[]);
    cluster.possession.add_address(&object(Kind::Service, "a/granted"), ip("192.0.2.3"));
    close(&mut cluster, true);
    let why = |name: &str| {
        format!(
            "warning: Service {name}: spec.loadBalancerClass: MetalLB runs: the Service is left as it is; remove MetalLB, or make \
             the Service again with class vestibule.dev/lb"
        )
    };
    assert_eq!(left(&cluster, "a/has"), ("192.0.2.1".into(), why("a/has")));
    assert_eq!(left(&cluster, "a/new"), (String::new(), why("a/new")));
    assert_eq!(left(&cluster, "a/granted"), ("192.0.2.3".into(), String::new()), "it has what it wants");
    assert_eq!(left(&cluster, "a/elsewhere"), (String::new(), why("a/elsewhere")));
    assert_eq!(got_service(&cluster, "a/ours"), "192.0.2.2", "what others have in their status is not free");
    // A controller that has just started to lead has not seen it: another one saw it away, or nothing would have been granted.
    close(&mut cluster, false);
    assert_eq!(left(&cluster, "a/has"), ("192.0.2.1".into(), why("a/has")));
    assert!(!assign(&cluster).services[&name("a/granted")].is_held);
}

/// Two would answer for the Service, each at another address.
#[test]
fn who_has_another_address_of_metallb_by_now_keeps_none_of_ours() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9", "2001:db8::1-2001:db8::9"]);
    let all = [
        ("a/moved", &["192.0.2.7"][..], true),
        ("a/same", &["192.0.2.2"], false),
        ("a/none", &[], false),
        ("a/half", &["192.0.2.4"], false),
    ];
    for (number, (service, status, _)) in (1..).zip(all) {
        adopted(&mut cluster, service, number, &[], status);
        cluster.possession.add_address(&object(Kind::Service, service), ip(&format!("192.0.2.{number}")));
    }
    cluster.possession.add_address(&object(Kind::Service, "a/half"), ip("2001:db8::4"));
    let moved = |cluster: &Cluster| {
        let services = assign(cluster).services;
        all.map(|(service, _, _)| services[&name(service)].has_moved)
    };
    let got = |cluster: &Cluster| got_service(cluster, "a/moved");
    assert_eq!((moved(&cluster), got(&cluster)), ([false; 4], "192.0.2.1".into()));
    close(&mut cluster, false);
    assert_eq!((moved(&cluster), got(&cluster)), ([false; 4], "192.0.2.1".into()), "it is not there");
    close(&mut cluster, true);
    assert_eq!(moved(&cluster), all.map(|(_, _, has_moved)| has_moved));
    assert!(left(&cluster, "a/moved").1.contains("MetalLB runs"));
    assert_eq!(got(&cluster), "192.0.2.7");
    cluster.pools_closed.as_mut().unwrap().brief = "".into();
    assert_eq!(moved(&cluster), [false; 4], "nobody has looked yet");
    // Its Claims are gone, and then MetalLB is.
    cluster.possession = Possession::default();
    cluster.pools_closed = None;
    assert_eq!((moved(&cluster), got(&cluster)), ([false; 4], "192.0.2.7".into()));
}

#[test]
fn what_cannot_be_ours_is_left_alone() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    cluster.policy.excluded = vec!["192.0.2.8/30".parse().unwrap()];
    adopted(&mut cluster, "a/elsewhere", 1, &[], &["203.0.113.1"]);
    adopted(&mut cluster, "a/half", 2, &[], &["192.0.2.1", "2001:db8::1"]);
    families(&mut cluster, "a/half", &[(true, true), (false, true)]);
    adopted(&mut cluster, "a/asks", 3, &["203.0.113.2"], &["203.0.113.2"]);
    adopted(&mut cluster, "a/node", 4, &[], &["192.0.2.9"]);
    service(&mut cluster, "b/ours", 9, &["192.0.2.4"]);
    cluster.possession.add_address(&object(Kind::Service, "b/ours"), ip("192.0.2.4"));
    adopted(&mut cluster, "a/twice", 5, &[], &["192.0.2.4"]);
    adopted(&mut cluster, "a/name", 6, &[], &[]);
    change(&mut cluster, "a/name", |own| own.foreign = Some("lb.example".into()));
    adopted(&mut cluster, "a/udp", 7, &[], &["192.0.2.6"]);
    Arc::make_mut(cluster.services.get_mut(&name("a/udp")).unwrap()).ports.clear();
    for (object, got, why) in [
        ("a/elsewhere", "", "203.0.113.1 is in none of the address ranges of the installation"),
        ("a/half", "192.0.2.1", "2001:db8::1 is in none of the address ranges of the installation"),
        ("a/asks", "", "203.0.113.2 is in none of the address ranges of the installation"),
        ("a/node", "", "192.0.2.9 is in 192.0.2.8/30, a range of nodes, pods or Services"),
        (
            "a/twice",
            "",
            "192.0.2.4 belongs to Service b/ours, which has it, and is not shared between namespaces",
        ),
        ("a/name", "", "another implementation has written a host name"),
        ("a/udp", "192.0.2.6", "it has no TCP port, and only TCP is served"),
    ] {
        let (addresses, problem) = left(&cluster, object);
        assert_eq!(addresses, got, "{object}");
        assert!(problem.contains(&format!("{why}: the Service is left as it is")), "{object}: {problem}");
    }
    // Once the range is there, it is adopted.
    cluster.policy.ranges.push(range("203.0.113.0-203.0.113.9"));
    assert_eq!(got_service(&cluster, "a/elsewhere"), "203.0.113.1");
    assert!(!assign(&cluster).services[&name("a/elsewhere")].is_held);
}

/// Another implementation and we would write its status for ever.
#[test]
fn a_status_that_another_implementation_writes_is_left_to_it() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    let theirs = "another implementation has written 203.0.113.1";
    for (number, service, status, why) in [
        (1, "a/theirs", &["203.0.113.1"][..], theirs),
        (2, "a/both", &["192.0.2.2", "203.0.113.1"], theirs),
        (3, "a/name", &["192.0.2.3"], "another implementation has written a host name"),
        (4, "a/ours", &["192.0.2.8"], ""),
        (5, "a/drains", &["203.0.113.5"], ""),
    ] {
        adopted(&mut cluster, service, number, &[], status);
        let granted = format!("192.0.2.{number}");
        cluster.possession.add_address(&object(Kind::Service, service), ip(&granted));
        change(&mut cluster, service, |own| match service {
            "a/name" => own.foreign = Some("lb.example".into()),
            // We wrote it before its range was taken away, and it asks for another one by now.
            "a/drains" => own.given_by_others.clear(),
            _ => {}
        });
        if why.is_empty() {
            assert!(!assign(&cluster).services[&name(service)].is_held, "{service}");
            assert_eq!(got_service(&cluster, service), granted);
            continue;
        }
        let (got, problem) = left(&cluster, service);
        assert_eq!(got, granted, "{service}");
        assert!(problem.contains(why), "{problem}");
    }
    // It asks for one of ours, but that other address would go.
    adopted(&mut cluster, "a/asks", 6, &["192.0.2.6"], &["203.0.113.6"]);
    assert!(left(&cluster, "a/asks").1.contains("203.0.113.6 is in none of the address ranges"));
}

/// MetalLB left it as it was, too.
#[test]
fn who_asks_for_what_cannot_be_read_keeps_what_the_status_has() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    adopted(&mut cluster, "a/has", 1, &["192.0.2.7"], &["192.0.2.5"]);
    adopted(&mut cluster, "a/new", 2, &["192.0.2.8"], &[]);
    for object in ["a/has", "a/new"] {
        change(&mut cluster, object, |own| own.unreadable = vec!["x".into()]);
    }
    let allocation = &assign(&cluster).services[&name("a/has")];
    assert_eq!((&allocation.addresses[..], allocation.is_held), (&[ip("192.0.2.5")][..], true));
    let problem = allocation.problem.as_ref().unwrap();
    assert_eq!(problem.reason, Some(EventReason::LoadBalancerFailed));
    assert!(problem.what.starts_with("not all addresses that it asks for can be read"), "{problem}");
    assert_eq!(got_service(&cluster, "a/new"), "AddressNotUsable", "MetalLB gives it nothing either");
    // One that was granted its addresses has changed its request since.
    cluster.possession.add_address(&object(Kind::Service, "a/has"), ip("192.0.2.5"));
    assert_eq!(got_service(&cluster, "a/has"), "192.0.2.5 AddressNotUsable");
}

/// MetalLB does not bind keys to namespaces; we do.
#[test]
fn sharing_that_metallb_made_stays() {
    for asked in [&[][..], &["192.0.2.5"]] {
        let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
        for (object, age, key, port) in
            [("a/api", 1, "k", 6443), ("b/api", 2, "k", 6444), ("c/other", 3, "l", 6445)]
        {
            adopted(&mut cluster, object, age, asked, &["192.0.2.5"]);
            share(&mut cluster, object, key, &[port]);
        }
        adopted(&mut cluster, "d/new", 4, asked, &[]);
        share(&mut cluster, "d/new", "k", &[6446]);
        let got = |cluster: &Cluster| ["a/api", "b/api", "d/new"].map(|object| got_service(cluster, object));
        let new = if asked.is_empty() { "192.0.2.1" } else { "AddressNotUsable" };
        assert_eq!(got(&cluster), ["192.0.2.5", "192.0.2.5", new]);
        assert!(left(&cluster, "c/other").1.contains("belongs to Service a/api"));
        for service in ["a/api", "b/api"] {
            cluster.possession.add_address(&object(Kind::Service, service), ip("192.0.2.5"));
        }
        assert_eq!(got(&cluster), ["192.0.2.5", "192.0.2.5", new]);
        // Neither takes it from the other by what it says later.
        for key in [None, Some("z".into())] {
            for object in ["a/api", "b/api"] {
                let mut cluster = cluster.clone();
                change(&mut cluster, object, |own| own.sharing_key.clone_from(&key));
                assert_eq!(got(&cluster)[..2], ["192.0.2.5", "192.0.2.5"], "{object} says {key:?}");
            }
        }
    }
}
