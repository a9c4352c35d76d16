//! Compares the rights that the chart's roles grant with those that are used, as the API server's audit log shows.

use std::collections::BTreeSet;
use std::time::Duration;

use serde_json::Value;
use tests::cluster::{Cluster, streamed};

use crate::scene::{PATIENCE, RELEASE, Tenant, condition, install};

/// A verb on a resource, `verb group/resource[/subresource]`.
type Right = String;

/// A request that was refused.
#[derive(Debug)]
struct Refused {
    right: Right,
    /// The object's; empty: none was named.
    name: String,
    message: String,
}

/// What an account asked for.
#[derive(Debug, Default)]
struct Asked {
    used: BTreeSet<Right>,
    /// What was not refused, by the object's name.
    answered: BTreeSet<(Right, String)>,
    refused: Vec<Refused>,
}

impl Asked {
    /// Returns what was refused, but by an API server that had just started, as in another test: for a moment it refuses what it grants once
    /// it has read all roles. What has a name must have been answered at another time; what admission denies is no such thing. Nor is an
    /// Event refused for want of a right where another test's namespace is about to go: nothing can be created there any more.
    fn refused(&self, granted: &BTreeSet<Right>) -> Vec<&Refused> {
        let is_early = |refused: &&Refused| match &*refused.name {
            _ if refused.message.contains("because it is being terminated") => {
                granted.contains(&refused.right)
            }
            _ if refused.message.contains("denied request") => false,
            "" => granted.contains(&refused.right),
            name => self.answered.contains(&(refused.right.clone(), name.to_owned())),
        };
        self.refused.iter().filter(|refused| !is_early(refused)).collect()
    }
}

/// The NodeState that a node left behind when it was removed.
const GONE: &str = r#"
apiVersion: vestibule.dev/v1alpha1
kind: NodeState
metadata: {name: gone}
spec: {node: gone, pod: agent-of-gone, version: "0"}
"#;

const EVERY_KIND: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: every}
spec:
  gatewayClassName: vestibule
  allowedListeners: {namespaces: {from: Same}}
  listeners:
  - {name: tcp, protocol: TCP, port: 7000}
---
apiVersion: gateway.networking.k8s.io/v1
kind: ListenerSet
metadata: {name: every}
spec:
  parentRef: {name: every}
  listeners:
  - {name: more, protocol: TCP, port: 7001}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: every}
spec:
  parentRefs: [{name: every}]
  rules:
  - backendRefs: [{name: tenant, port: 6443}]
---
apiVersion: v1
kind: Service
metadata: {name: balanced, annotations: {vestibule.dev/addresses: 198.51.100.77}}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  selector: {app: tenant}
  ports: [{port: 6443, targetPort: 8443}]
---
apiVersion: v1
kind: Service
metadata: {name: outside, annotations: {vestibule.dev/addresses: 203.0.113.9}}
spec:
  type: LoadBalancer
  loadBalancerClass: vestibule.dev/lb
  selector: {app: tenant}
  ports: [{port: 6443, targetPort: 8443}]
"#;

#[test]
fn nothing_is_refused_and_every_right_is_used() {
    let cluster = Cluster::shared().unwrap();
    install(&cluster);
    let tenant = Tenant::new(&cluster, "rights").unwrap();
    tenant.namespace.apply(EVERY_KIND).unwrap();
    let programmed = |object: &Value| condition(&object["status"], "Programmed") == Some("True".into());
    for kind in ["gateway", "listenerset"] {
        tenant.namespace.wait_for("programmed", &[kind, "every"], PATIENCE, programmed).unwrap();
    }
    let served = |service: &Value| {
        let ingress = &service["status"]["loadBalancer"]["ingress"][0];
        ingress["ip"] == "198.51.100.77" && ingress["ipMode"] == "Proxy"
    };
    tenant.namespace.wait_for("ingress", &["service", "balanced"], PATIENCE, served).unwrap();
    let told = |events: &Value| {
        let mut events = events["items"].as_array().into_iter().flatten();
        events.any(|event| event["regarding"]["name"] == "outside")
    };
    tenant.namespace.wait_for("an Event", &["events.events.k8s.io"], PATIENCE, told).unwrap();
    let outside = tenant.namespace.get(&["service", "outside"]).unwrap();
    assert!(outside["status"]["loadBalancer"]["ingress"].is_null(), "{outside:#}");
    what_happens_seldom(&cluster, &tenant);
    // A Lease is renewed every three seconds; the log is written a moment later.
    std::thread::sleep(Duration::from_secs(5));

    for account in ["agent", "controller"] {
        let asked = asked(&cluster, account);
        let granted = granted(&cluster, account);
        let (used, refused) = (&asked.used, asked.refused(&granted));
        assert!(refused.is_empty(), "{account}: {refused:#?}");
        // This API server streams the initial objects; a control test shows that others receive list requests.
        let all = streamed(account);
        let is_streamed = |right: &str| right.strip_prefix("list ").is_some_and(|what| all.contains(&what));
        let unused: Vec<_> = granted.difference(used).filter(|right| !is_streamed(right)).collect();
        assert!(unused.is_empty(), "{account} never used {unused:?}");
        let beyond: Vec<_> = used.difference(&granted).collect();
        assert!(beyond.is_empty(), "{account} used what its roles do not give: {beyond:?}");
    }
}

/// Triggers what happens rarely: keys change, an agent is replaced, a node stays away, and a problem is reported again.
fn what_happens_seldom(cluster: &Cluster, tenant: &Tenant) {
    let kubectl = cluster.kubectl();
    let secret = ["-n", RELEASE, "secret", "vestibule-keys"];
    let keys = kubectl.get(&secret).unwrap()["data"].clone();
    kubectl.wait_for("other keys", &secret, PATIENCE, |secret| secret["data"] != keys).unwrap();

    let states = kubectl.get(&["nodestates"]).unwrap();
    let state = &states["items"][0];
    let (node, pod) = (state["spec"]["node"].as_str().unwrap(), state["spec"]["pod"].as_str().unwrap());
    kubectl.run(&["-n", RELEASE, "delete", "pod", pod]).unwrap();
    kubectl
        .wait_for("a state of its next agent", &["nodestate", node], PATIENCE, |state| {
            state["spec"]["pod"] != pod
        })
        .unwrap();

    // What is announced changes seldom, and nobody but the controller may change it.
    let mut object = kubectl.get(&["announcement", "vestibule"]).unwrap();
    let said = object["spec"].clone();
    object["spec"]["agentGraceSeconds"] = 1.into();
    let account = format!("--as=system:serviceaccount:{RELEASE}:vestibule-controller");
    kubectl.feed(&["replace", &account, "-f", "-"], &object.to_string()).unwrap();
    kubectl
        .wait_for("it is put back", &["announcement", "vestibule"], PATIENCE, |object| object["spec"] == said)
        .unwrap();

    kubectl.apply(GONE).unwrap();
    let is_gone = |states: &Value| {
        let mut states = states["items"].as_array().unwrap().iter();
        states.all(|state| state["metadata"]["name"] != "gone")
    };
    kubectl.wait_for("its NodeState to go", &["nodestates"], PATIENCE, is_gone).unwrap();
    // Its Claim goes with it.
    tenant.namespace.run(&["delete", "tcproute", "every"]).unwrap();

    let annotate = |what: &str| {
        tenant.namespace.run(&["annotate", "--overwrite", "service", "outside", what]).unwrap();
    };
    annotate("vestibule.dev/addresses=198.51.100.78");
    let served = |service: &Value| service["status"]["loadBalancer"]["ingress"][0]["ip"] == "198.51.100.78";
    tenant.namespace.wait_for("ingress", &["service", "outside"], PATIENCE, served).unwrap();
    annotate("vestibule.dev/addresses=203.0.113.9");
    let told_twice = |events: &Value| {
        let mut events = events["items"].as_array().unwrap().iter();
        events.any(|event| event["regarding"]["name"] == "outside" && event["series"]["count"] == 2)
    };
    tenant
        .namespace
        .wait_for("the same Event again", &["events.events.k8s.io"], PATIENCE, told_twice)
        .unwrap();
}

/// Returns what an account asked for, by the audit log.
fn asked(cluster: &Cluster, account: &str) -> Asked {
    let user = format!("system:serviceaccount:{RELEASE}:vestibule-{account}");
    let mut asked = Asked::default();
    let log = std::fs::read_to_string(cluster.audit_log()).unwrap();
    for line in log.lines() {
        // The last line may be incomplete.
        let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
        let object = &event["objectRef"];
        if event["user"]["username"] != user.as_str() || object.is_null() {
            continue;
        }
        let text = |field: &str| object[field].as_str().unwrap_or_default();
        let mut right =
            format!("{} {}/{}", event["verb"].as_str().unwrap(), text("apiGroup"), text("resource"));
        if !text("subresource").is_empty() {
            right += &format!("/{}", text("subresource"));
        }
        let name = text("name").to_owned();
        if event["responseStatus"]["code"] == 403 {
            let message = event["responseStatus"]["message"].to_string();
            asked.refused.push(Refused { right: right.clone(), name, message });
        } else {
            asked.answered.insert((right.clone(), name));
        }
        asked.used.insert(right);
    }
    asked
}

/// Returns the rights granted by the roles bound to an account.
fn granted(cluster: &Cluster, account: &str) -> BTreeSet<Right> {
    let subject = |binding: &Value| {
        let mut subjects = binding["subjects"].as_array().into_iter().flatten();
        subjects.any(|subject| {
            subject["name"] == format!("vestibule-{account}") && subject["namespace"] == RELEASE
        })
    };
    let kubectl = cluster.kubectl();
    let mut rights = BTreeSet::new();
    for (bindings, roles) in [("clusterrolebindings", "clusterrole"), ("rolebindings", "role")] {
        let bindings = kubectl.get(&["-n", RELEASE, bindings]).unwrap();
        for binding in bindings["items"].as_array().unwrap().iter().filter(|binding| subject(binding)) {
            let name = binding["roleRef"]["name"].as_str().unwrap();
            let role = kubectl.get(&["-n", RELEASE, roles, name]).unwrap();
            for rule in role["rules"].as_array().unwrap() {
                let words = |field: &str| {
                    let words = rule[field].as_array().into_iter().flatten();
                    words.map(|word| word.as_str().unwrap().to_owned()).collect::<Vec<_>>()
                };
                for group in words("apiGroups") {
                    for resource in words("resources") {
                        rights.extend(words("verbs").iter().map(|verb| format!("{verb} {group}/{resource}")));
                    }
                }
            }
        }
    }
    assert!(!rights.is_empty(), "{account} has no role");
    rights
}
