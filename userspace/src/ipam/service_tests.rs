//! Addresses of Services that ask for none.

use super::tests::{DUAL, cluster, families, got_service, ip, name, object, range, service};
use super::*;
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
    cluster.possession.add_address(&object(Kind::Service, "a/old"), ip("192.0.2.1"));
    assert_eq!(
        (got_service(&cluster, "a/old"), got_service(&cluster, "b/young")),
        ("192.0.2.1".into(), "192.0.2.3".into())
    );
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
    cluster.possession.add_address(&object(Kind::Service, "d/prefer"), ip("192.0.2.1"));
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
