//! What else in the cluster serves the same Services, for who asks once.

use super::ask::{AskError, ask};
use super::metallb::{FIELDS, LABELS};
use super::writes::short;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};
use kube::Client;
use kube::api::{Api, ListParams};
use std::collections::BTreeSet;
use std::time::Duration;

/// Name of MetalLB's webhook, of its manifests and of its chart.
pub const METALLB_WEBHOOK: &str = "metallb-webhook-configuration";
/// Name of the Service that it leads to, of its manifests and of its chart.
const METALLB_SERVICE: &str = "metallb-webhook-service";
/// The namespace where kube-proxy and Cilium are looked for.
pub const SYSTEM: &str = "kube-system";
/// Labels of kube-proxy and of Cilium's agents, as kubeadm and Cilium's chart set them.
const PROXIES: &str = "k8s-app in (kube-proxy,cilium)";
/// Annotation with source ranges, of before the field.
const RANGES: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
/// How our classes and conditions begin.
const OURS: &str = "vestibule.dev/";

/// What was read; `Err`: why it could not be.
pub type Read<T> = Result<T, String>;

/// Who serves Services on a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Proxy {
    /// Its Pod.
    KubeProxy,
    /// The Pod of its agent.
    Cilium,
    /// Where there is no Pod of either: some distributions run kube-proxy within the kubelet's process.
    Kubelet,
}

/// In which version it runs on which node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runs {
    /// What runs.
    pub proxy: Proxy,
    /// The tag of its image, or the kubelet's version.
    pub version: String,
    /// Name of the node.
    pub node: String,
}

/// MetalLB's webhook.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Webhook {
    /// There is none.
    Absent,
    /// A Pod is ready behind it.
    Answers,
    /// These Services, to which it leads, are gone: `namespace/name`.
    Gone(Vec<String>),
    /// No Pod is ready behind these Services.
    Silent(Vec<String>),
}

/// Where MetalLB runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Speakers {
    /// Namespaces, in order, where Pods of it run, or one is ready behind its webhook's Service.
    pub namespaces: BTreeSet<String>,
    /// Why its Pods could not be listed in all namespaces: its speakers may be elsewhere; `None`: they were.
    pub unlisted: Option<String>,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// Pods of kube-proxy and Cilium.
    pub proxies: Read<Vec<Runs>>,
    /// Kubelets of all nodes.
    pub kubelets: Read<Vec<Runs>>,
    /// Services of ours with source ranges and NodePorts: `namespace/name (port, port)`.
    pub node_ports: Read<Vec<String>>,
    /// MetalLB's webhook.
    pub webhook: Read<Webhook>,
    /// MetalLB itself, in whatever namespace.
    pub speakers: Read<Speakers>,
}

/// Reads it with the rights of this pod.
pub fn read(limit: Duration) -> Result<Neighbours, AskError> {
    ask(limit, |client| async move {
        let why = |error: kube::Error| short(&error);
        let all = ListParams::default();
        let nodes = Api::<Node>::all(client.clone()).list(&all).await.map_err(why);
        let by_label = ListParams::default().labels(PROXIES);
        let pods = Api::<Pod>::namespaced(client.clone(), SYSTEM).list(&by_label).await.map_err(why);
        let services = Api::<Service>::all(client.clone()).list(&all).await.map_err(why);
        let services = services.map(|list| list.items);
        let hooks = Api::<ValidatingWebhookConfiguration>::all(client.clone());
        let hook = hooks.get_opt(METALLB_WEBHOOK).await.map_err(why);
        let mut slices = Ok(Vec::new());
        for (namespace, name) in hook.iter().flatten().flat_map(services_of) {
            let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
            let found = Api::<EndpointSlice>::namespaced(client.clone(), &namespace).list(&of_service).await;
            match (found, &mut slices) {
                (Ok(found), Ok(slices)) => slices.extend(found.items),
                (Err(error), _) => slices = Err(short(&error)),
                (Ok(_), Err(_)) => {}
            }
        }
        let speakers = speakers(&client).await;
        Ok(Neighbours {
            speakers,
            proxies: pods.map(|list| list.items.iter().filter_map(proxy).collect()),
            kubelets: nodes.map(|list| list.items.iter().filter_map(kubelet).collect()),
            node_ports: services.as_deref().map(node_ports).map_err(Clone::clone),
            webhook: webhook(hook, services, slices),
        })
    })
}

/// Looks for MetalLB in all namespaces: for its Pods, if they may be listed, and for what is ready behind its webhook's Service, which
/// any controller of ours may read.
async fn speakers(client: &Client) -> Read<Speakers> {
    let mut found = Speakers::default();
    for labels in LABELS {
        let running = ListParams::default().match_any().labels(labels).fields(FIELDS);
        match Api::<Pod>::all(client.clone()).list_metadata(&running).await {
            Ok(pods) => {
                found.namespaces.extend(pods.items.into_iter().filter_map(|pod| pod.metadata.namespace))
            }
            Err(error) => found.unlisted = Some(short(&error)),
        }
    }
    let of_webhook = ListParams::default().labels(&format!("kubernetes.io/service-name={METALLB_SERVICE}"));
    match Api::<EndpointSlice>::all(client.clone()).list(&of_webhook).await {
        Ok(slices) => found.namespaces.extend(slices.items.into_iter().filter_map(ready_in)),
        Err(error) if found.unlisted.is_some() => return Err(short(&error)),
        Err(_) => {}
    }
    Ok(found)
}

/// Returns the namespace of a slice with an endpoint that is ready.
fn ready_in(slice: EndpointSlice) -> Option<String> {
    let is_ready = slice.endpoints.iter().any(is_ready);
    slice.metadata.namespace.filter(|_| is_ready)
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().is_none_or(|conditions| conditions.ready.unwrap_or(true))
}

/// Returns the tag of an image; `None`: it has none.
fn tag(image: &str) -> Option<&str> {
    let named = image.split('@').next()?;
    let last = named.rsplit('/').next()?;
    last.split_once(':').map(|(_, tag)| tag)
}

/// Returns what a Pod runs; `None`: nothing of interest.
fn proxy(pod: &Pod) -> Option<Runs> {
    let spec = pod.spec.as_ref()?;
    let (proxy, container) = match pod.metadata.labels.as_ref()?.get("k8s-app")?.as_str() {
        "kube-proxy" => (Proxy::KubeProxy, "kube-proxy"),
        "cilium" => (Proxy::Cilium, "cilium-agent"),
        _ => return None,
    };
    let image = spec.containers.iter().find(|one| one.name == container)?.image.as_deref()?;
    Some(Runs { proxy, version: tag(image).unwrap_or(image).to_owned(), node: spec.node_name.clone()? })
}

fn kubelet(node: &Node) -> Option<Runs> {
    let version = node.status.as_ref()?.node_info.as_ref()?.kubelet_version.clone();
    Some(Runs { proxy: Proxy::Kubelet, version, node: node.metadata.name.clone()? })
}

fn node_ports(services: &[Service]) -> Vec<String> {
    services.iter().filter_map(open_ports).collect()
}

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
    let conditions = service.status.iter().flat_map(|status| status.conditions.iter().flatten());
    class.is_some_and(|class| class.starts_with(OURS))
        || conditions.map(|condition| &condition.type_).any(|kind| kind.starts_with(OURS))
}

/// Namespaces and names of the Services that a webhook leads to, each once.
fn services_of(hook: &ValidatingWebhookConfiguration) -> Vec<(String, String)> {
    let services = hook.webhooks.iter().flatten().filter_map(|one| one.client_config.service.as_ref());
    let mut all: Vec<_> = services.map(|service| (service.namespace.clone(), service.name.clone())).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Returns whether there is something behind MetalLB's webhook.
fn webhook(
    hook: Read<Option<ValidatingWebhookConfiguration>>,
    services: Read<Vec<Service>>,
    slices: Read<Vec<EndpointSlice>>,
) -> Read<Webhook> {
    let Some(hook) = hook? else { return Ok(Webhook::Absent) };
    let services = services?;
    let is_there = |(namespace, name): &(String, String)| {
        services.iter().map(|service| &service.metadata).any(|metadata| {
            metadata.namespace.as_ref() == Some(namespace) && metadata.name.as_ref() == Some(name)
        })
    };
    let (there, gone): (Vec<_>, Vec<_>) = services_of(&hook).into_iter().partition(is_there);
    let names = |all: Vec<(String, String)>| {
        all.into_iter().map(|(namespace, name)| format!("{namespace}/{name}")).collect()
    };
    if !gone.is_empty() {
        return Ok(Webhook::Gone(names(gone)));
    }
    let slices = slices?;
    let is_answered = slices.iter().flat_map(|slice| &slice.endpoints).any(is_ready);
    Ok(if is_answered || there.is_empty() { Webhook::Answers } else { Webhook::Silent(names(there)) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    fn objects<T: DeserializeOwned>(all: &[Value]) -> Vec<T> {
        all.iter().map(|one| serde_json::from_value(one.clone()).unwrap()).collect()
    }

    /// As kubeadm and Cilium's chart make them.
    fn pod(app: &str, image: &str) -> Value {
        let container = if app == "cilium" { "cilium-agent" } else { app };
        let containers = json!([{"name": "other", "image": "x:v9"}, {"name": container, "image": image}]);
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "x", "namespace": "kube-system", "labels": {"k8s-app": app}},
            "spec": {"nodeName": "n1", "containers": containers},
        })
    }

    #[test]
    fn versions_are_those_of_images_and_kubelets() {
        for (app, image, runs) in [
            ("kube-proxy", "registry.k8s.io/kube-proxy:v1.28.15", (Proxy::KubeProxy, "v1.28.15")),
            ("kube-proxy", "localhost:5000/kube-proxy:v1.30.0@sha256:0a", (Proxy::KubeProxy, "v1.30.0")),
            ("kube-proxy", "localhost:5000/kube-proxy", (Proxy::KubeProxy, "localhost:5000/kube-proxy")),
            ("cilium", "quay.io/cilium/cilium:v1.16.9@sha256:0a", (Proxy::Cilium, "v1.16.9")),
        ] {
            let pods = objects(&[pod(app, image), pod("coredns", image)]);
            let found: Vec<Runs> = pods.iter().filter_map(proxy).collect();
            let (proxy, version) = (runs.0, runs.1.to_owned());
            assert_eq!(found, [Runs { proxy, version, node: "n1".to_owned() }]);
        }
        let info = json!({
            "architecture": "amd64", "bootID": "b", "containerRuntimeVersion": "containerd://2.0.0",
            "kernelVersion": "6.12", "kubeProxyVersion": "", "kubeletVersion": "v1.28.2+k3s1", "machineID": "m",
            "operatingSystem": "linux", "osImage": "Debian", "systemUUID": "s",
        });
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n4"}, "status": {"nodeInfo": info}});
        let found = objects(&[node]).iter().filter_map(kubelet).collect::<Vec<_>>();
        let expected =
            Runs { proxy: Proxy::Kubelet, version: "v1.28.2+k3s1".to_owned(), node: "n4".to_owned() };
        assert_eq!(found, [expected]);
    }

    #[test]
    fn metallb_is_where_an_endpoint_of_its_webhook_is_ready() {
        let slice = |conditions: &Value| {
            json!({
                "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": {"name": "x", "namespace": "elsewhere"},
                "endpoints": [{"addresses": ["10.0.0.1"], "conditions": conditions}],
            })
        };
        let conditions = [json!({"ready": true}), json!({}), json!({"ready": false})];
        let slices = objects::<EndpointSlice>(&conditions.map(|one| slice(&one)));
        let found: Vec<_> = slices.into_iter().map(ready_in).collect();
        assert_eq!(found, [Some("elsewhere".to_owned()), Some("elsewhere".to_owned()), None]);
    }

    fn service(name: &str, spec: &Value) -> Value {
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
    fn node_ports_are_those_of_our_services_with_source_ranges() {
        let mut annotated = service("annotated", &json!({"loadBalancerSourceRanges": null}));
        annotated["metadata"]["annotations"] = json!({RANGES: "192.0.2.0/24"});
        let mut adopted = service("adopted", &json!({"loadBalancerClass": null}));
        let ours = json!({"type": "vestibule.dev/Programmed", "status": "True", "reason": "x", "message": "",
            "lastTransitionTime": "2026-11-29T10:00:00Z"});
        adopted["status"] = json!({"conditions": [ours]});
        let all = [
            service("open", &json!({})),
            annotated,
            adopted,
            service("no-ports", &json!({"ports": [{"port": 443}]})),
            service("no-ranges", &json!({"loadBalancerSourceRanges": []})),
            service("inside", &json!({"type": "ClusterIP"})),
            service("theirs", &json!({"loadBalancerClass": "example.com/lb"})),
        ];
        let found = node_ports(&objects(&all));
        assert_eq!(
            found,
            ["t/open (30443, 30080)", "t/annotated (30443, 30080)", "t/adopted (30443, 30080)"]
        );
    }

    #[test]
    fn a_webhook_is_left_over_where_its_service_is_gone_or_no_pod_is_ready() {
        // As in MetalLB's manifests.
        let its = json!({"name": "metallb-webhook-service", "namespace": "metallb-system", "path": "/x"});
        let one = |name: &str| {
            json!({"name": format!("{name}.metallb.io"), "admissionReviewVersions": ["v1"], "failurePolicy": "Fail",
                "sideEffects": "None", "clientConfig": {"service": its}})
        };
        let hook = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": METALLB_WEBHOOK},
            "webhooks": [one("ipaddresspoolvalidationwebhook"), one("l2advertisementvalidationwebhook")],
        });
        let hook: ValidatingWebhookConfiguration = serde_json::from_value(hook).unwrap();
        let there = json!({"apiVersion": "v1", "kind": "Service",
            "metadata": {"name": "metallb-webhook-service", "namespace": "metallb-system"}, "spec": {}});
        let slice = |ready: bool| {
            json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": {"name": "x"},
                "addressType": "IPv4", "endpoints": [{"addresses": ["10.0.0.1"], "conditions": {"ready": ready}}]})
        };
        let look = |services: &[Value], slices: &[Value]| {
            webhook(Ok(Some(hook.clone())), Ok(objects(services)), Ok(objects(slices)))
        };
        let there = [there];
        let names = || vec!["metallb-system/metallb-webhook-service".to_owned()];
        assert_eq!(webhook(Ok(None), Err("403".to_owned()), Err("403".to_owned())), Ok(Webhook::Absent));
        assert_eq!(look(&there, &[slice(false), slice(true)]), Ok(Webhook::Answers));
        assert_eq!(look(&[], &[slice(true)]), Ok(Webhook::Gone(names())));
        assert_eq!(look(&there, &[]), Ok(Webhook::Silent(names())));
        assert_eq!(look(&there, &[slice(false)]), Ok(Webhook::Silent(names())));
        let refused = webhook(Ok(Some(hook.clone())), Ok(objects(&there)), Err("403".to_owned()));
        assert_eq!(refused, Err("403".to_owned()));
    }
}
