//! Pools: whom they admit, which comes first, and what is kept.

use super::tests::{cluster, families, gateway, got, got_service, ip, name, object, range, service};
use super::*;
use crate::model::cluster::{
    AddressHold, FamilyWish, LabelSelector, Operator, PoolPolicy, PoolScope, PoolSpec, PoolsClosed,
    Requirement,
};
use crate::model::{Meta, Possession};
use std::sync::Arc;

pub(super) const METALLB: &str = "metallb-system";

/// Adds a pool, which is changed by `change`.
pub(super) fn pool(cluster: &mut Cluster, named: &str, ranges: &[&str], change: impl FnOnce(&mut PoolSpec)) {
    cluster.policy.pools = PoolPolicy { namespaces: vec![METALLB.into()] };
    let name = ObjectName::new(METALLB, named);
    let mut spec = PoolSpec {
        meta: Meta { name: name.clone(), ..Meta::default() },
        ranges: ranges.iter().map(|text| range(text)).collect(),
        is_automatic: true,
        priority: u32::MAX,
        ..PoolSpec::default()
    };
    change(&mut spec);
    cluster.pools.insert(name, Arc::new(spec));
}

/// Admits namespaces by name.
fn namespaces(names: &[&str]) -> PoolScope {
    PoolScope { namespaces: names.iter().map(|name| Arc::from(*name)).collect(), ..PoolScope::default() }
}

fn has_label(key: &str) -> LabelSelector {
    LabelSelector { requirements: vec![Requirement { key: key.into(), operator: Operator::Exists }] }
}

/// The Service asks for a pool.
pub(super) fn ask(cluster: &mut Cluster, service: &str, pool: Option<&str>) {
    let service = Arc::make_mut(cluster.services.get_mut(&name(service)).unwrap());
    Arc::make_mut(service.load_balancer.as_mut().unwrap()).from.pool = pool.map(Arc::from);
}

pub(super) fn grant(cluster: &mut Cluster, service: &str, address: &str) {
    cluster.possession.add_address(&object(Kind::Service, service), ip(address));
}

pub(super) fn problem(cluster: &Cluster, service: &str) -> String {
    assign(cluster).services[&name(service)].problem.clone().unwrap().to_string()
}

#[test]
fn pools_for_some_come_first_then_the_charts_ranges_then_pools_for_everybody() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.1"]);
    pool(&mut cluster, "late", &["198.51.100.1-198.51.100.1"], |pool| {
        (pool.scope, pool.priority) = (namespaces(&["a"]), 20);
    });
    pool(&mut cluster, "soon", &["198.51.100.2-198.51.100.2"], |pool| {
        (pool.scope, pool.priority) = (namespaces(&["b", "a"]), 10);
    });
    pool(&mut cluster, "never", &["198.51.100.3-198.51.100.3"], |pool| pool.scope = namespaces(&["c"]));
    pool(&mut cluster, "for-all", &["198.51.100.4-198.51.100.4"], |_| {});
    pool(&mut cluster, "asked-for", &["198.51.100.5-198.51.100.5"], |pool| pool.is_automatic = false);
    for (age, object) in ["a/1", "a/2", "a/3", "a/4", "a/5"].into_iter().enumerate() {
        service(&mut cluster, object, age as i64, &[]);
    }
    let got: Vec<String> = (1..=5).map(|at| got_service(&cluster, &format!("a/{at}"))).collect();
    assert_eq!(got, ["198.51.100.2", "198.51.100.1", "192.0.2.1", "198.51.100.4", "AddressNotAssigned"]);
    ask(&mut cluster, "a/5", Some("asked-for"));
    assert_eq!(got_service(&cluster, "a/5"), "198.51.100.5");
    // Pools of other namespaces than the chart's are those of another installation.
    cluster.policy.pools.namespaces = vec!["elsewhere".into()];
    assert_eq!(got_service(&cluster, "a/1"), "192.0.2.1");
    assert_eq!(got_service(&cluster, "a/2"), "AddressNotAssigned");
}

#[test]
fn a_pool_admits_by_name_and_labels_of_the_namespace_and_by_labels_of_the_object() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.9"], |pool| {
        pool.scope = PoolScope {
            namespace_selectors: vec![has_label("team")],
            object_selectors: vec![has_label("public"), has_label("open")],
            ..namespaces(&["named"])
        };
    });
    let labels = |key: &str| Arc::new([(Arc::from(key), Arc::from(""))].into());
    cluster.namespaces.labels.insert("labelled".into(), labels("team"));
    cluster.namespaces.labels.insert("other".into(), labels("else"));
    for (age, (object, label)) in
        [("named/a", "open"), ("labelled/a", "public"), ("other/a", "open"), ("named/b", "closed")]
            .into_iter()
            .enumerate()
    {
        service(&mut cluster, object, age as i64, &[]);
        let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
        Arc::make_mut(service.load_balancer.as_mut().unwrap()).from.labels = labels(label);
    }
    let got = |object: &str| got_service(&cluster, object);
    assert_eq!([got("named/a"), got("labelled/a")], ["198.51.100.1", "198.51.100.2"]);
    assert_eq!([got("other/a"), got("named/b")], ["AddressNotAssigned"; 2]);
    // Nor by a status that nobody of ours wrote.
    let mut edited = cluster.clone();
    let service_of_other = Arc::make_mut(edited.services.get_mut(&name("other/a")).unwrap());
    Arc::make_mut(service_of_other.load_balancer.as_mut().unwrap()).given = vec![ip("198.51.100.5")];
    assert_eq!(got_service(&edited, "other/a"), "AddressNotAssigned");
    // Neither by value nor by the pool's name.
    service(&mut cluster, "other/a", 9, &["198.51.100.3"]);
    service(&mut cluster, "named/b", 9, &[]);
    ask(&mut cluster, "named/b", Some("p"));
    expect_test::expect![[r#"
        warning: Service other/a: spec.loadBalancerIP: 198.51.100.3 is in the pool p, which does not admit it (value "198.51.100.3"); ask for addresses of your own in the ranges
        warning: Service named/b: metadata.annotations[metallb.io/address-pool]: the pool p does not admit it: its serviceAllocation names others (value "p"); name a pool that admits it, or none"#]]
    .assert_eq(&format!("{}\n{}", problem(&cluster, "other/a"), problem(&cluster, "named/b")));
}

#[test]
fn addresses_of_both_families_come_from_one_pool() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    pool(&mut cluster, "six", &["2001:db8::1-2001:db8::9"], |_| {});
    pool(&mut cluster, "zboth", &["198.51.100.1-198.51.100.1", "2001:db8:1::1-2001:db8:1::9"], |_| {});
    for (object, age, wanted) in [
        ("a/require", 1, [(true, true), (false, true)]),
        ("a/prefer", 2, [(true, true), (false, false)]),
        ("a/late", 3, [(true, true), (false, true)]),
    ] {
        service(&mut cluster, object, age, &[]);
        families(&mut cluster, object, &wanted);
    }
    assert_eq!(got_service(&cluster, "a/require"), "198.51.100.1 2001:db8:1::1");
    assert_eq!(got_service(&cluster, "a/prefer"), "192.0.2.1");
    // As MetalLB does: both or nothing.
    assert_eq!(got_service(&cluster, "a/late"), "AddressNotAssigned");
    expect_test::expect!["warning: Service a/late: spec.ipFamilies: no pool of the installation has free addresses of both families: it gets both or none; add ranges of both families to one pool, or ask for addresses by value"]
    .assert_eq(&problem(&cluster, "a/late"));
    // Of pools of one rank, one with both comes first; where there is none any more, one with what is needed.
    cluster.policy.ranges.clear();
    pool(&mut cluster, "four", &["203.0.113.1-203.0.113.9"], |_| {});
    assert_eq!(got_service(&cluster, "a/require"), "198.51.100.1 2001:db8:1::1");
    assert_eq!(got_service(&cluster, "a/prefer"), "203.0.113.1");
    cluster.services.remove(&name("a/require"));
    assert_eq!(got_service(&cluster, "a/prefer"), "198.51.100.1 2001:db8:1::1");
    cluster.policy.ranges = vec![range("192.0.2.3-192.0.2.9")];
    gateway(&mut cluster, "g/gateway", 9, &[], &[]);
    assert_eq!(got(&cluster, "g/gateway"), "192.0.2.4");
}

/// What an operator does to a pool takes nothing from anybody; what its object asks for does.
#[test]
fn only_the_objects_own_request_takes_an_address_from_it() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    let name_of_p = ObjectName::new(METALLB, "p");
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.9"], |pool| pool.scope = namespaces(&["a"]));
    service(&mut cluster, "a/x", 1, &[]);
    assert_eq!(got_service(&cluster, "a/x"), "198.51.100.1");
    grant(&mut cluster, "a/x", "198.51.100.1");
    // Not automatic, for others, without the address, gone.
    let changes: [fn(&mut PoolSpec); 3] = [
        |pool| pool.is_automatic = false,
        |pool| pool.scope = namespaces(&["b"]),
        |pool| pool.ranges = vec![range("198.51.100.5-198.51.100.9")],
    ];
    for change in changes {
        change(Arc::make_mut(cluster.pools.get_mut(&name_of_p).unwrap()));
        assert_eq!(got_service(&cluster, "a/x"), "198.51.100.1");
    }
    assert!(problem(&cluster, "a/x").contains("was taken out of the installation"));
    cluster.pools.remove(&name_of_p);
    assert_eq!(got_service(&cluster, "a/x"), "198.51.100.1");
    // A pool that it cannot have is no reason to lose what it has.
    ask(&mut cluster, "a/x", Some("nothing"));
    assert_eq!(got_service(&cluster, "a/x"), "198.51.100.1");
    assert!(problem(&cluster, "a/x").contains("there is no pool nothing"));
    service(&mut cluster, "a/without", 9, &[]);
    ask(&mut cluster, "a/without", Some("nothing"));
    assert_eq!(got_service(&cluster, "a/without"), "AddressNotUsable");
    pool(&mut cluster, "q", &["203.0.113.1-203.0.113.9"], |_| {});
    ask(&mut cluster, "a/x", Some("q"));
    assert_eq!(got_service(&cluster, "a/x"), "203.0.113.1");
    // Nor is it the object's own request where the pool that it asked for loses the address to another pool.
    cluster.possession = Possession::default();
    grant(&mut cluster, "a/x", "203.0.113.1");
    cluster.possession.note_pool(object(Kind::Service, "a/x"), "q");
    pool(&mut cluster, "q", &["203.0.113.5-203.0.113.9"], |_| {});
    pool(&mut cluster, "r", &["203.0.113.1-203.0.113.4"], |_| {});
    assert_eq!(got_service(&cluster, "a/x"), "203.0.113.1");
    ask(&mut cluster, "a/x", Some("r"));
    assert_eq!(got_service(&cluster, "a/x"), "203.0.113.1");
    cluster.possession.note_pool(object(Kind::Service, "a/x"), "r");
    ask(&mut cluster, "a/x", Some("q"));
    assert_eq!(got_service(&cluster, "a/x"), "203.0.113.5");
    // Nor does what it gives back keep others from it.
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.1"], |pool| pool.scope = namespaces(&["b"]));
    service(&mut cluster, "b/y", 2, &[]);
    assert_eq!(got_service(&cluster, "b/y"), "198.51.100.1");
}

/// MetalLB may be giving out the same addresses.
#[test]
fn nothing_is_taken_from_a_closed_pool_and_nothing_back() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.9"], |pool| pool.scope = namespaces(&["a"]));
    for (object, age, addresses) in
        [("a/has", 1, &[][..]), ("a/new", 2, &[]), ("a/asks", 3, &[]), ("a/value", 4, &["198.51.100.7"])]
    {
        service(&mut cluster, object, age, addresses);
    }
    ask(&mut cluster, "a/asks", Some("p"));
    grant(&mut cluster, "a/has", "198.51.100.2");
    let all = |cluster: &Cluster| {
        ["a/has", "a/new", "a/asks", "a/value"].map(|object| got_service(cluster, object))
    };
    assert_eq!(all(&cluster), ["198.51.100.2", "198.51.100.1", "198.51.100.3", "198.51.100.7"]);
    cluster.pools_closed = Some(PoolsClosed {
        why: "MetalLB runs".into(),
        brief: "MetalLB runs".into(),
        may_run: true,
        was_seen: true,
    });
    assert_eq!(all(&cluster), ["198.51.100.2", "192.0.2.1", "AddressNotAssigned", "AddressNotUsable"]);
    for object in ["a/asks", "a/value"] {
        let problem = problem(&cluster, object);
        assert!(problem.contains("MetalLB runs: nobody gets an address of its pools meanwhile"), "{problem}");
    }
    cluster.policy.ranges.clear();
    let pools = std::mem::take(&mut cluster.pools);
    assert!(problem(&cluster, "a/new").contains("the installation has no address ranges"));
    cluster.pools = pools;
    assert_eq!(got_service(&cluster, "a/new"), "AddressNotAssigned");
    assert!(problem(&cluster, "a/new").contains("MetalLB runs"), "{}", problem(&cluster, "a/new"));
    // What they have, they keep.
    grant(&mut cluster, "a/asks", "198.51.100.3");
    grant(&mut cluster, "a/value", "198.51.100.7");
    assert_eq!(got_service(&cluster, "a/asks"), "198.51.100.3");
    assert_eq!(got_service(&cluster, "a/value"), "198.51.100.7");
}

#[test]
fn a_pool_gives_every_address_unless_it_avoids_ends() {
    let mut cluster = cluster(&[]);
    pool(&mut cluster, "p", &["198.51.100.255-198.51.101.1"], |_| {});
    for (age, object) in ["a/1", "a/2", "a/3"].into_iter().enumerate() {
        service(&mut cluster, object, age as i64, &[]);
    }
    let got = |cluster: &Cluster| ["a/1", "a/2", "a/3"].map(|object| got_service(cluster, object));
    assert_eq!(got(&cluster), ["198.51.100.255", "198.51.101.0", "198.51.101.1"]);
    pool(&mut cluster, "p", &["198.51.100.255-198.51.101.1"], |pool| pool.leaves_out_ends = true);
    assert_eq!(got(&cluster), ["198.51.101.1", "AddressNotAssigned", "AddressNotAssigned"]);
}

#[test]
fn each_address_of_a_pool_is_assigned_or_available() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.1"]);
    pool(&mut cluster, "p", &["198.51.100.0-198.51.100.9", "2001:db8::1-2001:db8::4"], |pool| {
        pool.leaves_out_ends = true;
    });
    cluster.policy.excluded = vec!["198.51.100.8/30".parse().unwrap()];
    for (age, object) in ["a/of-the-chart", "a/first", "a/second"].into_iter().enumerate() {
        service(&mut cluster, object, age as i64, &[]);
    }
    let pools = assign(&cluster).pools;
    let expected = PoolUse { assigned: [2, 0], available: [5, 4] };
    assert_eq!(pools, [(ObjectName::new(METALLB, "p"), expected)].into());
}

#[test]
fn a_pool_that_holds_addresses_of_another_is_a_problem() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    pool(&mut cluster, "own", &["198.51.100.1-198.51.100.9"], |_| {});
    let mut problems = Vec::new();
    report(&cluster, &mut problems);
    assert_eq!(problems.len(), 0);
    pool(&mut cluster, "other", &["203.0.113.1-203.0.113.9", "192.0.2.9-192.0.2.20"], |_| {});
    report(&cluster, &mut problems);
    let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
    expect_test::expect![[
        r#"warning: IPAddressPool metallb-system/other: spec.addresses[1]: has addresses of the ranges of the installation too (value "192.0.2.9-192.0.2.20"); list each address in one pool only"#
    ]]
    .assert_eq(&problems.join("\n"));
}

#[test]
fn a_service_knows_the_pool_of_its_addresses() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    pool(&mut cluster, "p", &["198.51.100.1-198.51.100.9"], |pool| pool.scope = namespaces(&["a"]));
    for (object, age, addresses) in [("a/x", 1, &[][..]), ("a/asks", 2, &["198.51.100.5"]), ("b/x", 3, &[])] {
        service(&mut cluster, object, age, addresses);
    }
    let of = |cluster: &Cluster, object: &str| assign(cluster).services[&name(object)].pool.clone();
    assert_eq!(of(&cluster, "a/x").as_deref(), Some("p"));
    assert_eq!(of(&cluster, "a/asks").as_deref(), Some("p"));
    assert_eq!(of(&cluster, "b/x"), None, "the chart's ranges are no pool of MetalLB");
    grant(&mut cluster, "a/x", "198.51.100.1");
    cluster.pools.clear();
    assert_eq!(of(&cluster, "a/x"), None);
    Arc::make_mut(cluster.services.get_mut(&name("a/x")).unwrap()).noted.pool = Some("p".into());
    assert_eq!(of(&cluster, "a/x").as_deref(), Some("p"), "it is gone, and the address was of it");
}

/// Shows who has what, and who is left alone.
fn held(cluster: &Cluster, services: &[&str]) -> Vec<String> {
    let assignment = assign(cluster);
    let services = services.iter().map(|service| {
        let allocation = &assignment.services[&name(service)];
        assert_eq!((allocation.reason, &allocation.problem), (None, &None), "{service}");
        let addresses: Vec<String> = allocation.addresses.iter().map(ToString::to_string).collect();
        format!("{}{}", addresses.join(" "), if allocation.is_held { " held" } else { "" })
    });
    services.collect()
}

/// Nobody may be given an address of another pool, and nobody lose what he has.
#[test]
fn while_pools_are_unknown_only_the_charts_addresses_are_given_and_by_value_only() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9"]);
    cluster.policy.pools = PoolPolicy { namespaces: vec![METALLB.into()] };
    cluster.address_hold = AddressHold::Pools;
    let all = ["a/has", "a/asks", "a/new", "a/value", "a/other", "a/moves"];
    let values: [&[&str]; 6] = [&[], &[], &[], &["192.0.2.7"], &["198.51.100.7"], &["198.51.100.5"]];
    for (age, (object, addresses)) in (0..).zip(all.into_iter().zip(values)) {
        service(&mut cluster, object, age, addresses);
    }
    ask(&mut cluster, "a/asks", Some("p"));
    for (object, address) in
        [("a/has", "198.51.100.2"), ("a/asks", "198.51.100.3"), ("a/moves", "198.51.100.4")]
    {
        grant(&mut cluster, object, address);
    }
    assert_eq!(
        held(&cluster, &all),
        ["198.51.100.2", "198.51.100.3 held", " held", "192.0.2.7", " held", "198.51.100.4 held"]
    );
    // An implementation beside us may have given it what its status says.
    let adopted = Arc::make_mut(cluster.services.get_mut(&name("a/new")).unwrap());
    let balancer = Arc::make_mut(adopted.load_balancer.as_mut().unwrap());
    (balancer.is_adopted, balancer.given, balancer.given_by_others) =
        (true, vec![ip("198.51.100.9")], vec![ip("198.51.100.9")]);
    assert_eq!(held(&cluster, &["a/new"]), [" held"]);
    // Nor is one given to another that asks for it by value, though it may be of the chart's ranges.
    let adopted = Arc::make_mut(cluster.services.get_mut(&name("a/new")).unwrap());
    let balancer = Arc::make_mut(adopted.load_balancer.as_mut().unwrap());
    (balancer.given, balancer.given_by_others) = (vec![ip("192.0.2.8")], vec![ip("192.0.2.8")]);
    service(&mut cluster, "b/asks", 0, &["192.0.2.8"]);
    assert_eq!(got_service(&cluster, "b/asks"), "AddressNotUsable");
    assert_eq!(held(&cluster, &["a/new"]), ["192.0.2.8 held"]);
}

/// A change of its source ranges waited, too.
#[test]
fn while_pools_are_unknown_a_service_goes_on_without_the_family_that_it_does_without() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9", "2001:db8::1-2001:db8::9"]);
    cluster.policy.pools = PoolPolicy { namespaces: vec![METALLB.into()] };
    cluster.address_hold = AddressHold::Pools;
    service(&mut cluster, "a/x", 1, &[]);
    grant(&mut cluster, "a/x", "192.0.2.2");
    let prefers = Arc::make_mut(cluster.services.get_mut(&name("a/x")).unwrap());
    let family = |is_v4, is_required| FamilyWish { is_v4, is_required };
    Arc::make_mut(prefers.load_balancer.as_mut().unwrap()).families =
        vec![family(true, true), family(false, false)];
    assert_eq!(held(&cluster, &["a/x"]), ["192.0.2.2"], "and gets none of the other meanwhile");
}

/// Gateways or Services that cannot be listed may have any address that no Claim of another says.
#[test]
fn while_it_is_not_known_who_has_what_nobody_gets_an_address_and_nobody_loses_one() {
    let mut cluster = cluster(&["192.0.2.1-192.0.2.9", "2001:db8::1-2001:db8::9"]);
    cluster.address_hold = AddressHold::All;
    let all = ["a/has", "a/new", "a/value", "a/status"];
    let values: [&[&str]; 4] = [&["192.0.2.2"], &[], &["192.0.2.7"], &[]];
    for (age, (object, addresses)) in (0..).zip(all.into_iter().zip(values)) {
        service(&mut cluster, object, age, addresses);
    }
    grant(&mut cluster, "a/has", "192.0.2.2");
    let status = Arc::make_mut(cluster.services.get_mut(&name("a/status")).unwrap());
    Arc::make_mut(status.load_balancer.as_mut().unwrap()).given = vec![ip("192.0.2.3")];
    gateway(&mut cluster, "a/gw", 9, &[], &["192.0.2.5"]);
    cluster.possession.add_address(&object(Kind::Gateway, "a/gw"), ip("192.0.2.5"));
    gateway(&mut cluster, "a/later", 9, &[], &[]);
    assert_eq!(held(&cluster, &all), ["192.0.2.2", " held", " held", "192.0.2.3 held"]);
    let gateways = assign(&cluster).gateways;
    let of = |gateway: &str| (gateways[&name(gateway)].addresses.clone(), gateways[&name(gateway)].is_held);
    assert_eq!(of("a/gw"), (vec![ip("192.0.2.5")], false), "it does without IPv6, as before");
    assert_eq!(of("a/later"), (vec![], true));
    // Not even what is configured takes it away meanwhile.
    cluster.policy.excluded = vec!["192.0.2.0/24".parse().unwrap()];
    assert_eq!(held(&cluster, &["a/has"]), [" held"]);
}
