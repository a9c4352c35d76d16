//! What else in the cluster serves the same Services, for who asks once.

use super::ask::{AskError, ask};
use super::writes::short;
use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
use k8s_openapi::api::core::v1::{Node, Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{Api, ListParams};
use std::time::Duration;

/// Name of MetalLB's webhook, of its manifests and of its chart.
pub const METALLB_WEBHOOK: &str = "metallb-webhook-configuration";
/// The namespace where kube-proxy and Cilium are looked for.
pub const SYSTEM: &str = "kube-system";
/// Labels of kube-proxy and of Cilium's agents, as kubeadm and Cilium's chart set them.
const PROXIES: &str = "k8s-app in (kube-proxy,cilium)";

/// What was read; `Err`: why it could not be.
pub type Read<T> = Result<T, String>;

/// What was found.
#[derive(Clone, Debug)]
pub struct Neighbours {
    /// All nodes.
    pub nodes: Read<Vec<Node>>,
    /// Pods of kube-proxy and Cilium.
    pub proxies: Read<Vec<Pod>>,
    /// All Services.
    pub services: Read<Vec<Service>>,
    /// MetalLB's webhook, if it is there.
    pub webhook: Read<Option<ValidatingWebhookConfiguration>>,
    /// EndpointSlices of the Services that the webhook leads to.
    pub slices: Read<Vec<EndpointSlice>>,
}

/// Reads it with the rights of this pod.
pub fn read(limit: Duration) -> Result<Neighbours, AskError> {
    ask(limit, |client| async move {
        let all = ListParams::default();
        let nodes = Api::<Node>::all(client.clone()).list(&all).await;
        let by_label = ListParams::default().labels(PROXIES);
        let proxies = Api::<Pod>::namespaced(client.clone(), SYSTEM).list(&by_label).await;
        let services = Api::<Service>::all(client.clone()).list(&all).await;
        let webhooks = Api::<ValidatingWebhookConfiguration>::all(client.clone());
        let webhook = webhooks.get_opt(METALLB_WEBHOOK).await.map_err(|error| short(&error));
        let mut slices = Ok(Vec::new());
        for (namespace, name) in webhook.iter().flatten().flat_map(services_of) {
            let of_service = ListParams::default().labels(&format!("kubernetes.io/service-name={name}"));
            let found = Api::<EndpointSlice>::namespaced(client.clone(), &namespace).list(&of_service).await;
            match (found, &mut slices) {
                (Ok(found), Ok(slices)) => slices.extend(found.items),
                (Err(error), _) => slices = Err(short(&error)),
                (Ok(_), Err(_)) => {}
            }
        }
        let items = |error: kube::Error| short(&error);
        Ok(Neighbours {
            nodes: nodes.map(|list| list.items).map_err(items),
            proxies: proxies.map(|list| list.items).map_err(items),
            services: services.map(|list| list.items).map_err(items),
            webhook,
            slices,
        })
    })
}

/// Namespaces and names of the Services that a webhook leads to, each once.
pub fn services_of(webhook: &ValidatingWebhookConfiguration) -> Vec<(String, String)> {
    let hooks = webhook.webhooks.iter().flatten();
    let services = hooks.filter_map(|hook| hook.client_config.service.as_ref());
    let mut all: Vec<_> = services.map(|service| (service.namespace.clone(), service.name.clone())).collect();
    all.sort_unstable();
    all.dedup();
    all
}
