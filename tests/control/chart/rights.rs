//! Rights that the chart grants.

use serde_json::{Value, json};
use tests::cluster::{ApiServer, Kubectl};

use super::rendered::{EVERYTHING, NAMESPACE, items, object, objects, of_kind, template, words};

const KEYS: &str = "vestibule-keys";

/// Returns every rule, with the kind and name of its role.
fn rules(objects: &[Value]) -> Vec<(String, &Value)> {
    let roles = ["ClusterRole", "Role"].into_iter().flat_map(|kind| of_kind(objects, kind));
    let named = |role: &Value| {
        format!("{}/{}", role["kind"].as_str().unwrap(), role["metadata"]["name"].as_str().unwrap())
    };
    roles.flat_map(|role| items(&role["rules"]).iter().map(move |rule| (named(role), rule))).collect()
}

#[test]
fn no_rule_is_wider_than_a_purpose() {
    let objects = objects(EVERYTHING);
    let rules = rules(&objects);
    assert!(rules.len() > 8, "{rules:?}");
    for (role, rule) in &rules {
        assert!(rule["nonResourceURLs"].is_null(), "{role}");
        let (groups, resources, verbs) =
            (words(&rule["apiGroups"]), words(&rule["resources"]), words(&rule["verbs"]));
        for word in groups.iter().chain(&resources).chain(&verbs) {
            assert!(!word.contains('*'), "{role}: {rule}");
        }
        for verb in ["escalate", "bind", "impersonate", "deletecollection"] {
            assert!(!verbs.contains(&verb), "{role}: {rule}");
        }
        if resources.contains(&"secrets") {
            assert!(role.starts_with("Role/"), "{role} names Secrets in all namespaces");
            let by_name = rule["resourceNames"] == json!([KEYS]);
            assert!(by_name || verbs == ["create"], "{role}: {rule}");
        }
        if rule == &&json!({"apiGroups": [groups[0]], "resources": ["gatewayclasses"], "verbs": ["patch"]}) {
            // For the finalizer of a class that Gateways use, which only the controller sets.
            assert_eq!(role, "ClusterRole/vestibule-controller");
            continue;
        }
        // Specs of other controllers' objects are never written.
        let foreign = [
            "",
            "discovery.k8s.io",
            "gateway.networking.k8s.io",
            "networking.k8s.io",
            "apiextensions.k8s.io",
        ];
        let objects_of_others = foreign.contains(&groups[0]) && !resources.contains(&"secrets");
        if objects_of_others && resources.iter().any(|resource| !resource.ends_with("/status")) {
            // An agent reads its own node once, for the zone; a rule cannot express which node that is.
            let reads = match resources.as_slice() {
                ["nodes"] if role == "ClusterRole/vestibule-agent" => &["get"][..],
                // Whether MetalLB runs, where Services are served that it may serve, too.
                ["pods"] => &["list"],
                _ => &["list", "watch"],
            };
            assert_eq!(verbs, reads, "{role}: {rule}");
        }
    }
}

#[test]
fn the_controller_reads_nodes_where_anything_may_be_announced() {
    let reads_nodes = |options: &[&str]| {
        let objects = objects(options);
        let reads = |(role, rule): &(String, &Value)| {
            role == "ClusterRole/vestibule-controller" && words(&rule["resources"]) == ["nodes"]
        };
        rules(&objects).iter().any(reads)
    };
    assert!(!reads_nodes(&[]));
    assert!(reads_nodes(&["--set=addresses.l2=true"]));
    assert!(reads_nodes(&["--set=metallb.namespaces={metallb-system}"]));
}

#[test]
fn roles_are_given_to_our_two_accounts_and_to_nobody_else() {
    let objects = objects(EVERYTHING);
    let bindings = ["ClusterRoleBinding", "RoleBinding"].into_iter().flat_map(|kind| of_kind(&objects, kind));
    let mut seen = 0;
    for binding in bindings {
        for subject in items(&binding["subjects"]) {
            let name = subject["name"].as_str().unwrap();
            assert_eq!(
                (subject["kind"].as_str(), subject["namespace"].as_str()),
                (Some("ServiceAccount"), Some(NAMESPACE))
            );
            // Only pods that request a token have one.
            assert_eq!(object(&objects, "ServiceAccount", name)["automountServiceAccountToken"], false);
            seen += 1;
        }
        let role = &binding["roleRef"];
        object(&objects, role["kind"].as_str().unwrap(), role["name"].as_str().unwrap());
    }
    assert_eq!(seen, 4);
}

/// Returns the API server's answer to `kubectl auth can-i`.
fn can(account: &Kubectl, question: &str) -> bool {
    let words: Vec<&str> = ["auth", "can-i"].into_iter().chain(question.split(' ')).collect();
    let output = account.output(&words, "").unwrap();
    match String::from_utf8_lossy(&output.stdout).trim() {
        "yes" => true,
        "no" => false,
        other => panic!("{question}: {other} {}", String::from_utf8_lossy(&output.stderr)),
    }
}

#[test]
fn an_api_server_lets_each_do_its_work_and_nothing_else() {
    let server = ApiServer::start().unwrap();
    let admin = server.kubectl();
    admin.apply(&template(&["--set=namespace.create=true", "--set=formerRights=false"]).unwrap()).unwrap();
    admin.wait_for_definitions().unwrap();
    let here = format!("-n {NAMESPACE}");
    let agent = admin.of_service_account(NAMESPACE, "vestibule-agent").unwrap();
    let controller = admin.of_service_account(NAMESPACE, "vestibule-controller").unwrap();
    for account in [&agent, &controller] {
        for question in ["list endpointslices.discovery.k8s.io -A", "watch claims.vestibule.dev"] {
            assert!(can(account, question), "{question}");
        }
        for question in [
            "list secrets -A",
            &format!("list secrets {here}"),
            &format!("get secrets/other {here}"),
            "update services -A",
            "patch gateways.gateway.networking.k8s.io -A",
            "create pods -A",
            "list nodes",
            "create events -A",
            "update leases.coordination.k8s.io -n default",
        ] {
            assert!(!can(account, question), "{question}");
        }
    }
    let own = [
        "create nodestates.vestibule.dev".to_owned(),
        format!("list secrets/{KEYS} {here}"),
        format!("watch secrets/{KEYS} {here}"),
        format!("update leases.coordination.k8s.io {here}"),
        "list announcements.vestibule.dev/vestibule".to_owned(),
        "watch announcements.vestibule.dev/vestibule".to_owned(),
    ];
    assert!(own.iter().all(|question| can(&agent, question)), "{own:?}");
    for question in [
        "watch services -A",
        "watch tlsroutes.gateway.networking.k8s.io -A",
        "list customresourcedefinitions.apiextensions.k8s.io",
        "patch gateways.gateway.networking.k8s.io --subresource=status -A",
        "patch services --subresource=status -A",
        "create events.events.k8s.io -A",
        "create claims.vestibule.dev",
        "update claims.vestibule.dev",
        "delete claims.vestibule.dev",
        "create announcements.vestibule.dev",
        "update announcements.vestibule.dev/vestibule",
        "patch gatewayclasses.gateway.networking.k8s.io",
        &format!("update secrets/{KEYS} {here}"),
    ] {
        assert!(!can(&agent, question), "agent: {question}");
        assert!(can(&controller, question), "controller: {question}");
    }
    assert!(!can(&controller, "update nodestates.vestibule.dev"));
    assert!(!can(&controller, "update announcements.vestibule.dev/other"));
    assert!(!can(&controller, &format!("update leases.coordination.k8s.io/of-an-agent {here}")));
}

/// Each agent would be sent the Leases of all.
#[test]
fn agents_never_watch_leases() {
    let server = ApiServer::start().unwrap();
    let admin = server.kubectl();
    admin.apply(&template(&["--set=namespace.create=true", "--set=formerRights=true"]).unwrap()).unwrap();
    admin.wait_for_definitions().unwrap();
    let agent = admin.of_service_account(NAMESPACE, "vestibule-agent").unwrap();
    let controller = admin.of_service_account(NAMESPACE, "vestibule-controller").unwrap();
    let here = format!("-n {NAMESPACE}");
    for verb in ["list", "watch"] {
        let question = format!("{verb} leases.coordination.k8s.io {here}");
        assert!(can(&controller, &question), "controller: {question}");
        for within in [&*here, "-A", "-n default"] {
            let question = format!("{verb} leases.coordination.k8s.io {within}");
            assert!(!can(&agent, &question), "agent: {question}");
        }
    }
    // Its own, by its name.
    assert!(can(&agent, &format!("get leases.coordination.k8s.io {here}")));
}

#[test]
fn an_agent_lists_and_watches_the_one_secret_by_its_name() {
    let server = ApiServer::start().unwrap();
    let admin = server.kubectl();
    admin.apply(&template(&["--set=namespace.create=true"]).unwrap()).unwrap();
    let create = |name: &str| {
        admin
            .run(&["create", "secret", "generic", "-n", NAMESPACE, name, "--from-literal=cookie=0"])
            .unwrap();
    };
    create(KEYS);
    create("other");
    let agent = admin.of_service_account(NAMESPACE, "vestibule-agent").unwrap();
    let list = |selector: &str| {
        let path = format!("/api/v1/namespaces/{NAMESPACE}/secrets{selector}");
        agent.run(&["get", "--raw", &path])
    };
    let found: Value =
        serde_json::from_str(&list("?fieldSelector=metadata.name%3Dvestibule-keys").unwrap()).unwrap();
    assert_eq!(items(&found["items"]).len(), 1);
    let watch = "?watch=true&timeoutSeconds=1&fieldSelector=metadata.name%3Dvestibule-keys";
    assert!(list(watch).unwrap().contains("\"ADDED\""));
    for selector in ["", "?fieldSelector=metadata.name%3Dother", "?watch=true&timeoutSeconds=1"] {
        let refused = list(selector).unwrap_err().to_string();
        assert!(refused.contains("forbidden"), "{selector}: {refused}");
    }
}

/// Agents of the release before this one read origins.
#[test]
fn former_rights_are_given_where_an_agent_may_need_them_and_not_where_none_does() {
    let is_former = |options: &[&str]| {
        let objects = objects(options);
        let roles: Vec<&Value> = of_kind(&objects, "ClusterRole").collect();
        roles.iter().any(|role| role["metadata"]["name"] == "vestibule-reader")
    };
    assert!(is_former(&[]), "without a cluster at hand, it is not known whether an agent needs them");
    assert!(is_former(&["--set=formerRights=true"]) && !is_former(&["--set=formerRights=false"]));
    let objects = objects(&["--set=formerRights=true"]);
    let role = object(&objects, "ClusterRole", "vestibule-reader");
    for rule in items(&role["rules"]) {
        assert_eq!(words(&rule["verbs"]), ["list", "watch"], "{rule}");
    }
    let binding = object(&objects, "ClusterRoleBinding", "vestibule-reader");
    assert_eq!(binding["subjects"].as_array().map(Vec::len), Some(1));
    assert_eq!(binding["subjects"][0]["name"], "vestibule-agent");
    assert!(template(&["--set=formerRights=maybe"]).is_err());
}
