//! Priorities of our requests at the API server: FlowSchemas.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use tests::cluster::{ApiServer, Kubectl};

use super::rendered::{NAMESPACE, objects, of_kind, template};

/// Names of FlowSchemas and of priority levels, by UID.
struct Names(BTreeMap<String, String>);

impl Names {
    fn read(admin: &Kubectl) -> Self {
        let list = admin.get(&["flowschemas,prioritylevelconfigurations"]).unwrap();
        let text =
            |object: &serde_json::Value, field: &str| object["metadata"][field].as_str().unwrap().to_owned();
        let objects = list["items"].as_array().unwrap().iter();
        Self(objects.map(|object| (text(object, "uid"), text(object, "name"))).collect())
    }

    /// Sends one request, which may be refused. Returns by which schema the API server classified it, and the priority
    /// level.
    fn of(&self, client: &Kubectl, words: &[&str]) -> (String, String) {
        let output = client.output(&[&["-v=8"], words].concat(), "{}").unwrap();
        let log = String::from_utf8_lossy(&output.stderr).into_owned();
        let header = |name: &str| {
            let (_, rest) = log.split_once(name).unwrap_or_else(|| panic!("no {name}: {log}"));
            let uid: String = rest.chars().take_while(|c| c.is_ascii_hexdigit() || *c == '-').collect();
            self.0[&uid].clone()
        };
        (header("X-Kubernetes-Pf-Flowschema-Uid: "), header("X-Kubernetes-Pf-Prioritylevel-Uid: "))
    }
}

#[test]
fn leases_go_first_then_the_controller_then_agents() {
    let server = ApiServer::start().unwrap();
    let admin = server.kubectl();
    admin.apply(&template(&["--set=namespace.create=true"]).unwrap()).unwrap();
    admin.run(&["create", "serviceaccount", "-n", NAMESPACE, "other"]).unwrap();
    let account = |name: &str| admin.of_service_account(NAMESPACE, name).unwrap();
    let (agent, controller, other) =
        (account("vestibule-agent"), account("vestibule-controller"), account("other"));
    let names = Names::read(admin);
    let leases = format!("/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases");
    let lease = format!("{leases}/vestibule-agent-node1");
    let events = "/apis/events.k8s.io/v1/namespaces/default/events";
    let states = "/apis/vestibule.dev/v1alpha1/nodestates";
    let elsewhere = "/apis/coordination.k8s.io/v1/namespaces/default/leases";
    let get = |path: &'static str| vec!["get", "--raw", path];

    // API servers read FlowSchemas a moment after they are written.
    let begun = Instant::now();
    let in_force = || {
        let of = |client, schema| names.of(client, &["get", "--raw", "/version"]).0 == schema;
        of(&agent, "vestibule-agent") && of(&controller, "vestibule-controller")
    };
    while !in_force() {
        assert!(begun.elapsed() < Duration::from_secs(30), "they are not in force");
        std::thread::sleep(Duration::from_millis(200));
    }
    for (client, words, schema, level) in [
        (&agent, vec!["get", "--raw", &lease], "vestibule-leases", "leader-election"),
        (&agent, vec!["create", "--raw", &leases, "-f", "-"], "vestibule-leases", "leader-election"),
        (&agent, get(elsewhere), "vestibule-agent", "workload-low"),
        (&agent, get("/api/v1/services"), "vestibule-agent", "workload-low"),
        (&agent, vec!["create", "--raw", states, "-f", "-"], "vestibule-agent", "workload-low"),
        (&agent, get("/apis"), "vestibule-agent", "workload-low"),
        (&controller, vec!["get", "--raw", &leases], "vestibule-leases", "leader-election"),
        (&controller, vec!["create", "--raw", &leases, "-f", "-"], "vestibule-leases", "leader-election"),
        (&controller, get("/api/v1/services"), "vestibule-controller", "workload-high"),
        (&controller, vec!["create", "--raw", events, "-f", "-"], "vestibule-controller", "workload-high"),
        (&controller, get("/apis"), "vestibule-controller", "workload-high"),
        (&other, vec!["get", "--raw", &leases], "service-accounts", "workload-low"),
    ] {
        let seen = names.of(client, &words);
        assert_eq!((&*seen.0, &*seen.1), (schema, level), "{words:?}");
    }
}

#[test]
fn priorities_can_be_left_to_the_api_server() {
    assert_eq!(of_kind(&objects(&[]), "FlowSchema").count(), 3);
    assert_eq!(of_kind(&objects(&["--set=flowSchemas.enabled=false"]), "FlowSchema").count(), 0);
}
