//! Whether the agent's DaemonSet still wants an agent on this node. If not, nothing will follow changes here, and what is in the
//! kernel would lead new connections to endpoints that are gone.

use std::time::Duration;

use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{
    Node, NodeAffinity, NodeSelectorRequirement, NodeSelectorTerm, PodSpec, Taint, Toleration,
};
use kube::api::PostParams;
use kube::{Api, Client, ResourceExt};
use tokio::time::timeout;
use tracing::{debug, info, warn};

use super::identity::Identity;
use crate::sources::kubernetes::api::lease_report::leave;

/// Without an answer of the API server within this time, the node stays.
const ANSWER: Duration = Duration::from_secs(2);
/// Taints by which the cluster says how a node is. They come and go, and a DaemonSet's pods tolerate most of them.
const CONDITIONS: [&str; 2] = ["node.kubernetes.io/", "node.cloudprovider.kubernetes.io/"];

/// The DaemonSet that this agent is of.
pub(super) struct Membership {
    sets: Api<DaemonSet>,
    set: String,
    nodes: Api<Node>,
    leases: Api<Lease>,
    identity: Identity,
}

impl std::fmt::Debug for Membership {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Membership")
            .field("set", &self.set)
            .field("node", &self.identity.node)
            .finish_non_exhaustive()
    }
}

impl Membership {
    /// Of the DaemonSet of this name, in the agent's namespace.
    pub(super) fn new(client: &Client, identity: &Identity, set: &str) -> Self {
        Self {
            sets: Api::namespaced(client.clone(), &identity.namespace),
            set: set.to_owned(),
            nodes: Api::all(client.clone()),
            leases: Api::namespaced(client.clone(), &identity.namespace),
            identity: identity.clone(),
        }
    }

    /// Asks the API server whether the DaemonSet is gone, is being deleted, or does not want a pod on this node. `false` also if it
    /// does not answer in time: then the node stays.
    pub(super) async fn is_over(&self) -> bool {
        let answer = async {
            let (set, node) =
                tokio::try_join!(self.sets.get_opt(&self.set), self.nodes.get_opt(&self.identity.node))?;
            Ok::<_, kube::Error>(reason(set.as_ref(), node.as_ref()))
        };
        let set = &self.set;
        match timeout(ANSWER, answer).await {
            Ok(Ok(None)) => false,
            Ok(Ok(Some(why))) => {
                info!(set, "{why}: new connections are refused on this node from now on");
                true
            }
            Ok(Err(error)) => {
                warn!(set, %error, "whether another agent follows is not known; the node goes on to take new connections");
                false
            }
            Err(_) => {
                warn!(
                    set,
                    "no answer whether another agent follows; the node goes on to take new connections"
                );
                false
            }
        }
    }
}

impl Membership {
    /// Says in our Lease that no agent follows, so that others do not wait for this node before they announce something.
    pub(super) async fn leave(&self) {
        let lease = self.identity.lease();
        match timeout(ANSWER, self.mark(&lease)).await {
            Ok(Ok(())) => debug!(lease, "says that no agent follows"),
            Ok(Err(error)) => warn!(lease, %error, "the Lease does not say that no agent follows"),
            Err(_) => warn!(lease, "no answer: the Lease may not say that no agent follows"),
        }
    }

    async fn mark(&self, name: &str) -> kube::Result<()> {
        loop {
            let Some(mut lease) = self.leases.get_opt(name).await? else { return Ok(()) };
            let holder = lease.spec.as_ref().and_then(|spec| spec.holder_identity.as_deref());
            if holder != Some(&*self.identity.pod) {
                return Ok(());
            }
            leave(lease.annotations_mut(), &self.identity.pod);
            match self.leases.replace(name, &PostParams::default(), &lease).await {
                // It was renewed meanwhile.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => return other.map(drop),
            }
        }
    }
}

/// Why no agent follows on the node; `None`: one does, or that is not known.
fn reason(set: Option<&DaemonSet>, node: Option<&Node>) -> Option<&'static str> {
    let Some(set) = set else { return Some("the DaemonSet is gone") };
    if set.metadata.deletion_timestamp.is_some() {
        return Some("the DaemonSet is being deleted");
    }
    // Without its Node object, as when it is registered again, nothing is known.
    let (node, spec) = (node?, set.spec.as_ref()?.template.spec.as_ref()?);
    (!wants(spec, node)).then_some("the DaemonSet does not select this node any more")
}

/// Whether pods like this belong on the node, as the DaemonSet controller judges it.
fn wants(pod: &PodSpec, node: &Node) -> bool {
    let labels = node.labels();
    let selector = pod.node_selector.iter().flatten();
    let is_selected = { selector }.all(|(key, value)| labels.get(key) == Some(value));
    let affinity = pod.affinity.as_ref().and_then(|affinity| affinity.node_affinity.as_ref());
    let is_attracted = affinity.is_none_or(|affinity| attracts(affinity, node));
    let taints = node.spec.as_ref().and_then(|spec| spec.taints.as_deref()).unwrap_or_default();
    let tolerations = pod.tolerations.as_deref().unwrap_or_default();
    let repels = |taint: &&Taint| {
        taint.effect != "PreferNoSchedule"
            && !CONDITIONS.iter().any(|prefix| taint.key.starts_with(prefix))
            && !tolerations.iter().any(|toleration| tolerates(toleration, taint))
    };
    is_selected && is_attracted && taints.iter().find(repels).is_none()
}

fn attracts(affinity: &NodeAffinity, node: &Node) -> bool {
    let Some(required) = &affinity.required_during_scheduling_ignored_during_execution else { return true };
    required.node_selector_terms.iter().any(|term| is_met(term, node))
}

/// Whether a node meets all of a term's requirements. One without any is met by none.
fn is_met(term: &NodeSelectorTerm, node: &Node) -> bool {
    let (labels, fields) = (term.match_expressions.iter().flatten(), term.match_fields.iter().flatten());
    let is_empty = labels.clone().chain(fields.clone()).next().is_none();
    let of_labels =
        |one: &NodeSelectorRequirement| holds(one, node.labels().get(&one.key).map(String::as_str));
    // `metadata.name` is the only one.
    let of_fields = |one: &NodeSelectorRequirement| holds(one, node.metadata.name.as_deref());
    !is_empty && { labels }.all(of_labels) && { fields }.all(of_fields)
}

/// Whether a value meets a requirement. An operator that is not known is met: the node stays.
fn holds(requirement: &NodeSelectorRequirement, value: Option<&str>) -> bool {
    let values = requirement.values.as_deref().unwrap_or_default();
    let is_in = || value.is_some_and(|value| values.iter().any(|other| other == value));
    let number = |text: &str| text.parse::<i64>().ok();
    let bound = values.first().and_then(|bound| number(bound));
    match requirement.operator.as_str() {
        "In" => is_in(),
        "NotIn" => !is_in(),
        "Exists" => value.is_some(),
        "DoesNotExist" => value.is_none(),
        "Gt" => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value > bound),
        "Lt" => value.and_then(number).zip(bound).is_some_and(|(value, bound)| value < bound),
        _ => true,
    }
}

/// Whether a toleration is one for a taint, as `kubectl explain pod.spec.tolerations` says.
fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
    let is_unset = |text: &Option<String>| text.as_deref().is_none_or(str::is_empty);
    let is_effect = is_unset(&toleration.effect) || toleration.effect.as_ref() == Some(&taint.effect);
    let is_key = is_unset(&toleration.key) || toleration.key.as_ref() == Some(&taint.key);
    let is_value = match toleration.operator.as_deref() {
        Some("Exists") => true,
        Some("Equal" | "") | None => {
            toleration.value.as_deref().unwrap_or_default() == taint.value.as_deref().unwrap_or_default()
                && !is_unset(&toleration.key)
        }
        Some(_) => true,
    };
    is_effect && is_key && is_value
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn set(pod: Value) -> DaemonSet {
        let mut pod = pod;
        pod["containers"] = json!([]);
        let spec = json!({"selector": {}, "template": {"spec": pod}});
        serde_json::from_value(json!({"metadata": {"name": "vestibule-agent"}, "spec": spec})).unwrap()
    }

    fn node(labels: Value, taints: Value) -> Node {
        serde_json::from_value(
            json!({"metadata": {"name": "n1", "labels": labels}, "spec": {"taints": taints}}),
        )
        .unwrap()
    }

    fn stays(pod: Value, labels: Value, taints: Value) -> bool {
        reason(Some(&set(pod)), Some(&node(labels, taints))).is_none()
    }

    #[test]
    fn a_daemon_set_that_is_gone_or_goes_leaves_every_node() {
        let here = node(json!({}), json!([]));
        assert_eq!(reason(None, Some(&here)), Some("the DaemonSet is gone"));
        let mut going = set(json!({}));
        assert_eq!(reason(Some(&going), Some(&here)), None);
        assert_eq!(reason(Some(&going), None), None, "of a node that is not known nothing is known");
        going.metadata.deletion_timestamp = serde_json::from_value(json!("2026-01-01T00:00:00Z")).unwrap();
        assert_eq!(reason(Some(&going), None), Some("the DaemonSet is being deleted"));
    }

    #[test]
    fn labels_select_nodes() {
        let pod = json!({"nodeSelector": {"role": "edge", "site": "a"}});
        assert!(stays(pod.clone(), json!({"role": "edge", "site": "a", "more": ""}), json!([])));
        assert!(!stays(pod.clone(), json!({"role": "edge"}), json!([])));
        assert!(!stays(pod, json!({"role": "edge", "site": "b"}), json!([])));
    }

    #[test]
    fn required_affinity_selects_nodes_and_preferred_does_not() {
        let pod = |terms: Value| {
            let required = json!({"nodeSelectorTerms": terms});
            json!({"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}})
        };
        let expression = |key: &str, operator: &str, values: &[&str]| json!([{"matchExpressions": [{"key": key, "operator": operator, "values": values}]}]);
        let labels = json!({"role": "edge", "size": "12"});
        for (key, operator, values, stay) in [
            ("role", "In", &["core", "edge"][..], true),
            ("role", "In", &["core"], false),
            ("role", "NotIn", &["core"], true),
            ("role", "NotIn", &["edge"], false),
            ("none", "NotIn", &["edge"], true),
            ("role", "Exists", &[], true),
            ("none", "Exists", &[], false),
            ("none", "DoesNotExist", &[], true),
            ("role", "DoesNotExist", &[], false),
            ("size", "Gt", &["11"], true),
            ("size", "Gt", &["12"], false),
            ("size", "Lt", &["13"], true),
            ("size", "Lt", &["12"], false),
            ("role", "Lt", &["12"], false),
            ("role", "Matches", &["e.*"], true),
        ] {
            let terms = expression(key, operator, values);
            assert_eq!(stays(pod(terms), labels.clone(), json!([])), stay, "{key} {operator} {values:?}");
        }
        let name = |name: &str| json!([{"matchFields": [{"key": "metadata.name", "operator": "In", "values": [name]}]}]);
        assert!(stays(pod(name("n1")), json!({}), json!([])));
        assert!(!stays(pod(name("n2")), json!({}), json!([])));
        // One of the terms is enough, and an empty one is met by no node.
        assert!(stays(pod(json!([{}, name("n1")[0]])), json!({}), json!([])));
        assert!(!stays(pod(json!([{}])), json!({}), json!([])));
        let preferred = json!([{"weight": 1, "preference": name("n2")[0]}]);
        let pod = json!({"affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}});
        assert!(stays(pod, json!({}), json!([])));
    }

    #[test]
    fn taints_repel_unless_they_are_tolerated_or_say_how_the_node_is() {
        let taint = |key: &str, effect: &str| json!([{"key": key, "value": "v", "effect": effect}]);
        let pod = |tolerations: Value| json!({"tolerations": tolerations});
        for effect in ["NoSchedule", "NoExecute"] {
            assert!(!stays(pod(json!([])), json!({}), taint("k", effect)));
            for tolerated in [
                json!({"operator": "Exists"}),
                json!({"key": "k", "operator": "Exists"}),
                json!({"key": "k", "value": "v"}),
                json!({"key": "k", "operator": "Equal", "value": "v", "effect": effect}),
            ] {
                assert!(stays(pod(json!([tolerated])), json!({}), taint("k", effect)), "{tolerated}");
            }
            for other in [
                json!({"key": "other", "operator": "Exists"}),
                json!({"key": "k"}),
                json!({"key": "k", "value": "w"}),
                json!({"key": "k", "value": "v", "effect": "PreferNoSchedule"}),
            ] {
                assert!(!stays(pod(json!([other])), json!({}), taint("k", effect)), "{other}");
            }
            for condition in ["node.kubernetes.io/unreachable", "node.cloudprovider.kubernetes.io/shutdown"] {
                assert!(stays(pod(json!([])), json!({}), taint(condition, effect)));
            }
        }
        assert!(stays(pod(json!([])), json!({}), taint("k", "PreferNoSchedule")));
    }
}
