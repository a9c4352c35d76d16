//! A Service with `externalTrafficPolicy: Local`, whose pods are on some nodes of the segment.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::json;
use tests::net::{End, Namespace, veth};
use tests::server::{Server, Speech, read_line};
use tests::skip_without_root;

use super::ANSWER;
use super::scene::{PORT, Segment, VIPS};
use crate::agent::scene::slice;

/// A pod of the Service on a node, behind a device of its own.
struct Pod {
    _servers: [Server; 2],
    addresses: [String; 2],
    /// Ends after the node that leads to it.
    _namespace: Namespace,
}

impl Pod {
    fn new(segment: &Segment, number: usize) -> Self {
        let node = &segment.nodes[number].namespace;
        let namespace = Namespace::new("pod").unwrap();
        let at = |host: u8| addresses(number, host);
        let both = |[v4, v6]: [String; 2]| [format!("{v4}/24"), format!("{v6}/64")];
        let (gateway, addresses) = (at(1), at(2));
        let (near, far) = (both(gateway.clone()), both(addresses.clone()));
        veth(
            End { namespace: node, device: "pod", addresses: &near.each_ref().map(String::as_str) },
            End { namespace: &namespace, device: "eth0", addresses: &far.each_ref().map(String::as_str) },
            1500,
        )
        .unwrap();
        for gateway in &gateway {
            namespace.ip(&format!("route add default via {gateway}\n")).unwrap();
        }
        let servers = addresses.each_ref().map(|address| {
            let at = SocketAddr::new(address.parse().unwrap(), PORT);
            Server::start(&namespace, at, &format!("pod{number}"), Speech::EchoToWhom).unwrap()
        });
        Self { _servers: servers, addresses, _namespace: namespace }
    }
}

/// The addresses of a host of the network of a node's pod.
fn addresses(number: usize, host: u8) -> [String; 2] {
    let net = number + 1;
    [format!("10.97.{net}.{host}"), format!("fd97:{net}::{host}")]
}

/// Leads the Service to this pod on this node, or to none.
fn lead(segment: &Segment, to: Option<(&Pod, usize)>) {
    for (place, family) in ["IPv4", "IPv6"].iter().enumerate() {
        let mut slice = slice("lb", "10.97.0.2");
        slice["metadata"]["name"] = json!(format!("lb-{}", family.to_lowercase()));
        slice["addressType"] = json!(family);
        let endpoint = |(pod, node): (&Pod, usize)| json!({"addresses": [pod.addresses[place]], "conditions": {"ready": true}, "nodeName": format!("node{node}")});
        slice["endpoints"] = to.into_iter().map(endpoint).collect();
        segment.kubectl().apply(&slice.to_string()).unwrap();
    }
}

/// Connects to a VIP; returns what the pod sent.
fn greeting(segment: &Segment, vip: &str) -> Option<(String, SocketAddr)> {
    let mut stream = segment.dial(vip).ok()?;
    Some((read_line(&mut stream).ok()??, stream.local_addr().ok()?))
}

/// Waits until this node alone announces both VIPs, and its pod serves their clients and sees them.
fn until_served(segment: &Segment, number: usize) {
    segment.until("the node with the pod announces the VIPs, alone", |segment| {
        VIPS.iter().all(|vip| segment.owners(vip) == [number])
    });
    segment.forget();
    for vip in VIPS {
        assert_eq!(segment.ask(vip, ANSWER), [segment.nodes[number].link].into(), "{}", segment.logs());
        let (said, own) = greeting(segment, vip).unwrap_or_else(|| panic!("{vip}\n{}", segment.logs()));
        assert_eq!(said, format!("pod{number} {own}"));
    }
}

/// Waits until one of these nodes announces each VIP, and refuses its clients at once.
fn until_refused(segment: &Segment, by: &[usize]) {
    let is_refused = |segment: &Segment, vip: &str| {
        let refused = segment.dial(vip).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused);
        refused && matches!(segment.owners(vip)[..], [owner] if by.contains(&owner))
    };
    segment.until("connections to the VIPs are refused", |segment| {
        VIPS.iter().all(|vip| is_refused(segment, vip))
    });
}

#[test]
fn only_a_node_with_a_pod_of_a_local_service_announces_it_and_the_pod_sees_its_clients() {
    skip_without_root!();
    let segment = Segment::new(2);
    let pods = [Pod::new(&segment, 0), Pod::new(&segment, 1)];
    for node in &segment.nodes {
        for device in ["all", "default", "uplink", "pod"] {
            node.namespace.sysctl(&format!("net/ipv4/conf/{device}/rp_filter"), "1").unwrap();
        }
    }
    // To the node that does not announce the first VIP so far.
    let (before, first) = (segment.owner(VIPS[0]), 1 - segment.owner(VIPS[0]));
    lead(&segment, Some((&pods[first], first)));
    let patch = r#"{"spec": {"externalTrafficPolicy": "Local"}}"#;
    segment.kubectl().run(&["-n", "tenant", "patch", "service", "lb", "--type=merge", "-p", patch]).unwrap();
    until_served(&segment, first);
    let events = segment.kubectl().run(&["-n", "tenant", "get", "events", "-o", "yaml"]).unwrap();
    assert!(!events.contains("externalTrafficPolicy"), "{events}");

    // Who still sends to the other node is refused at once.
    let other = segment.nodes[before].link.map(|byte| format!("{byte:02x}")).join(":");
    for vip in VIPS {
        segment.host.ip(&format!("neigh replace {vip} lladdr {other} dev uplink nud permanent\n")).unwrap();
        let at = SocketAddr::new(vip.parse::<IpAddr>().unwrap(), PORT);
        let dial = || TcpStream::connect_timeout(&at, Duration::from_millis(400));
        assert_eq!(segment.host.run(dial).unwrap_err().kind(), ErrorKind::ConnectionRefused, "{vip}");
        segment.host.ip(&format!("neigh del {vip} dev uplink\n")).unwrap();
    }

    lead(&segment, Some((&pods[before], before)));
    until_served(&segment, before);

    // Packets of a pod behind a router may come by a device without the program. No other node has a pod: this one still answers, and
    // refuses.
    let node = &segment.nodes[before].namespace;
    let behind = |change: &str| {
        for (address, router) in pods[before].addresses.iter().zip(addresses(before, 3)) {
            let bits = if address.contains(':') { 128 } else { 32 };
            node.ip(&format!("route {change} {address}/{bits} via {router} dev pod\n")).unwrap();
        }
    };
    behind("add");
    until_refused(&segment, &[before]);
    let state =
        || segment.kubectl().run(&["get", "nodestates", &format!("node{before}"), "-o", "yaml"]).unwrap();
    segment.until("the node says why", |_| state().contains("externalTrafficPolicy Local"));
    behind("del");
    until_served(&segment, before);

    // Where there is no pod at all, either node may refuse.
    lead(&segment, None);
    until_refused(&segment, &[0, 1]);
}
