//! Values that are accepted, and what the binary reads from them.

use std::process::Command;

use serde_json::{Value, json};
use tests::cluster::helm;
use userspace::config;
use userspace::model::Settings;

use super::rendered::{EVERYTHING, items, object, objects, root, template};

/// Returns the file that agents and the controller receive.
fn file(options: &[&str]) -> String {
    let objects = objects(options);
    object(&objects, "ConfigMap", "vestibule")["data"]["vestibule.yaml"].as_str().unwrap().to_owned()
}

#[test]
fn helm_has_nothing_against_the_chart() {
    let mut lint = Command::new(helm().unwrap());
    let output =
        lint.args(["lint", "--strict", "--quiet"]).arg(root("deploy/charts/vestibule")).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

#[test]
fn values_that_cannot_be_meant_are_refused_with_their_place() {
    for (value, place) in [
        ("nope=1", "additional properties 'nope' not allowed"),
        ("settings.maxNamez=3", "at '/settings': additional properties 'maxNamez'"),
        ("settings.maxFlows=0", "at '/settings/maxFlows'"),
        ("settings.maxFlows=16777217", "at '/settings/maxFlows'"),
        ("settings.flowsPerRoute=0", "at '/settings/flowsPerRoute'"),
        ("settings.flowsPerSource=null", "at '/settings': missing property 'flowsPerSource'"),
        ("settings.idleTimeout=1h30m", "at '/settings/idleTimeout'"),
        ("settings.sourcePorts=1-2", "at '/settings/sourcePorts'"),
        ("addresses.ranges={192.0.2.0/33}", "at '/addresses/ranges/0'"),
        ("addresses.ranges={api.example.com}", "at '/addresses/ranges/0'"),
        ("addresses.shared={192.0.2.1-192.0.2.3}", "at '/addresses/shared/0'"),
        ("addresses.tlsPorts={443,65536}", "at '/addresses/tlsPorts/1'"),
        ("devices={longer-than-fifteen}", "at '/devices/0'"),
        ("settings.xdpDevices={longer-than-fifteen}", "at '/settings/xdpDevices/0'"),
        ("image.digest=sha256:12", "at '/image/digest'"),
        ("image.tag=a b", "at '/image/tag'"),
        ("seccompProfile.type=Localhost", "missing property 'localhostProfile'"),
        ("seccompProfile.type=unconfined", "at '/seccompProfile/type'"),
        ("probe.type=http", "at '/probe/type'"),
        ("probe.panicShare=101", "at '/probe/panicShare'"),
        ("controller.replicas=two", "at '/controller/replicas'"),
        ("ingress.adopt[0].class=x,ingress.adopt[0].passthrough=Some", "at '/ingress/adopt/0/passthrough'"),
        ("ingress.adopt[0].passthrough=All", "at '/ingress/adopt/0': missing property 'class'"),
        ("logFormat=xml", "at '/logFormat'"),
        ("metrics.port=65536", "at '/metrics/port'"),
        ("metrics.perRoute=some", "at '/metrics/perRoute'"),
        ("tolerations[0].operator=Maybe", "at '/tolerations/0/operator'"),
        ("privileged=true", "additional properties 'privileged' not allowed"),
        ("metrics.port=0,podMonitor.enabled=true", "podMonitor.enabled needs metrics.port"),
    ] {
        let refused = template(&[&format!("--set={value}")]).unwrap_err();
        assert!(refused.contains(place), "{value}: {refused}");
    }
}

#[test]
fn the_binary_reads_what_the_chart_writes() {
    let with_file = [
        r#"--set-json=listeners=[{"name":"a","addresses":["192.0.2.1"],"port":443,"protocol":"TLS"}]"#,
        r#"--set-json=routes=[{"name":"r","listeners":["a"],"hostnames":["a.example"],"backends":[{"address":"10.0.0.1","port":6443,"weight":1}]}]"#,
    ];
    let odd = [
        "--set=addresses.ranges={192.0.2.0/26,198.51.100.7},addresses.shared={192.0.2.8/30},addresses.tlsPorts={443,6443}",
        "--set=addresses.excluded={10.0.0.0/8,2001:db8:1::/48},devices={eth0,bond0.100}",
        "--set=settings.sourceAddresses={192.0.2.9,2001:db8::9},settings.idleTimeout=90m,settings.xdpDevices={eth0},probe.enabled=true",
        "--set=probe.type=tls,probe.interval=2s,probe.timeout=500ms",
    ];
    for options in [&[][..], EVERYTHING, &with_file, &odd] {
        let text = file(options);
        let (_, problems) = config::parse_chart(&text);
        assert!(problems.is_empty(), "{problems:?}\n{text}");
    }
    let (read, _) = config::parse_chart(&file(&odd));
    assert_eq!(read.devices.iter().map(|name| &**name).collect::<Vec<_>>(), ["eth0", "bond0.100"]);
    assert_eq!(read.facts.settings.xdp_devices.iter().map(|name| &**name).collect::<Vec<_>>(), ["eth0"]);
    assert_eq!(read.policy.ranges.len(), 2);
    assert_eq!(read.policy.excluded.len(), 2);
    assert_eq!(read.policy.tls_ports, [443, 6443].into());
    assert_eq!(read.facts.settings.idle_timeout.as_secs(), 5400);
    assert_eq!(read.policy.probe, Some(read.policy.probe_defaults));
    let (read, _) = config::parse_chart(&file(EVERYTHING));
    assert_eq!(*config::IngressPolicy::of(&read.policy).unwrap().adopt[0].class, *"nginx");
    let load_balancers = &read.policy.load_balancers;
    assert!(load_balancers.is_default && load_balancers.others == ["example.com/metallb".into()]);
    let (read, _) = config::parse_chart(&file(&with_file));
    assert!(config::IngressPolicy::of(&read.policy).is_none());
    assert_eq!((read.facts.listeners.len(), read.facts.routes.len()), (1, 1));
}

#[test]
fn values_unsaid_are_the_binarys_own_defaults() {
    let (written, problems) = config::parse_chart(&file(&[]));
    assert!(problems.is_empty(), "{problems:?}");
    let (own, _) = config::parse_chart("{}");
    assert_eq!(written.facts.settings, own.facts.settings);
    assert_eq!(own.facts.settings, Settings { node_clients: true, ..Settings::default() });
    for said in [true, false] {
        let (read, _) = config::parse_chart(&file(&[&format!("--set=settings.nodeClients={said}")]));
        assert_eq!(read.facts.settings.node_clients, said);
    }
    assert_eq!(written.policy.probe, own.policy.probe);
    assert_eq!(written.policy.panic_percent, own.policy.panic_percent);
}

#[test]
fn a_gatewayclass_is_made_where_the_cluster_knows_the_kind() {
    let known = "--api-versions=gateway.networking.k8s.io/v1/GatewayClass";
    let classes = |options: &[&str]| {
        let classes = objects(options).into_iter().filter(|object| object["kind"] == "GatewayClass");
        classes.collect::<Vec<Value>>()
    };
    assert_eq!(classes(&[known])[0]["spec"]["controllerName"], "vestibule.dev/gateway-controller");
    assert!(classes(&[]).is_empty());
    assert!(classes(&[known, "--set=gatewayClass.create=false"]).is_empty());
    assert_eq!(classes(&[known, "--set=gatewayClass.name=edge"])[0]["metadata"]["name"], "edge");
}

#[test]
fn pods_are_listed_only_where_services_of_metallb_may_be_served() {
    let pods = |options: &[&str]| {
        let is_of_pods =
            |role: &Value| items(&role["rules"]).iter().any(|rule| rule["resources"] == json!(["pods"]));
        let objects = objects(options);
        let roles = objects.iter().filter(|object| is_of_pods(object));
        roles.map(|role| role["kind"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(pods(&[]), [""; 0]);
    // In kube-system.
    assert_eq!(pods(&["--set=doctor.cluster=true"]), ["Role"]);
    assert_eq!(pods(&["--set=loadBalancerClasses={vestibule.dev/lb}"]), [""; 0]);
    assert_eq!(pods(&["--set=metallb.namespaces={metallb-system}"]), ["Role"]);
    let class = "--set=loadBalancerClasses={example.com/metallb}";
    assert_eq!(pods(&[class]), ["ClusterRole"]);
    assert_eq!(pods(&[class, "--set=metallb.namespaces={metallb-system}"]), ["Role"]);
    assert_eq!(pods(&["--set=defaultLoadBalancerClass=true"]), ["ClusterRole"]);
    assert!(template(&["--set=loadBalancerClasses={a b}"]).is_err());
}

#[test]
fn ingresses_are_read_only_where_the_chart_names_listeners_for_them() {
    let text = template(&[]).unwrap();
    assert!(!text.contains("ingresses") && !text.contains("IngressClass\n"), "{text}");
    let objects = objects(EVERYTHING);
    let class = object(&objects, "IngressClass", "vestibule");
    assert_eq!(class["spec"]["controller"], "vestibule.dev/ingress-controller");
    assert!(template(EVERYTHING).unwrap().contains("ingresses/status"));
    let mut without = EVERYTHING.to_vec();
    without.push("--set=ingress.class.create=false");
    assert!(!template(&without).unwrap().contains("kind: IngressClass"));
}

/// Without rights and watch, what we wrote into the status of Ingresses would stay for ever, and in the DNS.
#[test]
fn ingresses_that_are_not_served_any_more_can_be_cleared() {
    let text = template(&["--set=ingress.clear=true"]).unwrap();
    assert!(text.contains("ingresses/status") && !text.contains("kind: IngressClass"), "{text}");
    assert!(text.contains("ingress:\n      listeners: []"), "{text}");
}

/// Processes of the release before refuse a file with fields that they do not know.
#[test]
fn what_the_release_before_does_not_know_is_in_the_file_only_where_it_is_set() {
    let file = |options: &[&str]| {
        let objects = objects(options);
        object(&objects, "ConfigMap", "vestibule")["data"]["vestibule.yaml"].as_str().unwrap().to_owned()
    };
    let without = file(&[]);
    let unknown = ["l2", "agentGraceSeconds", "xdpDevices", "rebalance", "onIsolation", "nodeClients"];
    for unknown in unknown.into_iter().chain(["serveHealthCheckNodePorts"]) {
        assert!(!without.contains(unknown), "{without}");
    }
    let with = file(&[
        "--set=addresses.l2=true,addresses.rebalanceAfter=never,addresses.onIsolation=Withdraw",
        "--set=agentGraceSeconds=2,serveHealthCheckNodePorts=true",
        "--set=settings.l2.announceRate=100,settings.l2.refreshRate=2",
    ]);
    assert!(with.contains("\n  l2:\n    announceRate: 100\n    refreshRate: 2\n"), "{with}");
    assert!(with.contains("\nserveHealthCheckNodePorts: true\n"), "{with}");
    assert!(with.contains("\n  l2: true\n") && with.contains("\nagentGraceSeconds: 2\n"), "{with}");
    assert!(with.contains("\n  rebalanceAfter: never\n  onIsolation: Withdraw\n"), "{with}");
    for refused in [
        "agentGraceSeconds=0",
        "agentGraceSeconds=3601",
        "agentGraceSeconds=15s",
        "addresses.l2=1",
        "serveHealthCheckNodePorts=1",
        "addresses.rebalanceAfter=10",
        "addresses.onIsolation=hold",
        "settings.l2.refreshRate=0",
        "settings.l2.enabled=true",
    ] {
        assert!(template(&[&format!("--set={refused}")]).is_err(), "{refused}");
    }
}

#[test]
fn the_definitions_are_the_trees() {
    let objects = objects(&[]);
    for kind in ["announcements", "claims", "nodestates"] {
        let rendered = object(&objects, "CustomResourceDefinition", &format!("{kind}.vestibule.dev"));
        let text = std::fs::read_to_string(root(&format!("deploy/crds/{kind}.yaml"))).unwrap();
        let kept: Value = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(rendered["spec"], kept["spec"]);
        // Uninstalling must not remove what was granted, and what the nodes published.
        assert_eq!(rendered["metadata"]["annotations"], json!({"helm.sh/resource-policy": "keep"}));
    }
    assert!(
        template(&["--set=crds.enabled=false"]).is_ok_and(|text| !text.contains("CustomResourceDefinition"))
    );
}
