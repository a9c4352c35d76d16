//! What else in the cluster serves the same Services: kube-proxy or Cilium, NodePorts, and what MetalLB left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, Pod, Service};

use super::{Finding, Verdict, finding};
use crate::controller::neighbours::{self, METALLB_WEBHOOK, Neighbours, SYSTEM, services_of};

/// The time limit for the API server's answers.
const LIMIT: Duration = Duration::from_secs(15);
/// The most objects that a finding names.
const NAMED: usize = 8;

/// What to do where something may not be read.
const RIGHTS: &str = "run it in a pod of vestibule-controller, whose account the chart gives the right to";
/// What comes of it where `ipMode` is ignored.
const IGNORED: &str = "it ignores `ipMode: Proxy`, so pods and nodes that it serves reach backends of a Service by its address past source \
                       ranges, limits and policies of ours";

/// Reads it from the API server.
pub(super) fn look() -> Vec<Finding> {
    match neighbours::read(LIMIT) {
        Ok(read) => judged(&read),
        Err(error) => vec![finding(
            Verdict::Note,
            "cluster",
            format!("not checked: {error}"),
            "run it where the API server answers, as in a pod of vestibule-controller",
        )],
    }
}

/// Says where it is checked, in the pod of an agent: agents may read nothing of it.
pub(super) fn elsewhere() -> Option<Finding> {
    let namespace = std::env::var("POD_NAMESPACE").ok()?;
    let remedy =
        format!("`kubectl -n {namespace} exec deploy/vestibule-controller -- vestibule doctor --cluster`");
    Some(finding(
        Verdict::Note,
        "cluster",
        "kube-proxy, Cilium, NodePorts and webhooks are not checked here",
        &remedy,
    ))
}

fn judged(read: &Neighbours) -> Vec<Finding> {
    let mut findings = proxies(read);
    findings.push(match &read.services {
        Ok(services) => node_ports(services),
        Err(why) => unread("NodePorts", why),
    });
    findings.push(webhook(read));
    findings
}

fn unread(what: &str, why: &str) -> Finding {
    finding(Verdict::Note, what, format!("not checked: {why}"), RIGHTS)
}

/// A release: major, minor, patch.
type Release = (u32, u32, u32);

/// Reads `v1.29.4`, `1.29.4-eks-1`, `v1.31.2+k3s1`.
fn release(text: &str) -> Option<Release> {
    let text = text.trim_start_matches('v');
    let core = text.split(['-', '+']).next()?;
    let mut numbers = core.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

/// Returns the tag of an image; `None`: it has none.
fn tag(image: &str) -> Option<&str> {
    let named = image.split('@').next()?;
    let last = named.rsplit('/').next()?;
    last.split_once(':').map(|(_, tag)| tag)
}

/// Who serves Services on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Proxy {
    KubeProxy,
    Cilium,
    /// There is no Pod of either: some distributions run kube-proxy within the kubelet's process.
    Kubelet,
}

impl Proxy {
    fn text(self) -> &'static str {
        match self {
            Self::KubeProxy => "kube-proxy",
            Self::Cilium => "Cilium",
            Self::Kubelet => "kubelet",
        }
    }

    /// Whether this release ignores `ipMode`, and what to do. Kubernetes has it since 1.29, by default since 1.30 (KEP-1860); Cilium since
    /// 1.17, and not in 1.18.0 (cilium/cilium#34780, #40913).
    fn judge(self, release: Release) -> (Verdict, String) {
        let note = |remedy: String| (Verdict::Note, remedy);
        match (self, release) {
            (Self::Cilium, (1, ..=16, _) | (0, ..)) => note(format!(
                "{IGNORED}, where it replaces kube-proxy: upgrade it to 1.17 or newer, but not to 1.18.0"
            )),
            (Self::Cilium, (1, 18, 0)) => {
                note(format!("{IGNORED}, where it replaces kube-proxy: upgrade it to 1.18.1 or newer"))
            }
            (Self::Cilium, _) => (Verdict::Ok, String::new()),
            (Self::KubeProxy | Self::Kubelet, (1, ..=28, _) | (0, ..)) => {
                note(format!("{IGNORED}: upgrade it to 1.30 or newer"))
            }
            (Self::KubeProxy | Self::Kubelet, (1, 29, _)) => note(format!(
                "{IGNORED}, unless its feature gate LoadBalancerIPMode is on: switch it on, or upgrade to 1.30 or newer"
            )),
            (Self::KubeProxy | Self::Kubelet, _) => (Verdict::Ok, String::new()),
        }
    }
}

/// Reports releases of kube-proxy and Cilium, by the nodes that run them.
fn proxies(read: &Neighbours) -> Vec<Finding> {
    let mut found: BTreeMap<(Proxy, String), BTreeSet<String>> = BTreeMap::new();
    let mut findings = Vec::new();
    match &read.proxies {
        Ok(pods) => {
            for (proxy, tag, node) in pods.iter().filter_map(proxy) {
                found.entry((proxy, tag)).or_default().insert(node);
            }
        }
        Err(why) => findings.push(unread(&format!("kube-proxy and Cilium (Pods of {SYSTEM})"), why)),
    }
    let has_pod: BTreeSet<String> = found.values().flatten().cloned().collect();
    match &read.nodes {
        Ok(nodes) => {
            for (name, version) in nodes.iter().filter_map(kubelet) {
                if !has_pod.contains(&name) {
                    found.entry((Proxy::Kubelet, version)).or_default().insert(name);
                }
            }
        }
        Err(why) => findings.push(unread("kubelets (Nodes)", why)),
    }
    findings.extend(found.into_iter().map(|((proxy, version), nodes)| {
        let of = match proxy {
            Proxy::Kubelet => "kube-proxy by kubelet".to_owned(),
            Proxy::KubeProxy | Proxy::Cilium => proxy.text().to_owned(),
        };
        let text = format!("{version} on {}", some(&nodes.into_iter().collect::<Vec<_>>(), "nodes"));
        match release(&version) {
            Some(release) => {
                let (verdict, remedy) = proxy.judge(release);
                finding(verdict, of, text, &remedy)
            }
            None => finding(
                Verdict::Note,
                of,
                format!("{text}: no release"),
                "see whether it honours `ipMode: Proxy`: kube-proxy does since 1.30, Cilium since 1.17, but for 1.18.0",
            ),
        }
    }));
    findings
}

/// Returns what a Pod runs, in which version, and where; `None`: nothing of interest.
fn proxy(pod: &Pod) -> Option<(Proxy, String, String)> {
    let spec = pod.spec.as_ref()?;
    let (proxy, container) = match pod.metadata.labels.as_ref()?.get("k8s-app")?.as_str() {
        "kube-proxy" => (Proxy::KubeProxy, "kube-proxy"),
        "cilium" => (Proxy::Cilium, "cilium-agent"),
        _ => return None,
    };
    let image = spec.containers.iter().find(|one| one.name == container)?.image.as_deref()?;
    Some((proxy, tag(image).unwrap_or(image).to_owned(), spec.node_name.clone()?))
}

fn kubelet(node: &Node) -> Option<(String, String)> {
    let info = node.status.as_ref()?.node_info.as_ref()?;
    Some((node.metadata.name.clone()?, info.kubelet_version.clone()))
}

/// Reports Services of ours with source ranges whose NodePorts take connections from everywhere.
fn node_ports(services: &[Service]) -> Finding {
    const WHAT: &str = "NodePorts past source ranges";
    let open: Vec<String> = services.iter().filter_map(open_ports).collect();
    if open.is_empty() {
        return finding(Verdict::Ok, WHAT, "none", "");
    }
    finding(
        Verdict::Note,
        WHAT,
        some(&open, "Services"),
        "source ranges hold at a Service's addresses, not at its NodePorts, which are open at each node's address: set \
         `allocateLoadBalancerNodePorts: false` and take `nodePort` out of its ports, or filter them in front of the nodes",
    )
}

/// Annotation with source ranges, of before the field.
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";

/// Returns a Service of ours with source ranges and NodePorts, with these.
fn open_ports(service: &Service) -> Option<String> {
    let (spec, metadata) = (service.spec.as_ref()?, &service.metadata);
    let has_ranges = spec.load_balancer_source_ranges.as_ref().is_some_and(|ranges| !ranges.is_empty())
        || metadata.annotations.as_ref().is_some_and(|all| all.contains_key(RANGES));
    if spec.type_.as_deref() != Some("LoadBalancer") || !has_ranges || !is_ours(service) {
        return None;
    }
    let ports: Vec<String> =
        spec.ports.iter().flatten().filter_map(|port| port.node_port).map(|port| port.to_string()).collect();
    let name = format!("{}/{}", metadata.namespace.as_deref()?, metadata.name.as_deref()?);
    (!ports.is_empty()).then(|| format!("{name} ({})", ports.join(", ")))
}

/// Whether we serve it: its class is ours, or its status has our condition.
fn is_ours(service: &Service) -> bool {
    let class = service.spec.as_ref().and_then(|spec| spec.load_balancer_class.as_deref());
    let conditions = service.status.as_ref().and_then(|status| status.conditions.as_ref());
    let has_ours = |all: &Vec<_>| {
        let mut all = all.iter();
        all.any(|one: &k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition| {
            one.type_.starts_with("vestibule.dev/")
        })
    };
    class.is_some_and(|class| class.starts_with("vestibule.dev/")) || conditions.is_some_and(has_ours)
}

/// Reports a webhook of MetalLB with nothing behind it: changes of the pools that are read here are refused.
fn webhook(read: &Neighbours) -> Finding {
    const WHAT: &str = "MetalLB's webhook";
    let (webhook, services) = match (&read.webhook, &read.services) {
        (Ok(None), _) => return finding(Verdict::Ok, WHAT, "not there", ""),
        (Ok(Some(webhook)), Ok(services)) => (webhook, services),
        (Err(why), _) | (_, Err(why)) => return unread(WHAT, why),
    };
    let is_there = |(namespace, name): &(String, String)| {
        services.iter().any(|service| {
            service.metadata.namespace.as_ref() == Some(namespace)
                && service.metadata.name.as_ref() == Some(name)
        })
    };
    let (there, gone): (Vec<_>, Vec<_>) = services_of(webhook).into_iter().partition(is_there);
    let names = |all: &[(String, String)]| {
        let names: Vec<String> = all.iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect();
        some(&names, "Services")
    };
    let remedy = format!(
        "changes of IPAddressPools and L2Advertisements are refused: if MetalLB is not to come back, `kubectl delete \
         validatingwebhookconfiguration {METALLB_WEBHOOK}`"
    );
    if !gone.is_empty() {
        return finding(Verdict::Note, WHAT, format!("left over: {} is gone", names(&gone)), &remedy);
    }
    match &read.slices {
        Err(why) => unread(WHAT, why),
        Ok(slices) => {
            let endpoints = slices.iter().flat_map(|slice| &slice.endpoints);
            let mut ready = endpoints.filter(|one| {
                one.conditions.as_ref().is_none_or(|conditions| conditions.ready.unwrap_or(true))
            });
            match ready.next().is_some() || there.is_empty() {
                true => finding(Verdict::Ok, WHAT, "answers", ""),
                false => finding(
                    Verdict::Note,
                    WHAT,
                    format!("left over: no Pod is ready behind {}", names(&there)),
                    &remedy,
                ),
            }
        }
    }
}

/// Returns the first of these names, and how many there are.
fn some(names: &[String], what: &str) -> String {
    let named = names.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
    match names.len() {
        0..=NAMED => named,
        all => format!("{named} and {} more {what}", all - NAMED),
    }
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn objects<T: DeserializeOwned>(all: &[Value]) -> Vec<T> {
        all.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect()
    }

    fn neighbours() -> Neighbours {
        Neighbours {
            nodes: Ok(Vec::new()),
            proxies: Ok(Vec::new()),
            services: Ok(Vec::new()),
            webhook: Ok(None),
            slices: Ok(Vec::new()),
        }
    }

    /// As kubeadm and Cilium's chart make them.
    fn pod(app: &str, image: &str, node: &str) -> Value {
        let container = if app == "cilium" { "cilium-agent" } else { app };
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": format!("{app}-{node}"), "namespace": "kube-system", "labels": {"k8s-app": app}},
            "spec": {"nodeName": node, "containers": [{"name": "other", "image": "x:v9"}, {"name": container, "image": image}]},
        })
    }

    fn node(name: &str, version: &str) -> Value {
        let info = json!({
            "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "containerd://2.0.0", "kernelVersion": "6.12",
            "kubeProxyVersion": version, "kubeletVersion": version, "machineID": "m", "operatingSystem": "linux",
            "osImage": "Debian", "systemUUID": "s",
        });
        json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"nodeInfo": info}})
    }

    fn found(findings: &[Finding]) -> Vec<(&str, &str, &str)> {
        findings.iter().map(|one| (one.verdict.text(), one.what.as_str(), one.found.as_str())).collect()
    }

    #[test]
    fn releases_that_ignore_ip_mode_are_named_with_their_nodes() {
        for (app, image, is_note) in [
            ("kube-proxy", "registry.k8s.io/kube-proxy:v1.28.15", true),
            ("kube-proxy", "registry.k8s.io/kube-proxy:v1.29.4", true),
            ("kube-proxy", "localhost:5000/kube-proxy:v1.30.0@sha256:0a", false),
            ("kube-proxy", "registry.k8s.io/kube-proxy:v1.36.1-eks-1", false),
            ("kube-proxy", "localhost:5000/kube-proxy", true),
            ("cilium", "quay.io/cilium/cilium:v1.16.9@sha256:0a", true),
            ("cilium", "quay.io/cilium/cilium:v1.17.0", false),
            ("cilium", "quay.io/cilium/cilium:v1.18.0", true),
            ("cilium", "quay.io/cilium/cilium:v1.18.1", false),
            ("cilium", "quay.io/cilium/cilium:latest", true),
        ] {
            let read = Neighbours { proxies: Ok(objects(&[pod(app, image, "n1")])), ..neighbours() };
            let findings = proxies(&read);
            let [one] = findings.as_slice() else { panic!("{image}: {} findings", findings.len()) };
            assert_eq!(one.verdict == Verdict::Note, is_note, "{image}: {} {}", one.found, one.remedy);
            assert_eq!(one.remedy.is_empty(), !is_note, "{image}");
        }
        let pods = [("n1", "v1.29.4"), ("n2", "v1.29.4"), ("n3", "v1.31.0")];
        let pods = pods.map(|(node, tag)| pod("kube-proxy", &format!("r/kube-proxy:{tag}"), node));
        // One node has no Pod of either, as with k3s.
        let nodes = ["n1", "n2", "n3", "n4"].map(|name| node(name, "v1.28.2+k3s1"));
        let read = Neighbours { proxies: Ok(objects(&pods)), nodes: Ok(objects(&nodes)), ..neighbours() };
        let findings = proxies(&read);
        let expected = [
            ("note", "kube-proxy", "v1.29.4 on n1, n2"),
            ("ok", "kube-proxy", "v1.31.0 on n3"),
            ("note", "kube-proxy by kubelet", "v1.28.2+k3s1 on n4"),
        ];
        assert_eq!(found(&findings), expected);
        assert!(findings[0].remedy.contains("LoadBalancerIPMode") && findings[2].remedy.contains("1.30"));
    }

    #[test]
    fn what_may_not_be_read_is_said_with_the_pod_that_may() {
        let refused = "403 Forbidden: pods is forbidden".to_owned();
        let read = Neighbours {
            nodes: Err(refused.clone()),
            proxies: Err(refused.clone()),
            services: Err(refused.clone()),
            webhook: Err(refused.clone()),
            slices: Err(refused),
        };
        let findings = judged(&read);
        assert_eq!(findings.len(), 4);
        for one in findings {
            assert_eq!(one.verdict, Verdict::Note, "{}", one.what);
            assert!(one.found.starts_with("not checked: 403") && one.remedy.contains("vestibule-controller"));
        }
    }

    fn service(name: &str, spec: Value) -> Value {
        let mut service = json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": name, "namespace": "t"},
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "vestibule.dev/lb",
                "loadBalancerSourceRanges": ["192.0.2.0/24"],
                "ports": [{"port": 443, "nodePort": 30443}, {"port": 80, "nodePort": 30080}],
            },
        });
        for (field, value) in spec.as_object().unwrap() {
            service["spec"][field] = value.clone();
        }
        service
    }

    #[test]
    fn node_ports_of_services_with_source_ranges_are_named() {
        let mut annotated = service("annotated", json!({"loadBalancerSourceRanges": null}));
        annotated["metadata"]["annotations"] = json!({RANGES: "192.0.2.0/24"});
        let mut adopted = service("adopted", json!({"loadBalancerClass": null}));
        adopted["status"] = json!({"conditions": [{"type": "vestibule.dev/Programmed", "status": "True", "reason": "x",
            "message": "", "lastTransitionTime": "2026-11-29T10:00:00Z"}]});
        let all = [
            service("open", json!({})),
            annotated,
            adopted,
            service("no-ports", json!({"ports": [{"port": 443}]})),
            service("no-ranges", json!({"loadBalancerSourceRanges": []})),
            service("inside", json!({"type": "ClusterIP", "loadBalancerClass": null})),
            service("theirs", json!({"loadBalancerClass": "example.com/lb"})),
        ];
        let one = node_ports(&objects(&all));
        assert_eq!(one.verdict, Verdict::Note);
        assert_eq!(one.found, "t/open (30443, 30080), t/annotated (30443, 30080), t/adopted (30443, 30080)");
        let many: Vec<Value> = (0..20).map(|at| service(&format!("s{at}"), json!({}))).collect();
        assert!(node_ports(&objects(&many)).found.ends_with(" and 12 more Services"));
        assert_eq!(node_ports(&objects(&all[3..])).verdict, Verdict::Ok);
    }

    #[test]
    fn a_webhook_with_nothing_behind_it_is_left_over() {
        // As in MetalLB's manifests.
        let hook = |name: &str| {
            json!({
                "name": format!("{name}.metallb.io"), "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
                "sideEffects": "None",
                "clientConfig": {"service": {"name": "metallb-webhook-service", "namespace": "metallb-system", "path": "/x"}},
            })
        };
        let webhook_of = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": METALLB_WEBHOOK},
            "webhooks": [hook("ipaddresspoolvalidationwebhook"), hook("l2advertisementvalidationwebhook")],
        });
        let its = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "metallb-webhook-service", "namespace": "metallb-system"}, "spec": {}});
        let slice = |ready: bool| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "x"},
                "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
        };
        let look = |webhook_of: Option<&Value>, services: &[Value], slices: &[Value]| {
            let hook = webhook_of.map(|one| serde_json::from_value(one.clone()).unwrap());
            let read = Neighbours {
                webhook: Ok(hook),
                services: Ok(objects(services)),
                slices: Ok(objects(slices)),
                ..neighbours()
            };
            webhook(&read)
        };
        let there = std::slice::from_ref(&its);
        assert_eq!(look(None, &[], &[]).verdict, Verdict::Ok);
        assert_eq!(look(Some(&webhook_of), there, &[slice(false), slice(true)]).verdict, Verdict::Ok);
        for (services, slices, why) in [
            (&[][..], &[][..], "left over: metallb-system/metallb-webhook-service is gone"),
            (there, &[][..], "left over: no Pod is ready behind metallb-system/metallb-webhook-service"),
            (
                there,
                &[slice(false)][..],
                "left over: no Pod is ready behind metallb-system/metallb-webhook-service",
            ),
        ] {
            let one = look(Some(&webhook_of), services, slices);
            assert_eq!((one.verdict, one.found.as_str()), (Verdict::Note, why));
            assert!(
                one.remedy
                    .contains("kubectl delete validatingwebhookconfiguration metallb-webhook-configuration")
            );
        }
    }
}
