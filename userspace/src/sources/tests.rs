//! What authors read about their files.

use super::file::judge;
use crate::config;
use crate::model::{L2, NodeFacts, TrafficPolicy};
use expect_test::{Expect, expect};

/// A node with the ports that Linux hands out by default.
fn node() -> NodeFacts {
    NodeFacts { local_ports: Some((32_768, 60_999)), ..NodeFacts::default() }
}

fn told(text: &str) -> String {
    let (_, mut problems) = judge(text, &node());
    config::locate(text, &mut problems);
    problems.sort_by_key(|problem| problem.line);
    problems.iter().map(|problem| format!("{}\n", problem.in_file("f.yaml"))).collect()
}

fn check(text: &str, expected: Expect) {
    expected.assert_eq(&told(text));
}

/// The header, one TLS and one TCP listener, and `routes`.
fn with_routes(routes: &str) -> String {
    format!("{HEAD}listeners:\n{LISTENERS}routes:\n{routes}")
}

const HEAD: &str = "apiVersion: vestibule.dev/v1alpha1\nkind: StaticConfig\n";
const LISTENERS: &str = r#"
  - { name: shared, addresses: ["10.97.0.10", "fd97::10"], port: 443, protocol: TLS, defaultRoute: tenant-a }
  - { name: direct, addresses: ["10.97.0.10"], port: 20001, protocol: TCP }
"#;
const TENANT_A: &str = r#"
  - name: tenant-a
    listeners: [shared, direct]
    hostnames: ["tenant-a.k8s.example.com", "*.tenant-a.example.com"]
    backends: [{ address: "10.97.2.2", port: 6443, weight: 1 }, { address: "fd97:2::2", port: 6443 }]
"#;

const JSON: &str = r#"{"apiVersion":"vestibule.dev/v1alpha1","kind":"StaticConfig","listeners":[
        {"name":"shared","addresses":["10.97.0.10","fd97::10"],"port":443,"protocol":"TLS","defaultRoute":"tenant-a"},
        {"name":"direct","addresses":["10.97.0.10"],"port":20001,"protocol":"TCP"}],"routes":[
        {"name":"tenant-a","listeners":["shared","direct"],
         "hostnames":["Tenant-A.k8s.example.com.","*.tenant-a.example.com"],
         "backends":[{"address":"fd97:2::2","port":6443},{"address":"10.97.2.2","port":6443,"weight":1}]}]}"#;

#[test]
fn a_traffic_policy_is_read_and_another_is_refused() {
    let text = |policy: &str| {
        with_routes(
            &TENANT_A.replace("listeners: [", &format!("externalTrafficPolicy: {policy}\n    listeners: [")),
        )
    };
    for (policy, expected) in [("Local", TrafficPolicy::Local), ("Cluster", TrafficPolicy::Cluster)] {
        let (desired, problems) = judge(&text(policy), &node());
        assert_eq!((desired.routes[0].traffic, problems), (expected, vec![]));
    }
    check(
        &text("Node"),
        expect![[r#"
        f.yaml:10: error: routes[0].externalTrafficPolicy: is not a traffic policy (value "Node"); write Local (backends on this node, which see the client's address) or Cluster
    "#]],
    );
}

#[test]
fn the_documented_file_is_good() {
    let text = r#"
apiVersion: vestibule.dev/v1alpha1
kind: StaticConfig
settings: { sourceAddresses: [], sourcePorts: "1024-29999", idleTimeout: 25h, helloTimeout: 10s, maxFlows: 1000000, maxNames: 1000000, maxHellos: 65536, flowsPerSource: 65536 }
listeners:
  - name: shared
    addresses: ["10.97.0.10", "fd97::10"]
    port: 443
    protocol: TLS                 # by server name, passthrough
    defaultRoute: tenant-a        # optional
  - name: tenant-a-direct
    addresses: ["10.97.0.10"]
    port: 20001
    protocol: TCP                 # by address and port; exactly one route
routes:
  - name: tenant-a                # unique; the tenant in every counter
    listeners: [shared, tenant-a-direct]
    hostnames: ["tenant-a.k8s.example.com", "*.tenant-a.example.com"]   # TLS listeners
    backends:
      - { address: "10.97.2.2", port: 6443, weight: 1 }
      - { address: "fd97:2::2", port: 6443 }
"#;
    assert_eq!(told(text), "");
    let (desired, _) = judge(text, &node());
    assert_eq!(desired.settings, crate::model::Settings::default());
    assert_eq!(desired.listeners[0].route, Some(0));
    assert_eq!(desired.listeners[1].route, Some(0));
    assert_eq!(desired.routes[0].names.len(), 2);
    assert_eq!(desired.routes[0].backends.iter().map(|b| b.weight).collect::<Vec<_>>(), [1, 1]);
}

#[test]
fn json_and_yaml_mean_the_same() {
    assert_eq!(judge(JSON, &node()), judge(&with_routes(TENANT_A), &node()));
    assert_eq!(told(JSON), "");
}

#[test]
fn order_in_the_file_does_not_matter() {
    let b = TENANT_A.replace("tenant-a", "tenant-b").replace(", direct", "");
    let one = judge(&with_routes(&format!("{TENANT_A}{b}")), &node());
    let other = judge(&with_routes(&format!("{b}{TENANT_A}")), &node());
    assert_eq!(one, other);
    assert!(one.1.is_empty());
}

#[test]
fn every_unknown_and_mistyped_field_is_told() {
    check(
        r#"
apiVersion: vestibule.dev/v1
kinds: StaticConfig
listeners:
  - name: shared
    adresses: ["10.97.0.10"]
    port: https
    protocol: HTTPS
routes:
  - name: a
    listeners: shared
    hostnames: [a.example.com, 10.0.0.1, "kubernetes.default", "a..b", "*", "a b.c"]
    backends:
      - { address: tenant-a.local, port: 70000, weight: -1 }
      - { adress: "10.0.0.1", port: 6443, port: 6444, colour: red }
"#,
        expect![[r#"
            f.yaml:2: error: apiVersion: is not known to this version (value "vestibule.dev/v1"); write "vestibule.dev/v1alpha1"
            f.yaml:3: error: kinds: unknown field; did you mean "kind"?
            f.yaml:6: error: listeners[0].adresses: unknown field; did you mean "addresses"?
            f.yaml:7: error: listeners[0].port: is not a whole number (value "https"); write a whole number without quotes
            f.yaml:8: error: listeners[0].protocol: is not a protocol (value "HTTPS"); write TLS (route by server name) or TCP (route by address and port)
            f.yaml:11: error: routes[0].listeners: is not a list (value "shared"); write a list, also when it has one element
            f.yaml:12: error: routes[0].hostnames[1]: is an IP address, which clients do not send as server name (value "10.0.0.1"); remove it: clients that dial an address send no server name; use defaultRoute or a TCP listener
            f.yaml:12: error: routes[0].hostnames[2]: is a name of every cluster's own API server, which nobody may claim (value "kubernetes.default"); remove it; use a name of your own domain
            f.yaml:12: error: routes[0].hostnames[3]: has an empty label (value "a..b"); write a DNS name, such as "api.example.com"
            f.yaml:12: error: routes[0].hostnames[4]: has a wildcard that is not its whole first label (value "*"); write "*.example.com": '*' stands for one or more whole labels in front
            f.yaml:12: error: routes[0].hostnames[5]: holds ' '; letters, digits, '-', '_' and '.' are allowed (value "a b.c"); write a DNS name, such as "api.example.com"
            f.yaml:14: error: routes[0].backends[0].address: is not an IP address (value "tenant-a.local"); write an IPv4 or IPv6 address, such as "192.0.2.1" or "2001:db8::1"; names are not resolved
            f.yaml:14: error: routes[0].backends[0].port: is not a TCP port (value "70000"); write a number from 1 to 65535
            f.yaml:14: error: routes[0].backends[0].weight: is not a weight (value "-1"); write a number from 0 to 65535; 0 takes no new flow
            f.yaml:15: error: routes[0].backends[1].adress: unknown field; did you mean "address"?
            f.yaml:15: error: routes[0].backends[1].port: the field is there twice; keep one of them
            f.yaml:15: error: routes[0].backends[1].colour: unknown field; the fields here are address, port, weight
        "#]],
    );
}

#[test]
fn contradictions_name_both() {
    check(
        &format!(
            r#"{HEAD}
listeners:
  - {{ name: one, addresses: ["10.97.0.10"], port: 443, protocol: TLS, defaultRoute: tenant-x }}
  - {{ name: two, addresses: ["10.97.0.11", "10.97.0.10"], port: 443, protocol: TLS }}
  - {{ name: one, addresses: ["10.97.0.12"], port: 443, protocol: TLS }}
  - {{ name: tcp, addresses: ["10.97.0.10"], port: 444, protocol: TCP, defaultRoute: tenant-a }}
  - {{ name: alone, addresses: ["10.97.0.10"], port: 445, protocol: TCP }}
routes:
  - {{ name: tenant-a, listeners: [one, tcp], hostnames: [a.example.com, "*.example.com"], backends: [{{ address: 10.0.0.1, port: 1 }}] }}
  - name: tenant-b
    listeners: [tow, one, tcp]
    hostnames: [b.example.com, A.example.com., "*.EXAMPLE.com"]
    backends: [{{ address: 10.97.0.10, port: 443 }}]
  - {{ name: tenant-a, listeners: [two], backends: [{{ address: 10.0.0.1, port: 1 }}] }}
  - {{ name: tenant-c, listeners: [two], backends: [{{ address: 10.0.0.1, port: 1 }}, {{ address: 10.0.0.1, port: 1 }}] }}
  - {{ name: tenant-d, listeners: [two], backends: [{{ address: 10.0.0.1, port: 1 }}] }}
"#
        ),
        expect![[r#"
            f.yaml:5: error: listeners[0].defaultRoute: there is no route of this name (value "tenant-x"); did you mean "tenant-d"?
            f.yaml:6: error: listeners[1].addresses[1]: listeners one and two both have this address and port (value "10.97.0.10:443"); give one of them another address or port
            f.yaml:7: error: listeners[2].name: another listener, listeners[0], has this name (value "one"); give each listener a name of its own
            f.yaml:8: error: listeners[3].defaultRoute: listener tcp is a TCP listener: it has one route and no names (value "tenant-a"); remove defaultRoute and name the listener in that route's listeners
            f.yaml:13: error: routes[1].listeners: routes tenant-a, tenant-b all name TCP listener tcp, which can have only one (value "tcp"); give each of them a listener of its own, or make the listener's protocol TLS
            f.yaml:13: error: routes[1].listeners[0]: there is no listener of this name (value "tow"); did you mean "two"?
            f.yaml:14: error: routes[1].hostnames[1]: routes tenant-a and tenant-b both have this name on listener one (value "a.example.com"); remove it from one of them
            f.yaml:14: error: routes[1].hostnames[2]: routes tenant-a and tenant-b both have this name on listener one (value "*.example.com"); remove it from one of them
            f.yaml:15: error: routes[1].backends[0]: the backend is listener one itself: connections would go round (value "10.97.0.10:443"); write the tenant's own address and port
            f.yaml:16: error: routes[2].name: another route, routes[0], has this name (value "tenant-a"); give each route a name of its own
            f.yaml:17: error: routes[3].backends[1]: the backend is there twice (value "10.0.0.1:1"); keep one of them, and use weight for its share
        "#]],
    );
}

#[test]
fn contradictions_of_good_objects() {
    check(
        &format!(
            r#"{HEAD}
listeners:
  - {{ name: one, addresses: ["10.97.0.10"], port: 443, protocol: TLS }}
  - {{ name: tcp, addresses: ["10.97.0.10"], port: 444, protocol: TCP, defaultRoute: tenant-a }}
  - {{ name: alone, addresses: ["10.97.0.10"], port: 445, protocol: TCP }}
routes:
  - {{ name: tenant-a, listeners: [one, tcp], backends: [{{ address: 10.0.0.1, port: 1 }}] }}
  - {{ name: tenant-b, listeners: [tcp], backends: [{{ address: 10.0.0.1, port: 1 }}] }}
"#
        ),
        expect![[r#"
            f.yaml:6: error: listeners[1].defaultRoute: listener tcp is a TCP listener: it has one route and no names (value "tenant-a"); remove defaultRoute and name the listener in that route's listeners
            f.yaml:7: error: listeners[2]: no route names TCP listener alone; it needs exactly one; name the listener in a route's listeners, or remove it
            f.yaml:9: error: routes[0].hostnames: route tenant-a has no names for TLS listener one; write hostnames, or make it the listener's defaultRoute
            f.yaml:10: error: routes[1].listeners: routes tenant-a, tenant-b all name TCP listener tcp, which can have only one (value "tcp"); give each of them a listener of its own, or make the listener's protocol TLS
        "#]],
    );
}

#[test]
fn warnings_do_not_refuse() {
    let text = format!(
        r#"{HEAD}
settings: {{ sourcePorts: "1024-40000" }}
listeners: {LISTENERS}
routes:
  - name: tenant-a
    listeners: [shared, direct]
    hostnames: [a.example.com]
    backends: [{{ address: 10.0.0.1, port: 6443 }}, {{ address: "fd00::1", port: 6443, weight: 0 }}]
  - {{ name: empty, listeners: [shared], hostnames: [b.example.com] }}
  - {{ name: lost, hostnames: [c.example.com], backends: [{{ address: 10.0.0.1, port: 6443 }}] }}
"#
    );
    check(
        &text,
        expect![[r#"
        f.yaml:4: warning: settings.sourcePorts: overlaps the ports this node's kernel hands out (net.ipv4.ip_local_port_range 32768-60999) (value "1024-40000"); choose ports outside it: ports in both can run out earlier
        f.yaml:13: warning: routes[0].backends: route tenant-a has no IPv6 backend that takes new connections, but listener shared has IPv6 addresses; add one: clients that come over IPv6 are refused
        f.yaml:14: warning: routes[1].backends: route empty has no backends; add one: its clients are refused
        f.yaml:15: warning: routes[2].listeners: route lost is on no listener; name a listener: nobody can reach it
    "#]],
    );
    assert_eq!(judge(&text, &node()).0.routes.len(), 3);
}

#[test]
fn settings_have_limits() {
    check(
        &format!(
            r#"{HEAD}
settings:
  sourceAddresses: ["10.0.0.1", "10.0.0.2", "fd00::1", "127.0.0.1"]
  sourcePorts: "80-100"
  idleTimeout: 500ms
  helloTimeout: 90
  maxFlows: 0
  maxNames: 99999999
  maxHello: 5
  flowsPerRoute: 0
  flowsPerSource: 16777217
"#
        ),
        expect![[r#"
            f.yaml:5: error: settings.sourceAddresses[1]: a second address of this family (value "10.0.0.2"); keep one a family
            f.yaml:5: error: settings.sourceAddresses[3]: is a loopback address (value "127.0.0.1"); write an address that other machines can reach
            f.yaml:6: error: settings.sourcePorts: holds ports below 1024 (value "80-100"); write the first and the last port, such as "1024-29999", 1024 or higher
            f.yaml:7: error: settings.idleTimeout: is out of range (value "500ms"); write whole seconds, 1s to 365d
            f.yaml:8: error: settings.helloTimeout: has no unit (value "90"); write a whole number and one of ms, s, m, h, d, such as "500ms", "10s" or "25h"
            f.yaml:9: error: settings.maxFlows: is out of range (value "0"); write a number from 1 to 16777216
            f.yaml:10: error: settings.maxNames: is out of range (value "99999999"); write a number from 1 to 4194304
            f.yaml:11: error: settings.maxHello: unknown field; did you mean "maxHellos"?
            f.yaml:12: error: settings.flowsPerRoute: is out of range (value "0"); write a number from 1 to 16777216
            f.yaml:13: error: settings.flowsPerSource: is out of range (value "16777217"); write a number from 1 to 16777216
        "#]],
    );
}

#[test]
fn addresses_are_announced_only_where_the_settings_enable_it() {
    let l2 = |written: &str| {
        let text = format!("{HEAD}settings: {{ l2: {written} }}\nlisteners: {LISTENERS}\nroutes: {TENANT_A}");
        judge(&text, &node()).0.settings.l2
    };
    assert_eq!((l2("null"), l2("{}"), l2("{ enabled: false, refreshRate: 5 }")), (None, None, None));
    assert_eq!(l2("{ enabled: true }"), Some(L2 { announce_rate: 1_000, refresh_rate: 10 }));
    let slow = l2("{ enabled: true, announceRate: 50, refreshRate: 1 }");
    assert_eq!(slow, Some(L2 { announce_rate: 50, refresh_rate: 1 }));
    check(
        &format!("{HEAD}settings:\n  l2:\n    enable: true\n    announceRate: 0\n"),
        expect![[r#"
            f.yaml:5: error: settings.l2.enable: unknown field; did you mean "enabled"?
            f.yaml:6: error: settings.l2.announceRate: is out of range (value "0"); write a number from 1 to 100000
        "#]],
    );
}

#[test]
fn more_than_the_maps_hold_is_refused() {
    check(
        &format!("{HEAD}settings: {{ maxNames: 1 }}\nlisteners: {LISTENERS}\nroutes: {TENANT_A}"),
        expect![[r#"
            f.yaml:3: error: settings.maxNames: too small: there are 2 names (a name counts once a listener), and room for 1 (value "1"); raise it to 2 or more
        "#]],
    );
}

#[test]
fn broken_syntax_has_a_line() {
    check(
        "apiVersion: x\nkind: [\n",
        expect![[r#"
        f.yaml:2: error: cannot be read as YAML: unclosed bracket '[' at line 2, column 7; correct the YAML at or shortly before this line
    "#]],
    );
    check(
        "{\"apiVersion\": \"x\",\n \"kind\": }",
        expect![[r#"
        f.yaml:2: error: cannot be read as JSON: expected value at line 2 column 10; correct the JSON at or shortly before this line
    "#]],
    );
    check(
        "{\"apiVersion\": \"x\",\n \"kind\": \"y\",\n}",
        expect![[r#"
        f.yaml:3: error: cannot be read as JSON: trailing comma at line 3 column 1; correct the JSON at or shortly before this line
    "#]],
    );
    check(
        "",
        expect![[r#"
        f.yaml:1: error: apiVersion: is missing; write apiVersion: vestibule.dev/v1alpha1
        f.yaml:1: error: kind: is missing; write kind: StaticConfig
    "#]],
    );
    check(
        "- a\n- b\n",
        expect![[r#"
        f.yaml:1: error: is not a set of fields (value "a list of 2"); write fields and their values
    "#]],
    );
    check(
        "{\n\t\"apiVersion\": \"vestibule.dev/v1alpha1\",\n\t\"kind\": \"StaticConfig\",\n\t\"route\": []\n}",
        expect![[r#"
        f.yaml:4: error: route: unknown field; did you mean "routes"?
    "#]],
    );
}

#[test]
fn common_slips_of_yaml_are_explained() {
    check(
        &format!("{HEAD}routes:\n- name: a\n  hostnames: [*.example.com]\n"),
        expect![[r#"
        f.yaml:5: error: cannot be read as YAML: alias references unknown anchor at line 5, column 15; put names that begin with '*' in quotes, such as "*.example.com"
    "#]],
    );
    check(
        &format!("{HEAD}---\n{HEAD}"),
        expect![[r#"
        f.yaml:4: error: there is more than one document; keep what is before this line's "---"
    "#]],
    );
    check(
        &format!("{HEAD}settings:\n  idleTimeout: 90\n  helloTimeout: [1]\n"),
        expect![[r#"
        f.yaml:4: error: settings.idleTimeout: has no unit (value "90"); write a whole number and one of ms, s, m, h, d, such as "500ms", "10s" or "25h"
        f.yaml:5: error: settings.helloTimeout: is not text (value "a list of 1"); write text in quotes
    "#]],
    );
    check(
        &format!("{HEAD}routes: {}1{}", "{a: ".repeat(60), "}".repeat(60)),
        expect![[r#"
        f.yaml:3: error: cannot be read as YAML: budget breached: Depth { depth: 17 } at line 3, column 69; correct the YAML at or shortly before this line
    "#]],
    );
}

#[test]
fn deep_nesting_does_not_use_up_the_stack() {
    for opening in ["[", "{\"a\":", "x: {a: ", "- ", "{\"routes\":["] {
        assert!(!told(&opening.repeat(20_000)).is_empty(), "{opening}");
    }
}

proptest::proptest! {
    /// A file with a slip in it is good or reported; it never stops the daemon.
    #[test]
    fn any_slip_is_told(at in 0usize..1000, cut in 0usize..4, text in "[-\\[\\]{}:,*&\"'#a0 \\n\\t\u{e9}]{0,3}", json in proptest::bool::ANY) {
        let mut file = if json { JSON.to_owned() } else { with_routes(TENANT_A) };
        let at = at % file.len();
        file.replace_range(at..(at + cut).min(file.len()), &text);
        let (_, mut problems) = judge(&file, &node());
        config::locate(&file, &mut problems);
        let lines = u32::try_from(file.lines().count()).unwrap() + 1;
        for problem in problems {
            proptest::prop_assert!(!problem.what.is_empty() && !problem.remedy.is_empty());
            proptest::prop_assert!(problem.line.is_some_and(|line| line <= lines), "{problem:?}");
        }
    }
}
