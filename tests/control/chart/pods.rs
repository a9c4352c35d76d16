//! The pods of the chart.

use std::fs;

use serde_json::{Value, json};
use tests::cluster::ApiServer;

use super::rendered::{EVERYTHING, NAMESPACE, items, object, objects, of_kind, root, template};

/// Returns the pod templates with the kind and name of their objects.
fn templates(objects: &[Value]) -> Vec<(String, &Value)> {
    let kinds = ["DaemonSet", "Deployment", "Job"].into_iter().flat_map(|kind| of_kind(objects, kind));
    let named = |object: &Value| {
        format!("{}/{}", object["kind"].as_str().unwrap(), object["metadata"]["name"].as_str().unwrap())
    };
    kinds.map(|object| (named(object), &object["spec"]["template"])).collect()
}

#[test]
fn no_container_has_more_than_it_needs_whatever_the_values() {
    for options in [&[][..], EVERYTHING, &["--set=seccompProfile.type=Unconfined,controller.replicas=1"]] {
        let objects = objects(options);
        let templates = templates(&objects);
        assert_eq!(templates.len(), 3);
        for (name, template) in templates {
            let pod = &template["spec"];
            assert!(pod["hostPID"].is_null() && pod["hostIPC"].is_null(), "{name}");
            assert!(pod["initContainers"].is_null(), "{name}");
            for container in items(&pod["containers"]) {
                let security = &container["securityContext"];
                assert_eq!(security["privileged"], false, "{name}");
                assert_eq!(security["allowPrivilegeEscalation"], false, "{name}");
                assert_eq!(security["readOnlyRootFilesystem"], true, "{name}");
                assert_eq!(security["capabilities"]["drop"], json!(["ALL"]), "{name}");
                let mut added = vec!["BPF", "NET_ADMIN", "PERFMON"];
                if options == EVERYTHING {
                    added.extend(["NET_RAW", "SYS_ADMIN"]);
                }
                let expected = if name.starts_with("DaemonSet") { json!(added) } else { Value::Null };
                assert_eq!(security["capabilities"]["add"], expected, "{name}");
            }
        }
    }
}

#[test]
fn an_agent_is_part_of_its_node_and_two_can_share_it() {
    let objects = objects(&[]);
    let set = object(&objects, "DaemonSet", "vestibule-agent");
    assert_eq!(set["spec"]["updateStrategy"]["type"], "RollingUpdate");
    assert_eq!(
        set["spec"]["updateStrategy"]["rollingUpdate"],
        json!({"maxSurge": "5%", "maxUnavailable": 0})
    );
    let pod = &set["spec"]["template"]["spec"];
    assert_eq!(pod["hostNetwork"], true);
    assert_eq!(pod["dnsPolicy"], "ClusterFirstWithHostNet");
    assert_eq!(pod["priorityClassName"], "system-node-critical");
    assert_eq!(pod["terminationGracePeriodSeconds"], 30);
    assert_eq!(pod["automountServiceAccountToken"], true);
    assert_eq!(pod["securityContext"]["seccompProfile"], json!({"type": "RuntimeDefault"}));
    assert_eq!(pod["securityContext"]["appArmorProfile"], json!({"type": "Unconfined"}));
    let tolerated: Vec<_> = items(&pod["tolerations"]).iter().map(|toleration| &toleration["key"]).collect();
    assert_eq!(tolerated, ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"]);
    let container = &pod["containers"][0];
    // They would be host ports, and the scheduler would keep the second pod off the node.
    assert!(container["ports"].is_null());
    for (probe, asks) in
        [("readinessProbe", "--readyz"), ("livenessProbe", "--livez"), ("startupProbe", "--livez")]
    {
        assert_eq!(container[probe]["exec"]["command"], json!(["vestibule", "probe", asks]));
        assert!(container[probe]["httpGet"].is_null(), "which of the two would answer?");
    }
    let env: Vec<_> = items(&container["env"])
        .iter()
        .map(|variable| (variable["name"].as_str().unwrap(), &variable["valueFrom"]["fieldRef"]["fieldPath"]))
        .filter(|(_, field)| !field.is_null())
        .collect();
    let expected = [
        ("NODE_NAME", "spec.nodeName"),
        ("POD_NAME", "metadata.name"),
        ("POD_NAMESPACE", "metadata.namespace"),
        ("HOST_IP", "status.hostIP"),
    ];
    assert!(env.iter().zip(expected).all(|(have, want)| have.0 == want.0 && have.1 == want.1), "{env:?}");
    assert_eq!(env.len(), expected.len());
    let mounts: Vec<_> = items(&container["volumeMounts"])
        .iter()
        .map(|mount| (mount["mountPath"].as_str().unwrap(), mount["mountPropagation"].as_str()))
        .collect();
    assert!(mounts.contains(&("/sys/fs/bpf", Some("HostToContainer"))), "{mounts:?}");
    let folders: Vec<_> = items(&pod["volumes"])
        .iter()
        .filter(|volume| !volume["hostPath"].is_null())
        .map(|volume| {
            (volume["hostPath"]["path"].as_str().unwrap(), volume["hostPath"]["type"].as_str().unwrap())
        })
        .collect();
    let expected = [
        ("/sys/fs/bpf", "Directory"),
        ("/var/lib/vestibule", "DirectoryOrCreate"),
        ("/run/vestibule", "DirectoryOrCreate"),
    ];
    assert_eq!(folders, expected);
}

#[test]
fn controllers_are_two_and_drains_leave_one() {
    let two = objects(&[]);
    assert_eq!(object(&two, "Deployment", "vestibule-controller")["spec"]["replicas"], 2);
    assert_eq!(object(&two, "PodDisruptionBudget", "vestibule-controller")["spec"]["minAvailable"], 1);
    // A single pod with a budget could never be drained.
    let one = objects(&["--set=controller.replicas=1"]);
    assert_eq!(of_kind(&one, "PodDisruptionBudget").count(), 0);
}

#[test]
fn every_object_is_labelled_and_selected_by_what_never_changes() {
    let objects = objects(EVERYTHING);
    for object in &objects {
        let labels = object["metadata"]["labels"].as_object().unwrap();
        for label in ["name", "instance", "version", "component", "part-of", "managed-by"] {
            assert!(labels.contains_key(&format!("app.kubernetes.io/{label}")), "{label}: {object}");
        }
    }
    for kind in ["DaemonSet", "Deployment"] {
        for object in of_kind(&objects, kind) {
            let selector = object["spec"]["selector"]["matchLabels"].as_object().unwrap();
            let labels = object["spec"]["template"]["metadata"]["labels"].as_object().unwrap();
            assert!(!selector.contains_key("app.kubernetes.io/version"), "an update could not be applied");
            assert!(selector.iter().all(|(label, value)| labels.get(label) == Some(value)), "{selector:?}");
        }
    }
    let namespace = object(&objects, "Namespace", NAMESPACE);
    for mode in ["enforce", "audit", "warn"] {
        let label = format!("pod-security.kubernetes.io/{mode}");
        assert_eq!(namespace["metadata"]["labels"][label], "privileged");
    }
}

/// Pods read it again. On five hundred nodes a rollout would take hours, and lose what each node knows in memory.
#[test]
fn a_change_of_the_configuration_starts_no_new_pods() {
    let pods = |options: &[&str]| {
        let objects = objects(options);
        templates(&objects).into_iter().map(|(_, template)| template.clone()).collect::<Vec<_>>()
    };
    let change =
        "--set=settings.idleTimeout=2h,addresses.ranges={192.0.2.0/24},probe.enabled=true,devices={eth0}";
    assert_eq!(pods(&[]), pods(&[change]));
    assert_ne!(objects(&[]), objects(&[change]));
    assert_ne!(pods(&[]), pods(&["--set=logFormat=text"]));
}

#[test]
fn images_are_named_by_tag_or_digest() {
    let image = |options: &[&str]| {
        let objects = objects(options);
        let images = templates(&objects)
            .into_iter()
            .map(|(_, template)| template["spec"]["containers"][0]["image"].clone());
        let images: Vec<Value> = images.collect();
        assert_eq!(images[0], images[1]);
        images[0].as_str().unwrap().to_owned()
    };
    assert_eq!(image(&[]), concat!("vestibule:", env!("CARGO_PKG_VERSION")));
    assert_eq!(image(&["--set=image.tag=dev"]), "vestibule:dev");
    let digest = format!("sha256:{}", "0a".repeat(32));
    let options =
        [&*format!("--set=image.digest={digest}"), "--set=image.registry=registry.example.com:5000"];
    assert_eq!(image(&options), format!("registry.example.com:5000/vestibule@{digest}"));
}

/// Only helm runs it, and only before it deletes anything.
#[test]
fn the_job_that_withdraws_runs_where_a_controller_does_and_by_its_account() {
    let options = ["--set=controller.nodeSelector.role=core", "--set=imagePullSecrets[0].name=pull"];
    let objects = objects(&options);
    let job = object(&objects, "Job", "vestibule-withdraw");
    let annotations = &job["metadata"]["annotations"];
    assert_eq!(annotations["helm.sh/hook"], "pre-delete");
    assert_eq!(annotations["helm.sh/hook-delete-policy"], "before-hook-creation,hook-succeeded");
    let pod = &job["spec"]["template"]["spec"];
    let controller = &object(&objects, "Deployment", "vestibule-controller")["spec"]["template"]["spec"];
    let same = [
        "serviceAccountName",
        "nodeSelector",
        "tolerations",
        "imagePullSecrets",
        "securityContext",
        "priorityClassName",
    ];
    for field in same {
        assert!(!pod[field].is_null(), "{field}");
        assert_eq!(pod[field], controller[field], "{field}");
    }
    assert_eq!(pod["containers"][0]["image"], controller["containers"][0]["image"]);
    assert_eq!(pod["containers"][0]["env"], controller["containers"][0]["env"]);
    assert_eq!(
        pod["containers"][0]["args"],
        json!(["withdraw", "--config=/etc/vestibule/vestibule.yaml", "--log-format=json"])
    );
    assert!(!template(&["--set=withdraw.enabled=false"]).unwrap().contains("kind: Job"));
    assert!(!template(&["--no-hooks"]).unwrap().contains("kind: Job"));
    // Applied without helm it would run at once, and withdraw what was just installed.
    assert!(!template(&["--set=helmLabels=false"]).unwrap().contains("kind: Job"));
}

#[test]
fn plain_manifests_are_those_of_the_chart() {
    let values = format!("--values={}", root("deploy/manifests/values.yaml").display());
    let class = [
        &*values,
        "--no-hooks",
        "--show-only=templates/gatewayclass.yaml",
        "--api-versions=gateway.networking.k8s.io/v1/GatewayClass",
    ];
    for (file, options) in [("vestibule.yaml", &class[..2]), ("gatewayclass.yaml", &class[..])] {
        let kept = fs::read_to_string(root("deploy/manifests").join(file)).unwrap();
        let now = template(options).unwrap();
        assert!(
            kept == now,
            "deploy/manifests/{file} is not what the chart renders; run `cargo xtask manifests`"
        );
    }
}

#[test]
fn an_api_server_takes_all_of_it_and_finds_the_controller_restricted() {
    let server = ApiServer::start().unwrap();
    let kubectl = server.kubectl();
    let mut options = EVERYTHING.to_vec();
    options.push("--set=podMonitor.enabled=false,prometheusRule.enabled=false");
    let rendered = template(&options).unwrap();
    kubectl.apply(&rendered).unwrap();
    kubectl.wait_for_definitions().unwrap();
    assert_eq!(kubectl.get(&["nodestates"]).unwrap()["items"], json!([]));
    let objects = objects(&options);
    let pod = |kind: &str, name: &str| {
        let template = &object(&objects, kind, name)["spec"]["template"];
        let metadata =
            json!({"name": name, "namespace": NAMESPACE, "labels": template["metadata"]["labels"]});
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}).to_string()
    };
    let create = |pod: &str| kubectl.feed(&["create", "--dry-run=server", "-f", "-"], pod);
    let (agent, controller) =
        (pod("DaemonSet", "vestibule-agent"), pod("Deployment", "vestibule-controller"));
    create(&agent).unwrap();
    let label = "pod-security.kubernetes.io/enforce=restricted";
    kubectl.run(&["label", "--overwrite", "namespace", NAMESPACE, label]).unwrap();
    create(&controller).unwrap();
    let refused = create(&agent).unwrap_err().to_string();
    assert!(refused.contains("violates PodSecurity"), "{refused}");
    for what in ["privileged containers", "hostPort", "hostPID"] {
        assert!(!refused.contains(what), "{refused}");
    }
    // The examples are objects that this API server accepts.
    for file in ["gateway.yaml", "service.yaml", "kamaji.yaml"] {
        kubectl.apply_files(&root("deploy/examples").join(file)).unwrap();
    }
}
