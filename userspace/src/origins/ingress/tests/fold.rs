use super::super::WATCHED;
use super::super::spec::{IngressPort, IngressRule, IngressSpec, Passthrough};
use crate::sources::kubernetes::fold::tests::{fold_origin, garbage, lines, yaml};
use expect_test::expect;
use proptest::prelude::*;
use serde_json::Value;

fn fold(object: &Value) -> (IngressSpec, Vec<String>) {
    let (folded, problems) = fold_origin(&WATCHED[1], object);
    (folded.unwrap().says.get::<IngressSpec>().unwrap().clone(), lines(&problems))
}

fn read(text: &str) -> (IngressSpec, Vec<String>) {
    fold(&yaml(text)[0])
}

/// `host -> service:port`, one each.
fn rules(spec: &IngressSpec) -> Vec<String> {
    let rule = |rule: &IngressRule| format!("{} -> {} {:?}", rule.host, rule.service, rule.port);
    spec.rules.iter().map(rule).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_garbage_makes_a_port_of_0(object in prop_oneof![garbage::object(), garbage::broken()]) {
        prop_assert!(fold(&object).0.rules.iter().all(|rule| rule.port != IngressPort::Number(0)));
    }
}

#[test]
fn hosts_with_their_services_are_read() {
    let (spec, problems) = read(
        r#"
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: i, namespace: ns, annotations: {kubernetes.io/ingress.class: old}}
spec:
  ingressClassName: vestibule
  tls: [{hosts: [a.example], secretName: unused}]
  rules:
  - {host: A.Example, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 443}}}}]}}
  - {host: "*.a.example", http: {paths: [{pathType: ImplementationSpecific, backend: {service: {name: web, port: {name: https}}}}]}}
"#,
    );
    assert_eq!(problems, Vec::<String>::new());
    assert_eq!((spec.class.as_deref(), spec.passthrough), (Some("vestibule"), Passthrough::No));
    assert_eq!(
        rules(&spec),
        ["a.example -> web Number(443)", "*.a.example (one label) -> web Name(\"https\")"]
    );
}

#[test]
fn what_cannot_be_served_is_told_and_the_rest_is() {
    let (spec, problems) = read(
        r#"
metadata: {name: i, namespace: ns}
spec:
  defaultBackend: {service: {name: web, port: {number: 443}}}
  rules:
  - {http: {paths: [{path: /, backend: {service: {name: web, port: {number: 443}}}}]}}
  - {host: a.example, http: {paths: [{path: /api, backend: {service: {name: api, port: {number: 443}}}}, {path: /, backend: {service: {name: web, port: {number: 443}}}}, {path: /, backend: {service: {name: web, port: {number: 443}}}}]}}
  - {host: b.example, http: {paths: [{path: /api, backend: {service: {name: api, port: {number: 443}}}}]}}
  - {host: a.example, http: {paths: [{path: /, backend: {service: {name: other, port: {number: 443}}}}]}}
  - {host: c.example}
  - {host: d.example, http: {paths: [{path: /, backend: {resource: {kind: Bucket, name: b}}}]}}
  - {host: e.example, http: {paths: [{path: /, backend: {service: {name: web, port: {number: 70000}}}}]}}
  - {host: f.example, http: {paths: [{path: /, backend: {service: {name: web}}}]}}
  - {host: "a*.example", http: {paths: [{path: /, backend: {service: {name: web, port: {number: 443}}}}]}}
"#,
    );
    assert_eq!(rules(&spec), ["a.example -> web Number(443)"]);
    expect![[r#"
        warning: Ingress ns/i: spec.defaultBackend: is not served: without a server name nothing says whose a connection is; write a rule for each host
        warning: Ingress ns/i: spec.rules[0].host: has no host: without a server name nothing says whose a connection is; write the name that clients ask for
        warning: Ingress ns/i: spec.rules[1].http.paths[0].path: is not served: TLS is passed through, and paths are not seen (value "/api"); give it a host of its own
        warning: Ingress ns/i: spec.rules[1].http.paths[2].path: is the second one of / (value "/"); write one backend for each host
        warning: Ingress ns/i: spec.rules[2].http.paths[0].path: is not served: TLS is passed through, and paths are not seen (value "/api"); give it a host of its own
        warning: Ingress ns/i: spec.rules[3].host: has a rule already (value "a.example"); write one rule for each host
        warning: Ingress ns/i: spec.rules[4].http: has no path, and a default backend is not served; write path / with a Service
        warning: Ingress ns/i: spec.rules[5].http.paths[0].backend: is no Service; write backend.service with name and port
        warning: Ingress ns/i: spec.rules[6].http.paths[0].backend.service.port.number: is not a TCP port (value "70000"); write a number from 1 to 65535
        warning: Ingress ns/i: spec.rules[7].http.paths[0].backend.service.port: has no port; write its number or name
        warning: Ingress ns/i: spec.rules[8].host: has a wildcard that is not its whole first label (value "a*.example"); write *.example.com: * stands for one or more whole labels in front"#]]
    .assert_eq(&problems.join("\n"));
}

#[test]
fn annotations_of_other_controllers_are_read() {
    let with = |annotation: &str| {
        read(&format!(
            "metadata: {{name: i, namespace: ns, annotations: {{{annotation}}}}}\nspec: {{rules: [{{host: a.example, http: {{paths: [{{path: /, backend: {{service: {{name: web, port: {{number: 443}}}}}}}}]}}}}]}}\n"
        ))
    };
    for name in [
        "haproxy.org/ssl-passthrough",
        "haproxy-ingress.github.io/ssl-passthrough",
        "ingress.kubernetes.io/ssl-passthrough",
        "nginx.ingress.kubernetes.io/ssl-passthrough",
        "ingress.cilium.io/tls-passthrough",
    ] {
        let annotation = |value: &str| format!("{name}: \"{value}\"");
        let said = |value: &str| {
            let (spec, problems) = with(&annotation(value));
            (spec.passthrough, problems)
        };
        for value in ["true", "enabled", "1", "T", " yes "] {
            assert_eq!(said(value), (Passthrough::Yes, Vec::new()), "{name}: {value}");
        }
        for value in ["false", "False", "no", "", "disabled", "0", "f"] {
            assert_eq!(said(value), (Passthrough::No, Vec::new()), "{name}: {value}");
        }
        let (unclear, problems) = said("flase");
        assert_eq!(unclear, Passthrough::Unclear, "{name}");
        assert!(problems[0].contains(name) && problems[0].contains("neither true nor false"), "{problems:?}");
    }
    let (spec, problems) = with("kubernetes.io/ingress.class: nginx");
    assert_eq!((spec.class.as_deref(), problems.len()), (Some("nginx"), 0));
    for name in [
        "haproxy.org/send-proxy-protocol",
        "haproxy-ingress.github.io/proxy-protocol",
        "ingress.kubernetes.io/proxy-protocol",
    ] {
        let (spec, problems) = with(&format!("{name}: v2"));
        assert!(spec.rules.is_empty(), "{name}");
        assert!(problems[0].contains(name) && problems[0].contains("not served at all"), "{problems:?}");
    }
}

#[test]
fn a_class_is_ours_by_its_controller() {
    let ours = |controller: &str| {
        let text = format!("metadata: {{name: c}}\nspec: {{controller: {controller}}}\n");
        let (folded, problems) = fold_origin(&WATCHED[0], &yaml(&text)[0]);
        assert_eq!(problems, []);
        folded.is_some()
    };
    assert!(ours("vestibule.dev/ingress-controller"));
    assert!(!ours("k8s.io/ingress-nginx"));
}
