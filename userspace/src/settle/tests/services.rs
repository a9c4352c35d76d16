//! Services of our class.

use super::*;
use crate::model::claim::possession;
use crate::model::cluster::{AddressRange, PoolPolicy, PoolSpec, PoolsClosed};
use crate::sources::kubernetes::api::claim::{ClaimOrigin, ClaimSpec};
use expect_test::expect;

/// Adds a Service of our class that requests these addresses and has these ports (`UDP:53`, `TCP:443`).
fn balancer(scene: &mut Scene, object: &str, age: i64, addresses: &[&str], ports: &[&str]) {
    let spec = LoadBalancerSpec {
        addresses: addresses.iter().map(|text| ip(text)).collect(),
        field: if addresses.is_empty() { "" } else { "metadata.annotations[vestibule.dev/addresses]" }.into(),
        ..LoadBalancerSpec::default()
    };
    let service = scene.service(object, &["10.0.0.1", "10.0.0.2 notready"]);
    service.meta.created_secs = age;
    service.load_balancer = Some(Arc::new(spec));
    service.ports = ports
        .iter()
        .map(|text| {
            let (protocol, port) = text.split_once(':').unwrap();
            ServicePort {
                name: format!("p{port}").into(),
                port: port.parse().unwrap(),
                is_tcp: protocol == "TCP",
                protocol: protocol.into(),
            }
        })
        .collect();
}

/// `addresses ports programmable`.
fn verdict(scene: &Scene, object: &str) -> String {
    let verdict = &scene.compiled().verdicts.services[&name(object)];
    let addresses: Vec<_> = verdict.addresses.iter().map(ToString::to_string).collect();
    format!("[{}] {:?} {}", addresses.join(" "), verdict.ports, programmed(&verdict.programmable))
}

#[test]
fn every_tcp_port_is_a_door_and_others_are_told() {
    let mut scene = Scene::new();
    balancer(&mut scene, "a/lb", 1, &["192.0.2.1", "2001:db8::1"], &["TCP:443", "UDP:53", "TCP:8132"]);
    expect![[r#"
        192.0.2.1:443 Tcp -> service/a/lb:443
        192.0.2.1:8132 Tcp -> service/a/lb:8132
        [2001:db8::1]:443 Tcp -> service/a/lb:443
        [2001:db8::1]:8132 Tcp -> service/a/lb:8132"#]]
    .assert_eq(&scene.bindings());
    assert_eq!(scene.backends("service/a/lb:443"), "10.0.0.1:6443 1, 10.0.0.2:6443 0");
    // This port has none of the endpoints of the other port.
    assert_eq!(scene.backends("service/a/lb:8132"), "");
    assert_eq!(verdict(&scene, "a/lb"), "[192.0.2.1 2001:db8::1] [443, 8132] programmable");
    expect!["warning: Service a/lb: spec.ports[1].protocol: port 53 is UDP: only TCP is served (value \"UDP\"); remove the port, or serve it by other means"]
        .assert_eq(&scene.problems());
}

#[test]
fn what_cannot_be_served_gets_no_ingress() {
    let mut scene = Scene::new();
    balancer(&mut scene, "a/outside", 1, &["198.51.100.1"], &["TCP:443"]);
    balancer(&mut scene, "a/udp", 1, &["192.0.2.3"], &["UDP:443"]);
    for object in ["a/outside", "a/udp"] {
        assert_eq!(verdict(&scene, object), "[] [] Programmed=False/Invalid", "{object}");
    }
    assert_eq!(scene.bindings(), "");
    expect![[r#"
        warning: Service a/outside: metadata.annotations[vestibule.dev/addresses]: 198.51.100.1 is in none of the address ranges of the installation (value "198.51.100.1"); ask for addresses of your own in the ranges
        warning: Service a/udp: spec.ports[0].protocol: port 443 is UDP: only TCP is served (value "UDP"); remove the port, or serve it by other means"#]]
    .assert_eq(&scene.problems());
}

#[test]
fn source_ranges_go_into_the_claims_and_a_family_without_one_is_named() {
    let mut scene = Scene::new();
    balancer(&mut scene, "a/lb", 1, &["192.0.2.1", "2001:db8::1"], &["TCP:443", "TCP:8132"]);
    let mut limit = |ranges: &[&str]| {
        let ranges: Vec<_> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        let service = Arc::make_mut(scene.cluster().services.get_mut(&name("a/lb")).unwrap());
        let own = Arc::make_mut(service.load_balancer.as_mut().unwrap());
        own.source_ranges = Some(SourceRanges::new(&ranges));
        let claims = scene.compiled().claims;
        assert_eq!(claims.len(), 2);
        assert!(claims.iter().all(|claim| claim.source_ranges == own_of(&scene)));
        assert_eq!(verdict(&scene, "a/lb"), "[192.0.2.1 2001:db8::1] [443, 8132] programmable");
        scene.problems()
    };
    expect!["warning: Service a/lb: spec.loadBalancerSourceRanges: has no IPv6 range: nobody may connect to its IPv6 address; add ranges of both families, such as 0.0.0.0/0 and ::/0"]
        .assert_eq(&limit(&["10.0.0.0/8"]));
    assert_eq!(limit(&["10.0.0.0/8", "2001:db8::/32"]), "");
    assert_eq!(limit(&[]), "", "each of them is named where it is read");
}

fn own_of(scene: &Scene) -> Option<SourceRanges> {
    let service = scene.facts.cluster.as_ref()?.services.get(&name("a/lb"))?;
    service.load_balancer.as_ref()?.source_ranges.clone()
}

#[test]
fn the_older_object_has_an_address_and_port() {
    let mut scene = Scene::new();
    balancer(&mut scene, "a/lb", 5, &["192.0.2.1", "192.0.2.2"], &["TCP:443", "TCP:444"]);
    scene.gateway("a/g", 4, "192.0.2.1", &["l TLS:443"]);
    scene.gateway("a/young", 6, "192.0.2.2", &["l TCP:444"]);
    scene.file_listener("file", Protocol::Tls, &["192.0.2.2"], 443, None);
    expect![[r#"
        192.0.2.1:443 Tls
        192.0.2.1:444 Tcp -> service/a/lb:444
        192.0.2.2:443 Tls
        192.0.2.2:444 Tcp -> service/a/lb:444"#]]
    .assert_eq(&scene.bindings());
    assert_eq!(verdict(&scene, "a/lb"), "[192.0.2.1 192.0.2.2] [444] programmable");
    expect![[r#"
        warning: Gateway a/young: spec.listeners[0].port: 192.0.2.2:444 belongs to Service a/lb (value "444"); choose another port or address
        warning: Service a/lb: spec.ports: 192.0.2.1:443 belongs to Gateway a/g; 192.0.2.2:443 belongs to listener file of the static file (value "443"); choose another port or address"#]]
    .assert_eq(&scene.problems());
    // No binding is left for the Service.
    balancer(&mut scene, "a/lb", 5, &["192.0.2.2"], &["TCP:443"]);
    assert_eq!(verdict(&scene, "a/lb"), "[] [] Programmed=False/OwnedByOther");
}

#[test]
fn claims_are_of_doors_and_not_of_endpoints() {
    let mut scene = Scene::new();
    balancer(&mut scene, "a/lb", 1, &["192.0.2.1"], &["TCP:443"]);
    let before = scene.compiled().claims;
    scene.cluster().endpoints.clear();
    assert_eq!(scene.compiled().claims, before);
    balancer(&mut scene, "a/lb", 1, &["192.0.2.1", "192.0.2.2"], &["TCP:443"]);
    assert_ne!(scene.compiled().claims, before);
}

/// What was asked is in the Claim beside what was granted.
#[test]
fn claims_say_which_addresses_they_ask_for() {
    let mut scene = Scene::new();
    scene.gateway("a/asks", 1, "192.0.2.1 2001:db8::1", &["l TLS:443 from=All"]).allowed_listeners =
        NamespaceScope::All;
    scene.gateway("a/any", 2, "", &["l TLS:443"]).given = vec![ip("192.0.2.2")];
    scene.listener_set("b/set", 3, "a/asks", &["s TLS:444 from=All"]);
    scene.service("a/s", &["10.0.0.1"]);
    scene.tls("b/route", 4, &["ListenerSet set"], &["x.example.com"], &["a/s:443"]);
    balancer(&mut scene, "a/values", 5, &["192.0.2.5"], &["TCP:443"]);
    balancer(&mut scene, "a/free", 6, &[], &["TCP:443"]);
    balancer(&mut scene, "a/wrong", 7, &[], &["TCP:443"]);
    let mut edit = |object: &str, change: &dyn Fn(&mut LoadBalancerSpec)| {
        let service = Arc::make_mut(scene.cluster().services.get_mut(&name(object)).unwrap());
        change(Arc::make_mut(service.load_balancer.as_mut().unwrap()));
    };
    let wish = |is_v4, is_required| FamilyWish { is_v4, is_required };
    let families = vec![wish(false, true), wish(true, false)];
    edit("a/free", &|own| own.families.clone_from(&families));
    // Who names addresses asks for no others.
    edit("a/values", &|own| {
        own.families.clone_from(&families);
        own.from.pool = Some("p".into());
        own.sharing_key = Some("k".into());
    });
    edit("a/wrong", &|own| {
        own.families.clone_from(&families);
        own.unreadable = vec!["192.0.2".into()];
    });
    let spec = |claim: &Claim| {
        let origin = ClaimOrigin::of(claim)?;
        let address = serde_json::to_value(ClaimSpec::of(origin, claim, "").address).unwrap();
        Some(format!("{} {address}", claim.origin.object()?))
    };
    let said: Vec<String> = scene.compiled().claims.iter().filter_map(spec).collect();
    expect![[r#"
        Gateway a/any {}
        Gateway a/asks {"values":["192.0.2.1","2001:db8::1"]}
        ListenerSet b/set {"gateway":"a/asks"}
        TLSRoute b/route {"gateway":"a/asks"}
        Service a/free {"families":["IPv6","IPv4"],"spareFamilies":["IPv4"]}
        Service a/values {"pool":"p","sharingKey":"k","values":["192.0.2.5"]}
        Service a/wrong {"unreadable":["192.0.2"]}"#]]
    .assert_eq(&said.join("\n"));
}

#[test]
fn a_service_gets_no_port_of_a_shared_address_that_takes_tls_only() {
    let mut scene = Scene::new();
    scene.cluster().policy.shared = [ip("192.0.2.1")].into();
    scene.cluster().policy.tls_ports = [443].into();
    balancer(&mut scene, "a/lb", 1, &["192.0.2.1"], &["TCP:443", "TCP:8132"]);
    balancer(&mut scene, "a/none", 1, &["192.0.2.1"], &["TCP:443"]);
    assert_eq!(verdict(&scene, "a/lb"), "[192.0.2.1] [8132] programmable");
    assert_eq!(verdict(&scene, "a/none"), "[] [] Programmed=False/Reserved");
    expect![[r#"
        warning: Service a/lb: spec.ports: 192.0.2.1:443 takes TLS only: the address is shared, and addresses.tlsPorts of the chart's values names the port; use TLS, another port, or an address of its own (value "443"); choose another port or address, or take the port out of addresses.tlsPorts
        warning: Service a/none: spec.ports: 192.0.2.1:443 takes TLS only: the address is shared, and addresses.tlsPorts of the chart's values names the port; use TLS, another port, or an address of its own (value "443"); choose another port or address, or take the port out of addresses.tlsPorts"#]].assert_eq(&scene.problems());
}

/// `kind name part protocol grants refusals`.
fn said(claims: &[Claim]) -> String {
    let line = |claim: &Claim| {
        let spec = ClaimSpec::of(ClaimOrigin::of(claim)?, claim, "");
        let refusals = serde_json::to_value(&spec.refusals).unwrap();
        let origin = format!("{} {}/{}", spec.origin.kind, spec.origin.namespace, spec.origin.name);
        Some(format!("{origin} {} {} {} {refusals}", spec.origin.part, spec.protocol, spec.granted))
    };
    claims.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

/// The Claim says why it is not served, and that its origin has the address: the status of a Service does not show it.
#[test]
fn what_asks_for_a_protocol_that_is_not_served_has_claims_and_keeps_its_address() {
    let mut scene = Scene::new();
    scene.gateway("a/g", 4, "192.0.2.6", &["tls TLS:443", "dns UDP:53", "web HTTP:80"]);
    balancer(&mut scene, "a/udp", 9, &["192.0.2.3"], &["UDP:443", "SCTP:443", "X:443"]);
    balancer(&mut scene, "a/both", 2, &["192.0.2.4"], &["UDP:443", "TCP:443"]);
    let before = scene.compiled();
    expect![[r#"
        Gateway a/g tls TLS 1 []
        Gateway a/g dns UDP 0 [{"address":"192.0.2.6","message":"protocol UDP is not served: use TLS with mode Passthrough, or TCP","port":53,"reason":"Refused"}]
        Service a/both 443 TCP 2 []
        Service a/both 443/UDP UDP 0 [{"address":"192.0.2.4","message":"port 443 is UDP: only TCP is served","port":443,"reason":"Refused"}]
        Service a/udp 443/UDP UDP 0 [{"address":"192.0.2.3","message":"port 443 is UDP: only TCP is served","port":443,"reason":"Refused"}]
        Service a/udp 443/SCTP SCTP 0 [{"address":"192.0.2.3","message":"port 443 is SCTP: only TCP is served","port":443,"reason":"Refused"}]"#]].assert_eq(&said(&before.claims));
    assert!(before.desired.routes.iter().all(|route| &*route.name == "service/a/both:443"));

    // The controller restarts, and an older object of another namespace asks for it.
    balancer(&mut scene, "b/old", 1, &["192.0.2.3"], &["TCP:443"]);
    assert_eq!(verdict(&scene, "b/old"), "[192.0.2.3] [443] programmable", "nobody is known to have it");
    scene.cluster().possession = possession(&before.claims);
    assert_eq!(verdict(&scene, "b/old"), "[] [] Programmed=False/Invalid");
    assert!(
        scene.problems().contains("192.0.2.3 belongs to Service a/udp, which has it"),
        "{}",
        scene.problems()
    );
    // A Gateway keeps its address by such a listener alone, too.
    let dns: Vec<Claim> = before.claims.iter().filter(|claim| &*claim.part == "dns").cloned().collect();
    balancer(&mut scene, "b/old", 1, &["192.0.2.6"], &["TCP:443"]);
    scene.cluster().possession = possession(&dns);
    assert_eq!(verdict(&scene, "b/old"), "[] [] Programmed=False/Invalid");
}

#[test]
fn what_a_service_is_refused_of_addresses_is_in_its_claims() {
    let mut scene = Scene::new();
    balancer(&mut scene, "a/none", 1, &["198.51.100.1"], &["TCP:443", "UDP:53"]);
    balancer(&mut scene, "a/some", 2, &["192.0.2.4", "198.51.100.2"], &["TCP:443"]);
    balancer(&mut scene, "a/all", 3, &["192.0.2.5"], &["TCP:443"]);
    expect![[r#"
        Service a/all 443 TCP 2 []
        Service a/none 443 TCP 0 [{"address":"","message":"198.51.100.1 is in none of the address ranges of the installation","port":443,"reason":"Refused"}]
        Service a/none 53/UDP UDP 0 [{"address":"","message":"port 53 is UDP: only TCP is served","port":53,"reason":"Refused"},{"address":"","message":"198.51.100.1 is in none of the address ranges of the installation","port":53,"reason":"Refused"}]
        Service a/some 443 TCP 0 [{"address":"","message":"198.51.100.2 is in none of the address ranges of the installation","port":443,"reason":"Refused"}]"#]].assert_eq(&said(&scene.compiled().claims));
}

/// Each look for MetalLB finds other Pods, and each write of a Claim reaches every agent.
#[test]
fn what_is_found_of_metallb_changes_no_claim() {
    let mut scene = Scene::new();
    let (first, last) = (ip("198.51.100.1"), ip("198.51.100.9"));
    let meta = Meta { name: name("metallb-system/p"), ..Meta::default() };
    let ranges = vec![AddressRange { first, last }];
    let pool = PoolSpec { meta, ranges, is_automatic: true, ..PoolSpec::default() };
    let namespaces = vec!["metallb-system".into()];
    scene.cluster().policy.pools = PoolPolicy { namespaces };
    scene.cluster().pools.insert(name("metallb-system/p"), pool.into());
    balancer(&mut scene, "a/asks", 1, &["198.51.100.1"], &["TCP:443"]);
    let mut claims = |why: &str| {
        scene.cluster().pools_closed =
            Some(PoolsClosed { why: why.into(), brief: why.into(), may_run: true, was_seen: true });
        (said(&scene.compiled().claims), scene.problems())
    };
    let (one, other) =
        (claims("MetalLB runs (Pod metallb-system/x)"), claims("less than a minute ago: MetalLB ran"));
    assert!(one.0.contains("MetalLB may run: nobody gets an address of its pools meanwhile"), "{}", one.0);
    assert_eq!(one.0, other.0);
    assert_ne!(one.1, other.1);
}
