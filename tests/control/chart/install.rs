//! The chart as a release: installed, upgraded, uninstalled.

use std::process::Command;

use tests::cluster::{ApiServer, Options, helm};

use super::rendered::{NAMESPACE, root};

#[test]
fn a_release_finds_the_gateway_api_when_it_comes_and_leaves_what_nodes_told() {
    let server = ApiServer::with(&Options { bare: true, ..Options::default() }).unwrap();
    let kubectl = server.kubectl();
    let run = |arguments: &[&str]| {
        let mut command = Command::new(helm().unwrap());
        command.args(arguments).args(["--namespace", NAMESPACE, "--kubeconfig"]).arg(server.kubeconfig());
        let output = command.output().unwrap();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        assert!(output.status.success(), "helm {arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    // No node runs the Job that helm waits for before it uninstalls.
    let chart = root("deploy/charts/vestibule").display().to_string();
    let notes = run(&["install", "vestibule", &chart, "--create-namespace"]);
    assert!(notes.contains("NO GATEWAYCLASS") && notes.contains("NO ADDRESSES"), "{notes}");
    let installed = kubectl.get(&["-n", NAMESPACE, "daemonset,deployment"]).unwrap();
    assert_eq!(installed["items"].as_array().unwrap().len(), 2, "{installed:#}");
    server.define().unwrap();
    let ranges = "--set=addresses.ranges={192.0.2.0/28}";
    let notes = run(&["upgrade", "vestibule", &chart, "--reuse-values", ranges]);
    assert!(!notes.contains("NO GATEWAYCLASS") && !notes.contains("NO ADDRESSES"), "{notes}");
    let class = kubectl.get(&["gatewayclass", "vestibule"]).unwrap();
    assert_eq!(class["spec"]["controllerName"], "vestibule.dev/gateway-controller");
    run(&["uninstall", "vestibule", "--no-hooks"]);
    // Gateways would lose the class, and so their addresses.
    kubectl.get(&["gatewayclass", "vestibule"]).unwrap();
    assert!(kubectl.get(&["clusterrole", "vestibule-agent"]).is_err());
    kubectl.get(&["crd", "nodestates.vestibule.dev"]).unwrap();
    kubectl.get(&["crd", "claims.vestibule.dev"]).unwrap();
    // The next release takes over what the last one left.
    run(&["install", "vestibule", &chart]);
    run(&["upgrade", "vestibule", &chart, "--reuse-values", "--set=gatewayClass.keep=false"]);
    run(&["uninstall", "vestibule", "--no-hooks"]);
    assert!(kubectl.get(&["gatewayclass", "vestibule"]).is_err());
}
