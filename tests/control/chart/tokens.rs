//! What each form of an agent's token may write: an agent speaks for its own node only.

use std::time::Duration;

use anyhow::Result;
use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl};

use super::rendered::{NAMESPACE, template};

/// The refusal of what another node's agent writes.
const FOREIGN: &str = "of its own node only";
/// The refusal of a token that names no node.
const UNKNOWN: &str = "names no node";

/// kubectl with a token of the agents' ServiceAccount.
struct Agent<'a> {
    kubectl: &'a Kubectl,
    token: String,
}

impl<'a> Agent<'a> {
    /// Requests a token with these options of `kubectl create token`.
    fn with(kubectl: &'a Kubectl, options: &[&str]) -> Self {
        let ask = [&["create", "token", "-n", NAMESPACE, "vestibule-agent"][..], options].concat();
        Self { kubectl, token: format!("--token={}", kubectl.run(&ask).unwrap().trim()) }
    }

    /// Creates or replaces an object.
    fn write(&self, verb: &str, object: &Value) -> Result<String> {
        self.kubectl.feed(&[&*self.token, verb, "-f", "-"], &object.to_string())
    }

    fn create_state(&self, node: &str) -> Result<String> {
        self.write("create", &state(node))
    }

    fn replace_state(&self, node: &str) -> Result<String> {
        self.write("replace", &state(node))
    }

    fn create_lease(&self, name: &str) -> Result<String> {
        self.write("create", &lease(name))
    }

    fn replace_lease(&self, name: &str) -> Result<String> {
        self.write("replace", &lease(name))
    }

    /// Checks that it can replace what is node1's, and neither replace nor create what is of another.
    fn speaks_for_node1_only(&self) {
        self.replace_state("node1").unwrap();
        self.replace_lease("vestibule-agent-node1").unwrap();
        let foreign = [
            self.replace_state("node2"),
            self.create_state("node3"),
            self.replace_lease("vestibule-agent-node2"),
            self.create_lease("vestibule-agent-node3"),
            self.replace_lease("vestibule-controller"),
        ];
        for refused in foreign {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains(FOREIGN), "{refused}");
        }
    }
}

fn merged(mut object: Value, with: Value) -> Value {
    let (Some(all), Value::Object(with)) = (object.as_object_mut(), with) else { panic!("not objects") };
    all.extend(with);
    object
}

fn state(node: &str) -> Value {
    let spec = json!({"node": node, "pod": "agent", "version": "0.1.0"});
    let kind = json!({"apiVersion": "vestibule.dev/v1alpha1", "kind": "NodeState"});
    merged(kind, json!({"metadata": {"name": node}, "spec": spec}))
}

/// The Lease of a node whose name its own does not have all of.
fn lease_of(name: &str, node: &str) -> Value {
    let mut lease = lease(name);
    lease["metadata"]["annotations"] = json!({"vestibule.dev/node": node});
    lease
}

fn lease(name: &str) -> Value {
    let kind = json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"});
    let metadata = json!({"name": name, "namespace": NAMESPACE});
    merged(kind, json!({"metadata": metadata, "spec": {"holderIdentity": "agent"}}))
}

/// Creates a pod of an agent, on a node if one is given.
fn pod(kubectl: &Kubectl, name: &str, node: Option<&str>) {
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "nodeName": node,
            "serviceAccountName": "vestibule-agent",
            "containers": [{"name": "agent", "image": "vestibule:dev"}],
        },
    });
    kubectl.apply(&pod.to_string()).unwrap();
}

#[test]
fn an_agent_speaks_for_its_own_node_whatever_form_its_token_has() {
    let server = ApiServer::start().unwrap();
    let admin = server.kubectl();
    admin.apply(&template(&["--set=namespace.create=true"]).unwrap()).unwrap();
    admin.wait_for_definitions().unwrap();
    let long = ["a", "b"].map(|last| format!("{}{last}", format!("{}.", "n".repeat(49)).repeat(5)));
    for node in ["node1", "node2", &*long[0]] {
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        admin.apply(&node.to_string()).unwrap();
    }
    for object in [
        state("node1"),
        state("node2"),
        lease("vestibule-agent-node1"),
        lease("vestibule-agent-node2"),
        lease("vestibule-controller"),
        lease_of("vestibule-agent-nnn-of-b", &long[1]),
    ] {
        admin.apply(&object.to_string()).unwrap();
    }
    pod(admin, "agent", Some("node1"));
    pod(admin, "unscheduled", None);
    admin.run(&["create", "secret", "generic", "-n", NAMESPACE, "kept", "--from-literal=a=b"]).unwrap();
    let bound = |kind: &str, name: &str| {
        let (kind, name) = (format!("--bound-object-kind={kind}"), format!("--bound-object-name={name}"));
        Agent::with(admin, &[&*kind, &*name])
    };

    // As a kubelet requests it. API servers apply a policy a moment after it is written.
    let agent = bound("Pod", "agent");
    let refused = (0..60).find_map(|n| {
        std::thread::sleep(Duration::from_millis(200));
        agent.create_state(&format!("early{n}")).err()
    });
    let refused = refused.expect("not refused in twelve seconds").to_string();
    assert!(refused.contains(FOREIGN), "{refused}");
    agent.speaks_for_node1_only();
    bound("Node", "node1").speaks_for_node1_only();

    let agent = bound("Node", &long[0]);
    agent.create_state(&long[0]).unwrap();
    agent.write("create", &lease_of("vestibule-agent-nnn-of-a", &long[0])).unwrap();
    agent.write("replace", &lease_of("vestibule-agent-nnn-of-a", &long[0])).unwrap();
    for refused in [
        agent.create_state("node3"),
        agent.create_lease("vestibule-agent-node3"),
        agent.write("create", &lease_of("vestibule-agent-nnn-of-c", &long[1])),
        agent.write("replace", &lease_of("vestibule-agent-nnn-of-b", &long[0])),
        agent.write("replace", &lease_of("vestibule-agent-node2", &long[0])),
        agent.write("replace", &lease_of("vestibule-controller", &long[0])),
    ] {
        let refused = refused.unwrap_err().to_string();
        assert!(refused.contains(FOREIGN), "{refused}");
    }

    for (form, agent) in [
        ("bound to nothing", Agent::with(admin, &[])),
        ("bound to a Secret", bound("Secret", "kept")),
        ("bound to a pod without a node", bound("Pod", "unscheduled")),
    ] {
        let writes = [
            agent.replace_state("node2"),
            agent.create_state("node3"),
            agent.replace_lease("vestibule-agent-node2"),
            agent.create_lease("vestibule-agent-node3"),
            agent.replace_lease("vestibule-controller"),
        ];
        for (n, write) in writes.into_iter().enumerate() {
            let refused = write.expect_err(&format!("{form}: write {n}")).to_string();
            assert!(refused.contains(UNKNOWN), "{form}: write {n}: {refused}");
        }
    }
}
