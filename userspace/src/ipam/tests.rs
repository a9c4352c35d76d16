//! Which object gets which address.

use super::*;
use crate::model::ObjectRef;
use crate::model::cluster::{
    AddressRange, AddressRequest, ClassSpec, FamilyWish, GatewayListener, LoadBalancerSpec, NamespaceScope,
    Policy, ServiceSpec,
};
use crate::model::object::Meta;
use std::sync::Arc;

pub(super) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

pub(super) fn range(text: &str) -> AddressRange {
    let (first, last) = text.split_once('-').unwrap();
    AddressRange { first: ip(first), last: ip(last) }
}

/// Returns a cluster of one class with these ranges.
pub(super) fn cluster(ranges: &[&str]) -> Cluster {
    let policy = Policy { ranges: ranges.iter().map(|text| range(text)).collect(), ..Policy::default() };
    let classes = [("vestibule".into(), Arc::new(ClassSpec::default()))].into();
    Cluster { policy, classes, ..Cluster::default() }
}

pub(super) fn object(kind: Kind, text: &str) -> ObjectRef {
    ObjectRef { kind, name: name(text) }
}

pub(super) fn name(text: &str) -> ObjectName {
    let (namespace, name) = text.split_once('/').unwrap();
    ObjectName::new(namespace, name)
}

fn meta(object: &str, created_secs: i64) -> Meta {
    Meta { name: name(object), created_secs, ..Meta::default() }
}

/// Adds a Gateway. A request of `-` is an address without value.
pub(super) fn gateway(
    cluster: &mut Cluster,
    object: &str,
    created_secs: i64,
    requests: &[&str],
    given: &[&str],
) {
    let request = |text: &&str| AddressRequest {
        kind: "IPAddress".into(),
        value: (*text != "-").then(|| (*text).into()),
    };
    let spec = GatewaySpec {
        meta: meta(object, created_secs),
        class: "vestibule".into(),
        addresses: requests.iter().map(request).collect(),
        given: given.iter().map(|text| ip(text)).collect(),
        ..GatewaySpec::default()
    };
    cluster.gateways.insert(name(object), Arc::new(spec));
}

pub(super) fn service(cluster: &mut Cluster, object: &str, created_secs: i64, addresses: &[&str]) {
    let balancer = LoadBalancerSpec {
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        field: if addresses.is_empty() { "" } else { "spec.loadBalancerIP" }.into(),
        ..LoadBalancerSpec::default()
    };
    let meta = meta(object, created_secs);
    let spec = ServiceSpec { meta, load_balancer: Some(Arc::new(balancer)), ..ServiceSpec::default() };
    cluster.services.insert(name(object), Arc::new(spec));
}

/// Shows `addresses reason` of a Gateway.
pub(super) fn got(cluster: &Cluster, object: &str) -> String {
    text(assign(cluster).gateways.get(&name(object)))
}

/// Says of which families a Service wants addresses, IPv4 or else IPv6, and whether it needs them.
pub(super) fn families(cluster: &mut Cluster, object: &str, families: &[(bool, bool)]) {
    let service = Arc::make_mut(cluster.services.get_mut(&name(object)).unwrap());
    let wish = |(is_v4, is_required): &(bool, bool)| FamilyWish { is_v4: *is_v4, is_required: *is_required };
    Arc::make_mut(service.load_balancer.as_mut().unwrap()).families = families.iter().map(wish).collect();
}

pub(super) fn got_service(cluster: &Cluster, object: &str) -> String {
    text(assign(cluster).services.get(&name(object)))
}

fn text(allocation: Option<&Allocation>) -> String {
    let Some(allocation) = allocation else { return "nothing".to_owned() };
    assert!(allocation.problem.is_some() || allocation.reason.is_none());
    let addresses = allocation.addresses.iter().map(ToString::to_string);
    addresses.chain(allocation.reason.map(str::to_owned)).collect::<Vec<_>>().join(" ")
}

pub(super) const DUAL: [&str; 2] = ["2001:db8::10-2001:db8::1f", "192.0.2.1-192.0.2.3"];

#[test]
fn one_of_each_family_ipv4_first_the_oldest_first() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/young", 2, &[], &[]);
    gateway(&mut cluster, "z/old", 1, &[], &[]);
    gateway(&mut cluster, "a/young-too", 2, &[], &[]);
    assert_eq!(got(&cluster, "z/old"), "192.0.2.1 2001:db8::10");
    assert_eq!(got(&cluster, "a/young"), "192.0.2.2 2001:db8::11");
    assert_eq!(got(&cluster, "a/young-too"), "192.0.2.3 2001:db8::12");
    // IPv4 has run out.
    gateway(&mut cluster, "b/late", 3, &[], &[]);
    assert_eq!(got(&cluster, "b/late"), "2001:db8::13 AddressNotAssigned");
    assert_eq!(allocate(&cluster), assign(&cluster).gateways);
}

#[test]
fn without_ranges_there_is_no_address_and_a_problem_says_so() {
    let mut cluster = cluster(&[]);
    gateway(&mut cluster, "a/x", 1, &[], &[]);
    gateway(&mut cluster, "a/y", 1, &["-"], &["192.0.2.1"]);
    assert_eq!(got(&cluster, "a/x"), "AddressNotAssigned");
    assert_eq!(got(&cluster, "a/y"), "AddressNotAssigned");
    let problem = assign(&cluster).gateways[&name("a/x")].problem.clone().unwrap();
    expect_test::expect![[
        "warning: Gateway a/x: spec.addresses: the installation has no address ranges; add a range to the chart's values"
    ]]
    .assert_eq(&problem.to_string());
}

#[test]
fn what_status_has_is_kept_while_it_is_valid() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/old", 1, &[], &[]);
    gateway(&mut cluster, "a/young", 2, &[], &["192.0.2.1", "2001:db8::10"]);
    assert_eq!(got(&cluster, "a/old"), "192.0.2.2 2001:db8::11");
    assert_eq!(got(&cluster, "a/young"), "192.0.2.1 2001:db8::10");
    // In the status of two objects: the older one keeps it.
    gateway(&mut cluster, "a/old", 1, &[], &["192.0.2.1"]);
    assert_eq!(got(&cluster, "a/old"), "192.0.2.1 2001:db8::11");
    assert_eq!(got(&cluster, "a/young"), "192.0.2.2 2001:db8::10");
    // Outside the ranges, or excluded since.
    gateway(&mut cluster, "a/young", 2, &[], &["198.51.100.1", "2001:db8::10"]);
    assert_eq!(got(&cluster, "a/young"), "192.0.2.2 2001:db8::10");
    cluster.policy.excluded = vec!["2001:db8::10/126".parse().unwrap(), "192.0.2.2/32".parse().unwrap()];
    assert_eq!(got(&cluster, "a/young"), "192.0.2.3 2001:db8::15");
}

#[test]
fn only_addresses_of_the_ranges_can_be_asked_for() {
    let mut cluster = cluster(&DUAL);
    cluster.policy.excluded = vec!["192.0.2.2/32".parse().unwrap()];
    gateway(
        &mut cluster,
        "a/x",
        1,
        &["198.51.100.1", "192.0.2.3", "192.0.2.2", "10.0.0.x", "192.0.2.3"],
        &[],
    );
    assert_eq!(got(&cluster, "a/x"), "192.0.2.3 AddressNotUsable");
    let problem = assign(&cluster).gateways[&name("a/x")].problem.clone().unwrap();
    expect_test::expect![[
        r#"warning: Gateway a/x: spec.addresses: "10.0.0.x" is no IP address; 198.51.100.1 is in none of the address ranges of the installation; 192.0.2.2 is in 192.0.2.2/32, a range of nodes, pods or Services (value "10.0.0.x"); ask for addresses of your own in the ranges"#
    ]]
    .assert_eq(&problem.to_string());
}

#[test]
fn an_address_without_value_is_one_of_any_family() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/x", 1, &["-"], &[]);
    gateway(&mut cluster, "a/y", 2, &["2001:db8::1f", "-", "-"], &["192.0.2.3"]);
    assert_eq!(got(&cluster, "a/x"), "192.0.2.1");
    assert_eq!(got(&cluster, "a/y"), "2001:db8::1f 192.0.2.3 2001:db8::10");
}

#[test]
fn an_address_belongs_to_one_namespace_unless_it_is_shared() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "b/old", 1, &["192.0.2.2"], &[]);
    gateway(&mut cluster, "a/young", 2, &["192.0.2.2"], &[]);
    gateway(&mut cluster, "b/same", 3, &["192.0.2.2"], &[]);
    service(&mut cluster, "a/service", 4, &["192.0.2.2", "192.0.2.3"]);
    service(&mut cluster, "b/service", 4, &["192.0.2.2"]);
    assert_eq!(got(&cluster, "b/old"), "192.0.2.2");
    assert_eq!(got(&cluster, "a/young"), "AddressNotUsable");
    assert_eq!(got(&cluster, "b/same"), "192.0.2.2");
    // As MetalLB does: all that it asks for or nothing.
    assert_eq!(got_service(&cluster, "a/service"), "AddressNotUsable");
    assert_eq!(got_service(&cluster, "b/service"), "192.0.2.2");
    let problem = assign(&cluster).gateways[&name("a/young")].problem.clone().unwrap();
    assert!(problem.what.contains("belongs to Gateway b/old, which is older"), "{problem}");
    cluster.policy.shared = [ip("192.0.2.2")].into();
    assert_eq!(got(&cluster, "a/young"), "192.0.2.2");
    assert_eq!(got_service(&cluster, "a/service"), "192.0.2.2 192.0.2.3");
    // A shared address is assigned only to objects that request it.
    gateway(&mut cluster, "c/any", 5, &[], &["192.0.2.2"]);
    assert_eq!(got(&cluster, "c/any"), "192.0.2.1 2001:db8::10");
}

#[test]
fn an_older_object_takes_what_it_asks_for_and_the_younger_gets_another() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/young", 2, &[], &[]);
    assert_eq!(got(&cluster, "a/young"), "192.0.2.1 2001:db8::10");
    service(&mut cluster, "b/old", 1, &["192.0.2.1"]);
    assert_eq!(got_service(&cluster, "b/old"), "192.0.2.1");
    assert_eq!(got(&cluster, "a/young"), "192.0.2.2 2001:db8::10");
}

/// It has no Claim, and clients may already know its address.
#[test]
fn a_gateway_without_listeners_keeps_its_address_from_older_objects_of_other_namespaces() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/young", 9, &[], &["192.0.2.2"]);
    gateway(&mut cluster, "b/old", 1, &["192.0.2.2"], &[]);
    service(&mut cluster, "c/old", 1, &["192.0.2.2"]);
    assert_eq!(got(&cluster, "a/young"), "192.0.2.2 2001:db8::10");
    assert_eq!(got(&cluster, "b/old"), "AddressNotUsable");
    assert_eq!(got_service(&cluster, "c/old"), "AddressNotUsable");
    // What a Claim has is not taken by what a status says.
    cluster.possession.add_address(&object(Kind::Service, "c/old"), ip("192.0.2.2"));
    assert_eq!(got_service(&cluster, "c/old"), "192.0.2.2");
    assert_eq!(got(&cluster, "a/young"), "192.0.2.1 2001:db8::10");
}

#[test]
fn only_gateways_that_can_be_accepted_get_addresses() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/x", 1, &[], &["192.0.2.1"]);
    let change = |cluster: &mut Cluster, change: &dyn Fn(&mut GatewaySpec)| {
        let mut spec = (*cluster.gateways[&name("a/x")]).clone();
        change(&mut spec);
        cluster.gateways.insert(name("a/x"), Arc::new(spec));
    };
    let original = cluster.clone();
    change(&mut cluster, &|spec| spec.class = "other".into());
    assert_eq!(got(&cluster, "a/x"), "nothing");
    cluster = original.clone();
    change(&mut cluster, &|spec| spec.has_parameters = true);
    assert_eq!(got(&cluster, "a/x"), "nothing");
    cluster = original.clone();
    change(&mut cluster, &|spec| {
        spec.addresses = vec![AddressRequest { kind: "Hostname".into(), value: Some("x".into()) }];
    });
    assert_eq!(got(&cluster, "a/x"), "nothing");
    cluster = original;
    cluster
        .classes
        .insert("vestibule".into(), Arc::new(ClassSpec { has_parameters: true, ..ClassSpec::default() }));
    assert_eq!(got(&cluster, "a/x"), "nothing");
}

#[test]
fn a_gateway_of_other_protocols_alone_gets_no_new_address() {
    let mut cluster = cluster(&DUAL);
    gateway(&mut cluster, "a/x", 1, &[], &[]);
    let listener = |protocol: &str| GatewayListener {
        name: "x".into(),
        hostname: None,
        port: 80,
        protocol: protocol.into(),
        tls_mode: None,
        namespaces: NamespaceScope::Same,
        kinds: Vec::new(),
    };
    let mut spec = (*cluster.gateways[&name("a/x")]).clone();
    spec.listeners = vec![listener("HTTP")];
    cluster.gateways.insert(name("a/x"), Arc::new(spec.clone()));
    assert_eq!(got(&cluster, "a/x"), "AddressNotAssigned");
    spec.listeners.push(listener("TCP"));
    cluster.gateways.insert(name("a/x"), Arc::new(spec));
    assert_eq!(got(&cluster, "a/x"), "192.0.2.1 2001:db8::10");
}

#[test]
fn large_ranges_and_excluded_networks_cost_nothing() {
    let mut cluster = cluster(&["::1-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", "0.0.0.0-255.255.255.255"]);
    cluster.policy.excluded =
        vec!["::/1".parse().unwrap(), "0.0.0.0/1".parse().unwrap(), "128.0.0.0/1".parse().unwrap()];
    for n in 0..3000 {
        gateway(&mut cluster, &format!("a/{n:04}"), n, &["-", "-"], &[]);
    }
    assert_eq!(got(&cluster, "a/0000"), "8000::1 AddressNotAssigned");
    assert_eq!(got(&cluster, "a/2999"), "8000::bb8 AddressNotAssigned");
}

#[test]
fn an_address_whose_range_is_taken_away_stays_with_who_has_it_and_nobody_else_gets_it() {
    let mut cluster = cluster(&["2001:db8::10-2001:db8::1f"]);
    let grant = |cluster: &mut Cluster, kind, name, address| {
        cluster.possession.add_address(&object(kind, name), ip(address));
    };
    // Both families, and that of IPv4 has no range any more.
    gateway(&mut cluster, "a/any", 1, &[], &["192.0.2.1", "2001:db8::10"]);
    gateway(&mut cluster, "b/asks", 2, &["192.0.2.2"], &["192.0.2.2"]);
    service(&mut cluster, "c/service", 3, &["192.0.2.3"]);
    // What status says is a copy: without a grant it is worth nothing.
    assert_eq!(got(&cluster, "a/any"), "2001:db8::10");
    assert_eq!(got(&cluster, "b/asks"), "AddressNotUsable");
    assert_eq!(got_service(&cluster, "c/service"), "AddressNotUsable");
    grant(&mut cluster, Kind::Gateway, "a/any", "192.0.2.1");
    grant(&mut cluster, Kind::Gateway, "b/asks", "192.0.2.2");
    grant(&mut cluster, Kind::Service, "c/service", "192.0.2.3");
    assert_eq!(got(&cluster, "a/any"), "192.0.2.1 2001:db8::10");
    assert_eq!(got(&cluster, "b/asks"), "192.0.2.2");
    assert_eq!(got_service(&cluster, "c/service"), "192.0.2.3");
    let problem = |cluster: &Cluster| assign(cluster).gateways[&name("a/any")].problem.clone();
    expect_test::expect![[
        r#"warning: Gateway a/any: spec.addresses: the range of 192.0.2.1 was taken out of the installation: it keeps what it has, and would not get it again (value "192.0.2.1"); move clients to an address of the ranges, or add the range to the chart's values again"#
    ]]
    .assert_eq(&problem(&cluster).unwrap().to_string());
    assert!(assign(&cluster).services[&name("c/service")].problem.is_some());
    // Neither another Gateway of the namespace nor another namespace gets it, however old.
    gateway(&mut cluster, "a/new", 0, &["192.0.2.1"], &[]);
    gateway(&mut cluster, "d/new", 0, &["192.0.2.2", "2001:db8::11"], &["192.0.2.2"]);
    assert_eq!(got(&cluster, "a/new"), "AddressNotUsable");
    assert_eq!(got(&cluster, "d/new"), "2001:db8::11 AddressNotUsable");
    assert_eq!(got(&cluster, "a/any"), "192.0.2.1 2001:db8::10");
    // What is excluded is a pod's or a node's by now.
    cluster.policy.excluded = vec!["192.0.2.1/32".parse().unwrap()];
    assert_eq!(got(&cluster, "a/any"), "2001:db8::10");
    // The range is back.
    cluster.policy.excluded.clear();
    cluster.policy.ranges.push(range("192.0.2.0-192.0.2.9"));
    assert_eq!(problem(&cluster), None);
}

/// Where `vestibule withdraw`, or anything else, has emptied the status, tenants would come back at addresses of each other.
#[test]
fn what_claims_say_that_a_gateway_has_comes_before_its_status() {
    let mut cluster = cluster(&["192.0.2.0-192.0.2.9", "2001:db8::0-2001:db8::9"]);
    let grant = |cluster: &mut Cluster, gateway: &str, address| {
        cluster.possession.add_address(&object(Kind::Gateway, gateway), ip(address));
    };
    for address in ["192.0.2.7", "2001:db8::7"] {
        grant(&mut cluster, "b/emptied", address);
    }
    grant(&mut cluster, "c/edited", "192.0.2.5");
    gateway(&mut cluster, "a/new", 0, &[], &[]);
    gateway(&mut cluster, "b/emptied", 1, &[], &[]);
    gateway(&mut cluster, "c/edited", 2, &[], &["192.0.2.2"]);
    gateway(&mut cluster, "d/copies", 3, &[], &["192.0.2.7"]);
    assert_eq!(got(&cluster, "b/emptied"), "192.0.2.7 2001:db8::7");
    assert!(got(&cluster, "c/edited").starts_with("192.0.2.5 "), "{}", got(&cluster, "c/edited"));
    assert!(got(&cluster, "a/new").starts_with("192.0.2.1 "), "{}", got(&cluster, "a/new"));
    assert!(got(&cluster, "d/copies").starts_with("192.0.2.3 "), "{}", got(&cluster, "d/copies"));
    // What it asks for by value comes before what it has.
    grant(&mut cluster, "e/moves", "192.0.2.8");
    gateway(&mut cluster, "e/moves", 4, &["192.0.2.9"], &[]);
    assert_eq!(got(&cluster, "e/moves"), "192.0.2.9");
}
