//! What else in the cluster serves the same Services: kube-proxy or Cilium, NodePorts, and what MetalLB left.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::{Finding, Verdict, finding};
use crate::controller::neighbours::{self, METALLB_WEBHOOK, Neighbours, Proxy, SYSTEM, Speakers, Webhook};

/// The time limit for the API server's answers.
const LIMIT: Duration = Duration::from_secs(15);
/// The most objects that a finding names.
const NAMED: usize = 8;

/// What to do where something may not be read.
const RIGHTS: &str = "run it in a pod of vestibule-controller, whose account the chart gives the right to";
/// What comes of it where `ipMode` is ignored.
const IGNORED: &str = "it ignores `ipMode: Proxy`, so pods and nodes that it serves reach backends of a Service by its address past source \
                       ranges, limits and policies of ours";
/// What to do where no proxy was found.
const UNSEEN: &str = "kube-proxy within kubelet's process, as k3s has it, honours `ipMode: Proxy`; if another proxy serves Services there, or one \
                      from another namespace, see whether it does";
/// What to do about NodePorts.
const CLOSE: &str = "source ranges hold at a Service's addresses, not at its NodePorts, which are open at each node's address: set \
                     `allocateLoadBalancerNodePorts: false` and take `nodePort` out of its ports, or filter them in front of the nodes";

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
    let found = "kube-proxy, Cilium, NodePorts and webhooks are not checked here";
    let remedy =
        format!("`kubectl -n {namespace} exec deploy/vestibule-controller -- vestibule doctor --cluster`");
    Some(finding(Verdict::Note, "cluster", found, &remedy))
}

fn judged(read: &Neighbours) -> Vec<Finding> {
    let mut findings = proxies(read);
    let ports = "NodePorts past source ranges";
    findings.push(match &read.node_ports {
        Ok(open) if open.is_empty() => finding(Verdict::Ok, ports, "none", ""),
        Ok(open) => finding(Verdict::Note, ports, some(open, "Services"), CLOSE),
        Err(why) => unread(ports, why),
    });
    findings.push(webhook(read));
    findings.push(metallb(read));
    findings
}

/// Reports where MetalLB runs: the controller looks for it only in the namespaces that the chart names, if it names any.
fn metallb(read: &Neighbours) -> Finding {
    const WHAT: &str = "MetalLB";
    let Speakers { namespaces, unlisted } = match &read.speakers {
        Ok(found) => found,
        Err(why) => return unread(WHAT, why),
    };
    let all: Vec<String> = namespaces.iter().cloned().collect();
    match (all.as_slice(), unlisted) {
        ([], None) => finding(Verdict::Ok, WHAT, "no Pod of it runs", ""),
        ([], Some(why)) => finding(
            Verdict::Note,
            WHAT,
            format!(
                "nothing is ready behind its webhook in any namespace; its Pods may not be listed: {why}"
            ),
            "speakers without a controller go on announcing: `kubectl get pods -A -l 'app.kubernetes.io/name=metallb'` and `-l app=metallb` \
             show them",
        ),
        (all, _) => finding(
            Verdict::Note,
            WHAT,
            format!("runs in {}", some(all, "namespaces")),
            "where its addresses are among ours, both answer for them: remove it there, or name the namespace in the chart's \
             `metallb.namespaces`, so that nothing is taken from its pools, and no Service that it may serve is touched, while it runs",
        ),
    }
}

fn unread(what: &str, why: &str) -> Finding {
    finding(Verdict::Note, what, format!("not checked: {why}"), RIGHTS)
}

/// A release: major, minor, patch.
type Release = (u32, u32, u32);

/// Reads `v1.29.4`, `1.29.4-eks-1`, `v1.31.2+k3s1`.
fn release(text: &str) -> Option<Release> {
    let core = text.trim_start_matches('v').split(['-', '+']).next()?;
    let mut numbers = core.split('.').map(str::parse);
    let mut next = || numbers.next()?.ok();
    Some((next()?, next()?, next().unwrap_or(0)))
}

/// What a finding is about.
fn text(proxy: Proxy) -> &'static str {
    match proxy {
        Proxy::KubeProxy => "kube-proxy",
        Proxy::Cilium => "Cilium",
        Proxy::Kubelet => "kube-proxy by kubelet",
    }
}

/// Returns what to do about a release that ignores `ipMode`; `None`: it does not. Kubernetes has it since 1.29, by default since 1.30 (KEP-1860);
/// Cilium since 1.17, and not in 1.18.0 (cilium/cilium#34780, #40913).
fn remedy(proxy: Proxy, release: Release) -> Option<String> {
    let what = match (proxy, release) {
        (Proxy::Cilium, (1, 18, 0)) => ", where it replaces kube-proxy: upgrade it to 1.18.1 or newer",
        (Proxy::Cilium, release) if release < (1, 17, 0) => {
            ", where it replaces kube-proxy: upgrade it to 1.17 or newer, but not to 1.18.0"
        }
        (Proxy::KubeProxy | Proxy::Kubelet, release) if release < (1, 29, 0) => {
            ": upgrade it to 1.30 or newer"
        }
        (Proxy::KubeProxy | Proxy::Kubelet, (1, 29, _)) => {
            ", unless its feature gate LoadBalancerIPMode is on: switch it on, or upgrade to 1.30 or newer"
        }
        _ => return None,
    };
    Some(format!("{IGNORED}{what}"))
}

/// Reports releases of kube-proxy and Cilium, by the nodes that run them.
fn proxies(read: &Neighbours) -> Vec<Finding> {
    let mut found: BTreeMap<(Proxy, &str), BTreeSet<&str>> = BTreeMap::new();
    let mut findings = Vec::new();
    match &read.proxies {
        Ok(pods) => {
            for one in pods {
                found.entry((one.proxy, one.version.as_str())).or_default().insert(one.node.as_str());
            }
        }
        Err(why) => findings.push(unread(&format!("kube-proxy and Cilium (Pods of {SYSTEM})"), why)),
    }
    let has_pod: BTreeSet<&str> = found.values().flatten().copied().collect();
    match &read.kubelets {
        Ok(kubelets) => {
            for one in kubelets.iter().filter(|one| !has_pod.contains(one.node.as_str())) {
                found.entry((one.proxy, one.version.as_str())).or_default().insert(one.node.as_str());
            }
        }
        Err(why) => findings.push(unread("kubelets (Nodes)", why)),
    }
    findings.extend(found.into_iter().map(|((proxy, version), nodes)| {
        let nodes: Vec<String> = nodes.into_iter().map(str::to_owned).collect();
        let found = format!("{version} on {}", some(&nodes, "nodes"));
        match release(version).map(|release| remedy(proxy, release)) {
            Some(None) if proxy == Proxy::Kubelet => {
                finding(Verdict::Note, "proxy of Services", format!("no Pod of one in {SYSTEM}, kubelet {found}"), UNSEEN)
            }
            Some(None) => finding(Verdict::Ok, text(proxy), found, ""),
            Some(Some(remedy)) => finding(Verdict::Note, text(proxy), found, &remedy),
            None => finding(
                Verdict::Note,
                text(proxy),
                format!("{found}: no release"),
                "see whether it honours `ipMode: Proxy`: kube-proxy does since 1.30, Cilium since 1.17, but for 1.18.0",
            ),
        }
    }));
    findings
}

/// Reports a webhook of MetalLB with nothing behind it: changes of the pools that are read here are refused.
fn webhook(read: &Neighbours) -> Finding {
    const WHAT: &str = "MetalLB's webhook";
    let found = match &read.webhook {
        Ok(Webhook::Absent) => return finding(Verdict::Ok, WHAT, "not there", ""),
        Ok(Webhook::Answers) => return finding(Verdict::Ok, WHAT, "a Pod is ready behind it", ""),
        Ok(Webhook::Gone(services)) => {
            format!("left over: its Service is gone: {}", some(services, "Services"))
        }
        Ok(Webhook::Silent(services)) => {
            format!("left over: no Pod is ready behind {}", some(services, "Services"))
        }
        Err(why) => return unread(WHAT, why),
    };
    let remedy = format!(
        "changes of IPAddressPools and L2Advertisements are refused: if MetalLB is not to come back, `kubectl delete \
         validatingwebhookconfiguration {METALLB_WEBHOOK}`"
    );
    finding(Verdict::Note, WHAT, found, &remedy)
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
    use super::*;
    use crate::controller::neighbours::Runs;

    fn neighbours() -> Neighbours {
        Neighbours {
            proxies: Ok(Vec::new()),
            kubelets: Ok(Vec::new()),
            node_ports: Ok(Vec::new()),
            webhook: Ok(Webhook::Absent),
            speakers: Ok(Speakers::default()),
        }
    }

    fn runs(proxy: Proxy, version: &str, node: &str) -> Runs {
        Runs { proxy, version: version.to_owned(), node: node.to_owned() }
    }

    #[test]
    fn releases_that_ignore_ip_mode_are_named_with_their_nodes() {
        for (proxy, version, is_note) in [
            (Proxy::KubeProxy, "v1.28.15", true),
            (Proxy::KubeProxy, "v1.29.4", true),
            (Proxy::KubeProxy, "v1.30.0", false),
            (Proxy::KubeProxy, "v1.36.1-eks-1", false),
            (Proxy::KubeProxy, "2.0.0", false),
            (Proxy::KubeProxy, "localhost:5000/kube-proxy", true),
            (Proxy::Cilium, "v1.16.9", true),
            (Proxy::Cilium, "v1.17.0", false),
            (Proxy::Cilium, "v1.18.0", true),
            (Proxy::Cilium, "v1.18.1", false),
            (Proxy::Cilium, "latest", true),
        ] {
            let read = Neighbours { proxies: Ok(vec![runs(proxy, version, "n1")]), ..neighbours() };
            let findings = proxies(&read);
            let [one] = findings.as_slice() else { panic!("{version}: {} findings", findings.len()) };
            assert_eq!(one.verdict == Verdict::Note, is_note, "{version}: {} {}", one.found, one.remedy);
            assert_eq!(one.remedy.is_empty(), !is_note, "{version}");
        }
        let pods = [("n1", "v1.29.4"), ("n2", "v1.29.4"), ("n3", "v1.31.0")];
        let pods = pods.map(|(node, version)| runs(Proxy::KubeProxy, version, node));
        // Two nodes have no Pod of either, as with k3s. A kubelet says nothing about a proxy of a third kind.
        let mut kubelets =
            ["n1", "n2", "n3", "n4", "n5"].map(|node| runs(Proxy::Kubelet, "v1.28.2+k3s1", node));
        kubelets[4].version = "v1.31.0".to_owned();
        let read = Neighbours { proxies: Ok(pods.to_vec()), kubelets: Ok(kubelets.to_vec()), ..neighbours() };
        let findings = proxies(&read);
        let found: Vec<_> =
            findings.iter().map(|one| (one.verdict.text(), one.what.as_str(), one.found.as_str())).collect();
        let expected = [
            ("note", "kube-proxy", "v1.29.4 on n1, n2"),
            ("ok", "kube-proxy", "v1.31.0 on n3"),
            ("note", "kube-proxy by kubelet", "v1.28.2+k3s1 on n4"),
            ("note", "proxy of Services", "no Pod of one in kube-system, kubelet v1.31.0 on n5"),
        ];
        assert_eq!(found, expected);
        assert!(findings[0].remedy.contains("LoadBalancerIPMode") && findings[2].remedy.contains("1.30"));
    }

    #[test]
    fn what_may_not_be_read_is_said_with_the_pod_that_may() {
        let refused = || "403 Forbidden: pods is forbidden".to_owned();
        let findings = judged(&Neighbours {
            proxies: Err(refused()),
            kubelets: Err(refused()),
            node_ports: Err(refused()),
            webhook: Err(refused()),
            speakers: Err(refused()),
        });
        assert_eq!(findings.len(), 5);
        for one in findings {
            assert_eq!(one.verdict, Verdict::Note, "{}", one.what);
            assert!(one.found.starts_with("not checked: 403") && one.remedy.contains("vestibule-controller"));
        }
    }

    #[test]
    fn metallb_is_named_in_whatever_namespace_it_runs() {
        let found = |namespaces: &[&str], unlisted: Option<&str>| {
            let namespaces = namespaces.iter().map(|name| (*name).to_owned()).collect();
            let speakers = Ok(Speakers { namespaces, unlisted: unlisted.map(str::to_owned) });
            metallb(&Neighbours { speakers, ..neighbours() })
        };
        assert_eq!(found(&[], None).verdict, Verdict::Ok);
        for unlisted in [None, Some("403 Forbidden")] {
            let one = found(&["a", "b"], unlisted);
            assert_eq!((one.verdict, one.found.as_str()), (Verdict::Note, "runs in a, b"));
            assert!(one.remedy.contains("`metallb.namespaces`"));
        }
        let unknown = found(&[], Some("403 Forbidden"));
        assert!(
            unknown.verdict == Verdict::Note && unknown.found.ends_with("may not be listed: 403 Forbidden")
        );
    }

    #[test]
    fn open_node_ports_and_a_webhook_without_pods_are_notes_and_at_best_all_is_well() {
        assert!(judged(&neighbours()).iter().all(|one| one.verdict == Verdict::Ok));
        let open = (0..20).map(|at| format!("t/s{at:02} (30443)")).collect();
        let webhook = Ok(Webhook::Gone(vec!["metallb-system/metallb-webhook-service".to_owned()]));
        let findings = judged(&Neighbours { node_ports: Ok(open), webhook, ..neighbours() });
        let [ports, hook, _] = findings.as_slice() else { panic!("{} findings", findings.len()) };
        assert_eq!((ports.verdict, hook.verdict), (Verdict::Note, Verdict::Note));
        assert!(ports.found.starts_with("t/s00 (30443), ") && ports.found.ends_with(" and 12 more Services"));
        assert_eq!(hook.found, "left over: its Service is gone: metallb-system/metallb-webhook-service");
        let delete = "kubectl delete validatingwebhookconfiguration metallb-webhook-configuration";
        assert!(hook.remedy.contains(delete), "{}", hook.remedy);
    }
}
