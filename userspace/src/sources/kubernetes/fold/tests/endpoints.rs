use super::super::{endpoint_slice, service};
use super::{Reading, defaults, interner, lines, raw};
use crate::model::cluster::{ClassPolicy, EndpointState, ProbeKind};
use crate::model::{EventReason, SourceRanges};
use std::net::IpAddr;
use std::sync::Arc;

const SLICE: &str = r#"
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: api-x7k2p
  namespace: tenant-a
  labels: {kubernetes.io/service-name: api, endpointslice.kubernetes.io/managed-by: endpointslice-controller.k8s.io}
addressType: IPv4
ports:
- {name: https, port: 6443, protocol: TCP}
- {name: metrics, port: 9100}
- {name: dns, port: 53, protocol: UDP}
- {name: any, port: null}
endpoints:
- {addresses: [10.244.0.3, 10.244.9.9], conditions: {ready: true, serving: true, terminating: false}, hints: {forZones: [{name: zone-a}]}}
- {addresses: [10.244.0.1], conditions: {ready: false, serving: true, terminating: true}}
- {addresses: [10.244.0.2], conditions: {ready: false, serving: false, terminating: false}}
- {addresses: [10.244.0.4], conditions: null, hints: null}
"#;

#[test]
fn a_slice_gives_each_endpoint_at_each_tcp_port() {
    let (slice, problems) = endpoint_slice(raw(SLICE), &interner());
    assert_eq!(lines(&problems), Vec::<String>::new());
    assert_eq!(&*slice.service, "api");
    let told: Vec<String> = slice
        .endpoints
        .iter()
        .map(|e| format!("{} {}:{} {:?} {:?}", e.port_name, e.address, e.port, e.state, e.zones))
        .collect();
    assert_eq!(
        told,
        [
            "https 10.244.0.1:6443 Draining []",
            "https 10.244.0.2:6443 NotReady []",
            "https 10.244.0.3:6443 Ready [\"zone-a\"]",
            "https 10.244.0.4:6443 Ready []",
            "metrics 10.244.0.1:9100 Draining []",
            "metrics 10.244.0.2:9100 NotReady []",
            "metrics 10.244.0.3:9100 Ready [\"zone-a\"]",
            "metrics 10.244.0.4:9100 Ready []",
        ]
    );
}

#[test]
fn conditions_have_the_defaults_of_the_api() {
    for (conditions, state) in [
        ("{}", EndpointState::Ready),
        ("{ready: false}", EndpointState::NotReady),
        ("{ready: false, terminating: true}", EndpointState::NotReady),
        ("{ready: false, serving: true}", EndpointState::NotReady),
        ("{ready: false, serving: true, terminating: true}", EndpointState::Draining),
        ("{ready: true, serving: true, terminating: true}", EndpointState::Ready),
        ("{serving: false}", EndpointState::Ready),
    ] {
        let text = format!(
            "metadata: {{name: s, namespace: ns}}\naddressType: IPv6\nports: [{{port: 1}}]\n\
             endpoints: [{{addresses: ['fd00::1'], conditions: {conditions}}}]\n"
        );
        assert_eq!(endpoint_slice(raw(&text), &interner()).0.endpoints[0].state, state, "{conditions}");
    }
}

#[test]
fn unusable_addresses_are_left_out_and_told_of_the_service() {
    let text = r#"
metadata: {name: s, namespace: ns, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
ports: [{name: a, port: 80}, {name: b, port: 70000}]
endpoints:
- {addresses: [127.0.0.1]}
- {addresses: [224.0.0.1]}
- {addresses: [0.0.0.0]}
- {addresses: [255.255.255.255]}
- {addresses: ['fd00::1']}
- {addresses: [nonsense]}
- {addresses: []}
- {addresses: [10.0.0.1]}
"#;
    let (slice, problems) = endpoint_slice(raw(text), &interner());
    assert_eq!(slice.endpoints.len(), 1);
    let told = lines(&problems).join("\n");
    for part in [
        "Service ns/api: EndpointSlice s: ports[1].port: is not a TCP port (value \"70000\")",
        "endpoints[0].addresses[0]: is a loopback address (value \"127.0.0.1\")",
        "endpoints[1].addresses[0]: is a multicast",
        "endpoints[2].addresses[0]: is the unspecified",
        "endpoints[3].addresses[0]: is the broadcast",
        "endpoints[4].addresses[0]: is not of the slice's addressType",
        "endpoints[5].addresses[0]: is not an IP address",
    ] {
        assert!(told.contains(part), "{part} is not in\n{told}");
    }
    assert_eq!(problems.len(), 7);
}

#[test]
fn a_slice_of_names_has_no_endpoints() {
    let text = "metadata: {name: s, namespace: ns, labels: {kubernetes.io/service-name: api}}\naddressType: FQDN\n\
                endpoints: [{addresses: [example.com]}]\nports: [{port: 1}]\n";
    let (slice, problems) = endpoint_slice(raw(text), &interner());
    assert!(slice.endpoints.is_empty());
    assert!(lines(&problems)[0].contains("addressType: is not a family of addresses (value \"FQDN\")"));
}

/// A Service of our class.
pub(super) fn load_balancer(spec: &str, annotations: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: api, namespace: ns, uid: u, annotations: {{{annotations}}}}}\n\
         spec: {{type: LoadBalancer, loadBalancerClass: vestibule.dev/lb, ports: [{{port: 443}}], {spec}}}\n"
    )
}

fn addresses(text: &str) -> (Vec<IpAddr>, String, Vec<String>) {
    let (service, problems) = service(raw(text), &defaults(), &interner());
    let ours = service.load_balancer.unwrap();
    assert_eq!(!ours.unreadable.is_empty(), !problems.is_empty());
    (ours.addresses.clone(), ours.field.to_string(), lines(&problems))
}

#[test]
fn only_our_class_makes_a_service_ours() {
    for (spec, is_ours) in [
        ("type: LoadBalancer, loadBalancerClass: vestibule.dev/lb", true),
        ("type: LoadBalancer, loadBalancerClass: vestibule.dev/other", false),
        ("type: LoadBalancer, loadBalancerClass: ''", false),
        ("type: LoadBalancer", false),
        ("type: ClusterIP, loadBalancerClass: vestibule.dev/lb", false),
        ("loadBalancerClass: vestibule.dev/lb", false),
    ] {
        let text = format!("metadata: {{name: a, namespace: ns}}\nspec: {{{spec}, ports: [{{port: 1}}]}}\n");
        let (service, _) = service(raw(&text), &defaults(), &interner());
        assert_eq!(service.load_balancer.is_some(), is_ours, "{spec}");
    }
}

#[test]
fn services_of_listed_classes_and_without_one_are_adopted() {
    let reading = |others: &[&str], is_default| {
        let others = others.iter().map(|name| Arc::from(*name)).collect();
        Reading { classes: ClassPolicy { others, is_default }, ..Reading::default() }
    };
    // Whether it is ours, and adopted.
    let read = |class: &str, reading: &Reading| {
        let own = "{ip: 192.0.2.2, ipMode: Proxy, ports: [{port: 443, protocol: TCP}]}";
        let ingress =
            format!("{{loadBalancer: {{ingress: [{{ip: 192.0.2.1}}, {own}, {{hostname: lb.example}}]}}}}");
        let text = format!(
            "metadata: {{name: a, namespace: ns}}\nspec: {{type: LoadBalancer{class}}}\nstatus: {ingress}\n"
        );
        let ours = service(raw(&text), reading, &interner()).0.load_balancer?;
        assert_eq!((ours.given.len(), ours.foreign.as_deref()), (2, Some("lb.example")));
        assert_eq!(ours.given_by_others, ["192.0.2.1".parse::<IpAddr>().unwrap()]);
        Some(ours.is_adopted)
    };
    let (own, other) = (", loadBalancerClass: vestibule.dev/lb", ", loadBalancerClass: example.com/metallb");
    let listed = reading(&["example.com/metallb", "vestibule.dev/lb"], false);
    assert_eq!([own, other, ""].map(|class| read(class, &listed)), [Some(false), Some(true), None]);
    let default = reading(&[], true);
    assert_eq!([own, other, ""].map(|class| read(class, &default)), [Some(false), None, Some(true)]);
}

#[test]
fn the_strongest_place_for_addresses_wins() {
    let ip = |text: &str| text.parse::<IpAddr>().unwrap();
    let ours = "vestibule.dev/addresses: '192.0.2.1, 2001:db8::1,192.0.2.1'";
    let metallb = "metallb.io/loadBalancerIPs: 192.0.2.2";
    let both = load_balancer("loadBalancerIP: 192.0.2.3", &format!("{ours}, {metallb}"));
    let (found, field, problems) = addresses(&both);
    assert_eq!(found, [ip("192.0.2.1"), ip("2001:db8::1")]);
    assert_eq!((field.as_str(), problems.len()), ("metadata.annotations[vestibule.dev/addresses]", 0));
    let (found, field, _) = addresses(&load_balancer("loadBalancerIP: 192.0.2.3", metallb));
    assert_eq!(
        (found, field.as_str()),
        (vec![ip("192.0.2.2")], "metadata.annotations[metallb.io/loadBalancerIPs]")
    );
    let (found, field, _) = addresses(&load_balancer("loadBalancerIP: 192.0.2.3", ""));
    assert_eq!((found, field.as_str()), (vec![ip("192.0.2.3")], "spec.loadBalancerIP"));
    let (found, field, problems) = addresses(&load_balancer("loadBalancerIP: ''", ""));
    assert_eq!((found, field.as_str(), problems.len()), (vec![], "", 0));
    let also_asked = |spec: &str, annotations: &str| {
        let service = service(raw(&load_balancer(spec, annotations)), &defaults(), &interner()).0;
        service.load_balancer.unwrap().also_asked.clone()
    };
    // MetalLB refuses both of its own; ours comes before them.
    assert_eq!(also_asked("loadBalancerIP: 192.0.2.3", metallb).as_deref(), Some("192.0.2.3"));
    assert_eq!(also_asked("loadBalancerIP: 192.0.2.3", &format!("{ours}, {metallb}")), None);
    assert_eq!(also_asked("loadBalancerIP: 192.0.2.3", ""), None);
    assert_eq!(also_asked("loadBalancerIP: ''", metallb), None);
    let empty = load_balancer("loadBalancerIP: 192.0.2.3", "metallb.io/loadBalancerIPs: ' '");
    let (found, field, problems) = addresses(&empty);
    assert_eq!((found, field.as_str(), problems.len()), (vec![ip("192.0.2.3")], "spec.loadBalancerIP", 0));
    assert_eq!(also_asked("loadBalancerIP: 192.0.2.3", "metallb.io/loadBalancerIPs: ''"), None);
}

#[test]
fn the_pods_are_part_of_the_key_where_nodes_take_connections_for_their_own_only() {
    let pods = |spec: &str| {
        let service = service(raw(&load_balancer(spec, "")), &defaults(), &interner()).0;
        service.load_balancer.unwrap().local_pods.to_string()
    };
    let selector = "selector: {tier: db, app: web}";
    assert_eq!(pods(&format!("externalTrafficPolicy: Local, {selector}")), "app=web,tier=db");
    assert_eq!(pods(&format!("externalTrafficPolicy: Cluster, {selector}")), "");
    assert_eq!(pods(selector), "");
}

#[test]
fn an_unreadable_address_leaves_the_others() {
    let (found, _, problems) = addresses(&load_balancer(
        "",
        "vestibule.dev/addresses: '192.0.2.0/24, 192.0.2.9, ::ffff:192.0.2.1, 127.0.0.1'",
    ));
    assert_eq!(found, ["192.0.2.9".parse::<IpAddr>().unwrap()]);
    assert_eq!(problems.len(), 3);
    let long = load_balancer("", &format!("vestibule.dev/addresses: 'x, {}'", "y".repeat(300)));
    let unreadable =
        service(raw(&long), &defaults(), &interner()).0.load_balancer.unwrap().unreadable.clone();
    assert_eq!(unreadable, ["x".into(), "y".repeat(64).into()], "Claims show them");
    let text = load_balancer(
        "",
        "metallb.universe.tf/loadBalancerIPs: x, metallb.universe.tf/ip-allocated-from-pool: p",
    );
    let (service, found) = service(raw(&text), &defaults(), &interner());
    assert!(service.noted.has_old && service.noted.pool.is_none());
    assert_eq!(service.load_balancer.unwrap().deprecated, ["metallb.universe.tf/loadBalancerIPs".into()]);
    assert_eq!(found[0].reason, Some(EventReason::LoadBalancerFailed));
    assert!(
        problems[0]
            .contains("Service ns/api: metadata.annotations[vestibule.dev/addresses]: is not an IP address")
    );
    let (found, field, problems) =
        addresses(&load_balancer("loadBalancerIP: 192.0.2.3", "vestibule.dev/addresses: ' , '"));
    assert!(found.is_empty() && field.contains("vestibule.dev/addresses"));
    assert!(problems[0].contains("names no address"));
}

/// As kube-proxy and cloud controllers read them: the annotation counts only without the field.
#[test]
fn source_ranges_are_read_in_both_places() {
    let read = |text: &str| {
        let (service, problems) = service(raw(text), &defaults(), &interner());
        let ranges = service.load_balancer.unwrap().source_ranges.clone();
        let text = |ranges: SourceRanges| {
            ranges.ranges().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
        };
        (ranges.map(text), lines(&problems).join("\n"))
    };
    let ranges = |text: &str| read(text).0.unwrap_or_else(|| "anybody".into());
    let annotation = "service.beta.kubernetes.io/load-balancer-source-ranges: '10.0.0.0/8, 2001:db8::/32 '";
    assert_eq!(ranges(&load_balancer("", "")), "anybody");
    assert_eq!(ranges(&load_balancer("loadBalancerSourceRanges: []", "")), "anybody");
    let spaced = load_balancer("loadBalancerSourceRanges: [' 10.1.2.3/8', 10.9.0.0/16]", "");
    assert_eq!(ranges(&spaced), "10.0.0.0/8");
    assert_eq!(ranges(&load_balancer("", annotation)), "10.0.0.0/8 2001:db8::/32");
    assert_eq!(
        ranges(&load_balancer("loadBalancerSourceRanges: [192.0.2.0/24]", annotation)),
        "192.0.2.0/24"
    );
    let (some, said) = read(&load_balancer(
        "loadBalancerSourceRanges: [192.0.2.1, 192.0.2.0/24, 7, '::ffff:10.0.0.0/104']",
        "",
    ));
    assert_eq!(some.as_deref(), Some("192.0.2.0/24"));
    for place in ["[0]: is not a CIDR", "[2]: is not a CIDR", "[3]: is an IPv4 network in IPv6 form"] {
        assert!(said.contains(&format!("Service ns/api: spec.loadBalancerSourceRanges{place}")), "{said}");
    }
    // In as many Claims as it has ports.
    let many: Vec<String> = (0..=1_024).map(|n| format!("10.{}.{}.0/32", n / 128, 2 * (n % 128))).collect();
    let (none, said) = read(&load_balancer(&format!("loadBalancerSourceRanges: [{}]", many.join(", ")), ""));
    assert_eq!(none.as_deref(), Some(""));
    assert!(
        said.contains(
            "spec.loadBalancerSourceRanges[0]: are 1025 ranges, and 1024 the most: nobody is admitted"
        ),
        "{said}"
    );
    // Nobody, and not everybody.
    assert_eq!(ranges(&load_balancer("loadBalancerSourceRanges: [x]", "")), "");
}

/// Its status is the copy of what it has, where Claims are lost.
#[test]
fn families_and_the_addresses_of_the_status_are_read() {
    let read = |text: &str| service(raw(text), &defaults(), &interner()).0.load_balancer.unwrap();
    let wishes = |text: &str| -> Vec<(bool, bool)> {
        read(text).families.iter().map(|wish| (wish.is_v4, wish.is_required)).collect()
    };
    let with =
        |policy: &str| load_balancer(&format!("ipFamilies: [IPv6, IPv4], ipFamilyPolicy: {policy}"), "");
    assert_eq!(wishes(&with("RequireDualStack")), [(false, true), (true, true)]);
    assert_eq!(wishes(&with("PreferDualStack")), [(false, true), (true, false)]);
    assert_eq!(wishes(&load_balancer("ipFamilies: [IPv4]", "")), [(true, true)]);
    assert_eq!(wishes(&load_balancer("", "")), []);
    let text = load_balancer("", "")
        + "\nstatus: {loadBalancer: {ingress: [{ip: 192.0.2.1}, {hostname: x}, {ip: 127.0.0.1}, {ip: '2001:db8::1'}]}}\n";
    let given: Vec<String> = read(&text).given.iter().map(ToString::to_string).collect();
    assert_eq!(given, ["192.0.2.1", "2001:db8::1"]);
}

#[test]
fn ports_keep_their_protocol_and_names() {
    let text = "metadata: {name: a, namespace: ns}\nspec: {type: ExternalName, ports: [{port: 443, name: tls}, {port: 53, protocol: UDP}, {port: 0}]}\n";
    let (service, problems) = service(raw(text), &defaults(), &interner());
    let ports: Vec<_> = service
        .ports
        .iter()
        .map(|p| (p.name.to_string(), p.port, p.is_tcp, p.protocol.to_string()))
        .collect();
    assert_eq!(
        ports,
        [("tls".to_owned(), 443, true, "TCP".to_owned()), (String::new(), 53, false, "UDP".to_owned())]
    );
    assert!(service.is_external_name);
    assert!(lines(&problems)[0].contains("spec.ports[2].port: is not a TCP port"));
}

#[test]
fn the_probe_annotation_is_read_and_a_bad_one_leaves_the_charts() {
    let probe = |text: &str| {
        let text = format!(
            "metadata: {{name: a, namespace: ns, annotations: {{vestibule.dev/probe: '{text}'}}}}\nspec: {{}}\n"
        );
        let (service, problems) = service(raw(&text), &defaults(), &interner());
        (service.probe, lines(&problems))
    };
    assert_eq!(probe("off"), (Some(None), vec![]));
    assert_eq!(probe("tls").0.unwrap().unwrap().kind, ProbeKind::Tls);
    let (spec, problems) = probe("http");
    assert_eq!(spec, None);
    assert_eq!(
        problems,
        [
            "warning: Service ns/a: metadata.annotations[vestibule.dev/probe]: has \"http\", which is not known \
             (value \"http\"); write off, tcp or tls, and after tcp or tls, where wanted, \
             ,interval=5s,timeout=1s,failures=3,successes=2"
        ]
    );
}
